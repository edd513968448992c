"""Every attempt has one holder.

In the event log, an attempt starts only if no other attempt is running. Attempt numbers increase by one, except that a
released attempt is not counted and its number is reused. In the histories, a token is returned to only one client, and
an attempt has no more tokens than starts. For tasks, the agent that claimed an attempt must also be the agent in the
event log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import EventData, Evidence, Lease, Op, RecordedCall, Violation
from quarterdeck.maintenance.history_checker.replay import ATTEMPT_NOUNS, Replay, ReplayedObject

NAME = "one-holder"
Attempt = tuple[str, str, int]
"""(zone, invocation or task, number)"""
Starts = dict[Attempt, list[str | None]]
"""For each start of an attempt, the agent that started it. None for invocations."""


def check(evidence: Evidence) -> Iterator[Violation]:
    agents_by_start: Starts = {}
    for event, data, subject in Replay(evidence, *ATTEMPT_NOUNS).walk():
        if (detail := _violation_detail(event, data, subject)) is not None:
            yield Violation(NAME, event.zone_id, event.subject, detail, event.pos)
        if subject.noun.starts_attempt(event) and data.attempt is not None:
            attempt = (event.zone_id, event.subject, data.attempt)
            agents_by_start.setdefault(attempt, []).append(data.task_agent_id)
    yield from _check_agents(evidence, agents_by_start)
    yield from _check_leases(evidence, agents_by_start)


def _violation_detail(event: Event, data: EventData, subject: ReplayedObject) -> str | None:
    noun, number = subject.noun, data.attempt
    if noun.starts_attempt(event):
        if subject.is_held:
            return (
                f"{noun.name} {event.subject} started again (attempt {number}) "
                f"while attempt {subject.attempt} was running"
            )
        if number != subject.attempt + 1:
            return f"attempt {number} of {event.subject} was started after attempt {subject.attempt}"
        return None
    before, _ = noun.transition(event, subject.state)
    # A release event has the number of the previous attempt, because a released attempt is not counted.
    expected_number = subject.attempt - noun.releases_attempt(event)
    if subject.is_held and before in noun.held_states and number not in (None, expected_number):
        return noun.wrong_attempt_text.format(
            noun=noun.name,
            id=event.subject,
            type=event.type,
            verb=event.type.removeprefix(f"{noun.name}."),
            attempt=number,
            running=subject.attempt,
        )
    return None


@dataclass(frozen=True, slots=True)
class _ClaimedLease:
    lease: Lease
    call: RecordedCall

    @property
    def holder(self) -> str:
        """The claim, or else the client. Two calls with the same claim_id are one claim: the second is a repeat."""
        claim_id = self.call.request.claim_id or self.call.request.task_claim_id
        return f"claim {claim_id}" if claim_id else self.call.client


def _check_leases(evidence: Evidence, agents_by_start: Starts) -> Iterator[Violation]:
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
        starts = len(agents_by_start.get(attempt, ()))
        if len(calls_by_token) > starts and (starts or evidence.is_log_complete):
            zone_id, subject, attempt_number = attempt
            last = list(calls_by_token.values())[-1]
            detail = (
                f"attempt {attempt_number} of {subject} has {len(calls_by_token)} tokens, but was started {starts} "
                f"{'time' if starts == 1 else 'times'}"
            )
            yield Violation(NAME, zone_id, subject, detail, call=last.location)


def _check_agents(evidence: Evidence, agents_by_start: Starts) -> Iterator[Violation]:
    for call in evidence.successful_calls(Op.TASK_CLAIM):
        agent = call.request.agent_id
        for lease in call.leases():
            agents = agents_by_start.get((call.zone, lease.id, lease.attempt))
            if agent is not None and agents is not None and agent not in agents:
                agent_list = " and ".join(sorted(str(agent_id) for agent_id in set(agents)))
                detail = f"attempt {lease.attempt} of {lease.id} was claimed by {agent}, but started by {agent_list}"
                yield Violation(NAME, call.zone, lease.id, detail, call=call.location)
