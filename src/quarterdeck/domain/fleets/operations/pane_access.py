"""Access to the pane of a placement: find it, type into it, close it.

tmux is called only if the placement names this host and this user, and only on the tmux server that it names. Text is
typed only while the member's own agent is in the foreground of the pane. Every tmux failure becomes a `Problem`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from quarterdeck.core.errors import Problem
from quarterdeck.domain.fleets.model.rows import NoticeFailure, PaneOutcome, Placement
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
CLOSE_CONCURRENT_MAX = 16
"""The maximum number of panes closed at the same time. Each needs several tmux calls and a scan of all processes."""
TAIL_LINES = 80
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PaneAccess:
    host: Host
    coding_agents: Mapping[str, CodingAgent]
    call_timeout_seconds: float
    """For one tmux call."""
    exit_timeout_seconds: float
    """How long a pane may take to close after the exit command has been typed."""
    close_waiter: PaneCloseWaiter = field(default_factory=PaneCloseWaiter)
    close_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CLOSE_CONCURRENT_MAX))

    def tmux_for(self, placement: Placement) -> Tmux:
        return Tmux(placement.tmux_socket, self.call_timeout_seconds, placement.tmux_pid)

    # -- finding -------------------------------------------------------------------------------------------------

    async def find_pane(self, placement: Placement) -> PaneInfo | NoticeFailure:
        """Find the pane, regardless of what is running in it."""
        if failure := keystrokes.check_host(placement, self.host):
            return NoticeFailure(failure)
        pane = keystrokes.find_pane(await run_tmux(self.tmux_for(placement).list_panes()), placement)
        return pane if isinstance(pane, PaneInfo) else NoticeFailure(pane)

    async def find_target(self, placement: Placement) -> TypingTarget | NoticeFailure:
        """Find the pane and check that it may be typed into."""
        if failure := keystrokes.check_host(placement, self.host):
            return NoticeFailure(failure)
        snapshot = await run_tmux(keystrokes.take_snapshot(self.tmux_for(placement)))
        agent = self.coding_agents.get(placement.coding_agent)
        target = await asyncio.to_thread(keystrokes.check_pane, snapshot, placement, self.host, agent)
        return target if isinstance(target, TypingTarget) else NoticeFailure(target)

    # -- typing --------------------------------------------------------------------------------------------------

    async def type_line(self, placement: Placement, text: str, *, press_enter: bool = True) -> PaneInfo | NoticeFailure:
        """Type a line. Returns the pane, or the reason why the line was not typed completely."""
        target = await self.find_target(placement)
        if isinstance(target, NoticeFailure):
            return target
        failure = await run_tmux(keystrokes.type_line(self.tmux_for(placement), target, text, press_enter=press_enter))
        return target.pane if failure is None else NoticeFailure(failure)

    # -- closing -------------------------------------------------------------------------------------------------

    async def exit_agent(self, placement: Placement) -> PaneOutcome | NoticeFailure:
        """Type the agent's exit command and wait until its pane closes.

        Raises if the pane stays open, or if the agent is not in the foreground but may still be running. If the agent
        has exited and left only a shell, returns `NOT_THE_AGENT`.
        """
        async with self.close_slots:
            pane = await self._type_exit(placement)
        if isinstance(pane, NoticeFailure):
            return pane
        if not await run_tmux(self.close_waiter.wait_closed(self.tmux_for(placement), pane, self.exit_timeout_seconds)):
            raise errors.member_still_running(placement, self.exit_timeout_seconds, await self._capture_tail(placement))
        return PaneOutcome.EXITED

    async def _type_exit(self, placement: Placement) -> PaneInfo | NoticeFailure:
        agent = self.coding_agents.get(placement.coding_agent)
        if agent is None:
            # Without the agent's configuration, its exit command and its process names are unknown.
            raise errors.coding_agent_not_configured(placement)
        result = await self.type_line(placement, agent.exit)
        if result is not NoticeFailure.NOT_THE_AGENT:
            return result
        snapshot = await run_tmux(keystrokes.take_snapshot(self.tmux_for(placement)))
        pane = keystrokes.find_pane(snapshot.panes, placement)
        if not isinstance(pane, PaneInfo):
            return NoticeFailure(pane)
        if not await asyncio.to_thread(has_exited, agent, pane, snapshot.processes):
            raise errors.agent_not_in_foreground(placement, await self._capture_tail(placement))
        return result

    async def kill(self, placement: Placement) -> PaneOutcome:
        """Kill the pane. Returns when all of its processes have ended."""
        assert placement.tmux_pane_id is not None  # the caller has already found the pane
        async with self.close_slots:
            await run_tmux(self.tmux_for(placement).kill(placement.tmux_pane_id))
        return PaneOutcome.KILLED

    async def close(self, placement: Placement) -> PaneOutcome | NoticeFailure:
        """Close the pane with the agent's exit command, or kill it if the agent does not exit. Raises if both fail."""
        async with self.close_slots:
            pane = await self.find_pane(placement)
        if isinstance(pane, NoticeFailure):
            return pane
        try:
            if (outcome := await self.exit_agent(placement)) is PaneOutcome.EXITED:
                return outcome
        except Problem as problem:
            log.info("the agent of member %d did not exit; its pane will be killed: %r", placement.agent_id, problem)
        return await self.kill(placement)

    async def _capture_tail(self, placement: Placement) -> str:
        assert placement.tmux_pane_id is not None  # the caller has already found the pane
        try:
            return await self.tmux_for(placement).capture(placement.tmux_pane_id, TAIL_LINES)
        except TmuxError as error:
            return f"(the pane cannot be read: {error})"


async def run_tmux(call: Awaitable[T]) -> T:
    """Await a tmux call. Converts a `TmuxError` to a `Problem`."""
    try:
        return await call
    except TmuxError as error:
        raise errors.tmux_failed(str(error)) from None
