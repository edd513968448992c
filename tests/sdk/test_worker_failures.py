"""Worker resilience: lost responses, lost leases, server outages and cancellation."""

from __future__ import annotations

import asyncio

import pytest

from quarterdeck.sdk import Canceled, Context, Quarterdeck, Worker
from quarterdeck.sdk.errors import Unauthenticated
from quarterdeck.sdk.options import RetryPolicy
from tests.sdk.fake_servers import LONG_TIMEOUTS, run_cutting_proxy, sdk_client
from tests.sdk.worker_support import TIMEOUT_SECONDS, count_calls, run_worker, wait_until_ended
from tests.support.engine_marks import STARTED_ON_SQLITE
from tests.support.eventually import eventually
from tests.support.server import Launch, Servers
from tests.support.zone import APP, FreshZone, create_zone

SHORT_LEASES = {"QD_LEASE_MS": "1500", "QD_DEADLINE_SWEEP_INTERVAL_MS": "100"}
NO_BACKOFF: RetryPolicy = {"max_attempts": 3, "backoff_ms": 0}


async def test_claim_with_a_lost_response_gets_the_same_leases(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as proxy, sdk_client(zone, proxy.url) as qd:
        service = await qd.services.register(APP, "http://worker.invalid/app")
        invocations = [await qd.invocations.enqueue(service.id, "double", n) for n in range(5)]
        worker = Worker(qd, APP)

        @worker.method()
        async def double(params: int) -> int:
            return 2 * params

        proxy.cut_next(b"/claim")
        async with run_worker(worker):
            ended = [await wait_until_ended(qd, each) for each in invocations]
        assert proxy.cut_count == 1
        assert [each.result for each in ended] == [0, 2, 4, 6, 8]
        assert {each.attempts for each in ended} == {1}


async def test_outcomes_with_lost_responses_are_reported_again_without_reexecution(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as proxy, sdk_client(zone, proxy.url) as qd:
        worker = Worker(qd, APP)
        executed: list[int] = []

        @worker.method()
        async def double(params: int) -> int:
            executed.append(params)
            return 2 * params

        async with run_worker(worker) as service:
            proxy.cut_next(*[b"/invocations/complete"] * 3)
            invocations = [await qd.invocations.enqueue(service.id, "double", n) for n in range(5)]
            ended = [await wait_until_ended(qd, each) for each in invocations]
        assert proxy.cut_count == 3
        assert [each.result for each in ended] == [0, 2, 4, 6, 8]
        assert sorted(executed) == [0, 1, 2, 3, 4]


@STARTED_ON_SQLITE
async def test_heartbeats_keep_the_lease_of_a_long_method(servers: Servers, launch: Launch) -> None:
    zone = await create_zone(await servers.start(launch.with_environment(**SHORT_LEASES)))
    async with run_cutting_proxy(zone.server.url) as proxy, sdk_client(zone, proxy.url) as qd:
        worker = Worker(qd, APP)
        may_finish = asyncio.Event()

        @worker.method()
        async def long() -> str:
            await may_finish.wait()
            return "done"

        async with run_worker(worker) as service:
            invocations = [await qd.invocations.enqueue(service.id, "long") for _ in range(3)]

            async def has_outlived_its_lease() -> bool:
                return count_calls(proxy.requests, b"/invocations/heartbeat") >= 5

            await eventually(has_outlived_its_lease, "five heartbeats were sent, a third of a lease apart")
            # One call extends all leases.
            assert count_calls(proxy.requests, b"/heartbeat") == count_calls(proxy.requests, b"/invocations/heartbeat")
            may_finish.set()
            ended = [await wait_until_ended(qd, each) for each in invocations]
    assert [(each.status, each.attempts) for each in ended] == [("succeeded", 1)] * 3


@STARTED_ON_SQLITE
async def test_cancellation_reaches_the_method_and_the_invocation_is_canceled(servers: Servers, launch: Launch) -> None:
    zone = await create_zone(await servers.start(launch.with_environment(**SHORT_LEASES)))
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)
        started = asyncio.Barrier(3)
        loop = asyncio.get_running_loop()

        @worker.method()
        async def patient(params: object, context: Context) -> None:
            await started.wait()
            await context.until_cancelled()
            raise Canceled("stopped on request")

        @worker.method()
        def threaded(params: object, context: Context) -> None:
            asyncio.run_coroutine_threadsafe(started.wait(), loop).result()
            assert context.wait_cancelled(TIMEOUT_SECONDS)
            context.check()

        async with run_worker(worker) as service:
            invocations = [await qd.invocations.enqueue(service.id, name) for name in ("patient", "threaded")]
            await started.wait()
            for each in invocations:
                await qd.invocations.cancel(each.id, reason="no longer needed")
            ended = [await wait_until_ended(qd, each) for each in invocations]
    assert [(each.status, each.cancel_reason) for each in ended] == [("canceled", "no longer needed")] * 2


@STARTED_ON_SQLITE
async def test_outcome_after_a_lost_lease_is_ignored_and_the_worker_continues(servers: Servers, launch: Launch) -> None:
    zone = await create_zone(await servers.start(launch.with_environment(**SHORT_LEASES)))
    async with (
        run_cutting_proxy(zone.server.url) as proxy,
        sdk_client(zone, proxy.url) as proxied,
        sdk_client(zone) as qd,
    ):
        first, second = Worker(proxied, APP, concurrency=1), Worker(qd, APP, concurrency=1)
        started, may_finish = asyncio.Event(), asyncio.Event()

        @first.method("worker_name")
        async def first_name(params: bool) -> str:
            if params:
                started.set()
                await may_finish.wait()
            return "first"

        @second.method("worker_name")
        async def second_name(params: bool) -> str:
            return "second"

        async with run_worker(first) as service:
            invocation = await qd.invocations.enqueue(service.id, "worker_name", True, retry_policy=NO_BACKOFF)
            await started.wait()
            proxy.become_unavailable()
            async with run_worker(second):
                ended = await wait_until_ended(qd, invocation)
            assert (ended.result, ended.attempts) == ("second", 2)
            proxy.is_unavailable = False
            may_finish.set()
            # Its late outcome is ignored, and it continues to serve.
            assert await qd.invocations.call(service.id, "worker_name", False) == "first"
        assert (await qd.invocations.get(invocation.id)).result == "second"


async def test_worker_pauses_with_its_session_and_ends_with_it(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        session = await qd.sessions.spawn(APP)
        token = zone.token(session_id=session.id)
        async with Quarterdeck.connect(zone.server.url, token, zone.id) as session_client:
            worker = Worker(session_client, APP)
            worker.method("ping")(lambda: "pong")
            running = asyncio.create_task(worker.run())
            service = await worker.until_registered()
            assert await qd.invocations.call(service.id, "ping") == "pong"
            await qd.sessions.suspend(session.id)
            invocation = await qd.invocations.enqueue(service.id, "ping")
            await qd.sessions.resume(session.id)
            assert (await wait_until_ended(qd, invocation)).result == "pong"
            await qd.sessions.end(session.id)
            await qd.invocations.enqueue(service.id, "ping")
            with pytest.raises(Unauthenticated) as caught:
                await asyncio.wait_for(running, TIMEOUT_SECONDS)
    assert caught.value.code == "session_ended"


@STARTED_ON_SQLITE
async def test_outcomes_are_reported_after_a_server_restart(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch)
    async with Quarterdeck.connect(data=str(launch.data), options=LONG_TIMEOUTS) as qd:
        worker = Worker(qd, APP)
        started, may_finish = asyncio.Barrier(4), asyncio.Event()

        @worker.method()
        async def long(params: int) -> int:
            await started.wait()
            await may_finish.wait()
            return params

        @worker.method()
        async def ping() -> str:
            return "pong"

        async with run_worker(worker) as service:
            invocations = [await qd.invocations.enqueue(service.id, "long", n) for n in range(3)]
            await started.wait()
            server.kill()
            may_finish.set()
            await servers.start(launch)
            ended = [await wait_until_ended(qd, each) for each in invocations]
            assert [(each.result, each.attempts) for each in ended] == [(0, 1), (1, 1), (2, 1)]
            assert await qd.invocations.call(service.id, "ping") == "pong"
