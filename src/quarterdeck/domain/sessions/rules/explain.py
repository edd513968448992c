"""Why: in words, from the same rows and by the same rules that decide."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.clock import Millis, iso
from quarterdeck.core.errors import Problem
from quarterdeck.domain.sessions.model import BoundUse, Cascade, Member, Session, Spawn, SpawnExplanation, State, WhyNot
from quarterdeck.domain.sessions.rules.admission import Known, Ledger, closed_door, exceeded
from quarterdeck.domain.sessions.rules.states import EXPIRED, as_read, ownership_required


def spawn_explained(ask: Spawn, known: Known) -> SpawnExplanation:
    """Every refusal that a spawn would meet now, in the order in which it would be told them, and every bound."""
    uses = list(Ledger(known).uses(ask))
    refusals: list[Problem] = []
    if not ask.caller.may_act_for(ask.application_id, "spawn_for"):
        refusals.append(ownership_required(ask.application_id))
    if door := closed_door(ask, known):
        refusals.append(door)
    refusals += [exceeded(bound, limit, used) for bound, limit, used in uses if used + 1 > limit]
    return SpawnExplanation(
        zone_id=ask.zone_id,
        application_id=ask.application_id,
        parent_id=ask.parent_id,
        admitted=not refusals,
        refused_by=[_why_not(refusal) for refusal in refusals],
        bounds=[
            BoundUse(bound.name, limit, used, max(0, limit - used), bound.counts, bound.frees)
            for bound, limit, used in uses
        ],
    )


def _why_not(problem: Problem) -> WhyNot:
    told: dict[str, object] = {"error": problem.code, "detail": problem.detail}
    told |= {name: problem.members[name] for name in ("bound", "limit", "used", "frees") if name in problem.members}
    return msgspec.convert(told, WhyNot)


def holders(session: Session, line: Sequence[Member]) -> list[str]:
    """The sessions whose flags keep this one, as it reads, asleep, nearest first: itself, then its ancestors."""
    if session.status is not State.SUSPENDED:
        return []
    return [member.id for member in line if member.held]


def state_explained(session: Session, line: Sequence[Member], ending: Cascade | None, now: Millis) -> list[str]:
    """Why a session is in its state: the most telling sentence first."""
    read = as_read(session, now)
    if read.status is State.TERMINATED:
        return _ended(session, ending, now)
    until, left = iso(session.expires_at), _span(session.expires_at - now)
    lives = f"It lives until {until}, for {left} more, unless it is ended before."
    if read.status is State.ACTIVE:
        return ["It is active: it has not ended, and neither it nor an ancestor is suspended.", lives]
    held = holders(session, line)
    if not held:
        return ["It is suspended, though no flag holds it: nothing here leaves it so. Run `qd check`.", lives]
    said = [
        "It is suspended by a flag of its own."
        if name == session.id
        else f"It is suspended because its ancestor {name} is."
        for name in held
    ]
    frees = "Resume " + " and ".join(held) + " to wake it."
    return [*said, frees, "It keeps its place in every bound, and its time runs on.", lives]


def _ended(session: Session, ending: Cascade | None, now: Millis) -> list[str]:
    if session.terminated_at is None:
        since = _span(now - session.expires_at)
        return [f"Its time ran out at {iso(session.expires_at)}, {since} ago; the next sweep writes that down."]
    reason = session.termination_reason or "unknown"
    at = iso(session.terminated_at)
    said = [f"Its time ran out at {at}." if reason == EXPIRED else f"It was ended at {at}: {reason}."]
    if session.status is not State.TERMINATED and ending is not None:
        said.append(
            f"The cascade {ending.id} has settled {ending.settled} of {ending.stamped} sessions; "
            "this one is still to come."
        )
    return said


def _span(millis: int) -> str:
    seconds = max(0, millis) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
