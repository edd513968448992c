"""Long polls for an inbox: a read that finds no message waits for one.

After a commit, in this process or another, one statement finds the newest unread message of every waiting member, and
only the polls with a new message read their inbox again (`engine.long_poll`). If a member is deregistered while it is
waiting, the next check ends its poll with an error.
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
"""(zone id, agent id of the member)"""
InboxPoll = long_poll.LongPoll[InboxFilter, InboxKey, MessagePage]
InboxPolls = long_poll.LongPolls[InboxFilter, InboxKey, MessagePage]
CHECK_INTERVAL_SECONDS = 1.0
"""The maximum time between two checks, in case a wake-up from another server is lost."""


def new_inbox_polls() -> InboxPolls:
    return InboxPolls(lambda page: page.messages[0].ref)


class InboxLongPoll:
    def __init__(self, engine: Engine, polls: InboxPolls) -> None:
        self._engine = engine
        self._polls = polls

    async def list_inbox(self, filters: InboxFilter, timeout_seconds: float) -> MessagePage:
        """List the messages. If there are none, wait until one arrives or the timeout has passed."""
        poll = InboxPoll(filters, (filters.zone_id, str(filters.agent_id)))

        async def read() -> tuple[MessagePage, ...]:
            page = await self._engine.read(lambda tx: message_reads.list_inbox(tx, filters), zones=zones_of([filters]))
            if page.messages:
                return (page,)
            self._polls.add(poll)
            return ()

        pages = await long_poll.wait_for_items(poll, read, self._polls, timeout_seconds)
        return pages[0] if pages else MessagePage([], {})


class InboxWakeups:
    """Checks all waiting polls at once.

    Polls with a new message read their inbox again. So do polls of deregistered members, which are then refused.
    """

    def __init__(self, engine: Engine, polls: InboxPolls) -> None:
        self._engine = engine
        self._polls = polls

    async def __call__(self, keys: Sequence[InboxKey]) -> float:
        states = await self._engine.read(lambda tx: _load_states(tx, keys), zones={zone_id for zone_id, _ in keys})
        for key, state in states.items():
            for poll in self._polls.waiting(key):
                if state.is_deregistered or state.newest_id > poll.request.after_id:
                    self._polls.retry(poll)
        return CHECK_INTERVAL_SECONDS


class _InboxState(NamedTuple):
    newest_id: int
    """0 if there is no unread message."""
    is_deregistered: bool


async def _load_states(tx: Transaction, keys: Sequence[InboxKey]) -> dict[InboxKey, _InboxState]:
    batch = [(zone_id, int(agent_id)) for zone_id, agent_id in keys]
    [rows] = await tx.read(LISTS.messages_newest_unread(batch=batch))
    return {
        (str(zone_id), str(agent_id)): _InboxState(int(str(newest_id or 0)), status != MemberStatus.ACTIVE)
        for zone_id, agent_id, newest_id, status in rows
    }
