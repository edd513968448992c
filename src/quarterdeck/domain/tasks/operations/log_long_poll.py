"""Following the log of a task: whoever has read all of it waits, without asking again and again.

Those who wait in one process are looked for together (`engine.waiting`): a commit, here or elsewhere, has one statement
find which of the followed logs have grown, and only those who follow these read again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.domain.tasks.model.log_types import LogFilter, LogPage
from quarterdeck.domain.tasks.model.rows import Ref
from quarterdeck.domain.tasks.operations import logs
from quarterdeck.engine import long_poll
from quarterdeck.engine.transaction import Engine

Reader = long_poll.Waiter[LogFilter, Ref, LogPage]
Readers = long_poll.Waiters[LogFilter, Ref, LogPage]


def readers() -> Readers:
    return Readers(lambda page: page.place)


class Following:
    def __init__(self, engine: Engine, waiting_readers: Readers) -> None:
        self._engine = engine
        self._readers = waiting_readers

    async def page(self, wanted: LogFilter, seconds: float) -> LogPage:
        """What there is; or, if there is nothing, the first that comes in time."""
        latest = wanted

        async def read(asked: LogFilter) -> tuple[LogPage, ...]:
            nonlocal latest
            reader = asked.waiter
            assert isinstance(reader, long_poll.Waiter)
            found = await self._read(latest)
            if found.entries:
                return (found,)
            # What was looked through in vain is not looked through again, however much of it is not wanted.
            latest = reader.claim = msgspec.structs.replace(latest, place=found.place)
            self._readers.add(reader)
            return ()

        pages = await long_poll.wait_for_work(wanted, (wanted.zone_id, wanted.id), read, self._readers, seconds)
        if pages:
            return pages[0]
        assert latest.place is not None
        return LogPage([], latest.place, is_last=True)

    async def _read(self, wanted: LogFilter) -> LogPage:
        zones = {wanted.zone_id, wanted.caller.zone_id}
        return await self._engine.read(lambda tx: logs.page(tx, wanted), zones=zones)


class LogLook:
    """Once for all who follow: has those read again whose log has grown."""

    def __init__(self, engine: Engine, waiting_readers: Readers, poll_seconds: float) -> None:
        self._engine = engine
        self._readers = waiting_readers
        self._poll_seconds = poll_seconds

    async def __call__(self, tasks: Sequence[Ref]) -> float:
        found = await self._engine.read(lambda tx: logs.news(tx, tasks), zones={zone_id for zone_id, _ in tasks})
        for each in found:
            for reader in self._readers.of((each.zone_id, each.task_id)):
                place = reader.claim.place or logs.FIRST_PLACE
                if each.pos > place.pos or each.number > place.number:
                    self._readers.ask(reader)
        return self._poll_seconds
