"""What ends together: in which order, by whom, why, and when it is too much for one transaction."""

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

PLENTY = 1_000


def members_of(sessions: Sequence[Session], **changed: object) -> list[TreeNode]:
    return [tree_node(row, **changed) for row in parents_first(sessions)]


def known(
    members: Sequence[TreeNode], *asks: TerminateCommand, under_way: Sequence[Cascade] = (), now: int = NOW
) -> TerminateBatchInput:
    """What the statements would have found for these asks."""
    found = {
        (ask.zone_id, ask.session_id): [
            m for m in members if ask.session_id is None or m.id in subtree_ids(ask.session_id, members)
        ]
        for ask in asks
    }
    targets = {(m.zone_id, m.id): session_row(id=m.id, application_id=m.application_id) for m in members}
    return TerminateBatchInput(now, targets, found, {(c.zone_id, c.id): c for c in under_way})


def end(own: str, reason: str = "enough", who: Caller | None = None) -> Terminate:
    return Terminate(ZONE, own, reason, who)


def stop(reason: str = "enough", **asked: object) -> StopZone:
    return build_struct(StopZone, ZONE, reason, admin(), **asked)


def decided(
    known: TerminateBatchInput, asks: Sequence[TerminateCommand], chunk: int = PLENTY
) -> tuple[TerminateDecider, list[TerminateResult]]:
    endings = TerminateDecider(known, chunk)
    outcomes = [endings.decide(ask, f"c{number}") for number, ask in enumerate(asks)]
    ended = [outcome for outcome in outcomes if isinstance(outcome, TerminateResult)]
    assert ended == outcomes
    return endings, ended


# -- the order


@given(shapes(40))
def test_each_session_ends_after_all_of_its_descendants_and_branch_by_branch(shape: list[int | None]) -> None:
    members = members_of(session_rows(shape))
    order = [member.id for member in post_order(members)]
    assert sorted(order) == sorted(member.id for member in members), "each once"
    for place, own in enumerate(order):
        branch = subtree_ids(own, members)
        assert set(order[place + 1 - len(branch) : place + 1]) == branch, "a branch is one stretch, its top last"


@given(shapes(40))
def test_of_brothers_and_sisters_the_eldest_ends_first(shape: list[int | None]) -> None:
    members = members_of(session_rows(shape))
    order = [member.id for member in post_order(members)]
    for parent in {member.parent_id for member in members}:
        children = [own.id for own in members if own.parent_id == parent]
        assert sorted(children, key=order.index) == children


def test_nothing_has_no_order() -> None:
    assert post_order([]) == []


def test_a_line_of_ten_thousand_is_no_deeper_than_a_loop() -> None:
    members = [tree_node(session_row(id="0"))]
    for number in range(1, 10_000):
        members.append(tree_node(session_row(id=str(number)), parent_id=str(number - 1)))
    assert [member.id for member in post_order(members)] == [str(number) for number in range(9_999, -1, -1)]


@given(st.lists(st.integers(0, 8), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_whatever_a_hand_has_done_to_the_parents_everybody_has_one_place(parents: list[int], chance: Random) -> None:
    # Cycles among them, sessions that are their own parent, and tops that stand below their children.
    plain = [session_row(id=f"s{own}", parent_id=f"s{parent}") for own, parent in enumerate(parents)]
    chance.shuffle(plain)
    order = [member.id for member in post_order([tree_node(row) for row in plain])]
    assert sorted(order) == sorted(row.id for row in plain)


# -- one transaction, or many


def test_those_who_end_along_with_one_are_one_ending_and_each_ends_once() -> None:
    # Two trees; and of the second somebody who would go anyway is named as well.
    members = members_of(session_rows([None, 0, None, 2, 3]))
    together = Terminate(ZONE, "s00", "enough", also_terminate=("s02", "s03", "nobody"))
    found = known(members, end("s00"), end("s02"), end("s03"))
    for chunk in (5, 4):
        endings, [outcome] = decided(found, [together], chunk)
        assert (outcome.stopped, outcome.cascade_id) == (5, None if chunk == 5 else "c0")
        groups = [endings.terminated] if chunk == 5 else [group for _, group in endings.marked]
        assert [sorted(each.node.id for each in group) for group in groups] == [sorted(m.id for m in members)]


def test_whoever_is_gone_keeps_nobody_who_ends_along_with_it() -> None:
    members = members_of(session_rows([None]))
    gone = Terminate(ZONE, "gone", "enough", also_terminate=("s00",))
    _, [outcome] = decided(known(members, end("s00")), [gone])
    assert outcome.stopped == 1


@pytest.mark.parametrize(("chunk", "stamps"), [(8, False), (7, False), (6, True), (1, True)])
def test_what_fits_is_ended_at_once_and_one_more_than_fits_is_stamped_whole(chunk: int, stamps: bool) -> None:
    members = members_of(session_rows([None, 0, 0, 1, 1, 2, 2]))
    endings, [outcome] = decided(known(members, end("s00")), [end("s00")], chunk)
    assert outcome == TerminateResult(ZONE, "s00", "enough", 7, "c0" if stamps else None)
    if stamps:
        assert endings.terminated == []
        [(made, leaving)] = endings.marked
        assert made == cascade_row("c0", "s00", reason="enough", actor="sweep", stamped=7)
    else:
        leaving = endings.terminated
        assert endings.marked == []
    assert [each.node for each in leaving] == post_order(members)


def test_a_transaction_settles_no_more_than_a_chunk_whoever_asks() -> None:
    members = members_of(session_rows([None, 0, None, 2, None, 4]))
    asks = [end("s00"), end("s02"), end("s04")]
    endings, outcomes = decided(known(members, *asks), asks, 4)
    assert [each.node.id for each in endings.terminated] == ["s01", "s00", "s03", "s02"]
    assert [outcome.cascade_id for outcome in outcomes] == [None, None, "c2"]


def test_a_small_ending_after_a_large_one_in_the_same_batch_still_fits() -> None:
    members = members_of(session_rows([None, 0, 0, 0, None]))
    asks = [end("s00"), end("s04")]
    endings, outcomes = decided(known(members, *asks), asks, 2)
    assert [outcome.cascade_id for outcome in outcomes] == ["c0", None]
    assert [each.node.id for each in endings.terminated] == ["s04"]


def test_a_cascade_remembers_who_asked_and_with_what_trace() -> None:
    members = members_of(session_rows([None, 0]))
    ask = Terminate(ZONE, "s00", "because", caller("app"), "00-trace")
    endings, _ = decided(known(members, ask), [ask], 1)
    [(made, _)] = endings.marked
    assert (made.actor, made.trace, made.reason, made.target_id) == ("tester", "00-trace", "because", "s00")


# -- why and when


@pytest.mark.parametrize(
    ("expires_at", "reason", "ended_at"),
    [(NOW + 1, "enough", NOW), (NOW, "ttl_expired", NOW), (NOW - 5, "ttl_expired", NOW - 5)],
)
@pytest.mark.parametrize("chunk", [PLENTY, 1])
def test_what_had_expired_ended_by_its_time_and_at_its_time(
    expires_at: int, reason: str, ended_at: int, chunk: int
) -> None:
    root, child = members_of(session_rows([None, 0]))
    child = tree_node(session_rows([None, 0])[1], expires_at=expires_at)
    endings, _ = decided(known([root, child], end("s00")), [end("s00")], chunk)
    leaving = endings.terminated or endings.marked[0][1]
    assert [(each.node.id, each.reason, each.ended_at) for each in leaving] == [
        ("s01", reason, ended_at),
        ("s00", "enough", NOW),
    ]


def test_suspended_sessions_end_like_the_others() -> None:
    members = members_of(session_rows([None, 0]), status=State.SUSPENDED, held=1)
    endings, [outcome] = decided(known(members, end("s00")), [end("s00")])
    assert outcome.stopped == len(endings.terminated) == 2


# -- refusals


def test_an_unknown_session_is_not_found_and_ends_nothing() -> None:
    endings = TerminateDecider(known(members_of(session_rows([None]))), PLENTY)
    outcome = endings.decide(end("nobody"), "c")
    assert isinstance(outcome, NotFound)
    assert outcome.code == "agent_not_found"
    assert (endings.terminated, endings.marked) == ([], [])


@pytest.mark.parametrize(
    ("who", "may"),
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
@pytest.mark.parametrize("lives", [True, False])
def test_ending_needs_power_over_the_application_also_of_what_has_ended(
    who: Caller | None, may: bool, lives: bool
) -> None:
    found = known(members_of(session_rows([None])), end("s00"))
    endings = TerminateDecider(found if lives else TerminateBatchInput(NOW, found.targets, {}), PLENTY)
    outcome = endings.decide(end("s00", who=who), "c")
    if may:
        assert isinstance(outcome, TerminateResult)
        assert outcome.stopped == lives
    else:
        assert isinstance(outcome, Forbidden)
        assert outcome.code == "application_ownership_required"
        assert endings.terminated == []


# -- endings that meet


def stamped(members: Sequence[TreeNode], top: str, by: str) -> list[TreeNode]:
    inside = subtree_ids(top, members)
    return [stamp(member, by) if member.id in inside else member for member in members]


def test_whoever_ends_what_is_ending_joins_and_is_told_the_reason_it_ends_for() -> None:
    members = stamped(members_of(session_rows([None, 0, 0])), "s00", "first")
    open_ = [cascade_row("first", "s00")]
    for own in ("s00", "s01"):
        ask = end(own, "second")
        endings, [outcome] = decided(known(members, ask, under_way=open_), [ask])
        assert outcome == TerminateResult(ZONE, own, "reason of first", 0, "first", joined=True)
        assert (endings.terminated, endings.marked) == ([], [])


def test_ending_what_has_ended_is_done_at_once_and_joins_nobody() -> None:
    found = known(members_of(session_rows([None])))
    found = TerminateBatchInput(NOW, found.targets, {}, {(ZONE, "other"): cascade_row("other", "elsewhere")})
    _, [outcome] = decided(found, [end("s00")])
    assert outcome == TerminateResult(ZONE, "s00", "enough", 0)


@pytest.mark.parametrize("began", [NOW - 5, NOW, NOW + 60_000])
def test_the_end_of_a_tree_waits_behind_the_end_of_its_branch_however_small_it_is(began: int) -> None:
    # Also when the clock was set back since: settled in order of time, the branch must come first.
    members = stamped(members_of(session_rows([None, 0, 0, 1])), "s01", "branch")
    under_way = [cascade_row("branch", "s01", began)]
    endings, [outcome] = decided(known(members, end("s00"), under_way=under_way), [end("s00")])
    assert outcome == TerminateResult(ZONE, "s00", "enough", 2, "c0")
    [(made, leaving)] = endings.marked
    assert [each.node.id for each in leaving] == ["s02", "s00"]
    assert made.started_at == max(NOW, began + 1)


def test_whoever_joins_several_waits_for_the_last_of_them() -> None:
    members = stamped(stamped(members_of(session_rows([None, 0, 0])), "s00", "tree"), "s01", "branch")
    under_way = [
        cascade_row("tree", "s00", NOW + 1),
        cascade_row("branch", "s01", NOW),
        cascade_row("unrelated", "x", NOW + 9),
    ]
    ask = end("s00")
    _, [outcome] = decided(known(members, ask, under_way=under_way), [ask])
    assert (outcome.cascade_id, outcome.joined) == ("tree", True)


def test_in_one_batch_the_second_joins_or_waits_behind_the_first() -> None:
    members = members_of(session_rows([None, 0, 1, 0]))
    asks: list[TerminateCommand] = [end("s01", "one"), end("s00", "two"), end("s02", "three"), stop("four")]
    endings, outcomes = decided(known(members, *asks), asks, 1)
    assert outcomes == [
        TerminateResult(ZONE, "s01", "one", 2, "c0"),
        TerminateResult(ZONE, "s00", "two", 2, "c1"),
        TerminateResult(ZONE, "s02", "one", 0, "c0", joined=True),
        TerminateResult(ZONE, None, "two", 0, "c1", joined=True),
    ]
    assert [made.started_at for made, _ in endings.marked] == [NOW, NOW + 1]


def test_what_is_stamped_elsewhere_in_the_zone_is_nothing_to_wait_for() -> None:
    members = stamped(members_of(session_rows([None, 0, None, 2])), "s00", "first")
    ask = end("s02")
    endings, [outcome] = decided(known(members, ask, under_way=[cascade_row("first", "s00")]), [ask])
    assert outcome == TerminateResult(ZONE, "s02", "enough", 2)
    assert len(endings.terminated) == 2


def test_a_zone_stops_with_every_tree_in_it_and_its_ask_names_no_session() -> None:
    members = members_of(session_rows([None, 0, None, 2, None]))
    endings, [outcome] = decided(known(members, stop()), [stop()])
    assert outcome == TerminateResult(ZONE, None, "enough", 5)
    assert [each.node.id for each in endings.terminated] == ["s01", "s00", "s03", "s02", "s04"]


# -- all of it at once


class World:
    """Rows, cascades and the log, as a chain of batches leaves them."""

    def __init__(self, shape: list[int | None], expired: set[int]) -> None:
        self.sessions = session_rows(shape)
        self.members = {
            row.id: tree_node(row, expires_at=NOW if number in expired else NOW + 1)
            for number, row in enumerate(self.sessions)
        }
        self.log: list[str] = []
        self.cascades: list[tuple[Cascade, list[str]]] = []

    def batch(self, name: str, asks: Sequence[TerminateCommand], chunk: int) -> None:
        there = [self.members[row.id] for row in parents_first(self.sessions) if row.id in self.members]
        found = known(there, *asks, under_way=[made for made, _ in self.cascades])
        targets = {(row.zone_id, row.id): row for row in self.sessions}
        endings = TerminateDecider(dataclasses.replace(found, targets=targets), chunk)
        alive = {member.id for member in there if member.terminated_at is None}
        for place, ask in enumerate(asks):
            reached = {m.id for m in there} if ask.session_id is None else subtree_ids(ask.session_id, there)
            outcome = endings.decide(ask, f"{name}.{place}")
            assert isinstance(outcome, TerminateResult)
            assert outcome.stopped == len(reached & alive)
            ending = reached & {*self.members} - {each.node.id for each in endings.terminated}
            assert outcome.joined == (not reached & alive and bool(ending))
            assert (outcome.cascade_id is None) == (not ending)
            alive -= reached
        assert len(endings.terminated) <= chunk
        self.settle([each.node.id for each in endings.terminated])
        for made, group in endings.marked:
            self.cascades.append((made, [each.node.id for each in group]))
            for each in group:
                self.members[each.node.id] = stamp(each.node, made.id)

    def settle(self, sessions: Sequence[str]) -> None:
        self.log += sessions
        for own in sessions:
            del self.members[own]

    def settle_everything(self) -> None:
        for _, group in sorted(self.cascades, key=lambda each: (each[0].started_at, each[0].id)):
            self.settle(group)


def stamp(member: TreeNode, by: str) -> TreeNode:
    return msgspec.structs.replace(member, terminated_at=NOW, cascade_id=by)


ASKED = st.lists(st.integers(-1, 11), min_size=1, max_size=6)
"""Which sessions are to end, one batch; -1 is the zone."""


@settings(max_examples=300)
@given(shapes(12), st.lists(ASKED, min_size=1, max_size=3), st.integers(1, 9), st.sets(st.integers(0, 11)))
def test_however_asks_overlap_each_session_ends_once_and_no_parent_before_its_children(
    shape: list[int | None], batches: list[list[int]], chunk: int, expired: set[int]
) -> None:
    world = World(shape, expired)
    asked: set[str] = set()
    for number, batch in enumerate(batches):
        asks: list[TerminateCommand] = [stop() if which < 0 else end(f"s{which % len(shape):02}") for which in batch]
        for ask in asks:
            everybody = {row.id for row in world.sessions}
            asked |= everybody if ask.session_id is None else subtree_ids(ask.session_id, world.sessions)
        world.batch(str(number), asks, chunk)
    world.settle_everything()
    assert sorted(world.log) == sorted(asked), "everybody who was asked for, once"
    places = {own: place for place, own in enumerate(world.log)}
    for row in world.sessions:
        if row.id in places and row.parent_id in places:
            assert places[row.id] < places[row.parent_id]


# -- what is left


def test_what_is_left_says_why() -> None:
    fresh, waiting, over = session_rows([None, None, None])
    found = [
        tree_node(fresh),
        tree_node(waiting, terminated_at=NOW),
        tree_node(over, terminated_at=NOW, status=State.TERMINATED),
    ]
    left = remaining_reasons(found)
    assert left.keys() == {"s00", "s01"}
    assert left["s00"] == "spawned since"
    assert "stamped" in left["s01"]
    assert "sweep" in left["s01"]
