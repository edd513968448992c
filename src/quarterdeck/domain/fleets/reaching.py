"""Reaching into the pane of a placement, as far as it is this server's to reach: whether it is there, typing, ending.

Only the tmux server that a placement names is ever touched, on this host and of this user. Nothing is typed but to the
member's own agent. Whatever tmux does not do is a refusal with a sentence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from quarterdeck.core.errors import Problem
from quarterdeck.domain.fleets.model.rows import Notice, Placement
from quarterdeck.domain.fleets.rules import refusals
from quarterdeck.panes import checking
from quarterdeck.panes.checking import Ready
from quarterdeck.panes.coding import CodingAgent
from quarterdeck.panes.errors import TmuxError
from quarterdeck.panes.host import Host
from quarterdeck.panes.seen import PaneSeen
from quarterdeck.panes.tmux import Tmux

log = logging.getLogger("quarterdeck.fleets")
LOOK_SECONDS = 0.1
"""Between two looks for a pane to go: tmux tells nobody but its own clients, and its hooks are its user's."""
TAIL_LINES = 80
T = TypeVar("T")


class Fate(StrEnum):
    """What became of a member's pane. Where it was left alone, a `Notice` says why."""

    EXITED = "exited"
    KILLED = "killed"


@dataclass(frozen=True, slots=True)
class Reach:
    host: Host
    coding_agents: Mapping[str, CodingAgent]
    call_seconds: float
    """For one call of tmux."""
    exit_seconds: float
    """For a pane to go, after its agent was told to exit."""

    def tmux(self, placement: Placement) -> Tmux:
        return Tmux(placement.tmux_socket, self.call_seconds, placement.tmux_pid)

    # -- looking -------------------------------------------------------------------------------------------------

    async def seen(self, placement: Placement) -> PaneSeen | Notice:
        """The pane, if it is there, whatever runs in it."""
        if why_not := checking.elsewhere(placement, self.host):
            return Notice(why_not)
        looked = await asked(checking.look(self.tmux(placement)))
        judged = checking.judge(looked, placement, self.host, None)
        # Nobody's agent was asked for: that this is what hinders means that nothing else does.
        if isinstance(judged, Ready) or judged == "not_the_agent":
            return looked.panes[placement.tmux_pane_id or ""]
        return Notice(judged)

    async def ready(self, placement: Placement) -> Ready | Notice:
        """The pane, if it may be typed into."""
        if why_not := checking.elsewhere(placement, self.host):
            return Notice(why_not)
        looked = await asked(checking.look(self.tmux(placement)))
        agent = self.coding_agents.get(placement.coding_agent)
        judged = checking.judge(looked, placement, self.host, agent)
        return judged if isinstance(judged, Ready) else Notice(judged)

    # -- typing --------------------------------------------------------------------------------------------------

    async def type_to(self, placement: Placement, text: str, *, enters: bool = True) -> PaneSeen | Notice:
        """Where it was typed, or why it was not."""
        ready = await self.ready(placement)
        if isinstance(ready, Notice):
            return ready
        tmux = self.tmux(placement)
        if not enters:
            await asked(tmux.paste(ready.seen.pane_id, text, seen=ready.seen))
            return ready.seen
        why_not = await asked(checking.type_to(tmux, ready, text))
        return ready.seen if why_not is None else Notice(why_not)

    # -- ending --------------------------------------------------------------------------------------------------

    async def leave(self, placement: Placement) -> Fate | Notice:
        """Tells the agent to exit and waits for its pane to go; raises if it does not."""
        agent = self.coding_agents.get(placement.coding_agent)
        if agent is None:
            return Notice.NOT_THE_AGENT
        typed = await self.type_to(placement, agent.exit)
        if isinstance(typed, Notice):
            return typed
        until = asyncio.get_running_loop().time() + self.exit_seconds
        while not isinstance(await self.seen(placement), Notice):
            if asyncio.get_running_loop().time() >= until:
                raise refusals.member_still_there(placement, self.exit_seconds, await self._tail(placement))
            await asyncio.sleep(LOOK_SECONDS)
        return Fate.EXITED

    async def kill(self, placement: Placement) -> Fate:
        """Returns when nothing of what ran in it is left."""
        assert placement.tmux_pane_id is not None  # it was seen
        await asked(self.tmux(placement).kill(placement.tmux_pane_id))
        return Fate.KILLED

    async def close(self, placement: Placement) -> bool:
        """Whether a pane that is there was closed: by its agent, and where that does not, by us."""
        try:
            if isinstance(await self.seen(placement), Notice):
                return False
            if not await self._left(placement):
                await self.kill(placement)
        except Problem as problem:
            log.warning("the pane of member %d was left: %r", placement.agent_id, problem)
            return False
        return True

    async def _left(self, placement: Placement) -> bool:
        try:
            return await self.leave(placement) is Fate.EXITED
        except Problem as problem:
            log.info("member %d is not waited for any longer: %r", placement.agent_id, problem)
            return False

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
        raise refusals.tmux_failed(str(error)) from None
