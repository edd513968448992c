"""Every attempt had one holder.

By the log: an attempt begins when none is under way, and the next begins only after it has ended; its numbers rise by
one, except that an attempt which was given back uncounted is begun anew. By the histories: a token was handed to one
client, and no attempt under more tokens than it was begun times. It is the same for tasks, and one thing more: the
agent that an attempt was handed to is the one that the log says began it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import (
    ENDED_STATES,
    Call,
    Evidence,
    Finding,
    Lease,
    Op,
    Outcome,
    Ref,
    Told,
)
from quarterdeck.maintenance.history_checker.replay import COMES_FROM, ENDS_AN_ATTEMPT, LEADS_TO, Tale, reading
from quarterdeck.maintenance.history_checker.task_model import TaskTold
from quarterdeck.maintenance.history_checker.task_replay import HELD, Tales, TaskTale, begins

NAME = "one-holder"
Attempt = tuple[str, str, int]
"""(zone, invocation or task, number)"""


def judge(evidence: Evidence) -> Iterator[Finding]:
    begun: Counter[Attempt] = Counter()
    tales: dict[Ref, Tale] = {}
    for event, told in reading(evidence):
        if event.type not in LEADS_TO:
            continue
        ref = (event.zone_id, event.subject)
        if ref not in tales and not evidence.whole and event.from_state is not None:
            tales[ref] = Tale(event.from_state, told.attempt or 0)
        tale = tales.setdefault(ref, Tale())
        yield from _wrong(event, told, tale)
        if event.type == "invocation.started" and told.attempt is not None:
            begun[event.zone_id, event.subject, told.attempt] += 1
        _go_on(event, told, tale)
    yield from _check_tasks(evidence, NAME, begun)
    yield from _handed_out(evidence, begun)


def _wrong(event: Event, told: Told, tale: Tale) -> Iterator[Finding]:
    verb, number = event.type.removeprefix("invocation."), told.attempt

    def finding(detail: str) -> Finding:
        return Finding(NAME, event.zone_id, event.subject, detail, event.pos)

    if tale.state not in COMES_FROM[event.type]:
        if event.type == "invocation.started" and tale.state == "running":
            yield finding(
                f"the invocation {event.subject} was begun again (attempt {number}) while attempt {tale.attempt} ran"
            )
        else:
            state = tale.state or "not there"
            yield finding(f"the invocation {event.subject} was {verb}, though it was {state}")
    elif event.type == "invocation.started" and number != tale.attempt + 1:
        yield finding(f"attempt {number} of {event.subject} was begun after attempt {tale.attempt}")
    elif event.type in ENDS_AN_ATTEMPT and tale.state == "running" and number not in _of(event, tale):
        yield finding(f"the invocation {event.subject} was {verb} in attempt {number} while attempt {tale.attempt} ran")


def _of(event: Event, tale: Tale) -> tuple[int | None, ...]:
    """The numbers by which an end may name the attempt that runs. One that is given back uncounts it."""
    given_back = (tale.attempt - 1,) if event.type == "invocation.released" else ()
    return (None, tale.attempt, *given_back)


def _go_on(event: Event, told: Told, tale: Tale) -> None:
    if event.type == "invocation.started" and told.attempt is not None:
        tale.attempt = told.attempt
    elif event.type == "invocation.released":
        # Given back uncounted: the next is begun under the same number.
        tale.attempt = max(0, tale.attempt - 1)
    if tale.state not in ENDED_STATES:
        tale.state = LEADS_TO[event.type]


@dataclass(frozen=True, slots=True)
class _Handed:
    lease: Lease
    call: Call

    @property
    def holder(self) -> str:
        """Two calls with one claim_id are one claim: the second is the first, asked for again."""
        work = self.call.work
        claim = self.call.asked.claim_id if work is None else work.asked.claim_id
        return f"claim {claim}" if claim else self.call.client


def _handed_out(evidence: Evidence, begun: Counter[Attempt]) -> Iterator[Finding]:
    holders: dict[tuple[str, str, str], _Handed] = {}
    tokens: dict[Attempt, dict[str, Call]] = {}
    for call in evidence.history:
        for lease in call.leases():
            handed = _Handed(lease, call)
            first = holders.setdefault((call.zone, lease.id, lease.attempt_token), handed)
            if first.holder != handed.holder:
                detail = (
                    f"the same token of attempt {lease.attempt} of {lease.id} was handed to {first.call.client} "
                    f"({first.call.where}) and to {call.client}"
                )
                yield Finding(NAME, call.zone, lease.id, detail, call=call.where)
            tokens.setdefault((call.zone, lease.id, lease.attempt), {})[lease.attempt_token] = call
    for attempt, given in tokens.items():
        times = begun[attempt]
        if len(given) > times and (times or evidence.whole):
            zone_id, invocation_id, number = attempt
            last = list(given.values())[-1]
            detail = (
                f"attempt {number} of {invocation_id} was handed out under {len(given)} tokens, and begun {times} "
                f"{'time' if times == 1 else 'times'}"
            )
            yield Finding(NAME, zone_id, invocation_id, detail, call=last.where)


def _check_tasks(evidence: Evidence, promise: str, begun: Counter[Attempt]) -> Iterator[Finding]:
    """Counts in `begun` how often each attempt was."""
    by_whom: dict[Attempt, set[str | None]] = {}
    for event, told, tale in Tales(evidence).walk():
        if (detail := _task_problem(event, told, tale)) is not None:
            yield Finding(promise, event.zone_id, event.subject, detail, event.pos)
        if begins(event):
            attempt = (event.zone_id, event.subject, told.attempt)
            begun[attempt] += 1
            by_whom.setdefault(attempt, set()).add(told.agent_id)
    yield from _by_others(evidence, promise, by_whom)


def _task_problem(event: Event, told: TaskTold, tale: TaskTale) -> str | None:
    name, number = event.subject, told.attempt
    if begins(event):
        if tale.is_held:
            return f"the task {name} was begun again (attempt {number}) while attempt {tale.attempt} ran"
        if number != tale.attempt + 1:
            return f"attempt {number} of {name} was begun after attempt {tale.attempt}"
        return None
    # One that is given back is told of under the number before it.
    expected = tale.attempt - 1 if event.type == "task.released" else tale.attempt
    if event.from_state in HELD and tale.is_held and number != expected:
        return f"{event.type} of {name} is told of attempt {number} while attempt {tale.attempt} ran"
    return None


def _by_others(evidence: Evidence, promise: str, by_whom: dict[Attempt, set[str | None]]) -> Iterator[Finding]:
    for call in evidence.history:
        if call.op != Op.TASK_CLAIM or call.outcome is not Outcome.DONE or call.work is None:
            continue
        agent = call.work.asked.agent_id
        for lease in call.work.leases:
            known = by_whom.get((call.zone, lease.id, lease.attempt))
            if agent is not None and known is not None and agent not in known:
                told = " and ".join(sorted(str(who) for who in known))
                detail = f"attempt {lease.attempt} of {lease.id} was handed to {agent}, and was begun by {told}"
                yield Finding(promise, call.zone, lease.id, detail, call=call.where)
