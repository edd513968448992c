"""Reaching into the pane of a placement, as far as it is this server's to reach: whether it is there, typing, ending.

Only the tmux server that a placement names is ever touched, on this host and of this user. Nothing is typed but to the
member's own agent. Whatever tmux does not do is a refusal with a sentence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from quarterdeck.core.errors import Problem
from quarterdeck.domain.fleets.model.rows import Fate, Notice, Placement
from quarterdeck.domain.fleets.rules import errors
from quarterdeck.tmux import keystrokes
from quarterdeck.tmux.coding_agents import CodingAgent, has_exited
from quarterdeck.tmux.errors import TmuxError
from quarterdeck.tmux.host import Host
from quarterdeck.tmux.keystrokes import TypingTarget
from quarterdeck.tmux.pane_info import PaneInfo
from quarterdeck.tmux.panes import Tmux
from quarterdeck.tmux.wait_closed import PaneCloseWaiter

log = logging.getLogger("quarterdeck.fleets")
ENDED_AT_ONCE = 16
"""Panes that are told to leave, or killed: each takes several calls, and looks at all processes."""
TAIL_LINES = 80
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reach:
    host: Host
    coding_agents: Mapping[str, CodingAgent]
    call_seconds: float
    """For one call of tmux."""
    exit_seconds: float
    """For a pane to go, after its agent was told to exit."""
    leaving: PaneCloseWaiter = field(default_factory=PaneCloseWaiter)
    hands: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(ENDED_AT_ONCE))

    def tmux(self, placement: Placement) -> Tmux:
        return Tmux(placement.tmux_socket, self.call_seconds, placement.tmux_pid)

    # -- looking -------------------------------------------------------------------------------------------------

    async def seen(self, placement: Placement) -> PaneInfo | Notice:
        """The pane, if it is there, whatever runs in it."""
        if why_not := keystrokes.check_host(placement, self.host):
            return Notice(why_not)
        found = keystrokes.find_pane(await asked(self.tmux(placement).panes()), placement)
        return found if isinstance(found, PaneInfo) else Notice(found)

    async def ready(self, placement: Placement) -> TypingTarget | Notice:
        """The pane, if it may be typed into."""
        if why_not := keystrokes.check_host(placement, self.host):
            return Notice(why_not)
        looked = await asked(keystrokes.take_snapshot(self.tmux(placement)))
        agent = self.coding_agents.get(placement.coding_agent)
        judged = await asyncio.to_thread(keystrokes.check_pane, looked, placement, self.host, agent)
        return judged if isinstance(judged, TypingTarget) else Notice(judged)

    # -- typing --------------------------------------------------------------------------------------------------

    async def type_to(self, placement: Placement, text: str, *, enters: bool = True) -> PaneInfo | Notice:
        """Where it was typed, or why it was not."""
        ready = await self.ready(placement)
        if isinstance(ready, Notice):
            return ready
        why_not = await asked(keystrokes.type_line(self.tmux(placement), ready, text, press_enter=enters))
        return ready.pane if why_not is None else Notice(why_not)

    # -- ending --------------------------------------------------------------------------------------------------

    async def leave(self, placement: Placement) -> Fate | Notice:
        """Tells the agent to exit and waits for its pane to go. Raises if it does not go, and if the agent cannot be
        told although it may be there: only a shell that it has left behind is no reason to stay."""
        async with self.hands:
            typed = await self._told_to_leave(placement)
        if isinstance(typed, Notice):
            return typed
        if not await asked(self.leaving.wait_closed(self.tmux(placement), typed, self.exit_seconds)):
            raise errors.member_still_there(placement, self.exit_seconds, await self._tail(placement))
        return Fate.EXITED

    async def _told_to_leave(self, placement: Placement) -> PaneInfo | Notice:
        agent = self.coding_agents.get(placement.coding_agent)
        if agent is None:
            # Nobody knows how it is told to leave, nor whether it has.
            raise errors.not_configured(placement)
        typed = await self.type_to(placement, agent.exit)
        if typed is not Notice.NOT_THE_AGENT:
            return typed
        looked = await asked(keystrokes.take_snapshot(self.tmux(placement)))
        seen = keystrokes.find_pane(looked.panes, placement)
        if not isinstance(seen, PaneInfo):
            return Notice(seen)
        if not await asyncio.to_thread(has_exited, agent, seen, looked.processes):
            raise errors.member_not_in_front(placement, await self._tail(placement))
        return typed

    async def kill(self, placement: Placement) -> Fate:
        """Returns when nothing of what ran in it is left."""
        assert placement.tmux_pane_id is not None  # it was seen
        async with self.hands:
            await asked(self.tmux(placement).kill(placement.tmux_pane_id))
        return Fate.KILLED

    async def close(self, placement: Placement) -> Fate | Notice:
        """A pane that is there, by its agent, and where that does not, by us; raises if neither can."""
        async with self.hands:
            seen = await self.seen(placement)
        if isinstance(seen, Notice):
            return seen
        try:
            if (left := await self.leave(placement)) is Fate.EXITED:
                return left
        except Problem as problem:
            log.info("member %d is not waited for any longer: %r", placement.agent_id, problem)
        return await self.kill(placement)

    async def _tail(self, placement: Placement) -> str:
        assert placement.tmux_pane_id is not None  # it was seen
        try:
            return await self.tmux(placement).capture(placement.tmux_pane_id, TAIL_LINES)
        except TmuxError as error:
            return f"(its pane cannot be read: {error})"


async def asked(answer: Awaitable[T]) -> T:
    """What tmux says; that it cannot be asked is a refusal like others."""
    try:
        return await answer
    except TmuxError as error:
        raise errors.tmux_failed(str(error)) from None
