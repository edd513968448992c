"""The invariants of tasks hold after any commands, in any order and batches."""

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
from quarterdeck.domain.tasks.rules.dependency_graph import find_stuck_tasks
from quarterdeck.domain.tasks.rules.states import HELD, is_ready
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
TRANSITIONS = {
    (source, target) for targets in states.TASK_STATES.transitions.values() for source, target in targets.items()
}


class TaskMachine(RuleBasedStateMachine):
    """A table of tasks, and batches of commands decided on it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.rows: dict[TaskRef, Task] = {}
        self.dependencies: dict[TaskRef, tuple[str, ...]] = {}
        self.met: set[tuple[TaskRef, str]] = set()
        self.batch: list[TaskCommand] = []
        self.token_count = 0
        self.holders: dict[tuple[str, str], str] = {}
        """(task, token) → the agent that claimed the attempt"""
        self.completions: Counter[str] = Counter()

    # -- commands ------------------------------------------------------------------------------------------------

    @rule(name=NAMES, depends_on=st.lists(NAMES, max_size=3, unique=True), runs_on_failure=st.booleans())
    def create(self, name: str, depends_on: list[str], runs_on_failure: bool) -> None:
        on_failure = "run" if runs_on_failure else "fail"
        others = tuple(dependency for dependency in depends_on if dependency != name)
        self.batch.append(create_command(name, depends_on=others, on_dependency_failure=on_failure, max_retries=1))

    @rule(agent=st.sampled_from(AGENTS), limit=st.integers(1, 3))
    def claim(self, agent: str, limit: int) -> None:
        self.token_count += limit
        command = claim_command(limit, agent)
        tokens = tuple(str(self.token_count - n) for n in range(limit))
        self.batch.append(msgspec.structs.replace(command, attempt_tokens=tokens))

    @rule(name=NAMES, token=TOKENS, outcome=st.sampled_from(("complete", "fail", "fail finally", "release")))
    def report(self, name: str, token: str, outcome: str) -> None:
        self._add(name, token, outcome)

    @rule(index=st.integers(0, 5), outcome=st.sampled_from(("complete", "complete", "fail", "fail finally", "release")))
    def report_with_valid_token(self, index: int, outcome: str) -> None:
        """Reports with a valid token, so that not all of them are refused."""
        held = [row for row in self.rows.values() if row.status in HELD]
        if held:
            row = held[index % len(held)]
            self._add(row.id, str(row.attempt_token), outcome)

    def _add(self, name: str, token: str, outcome: str) -> None:
        if outcome == "complete":
            self.batch.append(complete_command(name, token))
        elif outcome == "release":
            self.batch.append(Release(zone_id=ZONE, caller=CREATOR, id=name, attempt_token=token))
        else:
            self.batch.append(fail_command(name, token, retryable=outcome == "fail"))

    @rule(name=NAMES, verb=st.sampled_from((Pause, Resume, Retry)))
    def operator_command(self, name: str, verb: type[Pause | Resume | Retry]) -> None:
        self.batch.append(verb(zone_id=ZONE, caller=CREATOR, id=name))

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        self.batch.append(Cancel(zone_id=ZONE, caller=CREATOR, id=name, reason="r"))

    @rule(name=NAMES, depends_on=st.lists(NAMES, max_size=2, unique=True))
    def change_dependencies(self, name: str, depends_on: list[str]) -> None:
        self.batch.append(Patch(zone_id=ZONE, caller=CREATOR, id=name, depends_on=tuple(depends_on)))

    @rule(name=NAMES, is_current=st.booleans())
    def abort(self, name: str, is_current: bool) -> None:
        row = self.rows.get((ZONE, name))
        token = row.attempt_token if row is not None and is_current else "older"
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

    # -- the batch -----------------------------------------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        held = Counter(row.agent_id for row in self.rows.values() if row.status in HELD)
        decider = BatchDecider(self._batch_input(held))
        for command in self.batch:
            result = decider.decide(command)
            if isinstance(command, Claim) and isinstance(result, ClaimedTasks):
                for claimed in result.items:
                    key = (claimed.task.id, str(claimed.task.attempt_token))
                    assert self.holders.setdefault(key, command.agent_id) == command.agent_id
            if isinstance(result, Problem):
                continue
        for event in decider.batch.tasks.events:
            assert (
                event.from_state is None
                or event.from_state == event.row.status
                or (event.from_state, event.row.status) in TRANSITIONS
            )
            self.completions[event.row.id] += event.type == "task.completed"
        for row in (*decider.batch.tasks.inserts(), *(after for _, after in decider.batch.tasks.updates())):
            self.rows[row.ref] = row
        for ref, depends_on in decider.batch.dependencies.new.items():
            self.met = {(task_ref, dependency) for task_ref, dependency in self.met if task_ref != ref}
            self.dependencies[ref] = depends_on
        self.met = (self.met | decider.batch.dependencies.met) - decider.batch.dependencies.reopened
        for (_, agent_id), change in decider.batch.agents.held_changes.items():
            held[agent_id] += change
        assert +held == Counter(row.agent_id for row in self.rows.values() if row.status in HELD)
        self.batch = []

    def _batch_input(self, held: Counter[str | None]) -> BatchInput:
        unmet = [
            (ref, dependency)
            for ref, depends_on in self.dependencies.items()
            for dependency in depends_on
            if (ref, dependency) not in self.met
        ]
        blocked: dict[TaskRef, list[TaskRef]] = {}
        for ref, dependency in unmet:
            blocked.setdefault((ZONE, dependency), []).append(ref)
        return BatchInput(
            now=self.now,
            timeouts=TIMEOUTS,
            permission_problem=lambda command, permission: None,
            zone_problems={ZONE: None},
            tasks=[*self.rows.values()],
            agents={(ZONE, name): agent_info(free_slots=SLOTS - held[name]) for name in AGENTS},
            classes={(ZONE, row.class_id): TaskClass(row.task_type, frozenset()) for row in self.rows.values()},
            ready_tasks=[row for row in self.rows.values() if is_ready(row)],
            dependents=blocked,
            dependencies=self.dependencies,
        )

    # -- invariants ----------------------------------------------------------------------------------------------

    @invariant()
    def no_agent_exceeds_its_slots(self) -> None:
        held = Counter(row.agent_id for row in self.rows.values() if row.status in HELD)
        assert all(number <= SLOTS for number in held.values())

    @invariant()
    def task_completes_at_most_once(self) -> None:
        assert all(number <= 1 for number in self.completions.values())

    @invariant()
    def ready_task_has_no_unmet_dependencies(self) -> None:
        for ref, row in self.rows.items():
            unmet = [dependency for dependency in self.dependencies.get(ref, ()) if (ref, dependency) not in self.met]
            if row.status in (State.PENDING, State.PAUSED):
                assert row.unmet_dependencies == len(unmet)
            if is_ready(row):
                assert not unmet
            if row.status is State.PENDING and row.unmet_dependencies:
                assert row.waits_for == WaitsFor.DEPENDENCIES

    @invariant()
    def waiting_task_will_be_unblocked(self) -> None:
        for ref, row in self.rows.items():
            if row.status not in (State.PENDING, State.PAUSED):
                continue
            for dependency in self.dependencies.get(ref, ()):
                other = self.rows[ZONE, dependency]
                if (ref, dependency) not in self.met:
                    assert not other.final or other.dependents_pending, "the dependent would never be unblocked"
                    assert other.completed_at is None or other.dependents_pending

    @invariant()
    def no_task_waits_for_itself(self) -> None:
        unmet = {
            name: [dependency for dependency in depends_on if ((zone, name), dependency) not in self.met]
            for (zone, name), depends_on in self.dependencies.items()
            if self.rows[zone, name].status in (State.PENDING, State.PAUSED)
        }
        assert not find_stuck_tasks(unmet)

    @invariant()
    def attempt_is_held_by_the_agent_that_claimed_it(self) -> None:
        for row in self.rows.values():
            if row.status in HELD:
                assert self.holders[row.id, str(row.attempt_token)] == row.agent_id
            if row.final:
                assert row.status in (State.FAILED, State.ABORTED, State.ARCHIVED)


TestTasks = TaskMachine.TestCase
TestTasks.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
