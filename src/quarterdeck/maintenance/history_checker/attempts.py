"""What clients did with the attempts they held, beside what the log says became of those attempts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quarterdeck.maintenance.history_checker.model import Evidence, Op, RecordedCall, Ref
from quarterdeck.maintenance.history_checker.replay import ATTEMPT_END_EVENTS, readable_events
from quarterdeck.maintenance.history_checker.task_replay import ends_attempt, starts_attempt

TASK_END_VERBS = {Op.TASK_COMPLETE: "completed", Op.TASK_FAIL: "failed", Op.TASK_RELEASE: "released"}
"""How the log has it that an attempt at a task ended, by what was accepted."""
AttemptToken = tuple[str, str, str]
"""(zone, invocation or task, token)"""


@dataclass(frozen=True, slots=True)
class AttemptEnd:
    """An attempt that ended, by the log."""

    attempt: int | None
    pos: int
    verb: str


@dataclass(frozen=True, slots=True)
class AcceptedCompletion:
    """A completion or a release that was answered with success."""

    call: RecordedCall
    attempt: int | None
    """Whose token it bore; None where no history has the answer that handed it out."""
    ends: Sequence[AttemptEnd]
    """How the attempts of this invocation, or this task, ended."""

    @property
    def own_ends(self) -> list[AttemptEnd]:
        """How the attempt ended that the token is of. A number that was given back uncounted may end twice."""
        return [end for end in self.ends if self.attempt is None or end.attempt in (None, self.attempt)]

    @property
    def expected_verbs(self) -> frozenset[str]:
        """What the log may say of that attempt, by what the client was told."""
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
    """Which attempt a token is of, by the answers that handed it out."""
    return {
        (call.zone, lease.id, lease.attempt_token): lease.attempt
        for call in evidence.history
        for lease in call.leases()
    }


def attempt_token_of(call: RecordedCall) -> AttemptToken:
    """What a word about an attempt bore."""
    token = call.request.attempt_token if call.task_data is None else call.task_data.request.attempt_token
    return call.zone, call.request.id or "", token or ""


def accepted_completions(evidence: Evidence) -> Iterator[AcceptedCompletion]:
    calls = [call for call in evidence.successful_calls(Op.COMPLETE, Op.RELEASE, *TASK_END_VERBS) if call.request.id]
    numbers_by_token = attempt_numbers(evidence)
    ends_by_ref: dict[Ref, list[AttemptEnd]] = {(call.zone, call.request.id or ""): [] for call in calls}
    running: dict[Ref, int | None] = {}
    for event, data in readable_events(evidence):
        ref = (event.zone_id, event.subject)
        if ref not in ends_by_ref:
            continue
        noun, _, verb = event.type.partition(".")
        if event.type == "invocation.started" or starts_attempt(event):
            running[ref] = data.attempt
        elif event.type in ATTEMPT_END_EVENTS or (noun == "task" and ends_attempt(event)):
            # Of which attempt it is the end says where it began, and not the event, which may have uncounted it.
            ends_by_ref[ref].append(AttemptEnd(running.get(ref, data.attempt), event.pos, verb))
    for call in calls:
        yield AcceptedCompletion(
            call, numbers_by_token.get(attempt_token_of(call)), ends_by_ref[call.zone, call.request.id or ""]
        )
