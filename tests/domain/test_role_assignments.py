"""Members of a workspace, and who is heard in it, on both engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import msgspec
import pytest

from quarterdeck.core.caller import COORDINATOR_ADMIN, Bearer, Caller, Role
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.agents.operations import role_assignments as operations
from quarterdeck.domain.agents.operations.authorization import CallerChecks, require_permission
from quarterdeck.domain.zones.model import (
    ROLE_ASSIGNMENTS_MAX,
    ChangeRole,
    RoleAssignment,
    RoleAssignmentFilter,
    RoleAssignmentRef,
    RoleChange,
)
from quarterdeck.engine.lanes import Busy, Lane
from quarterdeck.engine.transaction import Transaction
from tests.support.builders import ZONE
from tests.support.runtime import RuntimeHarness, SqlValue, open_runtime, result_names
from tests.support.structs import build_struct

T = TypeVar("T")
OTHER = "other"
CROSSING = Caller("root", "console", "default", frozenset(), is_admin=True)


def person(subject: str, **said: object) -> Caller:
    """Somebody of the zone whose issuer says nothing of roles, unless it is said here."""
    plain: dict[str, object] = {"subject": subject, "client_id": "app", "zone_id": ZONE, "scopes": frozenset()}
    return build_struct(Caller, **(plain | said))


OWNER = person("olga", role=Role.OWNER)


class Asked(msgspec.Struct, frozen=True):
    """Anything that is asked in a zone."""

    zone_id: str
    caller: Caller | None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer if self.caller else None


class Membership:
    def __init__(self, keel: RuntimeHarness) -> None:
        self.keel = keel
        self.lane: Lane[ChangeRole, RoleChange] = keel.lanes.add_write_lane("member", operations.change_roles)

    async def put(self, subject: str, role: Role | None, by: Caller = OWNER) -> RoleChange:
        return await self.lane.submit(ChangeRole(ZONE, subject, role, by))

    async def put_all(self, *asks: tuple[str, Role | None, Caller]) -> list[RoleChange | Problem | Busy]:
        """In one transaction, in this order."""
        batch = [ChangeRole(ZONE, subject, role, by) for subject, role, by in asks]
        return await self.keel.engine.transact(
            lambda tx: operations.change_roles(tx, batch), zones=[ZONE, OTHER, "default"]
        )

    async def page(self, limit: int = 10, after: str = "") -> list[RoleAssignment]:
        wanted = RoleAssignmentFilter(ZONE, OWNER, limit, after)
        return await self._read(lambda tx: operations.list_role_assignments(tx, wanted))

    async def show(self, subject: str, by: Caller = OWNER) -> RoleAssignment:
        return await self._read(lambda tx: operations.show_role_assignment(tx, RoleAssignmentRef(ZONE, subject, by)))

    async def may(self, caller: Caller, power: str, zone_id: str = ZONE) -> str:
        """What comes of asking for a power: the code of its refusal, or nothing."""
        try:
            await self._read(lambda tx: require_permission(tx, caller, zone_id, power))
        except Problem as problem:
            return problem.code
        return ""

    async def _read(self, operation: Callable[[Transaction], Awaitable[T]]) -> T:
        return await self.keel.engine.read(operation, zones=[ZONE, OTHER, "default"])

    def events(self) -> list[tuple[SqlValue, ...]]:
        return self.keel.database.execute(
            "select type, subject, actor, from_state, to_state from events where type like 'member.%' order by pos"
        )


@pytest.fixture
async def role_harness(runtime: RuntimeHarness) -> AsyncIterator[Membership]:
    await runtime.put_zone(OTHER)
    yield Membership(runtime)


async def test_a_member_is_made_changed_and_removed_and_each_is_told_once(role_harness: Membership) -> None:
    made = await role_harness.put("alice", Role.MEMBER)
    assert (made.before, made.after) == (None, await role_harness.show("alice"))
    again = await role_harness.put("alice", Role.MEMBER)
    assert again.before == again.after == made.after
    changed = await role_harness.put("alice", Role.ADMIN)
    assert (await role_harness.show("alice")).role is Role.ADMIN
    assert changed.after is not None
    assert (changed.after.created_at, changed.after.added_by) == (made.after.created_at if made.after else None, "olga")
    await role_harness.put("alice", None)
    with pytest.raises(Problem, match="no member"):
        await role_harness.show("alice")
    assert role_harness.events() == [
        ("member.added", "alice", "olga", None, "MEMBER"),
        ("member.changed", "alice", "olga", "MEMBER", "ADMIN"),
        ("member.removed", "alice", "olga", "ADMIN", None),
    ]


async def test_whoever_comes_later_in_a_batch_is_heard_as_what_they_are_by_then(role_harness: Membership) -> None:
    alice, bert = person("alice"), person("bert", role=Role.ADMIN)
    outcomes = await role_harness.put_all(
        ("alice", Role.OWNER, OWNER),
        ("alice", Role.MEMBER, bert),
        ("bert", Role.MEMBER, alice),
        ("carl", Role.MEMBER, bert),
        ("alice", None, alice),
        ("bert", None, alice),
        ("carl", Role.MEMBER, bert),
        ("alice", None, alice),
    )
    assert result_names(outcomes) == [
        "RoleChange",
        "forbidden_role",
        "RoleChange",
        "forbidden_role",
        "last_owner",
        "RoleChange",
        "RoleChange",
        "last_owner",
    ]
    assert [(one.subject, one.role) for one in await role_harness.page()] == [("alice", "OWNER"), ("carl", "MEMBER")]
    stored = role_harness.keel.database.execute("select subject, role from zone_members order by subject")
    assert stored == [("alice", "OWNER"), ("carl", "MEMBER")]
    assert len(role_harness.events()) == 4


async def test_made_and_removed_in_one_batch_leaves_no_row_and_two_events(role_harness: Membership) -> None:
    outcomes = await role_harness.put_all(("alice", Role.MEMBER, OWNER), ("alice", None, OWNER))
    assert result_names(outcomes) == ["RoleChange", "RoleChange"]
    assert await role_harness.page() == []
    assert [event[0] for event in role_harness.events()] == ["member.added", "member.removed"]


async def test_removed_and_made_in_one_batch_is_a_new_member(role_harness: Membership) -> None:
    await role_harness.put("alice", Role.MEMBER)
    await role_harness.put_all(("alice", None, OWNER), ("alice", Role.AGENT, CROSSING))
    assert (await role_harness.show("alice")).role is Role.AGENT


async def test_members_are_listed_by_name_page_by_page_and_zones_are_apart(role_harness: Membership) -> None:
    for subject in ("c", "a", "auth0|b@example.com"):
        await role_harness.put(subject, Role.MEMBER)
    await role_harness.lane.submit(ChangeRole(OTHER, "z", Role.OWNER, CROSSING))
    assert [one.subject for one in await role_harness.page(2)] == ["a", "auth0|b@example.com"]
    assert [one.subject for one in await role_harness.page(2, "auth0|b@example.com")] == ["c"]


async def test_owners_of_many_replicas_who_unmake_each_other_leave_one(engine_url: str) -> None:
    async with open_runtime(engine_url) as one, open_runtime(engine_url) as two:
        await one.put_zone()
        first, second = Membership(one), Membership(two)
        for subject in ("a", "b"):
            await first.put(subject, Role.OWNER)
        outcomes = await asyncio.gather(
            first.put("b", Role.MEMBER, person("a")), second.put("a", Role.MEMBER, person("b")), return_exceptions=True
        )
        # Whoever comes second is no owner any more, or unmakes the last one.
        assert result_names(outcomes).count("RoleChange") == 1
        assert one.database.count("zone_members", "role = 'OWNER'") == 1


async def test_a_workspace_has_at_most_so_many_members(role_harness: Membership) -> None:
    for begin in range(0, ROLE_ASSIGNMENTS_MAX - 1, 1_000):
        values = ", ".join(
            f"('{ZONE}', 'm{number}', 'MEMBER', 'x', 1, 1)"
            for number in range(begin, min(begin + 1_000, ROLE_ASSIGNMENTS_MAX - 1))
        )
        role_harness.keel.database.execute(f"insert into zone_members values {values}")
    outcomes = await role_harness.put_all(("one", Role.MEMBER, OWNER), ("more", Role.MEMBER, OWNER))
    assert result_names(outcomes) == ["RoleChange", "too_many_members"]
    await role_harness.put("m0", None)
    await role_harness.put("more", Role.MEMBER)


async def test_nobody_becomes_a_member_of_a_zone_that_has_ended_or_never_was(role_harness: Membership) -> None:
    await role_harness.keel.stop_zone(ends=True)
    with pytest.raises(Problem, match="has ended"):
        await role_harness.put("alice", Role.MEMBER)
    with pytest.raises(Problem, match="no zone"):
        await role_harness.lane.submit(ChangeRole("nowhere", "alice", Role.MEMBER, CROSSING))


# -- who is heard


async def test_a_role_counts_from_the_commit_that_gives_it_to_the_commit_that_takes_it(
    role_harness: Membership,
) -> None:
    alice = person("alice")
    assert await role_harness.may(alice, "tasks.read") == "not_a_member"
    await role_harness.put("alice", Role.MEMBER)
    assert await role_harness.may(alice, "tasks.read") == ""
    assert await role_harness.may(alice, "coordinator.use") == "forbidden_role"
    await role_harness.put("alice", Role.ADMIN)
    assert await role_harness.may(alice, "coordinator.use") == ""
    await role_harness.put("alice", None)
    assert await role_harness.may(alice, "tasks.read") == "not_a_member"


async def test_a_row_of_one_zone_is_nothing_in_another(role_harness: Membership) -> None:
    await role_harness.lane.submit(ChangeRole(OTHER, "alice", Role.OWNER, CROSSING))
    alice = person("alice")
    assert await role_harness.may(alice, "tasks.read") == "not_a_member"
    assert await role_harness.may(alice, "tasks.read", OTHER) == "workspace_not_found"
    assert await role_harness.may(person("alice", zone_id=OTHER), "members.change", OTHER) == ""
    assert await role_harness.may(CROSSING, "members.change", OTHER) == ""


async def test_what_a_bearer_is_without_a_row(role_harness: Membership) -> None:
    assert await role_harness.may(person("x", is_local=True), "tasks.change") == ""
    assert await role_harness.may(person("x", is_local=True), "members.read") == "forbidden_role"
    assert await role_harness.may(person("x", scopes=frozenset({COORDINATOR_ADMIN})), "members.read") == ""
    assert await role_harness.may(person("x", role=Role.ADMIN), "members.read") == ""


async def test_a_token_that_speaks_for_a_session_counts_while_that_session_lives(role_harness: Membership) -> None:
    session = await role_harness.keel.spawn()
    speaker = person("olga", role=Role.OWNER, session_id=session.id)
    await role_harness.put("alice", Role.MEMBER, by=speaker)
    await role_harness.keel.terminate(session)
    assert await role_harness.may(speaker, "tasks.read") == "session_ended"
    with pytest.raises(Problem, match="has ended"):
        await role_harness.put("alice", None, by=speaker)


async def test_an_agents_token_counts_as_its_agents_until_that_is_terminated(role_harness: Membership) -> None:
    agent_id = new_id()
    agent = person("olga", agent_id=agent_id, role=Role.OWNER, is_local=True)
    await role_harness.put("olga", Role.OWNER)
    assert await role_harness.may(agent, "tasks.work") == ""
    assert await role_harness.may(agent, "tasks.change") == "forbidden_role"
    role_harness.keel.database.execute(
        "insert into agents (zone_id, id, name, capabilities, max_concurrent_tasks, heartbeat_interval_seconds,"
        " stale_threshold_seconds, coordinator_enabled, labels, status, draining, created_by, created_at, updated_at)"
        " values (?, ?, 'a', '[]', 1, 30, 180, 1, '{}', 'IDLE', 0, 'x', 1, 1)",
        ZONE,
        agent_id,
    )
    assert await role_harness.may(agent, "tasks.work") == ""
    assert await role_harness.may(agent, "tasks.work", OTHER) == "workspace_not_found"
    role_harness.keel.database.execute("update agents set status = 'TERMINATED' where id = ?", agent_id)
    assert await role_harness.may(agent, "tasks.work") == "agent_ended"
    # The same name in another zone is another agent.
    there = msgspec.structs.replace(agent, zone_id=OTHER)
    assert await role_harness.may(there, "tasks.work", OTHER) == ""


async def test_of_a_batch_each_is_heard_for_itself_and_the_server_always(role_harness: Membership) -> None:
    session = await role_harness.keel.spawn()
    await role_harness.keel.terminate(session)
    await role_harness.put("alice", Role.MEMBER)
    asks = [
        Asked(ZONE, None),
        Asked(ZONE, person("alice")),
        Asked(ZONE, person("bert")),
        Asked(ZONE, person("alice", session_id=session.id)),
        Asked(OTHER, CROSSING),
        Asked(ZONE, person("agent", agent_id="a1")),
    ]

    async def hear(tx: Transaction) -> list[tuple[str | None, Role | None]]:
        speakers = CallerChecks(asks)
        heard = speakers.build_state(await tx.read(*speakers.statements()), tx.now)
        found = []
        for ask in asks:
            problem = heard.problem(ask, "tasks.change")
            found.append((problem.code if problem else None, heard.role(ask)))
        return found

    assert await role_harness.keel.engine.read(hear, zones=[ZONE, OTHER, "default"]) == [
        (None, None),
        (None, Role.MEMBER),
        ("not_a_member", None),
        ("session_ended", Role.MEMBER),
        (None, Role.OWNER),
        ("forbidden_role", Role.AGENT),
    ]


def test_where_only_the_server_speaks_nothing_is_asked() -> None:
    assert CallerChecks([Asked(ZONE, None), Asked(OTHER, CROSSING)]).statements() == []
