"""Suspension, compared with a simple model: a session is suspended if it or an ancestor has the suspend flag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec
import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from quarterdeck.core.errors import Problem, StateConflict
from quarterdeck.domain.sessions.model import State, Suspend, TreeNode, Verb
from quarterdeck.domain.sessions.rules.suspension import SessionTrees, SuspensionChange
from tests.support.builders import NOW, ZONE, admin, session_row
from tests.support.session_trees import ancestors, session_rows, shapes, subtree_ids, tree_node

SUSPEND: Literal[Verb.SUSPEND] = Verb.SUSPEND
RESUME: Literal[Verb.RESUME] = Verb.RESUME


def suspend_command(session_id: str, verb: Literal[Verb.SUSPEND, Verb.RESUME]) -> Suspend:
    return Suspend(ZONE, session_id, verb, admin())


def state_changes(result: list[SuspensionChange] | Problem) -> dict[str, tuple[State, State]]:
    assert isinstance(result, list), result
    assert len({change.after.id for change in result}) == len(result), "one change per session"
    return {change.after.id: (change.before.status, change.after.status) for change in result}


def require_conflict(result: list[SuspensionChange] | Problem) -> StateConflict:
    assert isinstance(result, StateConflict), result
    assert result.status == 409
    return result


class Tree:
    """A tree of sessions. Every command is decided by a new `SessionTrees`, as in a new batch."""

    def __init__(self, shape: Sequence[int | None] = (None, 0, 1, 0), **changes: dict[str, object]) -> None:
        nodes = [tree_node(row, **changes.get(row.id, {})) for row in session_rows(shape)]
        self.nodes = {node.id: node for node in nodes}

    def decide(self, session_id: str, verb: Literal[Verb.SUSPEND, Verb.RESUME]) -> list[SuspensionChange] | Problem:
        result = SessionTrees(self.nodes.values(), NOW).decide(suspend_command(session_id, verb))
        if isinstance(result, list):
            self.nodes |= {change.after.id: change.after for change in result}
        return result

    def suspend(self, session_id: str) -> dict[str, tuple[State, State]]:
        return state_changes(self.decide(session_id, SUSPEND))

    def resume(self, session_id: str) -> dict[str, tuple[State, State]]:
        return state_changes(self.decide(session_id, RESUME))

    def suspended_ids(self) -> set[str]:
        return {session_id for session_id, node in self.nodes.items() if node.status is State.SUSPENDED}


def sorted_repr(result: list[SuspensionChange] | Problem) -> str:
    return repr(result if isinstance(result, Problem) else sorted(result, key=lambda change: change.after.id))


SUSPENDED = (State.ACTIVE, State.SUSPENDED)
RESUMED = (State.SUSPENDED, State.ACTIVE)
STAYS_SUSPENDED = (State.SUSPENDED, State.SUSPENDED)


# -- the tree: s00 > s01 > s02, and s00 > s03


def test_suspend_includes_all_descendants_but_flags_only_the_target() -> None:
    tree = Tree()
    assert tree.suspend("s01") == {"s01": SUSPENDED, "s02": SUSPENDED}
    assert tree.nodes["s01"].held == 1
    assert tree.nodes["s02"].held == 0


def test_suspended_session_can_be_flagged_and_stays_suspended_after_parent_resume() -> None:
    tree = Tree()
    tree.suspend("s00")
    assert tree.suspend("s01") == {"s01": STAYS_SUSPENDED}
    assert tree.suspend("s01") == {"s01": STAYS_SUSPENDED}, "a repeated suspend is logged again"
    assert tree.resume("s00") == {"s00": RESUMED, "s03": RESUMED}
    assert tree.suspended_ids() == {"s01", "s02"}
    assert tree.resume("s01") == {"s01": RESUMED, "s02": RESUMED}


def test_resume_below_another_flag_changes_no_state() -> None:
    tree = Tree()
    tree.suspend("s01")
    tree.suspend("s00")
    assert tree.resume("s01") == {"s01": STAYS_SUSPENDED}
    assert tree.nodes["s01"].held == 0
    assert tree.resume("s00") == dict.fromkeys(("s00", "s01", "s02", "s03"), RESUMED)


@pytest.mark.parametrize("order", [("s00", "s01"), ("s01", "s00")])
def test_branch_resumes_when_the_last_flag_is_cleared_in_any_order(order: tuple[str, str]) -> None:
    for first, second in (order, order[::-1]):
        tree = Tree()
        tree.suspend(order[0])
        tree.suspend(order[1])
        tree.resume(first)
        assert "s02" in tree.suspended_ids()
        tree.resume(second)
        assert tree.suspended_ids() == set()


# -- refusals


@pytest.mark.parametrize(
    "ended",
    [
        {"status": State.TERMINATED, "terminated_at": NOW - 1},
        {"terminated_at": NOW - 1, "cascade_id": "c"},
        {"status": State.SUSPENDED, "held": 1, "terminated_at": NOW - 1, "cascade_id": "c"},
        {"expires_at": NOW},
        {"status": State.SUSPENDED, "held": 1, "expires_at": NOW},
    ],
    ids=["terminated", "stamped", "stamped and suspended", "expired", "expired and suspended"],
)
def test_ended_session_cannot_be_suspended_or_resumed(ended: dict[str, object]) -> None:
    tree = Tree((None,), s00=ended)
    assert require_conflict(tree.decide("s00", SUSPEND)).code == "agent_not_found_or_not_active"
    refusal = require_conflict(tree.decide("s00", RESUME))
    assert refusal.code == "agent_not_found_or_not_suspended"
    assert "has ended" in refusal.detail
    assert "held_by" not in refusal.members


def test_active_session_cannot_be_resumed() -> None:
    refusal = require_conflict(Tree().decide("s01", RESUME))
    assert refusal.code == "agent_not_found_or_not_suspended"
    assert "not suspended" in refusal.detail
    assert "held_by" not in refusal.members


def test_resume_without_own_flag_names_the_nearest_flagged_ancestor() -> None:
    tree = Tree()
    tree.suspend("s00")
    assert require_conflict(tree.decide("s02", RESUME)).members["held_by"] == "s00"
    tree.suspend("s01")
    refusal = require_conflict(tree.decide("s02", RESUME))
    assert refusal.members["held_by"] == "s01"
    assert refusal.members["frees"] == "resume s01"
    assert "s01" in refusal.detail


@pytest.mark.parametrize(
    "ended", [{"expires_at": NOW}, {"terminated_at": NOW - 1, "cascade_id": "c"}], ids=["expired", "stamped"]
)
def test_ended_descendants_are_neither_suspended_nor_resumed(ended: dict[str, object]) -> None:
    tree = Tree(s01=ended, s02=ended)
    assert tree.suspend("s00") == {"s00": SUSPENDED, "s03": SUSPENDED}
    suspended = Tree(s01={**ended, "status": State.SUSPENDED}, s02={**ended, "status": State.SUSPENDED})
    suspended.suspend("s00")
    assert suspended.resume("s00") == {"s00": RESUMED, "s03": RESUMED}


# -- cycles, after a manual change of the database


@pytest.mark.parametrize("shape", [[0], [1, 0], [2, 0, 1], [1, 0, 0, 2]], ids=str)
def test_cyclic_lineage_can_be_suspended_and_resumed(shape: list[int]) -> None:
    def cycle() -> dict[str, TreeNode]:
        nodes = [tree_node(session_row(id=f"s{number}", parent_id=f"s{parent}")) for number, parent in enumerate(shape)]
        return {node.id: node for node in nodes}

    for session_id in cycle():
        trees = SessionTrees(cycle().values(), NOW)
        reached = subtree_ids(session_id, [*cycle().values()])
        assert state_changes(trees.decide(suspend_command(session_id, SUSPEND))) == dict.fromkeys(reached, SUSPENDED)
        assert state_changes(trees.decide(suspend_command(session_id, RESUME))) == dict.fromkeys(reached, RESUMED)


# -- comparison with the model


COMMANDS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from([SUSPEND, RESUME])), min_size=1, max_size=6)


class SuspensionMachine(RuleBasedStateMachine):
    """The model: a set of flags. A session is suspended if it or an ancestor is in the set."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: dict[str, TreeNode] = {}
        self.flags: set[str] = set()
        self.ended_ids: set[str] = set()

    @initialize(shape=shapes(8))
    def begin(self, shape: list[int | None]) -> None:
        self.nodes = {row.id: tree_node(row) for row in session_rows(shape)}

    @rule(choices=COMMANDS)
    def suspend_or_resume(self, choices: list[tuple[int, Literal[Verb.SUSPEND, Verb.RESUME]]]) -> None:
        """One batch gives the same results as each command in its own batch."""
        session_ids = list(self.nodes)
        commands = [suspend_command(session_ids[index % len(session_ids)], verb) for index, verb in choices]
        batch = SessionTrees(self.load(commands), NOW)
        for command in commands:
            alone = SessionTrees(self.load([command]), NOW).decide(command)
            result = batch.decide(command)
            assert sorted_repr(result) == sorted_repr(alone)
            self.check(command, result)

    def check(self, command: Suspend, result: list[SuspensionChange] | Problem) -> None:
        session_id, before = command.session_id, self.suspended_ids()
        if session_id in self.ended_ids or (command.verb is Verb.RESUME and session_id not in self.flags):
            refusal = require_conflict(result)
            nearest = next((ancestor for ancestor in self.ancestor_ids(session_id) if ancestor in self.flags), None)
            assert refusal.members.get("held_by") == (None if session_id in self.ended_ids else nearest)
            return
        if command.verb is Verb.SUSPEND:
            self.flags.add(session_id)
        else:
            self.flags.remove(session_id)
        changes = state_changes(result)
        assert session_id in changes
        expected = before ^ self.suspended_ids()
        assert {
            changed_id for changed_id, (before_state, after_state) in changes.items() if before_state is not after_state
        } == expected
        assert changes.keys() == expected | {session_id}
        assert isinstance(result, list)
        self.nodes |= {change.after.id: change.after for change in result}

    @rule(index=st.integers(0, 30))
    def spawn(self, index: int) -> None:
        """A child of an active session, or a root: admission allows no other parent."""
        active = sorted(self.nodes.keys() - self.suspended_ids() - self.ended_ids)
        parent = [*active, None][index % (len(active) + 1)]
        session_id = f"s{len(self.nodes):02}"
        self.nodes[session_id] = tree_node(session_row(id=session_id), parent_id=parent)

    @rule(index=st.integers(0, 30), kind=st.sampled_from(["terminated", "stamped", "expired"]))
    def end(self, index: int, kind: str) -> None:
        top = list(self.nodes)[index % len(self.nodes)]
        for session_id in subtree_ids(top, [*self.nodes.values()]) - self.ended_ids:
            changes: dict[str, object] = {"expires_at": NOW} if kind == "expired" else {"terminated_at": NOW - 1}
            if kind == "terminated":
                changes["status"] = State.TERMINATED
            self.nodes[session_id] = msgspec.structs.replace(self.nodes[session_id], **changes)
            self.ended_ids.add(session_id)

    @invariant()
    def states_and_flags_equal_the_model(self) -> None:
        for session_id in self.nodes.keys() - self.ended_ids:
            assert (self.nodes[session_id].status is State.SUSPENDED) == (session_id in self.suspended_ids()), (
                session_id
            )
            assert bool(self.nodes[session_id].held) == (session_id in self.flags), session_id

    def suspended_ids(self) -> set[str]:
        live = self.nodes.keys() - self.ended_ids
        return {
            session_id
            for session_id in live
            if session_id in self.flags or self.flags.intersection(self.ancestor_ids(session_id))
        }

    def ancestor_ids(self, session_id: str) -> list[str]:
        return list(ancestors(session_id, [*self.nodes.values()]))

    def load(self, commands: Sequence[Suspend]) -> list[TreeNode]:
        """The rows that the SQL loads for these commands: lineages, and descendants that are not terminated."""
        found: dict[str, TreeNode] = {}
        not_terminated = [node for node in self.nodes.values() if node.status is not State.TERMINATED]
        for command in commands:
            reached = subtree_ids(command.session_id, not_terminated)
            found |= {node.id: node for node in not_terminated if node.id in reached}
            found |= {
                session_id: self.nodes[session_id]
                for session_id in (command.session_id, *self.ancestor_ids(command.session_id))
            }
        return [*found.values()]


SuspensionMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestSuspensionAgreesWithModel = SuspensionMachine.TestCase
