"""The agents of a batch: their free slots, and which of them made contact."""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.core.command import Command
from quarterdeck.domain.tasks.model.commands import Claim
from quarterdeck.domain.tasks.model.rows import AgentRef, Task
from quarterdeck.domain.tasks.rules.batch_input import AgentInfo
from quarterdeck.domain.tasks.rules.states import HELD


class BatchAgents:
    def __init__(self, loaded: Mapping[AgentRef, AgentInfo]) -> None:
        self._loaded = loaded
        self._free_slots = {ref: agent.free_slots for ref, agent in loaded.items()}
        self.held_changes: dict[AgentRef, int] = {}
        """Agent → change in the number of tasks that it holds."""
        self.seen: set[AgentRef] = set()
        """Agents whose `last_seen_at` must be written because they sent a claim, or a report with an attempt token."""
        self.activated: dict[AgentRef, Command] = {}
        """Agent that was stale or new → its first claim in the batch."""

    def get(self, ref: AgentRef) -> AgentInfo | None:
        return self._loaded.get(ref)

    def free_slots(self, ref: AgentRef) -> int:
        return self._free_slots.get(ref, 0)

    def take_slot(self, task: Task) -> None:
        """Take a slot of the agent that `task`, after the claim or assignment, names."""
        self._change_held(task, 1)

    def free_slot(self, task: Task) -> None:
        """Free the slot of an ending attempt. `task` is the task before the change."""
        if task.status in HELD:
            self._change_held(task, -1)

    def record_claim(self, command: Claim, *, got_tasks: bool) -> None:
        """Record that the agent made contact. A claim that gets no task counts too. Contact makes a stale agent active
        again, and starts the liveness checks of a new one."""
        ref = (command.zone_id, command.agent_id)
        agent = self._loaded[ref]
        if agent.is_stale or agent.is_new:
            self.activated.setdefault(ref, command)
        elif agent.seen_recently and not got_tasks:
            return
        self.seen.add(ref)

    def record_report(self, task: Task) -> None:
        """Record contact with the agent that holds the task. `task` is the task before the report."""
        if task.agent_id is not None and task.status in HELD:
            self.seen.add((task.zone_id, task.agent_id))

    def _change_held(self, task: Task, change: int) -> None:
        if task.agent_id is not None:
            ref = (task.zone_id, task.agent_id)
            self.held_changes[ref] = self.held_changes.get(ref, 0) + change
            self._free_slots[ref] = self._free_slots.get(ref, 0) - change
