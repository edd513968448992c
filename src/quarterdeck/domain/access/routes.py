"""Routes for role assignments, which the API calls members."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from operator import attrgetter

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.paging import CamelPage, Listing
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.access.operations import role_assignments as operations
from quarterdeck.domain.zones import rules
from quarterdeck.domain.zones.model import (
    ChangeRole,
    ListMembersQuery,
    MemberView,
    PutMemberBody,
    RoleAssignment,
    RoleAssignmentChange,
    RoleAssignmentFilter,
    ShowRoleAssignment,
)
from quarterdeck.engine.transaction import Engine

LISTING = Listing[RoleAssignment]("members", attrgetter("subject"))


@dataclass(frozen=True, slots=True)
class RoleHandlers:
    engine: Engine
    submit_change: Callable[[ChangeRole], Awaitable[RoleAssignmentChange]]

    async def put(self, call: Call[PutMemberBody, None]) -> Reply[MemberView]:
        result = await self.submit_change(
            ChangeRole(call.zone_id, call.params["subject"], call.body.role, call.caller, call.trace)
        )
        assert result.after is not None
        return Reply(rules.member_view(result.after), 200 if result.before is not None else 201)

    async def remove(self, call: Call[None, None]) -> Reply[None]:
        await self.submit_change(ChangeRole(call.zone_id, call.params["subject"], None, call.caller, call.trace))
        return Reply(None, 204)

    async def show(self, call: Call[None, None]) -> MemberView:
        ref = ShowRoleAssignment(call.zone_id, call.params["subject"], call.caller)
        assignment = await self.engine.read(lambda tx: operations.show_role_assignment(tx, ref), zones=call.zones)
        return rules.member_view(assignment)

    async def list_assignments(self, call: Call[None, ListMembersQuery]) -> Reply[CamelPage[MemberView]]:
        after = LISTING.start_key(call.query) or ""
        filters = RoleAssignmentFilter(call.zone_id, call.caller, call.query.limit + 1, after)
        rows = await self.engine.read(lambda tx: operations.list_role_assignments(tx, filters), zones=call.zones)
        return LISTING.reply(call, rows, rules.member_view, CamelPage)


def routes(handlers: RoleHandlers) -> list[Route]:
    member_path = "/api/v1/members/{subject}"
    tags = ("members",)
    read_permission, change_permission = operations.READ_PERMISSION, operations.CHANGE_PERMISSION
    return [
        Route(
            "GET", "/api/v1/members", handlers.list_assignments, "List members, by subject", LIFECYCLE,
            errors=("invalid_cursor",), tags=tags, permission=read_permission,
        ),
        Route(
            "GET", member_path, handlers.show, "Show a member", LIFECYCLE, errors=("member_not_found",), tags=tags,
            permission=read_permission,
        ),
        Route(
            "PUT", member_path, handlers.put, "Add a member, or change its role", LIFECYCLE, status=201, tags=tags,
            permission=change_permission, errors=("last_owner", "too_many_members", "zone_ended"),
            description="Only an OWNER may add, change or remove an OWNER. The stored role takes precedence over the "
            "role claim of a token.",
        ),
        Route(
            "DELETE", member_path, handlers.remove, "Remove a member", LIFECYCLE, status=204, tags=tags,
            permission=change_permission, errors=("member_not_found", "last_owner", "zone_ended"),
            description="Tokens of the subject then have only the role in their role claim, if they have one.",
        ),
    ]  # fmt: skip
