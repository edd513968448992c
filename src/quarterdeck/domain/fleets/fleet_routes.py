"""The route table of fleets."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from quarterdeck.core import paging
from quarterdeck.core.caller import FLEET_EXEC, LIFECYCLE
from quarterdeck.core.errors import Problem
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.agents.operations.authorization import require_permission
from quarterdeck.domain.fleets import route_params
from quarterdeck.domain.fleets.model.bodies import DeleteQuery, FleetBody, FleetsQuery
from quarterdeck.domain.fleets.model.commands import (
    CreateFleet,
    DeleteFleet,
    FleetCommand,
    FleetDeleted,
    FleetMade,
    FleetOutcome,
    Place,
)
from quarterdeck.domain.fleets.model.filters import LAST, FleetsFilter, OfFleet
from quarterdeck.domain.fleets.model.rows import CODING_AGENT, Fate, Notice, Placement
from quarterdeck.domain.fleets.model.views import FleetDeletedView, FleetList, FleetView
from quarterdeck.domain.fleets.operations import fleet_reads
from quarterdeck.domain.fleets.operations.placements import placed
from quarterdeck.domain.fleets.pane_port import Station
from quarterdeck.domain.fleets.route_params import CHANGE, FLEET, READ, of_fleet
from quarterdeck.domain.fleets.rules import views
from quarterdeck.domain.fleets.rules.views import FleetSeen
from quarterdeck.engine.transaction import Engine

log = logging.getLogger("quarterdeck.fleets")
LISTING = "fleets"
GONE = (*Fate, Notice.PANE_GONE, Notice.OTHER_TMUX)
"""What became of panes that are not there any more."""


@dataclass(frozen=True, slots=True)
class FleetDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    submit: Callable[[FleetCommand], Awaitable[FleetOutcome]]
    station: Station | None = None
    """Who has panes, if this server has any."""

    async def create(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, FleetBody)
        key, digest = route_params.key_of(call)
        made = await self.submit(
            CreateFleet(
                zone_id=call.zone_id,
                caller=call.caller,
                trace=call.trace,
                label=body.label,
                position=await self._place(call, body),
                key=key,
                digest=digest,
            )
        )
        assert isinstance(made, FleetMade)
        heads = [made.director, made.administrator]
        seen = FleetSeen(made.fleet, heads, made.placement, await self._members(call, made))
        return Reply(views.fleet_view(seen), 201 if made.made else 200)

    async def _place(self, call: Call, body: FleetBody) -> Place | None:
        if body.pane is None and body.coding_agent is None:
            return None
        await route_params.read(self.engine, call, lambda tx: require_permission(tx, call.caller, call.zone_id, CHANGE))
        if self.station is None:
            raise route_params.no_panes_here()
        coding_agent = body.coding_agent or CODING_AGENT
        # Chosen for a director without a pane it means nothing, but it must be one that there is.
        self.station.require_coding_agent(coding_agent)
        return None if body.pane is None else await self.station.place(call, body.pane, coding_agent)

    async def _members(self, call: Call, made: FleetMade) -> int:
        """Of one that was there before, others may have come since."""
        if made.made:
            return len([made.director, made.administrator])
        fleet = OfFleet(zone_id=call.zone_id, caller=call.caller, fleet_id=made.fleet.fleet_id)
        return (await route_params.read(self.engine, call, lambda tx: fleet_reads.fleet(tx, fleet))).members

    async def list_all(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, FleetsQuery)
        wanted = FleetsFilter(
            zone_id=call.zone_id,
            caller=call.caller,
            limit=query.limit + 1,
            before=route_params.number_of(LISTING, query.cursor) if query.cursor else LAST,
            with_deleted=query.deleted,
        )
        found = await route_params.read(self.engine, call, lambda tx: fleet_reads.fleets(tx, wanted))
        shown, last = paging.trim_page([str(seen.fleet.fleet_id) for seen in found], query.limit)
        cursor = paging.encode(LISTING, last) if last else None
        body = FleetList([views.fleet_view(seen) for seen in found[:shown]], cursor)
        return Reply(body, 200, call.next_link(cursor))

    async def show(self, call: Call) -> FleetView:
        wanted = of_fleet(call)
        return views.fleet_view(await route_params.read(self.engine, call, lambda tx: fleet_reads.fleet(tx, wanted)))

    async def delete(self, call: Call) -> FleetDeletedView:
        query = call.query
        assert isinstance(query, DeleteQuery)
        reaches_panes = call.is_unix_socket and FLEET_EXEC in call.caller.scopes
        closing = _Closing(call, self.station if reaches_panes and not query.keep_panes else None)
        wanted = of_fleet(call)
        # Before anybody is deregistered: a request that is cut can be repeated then, and closes what is left.
        while await closing.go_on(await route_params.read(self.engine, call, lambda tx: placed(tx, wanted))):
            pass
        ask = DeleteFleet(zone_id=call.zone_id, caller=call.caller, trace=call.trace, fleet_id=wanted.fleet_id)
        done = await self.submit(ask)
        assert isinstance(done, FleetDeleted)
        try:
            # Whoever got a pane in the last moment.
            await closing.go_on(done.placements)
        except Problem as problem:
            # It is deleted, and the answer counts what was left open.
            log.warning("panes of fleet %d, which is deleted, were not closed: %r", wanted.fleet_id, problem)
        panes = {each.agent_id for each in done.placements if each.tmux_pane_id is not None}
        return FleetDeletedView(
            fleet_id=done.fleet.fleet_id,
            deregistered_count=done.deregistered,
            panes_closed=len([fate for fate in closing.fates.values() if isinstance(fate, Fate)]),
            panes_left=len([each for each in panes if closing.fates.get(each, Notice.FAILED) not in GONE]),
        )


@dataclass(slots=True)
class _Closing:
    """The panes of a fleet that is to be deleted. Its director's is its user's own, and stays."""

    call: Call
    station: Station | None
    """None: all are left open."""
    fates: dict[int, Fate | Notice] = field(default_factory=dict)
    """By member, of those that were tried."""

    async def go_on(self, placements: Sequence[Placement]) -> bool:
        """Whether there was any that had not been tried before."""
        made = [each for each in placements if each.director_agent_id is not None]
        new = [each for each in made if each.tmux_pane_id is not None and each.agent_id not in self.fates]
        if self.station is None or not new:
            return False
        self.fates |= await self.station.close_panes(self.call, new)
        return True


CREATING = (
    "A fleet, its director and its administrator, all or nothing. With a `pane` the director is in that pane: this is "
    "heard over the unix socket only. The administrator sends, and never receives."
)
DELETING = (
    "For good: everybody is deregistered, messages stay. Repeated it changes nothing. Asked over the unix socket with "
    "the scope `fleet:exec`, it first closes the panes of its members, as far as they are on the server's host, unless "
    "`keep_panes` says otherwise. If one cannot be closed, or the server ends meanwhile, the fleet stays until it is "
    "repeated. Who hangs up stops nothing."
)


def routes(desk: FleetDesk) -> list[Route]:
    base, tags, missing = "/api/v1/fleets", ("fleets",), ("fleet_not_found",)
    return [
        Route(
            "POST", base, desk.create, "Create a fleet", LIFECYCLE, body=FleetBody, response=FleetView, status=201,
            tags=tags, description=CREATING, permission=CHANGE,
            errors=("zone_ended", "no_panes_here", "local_socket_only", "tmux_failed", "unknown_coding_agent",
                      "unknown_pane", "idempotency_key_conflict", *missing),
        ),
        Route(
            "GET", base, desk.list_all, "List fleets, newest first", LIFECYCLE, query=FleetsQuery, response=FleetList,
            tags=tags, errors=("invalid_cursor",), permission=READ,
        ),
        Route(
            "GET", FLEET, desk.show, "Show a fleet", LIFECYCLE, response=FleetView, tags=tags, errors=missing,
            permission=READ,
        ),
        Route(
            "DELETE", FLEET, desk.delete, "Delete a fleet", LIFECYCLE, query=DeleteQuery, response=FleetDeletedView,
            tags=tags, errors=(*missing, "panes_not_closed"), description=DELETING, permission=CHANGE,
        ),
    ]  # fmt: skip
