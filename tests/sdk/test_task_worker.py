"""A task worker: what its functions are given, what becomes of what they do, and how many calls that takes."""

from __future__ import annotations

import asyncio
import contextlib
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
from quarterdeck.sdk.task_worker import claims
from quarterdeck.sdk.work_types import Task
from quarterdeck.testing import Server
from tests.sdk.fake_servers import collect, run_cutting_proxy, sdk_client
from tests.sdk.worker_support import TIMEOUT_SECONDS, count_calls
from tests.support.zone import FreshZone

KIND = "research"


@pytest.fixture
async def qd() -> AsyncIterator[Server]:
    async with testing.server() as server:
        yield server


@contextlib.asynccontextmanager
async def working(worker: TaskWorker) -> AsyncIterator[None]:
    """While the worker works; stopped, and its failure raised, at the end."""
    running = asyncio.create_task(worker.run())
    registered = asyncio.create_task(worker.until_registered())
    try:
        await asyncio.wait([running, registered], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        yield
    finally:
        registered.cancel()
        worker.stop()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await running


async def many(client: Quarterdeck, number: int) -> list[str]:
    asked: list[NewTask] = [
        {"title": f"number {n}", "task_type": KIND, "input_context": {"n": n}} for n in range(number)
    ]
    made = await client.tasks.create_many(asked)
    return [task.id for task in made if isinstance(task, Task)]


async def done(client: Quarterdeck, *task_ids: str) -> list[Task]:
    return [*await client.tasks.wait(task_ids, timeout=TIMEOUT_SECONDS)]


# -- what a function is given, and what becomes of what it does --------------------------------------------------------


async def test_a_result_a_summary_and_costs_are_kept(qd: Server) -> None:
    worker = TaskWorker(qd, "dev-1")

    @worker.task("plain")
    async def plain(task: Attempt) -> object:
        return {"was": task.input, "title": task.title, "first": task.attempt}

    @worker.task("rich")
    async def rich(task: Attempt) -> object:
        return Done([1, 2], summary="two of them", costs=[Cost("m", usd=0.25)])

    @worker.task("nothing")
    async def nothing(task: Attempt) -> None: ...

    made = [
        await qd.tasks.create("a", "plain", input_context={"x": {"$secret": "s3cret"}}),
        await qd.tasks.create("b", "rich"),
        await qd.tasks.create("c", "nothing"),
    ]
    assert await qd.drain(worker) == 3
    a, b, c = await done(qd, *(task.id for task in made))
    assert isinstance(a.output_result, dict)
    assert (a.output_result["title"], a.output_result["first"]) == ("a", 1)
    assert (b.output_result, b.summary, b.costs.usd) == ([1, 2], "two of them", 0.25)
    assert (c.status, c.output_result) == ("COMPLETED", None)


@pytest.mark.parametrize(
    ("raised", "status", "is_over"),
    [
        (ValueError("no"), "FAILED", False),
        (Fail("no"), "FAILED", False),
        (Fail("no", retryable=False), "FAILED", True),
        (Fatal("no"), "FAILED", True),
        (Canceled("by itself"), "FAILED", False),
    ],
)
async def test_what_a_function_raises_fails_its_attempt(
    qd: Server, raised: Exception, status: str, is_over: bool
) -> None:
    worker = TaskWorker(qd, "dev-1")

    @worker.task(KIND)
    async def fails(task: Attempt) -> None:
        raise raised

    task = await qd.tasks.create("it", KIND)
    assert await qd.drain(worker) == 1
    found = await qd.tasks.get(task.id)
    assert (found.status, found.is_over, found.retry_count) == (status, is_over, 0 if is_over else 1)
    assert str(raised) in (found.last_error or "")


async def test_a_task_that_is_given_back_has_not_been_tried(qd: Server) -> None:
    worker, tries = TaskWorker(qd, "dev-1"), [0]

    @worker.task(KIND)
    async def hesitates(task: Attempt) -> None:
        tries[0] += 1
        if tries[0] == 1:
            raise Release

    task = await qd.tasks.create("it", KIND, max_retries=0)
    assert await qd.drain(worker) == 2
    found = await qd.tasks.get(task.id)
    assert (found.status, found.retry_count, tries) == ("COMPLETED", 0, [2])


async def test_another_attempt_goes_on_from_the_checkpoint_after_its_backoff(qd: Server) -> None:
    worker, seen = TaskWorker(qd, "dev-1"), list[tuple[int, object]]()

    @worker.task(KIND)
    async def steps(task: Attempt) -> None:
        seen.append((task.attempt, task.checkpoint.get("step")))
        await task.progress(10 * task.attempt, f"step {task.attempt}", checkpoint={"step": task.attempt})
        if task.attempt < 3:
            raise ValueError("not yet")

    task = await qd.tasks.create("it", KIND, retry_backoff_seconds=60)
    for _ in range(3):
        await qd.drain(worker)
        assert await qd.drain(worker) == 0  # it waits for its moment
        qd.clock.advance(minutes=10)
    assert seen == [(1, None), (2, 1), (3, 2)]
    assert (await qd.tasks.get(task.id)).checkpoint_data == {"step": 3}


async def test_a_worker_that_is_begun_again_has_at_once_what_the_one_before_it_lost(qd: Server) -> None:
    before, after, seen = TaskWorker(qd, "dev-1"), TaskWorker(qd, "dev-1"), list[int]()

    @after.task(KIND)
    async def goes_on(task: Attempt) -> None:
        seen.append(task.attempt)

    task = await qd.tasks.create("it", KIND, retry_backoff_seconds=0)
    assert await qd.drain(before) == 0
    # Killed, it would never say another word about what it was given.
    assert await qd.tasks.claim("dev-1", "its claim")
    await qd.drain(after)
    assert (await qd.drain(after), seen) == (1, [2])
    assert (await qd.tasks.get(task.id)).status == "COMPLETED"


async def test_plain_functions_run_in_threads_and_say_the_same(qd: Server) -> None:
    worker, threads = TaskWorker(qd, "dev-1", concurrency=3), set[str]()
    together = threading.Barrier(3)

    @worker.task(KIND)
    def plain(task: ThreadAttempt) -> int:
        threads.add(threading.current_thread().name)
        together.wait(TIMEOUT_SECONDS)
        task.progress(50, "half")
        task.log("WARN", "half of it", n=task.input["n"])
        task.check()
        return 7

    ids = await many(qd, 3)
    assert await qd.drain(worker) == 3
    ended = await done(qd, *ids)
    assert [task.output_result for task in ended] == [7, 7, 7]
    assert len(threads) == 3
    assert [line.message for line in await collect(qd.tasks.logs(ids[0], level="WARN"))] == ["half of it"]


async def test_a_result_that_cannot_be_kept_fails_its_task_and_no_other(qd: Server) -> None:
    worker = TaskWorker(qd, "dev-1")

    @worker.task(KIND)
    async def odd(task: Attempt) -> object:
        return [{"fine": 1}, "\x00", object(), "x" * (1024 * 1024)][int(str(task.input["n"]))]

    ids = await many(qd, 4)
    assert await qd.drain(worker) == 4
    ended = await done(qd, *ids)
    assert [task.status for task in ended] == ["COMPLETED", "FAILED", "FAILED", "FAILED"]
    assert all(task.is_over for task in ended)


async def test_types_that_nobody_else_does_go_to_the_function_for_all_others(qd: Server) -> None:
    worker = TaskWorker(qd, "dev-1")

    @worker.task("known", capabilities=["python"])
    async def known(task: Attempt) -> str:
        return "known"

    @worker.task()
    async def other(task: Attempt) -> str:
        return "other"

    with pytest.raises(ValueError, match="already"):
        worker.task("known")(known)
    with pytest.raises(TypeError, match="nothing else"):
        worker.task("odd")(lambda task, more: None)
    one = await qd.tasks.create("a", "known", required_capabilities=["python"])
    two = await qd.tasks.create("b", "whatever")
    await qd.drain(worker)
    assert [task.output_result for task in await done(qd, one.id, two.id)] == ["known", "other"]
    assert (await qd.agents.get("dev-1")).capabilities == ["python"]


# -- its end, before its time ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "pause"])
async def test_a_function_hears_of_the_cancellation_with_the_next_heartbeat(qd: Server, verb: str) -> None:
    worker, begun, why = TaskWorker(qd, "dev-1"), asyncio.Event(), list[str | None]()

    @worker.task(KIND)
    async def waits(task: Attempt) -> str:
        begun.set()
        await task.until_cancelled()
        why.append(task.why_cancelled)
        task.check()
        return "nobody hears of it"

    task = await qd.tasks.create("it", KIND)
    async with working(worker):
        await asyncio.wait_for(begun.wait(), TIMEOUT_SECONDS)
        await (qd.tasks.cancel if verb == "cancel" else qd.tasks.pause)(task.id)
        await worker.beat()
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await worker.until_idle()
    found = await qd.tasks.get(task.id)
    assert (found.status, found.output_result) == ("ABORTED" if verb == "cancel" else "PAUSED", None)
    assert why == ["canceled" if verb == "cancel" else "paused"]


async def test_an_attempt_whose_agent_was_lost_does_not_count_and_its_progress_says_so(qd: Server) -> None:
    worker, begun, goes_on = TaskWorker(qd, "dev-1"), asyncio.Event(), asyncio.Event()
    told = list[str]()

    @worker.task(KIND)
    async def slow(task: Attempt) -> str:
        begun.set()
        await goes_on.wait()
        try:
            await task.progress(50)
        except Canceled as stopped:
            told.append(str(stopped))
        return "too late"

    task = await qd.tasks.create("it", KIND, retry_backoff_seconds=0)
    async with working(worker):
        await asyncio.wait_for(begun.wait(), TIMEOUT_SECONDS)
        worker.stop()  # so that it does not take the task again
        qd.clock.advance(hours=1)
        await qd.settle()
        assert (await qd.agents.get("dev-1")).status_reason == "stale"
        goes_on.set()
    found = await qd.tasks.get(task.id)
    assert (found.status, found.output_result, found.retry_count) == ("PENDING", None, 1)
    assert len(told) == 1


async def test_a_worker_that_stops_finishes_what_runs_and_gives_the_rest_back(qd: Server) -> None:
    options = WorkerOptions(prefetch=0)
    worker, begun, goes_on = (TaskWorker(qd, "dev-1", concurrency=2, options=options), asyncio.Event(), asyncio.Event())

    @worker.task(KIND)
    async def slow(task: Attempt) -> str:
        begun.set()
        await goes_on.wait()
        return "done"

    ids = await many(qd, 5)
    async with working(worker):
        await asyncio.wait_for(begun.wait(), TIMEOUT_SECONDS)
        assert (await qd.agents.get("dev-1")).held_tasks <= 2
        worker.stop()
        goes_on.set()
    found = [await qd.tasks.get(each) for each in ids]
    assert sorted(task.status for task in found) == ["COMPLETED"] * 2 + ["PENDING"] * 3
    assert {task.retry_count for task in found} == {0}
    assert (await qd.agents.get("dev-1")).held_tasks == 0


async def test_what_does_not_end_within_the_grace_is_given_back_without_counting(qd: Server) -> None:
    worker, begun = TaskWorker(qd, "dev-1", options=WorkerOptions(grace=0.05)), asyncio.Event()

    @worker.task(KIND)
    async def never_ends(task: Attempt) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = await qd.tasks.create("it", KIND)
    async with working(worker):
        await asyncio.wait_for(begun.wait(), TIMEOUT_SECONDS)
    found = await qd.tasks.get(task.id)
    assert (found.status, found.retry_count) == ("PENDING", 0)


async def test_an_agent_that_is_terminated_ends_its_worker_and_what_runs_for_it(qd: Server) -> None:
    worker, begun = TaskWorker(qd, "dev-1"), asyncio.Event()

    @worker.task(KIND)
    async def waits(task: Attempt) -> None:
        begun.set()
        await task.until_cancelled()
        task.check()

    task = await qd.tasks.create("it", KIND)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(begun.wait(), TIMEOUT_SECONDS)
    await qd.agents.terminate("dev-1")
    with pytest.raises(Conflict, match="terminated"):
        await worker.beat()
    await asyncio.wait_for(running, TIMEOUT_SECONDS)
    assert (await qd.tasks.get(task.id)).status == "ABORTED"


async def test_an_agent_that_is_to_end_ends_with_its_last_task_and_its_worker_in_peace(qd: Server) -> None:
    worker, begun, goes_on = TaskWorker(qd, "dev-1", options=WorkerOptions(grace=0.0)), *_two_events()

    @worker.task(KIND)
    async def slow(task: Attempt) -> str:
        begun.set()
        await goes_on.wait()
        return "done"

    task = await qd.tasks.create("it", KIND)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(begun.wait(), TIMEOUT_SECONDS)
    await qd.agents.terminate("dev-1", graceful=True)
    later = await qd.tasks.create("another", KIND)  # by which its claims hear of it
    goes_on.set()
    await asyncio.wait_for(running, TIMEOUT_SECONDS)
    assert (await qd.tasks.get(task.id)).output_result == "done"
    assert (await qd.tasks.get(later.id)).status == "PENDING"
    assert (await qd.agents.get("dev-1")).status == "TERMINATED"


def _two_events() -> tuple[asyncio.Event, asyncio.Event]:
    return asyncio.Event(), asyncio.Event()


# -- over the wire -----------------------------------------------------------------------------------------------------


async def test_hundreds_of_tasks_take_few_calls(zone: FreshZone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "CLAIM_MAX", 50)
    async with run_cutting_proxy(zone.server.url) as way, sdk_client(zone, way.url) as qd:
        worker = TaskWorker(qd, "dev-1", concurrency=4)

        @worker.task(KIND)
        async def quick(task: Attempt) -> None: ...

        async with sdk_client(zone) as other:
            ids = await many(other, 400)
            async with working(worker):
                assert {task.status for task in await done(other, *ids)} == {"COMPLETED"}
        assert count_calls(way.requests, b"/claim") <= 40
        assert count_calls(way.requests, b"/agent-tasks/complete") <= 40


async def test_lost_answers_to_claims_and_reports_lose_and_double_nothing(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as way, sdk_client(zone, way.url) as qd, sdk_client(zone) as other:
        worker, seen = TaskWorker(qd, "dev-1", concurrency=2), list[str]()

        @worker.task(KIND)
        async def quick(task: Attempt) -> None:
            seen.append(task.id)

        ids = await many(other, 20)
        way.cut_next(b"/claim", b"/agent-tasks/complete")
        async with working(worker):
            ended = await done(other, *ids)
        assert {task.status for task in ended} == {"COMPLETED"}
        assert sorted(seen) == sorted(ids)
        assert way.cut_count == 2


async def test_what_an_attempt_costs_is_charged_once_although_the_answer_was_lost(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as way, sdk_client(zone, way.url) as qd, sdk_client(zone) as other:
        worker = TaskWorker(qd, "dev-1")

        @worker.task(KIND)
        async def dear(task: Attempt) -> None:
            for _ in range(2):
                await task.progress(costs=[Cost("opus", usd=0.5)])

        [made] = await many(other, 1)
        way.cut_next(b"/agent-tasks/progress")
        async with working(worker):
            [ended] = await done(other, made)
        assert (way.cut_count, ended.costs.usd) == (1, 1.0)


async def test_a_worker_outlives_its_server(zone: FreshZone) -> None:
    async with run_cutting_proxy(zone.server.url) as way, sdk_client(zone, way.url) as qd, sdk_client(zone) as other:
        described = AgentOptions(heartbeat_interval_seconds=1)
        worker = TaskWorker(qd, "dev-1", concurrency=2, options=WorkerOptions(described=described))
        begun, goes_on = asyncio.Event(), asyncio.Event()

        @worker.task(KIND)
        async def slow(task: Attempt) -> None:
            begun.set()
            await goes_on.wait()

        [first] = await many(other, 1)
        async with working(worker):
            await asyncio.wait_for(begun.wait(), TIMEOUT_SECONDS)
            way.become_unavailable()
            goes_on.set()
            [second] = await many(other, 1)
            way.is_unavailable = False
            assert {task.status for task in await done(other, first, second)} == {"COMPLETED"}
