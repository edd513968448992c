"""Role assignments of a zone and the permissions they give, on both engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import msgspec
import pytest

from quarterdeck.core.caller import COORDINATOR_ADMIN, Bearer, Caller, Role
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.access.component import RoleAssignments
from quarterdeck.domain.access.operations import load_with_roles, require_permission, role_assignments as operations
from quarterdeck.domain.zones.model import (
    ROLE_ASSIGNMENTS_MAX,
    ChangeRole,
    RoleAssignment,
    RoleAssignmentChange,
    RoleAssignmentFilter,
    ShowRoleAssignment,
)
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Engine, Transaction
from tests.support.builders import ZONE
from tests.support.counting_store import CountingStore
from tests.support.runtime import RuntimeHarness, SqlValue, open_runtime, result_names
from tests.support.structs import build_struct

T = TypeVar("T")
OTHER_ZONE = "other"
SERVER_ADMIN = Caller("root", "console", "default", frozenset(), is_admin=True)


def build_caller(subject: str, **fields: object) -> Caller:
    """A caller of the zone whose token has no role claim, unless `fields` has one."""
    defaults: dict[str, object] = {"subject": subject, "client_id": "app", "zone_id": ZONE, "scopes": frozenset()}
    return build_struct(Caller, **(defaults | fields))


OWNER = build_caller("olga", role=Role.OWNER)


class ZoneCommand(msgspec.Struct, frozen=True):
    """Any command in a zone."""

    zone_id: str
    caller: Caller | None

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer if self.caller else None


class RoleHarness:
    def __init__(self, runtime: RuntimeHarness) -> None:
        self.runtime = runtime
        self.lane = RoleAssignments(runtime.shared).lane

    async def put(self, subject: str, role: Role | None, by: Caller = OWNER) -> RoleAssignmentChange:
        return await self.lane.submit(ChangeRole(ZONE, subject, role, by))

    async def put_batch(self, *changes: tuple[str, Role | None, Caller]) -> list[RoleAssignmentChange | Problem | Busy]:
        """Apply all changes in one transaction, in this order."""
        batch = [ChangeRole(ZONE, subject, role, by) for subject, role, by in changes]
        return await self.runtime.engine.transact(
            lambda tx: operations.change_roles(tx, batch), zones=[ZONE, OTHER_ZONE, "default"]
        )

    async def list_page(self, limit: int = 10, after: str = "") -> list[RoleAssignment]:
        filters = RoleAssignmentFilter(ZONE, OWNER, limit, after)
        return await self._read(lambda tx: operations.list_role_assignments(tx, filters))

    async def read(self, subject: str, by: Caller = OWNER) -> RoleAssignment:
        return await self._read(lambda tx: operations.show_role_assignment(tx, ShowRoleAssignment(ZONE, subject, by)))

    async def permission_error(self, caller: Caller, permission: str, zone_id: str = ZONE) -> str:
        """Return the error code if the caller lacks the permission, else an empty string."""
        try:
            await self._read(lambda tx: require_permission(tx, caller, zone_id, permission))
        except Problem as problem:
            return problem.code
        return ""

    async def _read(self, operation: Callable[[Transaction], Awaitable[T]]) -> T:
        return await self.runtime.engine.read(operation, zones=[ZONE, OTHER_ZONE, "default"])

    def events(self) -> list[tuple[SqlValue, ...]]:
        return self.runtime.database.execute(
            "select type, subject, actor, from_state, to_state from events where type like 'member.%' order by pos"
        )


@pytest.fixture
async def role_harness(runtime: RuntimeHarness) -> AsyncIterator[RoleHarness]:
    await runtime.put_zone(OTHER_ZONE)
    yield RoleHarness(runtime)


async def test_adding_changing_and_removing_a_member_writes_one_event_each(role_harness: RoleHarness) -> None:
    added = await role_harness.put("alice", Role.MEMBER)
    assert (added.before, added.after) == (None, await role_harness.read("alice"))
    repeated = await role_harness.put("alice", Role.MEMBER)
    assert repeated.before == repeated.after == added.after
    changed = await role_harness.put("alice", Role.ADMIN)
    assert (await role_harness.read("alice")).role is Role.ADMIN
    assert changed.after is not None
    assert (changed.after.created_at, changed.after.added_by) == (
        added.after.created_at if added.after else None,
        "olga",
    )
    await role_harness.put("alice", None)
    with pytest.raises(Problem, match="not a member"):
        await role_harness.read("alice")
    assert role_harness.events() == [
        ("member.added", "alice", "olga", None, "MEMBER"),
        ("member.changed", "alice", "olga", "MEMBER", "ADMIN"),
        ("member.removed", "alice", "olga", "ADMIN", None),
    ]


async def test_later_commands_of_a_batch_use_the_roles_that_earlier_ones_set(role_harness: RoleHarness) -> None:
    alice, bert = build_caller("alice"), build_caller("bert", role=Role.ADMIN)
    results = await role_harness.put_batch(
        ("alice", Role.OWNER, OWNER),
        ("alice", Role.MEMBER, bert),
        ("bert", Role.MEMBER, alice),
        ("carl", Role.MEMBER, bert),
        ("alice", None, alice),
        ("bert", None, alice),
        ("carl", Role.MEMBER, bert),
        ("alice", None, alice),
    )
    assert result_names(results) == [
        "RoleAssignmentChange",
        "forbidden_role",
        "RoleAssignmentChange",
        "forbidden_role",
        "last_owner",
        "RoleAssignmentChange",
        "RoleAssignmentChange",
        "last_owner",
    ]
    assert [(one.subject, one.role) for one in await role_harness.list_page()] == [
        ("alice", "OWNER"),
        ("carl", "MEMBER"),
    ]
    stored = role_harness.runtime.database.execute("select subject, role from zone_members order by subject")
    assert stored == [("alice", "OWNER"), ("carl", "MEMBER")]
    assert len(role_harness.events()) == 4


async def test_member_added_and_removed_in_one_batch_leaves_no_row_and_two_events(role_harness: RoleHarness) -> None:
    results = await role_harness.put_batch(("alice", Role.MEMBER, OWNER), ("alice", None, OWNER))
    assert result_names(results) == ["RoleAssignmentChange", "RoleAssignmentChange"]
    assert await role_harness.list_page() == []
    assert [event[0] for event in role_harness.events()] == ["member.added", "member.removed"]


async def test_member_removed_and_added_in_one_batch_has_the_new_role(role_harness: RoleHarness) -> None:
    await role_harness.put("alice", Role.MEMBER)
    await role_harness.put_batch(("alice", None, OWNER), ("alice", Role.AGENT, SERVER_ADMIN))
    assert (await role_harness.read("alice")).role is Role.AGENT


async def test_members_are_paged_by_subject_within_their_zone(role_harness: RoleHarness) -> None:
    for subject in ("c", "a", "auth0|b@example.com"):
        await role_harness.put(subject, Role.MEMBER)
    await role_harness.lane.submit(ChangeRole(OTHER_ZONE, "z", Role.OWNER, SERVER_ADMIN))
    assert [one.subject for one in await role_harness.list_page(2)] == ["a", "auth0|b@example.com"]
    assert [one.subject for one in await role_harness.list_page(2, "auth0|b@example.com")] == ["c"]


async def test_owners_who_demote_each_other_through_two_replicas_leave_one_owner(engine_url: str) -> None:
    async with open_runtime(engine_url) as one, open_runtime(engine_url) as two:
        await one.put_zone()
        first, second = RoleHarness(one), RoleHarness(two)
        for subject in ("a", "b"):
            await first.put(subject, Role.OWNER)
        results = await asyncio.gather(
            first.put("b", Role.MEMBER, build_caller("a")),
            second.put("a", Role.MEMBER, build_caller("b")),
            return_exceptions=True,
        )
        # The second command comes from a former owner, or would remove the last one.
        assert result_names(results).count("RoleAssignmentChange") == 1
        assert one.database.count("zone_members", "role = 'OWNER'") == 1


async def test_number_of_members_is_limited(role_harness: RoleHarness) -> None:
    for begin in range(0, ROLE_ASSIGNMENTS_MAX - 1, 1_000):
        values = ", ".join(
            f"('{ZONE}', 'm{number}', 'MEMBER', 'x', 1, 1)"
            for number in range(begin, min(begin + 1_000, ROLE_ASSIGNMENTS_MAX - 1))
        )
        role_harness.runtime.database.execute(f"insert into zone_members values {values}")
    results = await role_harness.put_batch(("one", Role.MEMBER, OWNER), ("more", Role.MEMBER, OWNER))
    assert result_names(results) == ["RoleAssignmentChange", "too_many_members"]
    await role_harness.put("m0", None)
    await role_harness.put("more", Role.MEMBER)


async def test_ended_and_unknown_zones_take_no_new_members(role_harness: RoleHarness) -> None:
    await role_harness.runtime.stop_zone(ends=True)
    with pytest.raises(Problem, match="has ended"):
        await role_harness.put("alice", Role.MEMBER)
    with pytest.raises(Problem, match="does not exist"):
        await role_harness.lane.submit(ChangeRole("unknown-zone", "alice", Role.MEMBER, SERVER_ADMIN))


# -- permissions


async def test_role_is_effective_between_the_commits_that_add_and_remove_it(role_harness: RoleHarness) -> None:
    alice = build_caller("alice")
    assert await role_harness.permission_error(alice, "tasks.read") == "not_a_member"
    await role_harness.put("alice", Role.MEMBER)
    assert await role_harness.permission_error(alice, "tasks.read") == ""
    assert await role_harness.permission_error(alice, "coordinator.use") == "forbidden_role"
    await role_harness.put("alice", Role.ADMIN)
    assert await role_harness.permission_error(alice, "coordinator.use") == ""
    await role_harness.put("alice", None)
    assert await role_harness.permission_error(alice, "tasks.read") == "not_a_member"


async def test_role_in_one_zone_gives_no_permission_in_another(role_harness: RoleHarness) -> None:
    await role_harness.lane.submit(ChangeRole(OTHER_ZONE, "alice", Role.OWNER, SERVER_ADMIN))
    alice = build_caller("alice")
    assert await role_harness.permission_error(alice, "tasks.read") == "not_a_member"
    assert await role_harness.permission_error(alice, "tasks.read", OTHER_ZONE) == "workspace_not_found"
    assert (
        await role_harness.permission_error(build_caller("alice", zone_id=OTHER_ZONE), "members.change", OTHER_ZONE)
        == ""
    )
    assert await role_harness.permission_error(SERVER_ADMIN, "members.change", OTHER_ZONE) == ""


async def test_callers_without_a_role_assignment_get_their_role_from_the_token(role_harness: RoleHarness) -> None:
    assert await role_harness.permission_error(build_caller("x", is_local=True), "tasks.change") == ""
    assert await role_harness.permission_error(build_caller("x", is_local=True), "members.read") == "forbidden_role"
    assert (
        await role_harness.permission_error(build_caller("x", scopes=frozenset({COORDINATOR_ADMIN})), "members.read")
        == ""
    )
    assert await role_harness.permission_error(build_caller("x", role=Role.ADMIN), "members.read") == ""


async def test_session_token_is_valid_while_its_session_is_live(role_harness: RoleHarness) -> None:
    session = await role_harness.runtime.spawn()
    bearer = build_caller("olga", role=Role.OWNER, session_id=session.id)
    await role_harness.put("alice", Role.MEMBER, by=bearer)
    await role_harness.runtime.terminate(session)
    assert await role_harness.permission_error(bearer, "tasks.read") == "session_ended"
    with pytest.raises(Problem, match="has ended"):
        await role_harness.put("alice", None, by=bearer)


async def test_agent_token_has_the_agent_role_until_its_agent_is_terminated(role_harness: RoleHarness) -> None:
    agent_id = new_id()
    agent = build_caller("olga", agent_id=agent_id, role=Role.OWNER, is_local=True)
    await role_harness.put("olga", Role.OWNER)
    assert await role_harness.permission_error(agent, "tasks.work") == ""
    assert await role_harness.permission_error(agent, "tasks.change") == "forbidden_role"
    role_harness.runtime.database.execute(
        "insert into agents (zone_id, id, name, capabilities, max_concurrent_tasks, heartbeat_interval_seconds,"
        " stale_threshold_seconds, coordinator_enabled, labels, status, draining, created_by, created_at, updated_at)"
        " values (?, ?, 'a', '[]', 1, 30, 180, 1, '{}', 'IDLE', 0, 'x', 1, 1)",
        ZONE,
        agent_id,
    )
    assert await role_harness.permission_error(agent, "tasks.work") == ""
    assert await role_harness.permission_error(agent, "tasks.work", OTHER_ZONE) == "workspace_not_found"
    role_harness.runtime.database.execute("update agents set status = 'TERMINATED' where id = ?", agent_id)
    assert await role_harness.permission_error(agent, "tasks.work") == "agent_ended"
    # The same id in another zone is another agent.
    other_agent = msgspec.structs.replace(agent, zone_id=OTHER_ZONE)
    assert await role_harness.permission_error(other_agent, "tasks.work", OTHER_ZONE) == ""


async def test_callers_of_a_batch_are_checked_separately_and_the_server_always_passes(
    role_harness: RoleHarness,
) -> None:
    session = await role_harness.runtime.spawn()
    await role_harness.runtime.terminate(session)
    await role_harness.put("alice", Role.MEMBER)
    commands = [
        ZoneCommand(ZONE, None),
        ZoneCommand(ZONE, build_caller("alice")),
        ZoneCommand(ZONE, build_caller("bert")),
        ZoneCommand(ZONE, build_caller("alice", session_id=session.id)),
        ZoneCommand(OTHER_ZONE, SERVER_ADMIN),
        ZoneCommand(ZONE, build_caller("agent", agent_id="a1")),
    ]

    async def check_all(tx: Transaction) -> list[tuple[str | None, Role | None]]:
        batch, _ = await load_with_roles(tx, commands)
        results = []
        for command in commands:
            problem = batch.permission_problem(command, "tasks.change")
            results.append((problem.code if isinstance(problem, Problem) else None, batch.role(command)))
        return results

    assert await role_harness.runtime.engine.read(check_all, zones=[ZONE, OTHER_ZONE, "default"]) == [
        (None, None),
        (None, Role.MEMBER),
        ("not_a_member", None),
        ("session_ended", Role.MEMBER),
        (None, Role.OWNER),
        ("forbidden_role", Role.AGENT),
    ]


async def test_batch_without_zone_callers_needs_no_caller_queries(role_harness: RoleHarness) -> None:
    store = CountingStore(role_harness.runtime.store)
    commands = [ZoneCommand(ZONE, None), ZoneCommand(OTHER_ZONE, SERVER_ADMIN)]
    await Engine(store).read(lambda tx: load_with_roles(tx, commands))
    assert {*store.take_counts().statements_sent} == {"clock"}
