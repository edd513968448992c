"""The log of a task: what its agents say of it, and its transitions, read as one.

Transitions are not written here: they are the event log's. What an agent says stands in a table of its own, in the
order in which it was committed.

Adding a line takes no lock of the zone. A line decides nothing: it counts as said at the moment in which the task's
row was read, and whether the attempt has ended since is no matter to anybody. So agents that say much do not hold up
those who claim and complete: a line waits for nothing but other lines of the same task, whose count gives out its
number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from quarterdeck.core import redaction
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.agents.operations.authorization import Speakers, require_power
from quarterdeck.domain.tasks.model.log_types import (
    LINES_MAX,
    PAGE_BYTES_MAX,
    AddLines,
    Level,
    Line,
    LogFilter,
    LogPage,
    Place,
    SaidLine,
)
from quarterdeck.domain.tasks.model.rows import TABLE, Ref, Task
from quarterdeck.domain.tasks.queries import LINES, Q
from quarterdeck.domain.tasks.rules import errors, log_rendering
from quarterdeck.domain.tasks.rules.log_rendering import Half, Span, Transition
from quarterdeck.engine.event_log import LAST
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.secrets import About, Safe
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound, pieces

Batch = list[tuple[object, ...]]
READ = "tasks.read"
WORK = "tasks.work"
WITHOUT_BOUND = 2**53
FIRST_PLACE = Place(0, 0)
LAST_PLACE = Place(LAST, LAST)
NOTHING_LEFT = Place(0, 0)
"""Of a half that was read back to its beginning."""


# -- adding ------------------------------------------------------------------------------------------------------


class LineAdder:
    """An object because it knows how to strike secrets out, and whom to wake: no event tells of a line."""

    def __init__(self, safe: Safe, wake: Callable[[], None]) -> None:
        self._safe = safe
        self._wake = wake

    async def add(self, tx: Tx, asks: Sequence[AddLines]) -> list[list[str] | Problem | Busy]:
        speakers = Speakers(asks)
        refs = sorted({(ask.zone_id, ask.id) for ask in asks})
        named: Batch = [*refs]
        first: Batch = [(ask.zone_id, ask.id, ask.lines[0].id) for ask in asks]
        *answers, tasks, subjects, there = await tx.read(
            *speakers.statements(),
            Q.tasks_get(batch=named),
            LINES.task_log_subjects(batch=named),
            LINES.task_log_lines_known(batch=first),
        )
        heard = speakers.heard(answers, tx.now)
        rows = {(task.zone_id, task.id): task for task in decode(tasks, Task)}
        log = _Log(subjects, {str(row[0]) for row in there})
        outcomes: list[list[str] | Problem | Busy] = []
        for ask in asks:
            row = rows.get((ask.zone_id, ask.id))
            problem = heard.problem(ask, WORK) or log_rendering.may_say(ask.caller, row, ask.id, ask.token)
            if problem is None and row is not None:
                problem = log.take(ask, row)
            outcomes.append(problem or [line.id for line in ask.lines])
        if not log.taken:
            return outcomes
        refused = await self._write(tx, log)
        return [
            log_rendering.full(LINES_MAX) if (ask.zone_id, ask.id) in refused and isinstance(done, list) else done
            for ask, done in zip(asks, outcomes, strict=True)
        ]

    async def _write(self, tx: Tx, log: _Log) -> set[Ref]:
        """Which of them had no room left: somebody else was faster."""
        # Before anything is locked: to look for secrets takes its time.
        taken = [(row, self._cleaned(line, log.secrets.get((row.zone_id, row.id)))) for row, line in log.taken]
        counts = Counter[Ref]((row.zone_id, row.id) for row, _ in log.taken)
        batch: Batch = [(*ref, number) for ref, number in sorted(counts.items())]
        [given] = await tx.read(LINES.task_log_counts_add(batch=batch, most=LINES_MAX))
        have_room = {(str(row[0]), str(row[1])) for row in given}
        said = [(row, line) for row, line in taken if (row.zone_id, row.id) in have_room]
        for piece in pieces(_lines(said, tx.now)):
            tx.write(LINES.task_log_lines_insert(batch=piece))
        tx.on_commit(self._wake)
        return counts.keys() - have_room

    def _cleaned(self, line: SaidLine, stored: Sequence[tuple[str, About]] | None) -> SaidLine:
        """Without the secrets of its own task. Most tasks have none, and what looks like one is gone already."""
        return log_rendering.cleaned(line, partial(self._safe.strike, stored=stored)) if stored else line


class _Log:
    """What is known of the logs that a batch adds to, and what it adds."""

    def __init__(self, subjects: Sequence[Row], there: set[str]) -> None:
        self._used: dict[Ref, int] = {}
        self._there = there
        self.secrets: dict[Ref, list[tuple[str, About]]] = {}
        """What holds secrets of each task, and what it was sealed for."""
        self.taken: list[tuple[Task, SaidLine]] = []
        for zone_id, task_id, lines, context, checkpoint in subjects:
            ref = (str(zone_id), str(task_id))
            self._used[ref] = int(str(lines))
            fields = (("input_context", context), ("checkpoint_data", checkpoint))
            self.secrets[ref] = [
                (str(text), (ref[0], TABLE, ref[1], name)) for name, text in fields if text is not None
            ]

    def take(self, ask: AddLines, row: Task) -> Problem | None:
        if ask.lines[0].id in self._there:
            # A COMMIT that nobody heard of: it was taken before.
            return None
        ref = (ask.zone_id, ask.id)
        used = self._used.get(ref, 0)
        if used + len(ask.lines) > LINES_MAX:
            return log_rendering.full(used)
        self._used[ref] = used + len(ask.lines)
        self.taken += [(row, line) for line in ask.lines]
        return None


def failed(tx: Tx, stack_traces: Sequence[tuple[Task, str]]) -> None:
    """Keeps where attempts failed, in the transaction in which they do. The bound on what an agent may say does not
    count: how often a task may fail is bounded already, and this is what somebody will look for."""
    said = [
        (
            task,
            SaidLine(new_id(), Level.ERROR, log_rendering.ERROR, _has_failed(task), "{}", redaction.redact_text(trace)),
        )
        for task, trace in stack_traces
    ]
    counts = Counter[Ref]((task.zone_id, task.id) for task, _ in said)
    batch: Batch = [(*ref, number) for ref, number in sorted(counts.items())]
    for piece in pieces(batch):
        tx.write(LINES.task_log_counts_add(batch=piece, most=WITHOUT_BOUND))
    for piece in pieces(_lines(said, tx.now)):
        tx.write(LINES.task_log_lines_insert(batch=piece))


def _has_failed(task: Task) -> str:
    return f"Attempt {task.attempt} has failed."


def _lines(said: Sequence[tuple[Task, SaidLine]], now: int) -> Batch:
    """Rows, each with its place from the end of what its task is given in this batch."""
    left = Counter[Ref]((task.zone_id, task.id) for task, _ in said)
    rows: Batch = []
    for task, line in said:
        ref = (task.zone_id, task.id)
        left[ref] -= 1
        rows.append(
            (
                *(task.zone_id, task.id, line.id, left[ref], task.agent_id, task.attempt),
                *(line.level, line.event, line.message, line.details, task.session_key),
                *(line.stack_trace, line.size, now),
            )
        )
    return rows


# -- reading -----------------------------------------------------------------------------------------------------


async def page(tx: Tx, wanted: LogFilter) -> LogPage:
    """One page, and how far it looked. Oldest first it can be gone on from at any time: what comes later is found."""
    await require_power(tx, wanted.caller, wanted.zone_id, READ)
    begin = wanted.place or (FIRST_PLACE if wanted.oldest_first else LAST_PLACE)
    found, [head], events, rows = await tx.read(
        Q.tasks_get(batch=[(wanted.zone_id, wanted.id)]),
        LINES.task_log_head(zone_id=wanted.zone_id, task_id=wanted.id),
        _transitions(wanted, begin),
        _said(wanted, begin),
    )
    if not found:
        raise errors.not_found(wanted.id)
    transitions = Half([log_rendering.read_as(each) for each in decode(events, Transition)], len(events) > wanted.limit)
    lines = decode([row[1:] for row in rows], Line)
    there = int(str(rows[0][0])) if rows else 0
    said = Half([log_rendering.line_as(line) for line in lines], there > wanted.limit or there > len(lines))
    end = _end(begin, head, transitions, lines) if wanted.oldest_first else NOTHING_LEFT
    return log_rendering.merged(transitions, said, Span(begin, end, wanted.limit, wanted.oldest_first))


def _end(begin: Place, head: Row, transitions: Half, lines: Sequence[Line]) -> Place:
    """How far both halves go. What was committed after the heads were read may have been seen all the same."""
    pos, number = (int(str(place)) for place in head)
    return Place(
        max([pos, begin.pos, *(each.pos or 0 for each in transitions.entries)]),
        max([number, begin.number, *(line.number for line in lines)]),
    )


def _transitions(wanted: LogFilter, begin: Place) -> Bound:
    kinds = log_rendering.wanted(wanted.level, wanted.event)
    types: Batch = [(name,) for name in kinds.types or ()]
    common: dict[str, str | int | Batch | None] = {
        "subject": wanted.id,
        "zone_id": wanted.zone_id,
        "any_type": int(kinds.types is None),
        "types": types,
        "exhausted": None if kinds.exhausted is None else int(kinds.exhausted),
        "limit": wanted.limit + 1,
    }
    if wanted.oldest_first:
        return LINES.task_log_transitions(**common, after=begin.pos)
    return LINES.task_log_transitions_back(**common, before=begin.pos)


def _said(wanted: LogFilter, begin: Place) -> Bound:
    common: dict[str, str | int | None] = {
        "task_id": wanted.id,
        "zone_id": wanted.zone_id,
        "level": wanted.level,
        "event": wanted.event,
        "limit": wanted.limit + 1,
        "bytes": PAGE_BYTES_MAX,
    }
    if wanted.oldest_first:
        return LINES.task_log_lines_page(**common, after=begin.number)
    return LINES.task_log_lines_back(**common, before=begin.number)


# -- following ---------------------------------------------------------------------------------------------------


class News(msgspec.Struct, frozen=True, array_like=True):
    """How far the log of a task goes."""

    zone_id: str
    task_id: str
    pos: int
    number: int


async def news(tx: Tx, tasks: Iterable[Ref]) -> list[News]:
    [rows] = await tx.read(LINES.task_logs_news(batch=[*tasks]))
    return decode(rows, News)
