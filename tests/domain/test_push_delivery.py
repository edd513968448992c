"""Push delivery on both engines: signatures, one request per attempt, SSRF protection, recovery after a crash."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from standardwebhooks import Webhook

from quarterdeck.core.command import R
from quarterdeck.core.errors import Unavailable
from quarterdeck.domain.invocations.model import BaseInvocationCommand, Complete, RetryPolicy, State
from quarterdeck.domain.invocations.sweeps import DEADLINE
from quarterdeck.domain.services.model import DeliveryMode, Update
from quarterdeck.domain.services.operations.update import Updater
from quarterdeck.engine.outbound_http import PUBLIC_ONLY, OutboundClient, Request, Response, ResponseLimits
from quarterdeck.engine.outbound_http.ssrf_guard import ALLOW_PRIVATE
from tests.support.builders import ZONE, admin
from tests.support.eventually import eventually
from tests.support.http_endpoint import HttpEndpoint, ReceivedRequest, http_response, json_response, run_endpoint
from tests.support.invocations import InvocationHarness
from tests.support.push import SECRET_DERIVER, PushHarness, ScriptedResolver, open_push_harness, wait_until_ended

NO_BACKOFF = RetryPolicy(backoff_ms=0)
SINGLE_ATTEMPT = RetryPolicy(max_attempts=1)


@pytest.fixture
async def push_harness(engine_url: str) -> AsyncIterator[PushHarness]:
    async with open_push_harness(engine_url) as harness:
        yield harness


@pytest.fixture
async def service(push_harness: PushHarness, receiver: HttpEndpoint) -> InvocationHarness:
    return await push_harness.register_service(receiver.url)


def error_of(text: str | None) -> dict[str, object]:
    error = json.loads(text or "null")
    assert isinstance(error, dict)
    return error


def attempts(endpoint: HttpEndpoint) -> list[int]:
    return [json.loads(request.body)["attempt"] for request in endpoint.requests]


# -- results


async def test_invocation_is_pushed_signed_and_the_response_is_its_result(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.response = json_response('{"sum": [3, "ü", "\\u0000"]}'.encode())
    async with push_harness.run_worker() as worker:
        row = await wait_until_ended(service, await service.create())
    request = receiver.requests[0]
    payload = Webhook(SECRET_DERIVER(ZONE, service.service_id, 1)).verify(request.body, request.headers)
    assert (payload["id"], payload["params"], payload["attempt"]) == (row.id, {"a": 1}, 1)
    assert request.headers["webhook-id"] == request.headers["idempotency-key"] == row.id
    assert row.status is State.SUCCEEDED
    assert json.loads(row.result_json or "") == {"sum": [3, "ü", "\0"]}
    assert await service.event_types(row) == ["created", "started", "succeeded"]
    assert (receiver.connections, dict(worker.counts), len(worker)) == (1, {"succeeded": 1}, 0)


async def test_invocation_created_before_the_worker_started_is_pushed(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    row = await service.create()
    async with push_harness.run_worker():
        assert (await wait_until_ended(service, row)).status is State.SUCCEEDED
    assert (await service.read(row)).result_json == "null"


async def test_4xx_response_fails_the_invocation_without_retry(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.response = json_response(b'{"reason": "no"}', "422 Unprocessable")
    async with push_harness.run_worker():
        row = await wait_until_ended(service, await service.create(retry_policy=NO_BACKOFF))
    assert (row.status, row.attempts) == (State.FAILED, 1)
    assert error_of(row.error_json) == {"code": "push_rejected", "status": 422, "answer": {"reason": "no"}}
    assert receiver.connections == 1


async def test_5xx_response_is_retried_after_the_backoff(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    def fail_first_attempt(request: ReceivedRequest) -> bytes:
        return http_response(b"", "503 Busy") if attempts(receiver) == [1] else json_response(b"1")

    receiver.response = fail_first_attempt
    async with push_harness.run_worker():
        row = await wait_until_ended(service, await service.create(retry_policy=RetryPolicy(backoff_ms=150)))
    assert (row.status, row.attempts, attempts(receiver)) == (State.SUCCEEDED, 2, [1, 2])
    assert {request.headers["webhook-id"] for request in receiver.requests} == {row.id}
    log = [event for event in await push_harness.runtime.read_log() if event.subject == row.id]
    [retried] = [event for event in log if event.type == "invocation.retried"]
    started = [event.at for event in log if event.type == "invocation.started"]
    due = json.loads(retried.data)["available_at"]
    assert retried.at + 150 <= due <= started[1]


async def test_invocation_is_dead_after_max_attempts(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.response = http_response(b"oh", "500 Oh")
    async with push_harness.run_worker():
        row = await wait_until_ended(service, await service.create(retry_policy=NO_BACKOFF))
    assert (row.status, attempts(receiver)) == (State.DEAD, [1, 2, 3])
    assert error_of(row.error_json) == {"code": "push_failed", "status": 500, "answer": "oh"}


async def test_push_to_a_slow_endpoint_times_out_at_the_deadline(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.may_respond.clear()
    async with push_harness.run_worker() as worker:
        policy = RetryPolicy(max_attempts=2, backoff_ms=0)
        row = await wait_until_ended(service, await service.create(retry_policy=policy, timeout_ms=100))
    assert (row.status, attempts(receiver)) == (State.TIMED_OUT, [1, 2])
    assert error_of(row.error_json)["code"] == "deadline_exceeded"
    assert dict(worker.counts) == {"push_timed_out": 2}
    assert await service.event_types(row) == ["created", "started", "retried", "started", "timed_out"]


async def test_redirect_is_not_followed(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    async with run_endpoint() as redirect_target:
        receiver.response = http_response(b"", "307 Temporary Redirect", f"Location: {redirect_target.url}")
        async with push_harness.run_worker():
            row = await wait_until_ended(service, await service.create(retry_policy=SINGLE_ATTEMPT))
        assert redirect_target.connections == 0
    assert (row.status, error_of(row.error_json)["code"]) == (State.DEAD, "push_redirected")


async def test_response_above_the_size_limit_is_not_a_result(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.response = json_response(b'"' + b"x" * 300 * 1024 + b'"')
    async with push_harness.run_worker():
        row = await wait_until_ended(service, await service.create(retry_policy=SINGLE_ATTEMPT))
    assert (row.status, row.result_json) == (State.DEAD, None)
    assert error_of(row.error_json)["code"] == "push_answer_too_large"


async def test_response_at_the_size_limit_is_stored_completely(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.response = http_response(b"\0" * ResponseLimits().body_bytes, "200 OK", "Content-Type: text/plain")
    async with push_harness.run_worker():
        row = await wait_until_ended(service, await service.create(retry_policy=SINGLE_ATTEMPT))
    assert json.loads(row.result_json or "") == "\0" * ResponseLimits().body_bytes


async def test_truncated_response_is_retried(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    full_response = json_response(b'{"a": 1}')
    receiver.response = lambda request: full_response if len(receiver.requests) > 1 else full_response[:-1]
    async with push_harness.run_worker() as worker:
        row = await wait_until_ended(service, await service.create(retry_policy=NO_BACKOFF))
    assert (row.status, row.attempts) == (State.SUCCEEDED, 2)
    assert dict(worker.counts) == {"push_answer_garbled": 1, "succeeded": 1}


async def test_unreachable_endpoint_uses_up_attempts(push_harness: PushHarness) -> None:
    async with run_endpoint() as closed:
        url = closed.url
    service = await push_harness.register_service(url)
    async with push_harness.run_worker():
        row = await wait_until_ended(service, await service.create(retry_policy=NO_BACKOFF))
    assert (row.status, row.attempts) == (State.DEAD, 3)
    assert error_of(row.error_json)["code"] == "push_unreachable"


# -- refused destinations


@pytest.mark.parametrize(
    "resolver",
    [
        ScriptedResolver(["127.0.0.1"]),
        ScriptedResolver(["93.184.215.14", "127.0.0.1"]),
        ScriptedResolver(["169.254.169.254"]),
        ScriptedResolver(["::ffff:127.0.0.1"]),
        ScriptedResolver(["64:ff9b::7f00:1"]),
        # Alternating answers, as in a DNS rebinding attack.
        ScriptedResolver(["10.0.0.1"], ["127.0.0.1"], ["10.0.0.1"]),
    ],
    ids=lambda resolver: str(resolver.responses),
)
async def test_host_that_resolves_to_a_private_address_is_refused(
    push_harness: PushHarness, receiver: HttpEndpoint, resolver: ScriptedResolver
) -> None:
    service = await push_harness.register_service(f"http://push.example:{receiver.port}/hook")
    async with push_harness.run_worker(
        push_harness.build_deps(OutboundClient(PUBLIC_ONLY, resolve=resolver))
    ) as worker:
        row = await wait_until_ended(service, await service.create(retry_policy=NO_BACKOFF))
    assert (row.status, row.attempts) == (State.DEAD, 3)
    assert error_of(row.error_json)["code"] == "push_refused"
    assert dict(worker.counts) == {"push_refused": 3}
    assert receiver.connections == 0
    assert resolver.requesters == {row.zone_id}


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "[::ffff:127.0.0.1]", "localhost"])
async def test_private_endpoint_is_refused_after_private_addresses_are_disallowed(
    push_harness: PushHarness, receiver: HttpEndpoint, host: str
) -> None:
    service = await push_harness.register_service(f"http://{host}:{receiver.port}/hook")
    async with push_harness.run_worker(push_harness.build_deps(OutboundClient(PUBLIC_ONLY))):
        row = await wait_until_ended(service, await service.create(retry_policy=SINGLE_ATTEMPT))
    assert error_of(row.error_json)["code"] == "push_refused"
    assert receiver.connections == 0


async def test_invocations_of_pull_services_are_not_pushed(push_harness: PushHarness, receiver: HttpEndpoint) -> None:
    pulled = await push_harness.register_service(receiver.url, delivery=DeliveryMode.PULL)
    pushed = await push_harness.register_service(receiver.url)
    row = await pulled.create()
    async with push_harness.run_worker():
        await wait_until_ended(pushed, await pushed.create())
    assert (await pulled.read(row)).status is State.PENDING
    assert receiver.connections == 1


# -- changes during a push


async def test_termination_of_the_source_session_cancels_a_running_push(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.may_respond.clear()
    session = await push_harness.runtime.spawn()
    async with push_harness.run_worker() as worker:
        row = await service.create(source_session_id=session.id)
        await receiver.wait_for_request()
        await push_harness.runtime.terminate(session)
        receiver.may_respond.set()
        await eventually(lambda: _is(len(worker) == 0), "the push had ended")
    assert (await service.read(row)).status is State.CANCELED
    assert await service.event_types(row) == ["created", "started", "canceled"]


async def test_invocation_canceled_while_running_ends_canceled_after_the_response(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.may_respond.clear()
    async with push_harness.run_worker():
        row = await service.create()
        await receiver.wait_for_request()
        await service.cancel(row)
        receiver.may_respond.set()
        assert (await wait_until_ended(service, row)).status is State.CANCELED


async def test_invocation_of_a_suspended_session_is_pushed_after_resume(
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


async def test_push_after_a_secret_rotation_verifies_with_both_secrets(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    command = Update(zone_id=ZONE, caller=admin(), service_id=service.service_id, rotate_secret=True)
    updater = Updater(private_allowed=True)
    await push_harness.runtime.engine.transact(lambda tx: updater.update(tx, [command]), zones=[ZONE])
    async with push_harness.run_worker():
        await wait_until_ended(service, await service.create())
    for number in (1, 2):
        secret = SECRET_DERIVER(ZONE, service.service_id, number)
        assert Webhook(secret).verify(receiver.requests[0].body, receiver.requests[0].headers)


async def test_response_is_reported_after_a_database_outage(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    outages = [
        Unavailable("database_unavailable", "Connection refused."),
        Unavailable("outcome_unknown", "Connection lost."),
    ]

    def submit(command: BaseInvocationCommand[R]) -> asyncio.Future[R]:
        if isinstance(command, Complete) and outages:
            raise outages.pop()
        return push_harness.runtime.submit_invocation(command)

    async with push_harness.run_worker(replace(push_harness.build_deps(), submit=submit)):
        row = await wait_until_ended(service, await service.create())
    assert (row.status, receiver.connections, outages) == (State.SUCCEEDED, 1, [])


# -- concurrency limits


async def test_service_concurrency_limits_pushes_without_losing_any(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.may_respond.clear()
    rows = [await service.create() for _ in range(9)]
    async with push_harness.run_worker(push_service_concurrency=2) as worker:
        await receiver.wait_for_request(2)
        assert len(worker) == 2
        receiver.may_respond.set()
        for row in rows:
            assert (await wait_until_ended(service, row)).status is State.SUCCEEDED
    assert attempts(receiver) == [1] * 9


async def test_zone_concurrency_leaves_slots_for_other_zones(push_harness: PushHarness, receiver: HttpEndpoint) -> None:
    receiver.may_respond.clear()
    await push_harness.runtime.put_zone("slow-zone")
    slow_services = [await push_harness.register_service(receiver.url, "slow-zone") for _ in range(4)]
    for service in slow_services:
        for _ in range(3):
            await service.create()
    async with (
        run_endpoint() as fast_endpoint,
        push_harness.run_worker(push_concurrency=4, push_zone_concurrency=3) as worker,
    ):
        await receiver.wait_for_request(3)
        assert len(worker) == 3
        fast_service = await push_harness.register_service(fast_endpoint.url)
        for _ in range(5):
            assert (await wait_until_ended(fast_service, await fast_service.create())).status is State.SUCCEEDED
        assert len(receiver.requests) == 3


async def test_more_services_than_one_query_returns_are_all_served(
    push_harness: PushHarness, receiver: HttpEndpoint
) -> None:
    services = [await push_harness.register_service(receiver.url) for _ in range(120)]
    rows = [(service, await service.create()) for service in services]
    async with push_harness.run_worker():
        for service, row in rows:
            assert (await wait_until_ended(service, row)).status is State.SUCCEEDED
    assert receiver.connections == 120


# -- several processes, crashes and shutdown


async def test_several_processes_push_each_attempt_once(engine_url: str, receiver: HttpEndpoint) -> None:
    async with open_push_harness(engine_url) as one:
        service = await one.register_service(receiver.url)
        # SQLite allows one process only: run two workers in it.
        if engine_url.startswith("sqlite"):
            await _check_each_is_pushed_once(service, receiver, one, one)
        else:
            async with open_push_harness(engine_url) as other:
                await _check_each_is_pushed_once(service, receiver, one, other)


async def _check_each_is_pushed_once(
    service: InvocationHarness, endpoint: HttpEndpoint, one: PushHarness, other: PushHarness
) -> None:
    async with one.run_worker(claim_poll_ms=10), other.run_worker(claim_poll_ms=10):
        rows = await asyncio.gather(*(service.create() for _ in range(60)))
        for row in rows:
            assert (await wait_until_ended(service, row)).status is State.SUCCEEDED
    assert sorted(request.headers["webhook-id"] for request in endpoint.requests) == sorted(r.id for r in rows)


async def test_push_of_a_killed_process_is_retried_after_the_deadline(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.may_respond.clear()
    async with push_harness.run_worker():
        row = await service.create(retry_policy=NO_BACKOFF, timeout_ms=60_000)
        await receiver.wait_for_request()
    # Stopped without a grace period: like a killed process, the worker reported nothing.
    assert (await service.read(row)).status is State.RUNNING
    push_harness.runtime.database.execute(
        "update agent_invocations set deadline_at = 1, lease_expires_at = 1 where id = ?", row.id
    )
    receiver.may_respond.set()
    async with push_harness.run_worker():
        await push_harness.runtime.invocation_sweep_runner().run_now(DEADLINE)
        done = await wait_until_ended(service, row)
    assert (done.status, done.attempts, attempts(receiver)) == (State.SUCCEEDED, 2, [1, 2])


async def test_stop_finishes_running_pushes_and_claims_no_more(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    receiver.may_respond.clear()
    async with push_harness.run_worker(grace_seconds=20) as worker:
        row = await service.create()
        await receiver.wait_for_request()
        worker.drain()
        late = await service.create()
        stopping = asyncio.create_task(worker.stop())
        receiver.may_respond.set()
        await stopping
        assert (await service.read(row)).status is State.SUCCEEDED
    assert (await service.read(late)).status is State.PENDING
    assert receiver.connections == 1


async def test_attempt_claimed_during_drain_is_released_without_a_cost(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness
) -> None:
    claimed, resume = asyncio.Event(), asyncio.Event()

    async def claim_and_pause(command: BaseInvocationCommand[R]) -> R:
        result = await push_harness.runtime.submit_invocation(command)
        claimed.set()
        await resume.wait()
        return result

    def submit(command: BaseInvocationCommand[R]) -> asyncio.Future[R]:
        return asyncio.ensure_future(claim_and_pause(command))

    row = await service.create()
    async with push_harness.run_worker(replace(push_harness.build_deps(), submit=submit), grace_seconds=20) as worker:
        await claimed.wait()
        worker.drain()
        resume.set()
    returned = await service.read(row)
    assert (returned.status, returned.attempts, receiver.connections) == (State.PENDING, 0, 0)


async def test_unexpected_error_in_one_push_is_logged_and_stops_no_other_push(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness, caplog: pytest.LogCaptureFixture
) -> None:
    class FailingClient(OutboundClient):
        must_fail = True

        async def send(self, request: Request, timeout_seconds: float) -> Response:
            if self.must_fail:
                self.must_fail = False
                raise RuntimeError("unexpected error")
            return await super().send(request, timeout_seconds)

    async with push_harness.run_worker(push_harness.build_deps(FailingClient(ALLOW_PRIVATE))) as worker:
        first = await service.create()
        await eventually(lambda: _is("unexpected error" in caplog.text), "the error was logged")
        assert (await wait_until_ended(service, await service.create())).status is State.SUCCEEDED
        await eventually(lambda: _is(len(worker) == 0), "every slot was free")
    assert (await service.read(first)).status is State.RUNNING, "the deadline sweep ends it"


async def test_log_contains_neither_the_secret_nor_the_response(
    push_harness: PushHarness, receiver: HttpEndpoint, service: InvocationHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    receiver.response = http_response(b"s3cret", "500 Oh")
    async with push_harness.run_worker():
        await wait_until_ended(service, await service.create(retry_policy=NO_BACKOFF))
    assert "s3cret" not in caplog.text
    assert SECRET_DERIVER(ZONE, service.service_id, 1).removeprefix("whsec_") not in caplog.text


async def _is(condition: bool) -> bool:
    return condition
