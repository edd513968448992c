"""One batch while it is decided: what was loaded, and what will be written at the end, in one commit."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from quarterdeck.core.batch_rows import NO_DATA, BatchRows
from quarterdeck.core.command import Command
from quarterdeck.core.idempotency import BatchKeys
from quarterdeck.domain.costs.model import Cost
from quarterdeck.domain.tasks.model.rows import Task, TaskRef, Verb
from quarterdeck.domain.tasks.rules import states
from quarterdeck.domain.tasks.rules.batch_agents import BatchAgents
from quarterdeck.domain.tasks.rules.batch_content import BatchContent
from quarterdeck.domain.tasks.rules.batch_input import BatchInput, ClassRef
from quarterdeck.domain.tasks.rules.dependencies import DependencyTracker
from quarterdeck.domain.tasks.rules.ranking import FairRanks
from quarterdeck.domain.tasks.rules.ready_queues import ReadyQueues


class Batch:
    """The parts that decisions read and change. Each owns a part of the input and of the output."""

    def __init__(self, loaded: BatchInput) -> None:
        self.loaded = loaded
        self.now = loaded.now
        self.tasks = BatchRows(chain(loaded.tasks, loaded.ready_tasks))
        self.content = BatchContent(loaded.content_sizes, loaded.tags)
        self.dependencies = DependencyTracker(loaded, self.tasks)
        self.queues = ReadyQueues(self.tasks, loaded.classes, self.content.size_of)
        self.agents = BatchAgents(loaded.agents)
        self.keys = BatchKeys(loaded.keys)
        self.fair_ranks = FairRanks(loaded.fair_ranks)
        self.new_classes: dict[ClassRef, TaskRef] = {}
        """Class → the first new task of that class."""
        self.costs: list[tuple[Task, Cost]] = []
        self.stack_traces: list[tuple[Task, str]] = []
        self._changes: dict[TaskRef, Verb | None] = {}
        for task in loaded.ready_tasks:
            self.queues.push(task)

    def update(self, task: Task) -> None:
        """Record a change without a transition."""
        self._changes[task.ref] = None
        self.tasks.update(task)

    def transition(
        self, before: Task, after: Task, verb: Verb, command: Command, data: Mapping[str, object] = NO_DATA
    ) -> None:
        """Record a transition and its event."""
        ref = before.ref
        self._changes[ref] = None if ref in self._changes else verb
        self.tasks.update(after)
        self.tasks.emit(states.EVENT_TYPES[verb], before.status, after, command, data)

    def only_verb(self, ref: TaskRef) -> Verb | None:
        """The verb of the task's transition, if it is the only change to the task in this batch. Some verbs have a
        statement that writes fewer columns."""
        return self._changes[ref]

    def charge(self, task: Task, costs: tuple[Cost, ...]) -> Task:
        if not costs:
            return task
        self.costs += [(task, cost) for cost in costs]
        charged = states.add_costs(task, costs)
        self.update(charged)
        return charged
