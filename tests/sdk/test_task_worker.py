"""The task worker: input and outcome of its functions, cancellation, shutdown, and calls on the wire."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from quarterdeck import testing
from quarterdeck.sdk import (
    Attempt,
    Canceled,
    Cost,
    Done,
    Fail,
    Fatal,
    Quarterdeck,
    Release,
    TaskWorker,
    ThreadAttempt,
    WorkerOptions,
)
from quarterdeck.sdk.errors import Conflict
from quarterdeck.sdk.options import AgentOptions, NewTask
from quarterdeck.sdk.task_worker import calls
from quarterdeck.sdk.work_types import Task
from quarterdeck.testing import Server
from tests.sdk.fake_servers import collect, run_cutting_proxy, sdk_client
from tests.sdk.worker_support import TIMEOUT_SECONDS, count_calls, run_worker
from tests.support.zone import FreshZone

TASK_TYPE = "research"


@pytest.fixture
async def qd() -> AsyncIterator[Server]:
    async with testing.server() as server:
        yield server


async def create_tasks(client: Quarterdeck, number: int) -> list[str]:
    new_tasks: list[NewTask] = [
        {"title": f"number {n}", "task_type": TASK_TYPE, "input_context": {"n": n}} for n in range(number)
    ]
    created = await client.tasks.create_many(new_tasks)
    return [task.id for task in created if isinstance(task, Task)]


async def wait_for_tasks(client: Quarterdeck, *task_ids: str) -> list[Task]:
    return [*await client.tasks.wait(task_ids, timeout=TIMEOUT_SECONDS)]


# -- input and outcome -------------------------------------------------------------------------------------------------


async def test_result_summary_and_costs_are_stored(qd: Server) -> None:
    worker = TaskWorker(qd, "dev-1")

    @worker.task("plain")
    async def plain(task: Attempt) -> object:
        return {"was": task.input, "title": task.title, "first": task.attempt}

    @worker.task("rich")
    async def rich(task: Attempt) -> object:
        return Done([1, 2], summary="two items", costs=[Cost("m", usd=0.25)])

    @worker.task("nothing")
    async def nothing(task: Attempt) -> None: ...

    created = [
        await qd.tasks.create("a", "plain", input_context={"x": {"$secret": "s3cret"}}),
        await qd.tasks.create("b", "rich"),
        await qd.tasks.create("c", "nothing"),
    ]
    assert await qd.drain(worker) == 3
    a, b, c = await wait_for_tasks(qd, *(task.id for task in created))
    assert isinstance(a.output_result, dict)
    assert (a.output_result["title"], a.output_result["first"]) == ("a", 1)
    assert (b.output_result, b.summary, b.costs.usd) == ([1, 2], "two items", 0.25)
    assert (c.status, c.output_result) == ("COMPLETED", None)


@pytest.mark.parametrize(
    ("raised", "status", "is_over"),
    [
        (ValueError("no"), "FAILED", False),
        (Fail("no"), "FAILED", False),
        (Fail("no", retryable=False), "FAILED", True),
        (Fatal("no"), "FAILED", True),
        (Canceled("by the function"), "FAILED", False),
    ],
)
async def test_exception_fails_the_attempt(qd: Server, raised: Exception, status: str, is_over: bool) -> None:
    worker = TaskWorker(qd, "dev-1")

    @worker.task(TASK_TYPE)
    async def fails(task: Attempt) -> None:
        raise raised

    task = await qd.tasks.create("task-1", TASK_TYPE)
    assert await qd.drain(worker) == 1
    found = await qd.tasks.get(task.id)
    assert (found.status, found.is_over, found.retry_count) == (status, is_over, 0 if is_over else 1)
    assert str(raised) in (found.last_error or "")


async def test_released_task_does_not_count_as_an_attempt(qd: Server) -> None:
    worker, tries = TaskWorker(qd, "dev-1"), [0]

    @worker.task(TASK_TYPE)
    async def releases_first(task: Attempt) -> None:
        tries[0] += 1
        if tries[0] == 1:
            raise Release

    task = await qd.tasks.create("task-1", TASK_TYPE, max_retries=0)
    assert await qd.drain(worker) == 2
    found = await qd.tasks.get(task.id)
    assert (found.status, found.retry_count, tries) == ("COMPLETED", 0, [2])


async def test_next_attempt_continues_from_the_checkpoint_after_its_backoff(qd: Server) -> None:
    worker, attempts = TaskWorker(qd, "dev-1"), list[tuple[int, object]]()

    @worker.task(TASK_TYPE)
    async def steps(task: Attempt) -> None:
        attempts.append((task.attempt, task.checkpoint.get("step")))
        await task.progress(10 * task.attempt, f"step {task.attempt}", checkpoint={"step": task.attempt})
        if task.attempt < 3:
            raise ValueError("not yet")

    task = await qd.tasks.create("task-1", TASK_TYPE, retry_backoff_seconds=60)
    for _ in range(3):
        await qd.drain(worker)
        assert await qd.drain(worker) == 0  # the backoff has not ended
        qd.clock.advance(minutes=10)
    assert attempts == [(1, None), (2, 1), (3, 2)]
    assert (await qd.tasks.get(task.id)).checkpoint_data == {"step": 3}


async def test_restarted_worker_gets_the_tasks_of_its_predecessor_at_once(qd: Server) -> None:
    killed, restarted, attempts = TaskWorker(qd, "dev-1"), TaskWorker(qd, "dev-1"), list[int]()

    @restarted.task(TASK_TYPE)
    async def record(task: Attempt) -> None:
        attempts.append(task.attempt)

    task = await qd.tasks.create("task-1", TASK_TYPE, retry_backoff_seconds=0)
    assert await qd.drain(killed) == 0
    # A killed worker never reports on the tasks it has claimed.
    assert await qd.tasks.claim("dev-1", "claim-1")
    await qd.drain(restarted)
    assert (await qd.drain(restarted), attempts) == (1, [2])
    assert (await qd.tasks.get(task.id)).status == "COMPLETED"


async def test_plain_functions_run_in_threads_with_the_same_api(qd: Server) -> None:
    worker, threads = TaskWorker(qd, "dev-1", concurrency=3), set[str]()
    together = threading.Barrier(3)

    @worker.task(TASK_TYPE)
    def plain(task: ThreadAttempt) -> int:
        threads.add(threading.current_thread().name)
        together.wait(TIMEOUT_SECONDS)
        task.progress(50, "half")
        task.log("WARN", "half done", n=task.input["n"])
        task.check()
        return 7

    ids = await create_tasks(qd, 3)
    assert await qd.drain(worker) == 3
    ended = await wait_for_tasks(qd, *ids)
    assert [task.output_result for task in ended] == [7, 7, 7]
    assert len(threads) == 3
    assert [line.message for line in await collect(qd.tasks.logs(ids[0], level="WARN"))] == ["half done"]


async def test_result_that_cannot_be_stored_fails_only_its_task(qd: Server) -> None:
    worker = TaskWorker(qd, "dev-1")

    @worker.task(TASK_TYPE)
    async def odd(task: Attempt) -> object:
        return [{"fine": 1}, "\x00", object(), "x" * (1024 * 1024)][int(str(task.input["n"]))]

    ids = await create_tasks(qd, 4)
    assert await qd.drain(worker) == 4
    ended = await wait_for_tasks(qd, *ids)
    assert [task.status for task in ended] == ["COMPLETED", "FAILED", "FAILED", "FAILED"]
    assert all(task.is_over for task in ended)


async def test_unhandled_types_go_to_the_default_function(qd: Server) -> None:
    worker = TaskWorker(qd, "dev-1")

    @worker.task("known", capabilities=["python"])
    async def known_type(task: Attempt) -> str:
        return "known"

    @worker.task()
    async def other(task: Attempt) -> str:
        return "other"

    with pytest.raises(ValueError, match="already"):
        worker.task("known")(known_type)
    with pytest.raises(TypeError, match="exactly one parameter"):
        worker.task("odd")(lambda task, more: None)
    known_task = await qd.tasks.create("a", "known", required_capabilities=["python"])
    other_task = await qd.tasks.create("b", "unknown")
    await qd.drain(worker)
    assert [task.output_result for task in await wait_for_tasks(qd, known_task.id, other_task.id)] == ["known", "other"]
    assert (await qd.agents.get("dev-1")).capabilities == ["python"]


# -- cancellation and shutdown ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "pause"])
async def test_function_learns_of_cancellation_with_the_next_heartbeat(qd: Server, verb: str) -> None:
    worker, started, reasons = TaskWorker(qd, "dev-1"), asyncio.Event(), list[str | None]()

    @worker.task(TASK_TYPE)
    async def waits(task: Attempt) -> str:
        started.set()
        await task.until_cancelled()
        reasons.append(task.why_cancelled)
        task.check()
        return "ignored"

    task = await qd.tasks.create("task-1", TASK_TYPE)
    async with run_worker(worker):
        await asyncio.wait_for(started.wait(), TIMEOUT_SECONDS)
        await (qd.tasks.cancel if verb == "cancel" else qd.tasks.pause)(task.id)
        await worker.beat()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await worker.until_idle()
    found = await qd.tasks.get(task.id)
    assert (found.status, found.output_result) == ("ABORTED" if verb == "cancel" else "PAUSED", None)
    assert reasons == ["canceled" if verb == "cancel" else "paused"]


async def test_progress_of_a_stale_agent_raises_canceled(qd: Server) -> None:
    worker, started, may_finish = TaskWorker(qd, "dev-1"), asyncio.Event(), asyncio.Event()
    cancellations = list[str]()

    @worker.task(TASK_TYPE)
    async def slow(task: Attempt) -> str:
        started.set()
        await may_finish.wait()
        try:
            await task.progress(50)
        except Canceled as error:
            cancellations.append(str(error))
        return "too late"

    task = await qd.tasks.create("task-1", TASK_TYPE, retry_backoff_seconds=0)
    async with run_worker(worker):
        await asyncio.wait_for(started.wait(), TIMEOUT_SECONDS)
        worker.stop()  # so that it does not claim the task again
        qd.clock.advance(hours=1)
        await qd.settle()
        assert (await qd.agents.get("dev-1")).status_reason == "stale"
        may_finish.set()
    found = await qd.tasks.get(task.id)
    assert (found.status, found.output_result, found.retry_count) == ("PENDING", None, 1)
    assert len(cancellations) == 1


async def test_stopping_worker_finishes_running_tasks_and_releases_the_rest(qd: Server) -> None:
    options = WorkerOptions(prefetch=0)
    worker, started, may_finish = (
        TaskWorker(qd, "dev-1", concurrency=2, options=options),
        asyncio.Event(),
        asyncio.Event(),
    )

    @worker.task(TASK_TYPE)
    async def slow(task: Attempt) -> str:
        started.set()
        await may_finish.wait()
        return "done"

    ids = await create_tasks(qd, 5)
    async with run_worker(worker):
        await asyncio.wait_for(started.wait(), TIMEOUT_SECONDS)
        assert (await qd.agents.get("dev-1")).held_tasks <= 2
        worker.stop()
        may_finish.set()
    tasks = [await qd.tasks.get(task_id) for task_id in ids]
    assert sorted(task.status for task in tasks) == ["COMPLETED"] * 2 + ["PENDING"] * 3
    assert {task.retry_count for task in tasks} == {0}
    assert (await qd.agents.get("dev-1")).held_tasks == 0


async def test_task_that_exceeds_the_grace_is_released_without_counting(qd: Server) -> None:
    worker, started = TaskWorker(qd, "dev-1", options=WorkerOptions(grace=0.05)), asyncio.Event()

    @worker.task(TASK_TYPE)
    async def never_ends(task: Attempt) -> None:
        started.set()
        await asyncio.Event().wait()

    task = await qd.tasks.create("task-1", TASK_TYPE)
    async with run_worker(worker):
        await asyncio.wait_for(started.wait(), TIMEOUT_SECONDS)
    found = await qd.tasks.get(task.id)
    assert (found.status, found.retry_count) == ("PENDING", 0)


async def test_terminated_agent_ends_its_worker_and_its_tasks(qd: Server) -> None:
    worker, started = TaskWorker(qd, "dev-1"), asyncio.Event()

    @worker.task(TASK_TYPE)
    async def waits(task: Attempt) -> None:
        started.set()
        await task.until_cancelled()
        task.check()

    task = await qd.tasks.create("task-1", TASK_TYPE)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(started.wait(), TIMEOUT_SECONDS)
    await qd.agents.terminate("dev-1")
    with pytest.raises(Conflict, match="terminated"):
        await worker.beat()
    await asyncio.wait_for(running, TIMEOUT_SECONDS)
    assert (await qd.tasks.get(task.id)).status == "ABORTED"


async def test_graceful_termination_ends_the_worker_after_its_last_task(qd: Server) -> None:
    worker, started, may_finish = TaskWorker(qd, "dev-1", options=WorkerOptions(grace=0.0)), *_two_events()

    @worker.task(TASK_TYPE)
    async def slow(task: Attempt) -> str:
        started.set()
        await may_finish.wait()
        return "done"

    task = await qd.tasks.create("task-1", TASK_TYPE)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(started.wait(), TIMEOUT_SECONDS)
    await qd.agents.terminate("dev-1", graceful=True)
    later = await qd.tasks.create("task-2", TASK_TYPE)  # wakes the worker's claim, which then learns of the termination
    may_finish.set()
    await asyncio.wait_for(running, TIMEOUT_SECONDS)
    assert (await qd.tasks.get(task.id)).output_result == "done"
    assert (await qd.tasks.get(later.id)).status == "PENDING"
    assert (await qd.agents.get("dev-1")).status == "TERMINATED"


def _two_events() -> tuple[asyncio.Event, asyncio.Event]:
    return asyncio.Event(), asyncio.Event()


# -- over the wire -----------------------------------------------------------------------------------------------------


async def test_hundreds_of_tasks_take_few_calls(zone: FreshZone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CLAIM_MAX", 50)
    async with run_cutting_proxy(zone.server.url) as proxy, sdk_client(zone, proxy.url) as qd:
        worker = TaskWorker(qd, "dev-1", concurrency=4)

        @worker.task(TASK_TYPE)
        async def quick(task: Attempt) -> None: ...

        async with sdk_client(zone) as other:
            ids = await create_tasks(other, 400)
            async with run_worker(worker):
                assert {task.status for task in await wait_for_tasks(other, *ids)} == {"COMPLETED"}
        assert count_calls(proxy.requests, b"/claim") <= 40
        assert count_calls(proxy.requests, b"/agent-tasks/complete") <= 40


async def test_lost_responses_to_claims_and_reports_lose_or_repeat_nothing(zone: FreshZone) -> None:
    async with (
        run_cutting_proxy(zone.server.url) as proxy,
        sdk_client(zone, proxy.url) as qd,
        sdk_client(zone) as other,
    ):
        worker, executed = TaskWorker(qd, "dev-1", concurrency=2), list[str]()

        @worker.task(TASK_TYPE)
        async def quick(task: Attempt) -> None:
            executed.append(task.id)

        ids = await create_tasks(other, 20)
        proxy.cut_next(b"/claim", b"/agent-tasks/complete")
        async with run_worker(worker):
            ended = await wait_for_tasks(other, *ids)
        assert {task.status for task in ended} == {"COMPLETED"}
        assert sorted(executed) == sorted(ids)
        assert proxy.cut_count == 2


async def test_costs_are_charged_once_despite_a_lost_response(zone: FreshZone) -> None:
    async with (
        run_cutting_proxy(zone.server.url) as proxy,
        sdk_client(zone, proxy.url) as qd,
        sdk_client(zone) as other,
    ):
        worker = TaskWorker(qd, "dev-1")

        @worker.task(TASK_TYPE)
        async def costly(task: Attempt) -> None:
            for _ in range(2):
                await task.progress(costs=[Cost("opus", usd=0.5)])

        [task_id] = await create_tasks(other, 1)
        proxy.cut_next(b"/agent-tasks/progress")
        async with run_worker(worker):
            [ended] = await wait_for_tasks(other, task_id)
        assert (proxy.cut_count, ended.costs.usd) == (1, 1.0)


async def test_worker_survives_a_server_outage(zone: FreshZone) -> None:
    async with (
        run_cutting_proxy(zone.server.url) as proxy,
        sdk_client(zone, proxy.url) as qd,
        sdk_client(zone) as other,
    ):
        described = AgentOptions(heartbeat_interval_seconds=1)
        worker = TaskWorker(qd, "dev-1", concurrency=2, options=WorkerOptions(described=described))
        started, may_finish = asyncio.Event(), asyncio.Event()

        @worker.task(TASK_TYPE)
        async def slow(task: Attempt) -> None:
            started.set()
            await may_finish.wait()

        [first] = await create_tasks(other, 1)
        async with run_worker(worker):
            await asyncio.wait_for(started.wait(), TIMEOUT_SECONDS)
            proxy.become_unavailable()
            may_finish.set()
            [second] = await create_tasks(other, 1)
            proxy.is_unavailable = False
            assert {task.status for task in await wait_for_tasks(other, first, second)} == {"COMPLETED"}


async def test_function_that_cancels_its_own_asyncio_task_fails_and_the_next_task_runs(qd: Server) -> None:
    worker = TaskWorker(qd, "dev-1", concurrency=1)

    @worker.task(TASK_TYPE)
    async def handle(task: Attempt) -> None:
        current_task = asyncio.current_task()
        if task.input["n"] == 0 and current_task is not None:
            current_task.cancel()
            await asyncio.sleep(0)

    tasks = [await qd.tasks.create(f"number {n}", TASK_TYPE, input_context={"n": n}, max_retries=0) for n in range(2)]
    async with asyncio.timeout(TIMEOUT_SECONDS):
        assert await qd.drain(worker) == 2
    ended = await wait_for_tasks(qd, *(task.id for task in tasks))
    assert [(task.status, task.last_error) for task in ended] == [
        ("FAILED", "the function was canceled"),
        ("COMPLETED", None),
    ]
