"""Every verb in every state: the board moves a task where the table of arrows says, and nowhere else.

A verb is walked by each command that stands for it. Beside its state a task is as that command needs it, so that
nothing but the state decides: it has its token, it waits for another, its backoff is over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

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
    UnblockDependents,
)
from quarterdeck.domain.tasks.model.rows import State, Task, Verb, WaitsFor
from quarterdeck.domain.tasks.rules import states
from quarterdeck.domain.tasks.rules.decider import BatchDecider
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


class ByHand(TypedDict):
    zone_id: str
    caller: Caller
    id: str


class ByServer(TypedDict):
    zone_id: str
    id: str


HAND: ByHand = {"zone_id": ZONE, "caller": CREATOR, "id": "t"}
SERVER: ByServer = {"zone_id": ZONE, "id": "t"}
LATER = NOW + 3_600_000


def over(status: State) -> Task:
    """What has failed has failed for good."""
    return task_row(status, final=1, waits_for=WaitsFor.NOTHING) if status is State.FAILED else task_row(status)


def trying(status: State) -> Task:
    """What has failed, or was aborted, is tried again when its backoff is over."""
    if status is not State.ABORTED:
        return task_row(status)
    why = states.Failure("timeout", 0.0)
    return states.fail(task_row(State.RUNNING), State.ABORTED, why, TIMEOUTS.backoff_max_ms, NOW - 1)


def blocked_by_another(status: State) -> Task:
    return task_row(
        status,
        dependency_count=1,
        unmet_dependencies=1,
        waits_for=WaitsFor.DEPENDENCIES if status is State.PENDING else WaitsFor.NOTHING,
    )


@dataclass(frozen=True)
class Way:
    """A command that stands for a verb."""

    verb: Verb
    ask: Callable[[Task], TaskCommand]
    stands: Callable[[State], Task] = over


WAYS = {
    "assign": Way(Verb.ASSIGN, lambda t: Assign(**SERVER, agent_id=AGENT_ID, attempt_token="new")),
    "claim": Way(Verb.CLAIM, lambda t: claim_command(token="new")),
    "start": Way(Verb.START, lambda t: Start(**HAND, attempt_token=t.attempt_token)),
    "launched": Way(
        Verb.START,
        lambda t: RecordLaunch(**SERVER, attempt_token=t.attempt_token or "", session_key="session"),
        lambda status: task_row(status, session_key="session"),
    ),
    "pause": Way(Verb.PAUSE, lambda t: Pause(**HAND)),
    "patch to PAUSED": Way(Verb.PAUSE, lambda t: Patch(**HAND, status_change="pause")),
    "resume": Way(Verb.RESUME, lambda t: Resume(**HAND)),
    "patch to PENDING": Way(Verb.RESUME, lambda t: Patch(**HAND, status_change="resume")),
    "complete": Way(Verb.COMPLETE, lambda t: complete_command(token=t.attempt_token)),
    "fail": Way(Verb.FAIL, lambda t: fail_command(token=t.attempt_token)),
    "spread": Way(Verb.FAIL_DEPENDENCY, lambda t: UnblockDependents(zone_id=ZONE, id="ahead"), blocked_by_another),
    "cut": Way(Verb.FAIL_DEPENDENCY, lambda t: FailForCycle(**SERVER, cycle=("t", "t")), blocked_by_another),
    "release": Way(Verb.RELEASE, lambda t: Release(**HAND, attempt_token=t.attempt_token)),
    "cancel": Way(Verb.CANCEL, lambda t: Cancel(**HAND, reason="r"), trying),
    "due": Way(Verb.REQUEUE, lambda t: MakeAvailable(**SERVER), trying),
    "retry": Way(Verb.REQUEUE, lambda t: Retry(**HAND)),
    "archive": Way(Verb.ARCHIVE, lambda t: Archive(**HAND)),
}


def moved(here: BatchDecider, task: Task, ask: TaskCommand) -> State | None:
    """Where the task has come to; None if it did not move, whatever was answered."""
    here.decide(ask)
    told = [each for each in here.events if each.task.id == task.id]
    if not told:
        assert here.task((ZONE, task.id)) == task, "what does not move does not change"
        return None
    [one] = told
    assert one.from_state is task.status
    return one.task.status


def knowing(task: Task) -> BatchDecider:
    """Of the task, and of one that it may wait for and that has failed for good."""
    ahead = task_row(State.FAILED, "ahead", final=1, waits_for=WaitsFor.NOTHING, dependents_pending=1)
    return new_decider(
        task, ahead, now=LATER, dependents=dependents({"ahead": ["t"]} if task.unmet_dependencies else {})
    )


@pytest.mark.parametrize("name", WAYS)
@pytest.mark.parametrize("status", State)
def test_a_command_moves_a_task_where_its_verb_leads_and_nowhere_else(name: str, status: State) -> None:
    way = WAYS[name]
    task = way.stands(status)
    assert task.status is status
    assert moved(knowing(task), task, way.ask(task)) is states.TASK_STATES.next_state(way.verb, status)


@pytest.mark.parametrize("status", State)
def test_what_an_agent_has_is_aborted_by_the_server_and_what_nobody_has_by_hand(status: State) -> None:
    """The one verb of two commands: each of them covers a part of its arrows, and together they do all."""
    task = over(status)
    aborted = Abort(**SERVER, attempt_token=task.attempt_token, reason="timeout", jitter=0.0)
    by_server = moved(knowing(task), task, aborted)
    by_hand = moved(knowing(task), task, Cancel(**HAND, reason="r"))
    target = states.TASK_STATES.next_state(Verb.ABORT, status)
    assert by_server is (target if status in states.HELD else None)
    assert by_hand is target


def test_every_verb_of_the_table_is_walked() -> None:
    assert {way.verb for way in WAYS.values()} | {Verb.ABORT} == {*Verb} == {*states.TASK_STATES.transitions}


def test_an_agents_last_failure_is_where_a_failure_leads_too() -> None:
    """Without retries left an abort ends as FAILED: the arrow of a failure, from the same states."""
    for status in states.HELD:
        task = msgspec.structs.replace(task_row(status), max_retries=0)
        ask = Abort(**SERVER, attempt_token=task.attempt_token, reason="timeout", jitter=0.0)
        assert moved(knowing(task), task, ask) is states.TASK_STATES.next_state(Verb.FAIL, status)
