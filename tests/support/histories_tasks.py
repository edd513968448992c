"""A small true history of tasks, written by hand: what the log, the tables and the agents' own lines look like after a
morning's work in which agents were lost, attempts failed, and everything ended as it should. Tests then put one thing
wrong."""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import RecordedCall
from quarterdeck.maintenance.history_checker.task_model import (
    DependencyRow,
    TaskCallData,
    TaskLease,
    TaskRequest,
    TaskResponse,
    TaskRow,
)
from tests.support.histories import OWN, ZONE, Written

LATER = 2**60


class Labour(Written):
    """The same for tasks, by agents whose names are their clients' names."""

    def word(
        self, op: str, status: int | None, asked: dict[str, object], answer: object = None, client: str = "a"
    ) -> RecordedCall:
        """A line about tasks: what was asked and answered has the names of the wire."""
        call = self.call(op, status, asked, answer, client)
        work = TaskCallData(
            msgspec.json.decode(json.dumps(asked), type=TaskRequest),
            msgspec.json.decode(json.dumps(answer), type=TaskResponse | None),
        )
        self.calls[-1] = made = msgspec.structs.replace(call, task_data=work)
        return made

    # -- agents

    def agent(self, name: str) -> None:
        self.event("agent.registered", name, None, "IDLE")

    def lose(self, name: str, *held: str) -> None:
        """It was silent for too long, and what it held goes back after a while."""
        self.event("agent.stale", name, "IDLE", "ERROR", reason="stale")
        for own in held:
            self.move(own, "aborted", "ABORTED", reason="agent_stale", final=False)

    def revive(self, name: str) -> None:
        self.event("agent.revived", name, "ERROR", "IDLE")

    # -- tasks

    def make(self, own: str, *ahead: str, runs: bool = False, state: str = "PENDING") -> RecordedCall:
        data: dict[str, object] = {"attempt": 0, "agentId": None}
        if state == "FAILED":
            data |= {"final": True, "reason": "dependency_failed"}
        event = self.event("task.created", own, None, state, **data)
        self.tasks[own] = TaskRow(
            *(ZONE, own, state, 0, int(state == "FAILED"), 0, 0, event.at, None, event.at),
            *("run" if runs else "fail", None, None, None),
        )
        self.dependencies += [DependencyRow(ZONE, own, name) for name in ahead]
        asked: dict[str, object] = {"id": own, "idempotency_key": f"key-{own}"}
        return self.word("task.create", 201, asked, {"id": own, "status": state, "attempt": 0})

    def step(self, own: str, verb: str, after: str | None = None, **data: object) -> Event:
        """Something is told of a task, which moves it or not."""
        row = self.tasks[own]
        told: dict[str, object] = {"attempt": row.attempt, "agentId": row.agent_id}
        event = self.event(f"task.{verb}", own, row.status, after or row.status, **(told | data))
        number = json.loads(event.data)["attempt"]
        final = int(bool(data.get("final")))
        changed = {"status": after or row.status, "attempt": number, "final": final, "updated_at": event.at}
        self.tasks[own] = msgspec.structs.replace(row, **changed)
        return event

    move = step  # type: ignore[assignment]  # a task's row knows its attempt: nobody says it

    def give(self, own: str, agent: str, checkpoint: object = None, claim_id: str | None = None) -> TaskLease:
        number = self.tasks[own].attempt + 1
        self.step(own, "started", "RUNNING", attempt=number, agentId=agent)
        self.tasks[own] = msgspec.structs.replace(
            self.tasks[own], agent_id=agent, agent_status="IDLE", agent_silent_from=LATER
        )
        lease = {
            "id": own,
            "attempt": number,
            "attemptToken": f"{own}-{number}-{agent}-{self.now}",
            "checkpointData": checkpoint or {},
        }
        asked: dict[str, object] = {"agentId": agent, "claimId": claim_id}
        self.word("task.claim", 200, asked, {"tasks": [lease]}, client=agent)
        return msgspec.convert({**lease, "checkpointData": msgspec.Raw(b"{}")}, TaskLease)

    def save(
        self, lease: TaskLease, agent: str, step: str, checkpoint: object, status: int | None = 200
    ) -> RecordedCall:
        if status == 200:
            self.step(lease.id, "progressed", progressPercent=10, currentStep=step)
        asked: dict[str, object] = {
            "id": lease.id,
            "attemptToken": lease.attempt_token,
            "currentStep": step,
            "checkpointData": checkpoint,
        }
        answer = {"id": lease.id, "status": "RUNNING"} if status == 200 else None
        self.now += 20
        return self.word("task.progress", status, asked, answer, client=agent)

    def done(self, lease: TaskLease, agent: str) -> RecordedCall:
        self.step(lease.id, "completed", "COMPLETED")
        return self.say("task.complete", lease, agent, 200, "COMPLETED")

    def failed(self, lease: TaskLease, agent: str, *, final: bool = False) -> RecordedCall:
        self.step(lease.id, "failed", "FAILED", reason="failed", final=final)
        return self.say("task.fail", lease, agent, 200, "FAILED")

    def say(self, op: str, lease: TaskLease, agent: str, status: int, told: str) -> RecordedCall:
        """A word about an attempt, and what it was answered."""
        asked: dict[str, object] = {"id": lease.id, "attemptToken": lease.attempt_token}
        answer = {"id": lease.id, "status": told} if status == 200 else {"error": told}
        return self.word(op, status, asked, answer, client=agent)

    def back(self, own: str) -> None:
        """Its backoff is over."""
        self.step(own, "requeued", "PENDING", reason="backoff")


def a_true_history_of_tasks() -> Labour:
    w = Labour()
    w.event("zone.create", ZONE, name=ZONE, quotas=OWN)
    for name in ("a1", "a2"):
        w.agent(name)
    ended_well(w)
    lost_and_resumed(w)
    waited_for(w)
    moved_by_hand(w)
    w.event("zone.change", ZONE, name=ZONE, quotas=OWN)
    return w


def ended_well(w: Labour) -> None:
    """One that went well, and was said twice; one given back, one that failed twice and for good."""
    w.make("well")
    w.word("task.create", 200, {"id": "well", "idempotency_key": "key-well"}, {"id": "well"})
    w.word("task.create", 400, {"id": "never"}, {"error": "unknown_dependency"})
    lease = w.give("well", "a1", claim_id="c1")
    w.done(lease, "a1")
    w.say("task.complete", lease, "a1", 200, "COMPLETED")
    w.make("back")
    given = w.give("back", "a1")
    w.step("back", "released", "PENDING", attempt=0)
    w.say("task.release", given, "a1", 200, "PENDING")
    w.done(w.give("back", "a2"), "a2")
    w.make("hopeless")
    w.failed(w.give("hopeless", "a1"), "a1")
    w.back("hopeless")
    w.failed(w.give("hopeless", "a2"), "a2", final=True)


def lost_and_resumed(w: Labour) -> None:
    """Its agent was lost with what it had saved, came back too late, and another went on from there."""
    w.make("long")
    first = w.give("long", "a1")
    w.save(first, "a1", "one", {"at": 1})
    w.save(first, "a1", "two", {"at": 2})
    w.save(first, "a1", "three", {"at": 3}, status=None)
    w.lose("a1", "long")
    w.back("long")
    second = w.give("long", "a2", {"at": 2})
    w.revive("a1")
    w.say("task.complete", first, "a1", 409, "stale_attempt")
    w.save(first, "a1", "four", {"at": 4}, status=409)
    w.save(second, "a2", "three", {"at": 3})
    w.done(second, "a2")


def waited_for(w: Labour) -> None:
    """Two that waited for one; one that failed with another, and one that went on without it."""
    w.make("head")
    w.make("left", "head")
    w.make("tail", "left", "well")
    w.done(w.give("head", "a1"), "a1")
    w.step("left", "unblocked")
    w.done(w.give("left", "a2"), "a2")
    w.step("tail", "unblocked")
    w.done(w.give("tail", "a1"), "a1")
    w.make("with", "hopeless", state="FAILED")
    w.make("without", "hopeless", runs=True)
    w.done(w.give("without", "a2"), "a2")


def moved_by_hand(w: Labour) -> None:
    """One that was paused while it ran, one canceled, one begun anew after it had failed for good."""
    w.make("held")
    w.give("held", "a1")
    w.step("held", "paused", "PAUSED")
    w.step("held", "resumed", "PENDING")
    w.done(w.give("held", "a1"), "a1")
    w.make("dropped")
    w.step("dropped", "aborted", "ABORTED", final=True, reason="requested")
    w.word("task.cancel", 200, {"id": "dropped"}, {"id": "dropped", "status": "ABORTED"})
    w.step("hopeless", "requeued", "PENDING", reason="retry")
    w.done(w.give("hopeless", "a1"), "a1")
    w.step("well", "archived", "ARCHIVED")


TaskPlant = Callable[[Labour], object]
