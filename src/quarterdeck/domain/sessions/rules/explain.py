"""Explains sessions and spawns in sentences, from the rows and rules that decisions use."""

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
    """All reasons why a spawn would be refused now, in the order of the checks, and all bounds."""
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
            BoundUse(bound.name, limit, used, max(0, limit - used), bound.unit, bound.frees)
            for bound, limit, used in usages
        ],
    )


def _to_refusal(problem: Problem) -> SpawnRefusal:
    fields: dict[str, object] = {"error": problem.code, "detail": problem.detail}
    fields |= {name: problem.members[name] for name in ("bound", "limit", "used", "frees") if name in problem.members}
    return msgspec.convert(fields, SpawnRefusal)


def suspended_by(session: Session, lineage: Sequence[TreeNode]) -> list[str]:
    """The sessions whose flags suspend this one, nearest first: itself, then its ancestors."""
    if session.status is not State.SUSPENDED:
        return []
    return [node.id for node in lineage if node.held]


def explain_state(session: Session, lineage: Sequence[TreeNode], cascade: Cascade | None, now: Millis) -> list[str]:
    """Why a session is in its state, the most important sentence first."""
    current = effective_session(session, now)
    if current.status is State.TERMINATED:
        return _explain_end(session, cascade, now)
    expires_at, remaining = iso(session.expires_at), _format_duration(session.expires_at - now)
    lifetime = f"It expires at {expires_at}, in {remaining}."
    if current.status is State.ACTIVE:
        return ["It is active: neither it nor an ancestor has the suspend flag.", lifetime]
    suspending_ids = suspended_by(session, lineage)
    if not suspending_ids:
        return ["It is suspended without a suspend flag, which is an inconsistency. Run `qd check`.", lifetime]
    sentences = [
        "It is suspended by its own flag."
        if suspending_id == session.id
        else f"It is suspended by its ancestor {suspending_id}."
        for suspending_id in suspending_ids
    ]
    hint = "To resume it, resume " + " and ".join(suspending_ids) + "."
    return [*sentences, hint, "It still counts against quotas, and its TTL keeps running.", lifetime]


def _explain_end(session: Session, cascade: Cascade | None, now: Millis) -> list[str]:
    if session.terminated_at is None:
        elapsed = _format_duration(now - session.expires_at)
        return [f"It expired at {iso(session.expires_at)}, {elapsed} ago. The next sweep records the termination."]
    reason = session.termination_reason or "unknown"
    ended_at = iso(session.terminated_at)
    sentences = [
        f"It expired at {ended_at}." if reason == TTL_EXPIRED else f"It was terminated at {ended_at}: {reason}."
    ]
    if session.status is not State.TERMINATED and cascade is not None:
        sentences.append(
            f"Cascade {cascade.id} has terminated {cascade.settled} of {cascade.stamped} sessions; this one follows."
        )
    return sentences


def _format_duration(millis: int) -> str:
    seconds = max(0, millis) // 1000
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
