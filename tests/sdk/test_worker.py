"""A worker against a real server: its methods, its batches, its failures, its end."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from quarterdeck.sdk import Context, Fatal, Offer, Quarterdeck, Worker
from quarterdeck.sdk.errors import Forbidden
from quarterdeck.sdk.invocation_worker import claims
from quarterdeck.sdk.options import RetryPolicy
from tests.sdk.fake_servers import collect, run_cutting_proxy, sdk_client
from tests.sdk.worker_support import TIMEOUT_SECONDS, count_calls, run_worker, wait_until_ended
from tests.support.eventually import eventually
from tests.support.zone import APP, FreshZone

AT_ONCE: RetryPolicy = {"max_attempts": 3, "backoff_ms": 0}


class Text(msgspec.Struct):
    text: str


class Summary(msgspec.Struct):
    words: int
    first: str


# -- methods


async def test_methods_are_given_what_their_annotations_say_and_answer_with_what_they_return(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)
        ran_in: list[str] = []

        @worker.method()
        async def summarise(params: Text, context: Context) -> Summary:
            assert context.invocation.method == "summarise"
            assert context.invocation.attempt == 1
            return Summary(len(params.text.split()), params.text.split()[0])

        @worker.method("shout")
        def shouted(params: str) -> str:
            ran_in.append(threading.current_thread().name)
            return params.upper()

        @worker.method()
        def nothing() -> None: ...

        async with run_worker(worker) as service:
            assert service.capabilities == ["nothing", "shout", "summarise"]
            assert (service.application_id, service.delivery, service.health) == (APP, "pull", "healthy")
            told = await qd.invocations.call(service.id, "summarise", {"text": "to be or not"})
            assert told == {"words": 4, "first": "to"}
            assert await qd.invocations.call(service.id, "shout", "quietly") == "QUIETLY"
            assert await qd.invocations.call(service.id, "nothing") is None
    assert ran_in[0].startswith("quarterdeck-worker")


async def test_a_method_that_raises_is_tried_again_and_one_that_raises_fatal_is_not(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)
        attempts: list[int] = []

        @worker.method()
        async def third_time_lucky(params: object, context: Context) -> str:
            attempts.append(context.invocation.attempt)
            if len(attempts) < 3:
                raise ConnectionError("not yet")
            return "at last"

        @worker.method()
        def never() -> None:
            raise Fatal("no such account", account=7)

        async with run_worker(worker) as service:
            lucky = await qd.invocations.enqueue(service.id, "third_time_lucky", retry_policy=AT_ONCE)
            fatal = await qd.invocations.enqueue(service.id, "never", retry_policy=AT_ONCE)
            lucky, fatal = await wait_until_ended(qd, lucky), await wait_until_ended(qd, fatal)
    assert (lucky.status, lucky.result, attempts) == ("succeeded", "at last", [1, 2, 3])
    assert (fatal.status, fatal.attempts) == ("failed", 1)
    assert fatal.error == {"code": "fatal", "message": "no such account", "account": 7}


async def test_attempts_that_are_exhausted_end_as_dead_with_the_last_error(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)

        @worker.method()
        def divide(params: int) -> float:
            return 1 / params

        async with run_worker(worker) as service:
            asked = await qd.invocations.enqueue(service.id, "divide", 0, retry_policy=AT_ONCE)
            dead = await wait_until_ended(qd, asked)
    assert (dead.status, dead.attempts) == ("dead", 3)
    error = {"code": "method_failed", "message": "division by zero", "type": "ZeroDivisionError"}
    assert dead.error == error


async def test_what_can_never_work_fails_at_once_and_says_why(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)

        @worker.method()
        def typed(params: Text) -> object:
            return object()

        async with run_worker(worker) as service:
            asked = [
                await qd.invocations.enqueue(service.id, method, params)
                for method, params in (("typed", {"text": 1}), ("unknown", None), ("typed", {"text": "x"}))
            ]
            ended = [await wait_until_ended(qd, each) for each in asked]
    assert {each.status for each in ended} == {"failed"}
    codes = [each.error["code"] for each in ended if isinstance(each.error, dict)]
    assert codes == ["invalid_params", "method_not_found", "result_not_json"]


async def test_a_result_that_cannot_be_stored_fails_alone(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        service = await qd.services.register(APP, "http://worker.invalid/app")
        params = ["a", "\x00", "b", "x" * 150_000, "y" * 150_000, "c", "z" * 300_000]
        asked = [await qd.invocations.enqueue(service.id, "given", n) for n in range(len(params))]
        worker = Worker(qd, APP)

        @worker.method()
        async def given(place: int) -> str:
            return params[place]

        async with run_worker(worker):
            ended = [await wait_until_ended(qd, each) for each in asked]
    refused = {place: each.error for place, each in enumerate(ended) if each.status != "succeeded"}
    assert refused.keys() == {1, 6}
    assert "U+0000" in str(refused[1])
    assert "result_too_large" in str(refused[6])
    assert ended[3].result == params[3]


def test_a_method_whose_parameters_nobody_could_give_is_refused_when_it_is_declared() -> None:
    worker = Worker(Quarterdeck.connect("http://127.0.0.1:1", "t"), APP)
    with pytest.raises(TypeError, match="something else"):
        worker.method("three")(lambda a, b, c: None)
    worker.method("one")(lambda a: None)
    with pytest.raises(ValueError, match="already"):
        worker.method("one")(lambda a: None)


# -- batches and bounds


async def test_work_is_taken_and_told_in_batches_and_never_more_at_once_than_allowed(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as cutter, sdk_client(zone, cutter.url) as qd:
        service = await qd.services.register(APP, "http://worker.invalid/app")
        asked = [await qd.invocations.enqueue(service.id, "double", n) for n in range(200)]
        worker = Worker(qd, APP, concurrency=20)
        running = most = 0

        @worker.method()
        async def double(params: int) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return 2 * params

        cutter.requests.clear()
        async with run_worker(worker):
            ended = await asyncio.gather(*(wait_until_ended(qd, each) for each in asked))
        assert [each.result for each in ended] == [2 * n for n in range(200)]
        assert {each.attempts for each in ended} == {1}
        assert most <= 20
        assert count_calls(cutter.requests, b"/claim") <= 60
        assert count_calls(cutter.requests, b"/invocations/complete") <= 60


async def test_no_more_leases_are_held_than_methods_run_while_methods_take_long(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP, concurrency=3, prefetch=3)
        go_on = asyncio.Event()
        begun: list[int] = []

        @worker.method()
        async def wait(params: int) -> None:
            begun.append(params)
            await go_on.wait()

        async with run_worker(worker) as service:
            asked = [await qd.invocations.enqueue(service.id, "wait", n) for n in range(8)]

            async def all_run() -> bool:
                return len(begun) == 3

            await eventually(all_run, "three were begun")
            assert len(await collect(qd.invocations.list(status="running"))) == 3
            assert len(await collect(qd.invocations.list(status="pending"))) == 5
            go_on.set()
            ended = [await wait_until_ended(qd, each) for each in asked]
    assert {each.status for each in ended} == {"succeeded"}


async def test_two_workers_of_an_application_share_its_service(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd, sdk_client(zone) as other:
        workers = [Worker(qd, APP, concurrency=1), Worker(other, Offer(APP), concurrency=1)]
        meeting = asyncio.Barrier(2)
        for worker in workers:

            @worker.method()
            async def meet() -> bool:
                # Neither of them can have both: each runs one at a time, and none ends before the other has begun.
                await meeting.wait()
                return True

        async with run_worker(workers[0]) as one, run_worker(workers[1]) as same:
            assert one.id == same.id
            asked = [await qd.invocations.enqueue(one.id, "meet") for _ in range(2)]
            ended = [await wait_until_ended(qd, each) for each in asked]
    assert [each.result for each in ended] == [True, True]


async def test_a_worker_may_serve_what_somebody_else_registered(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        service = await qd.services.register(APP, "http://elsewhere.invalid/", capabilities=["x"])
        worker = Worker(qd, service)
        worker.method("ping")(lambda: "pong")
        async with run_worker(worker) as served:
            assert served.id == service.id
            assert await qd.invocations.call(service.id, "ping") == "pong"
        assert (await qd.services.get(service.id)).capabilities == ["x"]


# -- its end


async def test_a_worker_that_stops_finishes_what_runs_and_gives_back_what_has_not_begun(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP, concurrency=1, prefetch=1)
        begun, go_on = asyncio.Event(), asyncio.Event()

        @worker.method()
        async def quick() -> None: ...

        @worker.method()
        async def slow() -> str:
            begun.set()
            await go_on.wait()
            return "done"

        async with run_worker(worker) as service:
            # Quick ones teach it that taking ahead pays.
            for _ in range(5):
                await qd.invocations.call(service.id, "quick")
            runs = await qd.invocations.enqueue(service.id, "slow")
            await begun.wait()
            waits = await qd.invocations.enqueue(service.id, "slow")

            async def is_held() -> bool:
                return (await qd.invocations.get(waits.id)).status == "running"

            await eventually(is_held, "the second was taken ahead")
            worker.stop()

            async def is_back() -> bool:
                return (await qd.invocations.get(waits.id)).status == "pending"

            await eventually(is_back, "the second was given back")
            go_on.set()
        done, back = await qd.invocations.get(runs.id), await qd.invocations.get(waits.id)
        assert (done.status, done.result) == ("succeeded", "done")
        assert (back.status, back.attempts) == ("pending", 0)


async def test_a_worker_whose_methods_do_not_end_gives_them_up_after_its_grace(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP, grace=0.1)
        begun = asyncio.Event()
        canceled: list[bool] = []

        @worker.method()
        async def forever(params: object, context: Context) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                canceled.append(context.cancelled)

        async with run_worker(worker) as service:
            asked = await qd.invocations.enqueue(service.id, "forever")
            await begun.wait()
        left = await qd.invocations.get(asked.id)
        assert (left.status, left.attempts, canceled) == ("pending", 0, [True])


async def test_a_worker_that_stops_while_it_waits_for_work_holds_nothing(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)
        worker.method("ping")(lambda: "pong")
        async with run_worker(worker) as service:
            await qd.invocations.call(service.id, "ping")
        asked = await qd.invocations.enqueue(service.id, "ping")
        assert (await qd.invocations.get(asked.id)).status == "pending"


async def test_a_worker_that_the_server_refuses_says_so_and_ends(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        service = await qd.services.register(APP, "http://worker.invalid/app")
    async with Quarterdeck.connect(zone.server.url, zone.token(client_id="other"), zone.id) as other:
        worker = Worker(other, service)
        with pytest.raises(Forbidden) as told:
            await asyncio.wait_for(worker.run(), TIMEOUT_SECONDS)
    assert told.value.code == "service_ownership_required"


async def test_a_service_that_was_taken_back_is_registered_again_by_whoever_still_serves_it(
    zone: FreshZone, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever waits for work is not told, and hears of it with the next claim.
    monkeypatch.setattr(claims, "WAIT_SECONDS", 0.5)
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)
        worker.method("ping")(lambda: "pong")
        async with run_worker(worker) as service:
            await qd.services.unregister(service.id)

            async def is_there_again() -> bool:
                return len(await collect(qd.services.list())) == 1

            await eventually(is_there_again, "the service was registered again", TIMEOUT_SECONDS)
            again = await qd.services.find(APP)
            assert await qd.invocations.call(again.id, "ping") == "pong"
