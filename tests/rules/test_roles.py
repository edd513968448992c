"""What a bearer is in a workspace, what each role may do, and who may be made a member."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.caller import COORDINATOR_ADMIN, Caller, Role
from quarterdeck.core.errors import Conflict, Forbidden, LimitReached, NotFound, Problem
from quarterdeck.domain.zones import rules
from quarterdeck.domain.zones.model import ROLE_ASSIGNMENTS_MAX, ChangeRole, RoleAssignment, RoleChange
from quarterdeck.domain.zones.rules import PERMISSIONS, RoleAssignmentBatch, RoleCounts
from tests.support.builders import NOW, ZONE

STRANGER = Caller("alice", "app", ZONE, frozenset())
"""Somebody whose issuer is not ours, and says nothing of roles."""
LOCAL = msgspec.structs.replace(STRANGER, is_local=True)
RULING = msgspec.structs.replace(STRANGER, scopes=frozenset({COORDINATOR_ADMIN}))
CROSSING = msgspec.structs.replace(STRANGER, is_admin=True)
AGENT = msgspec.structs.replace(LOCAL, agent_id="a1")


def said(caller: Caller, role: Role) -> Caller:
    return msgspec.structs.replace(caller, role=role)


# -- what a bearer is


@pytest.mark.parametrize(
    ("caller", "row", "role"),
    [
        (STRANGER, None, None),
        (STRANGER, Role.MEMBER, Role.MEMBER),
        (said(STRANGER, Role.OWNER), None, Role.OWNER),
        (said(STRANGER, Role.OWNER), Role.MEMBER, Role.MEMBER),
        (RULING, None, Role.ADMIN),
        (RULING, Role.MEMBER, Role.MEMBER),
        (said(RULING, Role.MEMBER), None, Role.MEMBER),
        (LOCAL, None, Role.MEMBER),
        (LOCAL, Role.ADMIN, Role.ADMIN),
        (CROSSING, None, Role.OWNER),
        (CROSSING, Role.MEMBER, Role.OWNER),
    ],
)
def test_a_row_counts_before_the_tokens_role_and_that_before_what_is_usual(
    caller: Caller, row: Role | None, role: Role | None
) -> None:
    assert rules.effective_role(caller, ZONE, row) is role


@given(
    row=st.none() | st.sampled_from(Role),
    role=st.none() | st.sampled_from(Role),
    is_admin=st.booleans(),
    scopes=st.frozensets(st.just(COORDINATOR_ADMIN)),
)
def test_a_token_that_names_an_agent_is_that_agents_and_no_more(
    row: Role | None, role: Role | None, is_admin: bool, scopes: frozenset[str]
) -> None:
    caller = msgspec.structs.replace(AGENT, role=role, is_admin=is_admin, scopes=scopes)
    assert rules.effective_role(caller, ZONE, row) is Role.AGENT
    assert rules.effective_role(caller, "another", row) is None
    assert not rules.can_access_zone(caller, "another")


@given(role=st.none() | st.sampled_from(Role), row=st.none() | st.sampled_from(Role), is_local=st.booleans())
def test_in_another_zone_nobody_is_anything_but_who_crosses_zones(
    role: Role | None, row: Role | None, is_local: bool
) -> None:
    caller = msgspec.structs.replace(STRANGER, role=role, is_local=is_local)
    assert rules.effective_role(caller, "another", row) is None
    for power in PERMISSIONS:
        problem = rules.permission_problem(caller, "another", row, power)
        assert isinstance(problem, NotFound)
        assert problem.code == "workspace_not_found"
        assert rules.permission_problem(CROSSING, "another", None, power) is None


# -- what each role may do


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("power", PERMISSIONS)
def test_a_role_has_the_powers_that_the_table_gives_it_and_no_others(role: Role, power: str) -> None:
    problem = rules.permission_problem(STRANGER, ZONE, role, power)
    if role in PERMISSIONS[power]:
        assert problem is None
    else:
        assert isinstance(problem, Forbidden)
        assert (problem.code, problem.members["role"]) == ("forbidden_role", role)
        assert problem.members["allowed"] == [each for each in Role if each in PERMISSIONS[power]]


def test_the_roles_above_have_every_power_of_those_below() -> None:
    order = [Role.AGENT, Role.MEMBER, Role.ADMIN, Role.OWNER]
    for below, above in itertools.pairwise(order):
        assert {power for power, roles in PERMISSIONS.items() if below in roles} <= {
            power for power, roles in PERMISSIONS.items() if above in roles
        }


def test_whoever_is_nothing_in_a_workspace_is_told_that_and_nothing_else() -> None:
    for power in PERMISSIONS:
        problem = rules.permission_problem(STRANGER, ZONE, None, power)
        assert isinstance(problem, Forbidden)
        assert problem.code == "not_a_member"


def test_a_power_that_the_table_does_not_know_is_a_defect() -> None:
    with pytest.raises(KeyError):
        rules.permission_problem(LOCAL, ZONE, None, "tasks.everything")


# -- members


def member(subject: str, role: Role) -> RoleAssignment:
    return RoleAssignment(ZONE, subject, role, "local", NOW - 1, NOW - 1)


def roster(*members: RoleAssignment, count: int | None = None) -> RoleAssignmentBatch:
    owners = sum(one.role is Role.OWNER for one in members)
    return RoleAssignmentBatch(members, {ZONE: RoleCounts(len(members) if count is None else count, owners)}, NOW)


def change(subject: str, role: Role | None) -> ChangeRole:
    return ChangeRole(ZONE, subject, role, STRANGER)


def code(outcome: RoleChange | Problem) -> str:
    assert isinstance(outcome, Problem)
    return outcome.code


@pytest.mark.parametrize("role", Role)
def test_an_owner_makes_anybody_anything(role: Role) -> None:
    outcome = roster(member("o", Role.OWNER)).decide(change("x", role), Role.OWNER)
    assert isinstance(outcome, RoleChange)
    assert (outcome.before, outcome.after) == (None, RoleAssignment(ZONE, "x", role, "alice", NOW, NOW))


@pytest.mark.parametrize(
    ("subject", "role"), [("x", Role.OWNER), ("o", Role.OWNER), ("o", Role.ADMIN), ("o", None), ("m", Role.OWNER)]
)
def test_an_admin_neither_makes_nor_unmakes_an_owner(subject: str, role: Role | None) -> None:
    held = roster(member("o", Role.OWNER), member("p", Role.OWNER), member("m", Role.MEMBER))
    outcome = held.decide(change(subject, role), Role.ADMIN)
    if (subject, role) == ("o", Role.OWNER):
        assert isinstance(outcome, RoleChange), "it changes nothing, and that may everybody"
    else:
        assert code(outcome) == "forbidden_role"
    assert held.changes == {}


def test_the_last_owner_is_neither_demoted_nor_removed_while_there_are_others() -> None:
    held = roster(member("o", Role.OWNER), member("m", Role.MEMBER))
    for role in (Role.ADMIN, Role.MEMBER, Role.AGENT, None):
        outcome = held.decide(change("o", role), Role.OWNER)
        assert isinstance(outcome, Conflict)
        assert outcome.code == "last_owner"


def test_the_last_member_may_go_also_if_it_is_the_owner_but_may_not_be_demoted() -> None:
    alone = roster(member("o", Role.OWNER))
    assert code(alone.decide(change("o", Role.ADMIN), Role.OWNER)) == "last_owner"
    outcome = alone.decide(change("o", None), Role.OWNER)
    assert isinstance(outcome, RoleChange)
    assert outcome.after is None


def test_of_two_owners_who_unmake_each_other_at_once_one_stays() -> None:
    held = roster(member("o", Role.OWNER), member("p", Role.OWNER))
    assert isinstance(held.decide(change("p", Role.MEMBER), Role.OWNER), RoleChange)
    assert code(held.decide(change("o", Role.MEMBER), Role.OWNER)) == "last_owner"


def test_what_is_asked_again_changes_nothing_and_is_told_to_nobody() -> None:
    held = roster(member("o", Role.OWNER))
    outcome = held.decide(change("o", Role.OWNER), Role.OWNER)
    assert outcome == RoleChange(member("o", Role.OWNER), member("o", Role.OWNER))
    assert (held.changes, held.applied) == ({}, [])
    assert code(held.decide(change("nobody", None), Role.OWNER)) == "member_not_found"


def test_a_full_workspace_takes_nobody_else_but_changes_and_lets_go() -> None:
    full = roster(member("o", Role.OWNER), member("m", Role.MEMBER), count=ROLE_ASSIGNMENTS_MAX)
    refused = full.decide(change("x", Role.MEMBER), Role.OWNER)
    assert isinstance(refused, LimitReached)
    assert (refused.bound, refused.limit, refused.used) == ("max_members", ROLE_ASSIGNMENTS_MAX, ROLE_ASSIGNMENTS_MAX)
    assert isinstance(full.decide(change("m", Role.ADMIN), Role.OWNER), RoleChange)
    assert isinstance(full.decide(change("m", None), Role.OWNER), RoleChange)
    assert isinstance(full.decide(change("x", Role.MEMBER), Role.OWNER), RoleChange)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.none() | st.sampled_from(Role), st.sampled_from([Role.OWNER, Role.ADMIN]))
    )
)
def test_whatever_is_asked_members_never_stand_without_an_owner_once_there_was_one(
    asks: list[tuple[str, Role | None, Role]],
) -> None:
    held = roster(member("o", Role.OWNER))
    now = {"o": Role.OWNER}
    for subject, role, by in asks:
        outcome = held.decide(change(subject, role), by)
        if isinstance(outcome, RoleChange):
            if outcome.after is None:
                del now[subject]
            else:
                now[subject] = outcome.after.role
        assert not now or Role.OWNER in now.values()
    moved = {ref[1]: one.after.role if one.after else None for ref, one in held.changes.items()}
    assert {name: role for name, role in ({"o": Role.OWNER} | moved).items() if role is not None} == now
