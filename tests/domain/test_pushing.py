"""Pushing on both engines: signed, once per attempt, never to a private network, and nothing lost with a process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace

import pytest
from standardwebhooks import Webhook

from quarterdeck.core.errors import Unavailable
from quarterdeck.domain.invocations.model import Complete, InvocationCommand, InvocationResult, RetryPolicy, State
from quarterdeck.domain.invocations.sweeps import DEADLINE
from quarterdeck.domain.services.model import DeliveryMode, Update
from quarterdeck.domain.services.operations import Updater
from quarterdeck.engine.outbound_http import PUBLIC_ONLY, OutboundClient, Request, Response, ResponseLimits
from quarterdeck.engine.outbound_http.ssrf_guard import ALLOW_PRIVATE
from tests.support.asking import ZONE, admin
from tests.support.calling import Calling
from tests.support.endpoint import Endpoint, Received, endpoint, http_answer, json_answer
from tests.support.eventually import eventually
from tests.support.pushing import SECRETS, Names, Process, ended, process_on

AT_ONCE = RetryPolicy(backoff_ms=0)
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
async def process(engine_url: str) -> AsyncIterator[Process]:
    async with process_on(engine_url) as laid:
        yield laid


@pytest.fixture
async def there() -> AsyncIterator[Endpoint]:
    async with endpoint() as listening:
        yield listening


@pytest.fixture
async def service(process: Process, there: Endpoint) -> Calling:
    return await process.service(there.url)


def error_of(text: str | None) -> dict[str, object]:
    told = json.loads(text or "null")
    assert isinstance(told, dict)
    return told


def attempts(there: Endpoint) -> list[int]:
    return [json.loads(request.body)["attempt"] for request in there.requests]


# -- what came of it


async def test_a_call_is_pushed_signed_and_what_is_answered_is_its_result(
    process: Process, there: Endpoint, service: Calling
) -> None:
    there.answer = json_answer('{"sum": [3, "ü", "\\u0000"]}'.encode())
    async with process.pushing() as pusher:
        row = await ended(service, await service.call())
    request = there.requests[0]
    told = Webhook(SECRETS(ZONE, service.service_id, 1)).verify(request.body, request.headers)
    assert (told["id"], told["params"], told["attempt"]) == (row.id, {"a": 1}, 1)
    assert request.headers["webhook-id"] == request.headers["idempotency-key"] == row.id
    assert row.status is State.SUCCEEDED
    assert json.loads(row.result_json or "") == {"sum": [3, "ü", "\0"]}
    assert await service.events(row) == ["created", "started", "succeeded"]
    assert (there.connections, dict(pusher.counts), len(pusher)) == (1, {"succeeded": 1}, 0)


async def test_what_was_called_before_the_pusher_began_is_pushed_too(
    process: Process, there: Endpoint, service: Calling
) -> None:
    row = await service.call()
    async with process.pushing():
        assert (await ended(service, row)).status is State.SUCCEEDED
    assert (await service.now(row)).result_json == "null"


async def test_a_rejection_is_a_failure_that_is_not_tried_again(
    process: Process, there: Endpoint, service: Calling
) -> None:
    there.answer = json_answer(b'{"why": "no"}', "422 Unprocessable")
    async with process.pushing():
        row = await ended(service, await service.call(retry_policy=AT_ONCE))
    assert (row.status, row.attempts) == (State.FAILED, 1)
    assert error_of(row.error_json) == {"code": "push_rejected", "status": 422, "answer": {"why": "no"}}
    assert there.connections == 1


async def test_an_error_of_the_endpoint_is_tried_again_when_its_backoff_is_over(
    process: Process, there: Endpoint, service: Calling
) -> None:
    def once(request: Received) -> bytes:
        return http_answer(b"", "503 Busy") if attempts(there) == [1] else json_answer(b"1")

    there.answer = once
    async with process.pushing():
        row = await ended(service, await service.call(retry_policy=RetryPolicy(backoff_ms=150)))
    assert (row.status, row.attempts, attempts(there)) == (State.SUCCEEDED, 2, [1, 2])
    assert {request.headers["webhook-id"] for request in there.requests} == {row.id}
    log = [event for event in await process.keel.log() if event.subject == row.id]
    [retried] = [event for event in log if event.type == "invocation.retried"]
    started = [event.at for event in log if event.type == "invocation.started"]
    due = json.loads(retried.data)["available_at"]
    assert retried.at + 150 <= due <= started[1]


async def test_a_call_that_always_fails_is_dead_when_its_attempts_are_used_up(
    process: Process, there: Endpoint, service: Calling
) -> None:
    there.answer = http_answer(b"oh", "500 Oh")
    async with process.pushing():
        row = await ended(service, await service.call(retry_policy=AT_ONCE))
    assert (row.status, attempts(there)) == (State.DEAD, [1, 2, 3])
    assert error_of(row.error_json) == {"code": "push_failed", "status": 500, "answer": "oh"}


async def test_an_endpoint_that_is_too_slow_has_timed_out_at_its_deadline_and_is_cut_off(
    process: Process, there: Endpoint, service: Calling
) -> None:
    there.open.clear()
    async with process.pushing() as pusher:
        policy = RetryPolicy(max_attempts=2, backoff_ms=0)
        row = await ended(service, await service.call(retry_policy=policy, timeout_ms=100))
    assert (row.status, attempts(there)) == (State.TIMED_OUT, [1, 2])
    assert error_of(row.error_json)["code"] == "deadline_exceeded"
    assert dict(pusher.counts) == {"push_timed_out": 2}
    assert await service.events(row) == ["created", "started", "retried", "started", "timed_out"]


async def test_a_redirect_is_not_followed(process: Process, there: Endpoint, service: Calling) -> None:
    async with endpoint() as elsewhere:
        there.answer = http_answer(b"", "307 Elsewhere", f"Location: {elsewhere.url}")
        async with process.pushing():
            row = await ended(service, await service.call(retry_policy=ONCE))
        assert elsewhere.connections == 0
    assert (row.status, error_of(row.error_json)["code"]) == (State.DEAD, "push_redirected")


async def test_an_answer_that_is_too_large_is_no_result(process: Process, there: Endpoint, service: Calling) -> None:
    there.answer = json_answer(b'"' + b"x" * 300 * 1024 + b'"')
    async with process.pushing():
        row = await ended(service, await service.call(retry_policy=ONCE))
    assert (row.status, row.result_json) == (State.DEAD, None)
    assert error_of(row.error_json)["code"] == "push_answer_too_large"


async def test_an_answer_up_to_the_bound_is_kept_whole(process: Process, there: Endpoint, service: Calling) -> None:
    there.answer = http_answer(b"\0" * ResponseLimits().body_bytes, "200 OK", "Content-Type: text/plain")
    async with process.pushing():
        row = await ended(service, await service.call(retry_policy=ONCE))
    assert json.loads(row.result_json or "") == "\0" * ResponseLimits().body_bytes


async def test_a_connection_that_breaks_in_the_middle_of_an_answer_is_tried_again(
    process: Process, there: Endpoint, service: Calling
) -> None:
    whole = json_answer(b'{"a": 1}')
    there.answer = lambda request: whole if len(there.requests) > 1 else whole[:-1]
    async with process.pushing() as pusher:
        row = await ended(service, await service.call(retry_policy=AT_ONCE))
    assert (row.status, row.attempts) == (State.SUCCEEDED, 2)
    assert dict(pusher.counts) == {"push_answer_garbled": 1, "succeeded": 1}


async def test_an_endpoint_that_is_not_there_costs_attempts(process: Process) -> None:
    async with endpoint() as gone:
        url = gone.url
    service = await process.service(url)
    async with process.pushing():
        row = await ended(service, await service.call(retry_policy=AT_ONCE))
    assert (row.status, row.attempts) == (State.DEAD, 3)
    assert error_of(row.error_json)["code"] == "push_unreachable"


# -- where it does not go


@pytest.mark.parametrize(
    "names",
    [
        Names(["127.0.0.1"]),
        Names(["93.184.215.14", "127.0.0.1"]),
        Names(["169.254.169.254"]),
        Names(["::ffff:127.0.0.1"]),
        Names(["64:ff9b::7f00:1"]),
        # Given back by turns, as whoever rebinds a name would.
        Names(["10.0.0.1"], ["127.0.0.1"], ["10.0.0.1"]),
    ],
    ids=lambda names: str(names._answers),
)
async def test_a_name_of_a_private_network_is_refused_and_nothing_is_sent(
    process: Process, there: Endpoint, names: Names
) -> None:
    service = await process.service(f"http://push.example:{there.port}/hook")
    async with process.pushing(process.means(OutboundClient(PUBLIC_ONLY, resolve=names))) as pusher:
        row = await ended(service, await service.call(retry_policy=AT_ONCE))
    assert (row.status, row.attempts) == (State.DEAD, 3)
    assert error_of(row.error_json)["code"] == "push_refused"
    assert dict(pusher.counts) == {"push_refused": 3}
    assert there.connections == 0
    assert names.askers == {row.zone_id}


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "[::ffff:127.0.0.1]", "localhost"])
async def test_a_service_registered_while_private_addresses_were_allowed_is_refused_when_they_are_not(
    process: Process, there: Endpoint, host: str
) -> None:
    service = await process.service(f"http://{host}:{there.port}/hook")
    async with process.pushing(process.means(OutboundClient(PUBLIC_ONLY))):
        row = await ended(service, await service.call(retry_policy=ONCE))
    assert error_of(row.error_json)["code"] == "push_refused"
    assert there.connections == 0


async def test_what_workers_claim_is_not_pushed(process: Process, there: Endpoint) -> None:
    pulled = await process.service(there.url, delivery=DeliveryMode.PULL)
    pushed = await process.service(there.url)
    row = await pulled.call()
    async with process.pushing():
        await ended(pushed, await pushed.call())
    assert (await pulled.now(row)).status is State.PENDING
    assert there.connections == 1


# -- while things happen


async def test_a_call_whose_session_ends_meanwhile_is_canceled_whatever_comes_back(
    process: Process, there: Endpoint, service: Calling
) -> None:
    there.open.clear()
    session = await process.keel.spawn()
    async with process.pushing() as pusher:
        row = await service.call(source_session_id=session.id)
        await there.received()
        await process.keel.end(session)
        there.open.set()
        await eventually(lambda: _is(len(pusher) == 0), "the push was over")
    assert (await service.now(row)).status is State.CANCELED
    assert await service.events(row) == ["created", "started", "canceled"]


async def test_a_call_that_is_canceled_while_it_runs_is_canceled_when_the_endpoint_answers(
    process: Process, there: Endpoint, service: Calling
) -> None:
    there.open.clear()
    async with process.pushing():
        row = await service.call()
        await there.received()
        await service.cancel(row)
        there.open.set()
        assert (await ended(service, row)).status is State.CANCELED


async def test_what_belongs_to_a_sleeping_session_is_pushed_when_it_wakes(
    process: Process, there: Endpoint, service: Calling
) -> None:
    session = await process.keel.spawn()
    row = await service.call(target_session_id=session.id)
    await process.keel.suspend(session)
    async with process.pushing():
        await ended(service, await service.call())
        assert (await service.now(row)).status is State.PENDING
        await process.keel.resume(session)
        assert (await ended(service, row)).status is State.SUCCEEDED


async def test_after_a_rotation_the_new_secret_is_good_and_so_is_the_one_before(
    process: Process, there: Endpoint, service: Calling
) -> None:
    ask = Update(zone_id=ZONE, caller=admin(), service_id=service.service_id, rotate_secret=True)
    changer = Updater(private_allowed=True)
    await process.keel.engine.transact(lambda tx: changer.update(tx, [ask]), zones=[ZONE])
    async with process.pushing():
        await ended(service, await service.call())
    for number in (1, 2):
        secret = SECRETS(ZONE, service.service_id, number)
        assert Webhook(secret).verify(there.requests[0].body, there.requests[0].headers)


async def test_what_was_answered_is_reported_although_the_database_was_away_for_a_while(
    process: Process, there: Endpoint, service: Calling
) -> None:
    away = [Unavailable("database_unavailable", "It is away."), Unavailable("outcome_unknown", "Who knows.")]

    def submit(command: InvocationCommand) -> Awaitable[InvocationResult]:
        if isinstance(command, Complete) and away:
            raise away.pop()
        return process.keel.invocations.submit(command)

    async with process.pushing(replace(process.means(), submit=submit)):
        row = await ended(service, await service.call())
    assert (row.status, there.connections, away) == (State.SUCCEEDED, 1, [])


# -- how much at once


async def test_a_service_is_pushed_only_so_much_at_once_and_gets_through_all_the_same(
    process: Process, there: Endpoint, service: Calling
) -> None:
    there.open.clear()
    rows = [await service.call() for _ in range(9)]
    async with process.pushing(push_service_concurrency=2) as pusher:
        await there.received(2)
        assert len(pusher) == 2
        there.open.set()
        for row in rows:
            assert (await ended(service, row)).status is State.SUCCEEDED
    assert attempts(there) == [1] * 9


async def test_a_zone_whose_endpoints_hang_leaves_room_for_the_others(process: Process, there: Endpoint) -> None:
    there.open.clear()
    await process.keel.zone("hangs")
    slow = [await process.service(there.url, "hangs") for _ in range(4)]
    for hanging in slow:
        for _ in range(3):
            await hanging.call()
    async with endpoint() as prompt, process.pushing(push_concurrency=4, push_zone_concurrency=3) as pusher:
        await there.received(3)
        assert len(pusher) == 3
        quick = await process.service(prompt.url)
        for _ in range(5):
            assert (await ended(quick, await quick.call())).status is State.SUCCEEDED
        assert len(there.requests) == 3


async def test_more_services_than_one_look_finds_are_all_served(process: Process, there: Endpoint) -> None:
    services = [await process.service(there.url) for _ in range(120)]
    rows = [(service, await service.call()) for service in services]
    async with process.pushing():
        for service, row in rows:
            assert (await ended(service, row)).status is State.SUCCEEDED
    assert there.connections == 120


# -- several, and none


async def test_of_several_processes_one_pushes_each_attempt(engine_url: str, there: Endpoint) -> None:
    async with process_on(engine_url) as one:
        service = await one.service(there.url)
        # SQLite has one process; two pushers in it are what it can come to there.
        if engine_url.startswith("sqlite"):
            await _pushed_once(service, there, one, one)
        else:
            async with process_on(engine_url) as other:
                await _pushed_once(service, there, one, other)


async def _pushed_once(service: Calling, there: Endpoint, one: Process, other: Process) -> None:
    async with one.pushing(claim_poll_ms=10), other.pushing(claim_poll_ms=10):
        rows = await asyncio.gather(*(service.call() for _ in range(60)))
        for row in rows:
            assert (await ended(service, row)).status is State.SUCCEEDED
    assert sorted(request.headers["webhook-id"] for request in there.requests) == sorted(r.id for r in rows)


async def test_what_a_process_was_pushing_when_it_died_is_pushed_by_another_after_the_deadline(
    process: Process, there: Endpoint, service: Calling
) -> None:
    there.open.clear()
    async with process.pushing():
        row = await service.call(retry_policy=AT_ONCE, timeout_ms=60_000)
        await there.received()
    # Stopped without any grace: nothing was reported, as if it had been killed.
    assert (await service.now(row)).status is State.RUNNING
    process.keel.side.run("update agent_invocations set deadline_at = 1, lease_expires_at = 1 where id = ?", row.id)
    there.open.set()
    async with process.pushing():
        await process.keel.invocation_sweeper().run_now(DEADLINE)
        done = await ended(service, row)
    assert (done.status, done.attempts, attempts(there)) == (State.SUCCEEDED, 2, [1, 2])


async def test_a_server_that_stops_takes_nothing_new_and_finishes_what_is_under_way(
    process: Process, there: Endpoint, service: Calling
) -> None:
    there.open.clear()
    async with process.pushing(grace_seconds=20) as pusher:
        row = await service.call()
        await there.received()
        pusher.drain()
        late = await service.call()
        stopping = asyncio.create_task(pusher.stop())
        there.open.set()
        await stopping
        assert (await service.now(row)).status is State.SUCCEEDED
    assert (await service.now(late)).status is State.PENDING
    assert there.connections == 1


async def test_what_was_claimed_while_the_server_began_to_stop_goes_back_and_costs_no_attempt(
    process: Process, there: Endpoint, service: Calling
) -> None:
    claimed, go_on = asyncio.Event(), asyncio.Event()

    async def submit(command: InvocationCommand) -> InvocationResult:
        outcome = await process.keel.invocations.submit(command)
        claimed.set()
        await go_on.wait()
        return outcome

    row = await service.call()
    async with process.pushing(replace(process.means(), submit=submit), grace_seconds=20) as pusher:
        await claimed.wait()
        pusher.drain()
        go_on.set()
    back = await service.now(row)
    assert (back.status, back.attempts, there.connections) == (State.PENDING, 0, 0)


async def test_a_defect_in_one_push_is_logged_and_stops_no_other(
    process: Process, there: Endpoint, service: Calling, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(OutboundClient):
        broken = True

        async def send(self, request: Request, timeout_seconds: float) -> Response:
            if self.broken:
                self.broken = False
                raise RuntimeError("a defect")
            return await super().send(request, timeout_seconds)

    async with process.pushing(process.means(Broken(ALLOW_PRIVATE))) as pusher:
        first = await service.call()
        await eventually(lambda: _is("a defect" in caplog.text), "the defect was logged")
        assert (await ended(service, await service.call())).status is State.SUCCEEDED
        await eventually(lambda: _is(len(pusher) == 0), "no slot was held any more")
    assert (await service.now(first)).status is State.RUNNING, "its deadline will find it"


async def test_no_secret_and_no_answer_gets_into_the_log(
    process: Process, there: Endpoint, service: Calling, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    there.answer = http_answer(b"s3cret", "500 Oh")
    async with process.pushing():
        await ended(service, await service.call(retry_policy=AT_ONCE))
    assert "s3cret" not in caplog.text
    assert SECRETS(ZONE, service.service_id, 1).removeprefix("whsec_") not in caplog.text


async def _is(holds: bool) -> bool:
    return holds
