"""The route table of members, and of what is done with their panes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core import paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.errors import Invalid
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.fleets import route_params
from quarterdeck.domain.fleets.model.bodies import CaptureQuery, ExecBody, MemberBody, MemberDeleteQuery, MembersQuery
from quarterdeck.domain.fleets.model.commands import (
    DeregisterMember,
    FleetCommand,
    FleetOutcome,
    MemberGone,
    MemberMade,
    RegisterMember,
)
from quarterdeck.domain.fleets.model.filters import MembersFilter
from quarterdeck.domain.fleets.model.rows import MemberStatus, Notice
from quarterdeck.domain.fleets.model.views import (
    FleetMemberDeleted,
    FleetMemberList,
    FleetMemberView,
    ScreenView,
    TypedView,
)
from quarterdeck.domain.fleets.operations import fleet_reads
from quarterdeck.domain.fleets.operations.placements import Wanted, standing
from quarterdeck.domain.fleets.pane_port import Station
from quarterdeck.domain.fleets.route_params import CHANGE, FLEET, MEMBER, READ, agent_id, fleet_id, here
from quarterdeck.domain.fleets.rules import views
from quarterdeck.engine.transaction import Engine

LISTING = "fleet-members"
OF_A_PANE = ("coding_agent", "model", "prompt", "pane")


@dataclass(frozen=True, slots=True)
class MemberDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    submit: Callable[[FleetCommand], Awaitable[FleetOutcome]]
    station: Station | None = None
    """Who has panes, if this server has any."""

    async def create(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, MemberBody)
        route_params.refuse_long_prompt(body)
        made = await (self._register(call, body) if body.director_id is None else self._begin(call, body))
        return Reply(views.member_view(made.member, made.placement), 201 if made.made else 200)

    async def _register(self, call: Call, body: MemberBody) -> MemberMade:
        if said := [name for name in OF_A_PANE if getattr(body, name) is not None]:
            detail = "Only a member with a pane has this, and a pane is made for the director that is named."
            raise Invalid("invalid_body", detail, field=said[0])
        key, digest = route_params.key_of(call)
        made = await self.submit(
            RegisterMember(
                **here(call),
                name=body.name,
                description=body.description,
                skills=route_params.skills_of(body),
                key=key,
                digest=digest,
            )
        )
        assert isinstance(made, MemberMade)
        return made

    async def _begin(self, call: Call, body: MemberBody) -> MemberMade:
        """With a pane."""
        wanted = route_params.of_fleet(call)
        await route_params.read(self.engine, call, lambda tx: fleet_reads.changeable(tx, wanted))
        if self.station is None:
            raise route_params.no_panes_here()
        return await self.station.create(call, body)

    async def list_all(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, MembersQuery)
        wanted = MembersFilter(
            **here(call),
            limit=query.limit + 1,
            statuses=tuple(MemberStatus) if query.status == "all" else (MemberStatus(query.status),),
            after=route_params.number_of(LISTING, query.cursor) if query.cursor else 0,
            with_unread=query.activity,
        )
        found = await route_params.read(self.engine, call, lambda tx: fleet_reads.members(tx, wanted))
        shown, last = paging.trim_page([str(view.agent_id) for view in found], query.limit)
        cursor = paging.encode(LISTING, last) if last else None
        return Reply(FleetMemberList(found[:shown], cursor), 200, call.next_link(cursor))

    async def show(self, call: Call) -> FleetMemberView:
        wanted = route_params.of_member(call)
        return await route_params.read(self.engine, call, lambda tx: fleet_reads.member(tx, wanted))

    async def delete(self, call: Call) -> FleetMemberDeleted:
        query = call.query
        assert isinstance(query, MemberDeleteQuery)
        if self.station is not None:
            return await self.station.delete(call, fleet_id(call), agent_id(call), query.force)
        gone = await self.submit(DeregisterMember(**here(call), agent_id=agent_id(call)))
        assert isinstance(gone, MemberGone)
        member, placement = gone.member, gone.placement
        # A server without panes cannot have one closed: it is left where it is, and that is said.
        pane_id, left = (None, None) if placement is None else (placement.tmux_pane_id, Notice.OTHER_HOST)
        return FleetMemberDeleted(member.agent_id, member.fleet_id, member.name, pane_id, left)

    # -- panes ---------------------------------------------------------------------------------------------------

    async def capture(self, call: Call) -> ScreenView:
        return await (await self._panes(call)).capture(call, fleet_id(call), agent_id(call))

    async def type_in(self, call: Call) -> TypedView:
        return await (await self._panes(call)).type_in(call, fleet_id(call), agent_id(call))

    async def execute(self, call: Call) -> TypedView:
        return await (await self._panes(call)).execute(call, fleet_id(call), agent_id(call))

    async def ping(self, call: Call) -> TypedView:
        return await (await self._panes(call)).ping(call, fleet_id(call), agent_id(call))

    async def _panes(self, call: Call) -> Station:
        """Whoever may not, or asks for a member that is not there, is told that before anything about panes."""
        wanted = Wanted(call.zone_id, fleet_id(call), agent_id(call), call.caller)
        await route_params.read(self.engine, call, lambda tx: standing(tx, wanted))
        if self.station is None:
            raise route_params.no_panes_here()
        return self.station


MAKING = (
    "Without `director_id` a member is registered, and that is all. With it a pane is made beside the director's and "
    "the coding agent begun in it: over the unix socket only, with the scope `fleet:exec`."
)
LEAVING = (
    "One with a pane is told to exit, and deregistered when its pane has gone; one that does not go, or that something "
    "else is in front of, stays. `force` kills it. This is done over the unix socket only, with the scope "
    "`fleet:exec`. One without a pane is deregistered."
)
BY_HAND = "Over the unix socket only, with the scope `fleet:exec`, on the host that the pane is on."


def routes(desk: MemberDesk) -> list[Route]:
    tags, of_fleet, missing = ("fleets",), f"{FLEET}/members", ("fleet_not_found",)
    one = (*missing, "fleet_member_not_found")
    changes = (*one, "fleet_deleted")
    reach = ("no_panes_here", "local_socket_only", "tmux_failed")
    panes = (*changes, *reach, "no_placement", "pane_out_of_reach")
    return [
        Route(
            "POST", of_fleet, desk.create, "Register a member", LIFECYCLE, body=MemberBody, response=FleetMemberView,
            status=201, tags=tags, description=MAKING, permission=CHANGE,
            errors=(
                *changes, *reach, "zone_ended", "fleet_full", "nested_teams", "administrator_protected", "no_placement",
                "unknown_coding_agent", "unknown_pane", "pane_not_made", "member_being_made",
                "idempotency_key_conflict",
            ),
        ),
        Route(
            "GET", of_fleet, desk.list_all, "List the members of a fleet", LIFECYCLE, query=MembersQuery,
            response=FleetMemberList, tags=tags, errors=(*missing, "invalid_cursor"), permission=READ,
        ),
        Route(
            "GET", MEMBER, desk.show, "Show a member", LIFECYCLE, response=FleetMemberView, tags=tags, errors=one,
            permission=READ,
        ),
        Route(
            "DELETE", MEMBER, desk.delete, "Deregister a member", LIFECYCLE, query=MemberDeleteQuery,
            response=FleetMemberDeleted, tags=tags, description=LEAVING, permission=CHANGE,
            errors=(*changes, *reach, "member_still_there", "unknown_coding_agent", "administrator_protected",
                      "director_protected"),
        ),
        Route(
            "GET", f"{MEMBER}/capture", desk.capture, "Show what a member's pane shows", LIFECYCLE, query=CaptureQuery,
            response=ScreenView, tags=tags, errors=panes, description=BY_HAND, permission=CHANGE,
        ),
        *(
            Route(
                "POST", f"{MEMBER}/{verb}", handler, summary, LIFECYCLE, body=ExecBody, response=TypedView,
                tags=tags, errors=panes, description=BY_HAND, permission=CHANGE,
            )
            for verb, handler, summary in (
                ("send-input", desk.type_in, "Type a text into a member's pane"),
                ("exec", desk.execute, "Have a member's agent execute a command"),
            )
        ),
        Route(
            "POST", f"{MEMBER}/ping", desk.ping, "Have a member look for its messages", LIFECYCLE, response=TypedView,
            tags=tags, errors=panes, description=BY_HAND, permission=CHANGE,
        ),
    ]  # fmt: skip
