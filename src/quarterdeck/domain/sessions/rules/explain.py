"""Why: in words, from the same rows and by the same rules that decide."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quarterdeck.core.clock import Millis, iso
from quarterdeck.core.errors import Problem
from quarterdeck.domain.sessions.model import (
    BoundUse,
    Cascade,
    Session,
    Spawn,
    SpawnExplanation,
    SpawnRefusal,
    State,
    TreeNode,
)
from quarterdeck.domain.sessions.rules.admission import (
    SpawnBatchInput,
    SpawnDecider,
    limit_exceeded,
    precondition_problem,
)
from quarterdeck.domain.sessions.rules.states import TTL_EXPIRED, effective_session, ownership_required


def explain_spawn(command: Spawn, loaded: SpawnBatchInput) -> SpawnExplanation:
    """Every refusal that a spawn would meet now, in the order in which it would be told them, and every bound."""
    usages = list(SpawnDecider(loaded).bound_usages(command))
    problems: list[Problem] = []
    if not command.caller.can_act_for(command.application_id, "spawn_for"):
        problems.append(ownership_required(command.application_id))
    if precondition := precondition_problem(command, loaded):
        problems.append(precondition)
    problems += [limit_exceeded(bound, limit, used) for bound, limit, used in usages if used + 1 > limit]
    return SpawnExplanation(
        zone_id=command.zone_id,
        application_id=command.application_id,
        parent_id=command.parent_id,
        admitted=not problems,
        refused_by=[_to_refusal(problem) for problem in problems],
        bounds=[
            BoundUse(bound.name, limit, used, max(0, limit - used), bound.counts, bound.frees)
            for bound, limit, used in usages
        ],
    )


def _to_refusal(problem: Problem) -> SpawnRefusal:
    fields: dict[str, object] = {"error": problem.code, "detail": problem.detail}
    fields |= {name: problem.members[name] for name in ("bound", "limit", "used", "frees") if name in problem.members}
    return msgspec.convert(fields, SpawnRefusal)


def suspended_by(session: Session, lineage: Sequence[TreeNode]) -> list[str]:
    """The sessions whose flags keep this one, as it reads, asleep, nearest first: itself, then its ancestors."""
    if session.status is not State.SUSPENDED:
        return []
    return [node.id for node in lineage if node.held]


def explain_state(session: Session, lineage: Sequence[TreeNode], cascade: Cascade | None, now: Millis) -> list[str]:
    """Why a session is in its state: the most telling sentence first."""
    current = effective_session(session, now)
    if current.status is State.TERMINATED:
        return _explain_end(session, cascade, now)
    expires_at, remaining = iso(session.expires_at), _format_duration(session.expires_at - now)
    lifetime = f"It lives until {expires_at}, for {remaining} more, unless it is ended before."
    if current.status is State.ACTIVE:
        return ["It is active: it has not ended, and neither it nor an ancestor is suspended.", lifetime]
    suspending_ids = suspended_by(session, lineage)
    if not suspending_ids:
        return ["It is suspended, though no flag holds it: nothing here leaves it so. Run `qd check`.", lifetime]
    sentences = [
        "It is suspended by a flag of its own."
        if name == session.id
        else f"It is suspended because its ancestor {name} is."
        for name in suspending_ids
    ]
    hint = "Resume " + " and ".join(suspending_ids) + " to wake it."
    return [*sentences, hint, "It keeps its place in every bound, and its time runs on.", lifetime]


def _explain_end(session: Session, cascade: Cascade | None, now: Millis) -> list[str]:
    if session.terminated_at is None:
        elapsed = _format_duration(now - session.expires_at)
        return [f"Its time ran out at {iso(session.expires_at)}, {elapsed} ago; the next sweep writes that down."]
    reason = session.termination_reason or "unknown"
    ended_at = iso(session.terminated_at)
    sentences = [
        f"Its time ran out at {ended_at}." if reason == TTL_EXPIRED else f"It was ended at {ended_at}: {reason}."
    ]
    if session.status is not State.TERMINATED and cascade is not None:
        sentences.append(
            f"The cascade {cascade.id} has settled {cascade.settled} of {cascade.stamped} sessions; "
            "this one is still to come."
        )
    return sentences


def _format_duration(millis: int) -> str:
    seconds = max(0, millis) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
