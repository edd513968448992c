"""Explains why a task is in its state and what would change it, in sentences for people and fields for programs."""

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

NAMES_MAX = 5
"""Maximum number of tasks or capabilities that one sentence lists."""


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
            why=["The task is paused. No agent holds it, and its checkpoint is kept.", *_describe_attempts(facts)],
            next=["A user resumes it.", "An ADMIN or OWNER completes it."],
        )
    return _explain_ended(facts)


# -- waiting tasks -----------------------------------------------------------------------------------------------


def _explain_pending(facts: ExplainInput) -> TaskExplanation:
    task = facts.task
    if task.waits_for == WaitsFor.DEPENDENCIES:
        return _explain_dependencies(facts)
    if task.waits_for == WaitsFor.TIME:
        available_at = iso(task.available_at)
        has_passed = task.available_at <= facts.now
        reason = (
            f"Its start time {available_at} has passed. The coordinator has not processed it yet."
            if has_passed
            else f"Its start time is {available_at}."
        )
        return TaskExplanation(
            task=_task_view(facts),
            code="moment",
            why=[reason, *_describe_attempts(facts)],
            until=available_at,
            next=[f"It can be claimed from {available_at}."],
        )
    if facts.spent_budget is not None:
        return _explain_budget(facts)
    return _explain_agents(facts)


def _explain_dependencies(facts: ExplainInput) -> TaskExplanation:
    unmet = facts.task.unmet_dependencies
    described = [f"{dependency.id!r} ({_describe_state(dependency)})" for dependency in facts.dependencies[:NAMES_MAX]]
    remaining = unmet - len(described)
    names = ", ".join(described) + (f" and {remaining} more" if remaining > 0 else "")
    failed = [dependency.id for dependency in facts.dependencies if dependency.final]
    reasons = [f"It is waiting for {_format_count(unmet, 'task')} to complete: {names}."]
    if failed:
        reasons.append(f"{failed[0]!r} has failed. The coordinator has not updated this task yet.")
    return TaskExplanation(
        task=_task_view(facts),
        code="dependencies",
        why=[*reasons, *_describe_attempts(facts)],
        next=["It can be claimed when all of them are completed.", _describe_failure_policy(facts)],
        unmet=unmet,
        waits_for=[_dependency_view(dependency) for dependency in facts.dependencies],
    )


def _describe_state(dependency: UnmetDependency) -> str:
    if dependency.status in states.HELD and dependency.agent_id is not None:
        return f"{dependency.status} by {dependency.agent_id}"
    if dependency.status is State.PENDING and dependency.waits_for == WaitsFor.DEPENDENCIES:
        return "PENDING, waiting for dependencies"
    if dependency.waits_for == WaitsFor.TIME:
        return f"{dependency.status} until {iso(dependency.available_at)}"
    return f"{dependency.status}, final" if dependency.final else str(dependency.status)


def _describe_failure_policy(facts: ExplainInput) -> str:
    if facts.task.on_dependency_failure == "run":
        return "If one of them fails, this task runs without it (onDependencyFailure is run)."
    return "If one of them fails, this task fails too (onDependencyFailure is fail)."


def _explain_budget(facts: ExplainInput) -> TaskExplanation:
    assert facts.spent_budget is not None
    next_steps = ["A user raises or removes the budget."]
    if facts.spent_budget.period_ends_at is not None:
        next_steps.insert(0, f"The budget resets at {facts.spent_budget.period_ends_at}.")
    return TaskExplanation(
        task=_task_view(facts),
        code=facts.spent_budget.code,
        why=[
            facts.spent_budget.detail,
            "The task cannot be claimed while the budget is spent.",
            *_describe_attempts(facts),
        ],
        next=next_steps,
        until=facts.spent_budget.period_ends_at,
        budget=facts.spent_budget,
    )


def _explain_agents(facts: ExplainInput) -> TaskExplanation:
    agents = _agents_view(facts)
    if agents.missing_capabilities:
        code = "no_agent"
        reason = f"No live agent has the required capabilities {_join_names(agents.missing_capabilities)}."
        next_step = "An agent with all required capabilities claims it."
    elif not agents.suited:
        code = "no_agent"
        with_capabilities = f" with {_join_names(agents.required_capabilities)}" if facts.required_capabilities else ""
        reason = f"No agent{with_capabilities} is live."
        next_step = "A matching agent registers or sends a heartbeat, and claims it."
    elif not agents.free:
        code = "agents_busy"
        reason = f"{_format_count(agents.suited, 'agent')} could take it, but none has a free slot."
        next_step = "One of them finishes another task, or its maxConcurrentTasks is raised."
    else:
        code = "turn"
        reason = f"It is waiting for a claim; {_format_count(agents.free, 'agent')} could take it now."
        next_step = "One of them claims tasks of this type."
    queue_position = (
        f"Ready tasks of the same type and required capabilities that rank before it: {facts.ranked_before}."
        if facts.ranked_before
        else "It ranks first among ready tasks of the same type and required capabilities."
    )
    return TaskExplanation(
        task=_task_view(facts),
        code=code,
        why=[reason, queue_position, *_describe_attempts(facts)],
        next=[next_step],
        before=facts.ranked_before,
        agents=agents,
    )


def _agents_view(facts: ExplainInput) -> AgentsView:
    live = [candidate for candidate in facts.candidates if candidate.accepts_tasks]
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
    available_at = iso(task.available_at)
    verb = "failed" if task.status is State.FAILED else "was aborted"
    reasons = [f"Attempt {task.attempt} {verb}: {task.reason or 'no reason given'}."]
    reasons.append(
        f"It is in backoff until {available_at}, then retry {task.retry_count} of {task.max_retries} follows."
    )
    return TaskExplanation(
        task=_task_view(facts),
        code="backoff",
        why=[*reasons, *_describe_last_error(facts)],
        next=[f"It can be claimed again from {available_at}.", "A user retries it, which skips the backoff."],
        until=available_at,
    )


# -- held tasks --------------------------------------------------------------------------------------------------


def _explain_held(facts: ExplainInput) -> TaskExplanation:
    task, holder = facts.task, facts.holder
    since = task.started_at if task.status is State.RUNNING else task.assigned_at
    is_overdue = task.estimated_completion_at is not None and task.estimated_completion_at < facts.now
    verb = "is running" if task.status is State.RUNNING else "is assigned but has not started"
    reasons = [f"Attempt {task.attempt} {verb}: agent {task.agent_id!r}, since {iso_or_none(since)}."]
    if task.status is State.RUNNING:
        step = f", {task.current_step}" if task.current_step else ""
        reasons.append(f"Progress: {task.progress_percent} %{step}.")
    if is_overdue:
        warned = "" if task.warned_at is None else f"; its agent was warned at {iso(task.warned_at)}"
        reasons.append(
            f"It was estimated to end at {iso_or_none(task.estimated_completion_at)} and is overdue{warned}."
        )
    next_steps = ["Its agent completes, fails or releases it."]
    if holder is None:
        next_steps.append("Its agent no longer exists, so the coordinator aborts the attempt.")
    else:
        next_steps.append(
            f"The attempt is aborted at {iso(holder.lease_expires_at)} unless its agent makes contact before then."
        )
    if task.timeout_at is not None:
        next_steps.append(f"The attempt is aborted at {iso(task.timeout_at)}.")
    if task.overdue_at is not None and task.warned_at is not None:
        next_steps.append(
            f"The attempt is aborted at {iso(task.overdue_at)} unless its agent reports progress by then."
        )
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


# -- ended tasks -------------------------------------------------------------------------------------------------


def _explain_ended(facts: ExplainInput) -> TaskExplanation:
    task = facts.task
    next_steps: list[str] = []
    if task.status is State.COMPLETED:
        reasons = [f"It was completed at {iso_or_none(task.completed_at)}."]
    elif task.status is State.ARCHIVED:
        verb = "was completed" if task.completed_at is not None else "failed or was canceled"
        reasons = [f"It {verb}, and was then archived."]
    else:
        reasons = [_describe_failure(facts)]
        next_steps = ["A user retries it, which resets its retry count."]
    return TaskExplanation(
        task=_task_view(facts),
        code=str(task.status).lower(),
        why=[*reasons, *_describe_last_error(facts), *_describe_attempts(facts)],
        next=next_steps,
    )


def _describe_failure(facts: ExplainInput) -> str:
    task = facts.task
    if task.status is State.ABORTED:
        return f"It was canceled: {task.reason or 'requested'}."
    if task.reason == states.DEPENDENCY_FAILED:
        return "It failed because a task it depends on failed or was canceled."
    if task.reason == states.DEPENDENCY_CYCLE:
        return "It failed because its dependencies form a cycle."
    if task.retry_count >= task.max_retries:
        return f"It failed: its last attempt ended ({task.reason}) and no retries are left."
    return f"It failed: {task.reason}. Its agent reported the failure as not retryable."


# -- shared ------------------------------------------------------------------------------------------------------


def _describe_attempts(facts: ExplainInput) -> list[str]:
    task = facts.task
    if not task.attempt:
        return []
    return [f"{_format_count(task.attempt, 'attempt')} started, {task.retry_count} of {task.max_retries} retries used."]


def _describe_last_error(facts: ExplainInput) -> list[str]:
    return [] if facts.last_error is None else [f"The last error was: {facts.last_error[:500]}"]


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _join_names(names: list[str]) -> str:
    listed = ", ".join(repr(name) for name in names[:NAMES_MAX])
    return listed if len(names) <= NAMES_MAX else f"{listed} and {len(names) - NAMES_MAX} more"


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
