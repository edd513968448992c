"""Members with panes: create them in the director's window, read them, type into them, close them.

    register without a pane ─► split the window, start the agent ─► store the pane id ─► wait until the agent runs
                                    │                                  │                    │
                                    └── on any failure: kill the pane, deregister the member, raise the error

Callers need the scope `fleet:exec` and must use the Unix socket, which only the user who owns the panes can open. The
location that a caller gives for its own pane is checked against tmux.

How it fails. When a member is deleted, its pane is left alone if it is gone, on another host or another user's, and,
without `force`, if only a shell is running in it. The member is still deregistered, and the response gives the reason.
If the agent does not exit in time, or is not in the foreground of its pane, the member stays registered, and the error
includes the last lines of the pane. The panes of a fleet are closed before the fleet is deleted, so an interrupted
request can be repeated. A server that is killed between registering a member and storing its pane leaves a member
without a pane. That member can be deleted like any other. If an agent was started for it, the agent's token is then
refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from quarterdeck.core.caller import FLEET_EXEC, Caller
from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Key
from quarterdeck.domain.fleets.model.bodies import CaptureQuery, ExecBody, MemberBody, Pane
from quarterdeck.domain.fleets.model.commands import (
    DeregisterMember,
    PaneLocation,
    RegisterMember,
    RegisterMemberResult,
    SetMemberPane,
)
from quarterdeck.domain.fleets.model.filters import MemberRequest
from quarterdeck.domain.fleets.model.rows import DEFAULT_CODING_AGENT, Member, NoticeFailure, PaneOutcome, Placement
from quarterdeck.domain.fleets.model.views import FleetMemberDeleted, PaneCaptureView, PaneInputView
from quarterdeck.domain.fleets.operations.members import SubmitFleetCommand
from quarterdeck.domain.fleets.operations.pane_access import PaneAccess, run_tmux
from quarterdeck.domain.fleets.operations.placements import MemberPlacement, load_member_placement
from quarterdeck.domain.fleets.rules import errors
from quarterdeck.domain.fleets.rules.agent_cards import ADMINISTRATOR_KIND, member_kind
from quarterdeck.domain.fleets.rules.members import command_key, director_problem
from quarterdeck.engine.transaction import Engine
from quarterdeck.tmux.coding_agents import CodingAgent, build_argv
from quarterdeck.tmux.errors import TmuxError
from quarterdeck.tmux.keystrokes import TypingTarget
from quarterdeck.tmux.notice_text import PING, default_prompt
from quarterdeck.tmux.pane_info import PaneInfo
from quarterdeck.tmux.panes import Tmux
from quarterdeck.tmux.wait_closed import POLL_SECONDS

log = logging.getLogger("quarterdeck.fleets")
START_SECONDS = 2.0
"""How long to wait for the agent to start. If it exits in this time, creation fails; a slow start does not fail."""
SHELL_PREFIX = "!"
"""The prefix that makes every known agent run a line as a shell command."""


@dataclass(frozen=True, slots=True)
class MemberPanesDeps:
    engine: Engine
    submit: SubmitFleetCommand
    mint_token: Callable[[Member], str]
    """Creates a token that acts as this member only."""
    pane_access: PaneAccess
    environment: Mapping[str, str]
    """Environment variables that an agent in a pane needs to find this server."""


@dataclass(frozen=True, slots=True)
class PaneCaller:
    """A caller that may have access to panes."""

    caller: Caller
    is_unix_socket: bool

    def require_exec(self) -> None:
        """Refuse a caller that lacks the scope or does not use the Unix socket, which only the owner of the panes can
        open."""
        if FLEET_EXEC not in self.caller.scopes:
            raise errors.scope_missing(FLEET_EXEC)
        if not self.is_unix_socket:
            raise errors.local_socket_required()


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """A member that is about to be created, with the window for its pane."""

    body: MemberBody
    agent: CodingAgent
    director: Member
    location: PaneLocation

    def argv(self, member: Member) -> list[str]:
        prompt = self.body.prompt or default_prompt(
            name=member.name,
            agent_id=member.agent_id,
            fleet_id=member.fleet_id,
            director_name=self.director.name,
            director_id=self.director.agent_id,
        )
        return build_argv(self.agent, name=member.name, model=self.body.model, prompt=prompt)


class MemberPanes:
    """Panes on this server's host that belong to its user."""

    def __init__(self, deps: MemberPanesDeps) -> None:
        self._deps = deps
        self._pane_access = deps.pane_access
        self._in_progress: dict[Key, asyncio.Event] = {}
        """Idempotency keys of members that are being created."""

    # -- creating ------------------------------------------------------------------------------------------------

    async def locate_pane(self, caller: PaneCaller, pane: Pane, coding_agent: str) -> PaneLocation:
        """Locate the caller's own pane through its tmux server. Used for the director of a new fleet."""
        caller.require_exec()
        self.require_coding_agent(coding_agent)
        return self._build_location(pane.socket, await self._require_caller_pane(pane), pane.pane_id, coding_agent)

    async def create(self, caller: PaneCaller, command: RegisterMember, body: MemberBody) -> RegisterMemberResult:
        """Register a member, create its pane in the director's window and start its agent there, or do nothing."""
        caller.require_exec()
        plan = await self._plan_member(caller, command, body)
        command = msgspec.structs.replace(command, location=plan.location)
        async with self._exclusive(command_key(command)):
            result = await self._deps.submit(command)
            if result.created:
                return await self._start_agent(result.member, plan)
        # The key was used before. If its member has no pane, another server is creating it, or was killed.
        if result.placement is None or result.placement.tmux_pane_id is None:
            raise errors.member_being_created(result.member.agent_id)
        return result

    @contextlib.asynccontextmanager
    async def _exclusive(self, key: Key | None) -> AsyncIterator[None]:
        """Serialize requests with the same key: the second runs after the first has created its pane or failed."""
        if key is None:
            yield
            return
        while (earlier_request := self._in_progress.get(key)) is not None:
            await earlier_request.wait()
        self._in_progress[key] = done = asyncio.Event()
        try:
            yield
        finally:
            del self._in_progress[key]
            done.set()

    async def _plan_member(self, caller: PaneCaller, command: RegisterMember, body: MemberBody) -> MemberPlan:
        if body.director_id is None:
            raise errors.director_id_missing()
        agent = self._get_coding_agent(body.coding_agent or DEFAULT_CODING_AGENT)
        director = await self._load_member(caller, _member_request(caller, command, body.director_id))
        if problem := director_problem(director.fleet, director.member):
            raise problem
        return MemberPlan(body, agent, director.member, await self._locate_window(director, body, agent))

    async def _locate_window(self, director: MemberPlacement, body: MemberBody, agent: CodingAgent) -> PaneLocation:
        """The window of the director's pane. If that pane cannot be found, the window of the caller's pane."""
        placement = director.placement
        if placement is not None and not isinstance(
            pane := await self._pane_access.find_pane(placement), NoticeFailure
        ):
            return self._build_location(placement.tmux_socket, pane, None, agent.name)
        if body.pane is None:
            raise errors.no_placement(director.member.agent_id)
        return self._build_location(body.pane.socket, await self._require_caller_pane(body.pane), None, agent.name)

    async def _require_caller_pane(self, pane: Pane) -> PaneInfo:
        """The caller's pane as its tmux server reports it."""
        tmux = Tmux(pane.socket, self._pane_access.call_timeout_seconds)
        info = (await run_tmux(tmux.list_panes())).get(pane.pane_id)
        if info is None or info.is_dead:
            raise errors.unknown_pane(pane.pane_id)
        return info

    def _build_location(self, socket: str, pane: PaneInfo, pane_id: str | None, coding_agent: str) -> PaneLocation:
        host = self._pane_access.host
        return PaneLocation(
            *(pane.session, pane.window_id, pane_id, coding_agent), *(host.id, host.user_id, socket, pane.server_pid)
        )

    async def _start_agent(self, member: Member, plan: MemberPlan) -> RegisterMemberResult:
        location, pane_id = plan.location, None
        tmux = Tmux(location.socket, self._pane_access.call_timeout_seconds, location.tmux_pid)
        try:
            pane_id = await tmux.split(location.window_id, plan.argv(member), self._build_environment(member))
            placement = await self._deps.submit(_set_pane_command(member, pane_id))
            await self._wait_until_running(placement)
            return RegisterMemberResult(member, placement)
        except TmuxError as error:
            await self._undo_create(tmux, member, pane_id)
            raise errors.pane_not_created(str(error)) from None
        except BaseException:
            # Includes cancellation of the request: nothing else cleans up the new pane and the new member.
            await self._undo_create(tmux, member, pane_id)
            raise

    async def _wait_until_running(self, placement: Placement) -> None:
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while not isinstance(target := await self._pane_access.find_target(placement), TypingTarget):
            if target is not NoticeFailure.NOT_THE_AGENT:
                raise TmuxError(f"{placement.coding_agent} exited immediately after it was started.")
            if asyncio.get_running_loop().time() >= deadline:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _undo_create(self, tmux: Tmux, member: Member, pane_id: str | None) -> None:
        if pane_id is not None:
            try:
                await tmux.kill(pane_id)
            except TmuxError as error:
                log.warning("pane %s of member %d was not closed: %s", pane_id, member.agent_id, error)
        command = DeregisterMember(zone_id=member.zone_id, fleet_id=member.fleet_id, agent_id=member.agent_id)
        try:
            await self._deps.submit(command)
        except Problem as problem:
            # Either the member is already deleted, or the database is unavailable and a user can delete it later.
            log.warning("member %d without a pane was not deregistered: %r", member.agent_id, problem)

    def _build_environment(self, member: Member) -> dict[str, str]:
        return {
            **self._deps.environment,
            "QD_ZONE": member.zone_id,
            "QD_FLEET_ID": str(member.fleet_id),
            "QD_AGENT_ID": str(member.agent_id),
            "QD_TOKEN": self._deps.mint_token(member),
        }

    # -- reading and typing --------------------------------------------------------------------------------------

    async def capture(self, caller: PaneCaller, request: MemberRequest, query: CaptureQuery) -> PaneCaptureView:
        """The last lines of the member's pane, as many as the query requests."""
        placement = await self._require_placement(caller, request)
        pane = _require_pane(request.agent_id, await self._pane_access.find_pane(placement))
        text = await run_tmux(self._pane_access.tmux_for(placement).capture(pane.pane_id, query.lines, ansi=query.ansi))
        return PaneCaptureView(request.agent_id, pane.pane_id, text)

    async def type_text(self, caller: PaneCaller, request: MemberRequest, body: ExecBody) -> PaneInputView:
        placement = await self._require_placement(caller, request)
        typed = await self._pane_access.type_line(placement, body.text, press_enter=body.enter)
        return PaneInputView(request.agent_id, _require_pane(request.agent_id, typed).pane_id)

    async def execute(self, caller: PaneCaller, request: MemberRequest, body: ExecBody) -> PaneInputView:
        """Make the member's agent run the text as a shell command."""
        return await self.type_text(caller, request, ExecBody(text=f"{SHELL_PREFIX} {body.text}", enter=body.enter))

    async def ping(self, caller: PaneCaller, request: MemberRequest) -> PaneInputView:
        """Type the line that makes an agent check its messages."""
        return await self.type_text(caller, request, ExecBody(text=PING))

    async def _require_placement(self, caller: PaneCaller, request: MemberRequest) -> Placement:
        caller.require_exec()
        placement = (await self._load_member(caller, request)).placement
        if placement is None or placement.tmux_pane_id is None:
            raise errors.no_placement(request.agent_id)
        return placement

    # -- deleting ------------------------------------------------------------------------------------------------

    async def delete(self, caller: PaneCaller, command: DeregisterMember, force: bool) -> FleetMemberDeleted:
        """Close the pane first, so that a member whose agent is still running stays registered."""
        loaded = await self._load_member(caller, _member_request(caller, command, command.agent_id))
        # The lane refuses to deregister the director and the administrator, so their panes must stay open.
        is_protected = loaded.is_director or member_kind(loaded.member.agent_card_json) == ADMINISTRATOR_KIND
        outcome = None if is_protected else await self._close_pane(caller, loaded.placement, force)
        result = await self._deps.submit(command)
        placement = loaded.placement if outcome is not None else result.placement
        if outcome is None and placement is not None and placement.tmux_pane_id is not None:
            # The member was still being created when it was loaded, and got its pane before it was deregistered.
            outcome = await self._close_late_pane(caller, placement)
        pane_id = None if placement is None else placement.tmux_pane_id
        return FleetMemberDeleted(command.agent_id, command.fleet_id, result.member.name, pane_id, outcome)

    async def _close_late_pane(self, caller: PaneCaller, placement: Placement) -> PaneOutcome | NoticeFailure:
        """Close the pane of a deregistered member. Failures are only logged, because the request cannot be repeated."""
        try:
            caller.require_exec()
            return await self._pane_access.close(placement)
        except Problem as problem:
            log.warning("the pane of deregistered member %d was left open: %r", placement.agent_id, problem)
            return NoticeFailure.FAILED

    async def _close_pane(
        self, caller: PaneCaller, placement: Placement | None, force: bool
    ) -> PaneOutcome | NoticeFailure | None:
        """Close the pane, if any. A pane that is gone or on another host is left alone, which needs no `fleet:exec`."""
        if placement is None or placement.tmux_pane_id is None:
            return None
        if isinstance(pane := await self._pane_access.find_pane(placement), NoticeFailure):
            return pane
        caller.require_exec()
        return await (self._pane_access.kill(placement) if force else self._pane_access.exit_agent(placement))

    async def close_panes(
        self, caller: PaneCaller, placements: Sequence[Placement]
    ) -> dict[int, PaneOutcome | NoticeFailure]:
        """Close panes of a fleet that is being deleted. Try all before reporting failures.

        Returns the outcomes by agent id. Raises if a pane stays open.
        """
        caller.require_exec()
        outcomes: dict[int, PaneOutcome | NoticeFailure] = {}
        problems: dict[int, Problem] = {}

        async def close(placement: Placement) -> None:
            try:
                outcomes[placement.agent_id] = await self._pane_access.close(placement)
            except Problem as problem:
                problems[placement.agent_id] = problem

        await asyncio.gather(*map(close, placements))
        if problems:
            raise errors.panes_not_closed(problems)
        return outcomes

    # -- shared --------------------------------------------------------------------------------------------------

    async def _load_member(self, caller: PaneCaller, request: MemberRequest) -> MemberPlacement:
        zones = {request.zone_id, caller.caller.zone_id}
        return await self._deps.engine.read(lambda tx: load_member_placement(tx, request), zones=zones)

    def require_coding_agent(self, name: str) -> None:
        self._get_coding_agent(name)

    def _get_coding_agent(self, name: str) -> CodingAgent:
        agent = self._pane_access.coding_agents.get(name)
        if agent is None:
            raise errors.unknown_coding_agent(name, sorted(self._pane_access.coding_agents))
        return agent


def _require_pane(agent_id: int, pane: PaneInfo | NoticeFailure) -> PaneInfo:
    if isinstance(pane, NoticeFailure):
        raise errors.pane_unreachable(agent_id, pane)
    return pane


def _member_request(caller: PaneCaller, command: RegisterMember | DeregisterMember, agent_id: int) -> MemberRequest:
    return MemberRequest(zone_id=command.zone_id, caller=caller.caller, fleet_id=command.fleet_id, agent_id=agent_id)


def _set_pane_command(member: Member, pane_id: str) -> SetMemberPane:
    return SetMemberPane(zone_id=member.zone_id, fleet_id=member.fleet_id, agent_id=member.agent_id, pane_id=pane_id)
