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
from tests.support.asking import ZONE
from tests.support.eventually import eventually
from tests.support.keel import Keel, Rigging, keel_on
from tests.support.recording import Recording
from tests.support.sealing import NEW, safe_of
from tests.support.working import Working


@pytest.fixture
async def wakes() -> Wakeups:
    return Wakeups()


@pytest.fixture
async def keel(engine_url: str, wakes: Wakeups) -> AsyncIterator[Keel]:
    async with keel_on(engine_url, Rigging(after_commit=lambda events: wakes.notify())) as laid:
        await laid.zone()
        yield laid


@pytest.fixture
async def records(keel: Keel, wakes: Wakeups) -> Recording:
    work = Working(keel)
    await work.agent()
    return Recording(work, wakes)


async def begun(records: Recording, task_id: str = "t") -> Task:
    await records.work.make(task_id)
    [leased] = await records.work.claim()
    return leased.task


async def refused(asked: Awaitable[object]) -> str:
    with pytest.raises(Problem) as refusal:
        await asked
    return refusal.value.code


def failing(task: Task, records: Recording, trace: str | None, *, retryable: bool = True) -> Fail:
    return Fail(
        zone_id=task.zone_id, caller=records.caller, id=task.id, attempt_token=task.attempt_token, error="broken",
        stack_trace=trace, retryable=retryable, jitter=0.0,
    )  # fmt: skip


# -- one log of two halves


async def test_what_happened_and_what_was_said_are_one_log(records: Recording) -> None:
    task = await begun(records)
    await records.say(task, "one", "two")
    await records.work.complete(task)
    story = ["PENDING", "RUNNING", "one", "two", "COMPLETED"]
    for limit in (1, 2, 100):
        assert await records.read("t", limit=limit) == story
        assert await records.read("t", limit=limit, oldest_first=False) == story[::-1]
    page = await records.page(records.reading("t"))
    assert [entry.level for entry in page.entries] == [Level.INFO] * 5
    assert {entry.agent_id for entry in page.entries[1:]} == {"a"}
    # What is read comes from the one log that there is: of transitions nothing is stored here.
    assert records.keel.side.count("task_log_lines") == 2


async def test_a_log_is_filtered_by_level_and_by_event(records: Recording) -> None:
    task = await begun(records)
    await records.say(task, "grave", level=Level.ERROR, event="error")
    await records.say(task, "plain")
    await records.work.moved(failing(task, records, None))
    await records.work.due("t")
    [leased] = await records.work.claim()
    await records.work.moved(failing(leased.task, records, None, retryable=False))
    assert await records.read("t", level=Level.ERROR) == ["grave", "FAILED", "FAILED"]
    assert await records.read("t", event="error") == ["grave"]
    assert await records.read("t", event="log") == ["plain"]
    assert await records.read("t", level=Level.CRITICAL) == []
    assert await records.read("t", event="state_transition", level=Level.ERROR) == ["FAILED", "FAILED"]


async def test_the_last_of_all_failures_is_critical(records: Recording) -> None:
    await records.work.make("t", max_retries=0)
    [leased] = await records.work.claim()
    await records.work.moved(failing(leased.task, records, None))
    assert await records.read("t", level=Level.CRITICAL) == ["FAILED"]
    assert await records.read("t", level=Level.ERROR) == []


async def test_where_an_attempt_failed_is_kept_with_it(records: Recording) -> None:
    task = await begun(records)
    await records.say(task, "said")
    await records.work.moved(failing(task, records, "line 1\npassword=canary"))
    [entry] = (await records.page(records.reading("t", event="error"))).entries
    assert (entry.level, entry.stack_trace) == (Level.ERROR, "line 1\npassword=***")
    assert entry.number == 2


# -- who says something


async def test_only_the_present_attempt_is_heard(records: Recording) -> None:
    task = await begun(records)
    await records.work.release(task)
    assert await refused(records.say(task, "late")) == "stale_attempt"
    [leased] = await records.work.claim()
    await records.say(leased.task, "mine")
    nobody = msgspec.structs.replace(task, id="nobody")
    assert await refused(records.say(nobody, "what")) == "task_not_found"
    without = msgspec.structs.replace(leased.task, attempt_token=None)
    assert await refused(records.say(without, "what")) == "attempt_token_required"
    records.caller = msgspec.structs.replace(records.caller, agent_id="b")
    assert await refused(records.say(leased.task, "foreign")) == "stale_attempt"
    records.keel.side.run("update agents set status = 'TERMINATED' where id = 'a'")
    records.caller = msgspec.structs.replace(records.caller, agent_id="a")
    assert await refused(records.say(leased.task, "gone")) == "agent_ended"
    assert records.keel.side.count("task_log_lines") == 1


async def test_lines_of_many_at_once_are_numbered_without_gaps(records: Recording) -> None:
    task = await begun(records)
    await asyncio.gather(*(records.say(task, f"{n}a", f"{n}b") for n in range(100)))
    rows = records.keel.side.run("select number, message from task_log_lines order by number")
    assert [number for number, _ in rows] == [*range(1, 201)]
    # What is said together stands together.
    assert all(str(a[1])[:-1] == str(b[1])[:-1] for a, b in zip(rows[::2], rows[1::2], strict=True))


async def test_replicas_that_add_lines_at_once_number_them_without_gaps(postgres_url: str) -> None:
    async with keel_on(postgres_url) as one, keel_on(postgres_url) as other:
        await one.zone()
        work = Working(one)
        await work.agent()
        first, second = Recording(work), Recording(Working(other))
        tasks = [await begun(first, name) for name in ("t", "u")]
        said = [each.say(task, f"{n}") for n in range(50) for each in (first, second) for task in tasks]
        await asyncio.gather(*said)
        for task in tasks:
            rows = one.side.run("select number from task_log_lines where task_id = ? order by number", task.id)
            assert [number for [number] in rows] == [*range(1, 101)]


async def test_a_line_does_not_wait_for_whoever_has_the_zone(postgres_url: str) -> None:
    async with keel_on(postgres_url) as keel:
        await keel.zone()
        work = Working(keel)
        await work.agent()
        records = Recording(work)
        task = await begun(records)
        with psycopg.connect(postgres_url) as outsider:
            outsider.execute("select 1 from zones for update")
            await records.say(task, "meanwhile")
        assert (await records.read("t"))[-1] == "meanwhile"


async def test_a_log_has_an_end_and_says_so(records: Recording) -> None:
    task = await begun(records)
    await records.say(task, "first")
    records.keel.side.run("update task_log_counts set lines = ?", LINES_MAX - 3)
    outcomes = await asyncio.gather(*(records.say(task, "x", "y") for _ in range(3)), return_exceptions=True)
    assert [getattr(each, "code", "said") for each in outcomes] == ["said", "log_full", "log_full"]
    await records.say(task, "last")
    assert await refused(records.say(task, "none")) == "log_full"
    # Where it failed is what somebody will look for: the bound is on what agents say by themselves.
    await records.work.moved(failing(task, records, "trace"))
    assert records.keel.side.one("select lines from task_log_counts") == LINES_MAX + 1


async def test_what_is_tried_again_after_a_commit_that_nobody_heard_of_is_there_once(records: Recording) -> None:
    task = await begun(records)
    ask = records.saying(task, "once")
    assert await records.lines.submit(ask) == await records.lines.submit(ask)
    assert records.keel.side.count("task_log_lines") == 1


async def test_the_secrets_of_a_task_are_struck_out_of_what_is_said_of_it(records: Recording) -> None:
    about = (ZONE, "agent_tasks", "t", "input_context")
    sealed = safe_of(NEW).encrypt({"password": "canary-7"}, about)
    asked = records.work.asking("t")
    content = msgspec.structs.replace(asked.content, input_context=sealed)
    await records.work.creation(msgspec.structs.replace(asked, content=content))
    [leased] = await records.work.claim()
    await records.say(leased.task, "it is canary-7", details='{"said":"canary-7","n":7}', stack_trace="at canary-7")
    [row] = records.keel.side.run("select message, details, stack_trace from task_log_lines")
    assert row == ("it is ***", '{"said":"***","n":7}', "at ***")


async def test_a_page_of_long_lines_ends_where_it_is_full_and_goes_on_from_there(records: Recording) -> None:
    task = await begun(records)
    for n in range(5):
        await records.say(task, f"{n}")
    records.keel.side.run("update task_log_lines set size = ?", PAGE_BYTES_MAX // 3 + 1)
    await records.work.complete(task)
    page = await records.page(records.reading("t"))
    assert [str(entry.message)[0] for entry in page.entries if entry.number] == ["0", "1", "2"]
    assert not page.is_last
    whole = [text[0] for text in await records.read("t")]
    assert whole == ["P", "R", "0", "1", "2", "3", "4", "C"]
    assert [text[0] for text in await records.read("t", oldest_first=False)] == whole[::-1]


# -- following


@pytest.fixture
async def following(records: Recording, wakes: Wakeups) -> AsyncIterator[tuple[LogLongPoll, LogPolls]]:
    waiting = new_log_polls()
    engine = records.keel.engine
    # So long an interval that only a wake can be what is heard of.
    lookout = Watcher(wakes, waiting, LogWakeups(engine, waiting, 600), 600)
    lookout.start()
    yield LogLongPoll(engine, waiting), waiting
    waiting.close()
    await lookout.stop()


def _holds(condition: Callable[[], bool]) -> Callable[[], Awaitable[bool]]:
    async def asked() -> bool:
        return condition()

    return asked


async def follow(
    records: Recording, following: tuple[LogLongPoll, LogPolls], page: LogPage, **wanted: object
) -> asyncio.Task[LogPage]:
    """Waits for more, and is surely waiting."""
    asked = records.reading("t", position=page.position, **wanted)
    reader = asyncio.create_task(following[0].page(asked, 30))
    await eventually(_holds(lambda: len(following[1]) == 1), "somebody waits")
    return reader


async def test_whoever_follows_is_woken_by_a_line_and_by_a_transition(
    records: Recording, following: tuple[LogLongPoll, LogPolls]
) -> None:
    task = await begun(records)
    page = await following[0].page(records.reading("t"), 30)
    assert len(page.entries) == 2
    reader = await follow(records, following, page)
    await records.say(task, "news")
    page = await reader
    assert [entry.message for entry in page.entries] == ["news"]
    reader = await follow(records, following, page)
    await records.work.complete(task)
    page = await reader
    assert [entry.new_status for entry in page.entries] == ["COMPLETED"]


async def test_whoever_follows_is_not_woken_for_what_it_does_not_want_again_and_again(
    records: Recording, following: tuple[LogLongPoll, LogPolls]
) -> None:
    task = await begun(records)
    await records.work.make("other")
    page = await records.page(records.reading("t"))
    reader = await follow(records, following, page, level=Level.ERROR)
    [ref] = following[1].keys()
    await records.say(task, "plain")

    def has_looked() -> bool:
        waiting = following[1].waiting(ref)
        return bool(waiting) and waiting[0].claim.position is not None and waiting[0].claim.position.number == 1

    await eventually(_holds(has_looked), "it has looked in vain, and waits again")
    await records.say(task, "grave", level=Level.ERROR)
    assert [entry.message for entry in (await reader).entries] == ["grave"]


async def test_whoever_follows_in_vain_is_told_where_to_go_on(
    records: Recording, following: tuple[LogLongPoll, LogPolls]
) -> None:
    task = await begun(records)
    first = await records.page(records.reading("t"))
    page = await following[0].page(records.reading("t", position=first.position), 0.01)
    assert page.entries == []
    await records.say(task, "later")
    after = await records.page(records.reading("t", position=page.position))
    assert [entry.message for entry in after.entries] == ["later"]
    assert len(following[1]) == 0


async def test_the_log_of_a_foreign_task_is_not_there(records: Recording) -> None:
    await begun(records)
    assert await refused(records.page(records.reading(new_id()))) == "task_not_found"
    await records.keel.zone("elsewhere")
    other = Recording(records.work)
    other.zone_id = "elsewhere"
    assert await refused(other.page(other.reading("t"))) == "workspace_not_found"
