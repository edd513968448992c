"""Why a task is as it is, and what would move it: in sentences for people, and in fields for programs."""

from __future__ import annotations

from quarterdeck.core.clock import iso, iso_or_none
from quarterdeck.domain.tasks.model.explain_types import (
    AgentsView,
    DependencyView,
    ExplainedTask,
    ExplainInput,
    HolderView,
    TaskExplanation,
    UnmetDependency,
)
from quarterdeck.domain.tasks.model.rows import State, WaitsFor
from quarterdeck.domain.tasks.rules import states

NAMED_MAX = 5
"""How many tasks or capabilities a sentence names."""


def explain(facts: ExplainInput) -> TaskExplanation:
    task = facts.task
    if task.status in states.HELD:
        return _explain_held(facts)
    if task.status is State.PENDING:
        return _explain_pending(facts)
    if task.status in (State.FAILED, State.ABORTED) and not task.final:
        return _explain_backoff(facts)
    if task.status is State.PAUSED:
        return TaskExplanation(
            task=_task_view(facts),
            code="paused",
            why=["It is paused: nobody holds it, and what its agent had saved is kept.", *_describe_attempts(facts)],
            next=["Resuming it.", "An ADMIN or OWNER may complete it by hand."],
        )
    return _explain_ended(facts)


# -- it waits ----------------------------------------------------------------------------------------------------


def _explain_pending(facts: ExplainInput) -> TaskExplanation:
    task = facts.task
    if task.waits_for == WaitsFor.DEPENDENCIES:
        return _explain_dependencies(facts)
    if task.waits_for == WaitsFor.TIME:
        at = iso(task.available_at)
        is_late = task.available_at <= facts.now
        reason = f"It was to begin at {at}, which the coordinator has yet to notice." if is_late else (
            f"It is not to begin before {at}."
        )  # fmt: skip
        return TaskExplanation(
            task=_task_view(facts), code="moment", why=[reason, *_describe_attempts(facts)], until=at, next=[f"It may begin from {at} on."]
        )  # fmt: skip
    if facts.spent_budget is not None:
        return _explain_budget(facts)
    return _explain_agents(facts)


def _explain_dependencies(facts: ExplainInput) -> TaskExplanation:
    unmet = facts.task.unmet_dependencies
    described = [f"{dependency.id!r} ({_describe_state(dependency)})" for dependency in facts.dependencies[:NAMED_MAX]]
    remaining = unmet - len(described)
    names = ", ".join(described) + (f" and {remaining} more" if remaining > 0 else "")
    failed = [dependency.id for dependency in facts.dependencies if dependency.final]
    reasons = [f"It waits for {_count(unmet, 'task')} to be completed: {names}."]
    if failed:
        reasons.append(f"{failed[0]!r} has failed for good; the coordinator has yet to tell this one.")
    return TaskExplanation(
        task=_task_view(facts),
        code="dependencies",
        why=[*reasons, *_describe_attempts(facts)],
        next=["It may begin when the last of them is completed.", _describe_failure_policy(facts)],
        unmet=unmet,
        waits_for=[_dependency_view(dependency) for dependency in facts.dependencies],
    )


def _describe_state(dependency: UnmetDependency) -> str:
    if dependency.status in states.HELD and dependency.agent_id is not None:
        return f"{dependency.status} by {dependency.agent_id}"
    if dependency.status is State.PENDING and dependency.waits_for == WaitsFor.DEPENDENCIES:
        return "PENDING, waiting for others itself"
    if dependency.waits_for == WaitsFor.TIME:
        return f"{dependency.status} until {iso(dependency.available_at)}"
    return f"{dependency.status} for good" if dependency.final else str(dependency.status)


def _describe_failure_policy(facts: ExplainInput) -> str:
    if facts.task.on_dependency_failure == "run":
        return "Should one of them fail for good, it goes on without it."
    return "Should one of them fail for good, it fails with it."


def _explain_budget(facts: ExplainInput) -> TaskExplanation:
    assert facts.spent_budget is not None
    next_steps = ["Raising or removing the budget."]
    if facts.spent_budget.period_ends_at is not None:
        next_steps.insert(0, f"The budget begins anew at {facts.spent_budget.period_ends_at}.")
    return TaskExplanation(
        task=_task_view(facts),
        code=facts.spent_budget.code,
        why=[facts.spent_budget.detail, "It is not handed out until then.", *_describe_attempts(facts)],
        next=next_steps,
        until=facts.spent_budget.period_ends_at,
        budget=facts.spent_budget,
    )


def _explain_agents(facts: ExplainInput) -> TaskExplanation:
    agents = _agents_view(facts)
    if agents.missing_capabilities:
        code = "no_agent"
        reason = f"No live agent can do {_join_names(agents.missing_capabilities)}, which it requires."
        next_step = "An agent that has all of its capabilities claims it."
    elif not agents.suited:
        code = "no_agent"
        with_capabilities = f" with {_join_names(agents.required_capabilities)}" if facts.required_capabilities else ""
        reason = f"There is no live agent{with_capabilities}."
        next_step = "Such an agent registers, or is heard of again, and claims it."
    elif not agents.free:
        code = "agents_busy"
        reason = f"{_count(agents.suited, 'agent')} could take it, and none is free."
        next_step = "One of them ends another task, or may take more at once."
    else:
        code = "turn"
        reason = f"It waits for a claim; {_count(agents.free, 'agent')} could take it now."
        next_step = "One of them claims, and asks for tasks of this type."
    queue_position = (
        f"{_count(facts.ranked_before, 'task')} of its kind come first."
        if facts.ranked_before
        else "It is the first of its kind."
    )
    return TaskExplanation(
        task=_task_view(facts),
        code=code,
        why=[reason, queue_position, *_describe_attempts(facts)],
        next=[next_step],
        before=facts.ranked_before,
        agents=agents,
    )  # fmt: skip


def _agents_view(facts: ExplainInput) -> AgentsView:
    live = [candidate for candidate in facts.candidates if candidate.is_live]
    available: frozenset[str] = frozenset().union(*(candidate.capabilities for candidate in live))
    matching = [candidate for candidate in live if facts.required_capabilities <= candidate.capabilities]
    return AgentsView(
        required_capabilities=sorted(facts.required_capabilities),
        missing_capabilities=sorted(facts.required_capabilities - available),
        suited=len(matching),
        free=sum(1 for candidate in matching if candidate.free_slots > 0),
    )


def _explain_backoff(facts: ExplainInput) -> TaskExplanation:
    task = facts.task
    at = iso(task.available_at)
    verb = "failed" if task.status is State.FAILED else "was aborted"
    reasons = [f"Attempt {task.attempt} {verb}: {task.reason or 'no reason was given'}."]
    reasons.append(f"Its backoff lasts until {at}: retry {task.retry_count} of {task.max_retries} follows.")
    return TaskExplanation(
        task=_task_view(facts),
        code="backoff",
        why=[*reasons, *_describe_last_error(facts)],
        next=[f"It may begin again from {at} on.", "Retrying it by hand begins it at once."],
        until=at,
    )


# -- somebody has it ---------------------------------------------------------------------------------------------


def _explain_held(facts: ExplainInput) -> TaskExplanation:
    task, holder = facts.task, facts.holder
    since = task.started_at if task.status is State.RUNNING else task.assigned_at
    is_overdue = task.estimated_completion_at is not None and task.estimated_completion_at < facts.now
    verb = "works on it" if task.status is State.RUNNING else "was assigned to it, and has not begun"
    reasons = [f"{task.agent_id!r} {verb} since {iso_or_none(since)}, as attempt {task.attempt}."]
    if task.status is State.RUNNING:
        step = f", {task.current_step}" if task.current_step else ""
        reasons.append(f"It is at {task.progress_percent} %{step}.")
    if is_overdue:
        warned = "" if task.warned_at is None else f"; its agent was warned at {iso(task.warned_at)}"
        reasons.append(f"It was expected at {iso_or_none(task.estimated_completion_at)} and is overdue{warned}.")
    next_steps = ["Its agent completes it, fails it or gives it back."]
    if holder is None:
        next_steps.append("Its agent is not known any more: the coordinator takes it back.")
    else:
        next_steps.append(
            f"Its lease ends at {iso(holder.lease_expires_at)} unless its agent is heard of; then it is requeued."
        )
    if task.timeout_at is not None:
        next_steps.append(f"The attempt is aborted at {iso(task.timeout_at)}.")
    if task.overdue_at is not None and task.warned_at is not None:
        next_steps.append(f"Without progress it is aborted at {iso(task.overdue_at)}.")
    return TaskExplanation(
        task=_task_view(facts),
        code="running" if task.status is State.RUNNING else "assigned",
        why=[*reasons, *_describe_attempts(facts)],
        next=next_steps,
        holder=HolderView(
            agent_id=task.agent_id or "",
            since=iso_or_none(since),
            last_seen_at=None if holder is None else iso(holder.last_seen_at),
            lease_expires_at=None if holder is None else iso(holder.lease_expires_at),
            timeout_at=iso_or_none(task.timeout_at),
            estimated_completion_at=iso_or_none(task.estimated_completion_at),
            is_overdue=is_overdue,
        ),
    )


# -- it is over --------------------------------------------------------------------------------------------------


def _explain_ended(facts: ExplainInput) -> TaskExplanation:
    task = facts.task
    next_steps: list[str] = []
    if task.status is State.COMPLETED:
        reasons = [f"It was completed at {iso_or_none(task.completed_at)}."]
    elif task.status is State.ARCHIVED:
        verb = "was completed" if task.completed_at is not None else "has failed for good"
        reasons = [f"It {verb}, and was put away."]
    else:
        reasons = [_describe_failure(facts)]
        next_steps = ["Retrying it by hand begins it anew, with all its retries."]
    return TaskExplanation(
        task=_task_view(facts),
        code=str(task.status).lower(),
        why=[*reasons, *_describe_last_error(facts), *_describe_attempts(facts)],
        next=next_steps,
    )


def _describe_failure(facts: ExplainInput) -> str:
    task = facts.task
    if task.status is State.ABORTED:
        return f"It was canceled for good: {task.reason or 'requested'}."
    if task.reason == states.DEPENDENCY_FAILED:
        return "It has failed for good because a task it depends on has."
    if task.reason == states.DEPENDENCY_CYCLE:
        return "It has failed for good because it waited for itself."
    if task.retry_count >= task.max_retries:
        return f"It has failed for good: its last attempt ended ({task.reason}), and no retries are left."
    return f"It has failed for good: {task.reason}, which its agent said must not be tried again."


# -- shared ------------------------------------------------------------------------------------------------------


def _describe_attempts(facts: ExplainInput) -> list[str]:
    task = facts.task
    if not task.attempt:
        return []
    return [f"{_count(task.attempt, 'attempt')} begun, {task.retry_count} of {task.max_retries} retries used."]


def _describe_last_error(facts: ExplainInput) -> list[str]:
    return [] if facts.last_error is None else [f"The last error was: {facts.last_error[:500]}"]


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _join_names(names: list[str]) -> str:
    listed = ", ".join(repr(name) for name in names[:NAMED_MAX])
    return listed if len(names) <= NAMED_MAX else f"{listed} and {len(names) - NAMED_MAX} more"


def _dependency_view(dependency: UnmetDependency) -> DependencyView:
    return DependencyView(dependency.id, dependency.title, dependency.status, bool(dependency.final))


def _task_view(facts: ExplainInput) -> ExplainedTask:
    task = facts.task
    return ExplainedTask(
        id=task.id,
        title=facts.title,
        task_type=task.task_type,
        status=task.status,
        priority=task.priority,
        attempt=task.attempt,
        retry_count=task.retry_count,
        max_retries=task.max_retries,
        reason=task.reason,
        last_error=facts.last_error,
    )
