"""The worker against a real server: methods, batches, limits and shutdown."""

from __future__ import annotations

import asyncio
import threading

import msgspec
import pytest

from quarterdeck.sdk import Context, Fatal, Offer, Quarterdeck, Worker
from quarterdeck.sdk.errors import Forbidden
from quarterdeck.sdk.options import RetryPolicy
from quarterdeck.sdk.worker_core import claims
from tests.sdk.fake_servers import collect, run_cutting_proxy, sdk_client
from tests.sdk.worker_support import TIMEOUT_SECONDS, count_calls, run_worker, wait_until_ended
from tests.support.eventually import eventually
from tests.support.zone import APP, FreshZone

NO_BACKOFF: RetryPolicy = {"max_attempts": 3, "backoff_ms": 0}


class Text(msgspec.Struct):
    text: str


class Summary(msgspec.Struct):
    words: int
    first: str


# -- methods


async def test_params_and_results_are_converted_by_annotation(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)
        thread_names: list[str] = []

        @worker.method()
        async def summarise(params: Text, context: Context) -> Summary:
            assert context.invocation.method == "summarise"
            assert context.invocation.attempt == 1
            return Summary(len(params.text.split()), params.text.split()[0])

        @worker.method("shout")
        def shout(params: str) -> str:
            thread_names.append(threading.current_thread().name)
            return params.upper()

        @worker.method()
        def nothing() -> None: ...

        async with run_worker(worker) as service:
            assert service.capabilities == ["nothing", "shout", "summarise"]
            assert (service.application_id, service.delivery, service.health) == (APP, "pull", "healthy")
            summary = await qd.invocations.call(service.id, "summarise", {"text": "to be or not"})
            assert summary == {"words": 4, "first": "to"}
            assert await qd.invocations.call(service.id, "shout", "quietly") == "QUIETLY"
            assert await qd.invocations.call(service.id, "nothing") is None
    assert thread_names[0].startswith("quarterdeck-worker")


async def test_exception_is_retried_and_fatal_is_not(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)
        attempts: list[int] = []

        @worker.method()
        async def succeeds_on_third_attempt(params: object, context: Context) -> str:
            attempts.append(context.invocation.attempt)
            if len(attempts) < 3:
                raise ConnectionError("not yet")
            return "done"

        @worker.method()
        def never() -> None:
            raise Fatal("no such account", account=7)

        async with run_worker(worker) as service:
            retried = await qd.invocations.enqueue(service.id, "succeeds_on_third_attempt", retry_policy=NO_BACKOFF)
            fatal = await qd.invocations.enqueue(service.id, "never", retry_policy=NO_BACKOFF)
            retried, fatal = await wait_until_ended(qd, retried), await wait_until_ended(qd, fatal)
    assert (retried.status, retried.result, attempts) == ("succeeded", "done", [1, 2, 3])
    assert (fatal.status, fatal.attempts) == ("failed", 1)
    assert fatal.error == {"code": "fatal", "message": "no such account", "account": 7}


async def test_exhausted_attempts_end_as_dead_with_the_last_error(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)

        @worker.method()
        def divide(params: int) -> float:
            return 1 / params

        async with run_worker(worker) as service:
            invocation = await qd.invocations.enqueue(service.id, "divide", 0, retry_policy=NO_BACKOFF)
            dead = await wait_until_ended(qd, invocation)
    assert (dead.status, dead.attempts) == ("dead", 3)
    error = {"code": "method_failed", "message": "division by zero", "type": "ZeroDivisionError"}
    assert dead.error == error


async def test_permanent_error_fails_at_once_with_its_code(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)

        @worker.method()
        def typed(params: Text) -> object:
            return object()

        async with run_worker(worker) as service:
            invocations = [
                await qd.invocations.enqueue(service.id, method, params)
                for method, params in (("typed", {"text": 1}), ("unknown", None), ("typed", {"text": "x"}))
            ]
            ended = [await wait_until_ended(qd, each) for each in invocations]
    assert {each.status for each in ended} == {"failed"}
    codes = [each.error["code"] for each in ended if isinstance(each.error, dict)]
    assert codes == ["invalid_params", "method_not_found", "result_not_json"]


async def test_result_that_cannot_be_stored_fails_only_its_invocation(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        service = await qd.services.register(APP, "http://worker.invalid/app")
        params = ["a", "\x00", "b", "x" * 150_000, "y" * 150_000, "c", "z" * 300_000]
        invocations = [await qd.invocations.enqueue(service.id, "return_param", n) for n in range(len(params))]
        worker = Worker(qd, APP)

        @worker.method()
        async def return_param(index: int) -> str:
            return params[index]

        async with run_worker(worker):
            ended = [await wait_until_ended(qd, each) for each in invocations]
    refused = {index: each.error for index, each in enumerate(ended) if each.status != "succeeded"}
    assert refused.keys() == {1, 6}
    assert "U+0000" in str(refused[1])
    assert "result_too_large" in str(refused[6])
    assert ended[3].result == params[3]


def test_invalid_method_signature_or_duplicate_is_refused_at_declaration() -> None:
    worker = Worker(Quarterdeck.connect("http://127.0.0.1:1", "t"), APP)
    with pytest.raises(TypeError, match="at most two"):
        worker.method("three")(lambda a, b, c: None)
    worker.method("one")(lambda a: None)
    with pytest.raises(ValueError, match="already"):
        worker.method("one")(lambda a: None)


# -- batches and limits


async def test_worker_claims_and_reports_in_batches_within_its_concurrency(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as proxy, sdk_client(zone, proxy.url) as qd:
        service = await qd.services.register(APP, "http://worker.invalid/app")
        invocations = [await qd.invocations.enqueue(service.id, "double", n) for n in range(200)]
        worker = Worker(qd, APP, concurrency=20)
        running = peak = 0

        @worker.method()
        async def double(params: int) -> int:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(0)
            running -= 1
            return 2 * params

        proxy.requests.clear()
        async with run_worker(worker):
            ended = await asyncio.gather(*(wait_until_ended(qd, each) for each in invocations))
        assert [each.result for each in ended] == [2 * n for n in range(200)]
        assert {each.attempts for each in ended} == {1}
        assert peak <= 20
        assert count_calls(proxy.requests, b"/claim") <= 60
        assert count_calls(proxy.requests, b"/invocations/complete") <= 60


async def test_slow_methods_prevent_prefetching(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP, concurrency=3, prefetch=3)
        may_finish = asyncio.Event()
        started: list[int] = []

        @worker.method()
        async def wait(params: int) -> None:
            started.append(params)
            await may_finish.wait()

        async with run_worker(worker) as service:
            invocations = [await qd.invocations.enqueue(service.id, "wait", n) for n in range(8)]

            async def all_run() -> bool:
                return len(started) == 3

            await eventually(all_run, "three methods run")
            assert len(await collect(qd.invocations.list(status="running"))) == 3
            assert len(await collect(qd.invocations.list(status="pending"))) == 5
            may_finish.set()
            ended = [await wait_until_ended(qd, each) for each in invocations]
    assert {each.status for each in ended} == {"succeeded"}


async def test_two_workers_of_an_application_share_its_service(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd, sdk_client(zone) as other:
        workers = [Worker(qd, APP, concurrency=1), Worker(other, Offer(APP), concurrency=1)]
        meeting = asyncio.Barrier(2)
        for worker in workers:

            @worker.method()
            async def meet() -> bool:
                # One worker cannot run both: it runs one method at a time, and neither ends before both have started.
                await meeting.wait()
                return True

        async with run_worker(workers[0]) as first, run_worker(workers[1]) as second:
            assert first.id == second.id
            invocations = [await qd.invocations.enqueue(first.id, "meet") for _ in range(2)]
            ended = [await wait_until_ended(qd, each) for each in invocations]
    assert [each.result for each in ended] == [True, True]


async def test_worker_can_serve_an_existing_service(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        service = await qd.services.register(APP, "http://other.invalid/", capabilities=["x"])
        worker = Worker(qd, service)
        worker.method("ping")(lambda: "pong")
        async with run_worker(worker) as served:
            assert served.id == service.id
            assert await qd.invocations.call(service.id, "ping") == "pong"
        assert (await qd.services.get(service.id)).capabilities == ["x"]


# -- shutdown


async def test_stopping_worker_finishes_running_methods_and_releases_the_rest(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP, concurrency=1, prefetch=1)
        started, may_finish = asyncio.Event(), asyncio.Event()

        @worker.method()
        async def quick() -> None: ...

        @worker.method()
        async def slow() -> str:
            started.set()
            await may_finish.wait()
            return "done"

        async with run_worker(worker) as service:
            # After fast methods the worker prefetches.
            for _ in range(5):
                await qd.invocations.call(service.id, "quick")
            running = await qd.invocations.enqueue(service.id, "slow")
            await started.wait()
            waiting = await qd.invocations.enqueue(service.id, "slow")

            async def is_held() -> bool:
                return (await qd.invocations.get(waiting.id)).status == "running"

            await eventually(is_held, "the second was prefetched")
            worker.stop()

            async def is_released() -> bool:
                return (await qd.invocations.get(waiting.id)).status == "pending"

            await eventually(is_released, "the second was released")
            may_finish.set()
        completed, released = await qd.invocations.get(running.id), await qd.invocations.get(waiting.id)
        assert (completed.status, completed.result) == ("succeeded", "done")
        assert (released.status, released.attempts) == ("pending", 0)


async def test_methods_that_exceed_the_grace_are_canceled_and_released(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP, grace=0.1)
        started = asyncio.Event()
        canceled: list[bool] = []

        @worker.method()
        async def forever(params: object, context: Context) -> None:
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                canceled.append(context.cancelled)

        async with run_worker(worker) as service:
            invocation = await qd.invocations.enqueue(service.id, "forever")
            await started.wait()
        left = await qd.invocations.get(invocation.id)
        assert (left.status, left.attempts, canceled) == ("pending", 0, [True])


async def test_worker_stopped_while_idle_claims_nothing(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)
        worker.method("ping")(lambda: "pong")
        async with run_worker(worker) as service:
            await qd.invocations.call(service.id, "ping")
        invocation = await qd.invocations.enqueue(service.id, "ping")
        assert (await qd.invocations.get(invocation.id)).status == "pending"


async def test_refused_worker_raises_and_ends(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        service = await qd.services.register(APP, "http://worker.invalid/app")
    async with Quarterdeck.connect(zone.server.url, zone.token(client_id="other"), zone.id) as other:
        worker = Worker(other, service)
        with pytest.raises(Forbidden) as caught:
            await asyncio.wait_for(worker.run(), TIMEOUT_SECONDS)
    assert caught.value.code == "service_ownership_required"


async def test_unregistered_service_is_registered_again_by_its_worker(
    zone: FreshZone, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A waiting claim is not interrupted: the worker learns of it with the next claim.
    monkeypatch.setattr(claims, "WAIT_SECONDS", 0.5)
    async with sdk_client(zone) as qd:
        worker = Worker(qd, APP)
        worker.method("ping")(lambda: "pong")
        async with run_worker(worker) as service:
            await qd.services.unregister(service.id)

            async def is_registered_again() -> bool:
                return len(await collect(qd.services.list())) == 1

            await eventually(is_registered_again, "the service was registered again", TIMEOUT_SECONDS)
            registered = await qd.services.find(APP)
            assert await qd.invocations.call(registered.id, "ping") == "pong"
