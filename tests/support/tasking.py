"""Tasks as tests of the pure rules write them: commands, rows, and boards that know them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Claim, Complete, Create, Fail, TaskResult
from quarterdeck.domain.tasks.model.rows import ClaimedTasks, Content, CreatedTask, State, Strategy, Task, TaskRef
from quarterdeck.domain.tasks.rules import ranking, states
from quarterdeck.domain.tasks.rules.batch_input import AgentInfo, BatchInput, DependencyState, TaskClass, Timeouts
from quarterdeck.domain.tasks.rules.decider import BatchDecider
from quarterdeck.domain.tasks.rules.ready_queues import class_id_of, is_ready
from quarterdeck.domain.tasks.rules.states import Attempt, TaskRank
from tests.support.asking import NOW, ZONE, caller
from tests.support.making import struct_of

CREATOR = caller("creator")
WINDOWS = Timeouts(backoff_max_ms=3_600_000, overdue_ms=1_800_000, hung_ms=600_000)
CONTENT = Content("title", None, None, "{}", None, None, "{}", "{}", "[]", "[]")
AGENT = "a"


def create(task_id: str = "t", by: Caller = CREATOR, **asked: object) -> Create:
    required = asked.pop("required", ())
    assert isinstance(required, tuple)
    task_type = str(asked.get("task_type", "development"))
    plain: dict[str, object] = {
        "zone_id": ZONE,
        "caller": by,
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
    return struct_of(Create, **(plain | asked))


def claim(most: int = 1, agent: str = AGENT, token: str = "k", **asked: object) -> Claim:
    tokens = tuple(f"{token}{n or ''}" for n in range(most))
    return struct_of(Claim, zone_id=ZONE, caller=CREATOR, agent_id=agent, limit=most, attempt_tokens=tokens, **asked)


def complete(task_id: str = "t", token: str | None = "k", by: Caller = CREATOR) -> Complete:
    return Complete(zone_id=ZONE, caller=by, id=task_id, attempt_token=token, output='"done"', summary=None)


def fail(task_id: str = "t", token: str | None = "k", *, retryable: bool = True) -> Fail:
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


def row(status: State = State.PENDING, task_id: str = "t", **changed: object) -> Task:
    """A task as it is stored in a state, given to the agent `a` with the token `k` where somebody has or had it."""
    made = states.create(create(task_id), TaskRank(Strategy.PRIORITY, ranking.by_priority(5, NOW - 10)), 0, NOW - 10)
    if status in (State.ASSIGNED, State.RUNNING, State.COMPLETED, State.ARCHIVED, State.FAILED):
        made = states.assign(made, Attempt(AGENT, "k"), NOW - 5)
    if status in (State.RUNNING, State.COMPLETED, State.ARCHIVED, State.FAILED):
        made = states.start(made, WINDOWS.overdue_ms, NOW - 5)
    if status in (State.COMPLETED, State.ARCHIVED):
        made = states.complete(made, NOW - 1)
    if status is State.ARCHIVED:
        made = states.archive(made, NOW - 1)
    if status is State.FAILED:
        made = states.fail(made, State.FAILED, states.Failure("failed", 0.0), WINDOWS.backoff_max_ms, NOW - 1)
    if status is State.PAUSED:
        made = states.pause(made, NOW - 1)
    if status is State.ABORTED:
        made = states.cancel(made, "no more", NOW - 1)
    return msgspec.structs.replace(made, **changed)


def worker(*capabilities: str, free: int = 100, problem: Problem | None = None) -> AgentInfo:
    return AgentInfo(frozenset(capabilities), free, NOW + 180_000, problem)


def board(*rows: Task, now: int = NOW, **known: object) -> BatchDecider:
    """A board that knows these rows, and an agent `a` without capabilities."""
    kinds = {(r.zone_id, r.class_id): TaskClass(r.task_type, frozenset()) for r in rows}
    plain: dict[str, object] = {
        "now": now,
        "timeouts": WINDOWS,
        "permission_problem": lambda ask, power: None,
        "zone_problems": {ZONE: None},
        "tasks": rows,
        "agents": {(ZONE, AGENT): worker()},
        "classes": kinds,
        "ready": sorted((r for r in rows if is_ready(r)), key=lambda r: (r.rank, r.id)),
    }
    return BatchDecider(struct_of(BatchInput, **(plain | known)))


def made(board: BatchDecider, *asks: Create) -> list[Task]:
    outcomes = [board.decide(ask) for ask in asks]
    assert all(isinstance(each, CreatedTask) for each in outcomes), outcomes
    return [each.task for each in outcomes if isinstance(each, CreatedTask)]


def given(board: BatchDecider, ask: Claim) -> list[str]:
    leases = board.decide(ask)
    assert isinstance(leases, ClaimedTasks), leases
    return [each.task.id for each in leases.items]


def task(outcome: TaskResult | Problem) -> Task:
    assert isinstance(outcome, Task), outcome
    return outcome


def code(outcome: TaskResult | Problem) -> str:
    assert isinstance(outcome, Problem), outcome
    return outcome.code


def told(board: BatchDecider) -> list[tuple[str, str]]:
    return [(each.type, each.task.id) for each in board.events]


def standings(rows: Iterable[Task]) -> list[DependencyState]:
    return [DependencyState(r.zone_id, r.id, r.status, r.final, r.completed_at) for r in rows]


def blocked(by: Mapping[str, Iterable[str]]) -> dict[TaskRef, list[TaskRef]]:
    return {(ZONE, name): [(ZONE, each) for each in of] for name, of in by.items()}
