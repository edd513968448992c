"""Every verb in every state: the decider makes exactly the transitions of the table.

Each verb is tried with every command that causes it. Apart from its state the task is as the command needs it: it has
its token, it waits for a dependency, its backoff has ended. So only the state decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict, get_args, get_type_hints

import msgspec
import pytest

from quarterdeck.core.caller import Caller
from quarterdeck.domain.tasks.model.commands import (
    Abort,
    Archive,
    Assign,
    Cancel,
    FailForCycle,
    MakeAvailable,
    Patch,
    Pause,
    RecordLaunch,
    Release,
    Resume,
    Retry,
    Start,
    TaskCommand,
    TaskUpdate,
    UnblockDependents,
)
from quarterdeck.domain.tasks.model.rows import State, Task, Verb, WaitsFor
from quarterdeck.domain.tasks.rules import states
from quarterdeck.domain.tasks.rules.decider import DECISIONS, BatchDecider
from tests.support.builders import NOW, ZONE
from tests.support.task_rules import (
    AGENT_ID,
    CREATOR,
    TIMEOUTS,
    claim_command,
    complete_command,
    dependents,
    fail_command,
    new_decider,
    task_row,
)


class CallerFields(TypedDict):
    zone_id: str
    caller: Caller
    id: str


class ServerFields(TypedDict):
    zone_id: str
    id: str


BY_CALLER: CallerFields = {"zone_id": ZONE, "caller": CREATOR, "id": "t"}
BY_SERVER: ServerFields = {"zone_id": ZONE, "id": "t"}
LATER = NOW + 3_600_000


def final_if_failed(status: State) -> Task:
    """A task in this state. A failed one is final."""
    return task_row(status, final=1, waits_for=WaitsFor.NOTHING) if status is State.FAILED else task_row(status)


def retrying(status: State) -> Task:
    """A task in this state. A failed or aborted one is retried after its backoff."""
    if status is not State.ABORTED:
        return task_row(status)
    failure = states.Failure("timeout", 0.0)
    return states.fail(task_row(State.RUNNING), Verb.ABORT, failure, TIMEOUTS.backoff_max_ms, NOW - 1)


def blocked_by_another(status: State) -> Task:
    return task_row(
        status,
        dependency_count=1,
        unmet_dependencies=1,
        waits_for=WaitsFor.DEPENDENCIES if status is State.PENDING else WaitsFor.NOTHING,
    )


@dataclass(frozen=True)
class CommandCase:
    """A command that causes a verb."""

    verb: Verb
    command: Callable[[Task], TaskCommand]
    build_task: Callable[[State], Task] = final_if_failed


CASES = {
    "assign": CommandCase(Verb.ASSIGN, lambda t: Assign(**BY_SERVER, agent_id=AGENT_ID, attempt_token="new")),
    "claim": CommandCase(Verb.CLAIM, lambda t: claim_command(token="new")),
    "start": CommandCase(Verb.START, lambda t: Start(**BY_CALLER, attempt_token=t.attempt_token)),
    "record launch": CommandCase(
        Verb.START,
        lambda t: RecordLaunch(**BY_SERVER, attempt_token=t.attempt_token or "", session_key="session"),
        lambda status: task_row(status, session_key="session"),
    ),
    "pause": CommandCase(Verb.PAUSE, lambda t: Pause(**BY_CALLER)),
    "patch to PAUSED": CommandCase(Verb.PAUSE, lambda t: Patch(**BY_CALLER, status_change="pause")),
    "resume": CommandCase(Verb.RESUME, lambda t: Resume(**BY_CALLER)),
    "patch to PENDING": CommandCase(Verb.RESUME, lambda t: Patch(**BY_CALLER, status_change="resume")),
    "complete": CommandCase(Verb.COMPLETE, lambda t: complete_command(token=t.attempt_token)),
    "fail": CommandCase(Verb.FAIL, lambda t: fail_command(token=t.attempt_token)),
    "unblock dependents": CommandCase(
        Verb.FAIL_DEPENDENCY, lambda t: UnblockDependents(zone_id=ZONE, id="dependency"), blocked_by_another
    ),
    "fail for cycle": CommandCase(
        Verb.FAIL_DEPENDENCY, lambda t: FailForCycle(**BY_SERVER, cycle=("t", "t")), blocked_by_another
    ),
    "release": CommandCase(Verb.RELEASE, lambda t: Release(**BY_CALLER, attempt_token=t.attempt_token)),
    "cancel": CommandCase(Verb.CANCEL, lambda t: Cancel(**BY_CALLER, reason="r"), retrying),
    "make available": CommandCase(Verb.REQUEUE, lambda t: MakeAvailable(**BY_SERVER), retrying),
    "retry": CommandCase(Verb.REQUEUE, lambda t: Retry(**BY_CALLER)),
    "archive": CommandCase(Verb.ARCHIVE, lambda t: Archive(**BY_CALLER)),
}


def apply(decider: BatchDecider, task: Task, command: TaskCommand) -> State | None:
    """The new state of the task; None if there was no transition."""
    decider.decide(command)
    events = [event for event in decider.batch.tasks.events if event.row.id == task.id]
    if not events:
        assert decider.batch.tasks[ZONE, task.id] == task, "no change without a transition"
        return None
    [event] = events
    assert event.from_state is task.status
    return event.row.status


def decider_with(task: Task) -> BatchDecider:
    """A decider with the task and a finally failed task that it may depend on."""
    dependency = task_row(State.FAILED, "dependency", final=1, waits_for=WaitsFor.NOTHING, dependents_pending=1)
    return new_decider(
        task, dependency, now=LATER, dependents=dependents({"dependency": ["t"]} if task.unmet_dependencies else {})
    )


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("status", State)
def test_command_makes_exactly_the_transition_of_its_verb(name: str, status: State) -> None:
    case = CASES[name]
    task = case.build_task(status)
    assert task.status is status
    assert apply(decider_with(task), task, case.command(task)) is states.TASK_STATES.next_state(case.verb, status)


@pytest.mark.parametrize("status", State)
def test_server_aborts_only_held_tasks_and_cancel_any_abortable_task(status: State) -> None:
    """Two commands share this verb: each covers a part of its transitions, and together they cover all."""
    task = final_if_failed(status)
    abort = Abort(**BY_SERVER, attempt_token=task.attempt_token, reason="timeout", jitter=0.0)
    by_server = apply(decider_with(task), task, abort)
    by_cancel = apply(decider_with(task), task, Cancel(**BY_CALLER, reason="r"))
    target = states.TASK_STATES.next_state(Verb.ABORT, status)
    assert by_server is (target if status in states.HELD else None)
    assert by_cancel is target


def test_every_verb_of_the_table_is_tested() -> None:
    assert {case.verb for case in CASES.values()} | {Verb.ABORT} == {*Verb} == {*states.TASK_STATES.transitions}


def test_abort_without_retries_left_makes_the_transition_of_a_failure() -> None:
    """Without retries left an abort ends in FAILED: the transition of a failure, from the same states."""
    for status in states.HELD:
        task = msgspec.structs.replace(task_row(status), max_retries=0)
        command = Abort(**BY_SERVER, attempt_token=task.attempt_token, reason="timeout", jitter=0.0)
        assert apply(decider_with(task), task, command) is states.TASK_STATES.next_state(Verb.FAIL, status)


def test_every_transition_has_an_event_type() -> None:
    assert {*states.EVENT_TYPES} == {*Verb}


def test_each_command_has_its_decision() -> None:
    assert {*DECISIONS} == {*TaskUpdate.__subclasses__()}
    for command, decision in DECISIONS.items():
        accepted = get_type_hints(decision)["command"]
        assert command in (get_args(accepted) or (accepted,)), f"{decision.__name__} does not take {command.__name__}"
