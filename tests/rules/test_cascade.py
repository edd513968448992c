"""Rules of terminations: order, permission, reason, joined cascades, and chunks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Forbidden, NotFound
from quarterdeck.domain.sessions.model import Cascade, Session, State, StopZone, Terminate, TerminateResult, TreeNode
from quarterdeck.domain.sessions.rules.cascade import (
    TerminateBatchInput,
    TerminateCommand,
    TerminateDecider,
    post_order,
    remaining_reasons,
)
from tests.support.builders import APP, NOW, ZONE, admin, caller, session_row
from tests.support.session_trees import cascade_row, parents_first, session_rows, shapes, subtree_ids, tree_node
from tests.support.structs import build_struct

LARGE_CHUNK = 1_000


def tree_nodes(sessions: Sequence[Session], **changes: object) -> list[TreeNode]:
    return [tree_node(row, **changes) for row in parents_first(sessions)]


def batch_input(
    nodes: Sequence[TreeNode], *commands: TerminateCommand, open_cascades: Sequence[Cascade] = (), now: int = NOW
) -> TerminateBatchInput:
    """What the queries would return for these commands."""
    loaded = {
        (command.zone_id, command.session_id): [
            node for node in nodes if command.session_id is None or node.id in subtree_ids(command.session_id, nodes)
        ]
        for command in commands
    }
    targets = {(node.zone_id, node.id): session_row(id=node.id, application_id=node.application_id) for node in nodes}
    return TerminateBatchInput(
        now, targets, loaded, {(cascade.zone_id, cascade.id): cascade for cascade in open_cascades}
    )


def terminate_command(session_id: str, reason: str = "enough", requester: Caller | None = None) -> Terminate:
    return Terminate(ZONE, session_id, reason, requester)


def stop_command(reason: str = "enough", **fields: object) -> StopZone:
    return build_struct(StopZone, ZONE, reason, admin(), **fields)


def decide_all(
    loaded: TerminateBatchInput, commands: Sequence[TerminateCommand], chunk: int = LARGE_CHUNK
) -> tuple[TerminateDecider, list[TerminateResult]]:
    decider = TerminateDecider(loaded, chunk)
    outcomes = [decider.decide(command, f"c{number}") for number, command in enumerate(commands)]
    results = [outcome for outcome in outcomes if isinstance(outcome, TerminateResult)]
    assert results == outcomes
    return decider, results


# -- order


@given(shapes(40))
def test_every_session_ends_directly_after_its_own_descendants(shape: list[int | None]) -> None:
    nodes = tree_nodes(session_rows(shape))
    order = [node.id for node in post_order(nodes)]
    assert sorted(order) == sorted(node.id for node in nodes), "every session once"
    for index, session_id in enumerate(order):
        subtree = subtree_ids(session_id, nodes)
        assert set(order[index + 1 - len(subtree) : index + 1]) == subtree, "a subtree is contiguous, its root last"


@given(shapes(40))
def test_siblings_end_in_order_of_creation(shape: list[int | None]) -> None:
    nodes = tree_nodes(session_rows(shape))
    order = [node.id for node in post_order(nodes)]
    for parent in {node.parent_id for node in nodes}:
        children = [node.id for node in nodes if node.parent_id == parent]
        assert sorted(children, key=order.index) == children


def test_post_order_of_no_nodes_is_empty() -> None:
    assert post_order([]) == []


def test_post_order_of_a_chain_of_10_000_does_not_recurse() -> None:
    nodes = [tree_node(session_row(id="0"))]
    for number in range(1, 10_000):
        nodes.append(tree_node(session_row(id=str(number)), parent_id=str(number - 1)))
    assert [node.id for node in post_order(nodes)] == [str(number) for number in range(9_999, -1, -1)]


@given(st.lists(st.integers(0, 8), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_post_order_contains_every_node_once_even_with_parent_cycles(parents: list[int], rng: Random) -> None:
    # Includes cycles, sessions that are their own parent, and parents listed after their children.
    rows = [session_row(id=f"s{number}", parent_id=f"s{parent}") for number, parent in enumerate(parents)]
    rng.shuffle(rows)
    order = [node.id for node in post_order([tree_node(row) for row in rows])]
    assert sorted(order) == sorted(row.id for row in rows)


# -- chunks


def test_also_terminate_ends_all_sessions_once_in_one_termination() -> None:
    # Two trees. A descendant of the second root is named too.
    nodes = tree_nodes(session_rows([None, 0, None, 2, 3]))
    command = Terminate(ZONE, "s00", "enough", also_terminate=("s02", "s03", "unknown"))
    loaded = batch_input(nodes, terminate_command("s00"), terminate_command("s02"), terminate_command("s03"))
    for chunk in (5, 4):
        decider, [outcome] = decide_all(loaded, [command], chunk)
        assert (outcome.stopped, outcome.cascade_id) == (5, None if chunk == 5 else "c0")
        groups = [decider.terminated] if chunk == 5 else [group for _, group in decider.marked]
        assert [sorted(session_end.node.id for session_end in group) for group in groups] == [
            sorted(node.id for node in nodes)
        ]


def test_also_terminate_applies_when_the_target_does_not_exist() -> None:
    nodes = tree_nodes(session_rows([None]))
    command = Terminate(ZONE, "gone", "enough", also_terminate=("s00",))
    _, [outcome] = decide_all(batch_input(nodes, terminate_command("s00")), [command])
    assert outcome.stopped == 1


@pytest.mark.parametrize(("chunk", "is_marked"), [(8, False), (7, False), (6, True), (1, True)])
def test_tree_above_the_chunk_size_is_marked_and_a_smaller_one_terminated(chunk: int, is_marked: bool) -> None:
    nodes = tree_nodes(session_rows([None, 0, 0, 1, 1, 2, 2]))
    decider, [outcome] = decide_all(batch_input(nodes, terminate_command("s00")), [terminate_command("s00")], chunk)
    assert outcome == TerminateResult(ZONE, "s00", "enough", 7, "c0" if is_marked else None)
    if is_marked:
        assert decider.terminated == []
        [(cascade, ends)] = decider.marked
        assert cascade == cascade_row("c0", "s00", reason="enough", actor="sweep", stamped=7)
    else:
        ends = decider.terminated
        assert decider.marked == []
    assert [session_end.node for session_end in ends] == post_order(nodes)


def test_one_transaction_terminates_at_most_one_chunk() -> None:
    nodes = tree_nodes(session_rows([None, 0, None, 2, None, 4]))
    commands = [terminate_command("s00"), terminate_command("s02"), terminate_command("s04")]
    decider, outcomes = decide_all(batch_input(nodes, *commands), commands, 4)
    assert [session_end.node.id for session_end in decider.terminated] == ["s01", "s00", "s03", "s02"]
    assert [outcome.cascade_id for outcome in outcomes] == [None, None, "c2"]


def test_small_termination_after_a_large_one_in_a_batch_is_immediate() -> None:
    nodes = tree_nodes(session_rows([None, 0, 0, 0, None]))
    commands = [terminate_command("s00"), terminate_command("s04")]
    decider, outcomes = decide_all(batch_input(nodes, *commands), commands, 2)
    assert [outcome.cascade_id for outcome in outcomes] == ["c0", None]
    assert [session_end.node.id for session_end in decider.terminated] == ["s04"]


def test_cascade_stores_actor_reason_and_trace() -> None:
    nodes = tree_nodes(session_rows([None, 0]))
    command = Terminate(ZONE, "s00", "because", caller("app"), "00-trace")
    decider, _ = decide_all(batch_input(nodes, command), [command], 1)
    [(cascade, _)] = decider.marked
    assert (cascade.actor, cascade.trace, cascade.reason, cascade.target_id) == ("tester", "00-trace", "because", "s00")


# -- reason and time


@pytest.mark.parametrize(
    ("expires_at", "reason", "ended_at"),
    [(NOW + 1, "enough", NOW), (NOW, "ttl_expired", NOW), (NOW - 5, "ttl_expired", NOW - 5)],
)
@pytest.mark.parametrize("chunk", [LARGE_CHUNK, 1])
def test_expired_session_ends_with_reason_ttl_expired_at_its_expiry(
    expires_at: int, reason: str, ended_at: int, chunk: int
) -> None:
    root, child = tree_nodes(session_rows([None, 0]))
    child = tree_node(session_rows([None, 0])[1], expires_at=expires_at)
    decider, _ = decide_all(batch_input([root, child], terminate_command("s00")), [terminate_command("s00")], chunk)
    ends = decider.terminated or decider.marked[0][1]
    assert [(session_end.node.id, session_end.reason, session_end.ended_at) for session_end in ends] == [
        ("s01", reason, ended_at),
        ("s00", "enough", NOW),
    ]


def test_suspended_sessions_are_terminated_too() -> None:
    nodes = tree_nodes(session_rows([None, 0]), status=State.SUSPENDED, held=1)
    decider, [outcome] = decide_all(batch_input(nodes, terminate_command("s00")), [terminate_command("s00")])
    assert outcome.stopped == len(decider.terminated) == 2


# -- refusals


def test_unknown_session_is_not_found_and_terminates_nothing() -> None:
    decider = TerminateDecider(batch_input(tree_nodes(session_rows([None]))), LARGE_CHUNK)
    outcome = decider.decide(terminate_command("unknown"), "c")
    assert isinstance(outcome, NotFound)
    assert outcome.code == "agent_not_found"
    assert (decider.terminated, decider.marked) == ([], [])


@pytest.mark.parametrize(
    ("requester", "is_allowed"),
    [
        (None, True),
        (caller(APP), True),
        (caller("other", f"coordinator.spawn_for:{APP}"), True),
        (admin(), True),
        (caller("other"), False),
        (caller("other", "coordinator.spawn_for:another"), False),
        (caller("other", f"coordinator.spawn_under:{APP}"), False),
    ],
)
@pytest.mark.parametrize("is_live", [True, False])
def test_termination_requires_the_application_even_of_an_ended_session(
    requester: Caller | None, is_allowed: bool, is_live: bool
) -> None:
    loaded = batch_input(tree_nodes(session_rows([None])), terminate_command("s00"))
    decider = TerminateDecider(loaded if is_live else TerminateBatchInput(NOW, loaded.targets, {}), LARGE_CHUNK)
    outcome = decider.decide(terminate_command("s00", requester=requester), "c")
    if is_allowed:
        assert isinstance(outcome, TerminateResult)
        assert outcome.stopped == is_live
    else:
        assert isinstance(outcome, Forbidden)
        assert outcome.code == "application_ownership_required"
        assert decider.terminated == []


# -- overlapping terminations


def mark_subtree(nodes: Sequence[TreeNode], root_id: str, cascade_id: str) -> list[TreeNode]:
    subtree = subtree_ids(root_id, nodes)
    return [mark(node, cascade_id) if node.id in subtree else node for node in nodes]


def test_terminating_a_marked_session_joins_its_cascade_and_returns_its_reason() -> None:
    nodes = mark_subtree(tree_nodes(session_rows([None, 0, 0])), "s00", "first")
    open_cascades = [cascade_row("first", "s00")]
    for session_id in ("s00", "s01"):
        command = terminate_command(session_id, "second")
        decider, [outcome] = decide_all(batch_input(nodes, command, open_cascades=open_cascades), [command])
        assert outcome == TerminateResult(ZONE, session_id, "reason of first", 0, "first", joined=True)
        assert (decider.terminated, decider.marked) == ([], [])


def test_terminating_an_ended_session_joins_no_cascade() -> None:
    loaded = batch_input(tree_nodes(session_rows([None])))
    loaded = TerminateBatchInput(NOW, loaded.targets, {}, {(ZONE, "other"): cascade_row("other", "other-session")})
    _, [outcome] = decide_all(loaded, [terminate_command("s00")])
    assert outcome == TerminateResult(ZONE, "s00", "enough", 0)


@pytest.mark.parametrize("started_at", [NOW - 5, NOW, NOW + 60_000])
def test_cascade_of_a_tree_starts_after_the_open_cascade_of_its_branch(started_at: int) -> None:
    # Cascades finish in order of `started_at`. The branch must come first even if the clock stepped back.
    nodes = mark_subtree(tree_nodes(session_rows([None, 0, 0, 1])), "s01", "branch")
    open_cascades = [cascade_row("branch", "s01", started_at)]
    decider, [outcome] = decide_all(
        batch_input(nodes, terminate_command("s00"), open_cascades=open_cascades), [terminate_command("s00")]
    )
    assert outcome == TerminateResult(ZONE, "s00", "enough", 2, "c0")
    [(cascade, ends)] = decider.marked
    assert [session_end.node.id for session_end in ends] == ["s02", "s00"]
    assert cascade.started_at == max(NOW, started_at + 1)


def test_joining_several_cascades_returns_the_last_of_them() -> None:
    nodes = mark_subtree(mark_subtree(tree_nodes(session_rows([None, 0, 0])), "s00", "tree"), "s01", "branch")
    open_cascades = [
        cascade_row("tree", "s00", NOW + 1),
        cascade_row("branch", "s01", NOW),
        cascade_row("unrelated", "x", NOW + 9),
    ]
    command = terminate_command("s00")
    _, [outcome] = decide_all(batch_input(nodes, command, open_cascades=open_cascades), [command])
    assert (outcome.cascade_id, outcome.joined) == ("tree", True)


def test_later_commands_of_a_batch_join_or_follow_the_earlier_cascades() -> None:
    nodes = tree_nodes(session_rows([None, 0, 1, 0]))
    commands: list[TerminateCommand] = [
        terminate_command("s01", "one"),
        terminate_command("s00", "two"),
        terminate_command("s02", "three"),
        stop_command("four"),
    ]
    decider, outcomes = decide_all(batch_input(nodes, *commands), commands, 1)
    assert outcomes == [
        TerminateResult(ZONE, "s01", "one", 2, "c0"),
        TerminateResult(ZONE, "s00", "two", 2, "c1"),
        TerminateResult(ZONE, "s02", "one", 0, "c0", joined=True),
        TerminateResult(ZONE, None, "two", 0, "c1", joined=True),
    ]
    assert [cascade.started_at for cascade, _ in decider.marked] == [NOW, NOW + 1]


def test_cascade_of_another_tree_does_not_delay_a_termination() -> None:
    nodes = mark_subtree(tree_nodes(session_rows([None, 0, None, 2])), "s00", "first")
    command = terminate_command("s02")
    decider, [outcome] = decide_all(batch_input(nodes, command, open_cascades=[cascade_row("first", "s00")]), [command])
    assert outcome == TerminateResult(ZONE, "s02", "enough", 2)
    assert len(decider.terminated) == 2


def test_stop_zone_terminates_every_tree_and_names_no_session() -> None:
    nodes = tree_nodes(session_rows([None, 0, None, 2, None]))
    decider, [outcome] = decide_all(batch_input(nodes, stop_command()), [stop_command()])
    assert outcome == TerminateResult(ZONE, None, "enough", 5)
    assert [session_end.node.id for session_end in decider.terminated] == ["s01", "s00", "s03", "s02", "s04"]


# -- random commands


class CascadeSimulation:
    """Sessions, cascades and the log after a sequence of batches."""

    def __init__(self, shape: list[int | None], expired: set[int]) -> None:
        self.sessions = session_rows(shape)
        self.nodes = {
            row.id: tree_node(row, expires_at=NOW if number in expired else NOW + 1)
            for number, row in enumerate(self.sessions)
        }
        self.log: list[str] = []
        self.cascades: list[tuple[Cascade, list[str]]] = []

    def batch(self, name: str, commands: Sequence[TerminateCommand], chunk: int) -> None:
        present = [self.nodes[row.id] for row in parents_first(self.sessions) if row.id in self.nodes]
        loaded = batch_input(present, *commands, open_cascades=[cascade for cascade, _ in self.cascades])
        targets = {(row.zone_id, row.id): row for row in self.sessions}
        decider = TerminateDecider(dataclasses.replace(loaded, targets=targets), chunk)
        alive = {node.id for node in present if node.terminated_at is None}
        for index, command in enumerate(commands):
            targeted = (
                {node.id for node in present}
                if command.session_id is None
                else subtree_ids(command.session_id, present)
            )
            outcome = decider.decide(command, f"{name}.{index}")
            assert isinstance(outcome, TerminateResult)
            assert outcome.stopped == len(targeted & alive)
            still_ending = targeted & {*self.nodes} - {session_end.node.id for session_end in decider.terminated}
            assert outcome.joined == (not targeted & alive and bool(still_ending))
            assert (outcome.cascade_id is None) == (not still_ending)
            alive -= targeted
        assert len(decider.terminated) <= chunk
        self.finish([session_end.node.id for session_end in decider.terminated])
        for cascade, group in decider.marked:
            self.cascades.append((cascade, [session_end.node.id for session_end in group]))
            for session_end in group:
                self.nodes[session_end.node.id] = mark(session_end.node, cascade.id)

    def finish(self, session_ids: Sequence[str]) -> None:
        self.log += session_ids
        for session_id in session_ids:
            del self.nodes[session_id]

    def finish_cascades(self) -> None:
        for _, group in sorted(self.cascades, key=lambda entry: (entry[0].started_at, entry[0].id)):
            self.finish(group)


def mark(node: TreeNode, cascade_id: str) -> TreeNode:
    return msgspec.structs.replace(node, terminated_at=NOW, cascade_id=cascade_id)


BATCH = st.lists(st.integers(-1, 11), min_size=1, max_size=6)
"""The sessions to terminate in one batch. -1 is the zone."""


@settings(max_examples=300)
@given(shapes(12), st.lists(BATCH, min_size=1, max_size=3), st.integers(1, 9), st.sets(st.integers(0, 11)))
def test_overlapping_commands_end_every_session_once_and_children_first(
    shape: list[int | None], batches: list[list[int]], chunk: int, expired: set[int]
) -> None:
    simulation = CascadeSimulation(shape, expired)
    requested: set[str] = set()
    for batch_number, batch in enumerate(batches):
        commands: list[TerminateCommand] = [
            stop_command() if number < 0 else terminate_command(f"s{number % len(shape):02}") for number in batch
        ]
        for command in commands:
            all_ids = {row.id for row in simulation.sessions}
            requested |= all_ids if command.session_id is None else subtree_ids(command.session_id, simulation.sessions)
        simulation.batch(str(batch_number), commands, chunk)
    simulation.finish_cascades()
    assert sorted(simulation.log) == sorted(requested), "every requested session, once"
    positions = {session_id: index for index, session_id in enumerate(simulation.log)}
    for row in simulation.sessions:
        if row.id in positions and row.parent_id in positions:
            assert positions[row.id] < positions[row.parent_id]


# -- remaining sessions


def test_remaining_sessions_have_a_reason() -> None:
    unmarked, marked, terminated = session_rows([None, None, None])
    loaded = [
        tree_node(unmarked),
        tree_node(marked, terminated_at=NOW),
        tree_node(terminated, terminated_at=NOW, status=State.TERMINATED),
    ]
    reasons = remaining_reasons(loaded)
    assert reasons.keys() == {"s00", "s01"}
    assert reasons["s00"] == "spawned since"
    assert "marked" in reasons["s01"]
    assert "sweep" in reasons["s01"]
