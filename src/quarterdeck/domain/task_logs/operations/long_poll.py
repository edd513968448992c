"""Follows the log of a task: a reader at the end of the log waits for new entries instead of polling.

The long polls of a process share one check (`engine.long_poll`). After a commit in any process, one statement finds the
followed logs that have new entries, and only the readers of those logs read again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.domain.task_logs.model import LogFilter, LogPage
from quarterdeck.domain.task_logs.operations import reads
from quarterdeck.domain.tasks.model.rows import TaskRef
from quarterdeck.engine import long_poll
from quarterdeck.engine.transaction import Engine

LogPoll = long_poll.LongPoll[LogFilter, TaskRef, LogPage]
LogPolls = long_poll.LongPolls[LogFilter, TaskRef, LogPage]


def new_log_polls() -> LogPolls:
    return LogPolls(lambda page: page.position)


class LogLongPoll:
    def __init__(self, engine: Engine, polls: LogPolls) -> None:
        self._engine = engine
        self._polls = polls

    async def read_log(self, filters: LogFilter, wait_seconds: float) -> LogPage:
        """Read the next page. If it is empty, wait up to `wait_seconds` for new entries."""
        poll = LogPoll(filters, (filters.zone_id, filters.id))

        async def read() -> tuple[LogPage, ...]:
            page = await self._read(poll.request)
            if page.entries:
                return (page,)
            # Continue after the entries that the filter excluded, instead of reading them again.
            poll.request = msgspec.structs.replace(poll.request, position=page.position)
            self._polls.add(poll)
            return ()

        pages = await long_poll.wait_for_items(poll, read, self._polls, wait_seconds)
        if pages:
            return pages[0]
        assert poll.request.position is not None
        return LogPage([], poll.request.position, is_last=True)

    async def _read(self, filters: LogFilter) -> LogPage:
        zones = {filters.zone_id, filters.caller.zone_id}
        return await self._engine.read(lambda tx: reads.read_log(tx, filters), zones=zones)


class LogWakeups:
    """Wakes the long polls of logs that have new entries. One check serves all long polls of the process."""

    def __init__(self, engine: Engine, polls: LogPolls, poll_seconds: float) -> None:
        self._engine = engine
        self._polls = polls
        self._poll_seconds = poll_seconds

    async def __call__(self, tasks: Sequence[TaskRef]) -> float:
        log_ends = await self._engine.read(
            lambda tx: reads.read_log_ends(tx, tasks), zones={zone_id for zone_id, _ in tasks}
        )
        for log_end in log_ends:
            for poll in self._polls.waiting((log_end.zone_id, log_end.task_id)):
                position = poll.request.position or reads.FIRST_POSITION
                if log_end.pos > position.pos or log_end.number > position.number:
                    self._polls.retry(poll)
        return self._poll_seconds
