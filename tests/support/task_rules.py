"""Tasks for tests of the rules: commands, rows, and deciders with these rows loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Claim, Complete, Create, Fail, TaskResult
from quarterdeck.domain.tasks.model.rows import ClaimedTasks, Content, CreatedTask, State, Strategy, Task, TaskRef, Verb
from quarterdeck.domain.tasks.rules import ranking, states
from quarterdeck.domain.tasks.rules.batch_input import AgentInfo, BatchInput, DependencyState, TaskClass, Timeouts
from quarterdeck.domain.tasks.rules.decider import BatchDecider
from quarterdeck.domain.tasks.rules.ready_queues import class_id_of
from quarterdeck.domain.tasks.rules.states import Attempt, is_ready
from tests.support.builders import NOW, ZONE, caller
from tests.support.structs import build_struct

CREATOR = caller("creator")
TIMEOUTS = Timeouts(backoff_max_ms=3_600_000, overdue_ms=1_800_000, hung_ms=600_000)
CONTENT = Content("title", None, None, "{}", None, None, "{}", "{}", "[]", "[]")
AGENT_ID = "a"


def create_command(task_id: str = "t", as_caller: Caller = CREATOR, **fields: object) -> Create:
    required = fields.pop("required", ())
    assert isinstance(required, tuple)
    task_type = str(fields.get("task_type", "development"))
    defaults: dict[str, object] = {
        "zone_id": ZONE,
        "caller": as_caller,
        "id": task_id,
        "has_requested_id": True,
        "idempotency_key": None,
        "request_digest": "d",
        "content": msgspec.structs.replace(CONTENT, required_capabilities=msgspec.json.encode(required).decode()),
        "task_type": task_type,
        "priority": 5,
        "depends_on": (),
        "on_dependency_failure": "fail",
        "max_retries": 2,
        "retry_backoff_seconds": 10,
        "estimated_duration_minutes": None,
        "run_at": None,
        "timeout_seconds": None,
        "required_capabilities": required,
        "class_id": class_id_of(task_type, required),
        "tags": (),
    }
    return build_struct(Create, **(defaults | fields))


def claim_command(limit: int = 1, agent: str = AGENT_ID, token: str = "k", **fields: object) -> Claim:
    tokens = tuple(f"{token}{n or ''}" for n in range(limit))
    return build_struct(
        Claim, zone_id=ZONE, caller=CREATOR, agent_id=agent, limit=limit, attempt_tokens=tokens, **fields
    )


def complete_command(task_id: str = "t", token: str | None = "k", as_caller: Caller = CREATOR) -> Complete:
    return Complete(zone_id=ZONE, caller=as_caller, id=task_id, attempt_token=token, output='"done"', summary=None)


def fail_command(task_id: str = "t", token: str | None = "k", *, retryable: bool = True) -> Fail:
    return Fail(
        zone_id=ZONE,
        caller=CREATOR,
        id=task_id,
        attempt_token=token,
        error="broken",
        stack_trace=None,
        retryable=retryable,
        jitter=0.0,
    )


def task_row(status: State = State.PENDING, task_id: str = "t", **changes: object) -> Task:
    """A stored task in this state. If it has or had an attempt, the agent is `a` and the token `k`."""
    task = states.create(create_command(task_id), ranking.by_priority(5, NOW - 10), Strategy.PRIORITY, 0, NOW - 10)
    if status in (State.ASSIGNED, State.RUNNING, State.COMPLETED, State.ARCHIVED, State.FAILED):
        task = states.assign(task, Attempt(AGENT_ID, "k"), NOW + 60_000, NOW - 5)
    if status in (State.RUNNING, State.COMPLETED, State.ARCHIVED, State.FAILED):
        task = states.start(task, TIMEOUTS.overdue_ms, NOW - 5)
    if status in (State.COMPLETED, State.ARCHIVED):
        task = states.complete(task, NOW - 1)
    if status is State.ARCHIVED:
        task = states.archive(task, NOW - 1)
    if status is State.FAILED:
        task = states.fail(task, Verb.FAIL, states.Failure("failed", 0.0), TIMEOUTS.backoff_max_ms, NOW - 1)
    if status is State.PAUSED:
        task = states.pause(task, NOW - 1)
    if status is State.ABORTED:
        task = states.cancel(task, "not needed", NOW - 1)
    return msgspec.structs.replace(task, **changes)


def agent_info(*capabilities: str, free_slots: int = 100, problem: Problem | None = None) -> AgentInfo:
    return AgentInfo(frozenset(capabilities), free_slots, NOW + 180_000, problem)


def new_decider(*rows: Task, now: int = NOW, **fields: object) -> BatchDecider:
    """A decider with these rows loaded, and an agent `a` without capabilities."""
    classes = {(r.zone_id, r.class_id): TaskClass(r.task_type, frozenset()) for r in rows}
    defaults: dict[str, object] = {
        "now": now,
        "timeouts": TIMEOUTS,
        "permission_problem": lambda command, permission: None,
        "zone_problems": {ZONE: None},
        "tasks": rows,
        "agents": {(ZONE, AGENT_ID): agent_info()},
        "classes": classes,
        "ready_tasks": sorted((r for r in rows if is_ready(r)), key=lambda r: (r.rank, r.id)),
    }
    return BatchDecider(build_struct(BatchInput, **(defaults | fields)))


def create_all(decider: BatchDecider, *commands: Create) -> list[Task]:
    results = [decider.decide(command) for command in commands]
    assert all(isinstance(result, CreatedTask) for result in results), results
    return [result.task for result in results if isinstance(result, CreatedTask)]


def claim_ids(decider: BatchDecider, command: Claim) -> list[str]:
    claimed = decider.decide(command)
    assert isinstance(claimed, ClaimedTasks), claimed
    return [item.task.id for item in claimed.items]


def require_task(result: TaskResult | Problem) -> Task:
    assert isinstance(result, Task), result
    return result


def require_code(result: TaskResult | Problem) -> str:
    assert isinstance(result, Problem), result
    return result.code


def decided_events(decider: BatchDecider) -> list[tuple[str, str]]:
    return [(event.type, event.row.id) for event in decider.batch.tasks.events]


def dependency_states(rows: Iterable[Task]) -> list[DependencyState]:
    return [DependencyState(r.zone_id, r.id, r.status, r.final, r.completed_at) for r in rows]


def dependents(names: Mapping[str, Iterable[str]]) -> dict[TaskRef, list[TaskRef]]:
    return {(ZONE, name): [(ZONE, dependent) for dependent in blocking] for name, blocking in names.items()}
