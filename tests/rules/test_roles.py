"""The role of a caller in a workspace, the permissions of each role, and changes of role assignments."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.caller import COORDINATOR_ADMIN, Caller, Role
from quarterdeck.core.errors import Conflict, Forbidden, LimitReached, NotFound, Problem
from quarterdeck.domain.zones import rules
from quarterdeck.domain.zones.model import ROLE_ASSIGNMENTS_MAX, ChangeRole, RoleAssignment, RoleAssignmentChange
from quarterdeck.domain.zones.rules import PERMISSIONS, RoleAssignmentBatch
from quarterdeck.domain.zones.rules.role_assignments import RoleCounts
from tests.support.builders import NOW, ZONE
from tests.support.permissions import ROLES_BY_PERMISSION

EXTERNAL = Caller("alice", "app", ZONE, frozenset())
"""A caller from another issuer, whose token has no role claim."""
LOCAL = msgspec.structs.replace(EXTERNAL, is_local=True)
SCOPE_ADMIN = msgspec.structs.replace(EXTERNAL, scopes=frozenset({COORDINATOR_ADMIN}))
CROSS_ZONE_ADMIN = msgspec.structs.replace(EXTERNAL, is_admin=True)
AGENT = msgspec.structs.replace(LOCAL, agent_id="a1")


def with_role(caller: Caller, role: Role) -> Caller:
    return msgspec.structs.replace(caller, role=role)


# -- effective role


@pytest.mark.parametrize(
    ("caller", "assigned_role", "role"),
    [
        (EXTERNAL, None, None),
        (EXTERNAL, Role.MEMBER, Role.MEMBER),
        (with_role(EXTERNAL, Role.OWNER), None, Role.OWNER),
        (with_role(EXTERNAL, Role.OWNER), Role.MEMBER, Role.MEMBER),
        (SCOPE_ADMIN, None, Role.ADMIN),
        (SCOPE_ADMIN, Role.MEMBER, Role.MEMBER),
        (with_role(SCOPE_ADMIN, Role.MEMBER), None, Role.MEMBER),
        (LOCAL, None, Role.MEMBER),
        (LOCAL, Role.ADMIN, Role.ADMIN),
        (CROSS_ZONE_ADMIN, None, Role.OWNER),
        (CROSS_ZONE_ADMIN, Role.MEMBER, Role.OWNER),
    ],
)
def test_assigned_role_overrides_token_role_which_overrides_the_default(
    caller: Caller, assigned_role: Role | None, role: Role | None
) -> None:
    assert rules.effective_role(caller, ZONE, assigned_role) is role


@given(
    assigned_role=st.none() | st.sampled_from(Role),
    role=st.none() | st.sampled_from(Role),
    is_admin=st.booleans(),
    scopes=st.frozensets(st.just(COORDINATOR_ADMIN)),
)
def test_token_with_agent_id_has_role_agent_only_in_its_own_zone(
    assigned_role: Role | None, role: Role | None, is_admin: bool, scopes: frozenset[str]
) -> None:
    caller = msgspec.structs.replace(AGENT, role=role, is_admin=is_admin, scopes=scopes)
    assert rules.effective_role(caller, ZONE, assigned_role) is Role.AGENT
    assert rules.effective_role(caller, "other-zone", assigned_role) is None
    assert not rules.can_access_zone(caller, "other-zone")


@given(role=st.none() | st.sampled_from(Role), assigned_role=st.none() | st.sampled_from(Role), is_local=st.booleans())
def test_only_a_cross_zone_admin_has_a_role_in_another_zone(
    role: Role | None, assigned_role: Role | None, is_local: bool
) -> None:
    caller = msgspec.structs.replace(EXTERNAL, role=role, is_local=is_local)
    assert rules.effective_role(caller, "other-zone", assigned_role) is None
    for permission in PERMISSIONS:
        problem = rules.permission_problem(caller, "other-zone", assigned_role, permission)
        assert isinstance(problem, NotFound)
        assert problem.code == "workspace_not_found"
        assert rules.permission_problem(CROSS_ZONE_ADMIN, "other-zone", None, permission) is None


# -- permissions


def test_each_permission_has_the_roles_of_the_hand_written_table() -> None:
    assert PERMISSIONS == ROLES_BY_PERMISSION


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("permission", PERMISSIONS)
def test_role_has_exactly_the_permissions_of_the_table(role: Role, permission: str) -> None:
    problem = rules.permission_problem(EXTERNAL, ZONE, role, permission)
    if role in PERMISSIONS[permission]:
        assert problem is None
    else:
        assert isinstance(problem, Forbidden)
        assert (problem.code, problem.members["role"]) == ("forbidden_role", role)
        assert problem.members["allowed"] == [other for other in Role if other in PERMISSIONS[permission]]


def test_higher_role_has_every_permission_of_the_lower_ones() -> None:
    order = [Role.AGENT, Role.MEMBER, Role.ADMIN, Role.OWNER]
    for below, above in itertools.pairwise(order):
        assert {permission for permission, roles in PERMISSIONS.items() if below in roles} <= {
            permission for permission, roles in PERMISSIONS.items() if above in roles
        }


def test_caller_without_a_role_is_refused_as_not_a_member() -> None:
    for permission in PERMISSIONS:
        problem = rules.permission_problem(EXTERNAL, ZONE, None, permission)
        assert isinstance(problem, Forbidden)
        assert problem.code == "not_a_member"


def test_unknown_permission_raises_key_error() -> None:
    with pytest.raises(KeyError):
        rules.permission_problem(LOCAL, ZONE, None, "tasks.everything")


# -- role assignments


def assignment(subject: str, role: Role) -> RoleAssignment:
    return RoleAssignment(ZONE, subject, role, "local", NOW - 1, NOW - 1)


def role_batch(*assignments: RoleAssignment, count: int | None = None) -> RoleAssignmentBatch:
    owners = sum(assignment.role is Role.OWNER for assignment in assignments)
    return RoleAssignmentBatch(
        assignments, {ZONE: RoleCounts(len(assignments) if count is None else count, owners)}, NOW
    )


def change(subject: str, role: Role | None) -> ChangeRole:
    return ChangeRole(ZONE, subject, role, EXTERNAL)


def code(outcome: RoleAssignmentChange | Problem) -> str:
    assert isinstance(outcome, Problem)
    return outcome.code


@pytest.mark.parametrize("role", Role)
def test_owner_can_assign_every_role(role: Role) -> None:
    outcome = role_batch(assignment("o", Role.OWNER)).decide(change("x", role), Role.OWNER)
    assert isinstance(outcome, RoleAssignmentChange)
    assert (outcome.before, outcome.after) == (None, RoleAssignment(ZONE, "x", role, "alice", NOW, NOW))


@pytest.mark.parametrize(
    ("subject", "role"), [("x", Role.OWNER), ("o", Role.OWNER), ("o", Role.ADMIN), ("o", None), ("m", Role.OWNER)]
)
def test_admin_cannot_assign_or_remove_an_owner(subject: str, role: Role | None) -> None:
    batch = role_batch(assignment("o", Role.OWNER), assignment("p", Role.OWNER), assignment("m", Role.MEMBER))
    outcome = batch.decide(change(subject, role), Role.ADMIN)
    if (subject, role) == ("o", Role.OWNER):
        assert isinstance(outcome, RoleAssignmentChange), "a change without effect needs no permission"
    else:
        assert code(outcome) == "forbidden_role"
    assert batch.changes == {}


def test_last_owner_cannot_be_demoted_or_removed_while_others_remain() -> None:
    batch = role_batch(assignment("o", Role.OWNER), assignment("m", Role.MEMBER))
    for role in (Role.ADMIN, Role.MEMBER, Role.AGENT, None):
        outcome = batch.decide(change("o", role), Role.OWNER)
        assert isinstance(outcome, Conflict)
        assert outcome.code == "last_owner"


def test_sole_owner_can_be_removed_but_not_demoted() -> None:
    batch = role_batch(assignment("o", Role.OWNER))
    assert code(batch.decide(change("o", Role.ADMIN), Role.OWNER)) == "last_owner"
    outcome = batch.decide(change("o", None), Role.OWNER)
    assert isinstance(outcome, RoleAssignmentChange)
    assert outcome.after is None


def test_two_owners_demoting_each_other_in_one_batch_leave_one_owner() -> None:
    batch = role_batch(assignment("o", Role.OWNER), assignment("p", Role.OWNER))
    assert isinstance(batch.decide(change("p", Role.MEMBER), Role.OWNER), RoleAssignmentChange)
    assert code(batch.decide(change("o", Role.MEMBER), Role.OWNER)) == "last_owner"


def test_repeated_assignment_changes_no_row_and_applies_nothing() -> None:
    batch = role_batch(assignment("o", Role.OWNER))
    outcome = batch.decide(change("o", Role.OWNER), Role.OWNER)
    assert outcome == RoleAssignmentChange(assignment("o", Role.OWNER), assignment("o", Role.OWNER))
    assert (batch.changes, batch.applied) == ({}, [])
    assert code(batch.decide(change("unknown", None), Role.OWNER)) == "member_not_found"


def test_full_workspace_refuses_new_assignments_but_allows_change_and_removal() -> None:
    full = role_batch(assignment("o", Role.OWNER), assignment("m", Role.MEMBER), count=ROLE_ASSIGNMENTS_MAX)
    refused = full.decide(change("x", Role.MEMBER), Role.OWNER)
    assert isinstance(refused, LimitReached)
    assert (refused.bound, refused.limit, refused.used) == ("max_members", ROLE_ASSIGNMENTS_MAX, ROLE_ASSIGNMENTS_MAX)
    assert isinstance(full.decide(change("m", Role.ADMIN), Role.OWNER), RoleAssignmentChange)
    assert isinstance(full.decide(change("m", None), Role.OWNER), RoleAssignmentChange)
    assert isinstance(full.decide(change("x", Role.MEMBER), Role.OWNER), RoleAssignmentChange)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.none() | st.sampled_from(Role), st.sampled_from([Role.OWNER, Role.ADMIN]))
    )
)
def test_workspace_with_an_owner_never_has_members_without_one(changes: list[tuple[str, Role | None, Role]]) -> None:
    batch = role_batch(assignment("o", Role.OWNER))
    roles = {"o": Role.OWNER}
    for subject, role, caller_role in changes:
        outcome = batch.decide(change(subject, role), caller_role)
        if isinstance(outcome, RoleAssignmentChange):
            if outcome.after is None:
                del roles[subject]
            else:
                roles[subject] = outcome.after.role
        assert not roles or Role.OWNER in roles.values()
    changed = {
        ref[1]: role_change.after.role if role_change.after else None for ref, role_change in batch.changes.items()
    }
    assert {name: role for name, role in ({"o": Role.OWNER} | changed).items() if role is not None} == roles
