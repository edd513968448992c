"""Why a task is as it is, and what would move it: in sentences for people, and in fields for programs."""

from __future__ import annotations

from quarterdeck.core.clock import iso, iso_or_none
from quarterdeck.domain.tasks.model.explain_types import (
    AgentsView,
    Ahead,
    AheadView,
    ExplainedTask,
    Facts,
    HolderView,
    TaskExplanation,
)
from quarterdeck.domain.tasks.model.rows import State, Waits
from quarterdeck.domain.tasks.rules import states

NAMED_MAX = 5
"""How many tasks or capabilities a sentence names."""


def explain(facts: Facts) -> TaskExplanation:
    row = facts.row
    if row.status in states.HELD:
        return _held(facts)
    if row.status is State.PENDING:
        return _pending(facts)
    if row.status in (State.FAILED, State.ABORTED) and not row.final:
        return _backing_off(facts)
    if row.status is State.PAUSED:
        return TaskExplanation(
            task=_task(facts),
            code="paused",
            why=["It is paused: nobody holds it, and what its agent had saved is kept.", *_tried(facts)],
            next=["Resuming it.", "An ADMIN or OWNER may complete it by hand."],
        )
    return _over(facts)


# -- it waits ----------------------------------------------------------------------------------------------------


def _pending(facts: Facts) -> TaskExplanation:
    row = facts.row
    if row.waits == Waits.OTHERS:
        return _waits_for_others(facts)
    if row.waits == Waits.A_MOMENT:
        at = iso(row.available_at)
        late = row.available_at <= facts.now
        why = f"It was to begin at {at}, which the coordinator has yet to notice." if late else (
            f"It is not to begin before {at}."
        )  # fmt: skip
        return TaskExplanation(
            task=_task(facts), code="moment", why=[why, *_tried(facts)], until=at, next=[f"It may begin from {at} on."]
        )  # fmt: skip
    if facts.spent is not None:
        return _waits_for_money(facts)
    return _waits_for_an_agent(facts)


def _waits_for_others(facts: Facts) -> TaskExplanation:
    unmet = facts.row.unmet
    told = [f"{each.id!r} ({_standing(each)})" for each in facts.ahead[:NAMED_MAX]]
    rest = unmet - len(told)
    named = ", ".join(told) + (f" and {rest} more" if rest > 0 else "")
    failed = [each.id for each in facts.ahead if each.final]
    why = [f"It waits for {_number(unmet, 'task')} to be completed: {named}."]
    if failed:
        why.append(f"{failed[0]!r} has failed for good; the coordinator has yet to tell this one.")
    return TaskExplanation(
        task=_task(facts),
        code="dependencies",
        why=[*why, *_tried(facts)],
        next=["It may begin when the last of them is completed.", _when_one_fails(facts)],
        unmet=unmet,
        waits_for=[_ahead(each) for each in facts.ahead],
    )


def _standing(each: Ahead) -> str:
    if each.status in states.HELD and each.agent_id is not None:
        return f"{each.status} by {each.agent_id}"
    if each.status is State.PENDING and each.waits == Waits.OTHERS:
        return "PENDING, waiting for others itself"
    if each.waits == Waits.A_MOMENT:
        return f"{each.status} until {iso(each.available_at)}"
    return f"{each.status} for good" if each.final else str(each.status)


def _when_one_fails(facts: Facts) -> str:
    if facts.row.on_dependency_failure == "run":
        return "Should one of them fail for good, it goes on without it."
    return "Should one of them fail for good, it fails with it."


def _waits_for_money(facts: Facts) -> TaskExplanation:
    assert facts.spent is not None
    following = ["Raising or removing the budget."]
    if facts.spent.period_ends_at is not None:
        following.insert(0, f"The budget begins anew at {facts.spent.period_ends_at}.")
    return TaskExplanation(
        task=_task(facts),
        code=facts.spent.code,
        why=[facts.spent.detail, "It is not handed out until then.", *_tried(facts)],
        next=following,
        until=facts.spent.period_ends_at,
        budget=facts.spent,
    )


def _waits_for_an_agent(facts: Facts) -> TaskExplanation:
    agents = _agents(facts)
    if agents.missing_capabilities:
        code = "no_agent"
        why = f"No live agent can do {_listed(agents.missing_capabilities)}, which it requires."
        following = "An agent that has all of its capabilities claims it."
    elif not agents.suited:
        code = "no_agent"
        wanted = f" with {_listed(agents.required_capabilities)}" if facts.required else ""
        why = f"There is no live agent{wanted}."
        following = "Such an agent registers, or is heard of again, and claims it."
    elif not agents.free:
        code = "agents_busy"
        why = f"{_number(agents.suited, 'agent')} could take it, and none is free."
        following = "One of them ends another task, or may take more at once."
    else:
        code = "turn"
        why = f"It waits for a claim; {_number(agents.free, 'agent')} could take it now."
        following = "One of them claims, and asks for tasks of this type."
    before = (
        f"{_number(facts.before, 'task')} of its kind come first." if facts.before else "It is the first of its kind."
    )
    return TaskExplanation(
        task=_task(facts),
        code=code,
        why=[why, before, *_tried(facts)],
        next=[following],
        before=facts.before,
        agents=agents,
    )  # fmt: skip


def _agents(facts: Facts) -> AgentsView:
    live = [each for each in facts.candidates if each.lives]
    can: frozenset[str] = frozenset().union(*(each.capabilities for each in live))
    suited = [each for each in live if facts.required <= each.capabilities]
    return AgentsView(
        required_capabilities=sorted(facts.required),
        missing_capabilities=sorted(facts.required - can),
        suited=len(suited),
        free=sum(1 for each in suited if each.free > 0),
    )


def _backing_off(facts: Facts) -> TaskExplanation:
    row = facts.row
    at = iso(row.available_at)
    how = "failed" if row.status is State.FAILED else "was aborted"
    why = [f"Attempt {row.attempt} {how}: {row.reason or 'no reason was given'}."]
    why.append(f"Its backoff lasts until {at}: retry {row.retry_count} of {row.max_retries} follows.")
    return TaskExplanation(
        task=_task(facts),
        code="backoff",
        why=[*why, *_last_error(facts)],
        next=[f"It may begin again from {at} on.", "Retrying it by hand begins it at once."],
        until=at,
    )


# -- somebody has it ---------------------------------------------------------------------------------------------


def _held(facts: Facts) -> TaskExplanation:
    row, holder = facts.row, facts.holder
    since = row.started_at if row.status is State.RUNNING else row.assigned_at
    overdue = row.estimated_completion_at is not None and row.estimated_completion_at < facts.now
    verb = "works on it" if row.status is State.RUNNING else "was assigned to it, and has not begun"
    why = [f"{row.agent_id!r} {verb} since {iso_or_none(since)}, as attempt {row.attempt}."]
    if row.status is State.RUNNING:
        step = f", {row.current_step}" if row.current_step else ""
        why.append(f"It is at {row.progress_percent} %{step}.")
    if overdue:
        warned = "" if row.warned_at is None else f"; its agent was warned at {iso(row.warned_at)}"
        why.append(f"It was expected at {iso_or_none(row.estimated_completion_at)} and is overdue{warned}.")
    following = ["Its agent completes it, fails it or gives it back."]
    if holder is None:
        following.append("Its agent is not known any more: the coordinator takes it back.")
    else:
        following.append(
            f"Its lease ends at {iso(holder.lease_expires_at)} unless its agent is heard of; then it is requeued."
        )
    if row.timeout_at is not None:
        following.append(f"The attempt is aborted at {iso(row.timeout_at)}.")
    if row.overdue_at is not None and row.warned_at is not None:
        following.append(f"Without progress it is aborted at {iso(row.overdue_at)}.")
    return TaskExplanation(
        task=_task(facts),
        code="running" if row.status is State.RUNNING else "assigned",
        why=[*why, *_tried(facts)],
        next=following,
        holder=HolderView(
            agent_id=row.agent_id or "",
            since=iso_or_none(since),
            last_seen_at=None if holder is None else iso(holder.last_seen_at),
            lease_expires_at=None if holder is None else iso(holder.lease_expires_at),
            timeout_at=iso_or_none(row.timeout_at),
            estimated_completion_at=iso_or_none(row.estimated_completion_at),
            is_overdue=overdue,
        ),
    )


# -- it is over --------------------------------------------------------------------------------------------------


def _over(facts: Facts) -> TaskExplanation:
    row = facts.row
    following: list[str] = []
    if row.status is State.COMPLETED:
        why = [f"It was completed at {iso_or_none(row.completed_at)}."]
    elif row.status is State.ARCHIVED:
        how = "was completed" if row.completed_at is not None else "has failed for good"
        why = [f"It {how}, and was put away."]
    else:
        why = [_failed(facts)]
        following = ["Retrying it by hand begins it anew, with all its retries."]
    return TaskExplanation(
        task=_task(facts), code=str(row.status).lower(), why=[*why, *_last_error(facts), *_tried(facts)], next=following
    )


def _failed(facts: Facts) -> str:
    row = facts.row
    if row.status is State.ABORTED:
        return f"It was canceled for good: {row.reason or 'requested'}."
    if row.reason == states.DEPENDENCY_FAILED:
        return "It has failed for good because a task it depends on has."
    if row.reason == states.DEPENDENCY_CYCLE:
        return "It has failed for good because it waited for itself."
    if row.retry_count >= row.max_retries:
        return f"It has failed for good: its last attempt ended ({row.reason}), and no retries are left."
    return f"It has failed for good: {row.reason}, which its agent said must not be tried again."


# -- shared ------------------------------------------------------------------------------------------------------


def _tried(facts: Facts) -> list[str]:
    row = facts.row
    if not row.attempt:
        return []
    return [f"{_number(row.attempt, 'attempt')} begun, {row.retry_count} of {row.max_retries} retries used."]


def _last_error(facts: Facts) -> list[str]:
    return [] if facts.last_error is None else [f"The last error was: {facts.last_error[:500]}"]


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _listed(names: list[str]) -> str:
    told = ", ".join(repr(name) for name in names[:NAMED_MAX])
    return told if len(names) <= NAMED_MAX else f"{told} and {len(names) - NAMED_MAX} more"


def _ahead(each: Ahead) -> AheadView:
    return AheadView(each.id, each.title, each.status, bool(each.final))


def _task(facts: Facts) -> ExplainedTask:
    row = facts.row
    return ExplainedTask(
        id=row.id,
        title=facts.title,
        task_type=row.task_type,
        status=row.status,
        priority=row.priority,
        attempt=row.attempt,
        retry_count=row.retry_count,
        max_retries=row.max_retries,
        reason=row.reason,
        last_error=facts.last_error,
    )
