"""What clients did with the attempts they held, beside what the log says became of those attempts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from quarterdeck.upkeep.history.model import Call, Evidence, Op, Ref
from quarterdeck.upkeep.history.replay import ENDS_AN_ATTEMPT, reading


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
    """How the attempts of this invocation ended."""

    @property
    def own(self) -> list[End]:
        """How the attempt ended that the token is of. A number that was given back uncounted may end twice."""
        return [end for end in self.ends if self.attempt is None or end.attempt in (None, self.attempt)]

    @property
    def wanted(self) -> frozenset[str]:
        """What the log may say of that attempt, by what the client was told."""
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


def accepted(evidence: Evidence) -> Iterator[Accepted]:
    calls = [call for call in evidence.done(Op.COMPLETE, Op.RELEASE) if call.asked.id]
    numbers: dict[tuple[str, str, str], int] = {
        (call.zone, lease.id, lease.attempt_token): lease.attempt
        for call in evidence.history
        for lease in call.leases()
    }
    ends: dict[Ref, list[End]] = {(call.zone, call.asked.id or ""): [] for call in calls}
    running: dict[Ref, int | None] = {}
    for event, told in reading(evidence):
        ref = (event.zone_id, event.subject)
        if ref in ends and event.type == "invocation.started":
            running[ref] = told.attempt
        elif ref in ends and event.type in ENDS_AN_ATTEMPT:
            # Of which attempt it is the end says where it began, and not the event, which may have uncounted it.
            verb = event.type.removeprefix("invocation.")
            ends[ref].append(End(running.get(ref, told.attempt), event.pos, verb))
    for call in calls:
        name = call.asked.id or ""
        number = numbers.get((call.zone, name, call.asked.attempt_token or ""))
        yield Accepted(call, number, ends[call.zone, name])
