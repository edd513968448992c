"""Members with panes: made beside the director's, looked at, typed into, and ended.

    register, without a pane ─► split the window, begin the agent ─► its pane is known ─► the agent is seen to run
                                     │                                   │                   │
                                     └── whatever fails: the pane is ended, the member taken back, and both are said

Whoever asks must hold `fleet:exec` and come over the unix socket: they can open it because they are the user whose
panes these are. What a caller says of its own pane is looked up, never believed.

How it fails. A pane that is elsewhere, gone or another's, or in which a shell is all that is left, is left alone, and
the member deregistered all the same: the answer says what was left. An agent that does not leave within its time, or
cannot be told to because something else is in front, keeps its registration; the refusal shows the end of its pane. The
panes of a fleet are closed before it is deleted, so that whoever is cut can ask again. A server that is killed between
registering and placing leaves a member without a pane, which can be deleted as any other; what was begun for it finds
its token refused then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.core.caller import FLEET_EXEC
from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Key
from quarterdeck.core.routing import Call
from quarterdeck.domain.fleets.model.bodies import CaptureQuery, ExecBody, MemberBody, Pane
from quarterdeck.domain.fleets.model.commands import (
    DeregisterMember,
    FleetCommand,
    FleetOutcome,
    MemberGone,
    MemberMade,
    Place,
    PlaceMember,
    RegisterMember,
)
from quarterdeck.domain.fleets.model.rows import CODING_AGENT, Fate, Member, Notice, Placement
from quarterdeck.domain.fleets.model.views import FleetMemberDeleted, ScreenView, TypedView
from quarterdeck.domain.fleets.operations.placements import Standing, Wanted, standing
from quarterdeck.domain.fleets.pane_access import Reach, asked
from quarterdeck.domain.fleets.route_params import fleet_id as fleet_of, key_of, skills_of
from quarterdeck.domain.fleets.rules import errors
from quarterdeck.domain.fleets.rules.agent_cards import BUILTIN, kind_of
from quarterdeck.domain.fleets.rules.members import directing_problem, key_of as bound_key_of
from quarterdeck.engine.transaction import Engine
from quarterdeck.tmux.coding_agents import CodingAgent, build_argv
from quarterdeck.tmux.errors import TmuxError
from quarterdeck.tmux.keystrokes import TypingTarget
from quarterdeck.tmux.notice_text import PING, default_prompt
from quarterdeck.tmux.pane_info import PaneInfo
from quarterdeck.tmux.panes import Tmux
from quarterdeck.tmux.wait_closed import POLL_SECONDS

log = logging.getLogger("quarterdeck.fleets")
BEGIN_SECONDS = 2.0
"""For an agent to be seen at work. One that ends at once has failed; one that is merely slow has not."""
SHELL_MODE = "!"
"""How all agents that we know are told that a command for their own shell follows."""


@dataclass(frozen=True, slots=True)
class Means:
    """What it acts through."""

    engine: Engine
    submit: Callable[[FleetCommand], Awaitable[FleetOutcome]]
    mint: Callable[[Member], str]
    """A token that acts as this member alone."""
    reach: Reach
    environment: Mapping[str, str]
    """By which what runs in a pane finds this server."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A member that is to be made, with its pane."""

    body: MemberBody
    agent: CodingAgent
    director: Member
    place: Place

    def argv(self, member: Member) -> list[str]:
        prompt = self.body.prompt or default_prompt(
            name=member.name,
            agent_id=member.agent_id,
            fleet_id=member.fleet_id,
            director_name=self.director.name,
            director_id=self.director.agent_id,
        )
        return build_argv(self.agent, name=member.name, model=self.body.model, prompt=prompt)


class PaneStation:
    """The `Station` of a server, for the panes of its own host and user."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._reach = means.reach
        self._under_way: dict[Key, asyncio.Event] = {}
        """Keys with which members are made at this moment."""

    # -- making --------------------------------------------------------------------------------------------------

    async def place(self, call: Call, pane: Pane, coding_agent: str) -> Place:
        """The caller's own pane, for the director of a fleet that is created in it."""
        require_exec(call)
        self.require_coding_agent(coding_agent)
        return self._at(pane.socket, await self._own(pane), pane.pane_id, coding_agent)

    async def create(self, call: Call, body: MemberBody) -> MemberMade:
        """A member and its pane, or neither."""
        require_exec(call)
        wish = await self._wish(call, body)
        ask = _registering(call, body, wish.place)
        async with self._alone(bound_key_of(ask)):
            made = await self._means.submit(ask)
            assert isinstance(made, MemberMade)
            if made.made:
                return await self._begin(made.member, wish)
        # A key that was used before stands for a member that has its pane. Where it has none, another server is about
        # to make it, or was killed before it had.
        if made.placement is None or made.placement.tmux_pane_id is None:
            raise errors.member_being_made(made.member.agent_id)
        return made

    @contextlib.asynccontextmanager
    async def _alone(self, key: Key | None) -> AsyncIterator[None]:
        """Of those who use one key, one after the other: the second is answered when the first has its pane, or not."""
        if key is None:
            yield
            return
        while (other := self._under_way.get(key)) is not None:
            await other.wait()
        self._under_way[key] = over = asyncio.Event()
        try:
            yield
        finally:
            del self._under_way[key]
            over.set()

    async def _wish(self, call: Call, body: MemberBody) -> Wish:
        if body.director_id is None:
            raise errors.no_director()
        agent = self._coding_agent(body.coding_agent or CODING_AGENT)
        director = await self._standing(call, fleet_of(call), body.director_id)
        if problem := directing_problem(director.fleet, director.member):
            raise problem
        return Wish(body, agent, director.member, await self._beside(director, body, agent))

    async def _beside(self, director: Standing, body: MemberBody, agent: CodingAgent) -> Place:
        """The window of the director's pane; where that has none, of the caller's."""
        placed = director.placement
        if placed is not None and not isinstance(seen := await self._reach.seen(placed), Notice):
            return self._at(placed.tmux_socket, seen, None, agent.name)
        if body.pane is None:
            raise errors.no_placement(director.member.agent_id)
        return self._at(body.pane.socket, await self._own(body.pane), None, agent.name)

    async def _own(self, pane: Pane) -> PaneInfo:
        """The pane that a caller says it is in, as its tmux server tells."""
        seen = (await asked(Tmux(pane.socket, self._reach.call_seconds).panes())).get(pane.pane_id)
        if seen is None or seen.is_dead:
            raise errors.no_such_pane(pane.pane_id)
        return seen

    def _at(self, socket: str, seen: PaneInfo, pane_id: str | None, coding_agent: str) -> Place:
        host = self._reach.host
        return Place(
            *(seen.session, seen.window_id, pane_id, coding_agent), *(host.id, host.user_id, socket, seen.server_pid)
        )

    async def _begin(self, member: Member, wish: Wish) -> MemberMade:
        place, pane_id = wish.place, None
        tmux = Tmux(place.socket, self._reach.call_seconds, place.tmux_pid)
        try:
            pane_id = await tmux.split(place.window_id, wish.argv(member), self._environment(member))
            placed = await self._means.submit(_placing(member, pane_id))
            assert isinstance(placed, Placement)
            await self._see_it_run(placed)
            return MemberMade(member, placed)
        except TmuxError as error:
            await self._take_back(tmux, member, pane_id)
            raise errors.pane_not_made(str(error)) from None
        except BaseException:
            # Also where the request is cut: nobody else knows of a pane that was made, or of a member without one.
            await self._take_back(tmux, member, pane_id)
            raise

    async def _see_it_run(self, placed: Placement) -> None:
        until = asyncio.get_running_loop().time() + BEGIN_SECONDS
        while not isinstance(found := await self._reach.ready(placed), TypingTarget):
            if found is not Notice.NOT_THE_AGENT:
                raise TmuxError(f"{placed.coding_agent} ended as soon as it had begun.")
            if asyncio.get_running_loop().time() >= until:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _take_back(self, tmux: Tmux, member: Member, pane_id: str | None) -> None:
        if pane_id is not None:
            try:
                await tmux.kill(pane_id)
            except TmuxError as error:
                log.warning("the pane %s of member %d was not closed: %s", pane_id, member.agent_id, error)
        undo = DeregisterMember(zone_id=member.zone_id, fleet_id=member.fleet_id, agent_id=member.agent_id)
        try:
            await self._means.submit(undo)
        except Problem as problem:
            # It was deleted meanwhile; or the database is away, and it can be deleted when that is back.
            log.warning("member %d, which has no pane, was not taken back: %r", member.agent_id, problem)

    def _environment(self, member: Member) -> dict[str, str]:
        return {
            **self._means.environment,
            "QD_ZONE": member.zone_id,
            "QD_FLEET_ID": str(member.fleet_id),
            "QD_AGENT_ID": str(member.agent_id),
            "QD_TOKEN": self._means.mint(member),
        }

    # -- looking and typing --------------------------------------------------------------------------------------

    async def capture(self, call: Call, fleet_id: int, agent_id: int) -> ScreenView:
        query = call.query
        assert isinstance(query, CaptureQuery)
        placement = await self._placed(call, fleet_id, agent_id)
        seen = _reached(agent_id, await self._reach.seen(placement))
        shown = await asked(self._reach.tmux(placement).capture(seen.pane_id, query.lines, ansi=query.ansi))
        return ScreenView(agent_id, seen.pane_id, shown)

    async def type_in(self, call: Call, fleet_id: int, agent_id: int) -> TypedView:
        body = call.body
        assert isinstance(body, ExecBody)
        return await self._type(call, fleet_id, agent_id, body)

    async def execute(self, call: Call, fleet_id: int, agent_id: int) -> TypedView:
        body = call.body
        assert isinstance(body, ExecBody)
        command = ExecBody(text=f"{SHELL_MODE} {body.text}", enter=body.enter)
        return await self._type(call, fleet_id, agent_id, command)

    async def ping(self, call: Call, fleet_id: int, agent_id: int) -> TypedView:
        return await self._type(call, fleet_id, agent_id, ExecBody(text=PING))

    async def _type(self, call: Call, fleet_id: int, agent_id: int, said: ExecBody) -> TypedView:
        placement = await self._placed(call, fleet_id, agent_id)
        seen = _reached(agent_id, await self._reach.type_to(placement, said.text, enters=said.enter))
        return TypedView(agent_id, seen.pane_id)

    async def _placed(self, call: Call, fleet_id: int, agent_id: int) -> Placement:
        require_exec(call)
        placement = (await self._standing(call, fleet_id, agent_id)).placement
        if placement is None or placement.tmux_pane_id is None:
            raise errors.no_placement(agent_id)
        return placement

    # -- ending --------------------------------------------------------------------------------------------------

    async def delete(self, call: Call, fleet_id: int, agent_id: int, force: bool) -> FleetMemberDeleted:
        """The pane first: a member that is still at work stays registered."""
        found = await self._standing(call, fleet_id, agent_id)
        # Whom the lane will refuse to let go is not told to leave.
        stays = found.is_director or kind_of(found.member.agent_card_json) == BUILTIN
        fate = None if stays else await self._end(call, found.placement, force)
        gone = await self._means.submit(
            DeregisterMember(
                zone_id=call.zone_id, caller=call.caller, trace=call.trace, fleet_id=fleet_id, agent_id=agent_id
            )
        )
        assert isinstance(gone, MemberGone)
        placed = found.placement if fate is not None else gone.placement
        if fate is None and placed is not None and placed.tmux_pane_id is not None:
            # It was still being made when it was looked at, and got its pane before it was let go.
            fate = await self._end_unknown(call, placed)
        pane_id = None if placed is None else placed.tmux_pane_id
        return FleetMemberDeleted(agent_id, fleet_id, gone.member.name, pane_id, fate)

    async def _end_unknown(self, call: Call, placement: Placement) -> Fate | Notice:
        """The pane of one who is deregistered already: nobody can ask for its end once more."""
        try:
            require_exec(call)
            return await self._reach.close(placement)
        except Problem as problem:
            log.warning("the pane of member %d, which is gone, was left: %r", placement.agent_id, problem)
            return Notice.FAILED

    async def _end(self, call: Call, placement: Placement | None, force: bool) -> Fate | Notice | None:
        """What is elsewhere, or gone, needs nobody who may reach into panes."""
        if placement is None or placement.tmux_pane_id is None:
            return None
        if isinstance(seen := await self._reach.seen(placement), Notice):
            return seen
        require_exec(call)
        return await (self._reach.kill(placement) if force else self._reach.leave(placement))

    async def close_panes(self, call: Call, placements: Sequence[Placement]) -> dict[int, Fate | Notice]:
        """All of them are tried before it is said that one was not closed."""
        require_exec(call)
        fates: dict[int, Fate | Notice] = {}
        left: dict[int, Problem] = {}

        async def close(placement: Placement) -> None:
            try:
                fates[placement.agent_id] = await self._reach.close(placement)
            except Problem as problem:
                left[placement.agent_id] = problem

        await asyncio.gather(*map(close, placements))
        if left:
            raise errors.panes_not_closed(left)
        return fates

    # -- shared --------------------------------------------------------------------------------------------------

    async def _standing(self, call: Call, fleet_id: int, agent_id: int) -> Standing:
        wanted = Wanted(call.zone_id, fleet_id, agent_id, call.caller)
        zones = {call.zone_id, call.caller.zone_id}
        return await self._means.engine.read(lambda tx: standing(tx, wanted), zones=zones)

    def require_coding_agent(self, name: str) -> None:
        self._coding_agent(name)

    def _coding_agent(self, name: str) -> CodingAgent:
        agent = self._reach.coding_agents.get(name)
        if agent is None:
            raise errors.no_coding_agent(name, sorted(self._reach.coding_agents))
        return agent


def require_exec(call: Call) -> None:
    """Whoever types into panes is their user: they hold the scope, and come where nobody else can."""
    if FLEET_EXEC not in call.caller.scopes:
        raise errors.scope_missing(FLEET_EXEC)
    if not call.is_unix_socket:
        raise errors.not_on_the_socket()


def _reached(agent_id: int, found: PaneInfo | Notice) -> PaneInfo:
    if isinstance(found, Notice):
        raise errors.pane_out_of_reach(agent_id, found)
    return found


def _registering(call: Call, body: MemberBody, place: Place) -> RegisterMember:
    key, digest = key_of(call)
    return RegisterMember(
        zone_id=call.zone_id,
        caller=call.caller,
        trace=call.trace,
        fleet_id=fleet_of(call),
        name=body.name,
        description=body.description,
        skills=skills_of(body),
        director_id=body.director_id,
        position=place,
        key=key,
        digest=digest,
    )


def _placing(member: Member, pane_id: str) -> PlaceMember:
    return PlaceMember(zone_id=member.zone_id, fleet_id=member.fleet_id, agent_id=member.agent_id, pane_id=pane_id)
