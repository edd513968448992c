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
from tests.support.builders import ZONE, admin
from tests.support.eventually import eventually
from tests.support.http_endpoint import HttpEndpoint, ReceivedRequest, http_response, json_response, run_endpoint
from tests.support.invocations import InvocationHarness
from tests.support.push import SECRET_DERIVER, PushHarness, ScriptedResolver, open_push_harness, wait_until_ended

AT_ONCE = RetryPolicy(backoff_ms=0)
ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
async def push_harness(engine_url: str) -> AsyncIterator[PushHarness]:
    async with open_push_harness(engine_url) as laid:
        yield laid


@pytest.fixture
async def receiver() -> AsyncIterator[HttpEndpoint]:
    async with run_endpoint() as listening:
        yield listening


@pytest.fixture
async def service(push_harness: PushHarness, receiver: HttpEndpoint) -> InvocationHarness:
    return await push_harness.register_service(receiver.url)


def error_of(text: str | None) -> dict[str, object]:
    told = json.loads(text or "null")
    assert isinstance(told, dict)
    return told


def attempts(there: HttpEndpoint) -> list[int]:
    return [json.loads(request.body)["attempt"] for request in there.requests]


# -- what came of it


async def test_a_call_is_pushed_signed_and_what_is_answered_is_its_result(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.response = json_response('{"sum": [3, "ü", "\\u0000"]}'.encode())
    async with push_harness.run_worker() as pusher:
        row = await wait_until_ended(service, await service.create())
    request = receiver.requests[0]
    told = Webhook(SECRET_DERIVER(ZONE, service.service_id, 1)).verify(request.body, request.headers)
    assert (told["id"], told["params"], told["attempt"]) == (row.id, {"a": 1}, 1)
    assert request.headers["webhook-id"] == request.headers["idempotency-key"] == row.id
    assert row.status is State.SUCCEEDED
    assert json.loads(row.result_json or "") == {"sum": [3, "ü", "\0"]}
    assert await service.event_types(row) == ["created", "started", "succeeded"]
    assert (receiver.connections, dict(pusher.counts), len(pusher)) == (1, {"succeeded": 1}, 0)


async def test_what_was_called_before_the_pusher_began_is_pushed_too(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    row = await service.create()
    async with push_harness.run_worker():
        assert (await wait_until_ended(service, row)).status is State.SUCCEEDED
    assert (await service.read(row)).result_json == "null"


async def test_a_rejection_is_a_failure_that_is_not_tried_again(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.response = json_response(b'{"why": "no"}', "422 Unprocessable")
    async with push_harness.run_worker():
        row = await wait_until_ended(service, await service.create(retry_policy=AT_ONCE))
    assert (row.status, row.attempts) == (State.FAILED, 1)
    assert error_of(row.error_json) == {"code": "push_rejected", "status": 422, "answer": {"why": "no"}}
    assert receiver.connections == 1


async def test_an_error_of_the_endpoint_is_tried_again_when_its_backoff_is_over(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    def once(request: ReceivedRequest) -> bytes:
        return http_response(b"", "503 Busy") if attempts(receiver) == [1] else json_response(b"1")

    receiver.response = once
    async with push_harness.run_worker():
        row = await wait_until_ended(service, await service.create(retry_policy=RetryPolicy(backoff_ms=150)))
    assert (row.status, row.attempts, attempts(receiver)) == (State.SUCCEEDED, 2, [1, 2])
    assert {request.headers["webhook-id"] for request in receiver.requests} == {row.id}
    log = [event for event in await push_harness.runtime.read_log() if event.subject == row.id]
    [retried] = [event for event in log if event.type == "invocation.retried"]
    started = [event.at for event in log if event.type == "invocation.started"]
    due = json.loads(retried.data)["available_at"]
    assert retried.at + 150 <= due <= started[1]


async def test_a_call_that_always_fails_is_dead_when_its_attempts_are_used_up(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.response = http_response(b"oh", "500 Oh")
    async with push_harness.run_worker():
        row = await wait_until_ended(service, await service.create(retry_policy=AT_ONCE))
    assert (row.status, attempts(receiver)) == (State.DEAD, [1, 2, 3])
    assert error_of(row.error_json) == {"code": "push_failed", "status": 500, "answer": "oh"}


async def test_an_endpoint_that_is_too_slow_has_timed_out_at_its_deadline_and_is_cut_off(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.may_respond.clear()
    async with push_harness.run_worker() as pusher:
        policy = RetryPolicy(max_attempts=2, backoff_ms=0)
        row = await wait_until_ended(service, await service.create(retry_policy=policy, timeout_ms=100))
    assert (row.status, attempts(receiver)) == (State.TIMED_OUT, [1, 2])
    assert error_of(row.error_json)["code"] == "deadline_exceeded"
    assert dict(pusher.counts) == {"push_timed_out": 2}
    assert await service.event_types(row) == ["created", "started", "retried", "started", "timed_out"]


async def test_a_redirect_is_not_followed(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    async with run_endpoint() as elsewhere:
        receiver.response = http_response(b"", "307 Elsewhere", f"Location: {elsewhere.url}")
        async with push_harness.run_worker():
            row = await wait_until_ended(service, await service.create(retry_policy=ONCE))
        assert elsewhere.connections == 0
    assert (row.status, error_of(row.error_json)["code"]) == (State.DEAD, "push_redirected")


async def test_an_answer_that_is_too_large_is_no_result(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.response = json_response(b'"' + b"x" * 300 * 1024 + b'"')
    async with push_harness.run_worker():
        row = await wait_until_ended(service, await service.create(retry_policy=ONCE))
    assert (row.status, row.result_json) == (State.DEAD, None)
    assert error_of(row.error_json)["code"] == "push_answer_too_large"


async def test_an_answer_up_to_the_bound_is_kept_whole(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.response = http_response(b"\0" * ResponseLimits().body_bytes, "200 OK", "Content-Type: text/plain")
    async with push_harness.run_worker():
        row = await wait_until_ended(service, await service.create(retry_policy=ONCE))
    assert json.loads(row.result_json or "") == "\0" * ResponseLimits().body_bytes


async def test_a_connection_that_breaks_in_the_middle_of_an_answer_is_tried_again(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    whole = json_response(b'{"a": 1}')
    receiver.response = lambda request: whole if len(receiver.requests) > 1 else whole[:-1]
    async with push_harness.run_worker() as pusher:
        row = await wait_until_ended(service, await service.create(retry_policy=AT_ONCE))
    assert (row.status, row.attempts) == (State.SUCCEEDED, 2)
    assert dict(pusher.counts) == {"push_answer_garbled": 1, "succeeded": 1}


async def test_an_endpoint_that_is_not_there_costs_attempts(push_harness: PushHarness) -> None:
    async with run_endpoint() as gone:
        url = gone.url
    service = await push_harness.register_service(url)
    async with push_harness.run_worker():
        row = await wait_until_ended(service, await service.create(retry_policy=AT_ONCE))
    assert (row.status, row.attempts) == (State.DEAD, 3)
    assert error_of(row.error_json)["code"] == "push_unreachable"


# -- where it does not go


@pytest.mark.parametrize(
    "names",
    [
        ScriptedResolver(["127.0.0.1"]),
        ScriptedResolver(["93.184.215.14", "127.0.0.1"]),
        ScriptedResolver(["169.254.169.254"]),
        ScriptedResolver(["::ffff:127.0.0.1"]),
        ScriptedResolver(["64:ff9b::7f00:1"]),
        # Given back by turns, as whoever rebinds a name would.
        ScriptedResolver(["10.0.0.1"], ["127.0.0.1"], ["10.0.0.1"]),
    ],
    ids=lambda names: str(names._answers),
)
async def test_a_name_of_a_private_network_is_refused_and_nothing_is_sent(
    push_harness: PushHarness, receiver: HttpEndpoint, names: ScriptedResolver
) -> None:
    service = await push_harness.register_service(f"http://push.example:{receiver.port}/hook")
    async with push_harness.run_worker(push_harness.build_deps(OutboundClient(PUBLIC_ONLY, resolve=names))) as pusher:
        row = await wait_until_ended(service, await service.create(retry_policy=AT_ONCE))
    assert (row.status, row.attempts) == (State.DEAD, 3)
    assert error_of(row.error_json)["code"] == "push_refused"
    assert dict(pusher.counts) == {"push_refused": 3}
    assert receiver.connections == 0
    assert names.requesters == {row.zone_id}


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "[::ffff:127.0.0.1]", "localhost"])
async def test_a_service_registered_while_private_addresses_were_allowed_is_refused_when_they_are_not(
    push_harness: PushHarness, receiver: HttpEndpoint, host: str
) -> None:
    service = await push_harness.register_service(f"http://{host}:{receiver.port}/hook")
    async with push_harness.run_worker(push_harness.build_deps(OutboundClient(PUBLIC_ONLY))):
        row = await wait_until_ended(service, await service.create(retry_policy=ONCE))
    assert error_of(row.error_json)["code"] == "push_refused"
    assert receiver.connections == 0


async def test_what_workers_claim_is_not_pushed(push_harness: PushHarness, receiver: HttpEndpoint) -> None:
    pulled = await push_harness.register_service(receiver.url, delivery=DeliveryMode.PULL)
    pushed = await push_harness.register_service(receiver.url)
    row = await pulled.create()
    async with push_harness.run_worker():
        await wait_until_ended(pushed, await pushed.create())
    assert (await pulled.read(row)).status is State.PENDING
    assert receiver.connections == 1


# -- while things happen


async def test_a_call_whose_session_ends_meanwhile_is_canceled_whatever_comes_back(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.may_respond.clear()
    session = await push_harness.runtime.spawn()
    async with push_harness.run_worker() as pusher:
        row = await service.create(source_session_id=session.id)
        await receiver.wait_for_request()
        await push_harness.runtime.terminate(session)
        receiver.may_respond.set()
        await eventually(lambda: _is(len(pusher) == 0), "the push was over")
    assert (await service.read(row)).status is State.CANCELED
    assert await service.event_types(row) == ["created", "started", "canceled"]


async def test_a_call_that_is_canceled_while_it_runs_is_canceled_when_the_endpoint_answers(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.may_respond.clear()
    async with push_harness.run_worker():
        row = await service.create()
        await receiver.wait_for_request()
        await service.cancel(row)
        receiver.may_respond.set()
        assert (await wait_until_ended(service, row)).status is State.CANCELED


async def test_what_belongs_to_a_sleeping_session_is_pushed_when_it_wakes(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    session = await push_harness.runtime.spawn()
    row = await service.create(target_session_id=session.id)
    await push_harness.runtime.suspend(session)
    async with push_harness.run_worker():
        await wait_until_ended(service, await service.create())
        assert (await service.read(row)).status is State.PENDING
        await push_harness.runtime.resume(session)
        assert (await wait_until_ended(service, row)).status is State.SUCCEEDED


async def test_after_a_rotation_the_new_secret_is_good_and_so_is_the_one_before(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    ask = Update(zone_id=ZONE, caller=admin(), service_id=service.service_id, rotate_secret=True)
    changer = Updater(private_allowed=True)
    await push_harness.runtime.engine.transact(lambda tx: changer.update(tx, [ask]), zones=[ZONE])
    async with push_harness.run_worker():
        await wait_until_ended(service, await service.create())
    for number in (1, 2):
        secret = SECRET_DERIVER(ZONE, service.service_id, number)
        assert Webhook(secret).verify(receiver.requests[0].body, receiver.requests[0].headers)


async def test_what_was_answered_is_reported_although_the_database_was_away_for_a_while(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    away = [Unavailable("database_unavailable", "It is away."), Unavailable("outcome_unknown", "Who knows.")]

    def submit(command: InvocationCommand) -> Awaitable[InvocationResult]:
        if isinstance(command, Complete) and away:
            raise away.pop()
        return push_harness.runtime.invocation_lane.submit(command)

    async with push_harness.run_worker(replace(push_harness.build_deps(), submit=submit)):
        row = await wait_until_ended(service, await service.create())
    assert (row.status, receiver.connections, away) == (State.SUCCEEDED, 1, [])


# -- how much at once


async def test_a_service_is_pushed_only_so_much_at_once_and_gets_through_all_the_same(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.may_respond.clear()
    rows = [await service.create() for _ in range(9)]
    async with push_harness.run_worker(push_service_concurrency=2) as pusher:
        await receiver.wait_for_request(2)
        assert len(pusher) == 2
        receiver.may_respond.set()
        for row in rows:
            assert (await wait_until_ended(service, row)).status is State.SUCCEEDED
    assert attempts(receiver) == [1] * 9


async def test_a_zone_whose_endpoints_hang_leaves_room_for_the_others(
    push_harness: PushHarness, receiver: HttpEndpoint
) -> None:
    receiver.may_respond.clear()
    await push_harness.runtime.put_zone("hangs")
    slow = [await push_harness.register_service(receiver.url, "hangs") for _ in range(4)]
    for hanging in slow:
        for _ in range(3):
            await hanging.create()
    async with run_endpoint() as prompt, push_harness.run_worker(push_concurrency=4, push_zone_concurrency=3) as pusher:
        await receiver.wait_for_request(3)
        assert len(pusher) == 3
        quick = await push_harness.register_service(prompt.url)
        for _ in range(5):
            assert (await wait_until_ended(quick, await quick.create())).status is State.SUCCEEDED
        assert len(receiver.requests) == 3


async def test_more_services_than_one_look_finds_are_all_served(
    push_harness: PushHarness, receiver: HttpEndpoint
) -> None:
    services = [await push_harness.register_service(receiver.url) for _ in range(120)]
    rows = [(service, await service.create()) for service in services]
    async with push_harness.run_worker():
        for service, row in rows:
            assert (await wait_until_ended(service, row)).status is State.SUCCEEDED
    assert receiver.connections == 120


# -- several, and none


async def test_of_several_processes_one_pushes_each_attempt(engine_url: str, receiver: HttpEndpoint) -> None:
    async with open_push_harness(engine_url) as one:
        service = await one.register_service(receiver.url)
        # SQLite has one process; two pushers in it are what it can come to there.
        if engine_url.startswith("sqlite"):
            await _pushed_once(service, receiver, one, one)
        else:
            async with open_push_harness(engine_url) as other:
                await _pushed_once(service, receiver, one, other)


async def _pushed_once(service: InvocationHarness, there: HttpEndpoint, one: PushHarness, other: PushHarness) -> None:
    async with one.run_worker(claim_poll_ms=10), other.run_worker(claim_poll_ms=10):
        rows = await asyncio.gather(*(service.create() for _ in range(60)))
        for row in rows:
            assert (await wait_until_ended(service, row)).status is State.SUCCEEDED
    assert sorted(request.headers["webhook-id"] for request in there.requests) == sorted(r.id for r in rows)


async def test_what_a_process_was_pushing_when_it_died_is_pushed_by_another_after_the_deadline(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.may_respond.clear()
    async with push_harness.run_worker():
        row = await service.create(retry_policy=AT_ONCE, timeout_ms=60_000)
        await receiver.wait_for_request()
    # Stopped without any grace: nothing was reported, as if it had been killed.
    assert (await service.read(row)).status is State.RUNNING
    push_harness.runtime.database.execute(
        "update agent_invocations set deadline_at = 1, lease_expires_at = 1 where id = ?", row.id
    )
    receiver.may_respond.set()
    async with push_harness.run_worker():
        await push_harness.runtime.invocation_sweep_runner().run_now(DEADLINE)
        done = await wait_until_ended(service, row)
    assert (done.status, done.attempts, attempts(receiver)) == (State.SUCCEEDED, 2, [1, 2])


async def test_a_server_that_stops_takes_nothing_new_and_finishes_what_is_under_way(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.may_respond.clear()
    async with push_harness.run_worker(grace_seconds=20) as pusher:
        row = await service.create()
        await receiver.wait_for_request()
        pusher.drain()
        late = await service.create()
        stopping = asyncio.create_task(pusher.stop())
        receiver.may_respond.set()
        await stopping
        assert (await service.read(row)).status is State.SUCCEEDED
    assert (await service.read(late)).status is State.PENDING
    assert receiver.connections == 1


async def test_what_was_claimed_while_the_server_began_to_stop_goes_back_and_costs_no_attempt(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    claimed, go_on = asyncio.Event(), asyncio.Event()

    async def submit(command: InvocationCommand) -> InvocationResult:
        outcome = await push_harness.runtime.invocation_lane.submit(command)
        claimed.set()
        await go_on.wait()
        return outcome

    row = await service.create()
    async with push_harness.run_worker(replace(push_harness.build_deps(), submit=submit), grace_seconds=20) as pusher:
        await claimed.wait()
        pusher.drain()
        go_on.set()
    back = await service.read(row)
    assert (back.status, back.attempts, receiver.connections) == (State.PENDING, 0, 0)


async def test_a_defect_in_one_push_is_logged_and_stops_no_other(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(OutboundClient):
        broken = True

        async def send(self, request: Request, timeout_seconds: float) -> Response:
            if self.broken:
                self.broken = False
                raise RuntimeError("a defect")
            return await super().send(request, timeout_seconds)

    async with push_harness.run_worker(push_harness.build_deps(Broken(ALLOW_PRIVATE))) as pusher:
        first = await service.create()
        await eventually(lambda: _is("a defect" in caplog.text), "the defect was logged")
        assert (await wait_until_ended(service, await service.create())).status is State.SUCCEEDED
        await eventually(lambda: _is(len(pusher) == 0), "no slot was held any more")
    assert (await service.read(first)).status is State.RUNNING, "its deadline will find it"


async def test_no_secret_and_no_answer_gets_into_the_log(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    receiver.response = http_response(b"s3cret", "500 Oh")
    async with push_harness.run_worker():
        await wait_until_ended(service, await service.create(retry_policy=AT_ONCE))
    assert "s3cret" not in caplog.text
    assert SECRET_DERIVER(ZONE, service.service_id, 1).removeprefix("whsec_") not in caplog.text


async def _is(holds: bool) -> bool:
    return holds
