"""What a worker outlives: lost answers, lost leases, a server that is away, and being told to stop in the middle."""

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
AT_ONCE: RetryPolicy = {"max_attempts": 3, "backoff_ms": 0}


async def test_a_claim_whose_answer_is_lost_is_given_the_same_leases_and_costs_no_attempt(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as cutter, sdk_client(zone, cutter.url) as qd:
        service = await qd.services.register(APP, "http://worker.invalid/app")
        asked = [await qd.invocations.enqueue(service.id, "double", n) for n in range(5)]
        worker = Worker(qd, APP)

        @worker.method()
        async def double(params: int) -> int:
            return 2 * params

        cutter.cut_next(b"/claim")
        async with run_worker(worker):
            ended = [await wait_until_ended(qd, each) for each in asked]
        assert cutter.cut_count == 1
        assert [each.result for each in ended] == [0, 2, 4, 6, 8]
        assert {each.attempts for each in ended} == {1}


async def test_outcomes_whose_answer_is_lost_are_told_again_and_nothing_is_done_twice(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as cutter, sdk_client(zone, cutter.url) as qd:
        worker = Worker(qd, APP)
        done: list[int] = []

        @worker.method()
        async def double(params: int) -> int:
            done.append(params)
            return 2 * params

        async with run_worker(worker) as service:
            cutter.cut_next(*[b"/invocations/complete"] * 3)
            asked = [await qd.invocations.enqueue(service.id, "double", n) for n in range(5)]
            ended = [await wait_until_ended(qd, each) for each in asked]
        assert cutter.cut_count == 3
        assert [each.result for each in ended] == [0, 2, 4, 6, 8]
        assert sorted(done) == [0, 1, 2, 3, 4]


@STARTED_ON_SQLITE
async def test_a_method_that_takes_longer_than_its_lease_keeps_it_by_heartbeats(
    servers: Servers, launch: Launch
) -> None:
    zone = await create_zone(await servers.start(launch.with_environment(**SHORT_LEASES)))
    async with run_cutting_proxy(zone.server.url) as cutter, sdk_client(zone, cutter.url) as qd:
        worker = Worker(qd, APP)
        go_on = asyncio.Event()

        @worker.method()
        async def long() -> str:
            await go_on.wait()
            return "done"

        async with run_worker(worker) as service:
            asked = [await qd.invocations.enqueue(service.id, "long") for _ in range(3)]

            async def has_beaten_past_its_lease() -> bool:
                return count_calls(cutter.requests, b"/invocations/heartbeat") >= 5

            await eventually(has_beaten_past_its_lease, "it beat five times, a third of a lease apart")
            # One call for all of them, however many are held.
            assert count_calls(cutter.requests, b"/heartbeat") == count_calls(
                cutter.requests, b"/invocations/heartbeat"
            )
            go_on.set()
            ended = [await wait_until_ended(qd, each) for each in asked]
    assert [(each.status, each.attempts) for each in ended] == [("succeeded", 1)] * 3


@STARTED_ON_SQLITE
async def test_whoever_cancels_is_heard_by_the_method_and_the_invocation_ends_as_canceled(
    servers: Servers, launch: Launch
) -> None:
    zone = await create_zone(await servers.start(launch.with_environment(**SHORT_LEASES)))
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)
        begun = asyncio.Barrier(3)
        loop = asyncio.get_running_loop()

        @worker.method()
        async def patient(params: object, context: Context) -> None:
            await begun.wait()
            await context.until_cancelled()
            raise Canceled("as you wish")

        @worker.method()
        def threaded(params: object, context: Context) -> None:
            asyncio.run_coroutine_threadsafe(begun.wait(), loop).result()
            assert context.wait_cancelled(TIMEOUT_SECONDS)
            context.check()

        async with run_worker(worker) as service:
            asked = [await qd.invocations.enqueue(service.id, name) for name in ("patient", "threaded")]
            await begun.wait()
            for each in asked:
                await qd.invocations.cancel(each.id, reason="no longer needed")
            ended = [await wait_until_ended(qd, each) for each in asked]
    assert [(each.status, each.cancel_reason) for each in ended] == [("canceled", "no longer needed")] * 2


@STARTED_ON_SQLITE
async def test_a_worker_that_was_cut_off_past_its_lease_is_not_believed_and_serves_on(
    servers: Servers, launch: Launch
) -> None:
    zone = await create_zone(await servers.start(launch.with_environment(**SHORT_LEASES)))
    async with (
        run_cutting_proxy(zone.server.url) as cutter,
        sdk_client(zone, cutter.url) as cut_off,
        sdk_client(zone) as qd,
    ):
        first, second = Worker(cut_off, APP, concurrency=1), Worker(qd, APP, concurrency=1)
        begun, go_on = asyncio.Event(), asyncio.Event()

        @first.method("who")
        async def first_who(params: bool) -> str:
            if params:
                begun.set()
                await go_on.wait()
            return "first"

        @second.method("who")
        async def second_who(params: bool) -> str:
            return "second"

        async with run_worker(first) as service:
            asked = await qd.invocations.enqueue(service.id, "who", True, retry_policy=AT_ONCE)
            await begun.wait()
            cutter.become_unavailable()
            async with run_worker(second):
                ended = await wait_until_ended(qd, asked)
            assert (ended.result, ended.attempts) == ("second", 2)
            cutter.is_unavailable = False
            go_on.set()
            # What it did counts for nothing, and it goes on.
            assert await qd.invocations.call(service.id, "who", False) == "first"
        assert (await qd.invocations.get(asked.id)).result == "second"


async def test_a_worker_whose_session_sleeps_takes_nothing_until_it_wakes_and_ends_with_it(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        session = await qd.sessions.spawn(APP)
        token = zone.token(session_id=session.id)
        async with Quarterdeck.connect(zone.server.url, token, zone.id) as own:
            worker = Worker(own, APP)
            worker.method("ping")(lambda: "pong")
            running = asyncio.create_task(worker.run())
            service = await worker.until_registered()
            assert await qd.invocations.call(service.id, "ping") == "pong"
            await qd.sessions.suspend(session.id)
            asked = await qd.invocations.enqueue(service.id, "ping")
            await qd.sessions.resume(session.id)
            assert (await wait_until_ended(qd, asked)).result == "pong"
            await qd.sessions.end(session.id)
            await qd.invocations.enqueue(service.id, "ping")
            with pytest.raises(Unauthenticated) as told:
                await asyncio.wait_for(running, TIMEOUT_SECONDS)
    assert told.value.code == "session_ended"


@STARTED_ON_SQLITE
async def test_a_server_that_is_killed_and_started_again_hears_of_what_was_done_meanwhile(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch)
    async with Quarterdeck.connect(data=str(launch.data), options=LONG_TIMEOUTS) as qd:
        worker = Worker(qd, APP)
        begun, go_on = asyncio.Barrier(4), asyncio.Event()

        @worker.method()
        async def long(params: int) -> int:
            await begun.wait()
            await go_on.wait()
            return params

        @worker.method()
        async def ping() -> str:
            return "pong"

        async with run_worker(worker) as service:
            asked = [await qd.invocations.enqueue(service.id, "long", n) for n in range(3)]
            await begun.wait()
            server.kill()
            go_on.set()
            await servers.start(launch)
            ended = [await wait_until_ended(qd, each) for each in asked]
            assert [(each.result, each.attempts) for each in ended] == [(0, 1), (1, 1), (2, 1)]
            assert await qd.invocations.call(service.id, "ping") == "pong"
