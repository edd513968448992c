"""The queue of a lane: fair between zones, bounded.

Commands are queued by zone, each zone in order of arrival. If all fit into one batch, all are taken. Otherwise zones
alternate, one command each, so a zone with a thousand queued commands delays another zone's single command by one
place. Eviction is fair, too: if the queue is full, a new command replaces the newest command of the zone with the most
commands, unless its own zone would then have at least as many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class QueueEntry(Protocol):
    @property
    def zone_id(self) -> str: ...
    @property
    def position(self) -> int: ...


E = TypeVar("E", bound=QueueEntry)


class ZoneQueue(Generic[E]):
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._zones: dict[str, deque[E]] = {}
        self._paused: set[str] = set()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def has_ready(self) -> bool:
        """Whether anything may be taken now."""
        return any(zone not in self._paused for zone in self._zones)

    def put(self, entry: E) -> E | None:
        """Queue an entry. Return the evicted entry, which may be this one, or None."""
        evicted = None
        if self._size >= self._capacity:
            evicted = self._evict(entry)
            if evicted is entry:
                return entry
        self._zones.setdefault(entry.zone_id, deque()).append(entry)
        self._size += 1
        return evicted

    def put_back(self, entries: list[E]) -> None:
        """Put entries that could not be processed back at the front. They were accepted before, so none is evicted."""
        returned = {zone: self._zones.pop(zone, deque()) for zone in dict.fromkeys(e.zone_id for e in entries)}
        for entry in reversed(entries):
            returned[entry.zone_id].appendleft(entry)
        # The order of this dictionary is the order in which zones alternate.
        self._zones = {**returned, **self._zones}
        self._size += len(entries)

    def take(self, limit: int) -> list[E]:
        """Take the next batch, in order of arrival."""
        if self._size <= limit and not self._paused:
            taken = [entry for queue in self._zones.values() for entry in queue]
            self._zones.clear()
            self._size = 0
        else:
            taken = list(self._take_round_robin(limit))
            self._size -= len(taken)
        taken.sort(key=_position)
        return taken

    def take_zone(self, zone_id: str, limit: int) -> list[E]:
        """Take one zone's next entries, even if the zone is paused."""
        queue = self._zones.get(zone_id)
        taken: list[E] = []
        while queue and len(taken) < limit:
            taken.append(queue.popleft())
        if queue is not None and not queue:
            del self._zones[zone_id]
        self._size -= len(taken)
        return taken

    def pause_zone(self, zone_id: str) -> None:
        """Exclude a zone from batches while a waiter waits for its lock."""
        self._paused.add(zone_id)

    def resume_zone(self, zone_id: str) -> None:
        self._paused.discard(zone_id)

    def _take_round_robin(self, limit: int) -> Iterator[E]:
        zones = deque(zone for zone in self._zones if zone not in self._paused)
        remaining = limit
        while zones and remaining:
            zone = zones.popleft()
            queue = self._zones.pop(zone)
            yield queue.popleft()
            remaining -= 1
            if queue:
                # Re-inserted at the end of the dictionary: the next batch starts with the zones this one did not reach.
                self._zones[zone] = queue
                zones.append(zone)

    def _evict(self, entry: E) -> E:
        longest = max(self._zones.values(), key=len)
        own = self._zones.get(entry.zone_id, ())
        if len(own) + 1 >= len(longest):
            return entry
        evicted = longest.pop()
        self._size -= 1
        return evicted


def _position(entry: QueueEntry) -> int:
    return entry.position
