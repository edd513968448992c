"""The log of a task, on both engines: what happened and what was said, in one order, and nothing of it twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import psycopg
import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.tasks.model.commands import Fail
from quarterdeck.domain.tasks.model.log_types import LINES_MAX, PAGE_BYTES_MAX, Level, LogPage
from quarterdeck.domain.tasks.model.rows import Task
from quarterdeck.domain.tasks.operations.log_long_poll import LogLongPoll, LogPolls, LogWakeups, new_log_polls
from quarterdeck.engine.long_poll import Watcher
from quarterdeck.engine.wakeups import Wakeups
from tests.support.builders import ZONE
from tests.support.eventually import eventually
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime
from tests.support.secret_rotation import NEW_KEY, cipher_of
from tests.support.task_details import TaskDetailHarness
from tests.support.tasks import TaskHarness


@pytest.fixture
async def wakeups() -> Wakeups:
    return Wakeups()


@pytest.fixture
async def runtime(engine_url: str, wakeups: Wakeups) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(engine_url, RuntimeOptions(after_commit=lambda events: wakeups.notify())) as laid:
        await laid.put_zone()
        yield laid


@pytest.fixture
async def detail_harness(runtime: RuntimeHarness, wakeups: Wakeups) -> TaskDetailHarness:
    work = TaskHarness(runtime)
    await work.register_agent()
    return TaskDetailHarness(work, wakeups)


async def begun(records: TaskDetailHarness, task_id: str = "t") -> Task:
    await records.task_harness.create(task_id)
    [leased] = await records.task_harness.claim()
    return leased.task


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await asked
    return refusal.value.code


def failing(task: Task, records: TaskDetailHarness, trace: str | None, *, retryable: bool = True) -> Fail:
    return Fail(
        zone_id=task.zone_id, caller=records.caller, id=task.id, attempt_token=task.attempt_token, error="broken",
        stack_trace=trace, retryable=retryable, jitter=0.0,
    )  # fmt: skip


# -- one log of two halves


async def test_what_happened_and_what_was_said_are_one_log(detail_harness: TaskDetailHarness) -> None:
    task = await begun(detail_harness)
    await detail_harness.add_lines(task, "one", "two")
    await detail_harness.task_harness.complete(task)
    story = ["PENDING", "RUNNING", "one", "two", "COMPLETED"]
    for limit in (1, 2, 100):
        assert await detail_harness.read_log("t", limit=limit) == story
        assert await detail_harness.read_log("t", limit=limit, oldest_first=False) == story[::-1]
    page = await detail_harness.read_log_page(detail_harness.log_filter("t"))
    assert [entry.level for entry in page.entries] == [Level.INFO] * 5
    assert {entry.agent_id for entry in page.entries[1:]} == {"a"}
    # What is read comes from the one log that there is: of transitions nothing is stored here.
    assert detail_harness.runtime.database.count("task_log_lines") == 2


async def test_a_log_is_filtered_by_level_and_by_event(detail_harness: TaskDetailHarness) -> None:
    task = await begun(detail_harness)
    await detail_harness.add_lines(task, "grave", level=Level.ERROR, event="error")
    await detail_harness.add_lines(task, "plain")
    await detail_harness.task_harness.submit(failing(task, detail_harness, None))
    await detail_harness.task_harness.make_available("t")
    [leased] = await detail_harness.task_harness.claim()
    await detail_harness.task_harness.submit(failing(leased.task, detail_harness, None, retryable=False))
    assert await detail_harness.read_log("t", level=Level.ERROR) == ["grave", "FAILED", "FAILED"]
    assert await detail_harness.read_log("t", event="error") == ["grave"]
    assert await detail_harness.read_log("t", event="log") == ["plain"]
    assert await detail_harness.read_log("t", level=Level.CRITICAL) == []
    assert await detail_harness.read_log("t", event="state_transition", level=Level.ERROR) == ["FAILED", "FAILED"]


async def test_the_last_of_all_failures_is_critical(detail_harness: TaskDetailHarness) -> None:
    await detail_harness.task_harness.create("t", max_retries=0)
    [leased] = await detail_harness.task_harness.claim()
    await detail_harness.task_harness.submit(failing(leased.task, detail_harness, None))
    assert await detail_harness.read_log("t", level=Level.CRITICAL) == ["FAILED"]
    assert await detail_harness.read_log("t", level=Level.ERROR) == []


async def test_where_an_attempt_failed_is_kept_with_it(detail_harness: TaskDetailHarness) -> None:
    task = await begun(detail_harness)
    await detail_harness.add_lines(task, "said")
    await detail_harness.task_harness.submit(failing(task, detail_harness, "line 1\npassword=canary"))
    [entry] = (await detail_harness.read_log_page(detail_harness.log_filter("t", event="error"))).entries
    assert (entry.level, entry.stack_trace) == (Level.ERROR, "line 1\npassword=***")
    assert entry.number == 2


# -- who says something


async def test_only_the_present_attempt_is_heard(detail_harness: TaskDetailHarness) -> None:
    task = await begun(detail_harness)
    await detail_harness.task_harness.release(task)
    assert await refused(detail_harness.add_lines(task, "late")) == "stale_attempt"
    [leased] = await detail_harness.task_harness.claim()
    await detail_harness.add_lines(leased.task, "mine")
    nobody = msgspec.structs.replace(task, id="nobody")
    assert await refused(detail_harness.add_lines(nobody, "what")) == "task_not_found"
    without = msgspec.structs.replace(leased.task, attempt_token=None)
    assert await refused(detail_harness.add_lines(without, "what")) == "attempt_token_required"
    detail_harness.caller = msgspec.structs.replace(detail_harness.caller, agent_id="b")
    assert await refused(detail_harness.add_lines(leased.task, "foreign")) == "stale_attempt"
    detail_harness.runtime.database.execute("update agents set status = 'TERMINATED' where id = 'a'")
    detail_harness.caller = msgspec.structs.replace(detail_harness.caller, agent_id="a")
    assert await refused(detail_harness.add_lines(leased.task, "gone")) == "agent_ended"
    assert detail_harness.runtime.database.count("task_log_lines") == 1


async def test_lines_of_many_at_once_are_numbered_without_gaps(detail_harness: TaskDetailHarness) -> None:
    task = await begun(detail_harness)
    await asyncio.gather(*(detail_harness.add_lines(task, f"{n}a", f"{n}b") for n in range(100)))
    rows = detail_harness.runtime.database.execute("select number, message from task_log_lines order by number")
    assert [number for number, _ in rows] == [*range(1, 201)]
    # What is said together stands together.
    assert all(str(a[1])[:-1] == str(b[1])[:-1] for a, b in zip(rows[::2], rows[1::2], strict=True))


async def test_replicas_that_add_lines_at_once_number_them_without_gaps(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as one, open_runtime(postgres_url) as other:
        await one.put_zone()
        work = TaskHarness(one)
        await work.register_agent()
        first, second = TaskDetailHarness(work), TaskDetailHarness(TaskHarness(other))
        tasks = [await begun(first, name) for name in ("t", "u")]
        said = [each.add_lines(task, f"{n}") for n in range(50) for each in (first, second) for task in tasks]
        await asyncio.gather(*said)
        for task in tasks:
            rows = one.database.execute("select number from task_log_lines where task_id = ? order by number", task.id)
            assert [number for [number] in rows] == [*range(1, 101)]


async def test_a_line_does_not_wait_for_whoever_has_the_zone(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as keel:
        await keel.put_zone()
        work = TaskHarness(keel)
        await work.register_agent()
        records = TaskDetailHarness(work)
        task = await begun(records)
        with psycopg.connect(postgres_url) as outsider:
            outsider.execute("select 1 from zones for update")
            await records.add_lines(task, "meanwhile")
        assert (await records.read_log("t"))[-1] == "meanwhile"


async def test_a_log_has_an_end_and_says_so(detail_harness: TaskDetailHarness) -> None:
    task = await begun(detail_harness)
    await detail_harness.add_lines(task, "first")
    detail_harness.runtime.database.execute("update task_log_counts set lines = ?", LINES_MAX - 3)
    outcomes = await asyncio.gather(
        *(detail_harness.add_lines(task, "x", "y") for _ in range(3)), return_exceptions=True
    )
    assert [getattr(each, "code", "said") for each in outcomes] == ["said", "log_full", "log_full"]
    await detail_harness.add_lines(task, "last")
    assert await refused(detail_harness.add_lines(task, "none")) == "log_full"
    # Where it failed is what somebody will look for: the bound is on what agents say by themselves.
    await detail_harness.task_harness.submit(failing(task, detail_harness, "trace"))
    assert detail_harness.runtime.database.scalar("select lines from task_log_counts") == LINES_MAX + 1


async def test_what_is_tried_again_after_a_commit_that_nobody_heard_of_is_there_once(
    detail_harness: TaskDetailHarness,
) -> None:
    task = await begun(detail_harness)
    ask = detail_harness.add_lines_command(task, "once")
    assert await detail_harness.log_lane.submit(ask) == await detail_harness.log_lane.submit(ask)
    assert detail_harness.runtime.database.count("task_log_lines") == 1


async def test_the_secrets_of_a_task_are_struck_out_of_what_is_said_of_it(detail_harness: TaskDetailHarness) -> None:
    about = (ZONE, "agent_tasks", "t", "input_context")
    sealed = cipher_of(NEW_KEY).encrypt({"password": "canary-7"}, about)
    asked = detail_harness.task_harness.create_command("t")
    content = msgspec.structs.replace(asked.content, input_context=sealed)
    await detail_harness.task_harness.submit_create(msgspec.structs.replace(asked, content=content))
    [leased] = await detail_harness.task_harness.claim()
    await detail_harness.add_lines(
        leased.task, "it is canary-7", details='{"said":"canary-7","n":7}', stack_trace="at canary-7"
    )
    [row] = detail_harness.runtime.database.execute("select message, details, stack_trace from task_log_lines")
    assert row == ("it is ***", '{"said":"***","n":7}', "at ***")


async def test_a_page_of_long_lines_ends_where_it_is_full_and_goes_on_from_there(
    detail_harness: TaskDetailHarness,
) -> None:
    task = await begun(detail_harness)
    for n in range(5):
        await detail_harness.add_lines(task, f"{n}")
    detail_harness.runtime.database.execute("update task_log_lines set size = ?", PAGE_BYTES_MAX // 3 + 1)
    await detail_harness.task_harness.complete(task)
    page = await detail_harness.read_log_page(detail_harness.log_filter("t"))
    assert [str(entry.message)[0] for entry in page.entries if entry.number] == ["0", "1", "2"]
    assert not page.is_last
    whole = [text[0] for text in await detail_harness.read_log("t")]
    assert whole == ["P", "R", "0", "1", "2", "3", "4", "C"]
    assert [text[0] for text in await detail_harness.read_log("t", oldest_first=False)] == whole[::-1]


# -- following


@pytest.fixture
async def log_poll(detail_harness: TaskDetailHarness, wakeups: Wakeups) -> AsyncIterator[tuple[LogLongPoll, LogPolls]]:
    waiting = new_log_polls()
    engine = detail_harness.runtime.engine
    # So long an interval that only a wake can be what is heard of.
    lookout = Watcher(wakeups, waiting, LogWakeups(engine, waiting, 600), 600)
    lookout.start()
    yield LogLongPoll(engine, waiting), waiting
    waiting.close()
    await lookout.stop()


def _holds(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return condition()

    return asked


async def follow(
    records: TaskDetailHarness, following: tuple[LogLongPoll, LogPolls], page: LogPage, **wanted: object
) -> asyncio.Task[LogPage]:
    """Waits for more, and is surely waiting."""
    asked = records.log_filter("t", position=page.position, **wanted)
    reader = asyncio.create_task(following[0].page(asked, 30))
    await eventually(_holds(lambda: len(following[1]) == 1), "somebody waits")
    return reader


async def test_whoever_follows_is_woken_by_a_line_and_by_a_transition(
    detail_harness: TaskDetailHarness, log_poll: tuple[LogLongPoll, LogPolls]
) -> None:
    task = await begun(detail_harness)
    page = await log_poll[0].page(detail_harness.log_filter("t"), 30)
    assert len(page.entries) == 2
    reader = await follow(detail_harness, log_poll, page)
    await detail_harness.add_lines(task, "news")
    page = await reader
    assert [entry.message for entry in page.entries] == ["news"]
    reader = await follow(detail_harness, log_poll, page)
    await detail_harness.task_harness.complete(task)
    page = await reader
    assert [entry.new_status for entry in page.entries] == ["COMPLETED"]


async def test_whoever_follows_is_not_woken_for_what_it_does_not_want_again_and_again(
    detail_harness: TaskDetailHarness, log_poll: tuple[LogLongPoll, LogPolls]
) -> None:
    task = await begun(detail_harness)
    await detail_harness.task_harness.create("other")
    page = await detail_harness.read_log_page(detail_harness.log_filter("t"))
    reader = await follow(detail_harness, log_poll, page, level=Level.ERROR)
    [ref] = log_poll[1].keys()
    await detail_harness.add_lines(task, "plain")

    def has_looked() -> bool:
        waiting = log_poll[1].waiting(ref)
        return bool(waiting) and waiting[0].claim.position is not None and waiting[0].claim.position.number == 1

    await eventually(_holds(has_looked), "it has looked in vain, and waits again")
    await detail_harness.add_lines(task, "grave", level=Level.ERROR)
    assert [entry.message for entry in (await reader).entries] == ["grave"]


async def test_whoever_follows_in_vain_is_told_where_to_go_on(
    detail_harness: TaskDetailHarness, log_poll: tuple[LogLongPoll, LogPolls]
) -> None:
    task = await begun(detail_harness)
    first = await detail_harness.read_log_page(detail_harness.log_filter("t"))
    page = await log_poll[0].page(detail_harness.log_filter("t", position=first.position), 0.01)
    assert page.entries == []
    await detail_harness.add_lines(task, "later")
    after = await detail_harness.read_log_page(detail_harness.log_filter("t", position=page.position))
    assert [entry.message for entry in after.entries] == ["later"]
    assert len(log_poll[1]) == 0


async def test_the_log_of_a_foreign_task_is_not_there(detail_harness: TaskDetailHarness) -> None:
    await begun(detail_harness)
    assert await refused(detail_harness.read_log_page(detail_harness.log_filter(new_id()))) == "task_not_found"
    await detail_harness.runtime.put_zone("elsewhere")
    other = TaskDetailHarness(detail_harness.task_harness)
    other.zone_id = "elsewhere"
    assert await refused(other.read_log_page(other.log_filter("t"))) == "workspace_not_found"
