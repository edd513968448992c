"""Who sleeps: flags against a plain model that asks of each session whether it or an ancestor bears one."""

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


def hold(own: str, verb: Literal[Verb.SUSPEND, Verb.RESUME]) -> Suspend:
    return Suspend(ZONE, own, verb, admin())


def moves_of(decided: list[SuspensionChange] | Problem) -> dict[str, tuple[State, State]]:
    assert isinstance(decided, list), decided
    assert len({move.after.id for move in decided}) == len(decided), "each is told of once"
    return {move.after.id: (move.before.status, move.after.status) for move in decided}


def refused(decided: list[SuspensionChange] | Problem) -> StateConflict:
    assert isinstance(decided, StateConflict), decided
    assert decided.status == 409
    return decided


class Tree:
    """Members that a grove is grown of anew for every ask, as a new batch would."""

    def __init__(self, shape: Sequence[int | None] = (None, 0, 1, 0), **changed: dict[str, object]) -> None:
        made = [tree_node(row, **changed.get(row.id, {})) for row in session_rows(shape)]
        self.members = {member.id: member for member in made}

    def ask(self, own: str, verb: Literal[Verb.SUSPEND, Verb.RESUME]) -> list[SuspensionChange] | Problem:
        decided = SessionTrees(self.members.values(), NOW).decide(hold(own, verb))
        if isinstance(decided, list):
            self.members |= {move.after.id: move.after for move in decided}
        return decided

    def suspend(self, own: str) -> dict[str, tuple[State, State]]:
        return moves_of(self.ask(own, SUSPEND))

    def resume(self, own: str) -> dict[str, tuple[State, State]]:
        return moves_of(self.ask(own, RESUME))

    def asleep(self) -> set[str]:
        return {own for own, member in self.members.items() if member.status is State.SUSPENDED}


def told(decided: list[SuspensionChange] | Problem) -> str:
    return repr(decided if isinstance(decided, Problem) else sorted(decided, key=lambda move: move.after.id))


ASLEEP = (State.ACTIVE, State.SUSPENDED)
AWAKE = (State.SUSPENDED, State.ACTIVE)
SLEPT_ON = (State.SUSPENDED, State.SUSPENDED)


# -- s00 over s01 over s02, and s03 beside s01


def test_a_suspension_takes_everything_under_the_one_that_is_named() -> None:
    tree = Tree()
    assert tree.suspend("s01") == {"s01": ASLEEP, "s02": ASLEEP}
    assert tree.members["s01"].held == 1
    assert tree.members["s02"].held == 0


def test_a_flag_is_set_also_on_one_who_sleeps_already_and_nobody_falls_asleep_by_it() -> None:
    tree = Tree()
    tree.suspend("s00")
    assert tree.suspend("s01") == {"s01": SLEPT_ON}
    assert tree.suspend("s01") == {"s01": SLEPT_ON}, "twice is told twice"
    assert tree.resume("s00") == {"s00": AWAKE, "s03": AWAKE}
    assert tree.asleep() == {"s01", "s02"}
    assert tree.resume("s01") == {"s01": AWAKE, "s02": AWAKE}


def test_clearing_a_flag_under_another_wakes_nobody() -> None:
    tree = Tree()
    tree.suspend("s01")
    tree.suspend("s00")
    assert tree.resume("s01") == {"s01": SLEPT_ON}
    assert tree.members["s01"].held == 0
    assert tree.resume("s00") == dict.fromkeys(("s00", "s01", "s02", "s03"), AWAKE)


@pytest.mark.parametrize("order", [("s00", "s01"), ("s01", "s00")])
def test_in_whatever_order_two_flags_are_set_and_cleared_the_last_one_wakes_the_branch(order: tuple[str, str]) -> None:
    for first, second in (order, order[::-1]):
        tree = Tree()
        tree.suspend(order[0])
        tree.suspend(order[1])
        tree.resume(first)
        assert "s02" in tree.asleep()
        tree.resume(second)
        assert tree.asleep() == set()


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
    ids=["terminated", "stamped", "stamped asleep", "expired", "expired asleep"],
)
def test_what_has_ended_can_be_neither_suspended_nor_resumed(ended: dict[str, object]) -> None:
    tree = Tree((None,), s00=ended)
    assert refused(tree.ask("s00", SUSPEND)).code == "agent_not_found_or_not_active"
    refusal = refused(tree.ask("s00", RESUME))
    assert refusal.code == "agent_not_found_or_not_suspended"
    assert "has ended" in refusal.detail
    assert "held_by" not in refusal.members


def test_one_who_is_awake_cannot_be_resumed() -> None:
    refusal = refused(Tree().ask("s01", RESUME))
    assert refusal.code == "agent_not_found_or_not_suspended"
    assert "not suspended" in refusal.detail
    assert "held_by" not in refusal.members


def test_one_who_bears_no_flag_is_told_the_nearest_ancestor_that_holds_it() -> None:
    tree = Tree()
    tree.suspend("s00")
    assert refused(tree.ask("s02", RESUME)).members["held_by"] == "s00"
    tree.suspend("s01")
    refusal = refused(tree.ask("s02", RESUME))
    assert refusal.members["held_by"] == "s01"
    assert refusal.members["frees"] == "resume s01"
    assert "s01" in refusal.detail


@pytest.mark.parametrize(
    "ended", [{"expires_at": NOW}, {"terminated_at": NOW - 1, "cascade_id": "c"}], ids=["expired", "stamped"]
)
def test_what_has_ended_below_neither_falls_asleep_nor_wakes(ended: dict[str, object]) -> None:
    tree = Tree(s01=ended, s02=ended)
    assert tree.suspend("s00") == {"s00": ASLEEP, "s03": ASLEEP}
    slept = Tree(s01={**ended, "status": State.SUSPENDED}, s02={**ended, "status": State.SUSPENDED})
    slept.suspend("s00")
    assert slept.resume("s00") == {"s00": AWAKE, "s03": AWAKE}


# -- a hand in the database


@pytest.mark.parametrize("shape", [[0], [1, 0], [2, 0, 1], [1, 0, 0, 2]], ids=str)
def test_a_line_that_meets_itself_has_an_end_and_can_be_suspended_and_resumed(shape: list[int]) -> None:
    def circle() -> dict[str, TreeNode]:
        found = [tree_node(session_row(id=f"s{own}", parent_id=f"s{parent}")) for own, parent in enumerate(shape)]
        return {member.id: member for member in found}

    for own in circle():
        grove = SessionTrees(circle().values(), NOW)
        reached = subtree_ids(own, [*circle().values()])
        assert moves_of(grove.decide(hold(own, SUSPEND))) == dict.fromkeys(reached, ASLEEP)
        assert moves_of(grove.decide(hold(own, RESUME))) == dict.fromkeys(reached, AWAKE)


# -- against the model


ASKS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from([SUSPEND, RESUME])), min_size=1, max_size=6)


class Sleepers(RuleBasedStateMachine):
    """The model: a set of flags. Asleep is who bears one, or stands below one who does."""

    def __init__(self) -> None:
        super().__init__()
        self.members: dict[str, TreeNode] = {}
        self.flags: set[str] = set()
        self.gone: set[str] = set()

    @initialize(shape=shapes(8))
    def begin(self, shape: list[int | None]) -> None:
        self.members = {row.id: tree_node(row) for row in session_rows(shape)}

    @rule(asks=ASKS)
    def hold(self, asks: list[tuple[int, Literal[Verb.SUSPEND, Verb.RESUME]]]) -> None:
        """One batch, decided in one grove; and the same asks, each in a grove of its own."""
        everybody = list(self.members)
        holds = [hold(everybody[which % len(everybody)], verb) for which, verb in asks]
        together = SessionTrees(self.loaded(holds), NOW)
        for ask in holds:
            alone = SessionTrees(self.loaded([ask]), NOW).decide(ask)
            decided = together.decide(ask)
            assert told(decided) == told(alone)
            self.check(ask, decided)

    def check(self, ask: Suspend, decided: list[SuspensionChange] | Problem) -> None:
        own, before = ask.session_id, self.asleep()
        if own in self.gone or (ask.verb is Verb.RESUME and own not in self.flags):
            refusal = refused(decided)
            holder = next((above for above in self.line(own) if above in self.flags), None)
            assert refusal.members.get("held_by") == (None if own in self.gone else holder)
            return
        if ask.verb is Verb.SUSPEND:
            self.flags.add(own)
        else:
            self.flags.remove(own)
        moved = moves_of(decided)
        assert own in moved
        expected = before ^ self.asleep()
        assert {one for one, (was, becomes) in moved.items() if was is not becomes} == expected
        assert moved.keys() == expected | {own}
        assert isinstance(decided, list)
        self.members |= {move.after.id: move.after for move in decided}

    @rule(which=st.integers(0, 30))
    def spawn(self, which: int) -> None:
        """Under somebody who is awake, or nobody: admission sees to that."""
        awake = sorted(self.members.keys() - self.asleep() - self.gone)
        parent = [*awake, None][which % (len(awake) + 1)]
        own = f"s{len(self.members):02}"
        self.members[own] = tree_node(session_row(id=own), parent_id=parent)

    @rule(which=st.integers(0, 30), how=st.sampled_from(["settled", "stamped", "expired"]))
    def end(self, which: int, how: str) -> None:
        top = list(self.members)[which % len(self.members)]
        for own in subtree_ids(top, [*self.members.values()]) - self.gone:
            changed: dict[str, object] = {"expires_at": NOW} if how == "expired" else {"terminated_at": NOW - 1}
            if how == "settled":
                changed["status"] = State.TERMINATED
            self.members[own] = msgspec.structs.replace(self.members[own], **changed)
            self.gone.add(own)

    @invariant()
    def states_and_flags_are_the_models(self) -> None:
        for own in self.members.keys() - self.gone:
            assert (self.members[own].status is State.SUSPENDED) == (own in self.asleep()), own
            assert bool(self.members[own].held) == (own in self.flags), own

    def asleep(self) -> set[str]:
        living = self.members.keys() - self.gone
        return {own for own in living if own in self.flags or self.flags.intersection(self.line(own))}

    def line(self, own: str) -> list[str]:
        return list(ancestors(own, [*self.members.values()]))

    def loaded(self, holds: Sequence[Suspend]) -> list[TreeNode]:
        """What the statements give for these asks: lines, and what is below through what is not settled."""
        found: dict[str, TreeNode] = {}
        unsettled = [each for each in self.members.values() if each.status is not State.TERMINATED]
        for ask in holds:
            reached = subtree_ids(ask.session_id, unsettled)
            found |= {each.id: each for each in unsettled if each.id in reached}
            found |= {own: self.members[own] for own in (ask.session_id, *self.line(ask.session_id))}
        return [*found.values()]


Sleepers.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestFlagsAgreeWithAModelThatLooksAtEveryAncestor = Sleepers.TestCase
