"""The changes that a batch has made so far. All of them are written at the end, in one commit."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.domain.tasks.model.commands import (
    BaseCommand,
    Claim,
    Complete,
    Cost,
    Fail,
    Progress,
    Release,
    Start,
    TaskResult,
)
from quarterdeck.domain.tasks.model.rows import AgentRef, ClaimedTasks, Content, ContentUpdate, State, Task, TaskRef
from quarterdeck.domain.tasks.rules import states
from quarterdeck.domain.tasks.rules.batch_input import BatchInput, ClassRef, PendingEvent
from quarterdeck.domain.tasks.rules.ready_queues import ReadyQueues, is_ready
from quarterdeck.domain.tasks.rules.states import HELD

TaskChange = tuple[Task, Task]
"""(before, after)"""
ATTEMPT_COMMANDS = (Start, Progress, Complete, Fail, Release)
"""Commands that the holder of an attempt sends with its token."""


class Batch:
    def __init__(self, loaded: BatchInput) -> None:
        self._loaded = loaded
        self._now = loaded.now
        self._tasks: dict[TaskRef, Task] = {}
        self._queues = ReadyQueues(self._tasks, loaded.classes, self._content_size)
        self._free_slots = {ref: agent.free_slots for ref, agent in loaded.agents.items()}
        self.new_task_contents: dict[TaskRef, Content] = {}
        self.new_dependencies: dict[TaskRef, tuple[str, ...]] = {}
        """Dependencies of new tasks, and of tasks whose dependencies were replaced."""
        self.met_dependencies: set[tuple[TaskRef, str]] = set()
        """(task, dependency) pairs to mark as met."""
        self.reopened_dependencies: set[tuple[TaskRef, str]] = set()
        """(task, dependency) pairs to mark as unmet again."""
        self.originals: dict[TaskRef, Task] = {}
        """Changed tasks, in the version that was loaded."""
        self.claim_changes: dict[TaskRef, TaskChange] = {}
        """Claims. If the claim is the only change to its task (`is_only_change`), `tasks_start` writes it, which sets
        fewer columns than `tasks_update`."""
        self.completion_changes: dict[TaskRef, TaskChange] = {}
        """Completions without costs. If the completion is the only change to its task, `tasks_complete` writes it."""
        self.content_updates: dict[TaskRef, ContentUpdate] = {}
        self.new_tags: dict[TaskRef, tuple[str, ...]] = {}
        """All tags of new tasks, and of tasks whose tags were replaced."""
        self.removed_tags: set[tuple[str, str, str]] = set()
        """(zone id, tag, task id) of tags that were replaced. A tag that the task keeps is inserted again."""
        self.new_classes: dict[ClassRef, TaskRef] = {}
        """Class → the first new task of that class."""
        self.key_records_to_store: list[KeyRecord] = []
        self.held_count_changes: dict[AgentRef, int] = {}
        """Agent → change in the number of tasks that it holds."""
        self.seen_agents: set[AgentRef] = set()
        """Agents whose `last_seen_at` must be written because they sent a claim, or a report with an attempt token."""
        self.activated_agents: dict[AgentRef, BaseCommand] = {}
        """Agent that was stale or new → its first claim in the batch."""
        self.costs: list[tuple[Task, Cost]] = []
        self.stack_traces: list[tuple[Task, str]] = []
        self.ready_classes: set[ClassRef] = set()
        """Classes in which a task became ready. If there are none, the batch offers no tasks to waiting claims."""
        self.events: list[PendingEvent] = []
        for task in loaded.tasks:
            self.add_task(task)
        for task in loaded.ready_tasks:
            self.add_task(task)
            self._queues.push(task)

    def add_task(self, task: Task) -> TaskRef:
        ref = (task.zone_id, task.id)
        self._tasks.setdefault(ref, task)
        return ref

    def _content_size(self, task: Task) -> int:
        ref = (task.zone_id, task.id)
        content = self.new_task_contents.get(ref)
        return self._loaded.content_sizes.get(ref, 0) if content is None else content.size

    def task(self, ref: TaskRef) -> Task:
        """The task with the changes that the batch has made so far."""
        return self._tasks[ref]

    def refs(self) -> list[TaskRef]:
        return [*self._tasks]

    def tasks(self, refs: Iterable[TaskRef]) -> list[Task]:
        return [self._tasks[ref] for ref in refs]

    def is_only_change(self, ref: TaskRef, change: TaskChange | None) -> bool:
        """Whether `change` is the only change to the task in this batch."""
        return change is not None and self.originals[ref] is change[0] and self._tasks[ref] is change[1]

    # -- agents --------------------------------------------------------------------------------------------------

    def _record_claim(self, command: Claim, outcome: TaskResult | Problem) -> TaskResult | Problem:
        """Record that the agent made contact. A claim that gets no task counts too. Contact makes a stale agent active
        again, and starts the liveness checks of a new one."""
        agent_ref = (command.zone_id, command.agent_id)
        agent = self._loaded.agents.get(agent_ref)
        if agent is None or not isinstance(outcome, ClaimedTasks):
            return outcome
        becomes_active = agent.is_stale or agent.is_new
        if becomes_active:
            self.activated_agents.setdefault(agent_ref, command)
        if outcome.items or becomes_active or not agent.seen_recently:
            self.seen_agents.add(agent_ref)
        return outcome

    def _record_report(self, command: BaseCommand, task: Task, outcome: TaskResult | Problem) -> TaskResult | Problem:
        """Record contact with the agent if the command is an accepted report with an attempt token. If the response to
        a claim cannot be delivered, the server releases the attempt itself; that release does not count as contact."""
        is_report = (
            isinstance(command, ATTEMPT_COMMANDS) and command.caller is not None and not isinstance(outcome, Problem)
        )
        if is_report and task.agent_id is not None and task.status in HELD:
            self.seen_agents.add((task.zone_id, task.agent_id))
        return outcome

    # -- changes -------------------------------------------------------------------------------------------------

    def _queue_if_ready(self, task: Task) -> None:
        if is_ready(task):
            self.ready_classes.add((task.zone_id, task.class_id))
            self._queues.push(task)

    def _charge(self, task: Task, costs: tuple[Cost, ...]) -> Task:
        self.costs += [(task, cost) for cost in costs]
        return states.add_costs(task, costs) if costs else task

    def _change_held_count(self, task: Task, change: int) -> None:
        """Take (+1) or free (-1) a slot of the task's agent. `task` must name that agent: pass the task after the claim
        or assignment, or before the change that ends the attempt."""
        if task.agent_id is None or (change < 0 and task.status not in HELD):
            return
        agent_ref = (task.zone_id, task.agent_id)
        self.held_count_changes[agent_ref] = self.held_count_changes.get(agent_ref, 0) + change
        if agent_ref in self._free_slots:
            self._free_slots[agent_ref] -= change

    def _update(self, before: Task, after: Task) -> None:
        ref = (before.zone_id, before.id)
        if ref not in self.new_task_contents:
            self.originals.setdefault(ref, before)
        self._tasks[ref] = after

    def _update_content(self, task: Task, update: ContentUpdate) -> None:
        ref = (task.zone_id, task.id)
        if ref in self.new_task_contents:
            content = self.new_task_contents[ref]
            changes = {name: value for name, value in msgspec.structs.asdict(update).items() if value is not None}
            self.new_task_contents[ref] = msgspec.structs.replace(content, **changes)
            return
        earlier = self.content_updates.get(ref)
        self.content_updates[ref] = update if earlier is None else _merge_updates(earlier, update)

    def _transition(
        self, before: Task, after: Task, event_type: str, command: BaseCommand, reason: EventReason | None = None
    ) -> None:
        self._update(before, after)
        self._emit(event_type, before.status, after, command, reason)

    def _emit(
        self,
        event_type: str,
        from_state: State | None,
        task: Task,
        command: BaseCommand,
        reason: EventReason | None = None,
    ) -> None:
        reason = reason or NO_REASON
        trace = command.trace or task.trace
        self.events.append(
            PendingEvent(
                event_type,
                from_state,
                task,
                command.actor,
                trace,
                reason.reason,
                reason.retries_exhausted,
                reason.cycle,
            )
        )


class EventReason(msgspec.Struct, frozen=True):
    """The part of an event that says why its transition happened."""

    reason: str | None = None
    retries_exhausted: bool = False
    cycle: tuple[str, ...] = ()


NO_REASON = EventReason()


def _merge_updates(earlier: ContentUpdate, later: ContentUpdate) -> ContentUpdate:
    return ContentUpdate(
        *(new if new is not None else old for old, new in zip(_values(earlier), _values(later), strict=True))
    )


def _values(update: ContentUpdate) -> tuple[str | None, ...]:
    return msgspec.structs.astuple(update)
