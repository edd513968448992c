"""Polls that wait: whoever has no message waits for one, without asking again and again.

Those who wait in one process are looked for together (`engine.waiting`): a commit, here or elsewhere, has one statement
find the newest message that waits for each of them, and only those for whom there is a new one read again. Whoever
leaves its fleet meanwhile is told so at once: who polls in a loop would else never learn that it is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quarterdeck.domain.fleets.model.filters import InboxFilter
from quarterdeck.domain.fleets.model.rows import MemberStatus
from quarterdeck.domain.fleets.operations import message_reads
from quarterdeck.domain.fleets.operations.message_reads import Pages
from quarterdeck.domain.fleets.queries import LISTS
from quarterdeck.engine import long_poll
from quarterdeck.engine.lanes import zones_of
from quarterdeck.engine.transaction import Engine, Transaction

Key = tuple[str, str]
"""(zone, member)"""
Poll = long_poll.LongPoll[InboxFilter, Key, Pages]
Polls = long_poll.LongPolls[InboxFilter, Key, Pages]
LOOK_SECONDS = 1.0
"""Between two looks, should a wake be lost on its way from another server."""


def polls() -> Polls:
    return Polls(lambda page: page.messages[0].ref)


class Awaiting:
    def __init__(self, engine: Engine, waiting_polls: Polls) -> None:
        self._engine = engine
        self._polls = waiting_polls

    async def inbox(self, wanted: InboxFilter, seconds: float) -> Pages:
        """What there is; or, if there is nothing, the first that comes in time."""

        async def read(asked: InboxFilter) -> tuple[Pages, ...]:
            poll = asked.waiter
            assert isinstance(poll, long_poll.LongPoll)
            found = await self._engine.read(lambda tx: message_reads.inbox(tx, wanted), zones=zones_of([wanted]))
            if found.messages:
                return (found,)
            self._polls.add(poll)
            return ()

        key = (wanted.zone_id, str(wanted.agent_id))
        pages = await long_poll.wait_for_work(wanted, key, read, self._polls, seconds)
        return pages[0] if pages else Pages([], {})


class PollLook:
    """Once for all who wait: has those read again for whom something came, or who are there no more, and are refused
    then."""

    def __init__(self, engine: Engine, waiting_polls: Polls) -> None:
        self._engine = engine
        self._polls = waiting_polls

    async def __call__(self, keys: Sequence[Key]) -> float:
        found = await self._engine.read(lambda tx: _news(tx, keys), zones={zone_id for zone_id, _ in keys})
        for key, news in found.items():
            for poll in self._polls.waiting(key):
                if news.has_left or news.newest > poll.claim.after:
                    self._polls.retry(poll)
        return LOOK_SECONDS


class _News(NamedTuple):
    newest: int
    """0: nothing waits."""
    has_left: bool


async def _news(tx: Transaction, keys: Sequence[Key]) -> dict[Key, _News]:
    batch: list[tuple[object, ...]] = [(zone_id, int(agent_id)) for zone_id, agent_id in keys]
    [rows] = await tx.read(LISTS.messages_newest(batch=batch))
    return {
        (str(zone_id), str(agent_id)): _News(int(str(newest or 0)), status != MemberStatus.ACTIVE)
        for zone_id, agent_id, newest, status in rows
    }
