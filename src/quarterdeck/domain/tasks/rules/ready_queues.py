"""What may begin, by class, in the order of turns."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import msgspec

from quarterdeck.domain.tasks.model.rows import Ref, State, Task, Waits
from quarterdeck.domain.tasks.rules.batch_input import ClassRef, Kind

GIVEN_MAX = 16 << 20
"""Bytes of what tasks say that one batch gives out, to all who claim in it. The rest stays where it is, and is there
for the next claim."""
Entry = tuple[int, str]
"""(turn, task): of equal turns the older, since ids are made in order of time."""


def class_of(task_type: str, required: Sequence[str]) -> str:
    """Tasks that ask the same of whoever takes them have the same class."""
    return hashlib.blake2b(msgspec.json.encode((task_type, *required)), digest_size=12).hexdigest()


def is_ready(row: Task) -> bool:
    return row.status is State.PENDING and row.waits == Waits.NOTHING


class Queues:
    """Heaps, one for each class. What stands in one may have moved since: it is looked at again when it is taken."""

    def __init__(
        self, rows: Mapping[Ref, Task], kinds: Mapping[ClassRef, Kind], size_of: Callable[[Task], int]
    ) -> None:
        self._rows = rows
        self._kinds = {**kinds}
        self._size_of = size_of
        self._room = GIVEN_MAX
        self._waiting: dict[ClassRef, list[Entry]] = {}

    def knows(self, ref: ClassRef, kind: Kind) -> None:
        self._kinds.setdefault(ref, kind)

    def add(self, row: Task) -> None:
        heapq.heappush(self._waiting.setdefault((row.zone_id, row.class_id), []), (row.turn, row.id))

    def suited(self, zone_id: str, has: frozenset[str], task_types: frozenset[str] | None) -> list[list[Entry]]:
        return [
            queue
            for ref, queue in self._waiting.items()
            if ref[0] == zone_id
            and queue
            and (kind := self._kinds.get(ref)) is not None
            and kind.suits(has, task_types)
        ]

    def fits(self, row: Task, *, is_first: bool) -> bool:
        """Whether there is room for what it says in what is given out; if so, that much less is left. Whoever would get
        nothing else is given the first, however large: it would wait for ever otherwise."""
        size = self._size_of(row)
        if size > self._room and not is_first:
            return False
        self._room -= size
        return True

    def fitting(self, rows: Sequence[Task]) -> list[Task]:
        """As many of these as there is room for."""
        return [*takewhile(lambda row: self.fits(row, is_first=row is rows[0]), rows)]

    def take(self, zone_id: str, queues: list[list[Entry]], most: int, spent: Callable[[Task], bool]) -> list[Task]:
        """Of all that wait in these queues, the lowest turns, as many as there is room for; but nothing whose budget is
        spent."""
        taken: list[Task] = []
        aside: list[tuple[list[Entry], Entry]] = []
        while len(taken) < most and (queues := [queue for queue in queues if queue]):
            queue = min(queues, key=_first)
            first = heapq.heappop(queue)
            row = self._rows[zone_id, first[1]]
            if not is_ready(row) or row.turn != first[0] or (taken and row.id == taken[-1].id):
                continue
            if spent(row):
                aside.append((queue, first))
            elif self.fits(row, is_first=not taken):
                taken.append(row)
            else:
                heapq.heappush(queue, first)
                break
        for queue, entry in aside:
            heapq.heappush(queue, entry)
        return taken


def _first(queue: list[Entry]) -> Entry:
    return queue[0]
