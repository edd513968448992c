"""The route table of members."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core import paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.agents.operations import role_assignments as operations
from quarterdeck.domain.zones import rules
from quarterdeck.domain.zones.model import (
    ChangeMember,
    ListMembersQuery,
    MemberChange,
    MemberFilter,
    MemberList,
    MemberRef,
    MemberView,
    PutMemberBody,
)
from quarterdeck.engine.transaction import Engine

LISTING = "members"


@dataclass(frozen=True, slots=True)
class MemberDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    change: Callable[[ChangeMember], Awaitable[MemberChange]]

    async def put(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, PutMemberBody)
        done = await self.change(ChangeMember(call.zone, call.params["subject"], body.role, call.caller, call.trace))
        assert done.after is not None
        return Reply(rules.member_view(done.after), 200 if done.before is not None else 201)

    async def remove(self, call: Call) -> Reply:
        await self.change(ChangeMember(call.zone, call.params["subject"], None, call.caller, call.trace))
        return Reply(None, 204)

    async def show(self, call: Call) -> MemberView:
        ref = MemberRef(call.zone, call.params["subject"], call.caller)
        zones = {call.zone, call.caller.zone_id}
        return rules.member_view(await self.engine.read(lambda tx: operations.show_member(tx, ref), zones=zones))

    async def list_all(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ListMembersQuery)
        after = paging.decode(LISTING, query.cursor) if query.cursor else ""
        wanted = MemberFilter(call.zone, call.caller, query.limit + 1, after)
        zones = {call.zone, call.caller.zone_id}
        members = await self.engine.read(lambda tx: operations.page_of_members(tx, wanted), zones=zones)
        shown, last = paging.clip([member.subject for member in members], query.limit)
        cursor = paging.encode(LISTING, last) if last else None
        body = MemberList([rules.member_view(member) for member in members[:shown]], cursor)
        return Reply(body, 200, call.link_to_next(cursor))


def routes(desk: MemberDesk) -> list[Route]:
    one = "/api/v1/members/{subject}"
    tags = ("members",)
    read, change = operations.READ, operations.CHANGE
    return [
        Route(
            "GET", "/api/v1/members", desk.list_all, "List members, by name", LIFECYCLE, query=ListMembersQuery,
            answer=MemberList, refusals=("invalid_cursor",), tags=tags, power=read,
        ),
        Route(
            "GET", one, desk.show, "Show a member", LIFECYCLE, answer=MemberView,
            refusals=("member_not_found",), tags=tags, power=read,
        ),
        Route(
            "PUT", one, desk.put, "Make a member, or change its role", LIFECYCLE, body=PutMemberBody,
            answer=MemberView, status=201, tags=tags, power=change,
            refusals=("last_owner", "too_many_members", "zone_ended"),
            description="Only an OWNER makes or unmakes an OWNER. A member's row counts before the role in its token.",
        ),
        Route(
            "DELETE", one, desk.remove, "Remove a member", LIFECYCLE, status=204, tags=tags, power=change,
            refusals=("member_not_found", "last_owner", "zone_ended"),
            description="From this commit on a token counts for what its issuer says again, if it says anything.",
        ),
    ]  # fmt: skip
