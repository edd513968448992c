"""Every attempt has one holder.

In the event log, an attempt starts only if no other attempt is running. Attempt numbers increase by one, except that a
released attempt is not counted and its number is reused. In the histories, a token is returned to only one client, and
an attempt has no more tokens than starts. For tasks, the agent that claimed an attempt must also be the agent in the
event log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import (
    ENDED_STATES,
    EventData,
    Evidence,
    Lease,
    Op,
    Outcome,
    RecordedCall,
    Ref,
    Violation,
)
from quarterdeck.maintenance.history_checker.replay import (
    ATTEMPT_END_EVENTS,
    INVOCATION_STATE_AFTER,
    INVOCATION_STATES_BEFORE,
    ReplayedInvocation,
    readable_events,
)
from quarterdeck.maintenance.history_checker.task_model import TaskEventData
from quarterdeck.maintenance.history_checker.task_replay import HELD_STATES, ReplayedTask, TaskReplay, starts_attempt

NAME = "one-holder"
Attempt = tuple[str, str, int]
"""(zone, invocation or task, number)"""


def check(evidence: Evidence) -> Iterator[Violation]:
    start_counts: Counter[Attempt] = Counter()
    invocations: dict[Ref, ReplayedInvocation] = {}
    for event, data in readable_events(evidence):
        if event.type not in INVOCATION_STATE_AFTER:
            continue
        ref = (event.zone_id, event.subject)
        if ref not in invocations and not evidence.is_log_complete and event.from_state is not None:
            invocations[ref] = ReplayedInvocation(event.from_state, data.attempt or 0)
        invocation = invocations.setdefault(ref, ReplayedInvocation())
        yield from _check_event(event, data, invocation)
        if event.type == "invocation.started" and data.attempt is not None:
            start_counts[event.zone_id, event.subject, data.attempt] += 1
        _apply_event(event, data, invocation)
    yield from _check_tasks(evidence, start_counts)
    yield from _check_leases(evidence, start_counts)


def _check_event(event: Event, data: EventData, invocation: ReplayedInvocation) -> Iterator[Violation]:
    verb, attempt_number = event.type.removeprefix("invocation."), data.attempt

    def violation(detail: str) -> Violation:
        return Violation(NAME, event.zone_id, event.subject, detail, event.pos)

    if invocation.state not in INVOCATION_STATES_BEFORE[event.type]:
        if event.type == "invocation.started" and invocation.state == "running":
            yield violation(
                f"invocation {event.subject} started again (attempt {attempt_number}) "
                f"while attempt {invocation.attempt} was running"
            )
        else:
            state = invocation.state or "unknown"
            yield violation(f"invocation {event.subject} was {verb}, but its state was {state}")
    elif event.type == "invocation.started" and attempt_number != invocation.attempt + 1:
        yield violation(f"attempt {attempt_number} of {event.subject} was started after attempt {invocation.attempt}")
    elif (
        event.type in ATTEMPT_END_EVENTS
        and invocation.state == "running"
        and attempt_number not in _valid_attempt_numbers(event, invocation)
    ):
        yield violation(
            f"invocation {event.subject} was {verb} in attempt {attempt_number} "
            f"while attempt {invocation.attempt} was running"
        )


def _valid_attempt_numbers(event: Event, invocation: ReplayedInvocation) -> tuple[int | None, ...]:
    """The attempt numbers that the end event of an attempt may have.

    A release event may have the number of the previous attempt, because a released attempt is not counted.
    """
    previous_number = (invocation.attempt - 1,) if event.type == "invocation.released" else ()
    return (None, invocation.attempt, *previous_number)


def _apply_event(event: Event, data: EventData, invocation: ReplayedInvocation) -> None:
    if event.type == "invocation.started" and data.attempt is not None:
        invocation.attempt = data.attempt
    elif event.type == "invocation.released":
        # A released attempt is not counted: the next attempt gets the same number.
        invocation.attempt = max(0, invocation.attempt - 1)
    if invocation.state not in ENDED_STATES:
        invocation.state = INVOCATION_STATE_AFTER[event.type]


@dataclass(frozen=True, slots=True)
class _ClaimedLease:
    lease: Lease
    call: RecordedCall

    @property
    def holder(self) -> str:
        """The claim, or else the client. Two calls with the same claim_id are one claim: the second is a repeat."""
        task_data = self.call.task_data
        claim_id = self.call.request.claim_id if task_data is None else task_data.request.claim_id
        return f"claim {claim_id}" if claim_id else self.call.client


def _check_leases(evidence: Evidence, start_counts: Counter[Attempt]) -> Iterator[Violation]:
    holders: dict[tuple[str, str, str], _ClaimedLease] = {}
    tokens: dict[Attempt, dict[str, RecordedCall]] = {}
    for call in evidence.history:
        for lease in call.leases():
            claimed_lease = _ClaimedLease(lease, call)
            first = holders.setdefault((call.zone, lease.id, lease.attempt_token), claimed_lease)
            if first.holder != claimed_lease.holder:
                detail = (
                    f"the same token of attempt {lease.attempt} of {lease.id} was returned to {first.call.client} "
                    f"({first.call.location}) and to {call.client}"
                )
                yield Violation(NAME, call.zone, lease.id, detail, call=call.location)
            tokens.setdefault((call.zone, lease.id, lease.attempt), {})[lease.attempt_token] = call
    for attempt, calls_by_token in tokens.items():
        starts = start_counts[attempt]
        if len(calls_by_token) > starts and (starts or evidence.is_log_complete):
            zone_id, subject, attempt_number = attempt
            last = list(calls_by_token.values())[-1]
            detail = (
                f"attempt {attempt_number} of {subject} has {len(calls_by_token)} tokens, but was started {starts} "
                f"{'time' if starts == 1 else 'times'}"
            )
            yield Violation(NAME, zone_id, subject, detail, call=last.location)


def _check_tasks(evidence: Evidence, start_counts: Counter[Attempt]) -> Iterator[Violation]:
    """Check the attempts of tasks. Adds their starts to `start_counts`."""
    agents_by_attempt: dict[Attempt, set[str | None]] = {}
    for event, data, task in TaskReplay(evidence).walk():
        if (detail := _violation_detail(event, data, task)) is not None:
            yield Violation(NAME, event.zone_id, event.subject, detail, event.pos)
        if starts_attempt(event):
            attempt = (event.zone_id, event.subject, data.attempt)
            start_counts[attempt] += 1
            agents_by_attempt.setdefault(attempt, set()).add(data.agent_id)
    yield from _check_agents(evidence, agents_by_attempt)


def _violation_detail(event: Event, data: TaskEventData, task: ReplayedTask) -> str | None:
    task_id, attempt_number = event.subject, data.attempt
    if starts_attempt(event):
        if task.is_held:
            return f"task {task_id} started again (attempt {attempt_number}) while attempt {task.attempt} was running"
        if attempt_number != task.attempt + 1:
            return f"attempt {attempt_number} of {task_id} was started after attempt {task.attempt}"
        return None
    # A release event has the number of the previous attempt, because a released attempt is not counted.
    expected_number = task.attempt - 1 if event.type == "task.released" else task.attempt
    if event.from_state in HELD_STATES and task.is_held and attempt_number != expected_number:
        return f"{event.type} of {task_id} has attempt {attempt_number}, but attempt {task.attempt} was running"
    return None


def _check_agents(evidence: Evidence, agents_by_attempt: dict[Attempt, set[str | None]]) -> Iterator[Violation]:
    for call in evidence.history:
        if call.op != Op.TASK_CLAIM or call.outcome is not Outcome.DONE or call.task_data is None:
            continue
        agent = call.task_data.request.agent_id
        for lease in call.task_data.leases:
            agents = agents_by_attempt.get((call.zone, lease.id, lease.attempt))
            if agent is not None and agents is not None and agent not in agents:
                agent_list = " and ".join(sorted(str(agent_id) for agent_id in agents))
                detail = f"attempt {lease.attempt} of {lease.id} was claimed by {agent}, but started by {agent_list}"
                yield Violation(NAME, call.zone, lease.id, detail, call=call.location)
