"""The routes of fleets: create, list, show, delete."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from quarterdeck.core.caller import FLEET_EXEC, LIFECYCLE
from quarterdeck.core.errors import Problem
from quarterdeck.core.paging import Listing
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.fleets.model.bodies import DeleteFleetQuery, FleetBody, FleetsQuery
from quarterdeck.domain.fleets.model.commands import CreateFleet, CreateFleetResult, DeleteFleet, PaneLocation
from quarterdeck.domain.fleets.model.filters import UPPER_BOUND, FleetRequest, FleetsFilter
from quarterdeck.domain.fleets.model.rows import DEFAULT_CODING_AGENT, NoticeFailure, PaneOutcome, Placement
from quarterdeck.domain.fleets.model.views import FleetDeletedView, FleetList, FleetView
from quarterdeck.domain.fleets.operations import fleet_reads
from quarterdeck.domain.fleets.operations.member_panes import MemberPanes
from quarterdeck.domain.fleets.operations.members import SubmitFleetCommand
from quarterdeck.domain.fleets.operations.placements import list_fleet_placements
from quarterdeck.domain.fleets.routes import request_fields
from quarterdeck.domain.fleets.routes.request_fields import (
    CHANGE_PERMISSION,
    FLEET_PATH,
    READ_PERMISSION,
    fleet_request,
    pane_caller,
)
from quarterdeck.domain.fleets.rules import views
from quarterdeck.domain.fleets.rules.views import FleetDetails
from quarterdeck.engine.transaction import Engine

log = logging.getLogger("quarterdeck.fleets")
LISTING = Listing[FleetDetails]("fleets", lambda details: str(details.fleet.fleet_id))
CLOSED_OUTCOMES = (*PaneOutcome, NoticeFailure.PANE_GONE, NoticeFailure.OTHER_TMUX)
"""The outcomes after which a pane no longer exists."""


@dataclass(frozen=True, slots=True)
class FleetHandlers:
    engine: Engine
    submit: SubmitFleetCommand
    panes: MemberPanes | None = None
    """None if this server has no access to panes."""

    async def create(self, call: Call[FleetBody, None]) -> Reply[FleetView]:
        body = call.body
        key, digest = request_fields.key_and_digest(call)
        result = await self.submit(
            CreateFleet(
                **call.caller_fields,
                label=body.label,
                location=await self._locate_pane(call, body),
                idempotency_key=key,
                request_digest=digest,
            )
        )
        root_members = [result.director, result.administrator]
        details = FleetDetails(result.fleet, root_members, result.placement, await self._count_members(call, result))
        return Reply(views.fleet_view(details), 201 if result.created else 200)

    async def _locate_pane(self, call: AnyCall, body: FleetBody) -> PaneLocation | None:
        if body.pane is None and body.coding_agent is None:
            return None
        await self.engine.read(
            lambda tx: access.require_permission(tx, call.caller, call.zone_id, CHANGE_PERMISSION), zones=call.zones
        )
        if self.panes is None:
            raise request_fields.no_panes_error()
        coding_agent = body.coding_agent or DEFAULT_CODING_AGENT
        # Without a pane, the coding agent is not used, but an unknown name is still an error.
        self.panes.require_coding_agent(coding_agent)
        return None if body.pane is None else await self.panes.locate_pane(pane_caller(call), body.pane, coding_agent)

    async def _count_members(self, call: AnyCall, result: CreateFleetResult) -> int:
        """Count the active members. If the idempotency key was used before, members may have been added since then."""
        if result.created:
            return len([result.director, result.administrator])
        request = FleetRequest(zone_id=call.zone_id, caller=call.caller, fleet_id=result.fleet.fleet_id)
        return (await self.engine.read(lambda tx: fleet_reads.get_fleet(tx, request), zones=call.zones)).member_count

    async def list_fleets(self, call: Call[None, FleetsQuery]) -> Reply[FleetList]:
        query = call.query
        filters = FleetsFilter(
            zone_id=call.zone_id,
            caller=call.caller,
            limit=query.limit + 1,
            before_id=request_fields.start_id(LISTING, query, UPPER_BOUND),
            with_deleted=query.deleted,
        )
        fleets = await self.engine.read(lambda tx: fleet_reads.list_fleets(tx, filters), zones=call.zones)
        return LISTING.reply(call, fleets, views.fleet_view, FleetList)

    async def show(self, call: Call[None, None]) -> FleetView:
        request = fleet_request(call)
        return views.fleet_view(await self.engine.read(lambda tx: fleet_reads.get_fleet(tx, request), zones=call.zones))

    async def delete(self, call: Call[None, DeleteFleetQuery]) -> FleetDeletedView:
        can_close_panes = call.is_unix_socket and FLEET_EXEC in call.caller.scopes
        pane_closer = _PaneCloser(call, self.panes if can_close_panes and not call.query.keep_panes else None)
        request = fleet_request(call)
        # Close the panes before deregistering the members, so that a repeated request can close panes still open.
        while await pane_closer.close_untried(
            await self.engine.read(lambda tx: list_fleet_placements(tx, request), zones=call.zones)
        ):
            pass
        command = DeleteFleet(**call.caller_fields, fleet_id=request.fleet_id)
        result = await self.submit(command)
        try:
            # Close the panes that were created after the last check.
            await pane_closer.close_untried(result.placements)
        except Problem as problem:
            # The fleet is already deleted. The response counts the panes that were left open.
            log.warning("panes of deleted fleet %d were not closed: %r", request.fleet_id, problem)
        pane_agent_ids = {placement.agent_id for placement in result.placements if placement.tmux_pane_id is not None}
        return FleetDeletedView(
            fleet_id=result.fleet.fleet_id,
            deregistered_count=result.deregistered_count,
            panes_closed=len(
                [outcome for outcome in pane_closer.outcomes.values() if isinstance(outcome, PaneOutcome)]
            ),
            panes_left=len(
                [
                    agent_id
                    for agent_id in pane_agent_ids
                    if pane_closer.outcomes.get(agent_id, NoticeFailure.FAILED) not in CLOSED_OUTCOMES
                ]
            ),
        )


@dataclass(slots=True)
class _PaneCloser:
    """Closes the panes of a fleet that is being deleted. The director's pane is the user's own and stays open."""

    call: AnyCall
    panes: MemberPanes | None
    """None if all panes are to stay open."""
    outcomes: dict[int, PaneOutcome | NoticeFailure] = field(default_factory=dict)
    """The outcomes for the panes tried so far, by agent id."""

    async def close_untried(self, placements: Sequence[Placement]) -> bool:
        """Close the panes that have not been tried yet. Returns whether there were any."""
        member_placements = [placement for placement in placements if placement.director_agent_id is not None]
        untried = [
            placement
            for placement in member_placements
            if placement.tmux_pane_id is not None and placement.agent_id not in self.outcomes
        ]
        if self.panes is None or not untried:
            return False
        self.outcomes |= await self.panes.close_panes(pane_caller(self.call), untried)
        return True


CREATE_DESCRIPTION = (
    "Creates a fleet, its director and its administrator in one transaction. With `pane`, the director runs in that "
    "pane; this requires the Unix socket and the scope `fleet:exec`. The administrator sends messages but never "
    "receives any."
)
DELETE_DESCRIPTION = (
    "Deregisters all members; messages stay. This cannot be undone, and a repeated request changes nothing. Over the "
    "Unix socket and with the scope `fleet:exec`, the request first closes the members' panes on the server's host, "
    "except the director's, unless `keep_panes` is set. If a pane cannot be closed, or the server stops, the fleet is "
    "not deleted: repeat the request. If the client disconnects, the deletion continues."
)


def routes(handlers: FleetHandlers) -> list[Route]:
    base_path, tags, not_found_errors = "/api/v1/fleets", ("fleets",), ("fleet_not_found",)
    return [
        Route(
            "POST", base_path, handlers.create, "Create a fleet", LIFECYCLE, status=201, tags=tags,
            description=CREATE_DESCRIPTION, permission=CHANGE_PERMISSION,
            errors=("zone_ended", "no_panes_here", "local_socket_only", "tmux_failed", "unknown_coding_agent",
                    "unknown_pane", "idempotency_key_conflict", *not_found_errors),
        ),
        Route(
            "GET", base_path, handlers.list_fleets, "List fleets, newest first", LIFECYCLE, tags=tags,
            errors=("invalid_cursor",), permission=READ_PERMISSION,
        ),
        Route(
            "GET", FLEET_PATH, handlers.show, "Show a fleet", LIFECYCLE, tags=tags, errors=not_found_errors,
            permission=READ_PERMISSION,
        ),
        Route(
            "DELETE", FLEET_PATH, handlers.delete, "Delete a fleet", LIFECYCLE, tags=tags,
            errors=(*not_found_errors, "panes_not_closed"), description=DELETE_DESCRIPTION,
            permission=CHANGE_PERMISSION,
        ),
    ]  # fmt: skip
