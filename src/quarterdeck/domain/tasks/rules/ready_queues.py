"""Ready tasks by class, lowest rank first."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import msgspec

from quarterdeck.core.batch_rows import BatchRows
from quarterdeck.domain.tasks.model.rows import Task, TaskRef
from quarterdeck.domain.tasks.rules.batch_input import ClassRef, TaskClass
from quarterdeck.domain.tasks.rules.states import is_ready

CLAIM_BYTES_MAX = 16 << 20
"""Maximum total content size, in bytes, of the tasks that the claims of one batch return. Tasks that do not fit stay
queued."""
Entry = tuple[int, str]
"""(rank, task id). Generated ids are time-ordered, so among equal ranks the older task comes first."""


def class_id_of(task_type: str, required_capabilities: Sequence[str]) -> str:
    """The id of the class of all tasks with this type and these required capabilities, which must be sorted."""
    return hashlib.blake2b(msgspec.json.encode((task_type, *required_capabilities)), digest_size=12).hexdigest()


class ReadyQueues:
    """One heap per class.

    An entry is outdated if its task was claimed, canceled or re-ranked after the entry was pushed. Outdated entries are
    discarded when they are popped, not when the task changes.
    """

    def __init__(
        self, tasks: BatchRows[Task], classes: Mapping[ClassRef, TaskClass], size_of: Callable[[TaskRef], int]
    ) -> None:
        self._tasks = tasks
        self._classes = {**classes}
        self._size_of = size_of
        self._bytes_left = CLAIM_BYTES_MAX
        self._heaps: dict[ClassRef, list[Entry]] = {}
        self.ready_classes: set[ClassRef] = set()
        """Classes in which a task became ready. If there are none, the batch offers no tasks to waiting claims."""

    def add_class(self, ref: ClassRef, task_class: TaskClass) -> None:
        self._classes.setdefault(ref, task_class)

    def push(self, task: Task) -> None:
        heapq.heappush(self._heaps.setdefault((task.zone_id, task.class_id), []), (task.rank, task.id))

    def push_if_ready(self, task: Task) -> None:
        """Queue a task that the batch has created or changed, if it is ready now."""
        if is_ready(task):
            self.ready_classes.add((task.zone_id, task.class_id))
            self.push(task)

    def find_matching(
        self, zone_id: str, capabilities: frozenset[str], task_types: frozenset[str] | None
    ) -> list[list[Entry]]:
        return [
            queue
            for ref, queue in self._heaps.items()
            if ref[0] == zone_id
            and queue
            and (task_class := self._classes.get(ref)) is not None
            and task_class.matches(capabilities, task_types)
        ]

    def reserve_bytes(self, task: Task, *, is_first: bool) -> bool:
        """Reserve space for the task's content, if there is enough. The first task of a claim is always accepted:
        otherwise a large task might never be claimed."""
        size = self._size_of(task.ref)
        if size > self._bytes_left and not is_first:
            return False
        self._bytes_left -= size
        return True

    def take_fitting(self, tasks: Sequence[Task]) -> list[Task]:
        """Reserve space for the tasks in order. Returns the tasks before the first one that does not fit."""
        return [*takewhile(lambda task: self.reserve_bytes(task, is_first=task is tasks[0]), tasks)]

    def pop(
        self, zone_id: str, queues: list[list[Entry]], limit: int, should_skip: Callable[[Task], bool]
    ) -> list[Task]:
        """Remove and return up to `limit` tasks whose content fits, lowest rank first. Skipped tasks stay queued."""
        taken: list[Task] = []
        skipped: list[tuple[list[Entry], Entry]] = []
        while len(taken) < limit and (queues := [queue for queue in queues if queue]):
            queue = min(queues, key=_head)
            head = heapq.heappop(queue)
            task = self._tasks[zone_id, head[1]]
            if not is_ready(task) or task.rank != head[0] or (taken and task.id == taken[-1].id):
                continue  # outdated, or queued twice
            if should_skip(task):
                skipped.append((queue, head))
            elif self.reserve_bytes(task, is_first=not taken):
                taken.append(task)
            else:
                heapq.heappush(queue, head)
                break
        for queue, entry in skipped:
            heapq.heappush(queue, entry)
        return taken


def _head(queue: list[Entry]) -> Entry:
    return queue[0]
