"""Tasks as tests of the pure rules write them: commands, rows, and boards that know them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Claim, Complete, Create, Fail, Outcome
from quarterdeck.domain.tasks.model.rows import Content, Created, Leases, Ref, State, Strategy, Task
from quarterdeck.domain.tasks.rules import ranking, states
from quarterdeck.domain.tasks.rules.batch_input import Kind, Known, Standing, Windows, Worker
from quarterdeck.domain.tasks.rules.decider import Board
from quarterdeck.domain.tasks.rules.ready_queues import class_of, is_ready
from quarterdeck.domain.tasks.rules.states import Holding, Rank
from tests.support.asking import NOW, ZONE, caller
from tests.support.making import struct_of

CREATOR = caller("creator")
WINDOWS = Windows(backoff_cap_ms=3_600_000, overdue_ms=1_800_000, hung_ms=600_000)
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
        "names_itself": True,
        "key": None,
        "digest": "d",
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
        "class_id": class_of(task_type, required),
        "tags": (),
    }
    return struct_of(Create, **(plain | asked))


def claim(most: int = 1, agent: str = AGENT, token: str = "k", **asked: object) -> Claim:
    tokens = tuple(f"{token}{n or ''}" for n in range(most))
    return struct_of(Claim, zone_id=ZONE, caller=CREATOR, agent_id=agent, max=most, tokens=tokens, **asked)


def complete(task_id: str = "t", token: str | None = "k", by: Caller = CREATOR) -> Complete:
    return Complete(zone_id=ZONE, caller=by, id=task_id, token=token, output='"done"', summary=None)


def fail(task_id: str = "t", token: str | None = "k", *, retryable: bool = True) -> Fail:
    return Fail(
        zone_id=ZONE,
        caller=CREATOR,
        id=task_id,
        token=token,
        error="broken",
        stack_trace=None,
        retryable=retryable,
        chance=0.0,
    )


def row(status: State = State.PENDING, task_id: str = "t", **changed: object) -> Task:
    """A task as it is stored in a state, given to the agent `a` with the token `k` where somebody has or had it."""
    made = states.created(create(task_id), Rank(Strategy.PRIORITY, ranking.by_priority(5, NOW - 10)), 0, NOW - 10)
    if status in (State.ASSIGNED, State.RUNNING, State.COMPLETED, State.ARCHIVED, State.FAILED):
        made = states.assigned(made, Holding(AGENT, "k"), NOW - 5)
    if status in (State.RUNNING, State.COMPLETED, State.ARCHIVED, State.FAILED):
        made = states.started(made, WINDOWS.overdue_ms, NOW - 5)
    if status in (State.COMPLETED, State.ARCHIVED):
        made = states.completed(made, NOW - 1)
    if status is State.ARCHIVED:
        made = states.archived(made, NOW - 1)
    if status is State.FAILED:
        made = states.set_back(made, State.FAILED, states.Setback("failed", 0.0), WINDOWS.backoff_cap_ms, NOW - 1)
    if status is State.PAUSED:
        made = states.paused(made, NOW - 1)
    if status is State.ABORTED:
        made = states.canceled(made, "no more", NOW - 1)
    return msgspec.structs.replace(made, **changed)


def worker(*capabilities: str, free: int = 100, problem: Problem | None = None) -> Worker:
    return Worker(frozenset(capabilities), free, NOW + 180_000, problem)


def board(*rows: Task, now: int = NOW, **known: object) -> Board:
    """A board that knows these rows, and an agent `a` without capabilities."""
    kinds = {(r.zone_id, r.class_id): Kind(r.task_type, frozenset()) for r in rows}
    plain: dict[str, object] = {
        "now": now,
        "windows": WINDOWS,
        "problem_of": lambda ask, power: None,
        "zones": {ZONE: None},
        "rows": rows,
        "workers": {(ZONE, AGENT): worker()},
        "kinds": kinds,
        "ready": sorted((r for r in rows if is_ready(r)), key=lambda r: (r.turn, r.id)),
    }
    return Board(struct_of(Known, **(plain | known)))


def made(board: Board, *asks: Create) -> list[Task]:
    outcomes = [board.decide(ask) for ask in asks]
    assert all(isinstance(each, Created) for each in outcomes), outcomes
    return [each.task for each in outcomes if isinstance(each, Created)]


def given(board: Board, ask: Claim) -> list[str]:
    leases = board.decide(ask)
    assert isinstance(leases, Leases), leases
    return [each.task.id for each in leases.items]


def task(outcome: Outcome | Problem) -> Task:
    assert isinstance(outcome, Task), outcome
    return outcome


def code(outcome: Outcome | Problem) -> str:
    assert isinstance(outcome, Problem), outcome
    return outcome.code


def told(board: Board) -> list[tuple[str, str]]:
    return [(each.type, each.row.id) for each in board.told]


def standings(rows: Iterable[Task]) -> list[Standing]:
    return [Standing(r.zone_id, r.id, r.status, r.final, r.completed_at) for r in rows]


def blocked(by: Mapping[str, Iterable[str]]) -> dict[Ref, list[Ref]]:
    return {(ZONE, name): [(ZONE, each) for each in of] for name, of in by.items()}
