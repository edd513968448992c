"""A small valid history of tasks, written by hand: the event log, the rows and the agents' recorded calls of a run with
stale agents and failed attempts, but without violations. Tests then plant one violation."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import DependencyRow, RecordedCall, TaskLease, TaskRow
from tests.support.history_builder import ZONE, ZONE_LIMITS, HistoryBuilder

FAR_FUTURE = 2**60


class TaskHistoryBuilder(HistoryBuilder):
    """`HistoryBuilder` for tasks. The client of an agent has the agent's name."""

    # -- agents

    def add_agent(self, name: str) -> None:
        self.add_event("agent.registered", name, None, "IDLE")

    def lose_agent(self, name: str, *task_ids: str) -> None:
        """The agent becomes stale, and the attempts that it holds are aborted."""
        self.add_event("agent.stale", name, "IDLE", "ERROR", reason="stale")
        for task_id in task_ids:
            self.change_state(task_id, "aborted", "ABORTED", reason="agent_stale", final=False)

    def revive_agent(self, name: str) -> None:
        self.add_event("agent.revived", name, "ERROR", "IDLE")

    # -- tasks

    def create_task(
        self, task_id: str, *dependencies: str, runs_after_failure: bool = False, state: str = "PENDING"
    ) -> RecordedCall:
        data: dict[str, object] = {"attempt": 0, "agentId": None}
        if state == "FAILED":
            data |= {"final": True, "reason": "dependency_failed"}
        event = self.add_event("task.created", task_id, None, state, **data)
        self.tasks[task_id] = TaskRow(
            *(ZONE, task_id, state, 0, int(state == "FAILED"), 0, 0, event.at, None, event.at),
            *("run" if runs_after_failure else "fail", None, None, None),
        )
        self.dependencies += [DependencyRow(ZONE, task_id, name) for name in dependencies]
        request: dict[str, object] = {"id": task_id, "idempotency_key": f"key-{task_id}"}
        return self.add_call("task.create", 201, request, {"id": task_id, "status": state, "attempt": 0})

    def add_task_event(self, task_id: str, verb: str, after: str | None = None, **data: object) -> Event:
        """Add an event of a task, with or without a change of state."""
        row = self.tasks[task_id]
        base_data: dict[str, object] = {"attempt": row.attempt, "agentId": row.agent_id}
        event = self.add_event(f"task.{verb}", task_id, row.status, after or row.status, **(base_data | data))
        number = json.loads(event.data)["attempt"]
        final = int(bool(data.get("final")))
        changed = {"status": after or row.status, "attempt": number, "final": final, "updated_at": event.at}
        self.tasks[task_id] = msgspec.structs.replace(row, **changed)
        return event

    change_state = add_task_event  # type: ignore[assignment]  # the attempt is in the task's row, not a parameter

    def claim_task(self, task_id: str, agent: str, checkpoint: object = None, claim_id: str | None = None) -> TaskLease:
        number = self.tasks[task_id].attempt + 1
        self.add_task_event(task_id, "started", "RUNNING", attempt=number, agentId=agent)
        self.tasks[task_id] = msgspec.structs.replace(
            self.tasks[task_id], agent_id=agent, agent_status="IDLE", agent_stale_at=FAR_FUTURE
        )
        lease = {
            "id": task_id,
            "attempt": number,
            "attemptToken": f"{task_id}-{number}-{agent}-{self.clock}",
            "checkpointData": checkpoint or {},
        }
        request: dict[str, object] = {"agentId": agent, "claimId": claim_id}
        self.add_call("task.claim", 200, request, {"tasks": [lease]}, client=agent)
        return TaskLease(task_id, number, str(lease["attemptToken"]))

    def save_progress(
        self, lease: TaskLease, agent: str, step: str, checkpoint: object, status: int | None = 200
    ) -> RecordedCall:
        if status == 200:
            self.add_task_event(lease.id, "progressed", progressPercent=10, currentStep=step)
        request: dict[str, object] = {
            "id": lease.id,
            "attemptToken": lease.attempt_token,
            "currentStep": step,
            "checkpointData": checkpoint,
        }
        response = {"id": lease.id, "status": "RUNNING"} if status == 200 else None
        self.clock += 20
        return self.add_call("task.progress", status, request, response, client=agent)

    def complete_task(self, lease: TaskLease, agent: str) -> RecordedCall:
        self.add_task_event(lease.id, "completed", "COMPLETED")
        return self.report("task.complete", lease, agent, 200, "COMPLETED")

    def fail_task(self, lease: TaskLease, agent: str, *, final: bool = False) -> RecordedCall:
        self.add_task_event(lease.id, "failed", "FAILED", reason="failed", final=final)
        return self.report("task.fail", lease, agent, 200, "FAILED")

    def report(self, op: str, lease: TaskLease, agent: str, status: int, outcome: str) -> RecordedCall:
        """A report about an attempt, and its response."""
        request: dict[str, object] = {"id": lease.id, "attemptToken": lease.attempt_token}
        response = {"id": lease.id, "status": outcome} if status == 200 else {"error": outcome}
        return self.add_call(op, status, request, response, client=agent)

    def requeue_after_backoff(self, task_id: str) -> None:
        self.add_task_event(task_id, "requeued", "PENDING", reason="backoff")


def build_valid_task_history() -> TaskHistoryBuilder:
    history = TaskHistoryBuilder()
    history.add_event("zone.create", ZONE, name=ZONE, quotas=ZONE_LIMITS)
    for name in ("a1", "a2"):
        history.add_agent(name)
    add_simple_tasks(history)
    add_lost_agent(history)
    add_dependencies(history)
    add_manual_changes(history)
    history.add_event("zone.change", ZONE, name=ZONE, quotas=ZONE_LIMITS)
    return history


def add_simple_tasks(history: TaskHistoryBuilder) -> None:
    """Tasks that complete (reported twice), are released, and fail until no retry is left."""
    history.create_task("well")
    history.add_call("task.create", 200, {"id": "well", "idempotency_key": "key-well"}, {"id": "well"})
    history.add_call("task.create", 400, {"id": "never"}, {"error": "unknown_dependency"})
    lease = history.claim_task("well", "a1", claim_id="c1")
    history.complete_task(lease, "a1")
    history.report("task.complete", lease, "a1", 200, "COMPLETED")
    history.create_task("back")
    released = history.claim_task("back", "a1")
    history.add_task_event("back", "released", "PENDING", attempt=0)
    history.report("task.release", released, "a1", 200, "PENDING")
    history.complete_task(history.claim_task("back", "a2"), "a2")
    history.create_task("exhausted")
    history.fail_task(history.claim_task("exhausted", "a1"), "a1")
    history.requeue_after_backoff("exhausted")
    history.fail_task(history.claim_task("exhausted", "a2"), "a2", final=True)


def add_lost_agent(history: TaskHistoryBuilder) -> None:
    """An agent saves a checkpoint, becomes stale and returns too late. Another resumes from the checkpoint."""
    history.create_task("long")
    first = history.claim_task("long", "a1")
    history.save_progress(first, "a1", "one", {"at": 1})
    history.save_progress(first, "a1", "two", {"at": 2})
    history.save_progress(first, "a1", "three", {"at": 3}, status=None)
    history.lose_agent("a1", "long")
    history.requeue_after_backoff("long")
    second = history.claim_task("long", "a2", {"at": 2})
    history.revive_agent("a1")
    history.report("task.complete", first, "a1", 409, "stale_attempt")
    history.save_progress(first, "a1", "four", {"at": 4}, status=409)
    history.save_progress(second, "a2", "three", {"at": 3})
    history.complete_task(second, "a2")


def add_dependencies(history: TaskHistoryBuilder) -> None:
    """Tasks that wait for others, one that fails with its dependency, and one that runs despite its failure."""
    history.create_task("head")
    history.create_task("left", "head")
    history.create_task("tail", "left", "well")
    history.complete_task(history.claim_task("head", "a1"), "a1")
    history.add_task_event("left", "unblocked")
    history.complete_task(history.claim_task("left", "a2"), "a2")
    history.add_task_event("tail", "unblocked")
    history.complete_task(history.claim_task("tail", "a1"), "a1")
    history.create_task("with", "exhausted", state="FAILED")
    history.create_task("without", "exhausted", runs_after_failure=True)
    history.complete_task(history.claim_task("without", "a2"), "a2")


def add_manual_changes(history: TaskHistoryBuilder) -> None:
    """Tasks that are paused while running, canceled, and retried after their final failure."""
    history.create_task("held")
    history.claim_task("held", "a1")
    history.add_task_event("held", "paused", "PAUSED")
    history.add_task_event("held", "resumed", "PENDING")
    history.complete_task(history.claim_task("held", "a1"), "a1")
    history.create_task("dropped")
    history.add_task_event("dropped", "aborted", "ABORTED", final=True, reason="requested")
    history.add_call("task.cancel", 200, {"id": "dropped"}, {"id": "dropped", "status": "ABORTED"})
    history.add_task_event("exhausted", "requeued", "PENDING", reason="retry")
    history.complete_task(history.claim_task("exhausted", "a1"), "a1")
    history.add_task_event("well", "archived", "ARCHIVED")


PlantTaskViolation = Callable[[TaskHistoryBuilder], object]
