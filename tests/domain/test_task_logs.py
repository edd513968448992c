"""The log of a task on both engines: transitions and log lines in one order, each exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
import psycopg
import pytest

from quarterdeck.core.clock import system_now
from quarterdeck.core.ids import new_id
from quarterdeck.domain.task_logs.model import LINES_MAX, PAGE_BYTES_MAX, LogPage
from quarterdeck.domain.task_logs.operations.long_poll import LogLongPoll, LogPolls, LogWakeups, new_log_polls
from quarterdeck.domain.tasks.model.commands import Fail
from quarterdeck.domain.tasks.model.log_lines import Level
from quarterdeck.domain.tasks.model.rows import Task
from quarterdeck.engine.long_poll import Watcher
from quarterdeck.engine.wakeups import Wakeups
from tests.support.builders import ZONE
from tests.support.eventually import eventually
from tests.support.outcomes import problem_code
from tests.support.runtime import RuntimeHarness, open_runtime
from tests.support.secret_keys import NEW_KEY, cipher_of
from tests.support.task_details import TaskDetailHarness
from tests.support.tasks import TaskHarness


@pytest.fixture
async def wakeups(runtime: RuntimeHarness) -> Wakeups:
    return runtime.wakeups


@pytest.fixture
async def detail_harness(runtime: RuntimeHarness) -> TaskDetailHarness:
    task_harness = TaskHarness(runtime)
    await task_harness.register_agent()
    return TaskDetailHarness(task_harness)


async def start_task(detail_harness: TaskDetailHarness, task_id: str = "t") -> Task:
    await detail_harness.task_harness.create(task_id)
    [leased] = await detail_harness.task_harness.claim()
    return leased.task


def fail_command(task: Task, detail_harness: TaskDetailHarness, trace: str | None, *, retryable: bool = True) -> Fail:
    return Fail(
        zone_id=task.zone_id, caller=detail_harness.caller, id=task.id, attempt_token=task.attempt_token,
        error="broken", stack_trace=trace, retryable=retryable, jitter=0.0,
    )  # fmt: skip


# -- transitions and lines


async def wait_for_next_millisecond() -> None:
    """Of a transition and a line in the same millisecond, the transition comes first, whichever was written first."""
    written_at = system_now()

    async def has_passed() -> bool:
        return system_now() > written_at

    await eventually(has_passed, "the next millisecond")


async def test_transitions_and_lines_are_one_log_in_order(detail_harness: TaskDetailHarness) -> None:
    task = await start_task(detail_harness)
    await detail_harness.add_lines(task, "one", "two")
    await wait_for_next_millisecond()
    await detail_harness.task_harness.complete(task)
    expected = ["PENDING", "RUNNING", "one", "two", "COMPLETED"]
    for limit in (1, 2, 100):
        assert await detail_harness.read_log("t", limit=limit) == expected
        assert await detail_harness.read_log("t", limit=limit, oldest_first=False) == expected[::-1]
    page = await detail_harness.read_log_page(detail_harness.log_filter("t"))
    assert [entry.level for entry in page.entries] == [Level.INFO] * 5
    assert {entry.agent_id for entry in page.entries[1:]} == {"a"}
    # Transitions are read from the event log. They are not stored as lines.
    assert detail_harness.runtime.database.count("task_log_lines") == 2


async def test_log_is_filtered_by_level_and_event(detail_harness: TaskDetailHarness) -> None:
    task = await start_task(detail_harness)
    await detail_harness.add_lines(task, "grave", level=Level.ERROR, event="error")
    await detail_harness.add_lines(task, "plain")
    await wait_for_next_millisecond()
    await detail_harness.task_harness.submit(fail_command(task, detail_harness, None))
    await detail_harness.task_harness.make_available("t")
    [leased] = await detail_harness.task_harness.claim()
    await detail_harness.task_harness.submit(fail_command(leased.task, detail_harness, None, retryable=False))
    assert await detail_harness.read_log("t", level=Level.ERROR) == ["grave", "FAILED", "FAILED"]
    assert await detail_harness.read_log("t", event="error") == ["grave"]
    assert await detail_harness.read_log("t", event="log") == ["plain"]
    assert await detail_harness.read_log("t", level=Level.CRITICAL) == []
    assert await detail_harness.read_log("t", event="state_transition", level=Level.ERROR) == ["FAILED", "FAILED"]


async def test_final_failure_has_level_critical(detail_harness: TaskDetailHarness) -> None:
    await detail_harness.task_harness.create("t", max_retries=0)
    [leased] = await detail_harness.task_harness.claim()
    await detail_harness.task_harness.submit(fail_command(leased.task, detail_harness, None))
    assert await detail_harness.read_log("t", level=Level.CRITICAL) == ["FAILED"]
    assert await detail_harness.read_log("t", level=Level.ERROR) == []


async def test_stack_trace_of_a_failure_is_stored_masked(detail_harness: TaskDetailHarness) -> None:
    task = await start_task(detail_harness)
    await detail_harness.add_lines(task, "line")
    await detail_harness.task_harness.submit(fail_command(task, detail_harness, "line 1\npassword=canary"))
    [entry] = (await detail_harness.read_log_page(detail_harness.log_filter("t", event="error"))).entries
    assert (entry.level, entry.stack_trace) == (Level.ERROR, "line 1\npassword=***")
    assert entry.number == 2


# -- adding lines


async def test_only_the_current_attempt_can_add_lines(detail_harness: TaskDetailHarness) -> None:
    task = await start_task(detail_harness)
    await detail_harness.task_harness.release(task)
    assert await problem_code(detail_harness.add_lines(task, "late")) == "stale_attempt"
    [leased] = await detail_harness.task_harness.claim()
    await detail_harness.add_lines(leased.task, "mine")
    unknown = msgspec.structs.replace(task, id="unknown-task")
    assert await problem_code(detail_harness.add_lines(unknown, "line")) == "task_not_found"
    without_token = msgspec.structs.replace(leased.task, attempt_token=None)
    assert await problem_code(detail_harness.add_lines(without_token, "line")) == "attempt_token_required"
    detail_harness.caller = msgspec.structs.replace(detail_harness.caller, agent_id="b")
    assert await problem_code(detail_harness.add_lines(leased.task, "foreign")) == "stale_attempt"
    detail_harness.runtime.database.execute("update agents set status = 'TERMINATED' where id = 'a'")
    detail_harness.caller = msgspec.structs.replace(detail_harness.caller, agent_id="a")
    assert await problem_code(detail_harness.add_lines(leased.task, "terminated")) == "agent_ended"
    assert detail_harness.runtime.database.count("task_log_lines") == 1


async def test_concurrent_lines_are_numbered_without_gaps(detail_harness: TaskDetailHarness) -> None:
    task = await start_task(detail_harness)
    await asyncio.gather(*(detail_harness.add_lines(task, f"{n}a", f"{n}b") for n in range(100)))
    rows = detail_harness.runtime.database.execute("select number, message from task_log_lines order by number")
    assert [number for number, _ in rows] == [*range(1, 201)]
    # The lines of one command are consecutive.
    assert all(str(a[1])[:-1] == str(b[1])[:-1] for a, b in zip(rows[::2], rows[1::2], strict=True))


async def test_concurrent_lines_through_two_replicas_are_numbered_without_gaps(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as one, open_runtime(postgres_url) as other:
        await one.put_zone()
        task_harness = TaskHarness(one)
        await task_harness.register_agent()
        first, second = TaskDetailHarness(task_harness), TaskDetailHarness(TaskHarness(other))
        tasks = [await start_task(first, name) for name in ("t", "u")]
        requests = [harness.add_lines(task, f"{n}") for n in range(50) for harness in (first, second) for task in tasks]
        await asyncio.gather(*requests)
        for task in tasks:
            rows = one.database.execute("select number from task_log_lines where task_id = ? order by number", task.id)
            assert [number for [number] in rows] == [*range(1, 101)]


async def test_adding_a_line_does_not_wait_for_the_zone_lock(postgres_url: str) -> None:
    async with open_runtime(postgres_url) as runtime:
        await runtime.put_zone()
        task_harness = TaskHarness(runtime)
        await task_harness.register_agent()
        detail_harness = TaskDetailHarness(task_harness)
        task = await start_task(detail_harness)
        with psycopg.connect(postgres_url) as connection:
            connection.execute("select 1 from zones for update")
            await detail_harness.add_lines(task, "line")
        assert (await detail_harness.read_log("t"))[-1] == "line"


async def test_full_log_refuses_lines_but_stores_stack_traces(detail_harness: TaskDetailHarness) -> None:
    task = await start_task(detail_harness)
    await detail_harness.add_lines(task, "first")
    detail_harness.runtime.database.execute("update task_log_counts set lines = ?", LINES_MAX - 3)
    results = await asyncio.gather(
        *(detail_harness.add_lines(task, "x", "y") for _ in range(3)), return_exceptions=True
    )
    assert [getattr(result, "code", "added") for result in results] == ["added", "log_full", "log_full"]
    await detail_harness.add_lines(task, "last")
    assert await problem_code(detail_harness.add_lines(task, "none")) == "log_full"
    # A stack trace is always stored: the limit applies only to lines that agents add.
    await detail_harness.task_harness.submit(fail_command(task, detail_harness, "trace"))
    assert detail_harness.runtime.database.scalar("select lines from task_log_counts") == LINES_MAX + 1


async def test_lines_repeated_after_a_lost_response_are_stored_once(detail_harness: TaskDetailHarness) -> None:
    task = await start_task(detail_harness)
    command = detail_harness.add_lines_command(task, "once")
    assert await detail_harness.log_lane.submit(command) == await detail_harness.log_lane.submit(command)
    assert detail_harness.runtime.database.count("task_log_lines") == 1


async def test_secrets_of_the_task_are_masked_in_its_lines(detail_harness: TaskDetailHarness) -> None:
    location = (ZONE, "agent_tasks", "t", "input_context")
    encrypted = cipher_of(NEW_KEY).encrypt({"password": "canary-7"}, location)
    command = detail_harness.task_harness.create_command("t")
    content = msgspec.structs.replace(command.content, input_context=encrypted)
    await detail_harness.task_harness.submit_create(msgspec.structs.replace(command, content=content))
    [leased] = await detail_harness.task_harness.claim()
    await detail_harness.add_lines(
        leased.task, "it is canary-7", details='{"text":"canary-7","n":7}', stack_trace="at canary-7"
    )
    [row] = detail_harness.runtime.database.execute("select message, details, stack_trace from task_log_lines")
    assert row == ("it is ***", '{"text":"***","n":7}', "at ***")


async def test_page_ends_at_the_size_limit_and_the_next_continues_there(detail_harness: TaskDetailHarness) -> None:
    task = await start_task(detail_harness)
    for n in range(5):
        await detail_harness.add_lines(task, f"{n}")
    detail_harness.runtime.database.execute("update task_log_lines set size = ?", PAGE_BYTES_MAX // 3 + 1)
    await detail_harness.task_harness.complete(task)
    page = await detail_harness.read_log_page(detail_harness.log_filter("t"))
    assert [str(entry.message)[0] for entry in page.entries if entry.number] == ["0", "1", "2"]
    assert not page.is_last
    texts = [text[0] for text in await detail_harness.read_log("t")]
    assert texts == ["P", "R", "0", "1", "2", "3", "4", "C"]
    assert [text[0] for text in await detail_harness.read_log("t", oldest_first=False)] == texts[::-1]


# -- long polls


@pytest.fixture
async def log_poll(detail_harness: TaskDetailHarness, wakeups: Wakeups) -> AsyncIterator[tuple[LogLongPoll, LogPolls]]:
    polls = new_log_polls()
    engine = detail_harness.runtime.engine
    # The interval is so long that only a wake-up can end a poll in a test.
    watcher = Watcher(wakeups, polls, LogWakeups(engine, polls, 600), 600)
    watcher.start()
    yield LogLongPoll(engine, polls), polls
    polls.close()
    await watcher.stop()


def _as_async(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return condition()

    return check


async def start_long_poll(
    detail_harness: TaskDetailHarness, log_poll: tuple[LogLongPoll, LogPolls], page: LogPage, **filters: object
) -> asyncio.Task[LogPage]:
    """Start a long poll, and return when it is waiting."""
    log_filter = detail_harness.log_filter("t", position=page.position, **filters)
    reader = asyncio.create_task(log_poll[0].read_log(log_filter, 30))
    await eventually(_as_async(lambda: len(log_poll[1]) == 1), "the reader is waiting")
    return reader


async def test_long_poll_returns_on_a_line_and_on_a_transition(
    detail_harness: TaskDetailHarness, log_poll: tuple[LogLongPoll, LogPolls]
) -> None:
    task = await start_task(detail_harness)
    page = await log_poll[0].read_log(detail_harness.log_filter("t"), 30)
    assert len(page.entries) == 2
    reader = await start_long_poll(detail_harness, log_poll, page)
    await detail_harness.add_lines(task, "news")
    page = await reader
    assert [entry.message for entry in page.entries] == ["news"]
    reader = await start_long_poll(detail_harness, log_poll, page)
    await detail_harness.task_harness.complete(task)
    page = await reader
    assert [entry.new_status for entry in page.entries] == ["COMPLETED"]


async def test_long_poll_skips_each_unmatched_line_once(
    detail_harness: TaskDetailHarness, log_poll: tuple[LogLongPoll, LogPolls]
) -> None:
    task = await start_task(detail_harness)
    await detail_harness.task_harness.create("other")
    page = await detail_harness.read_log_page(detail_harness.log_filter("t"))
    reader = await start_long_poll(detail_harness, log_poll, page, level=Level.ERROR)
    [ref] = log_poll[1].keys()
    await detail_harness.add_lines(task, "plain")

    def has_moved_on() -> bool:
        polls = log_poll[1].waiting(ref)
        return bool(polls) and polls[0].request.position is not None and polls[0].request.position.number == 1

    await eventually(_as_async(has_moved_on), "the reader found no match and is waiting again")
    await detail_harness.add_lines(task, "grave", level=Level.ERROR)
    assert [entry.message for entry in (await reader).entries] == ["grave"]


async def test_long_poll_without_entries_returns_the_next_position(
    detail_harness: TaskDetailHarness, log_poll: tuple[LogLongPoll, LogPolls]
) -> None:
    task = await start_task(detail_harness)
    first = await detail_harness.read_log_page(detail_harness.log_filter("t"))
    page = await log_poll[0].read_log(detail_harness.log_filter("t", position=first.position), 0.01)
    assert page.entries == []
    await detail_harness.add_lines(task, "later")
    after = await detail_harness.read_log_page(detail_harness.log_filter("t", position=page.position))
    assert [entry.message for entry in after.entries] == ["later"]
    assert len(log_poll[1]) == 0


async def test_log_of_an_unknown_or_foreign_task_is_not_found(detail_harness: TaskDetailHarness) -> None:
    await start_task(detail_harness)
    assert await problem_code(detail_harness.read_log_page(detail_harness.log_filter(new_id()))) == "task_not_found"
    await detail_harness.runtime.put_zone("other-zone")
    other = TaskDetailHarness(detail_harness.task_harness)
    other.zone_id = "other-zone"
    assert await problem_code(other.read_log_page(other.log_filter("t"))) == "workspace_not_found"
