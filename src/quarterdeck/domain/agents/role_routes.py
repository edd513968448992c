"""Routes for role assignments, which the API calls members."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core import paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.agents.operations import role_assignments as operations
from quarterdeck.domain.zones import rules
from quarterdeck.domain.zones.model import (
    ChangeRole,
    ListMembersQuery,
    MemberList,
    MemberView,
    PutMemberBody,
    RoleAssignmentChange,
    RoleAssignmentFilter,
    ShowRoleAssignment,
)
from quarterdeck.engine.transaction import Engine

LISTING = "members"


@dataclass(frozen=True, slots=True)
class RoleHandlers:
    engine: Engine
    submit_change: Callable[[ChangeRole], Awaitable[RoleAssignmentChange]]

    async def put(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, PutMemberBody)
        result = await self.submit_change(
            ChangeRole(call.zone_id, call.params["subject"], body.role, call.caller, call.trace)
        )
        assert result.after is not None
        return Reply(rules.member_view(result.after), 200 if result.before is not None else 201)

    async def remove(self, call: Call) -> Reply:
        await self.submit_change(ChangeRole(call.zone_id, call.params["subject"], None, call.caller, call.trace))
        return Reply(None, 204)

    async def show(self, call: Call) -> MemberView:
        ref = ShowRoleAssignment(call.zone_id, call.params["subject"], call.caller)
        zones = {call.zone_id, call.caller.zone_id}
        return rules.member_view(
            await self.engine.read(lambda tx: operations.show_role_assignment(tx, ref), zones=zones)
        )

    async def list_assignments(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ListMembersQuery)
        after = paging.decode(LISTING, query.cursor) if query.cursor else ""
        filters = RoleAssignmentFilter(call.zone_id, call.caller, query.limit + 1, after)
        zones = {call.zone_id, call.caller.zone_id}
        assignments = await self.engine.read(lambda tx: operations.list_role_assignments(tx, filters), zones=zones)
        count, last = paging.trim_page([assignment.subject for assignment in assignments], query.limit)
        cursor = paging.encode(LISTING, last) if last else None
        body = MemberList([rules.member_view(assignment) for assignment in assignments[:count]], cursor)
        return Reply(body, 200, call.next_link(cursor))


def routes(handlers: RoleHandlers) -> list[Route]:
    member_path = "/api/v1/members/{subject}"
    tags = ("members",)
    read_permission, change_permission = operations.READ_PERMISSION, operations.CHANGE_PERMISSION
    return [
        Route(
            "GET", "/api/v1/members", handlers.list_assignments, "List members, by subject", LIFECYCLE,
            query=ListMembersQuery, response=MemberList, errors=("invalid_cursor",), tags=tags,
            permission=read_permission,
        ),
        Route(
            "GET", member_path, handlers.show, "Show a member", LIFECYCLE, response=MemberView,
            errors=("member_not_found",), tags=tags, permission=read_permission,
        ),
        Route(
            "PUT", member_path, handlers.put, "Add a member, or change its role", LIFECYCLE, body=PutMemberBody,
            response=MemberView, status=201, tags=tags, permission=change_permission,
            errors=("last_owner", "too_many_members", "zone_ended"),
            description="Only an OWNER may add, change or remove an OWNER. The stored role takes precedence over the "
            "role claim of a token.",
        ),
        Route(
            "DELETE", member_path, handlers.remove, "Remove a member", LIFECYCLE, status=204, tags=tags,
            permission=change_permission, errors=("member_not_found", "last_owner", "zone_ended"),
            description="Tokens of the subject then have only the role in their role claim, if they have one.",
        ),
    ]  # fmt: skip
