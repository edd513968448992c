"""Matches the completions that clients sent to the ends of attempts in the event log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quarterdeck.core.ids import Ref
from quarterdeck.maintenance.history_checker.model import Evidence, Op, RecordedCall
from quarterdeck.maintenance.history_checker.nouns import noun_events
from quarterdeck.maintenance.history_checker.replay import ATTEMPT_NOUNS

TASK_END_VERBS = {Op.TASK_COMPLETE: "completed", Op.TASK_FAIL: "failed", Op.TASK_RELEASE: "released"}
"""The verb in the event log for each accepted call that ends an attempt of a task."""
AttemptToken = tuple[str, str, str]
"""(zone, invocation or task, token)"""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """The end of an attempt in the event log."""

    attempt: int | None
    pos: int
    verb: str


@dataclass(frozen=True, slots=True)
class AcceptedCompletion:
    """A completion or a release that succeeded."""

    call: RecordedCall
    attempt: int | None
    """The attempt that the token belongs to. None if no history contains the response that returned the token."""
    ends: Sequence[AttemptEnd]
    """The ends of all attempts of this invocation or task."""

    @property
    def own_ends(self) -> list[AttemptEnd]:
        """The ends of the token's attempt. There may be several, because the number of a released attempt is reused."""
        return [end for end in self.ends if self.attempt is None or end.attempt in (None, self.attempt)]

    @property
    def expected_verbs(self) -> frozenset[str]:
        """The verbs in the event log that agree with the client's response."""
        if (verb := TASK_END_VERBS.get(Op(self.call.op))) is not None:
            return frozenset({verb})
        if self.call.op == Op.RELEASE:
            return frozenset({"released", "canceled"})
        status = self.call.response.status
        if status == "pending":
            return frozenset({"retried"})
        if isinstance(status, str):
            return frozenset({status})
        if self.call.request.status == "succeeded":
            return frozenset({"succeeded", "canceled"})
        return frozenset({"failed", "retried", "dead", "canceled", "timed_out"})


def attempt_numbers(evidence: Evidence) -> dict[AttemptToken, int]:
    """The attempt number for each token, from the responses that returned the tokens."""
    return {
        (call.zone, lease.id, lease.attempt_token): lease.attempt
        for call in evidence.history
        for lease in call.leases()
    }


def attempt_token_of(call: RecordedCall) -> AttemptToken:
    """The zone, the id and the attempt token of a request about an attempt."""
    token = call.request.attempt_token or call.request.task_attempt_token
    return call.zone, call.request.id or "", token or ""


def accepted_completions(evidence: Evidence) -> Iterator[AcceptedCompletion]:
    calls = [call for call in evidence.successful_calls(Op.COMPLETE, Op.RELEASE, *TASK_END_VERBS) if call.request.id]
    numbers_by_token = attempt_numbers(evidence)
    ends_by_ref: dict[Ref, list[AttemptEnd]] = {(call.zone, call.request.id or ""): [] for call in calls}
    running_attempts: dict[Ref, int | None] = {}
    for noun, event, data in noun_events(evidence, *ATTEMPT_NOUNS):
        ref = (event.zone_id, event.subject)
        if ref not in ends_by_ref:
            continue
        if noun.starts_attempt(event):
            running_attempts[ref] = data.attempt
        elif noun.ends_attempt(event):
            verb = event.type.removeprefix(f"{noun.name}.")
            # The number comes from the start event, because a release event has the number of the previous attempt.
            ends_by_ref[ref].append(AttemptEnd(running_attempts.get(ref, data.attempt), event.pos, verb))
    for call in calls:
        yield AcceptedCompletion(
            call, numbers_by_token.get(attempt_token_of(call)), ends_by_ref[call.zone, call.request.id or ""]
        )
