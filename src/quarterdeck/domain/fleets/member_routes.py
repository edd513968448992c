"""The routes for members and their panes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core import paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.errors import Invalid
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.fleets import route_params
from quarterdeck.domain.fleets.model.bodies import CaptureQuery, DeleteMemberQuery, ExecBody, MemberBody, MembersQuery
from quarterdeck.domain.fleets.model.commands import (
    DeregisterMember,
    DeregisterMemberResult,
    FleetCommand,
    FleetOutcome,
    RegisterMember,
    RegisterMemberResult,
)
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
from quarterdeck.domain.fleets.operations.placements import MemberLookup, load_member_placement
from quarterdeck.domain.fleets.pane_port import PanePort
from quarterdeck.domain.fleets.route_params import (
    CHANGE_PERMISSION,
    FLEET_PATH,
    MEMBER_PATH,
    READ_PERMISSION,
    command_fields,
    path_agent_id,
    path_fleet_id,
)
from quarterdeck.domain.fleets.rules import views
from quarterdeck.engine.transaction import Engine

MEMBER_LISTING = "fleet-members"
PANE_FIELDS = ("coding_agent", "model", "prompt", "pane")


@dataclass(frozen=True, slots=True)
class MemberHandlers:
    engine: Engine
    submit: Callable[[FleetCommand], Awaitable[FleetOutcome]]
    panes: PanePort | None = None
    """None if this server has no access to panes."""

    async def create(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, MemberBody)
        route_params.check_prompt_size(body)
        result = await (self._register(call, body) if body.director_id is None else self._create_with_pane(call, body))
        return Reply(views.member_view(result.member, result.placement), 201 if result.created else 200)

    async def _register(self, call: Call, body: MemberBody) -> RegisterMemberResult:
        if pane_fields := [name for name in PANE_FIELDS if getattr(body, name) is not None]:
            detail = f"`{pane_fields[0]}` is only for members with a pane. Set `director_id` to create a pane."
            raise Invalid("invalid_body", detail, field=pane_fields[0])
        key, digest = route_params.key_and_digest(call)
        result = await self.submit(
            RegisterMember(
                **command_fields(call),
                name=body.name,
                description=body.description,
                skills=route_params.encode_skills(body),
                idempotency_key=key,
                request_digest=digest,
            )
        )
        assert isinstance(result, RegisterMemberResult)
        return result

    async def _create_with_pane(self, call: Call, body: MemberBody) -> RegisterMemberResult:
        request = route_params.fleet_request(call)
        await route_params.read_for_call(self.engine, call, lambda tx: fleet_reads.require_changeable(tx, request))
        if self.panes is None:
            raise route_params.no_panes_error()
        return await self.panes.create(call, body)

    async def list_members(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, MembersQuery)
        filters = MembersFilter(
            **command_fields(call),
            limit=query.limit + 1,
            statuses=tuple(MemberStatus) if query.status == "all" else (MemberStatus(query.status),),
            after_id=route_params.decode_id_cursor(MEMBER_LISTING, query.cursor) if query.cursor else 0,
            with_unread=query.activity,
        )
        members = await route_params.read_for_call(self.engine, call, lambda tx: fleet_reads.list_members(tx, filters))
        count, last_id = paging.trim_page([str(view.agent_id) for view in members], query.limit)
        cursor = paging.encode(MEMBER_LISTING, last_id) if last_id else None
        return Reply(FleetMemberList(members[:count], cursor), 200, call.next_link(cursor))

    async def show(self, call: Call) -> FleetMemberView:
        request = route_params.member_request(call)
        return await route_params.read_for_call(self.engine, call, lambda tx: fleet_reads.get_member(tx, request))

    async def delete(self, call: Call) -> FleetMemberDeleted:
        query = call.query
        assert isinstance(query, DeleteMemberQuery)
        if self.panes is not None:
            return await self.panes.delete(call, path_fleet_id(call), path_agent_id(call), query.force)
        result = await self.submit(DeregisterMember(**command_fields(call), agent_id=path_agent_id(call)))
        assert isinstance(result, DeregisterMemberResult)
        member, placement = result.member, result.placement
        # This server has no access to panes. The pane stays open, and the response gives the reason.
        pane_id, failure = (None, None) if placement is None else (placement.tmux_pane_id, NoticeFailure.OTHER_HOST)
        return FleetMemberDeleted(member.agent_id, member.fleet_id, member.name, pane_id, failure)

    # -- panes ---------------------------------------------------------------------------------------------------

    async def capture(self, call: Call) -> PaneCaptureView:
        return await (await self._require_panes(call)).capture(call, path_fleet_id(call), path_agent_id(call))

    async def type_text(self, call: Call) -> PaneInputView:
        return await (await self._require_panes(call)).type_text(call, path_fleet_id(call), path_agent_id(call))

    async def execute(self, call: Call) -> PaneInputView:
        return await (await self._require_panes(call)).execute(call, path_fleet_id(call), path_agent_id(call))

    async def ping(self, call: Call) -> PaneInputView:
        return await (await self._require_panes(call)).ping(call, path_fleet_id(call), path_agent_id(call))

    async def _require_panes(self, call: Call) -> PanePort:
        """Check the permission and the member first, so that their errors take precedence over `no_panes_here`."""
        lookup = MemberLookup(call.zone_id, path_fleet_id(call), path_agent_id(call), call.caller)
        await route_params.read_for_call(self.engine, call, lambda tx: load_member_placement(tx, lookup))
        if self.panes is None:
            raise route_params.no_panes_error()
        return self.panes


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
            "POST", members_path, handlers.create, "Register a member", LIFECYCLE, body=MemberBody,
            response=FleetMemberView, status=201, tags=tags, description=CREATE_DESCRIPTION,
            permission=CHANGE_PERMISSION,
            errors=(
                *change_errors, *access_errors, "zone_ended", "fleet_full", "nested_teams", "administrator_protected",
                "no_placement", "unknown_coding_agent", "unknown_pane", "pane_not_made", "member_being_made",
                "idempotency_key_conflict",
            ),
        ),
        Route(
            "GET", members_path, handlers.list_members, "List the members of a fleet", LIFECYCLE, query=MembersQuery,
            response=FleetMemberList, tags=tags, errors=(*not_found_errors, "invalid_cursor"),
            permission=READ_PERMISSION,
        ),
        Route(
            "GET", MEMBER_PATH, handlers.show, "Show a member", LIFECYCLE, response=FleetMemberView, tags=tags,
            errors=member_errors, permission=READ_PERMISSION,
        ),
        Route(
            "DELETE", MEMBER_PATH, handlers.delete, "Deregister a member", LIFECYCLE, query=DeleteMemberQuery,
            response=FleetMemberDeleted, tags=tags, description=DELETE_DESCRIPTION, permission=CHANGE_PERMISSION,
            errors=(*change_errors, *access_errors, "member_still_there", "unknown_coding_agent",
                    "administrator_protected", "director_protected"),
        ),
        Route(
            "GET", f"{MEMBER_PATH}/capture", handlers.capture, "Read the last lines of a member's pane", LIFECYCLE,
            query=CaptureQuery, response=PaneCaptureView, tags=tags, errors=pane_errors, description=PANE_DESCRIPTION,
            permission=CHANGE_PERMISSION,
        ),
        *(
            Route(
                "POST", f"{MEMBER_PATH}/{verb}", handler, summary, LIFECYCLE, body=ExecBody, response=PaneInputView,
                tags=tags, errors=pane_errors, description=PANE_DESCRIPTION, permission=CHANGE_PERMISSION,
            )
            for verb, handler, summary in (
                ("send-input", handlers.type_text, "Type text into a member's pane"),
                ("exec", handlers.execute, "Make a member's agent run a shell command"),
            )
        ),
        Route(
            "POST", f"{MEMBER_PATH}/ping", handlers.ping, "Make a member's agent check its messages", LIFECYCLE,
            response=PaneInputView, tags=tags, errors=pane_errors, description=PANE_DESCRIPTION,
            permission=CHANGE_PERMISSION,
        ),
    ]  # fmt: skip
