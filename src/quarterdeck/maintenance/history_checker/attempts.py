"""What clients did with the attempts they held, beside what the log says became of those attempts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quarterdeck.maintenance.history_checker.model import Call, Evidence, Op, Ref
from quarterdeck.maintenance.history_checker.replay import ENDS_AN_ATTEMPT, reading
from quarterdeck.maintenance.history_checker.task_replay import begins, ends

OF_TASKS = {Op.TASK_COMPLETE: "completed", Op.TASK_FAIL: "failed", Op.TASK_RELEASE: "released"}
"""How the log has it that an attempt at a task ended, by what was accepted."""
Token = tuple[str, str, str]
"""(zone, invocation or task, token)"""


@dataclass(frozen=True, slots=True)
class End:
    """An attempt that ended, by the log."""

    attempt: int | None
    pos: int
    verb: str


@dataclass(frozen=True, slots=True)
class Accepted:
    """A completion or a release that was answered with success."""

    call: Call
    attempt: int | None
    """Whose token it bore; None where no history has the answer that handed it out."""
    ends: Sequence[End]
    """How the attempts of this invocation, or this task, ended."""

    @property
    def own(self) -> list[End]:
        """How the attempt ended that the token is of. A number that was given back uncounted may end twice."""
        return [end for end in self.ends if self.attempt is None or end.attempt in (None, self.attempt)]

    @property
    def wanted(self) -> frozenset[str]:
        """What the log may say of that attempt, by what the client was told."""
        if (verb := OF_TASKS.get(Op(self.call.op))) is not None:
            return frozenset({verb})
        if self.call.op == Op.RELEASE:
            return frozenset({"released", "canceled"})
        told = self.call.said.status
        if told == "pending":
            return frozenset({"retried"})
        if isinstance(told, str):
            return frozenset({told})
        if self.call.asked.status == "succeeded":
            return frozenset({"succeeded", "canceled"})
        return frozenset({"failed", "retried", "dead", "canceled", "timed_out"})


def numbers(evidence: Evidence) -> dict[Token, int]:
    """Which attempt a token is of, by the answers that handed it out."""
    return {
        (call.zone, lease.id, lease.attempt_token): lease.attempt
        for call in evidence.history
        for lease in call.leases()
    }


def token_of(call: Call) -> Token:
    """What a word about an attempt bore."""
    token = call.asked.attempt_token if call.work is None else call.work.asked.attempt_token
    return call.zone, call.asked.id or "", token or ""


def accepted(evidence: Evidence) -> Iterator[Accepted]:
    calls = [call for call in evidence.done(Op.COMPLETE, Op.RELEASE, *OF_TASKS) if call.asked.id]
    known = numbers(evidence)
    found: dict[Ref, list[End]] = {(call.zone, call.asked.id or ""): [] for call in calls}
    running: dict[Ref, int | None] = {}
    for event, told in reading(evidence):
        ref = (event.zone_id, event.subject)
        if ref not in found:
            continue
        noun, _, verb = event.type.partition(".")
        if event.type == "invocation.started" or begins(event):
            running[ref] = told.attempt
        elif event.type in ENDS_AN_ATTEMPT or (noun == "task" and ends(event)):
            # Of which attempt it is the end says where it began, and not the event, which may have uncounted it.
            found[ref].append(End(running.get(ref, told.attempt), event.pos, verb))
    for call in calls:
        yield Accepted(call, known.get(token_of(call)), found[call.zone, call.asked.id or ""])
