"""Whatever is asked, by whomever, in whatever order and batches: what must hold of tasks, holds."""

from __future__ import annotations

from collections import Counter

import msgspec
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import (
    Abort,
    Cancel,
    Claim,
    MakeAvailable,
    Patch,
    Pause,
    Release,
    Resume,
    Retry,
    TaskCommand,
    UnblockDependents,
)
from quarterdeck.domain.tasks.model.rows import ClaimedTasks, State, Task, TaskRef, WaitsFor
from quarterdeck.domain.tasks.rules import states
from quarterdeck.domain.tasks.rules.batch_input import BatchInput, TaskClass
from quarterdeck.domain.tasks.rules.decider import BatchDecider
from quarterdeck.domain.tasks.rules.dependency_graph import find_stuck
from quarterdeck.domain.tasks.rules.ready_queues import is_ready
from quarterdeck.domain.tasks.rules.states import HELD
from tests.support.builders import NOW, ZONE
from tests.support.task_rules import (
    CREATOR,
    TIMEOUTS,
    agent_info,
    claim_command,
    complete_command,
    create_command,
    fail_command,
)

AGENTS = ("a", "b")
SLOTS = 2
NAMES = st.integers(0, 9).map(str)
TOKENS = st.integers(0, 30).map(str)
ARROWS = {(source, target) for of in states.TASK_STATES.transitions.values() for source, target in of.items()}


class Tasks(RuleBasedStateMachine):
    """A table of tasks, and batches that are decided on it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.rows: dict[TaskRef, Task] = {}
        self.depends: dict[TaskRef, tuple[str, ...]] = {}
        self.met: set[tuple[TaskRef, str]] = set()
        self.batch: list[TaskCommand] = []
        self.tokens = 0
        self.holders: dict[tuple[str, str], str] = {}
        """(task, token) → the agent that was given the attempt"""
        self.done: Counter[str] = Counter()

    # -- asking --------------------------------------------------------------------------------------------------

    @rule(name=NAMES, depends_on=st.lists(NAMES, max_size=3, unique=True), runs=st.booleans())
    def make(self, name: str, depends_on: list[str], runs: bool) -> None:
        on_failure = "run" if runs else "fail"
        others = tuple(each for each in depends_on if each != name)
        self.batch.append(create_command(name, depends_on=others, on_dependency_failure=on_failure, max_retries=1))

    @rule(agent=st.sampled_from(AGENTS), most=st.integers(1, 3))
    def take(self, agent: str, most: int) -> None:
        self.tokens += most
        ask = claim_command(most, agent)
        tokens = tuple(str(self.tokens - n) for n in range(most))
        self.batch.append(msgspec.structs.replace(ask, attempt_tokens=tokens))

    @rule(name=NAMES, token=TOKENS, how=st.sampled_from(("complete", "fail", "give up", "release")))
    def report(self, name: str, token: str, how: str) -> None:
        self._add(name, token, how)

    @rule(place=st.integers(0, 5), how=st.sampled_from(("complete", "complete", "fail", "give up", "release")))
    def report_truly(self, place: int, how: str) -> None:
        """By one who holds something, so that not all of it is refused."""
        held = [row for row in self.rows.values() if row.status in HELD]
        if held:
            row = held[place % len(held)]
            self._add(row.id, str(row.attempt_token), how)

    def _add(self, name: str, token: str, how: str) -> None:
        if how == "complete":
            self.batch.append(complete_command(name, token))
        elif how == "release":
            self.batch.append(Release(zone_id=ZONE, caller=CREATOR, id=name, attempt_token=token))
        else:
            self.batch.append(fail_command(name, token, retryable=how == "fail"))

    @rule(name=NAMES, verb=st.sampled_from((Pause, Resume, Retry)))
    def by_hand(self, name: str, verb: type[Pause | Resume | Retry]) -> None:
        self.batch.append(verb(zone_id=ZONE, caller=CREATOR, id=name))

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        self.batch.append(Cancel(zone_id=ZONE, caller=CREATOR, id=name, reason="r"))

    @rule(name=NAMES, depends_on=st.lists(NAMES, max_size=2, unique=True))
    def depend_anew(self, name: str, depends_on: list[str]) -> None:
        self.batch.append(Patch(zone_id=ZONE, caller=CREATOR, id=name, depends_on=tuple(depends_on)))

    @rule(name=NAMES, is_present=st.booleans())
    def abort(self, name: str, is_present: bool) -> None:
        row = self.rows.get((ZONE, name))
        token = row.attempt_token if row is not None and is_present else "older"
        self.batch.append(Abort(zone_id=ZONE, id=name, attempt_token=token, reason="agent_stale", jitter=0.5))

    @rule()
    def coordinate(self) -> None:
        for row in self.rows.values():
            if row.dependents_pending:
                self.batch.append(UnblockDependents(zone_id=ZONE, id=row.id))
            if row.waits_for == WaitsFor.TIME:
                self.batch.append(MakeAvailable(zone_id=ZONE, id=row.id))

    @rule(minutes=st.integers(0, 60))
    def pass_time(self, minutes: int) -> None:
        self.now += minutes * 60_000

    # -- deciding ------------------------------------------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        held = Counter(row.agent_id for row in self.rows.values() if row.status in HELD)
        board = BatchDecider(self._known(held))
        for ask in self.batch:
            outcome = board.decide(ask)
            if isinstance(ask, Claim) and isinstance(outcome, ClaimedTasks):
                for each in outcome.items:
                    key = (each.task.id, str(each.task.attempt_token))
                    assert self.holders.setdefault(key, ask.agent_id) == ask.agent_id
            if isinstance(outcome, Problem):
                continue
        for told in board.events:
            assert (
                told.from_state is None
                or told.from_state == told.task.status
                or (told.from_state, told.task.status) in ARROWS
            )
            self.done[told.task.id] += told.type == "task.completed"
        for ref in {*board.new_content, *board.originals}:
            self.rows[ref] = board.task(ref)
        for ref, depends_on in board.new_dependencies.items():
            self.met = {(who, ahead) for who, ahead in self.met if who != ref}
            self.depends[ref] = depends_on
        self.met = (self.met | board.met_dependencies) - board.reopened_dependencies
        for (_, agent), by in board.held_changes.items():
            held[agent] += by
        assert +held == Counter(row.agent_id for row in self.rows.values() if row.status in HELD)
        self.batch = []

    def _known(self, held: Counter[str | None]) -> BatchInput:
        waited = [(ref, ahead) for ref, of in self.depends.items() for ahead in of if (ref, ahead) not in self.met]
        blocked: dict[TaskRef, list[TaskRef]] = {}
        for ref, ahead in waited:
            blocked.setdefault((ZONE, ahead), []).append(ref)
        return BatchInput(
            now=self.now,
            timeouts=TIMEOUTS,
            permission_problem=lambda ask, power: None,
            zone_problems={ZONE: None},
            tasks=[*self.rows.values()],
            agents={(ZONE, name): agent_info(free_slots=SLOTS - held[name]) for name in AGENTS},
            classes={(ZONE, row.class_id): TaskClass(row.task_type, frozenset()) for row in self.rows.values()},
            ready=[row for row in self.rows.values() if is_ready(row)],
            dependents=blocked,
            dependencies=self.depends,
        )

    # -- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def nobody_holds_more_than_it_may(self) -> None:
        held = Counter(row.agent_id for row in self.rows.values() if row.status in HELD)
        assert all(number <= SLOTS for number in held.values())

    @invariant()
    def a_task_is_done_once(self) -> None:
        assert all(number <= 1 for number in self.done.values())

    @invariant()
    def what_may_begin_waits_for_nothing(self) -> None:
        for ref, row in self.rows.items():
            waited = [ahead for ahead in self.depends.get(ref, ()) if (ref, ahead) not in self.met]
            if row.status in (State.PENDING, State.PAUSED):
                assert row.unmet_dependencies == len(waited)
            if is_ready(row):
                assert not waited
            if row.status is State.PENDING and row.unmet_dependencies:
                assert row.waits_for == WaitsFor.DEPENDENCIES

    @invariant()
    def what_waits_for_what_is_done_will_hear_of_it(self) -> None:
        for ref, row in self.rows.items():
            if row.status not in (State.PENDING, State.PAUSED):
                continue
            for ahead in self.depends.get(ref, ()):
                other = self.rows[ZONE, ahead]
                if (ref, ahead) not in self.met:
                    assert not other.final or other.dependents_pending, "nobody would ever tell it"
                    assert other.completed_at is None or other.dependents_pending

    @invariant()
    def nothing_waits_for_itself(self) -> None:
        waited = {
            name: [ahead for ahead in of if ((zone, name), ahead) not in self.met]
            for (zone, name), of in self.depends.items()
            if self.rows[zone, name].status in (State.PENDING, State.PAUSED)
        }
        assert not find_stuck(waited)

    @invariant()
    def whoever_holds_something_has_its_token(self) -> None:
        for row in self.rows.values():
            if row.status in HELD:
                assert self.holders[row.id, str(row.attempt_token)] == row.agent_id
            if row.final:
                assert row.status in (State.FAILED, State.ABORTED, State.ARCHIVED)


TestTasks = Tasks.TestCase
TestTasks.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
