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
from quarterdeck.domain.fleets.operations.message_reads import MessagePage
from quarterdeck.domain.fleets.queries import LISTS
from quarterdeck.engine import long_poll
from quarterdeck.engine.lanes import zones_of
from quarterdeck.engine.transaction import Engine, Transaction

InboxKey = tuple[str, str]
"""(zone, member)"""
InboxPoll = long_poll.LongPoll[InboxFilter, InboxKey, MessagePage]
InboxPolls = long_poll.LongPolls[InboxFilter, InboxKey, MessagePage]
CHECK_SECONDS = 1.0
"""Between two looks, should a wake be lost on its way from another server."""


def new_inbox_polls() -> InboxPolls:
    return InboxPolls(lambda page: page.messages[0].ref)


class InboxLongPoll:
    def __init__(self, engine: Engine, polls: InboxPolls) -> None:
        self._engine = engine
        self._polls = polls

    async def list_inbox(self, filters: InboxFilter, timeout_seconds: float) -> MessagePage:
        """What there is; or, if there is nothing, the first that comes in time."""

        async def read(request: InboxFilter) -> tuple[MessagePage, ...]:
            poll = request.waiter
            assert isinstance(poll, long_poll.LongPoll)
            found = await self._engine.read(lambda tx: message_reads.list_inbox(tx, filters), zones=zones_of([filters]))
            if found.messages:
                return (found,)
            self._polls.add(poll)
            return ()

        key = (filters.zone_id, str(filters.agent_id))
        pages = await long_poll.wait_for_work(filters, key, read, self._polls, timeout_seconds)
        return pages[0] if pages else MessagePage([], {})


class InboxWakeups:
    """Once for all who wait: has those read again for whom something came, or who are there no more, and are refused
    then."""

    def __init__(self, engine: Engine, polls: InboxPolls) -> None:
        self._engine = engine
        self._polls = polls

    async def __call__(self, keys: Sequence[InboxKey]) -> float:
        states = await self._engine.read(lambda tx: _load_states(tx, keys), zones={zone_id for zone_id, _ in keys})
        for key, state in states.items():
            for poll in self._polls.waiting(key):
                if state.has_left or state.newest_id > poll.claim.after:
                    self._polls.retry(poll)
        return CHECK_SECONDS


class _InboxState(NamedTuple):
    newest_id: int
    """0: nothing waits."""
    has_left: bool


async def _load_states(tx: Transaction, keys: Sequence[InboxKey]) -> dict[InboxKey, _InboxState]:
    batch: list[tuple[object, ...]] = [(zone_id, int(agent_id)) for zone_id, agent_id in keys]
    [rows] = await tx.read(LISTS.messages_newest_unread(batch=batch))
    return {
        (str(zone_id), str(agent_id)): _InboxState(int(str(newest_id or 0)), status != MemberStatus.ACTIVE)
        for zone_id, agent_id, newest_id, status in rows
    }
