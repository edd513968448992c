"""The routes for members and their panes."""

from __future__ import annotations

from dataclasses import dataclass

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.errors import Invalid
from quarterdeck.core.paging import Listing
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.domain.fleets.model.bodies import CaptureQuery, DeleteMemberQuery, ExecBody, MemberBody, MembersQuery
from quarterdeck.domain.fleets.model.commands import DeregisterMember, RegisterMember, RegisterMemberResult
from quarterdeck.domain.fleets.model.filters import MembersFilter
from quarterdeck.domain.fleets.model.rows import MemberStatus, NoticeFailure
from quarterdeck.domain.fleets.model.views import (
    FleetMemberDeleted,
    FleetMemberList,
    FleetMemberView,
    PaneCaptureView,
    PaneInputView,
)
from quarterdeck.domain.fleets.operations import fleet_reads
from quarterdeck.domain.fleets.operations.member_panes import MemberPanes
from quarterdeck.domain.fleets.operations.members import SubmitFleetCommand
from quarterdeck.domain.fleets.operations.placements import load_member_placement
from quarterdeck.domain.fleets.routes import request_fields
from quarterdeck.domain.fleets.routes.request_fields import (
    CHANGE_PERMISSION,
    FLEET_PATH,
    MEMBER_PATH,
    READ_PERMISSION,
    command_fields,
    member_request,
    pane_caller,
    path_agent_id,
)
from quarterdeck.domain.fleets.rules import views
from quarterdeck.engine.transaction import Engine

LISTING = Listing[FleetMemberView]("fleet-members", lambda view: str(view.agent_id))
PANE_FIELDS = ("coding_agent", "model", "prompt", "pane")


@dataclass(frozen=True, slots=True)
class MemberHandlers:
    engine: Engine
    submit: SubmitFleetCommand
    panes: MemberPanes | None = None
    """None if this server has no access to panes."""

    async def create(self, call: Call[MemberBody, None]) -> Reply[FleetMemberView]:
        body = call.body
        request_fields.check_prompt_size(body)
        result = await (self._register(call) if body.director_id is None else self._create_with_pane(call))
        return Reply(views.member_view(result.member, result.placement), 201 if result.created else 200)

    async def _register(self, call: Call[MemberBody, None]) -> RegisterMemberResult:
        body = call.body
        if pane_fields := [name for name in PANE_FIELDS if getattr(body, name) is not None]:
            detail = f"`{pane_fields[0]}` is only for members with a pane. Set `director_id` to create a pane."
            raise Invalid("invalid_body", detail, field=pane_fields[0])
        return await self.submit(_register_command(call))

    async def _create_with_pane(self, call: Call[MemberBody, None]) -> RegisterMemberResult:
        request = request_fields.fleet_request(call)
        await self.engine.read(lambda tx: fleet_reads.require_changeable(tx, request), zones=call.zones)
        if self.panes is None:
            raise request_fields.no_panes_error()
        caller = pane_caller(call)
        # Before the other fields are examined: their errors are for callers that may create a pane.
        caller.require_exec()
        return await self.panes.create(caller, _register_command(call), call.body)

    async def list_members(self, call: Call[None, MembersQuery]) -> Reply[FleetMemberList]:
        query = call.query
        filters = MembersFilter(
            **command_fields(call),
            limit=query.limit + 1,
            statuses=tuple(MemberStatus) if query.status == "all" else (MemberStatus(query.status),),
            after_id=request_fields.start_id(LISTING, query, 0),
            with_unread=query.activity,
        )
        members = await self.engine.read(lambda tx: fleet_reads.list_members(tx, filters), zones=call.zones)
        # The operation returns views.
        return LISTING.reply(call, members, lambda view: view, FleetMemberList)

    async def show(self, call: Call[None, None]) -> FleetMemberView:
        request = member_request(call)
        return await self.engine.read(lambda tx: fleet_reads.get_member(tx, request), zones=call.zones)

    async def delete(self, call: Call[None, DeleteMemberQuery]) -> FleetMemberDeleted:
        command = DeregisterMember(**command_fields(call), agent_id=path_agent_id(call))
        if self.panes is not None:
            return await self.panes.delete(pane_caller(call), command, call.query.force)
        result = await self.submit(command)
        member, placement = result.member, result.placement
        # This server has no access to panes. The pane stays open, and the response gives the reason.
        pane_id, failure = (None, None) if placement is None else (placement.tmux_pane_id, NoticeFailure.OTHER_HOST)
        return FleetMemberDeleted(member.agent_id, member.fleet_id, member.name, pane_id, failure)

    # -- panes ---------------------------------------------------------------------------------------------------

    async def capture(self, call: Call[None, CaptureQuery]) -> PaneCaptureView:
        panes = await self._require_panes(call)
        return await panes.capture(pane_caller(call), member_request(call), call.query)

    async def type_text(self, call: Call[ExecBody, None]) -> PaneInputView:
        panes = await self._require_panes(call)
        return await panes.type_text(pane_caller(call), member_request(call), call.body)

    async def execute(self, call: Call[ExecBody, None]) -> PaneInputView:
        panes = await self._require_panes(call)
        return await panes.execute(pane_caller(call), member_request(call), call.body)

    async def ping(self, call: Call[None, None]) -> PaneInputView:
        return await (await self._require_panes(call)).ping(pane_caller(call), member_request(call))

    async def _require_panes(self, call: AnyCall) -> MemberPanes:
        """Check the permission and the member first, so that their errors take precedence over `no_panes_here`."""
        request = member_request(call)
        await self.engine.read(lambda tx: load_member_placement(tx, request), zones=call.zones)
        if self.panes is None:
            raise request_fields.no_panes_error()
        return self.panes


def _register_command(call: Call[MemberBody, None]) -> RegisterMember:
    body = call.body
    key, digest = request_fields.key_and_digest(call)
    return RegisterMember(
        **command_fields(call),
        name=body.name,
        description=body.description,
        skills=request_fields.encode_skills(body),
        director_id=body.director_id,
        idempotency_key=key,
        request_digest=digest,
    )


CREATE_DESCRIPTION = (
    "Without `director_id` the member is only registered. With it, a pane is created in the director's window and the "
    "coding agent is started there; this requires the Unix socket and the scope `fleet:exec`."
)
DELETE_DESCRIPTION = (
    "If the member has a pane, the agent's exit command is typed there, and the member is deregistered once the pane "
    "has closed. If the agent does not exit, or is not in the foreground of its pane, the member stays registered; "
    "`force` kills the pane instead. Closing a pane requires the Unix socket and the scope `fleet:exec`. A member "
    "without a pane is deregistered at once."
)
PANE_DESCRIPTION = "Requires the scope `fleet:exec` and the Unix socket of a server on the host of the pane."


def routes(handlers: MemberHandlers) -> list[Route]:
    tags, members_path, not_found_errors = ("fleets",), f"{FLEET_PATH}/members", ("fleet_not_found",)
    member_errors = (*not_found_errors, "fleet_member_not_found")
    change_errors = (*member_errors, "fleet_deleted")
    access_errors = ("no_panes_here", "local_socket_only", "tmux_failed")
    pane_errors = (*change_errors, *access_errors, "no_placement", "pane_out_of_reach")
    return [
        Route(
            "POST", members_path, handlers.create, "Register a member", LIFECYCLE, status=201, tags=tags,
            description=CREATE_DESCRIPTION, permission=CHANGE_PERMISSION,
            errors=(*change_errors, *access_errors, "zone_ended", "fleet_full", "nested_teams",
                    "administrator_protected", "no_placement", "unknown_coding_agent", "unknown_pane", "pane_not_made",
                    "member_being_made", "idempotency_key_conflict"),
        ),
        Route(
            "GET", members_path, handlers.list_members, "List the members of a fleet", LIFECYCLE, tags=tags,
            errors=(*not_found_errors, "invalid_cursor"), permission=READ_PERMISSION,
        ),
        Route(
            "GET", MEMBER_PATH, handlers.show, "Show a member", LIFECYCLE, tags=tags, errors=member_errors,
            permission=READ_PERMISSION,
        ),
        Route(
            "DELETE", MEMBER_PATH, handlers.delete, "Deregister a member", LIFECYCLE, tags=tags,
            description=DELETE_DESCRIPTION, permission=CHANGE_PERMISSION,
            errors=(*change_errors, *access_errors, "member_still_there", "unknown_coding_agent",
                    "administrator_protected", "director_protected"),
        ),
        Route(
            "GET", f"{MEMBER_PATH}/capture", handlers.capture, "Read the last lines of a member's pane", LIFECYCLE,
            tags=tags, errors=pane_errors, description=PANE_DESCRIPTION, permission=CHANGE_PERMISSION,
        ),
        *(
            Route(
                "POST", f"{MEMBER_PATH}/{verb}", handler, summary, LIFECYCLE, tags=tags, errors=pane_errors,
                description=PANE_DESCRIPTION, permission=CHANGE_PERMISSION,
            )
            for verb, handler, summary in (
                ("send-input", handlers.type_text, "Type text into a member's pane"),
                ("exec", handlers.execute, "Make a member's agent run a shell command"),
            )
        ),
        Route(
            "POST", f"{MEMBER_PATH}/ping", handlers.ping, "Make a member's agent check its messages", LIFECYCLE,
            tags=tags, errors=pane_errors, description=PANE_DESCRIPTION, permission=CHANGE_PERMISSION,
        ),
    ]  # fmt: skip
