"""Whose turn it is.

Commands wait by zone, each zone in order of arrival. While everything fits into one batch, everything is taken. When
it does not, zones take turns, one command each, so a zone with a thousand commands waiting delays another's one by a
single place. The same holds at the door: when the queue is full, a newcomer whose zone holds less than its share
takes the place of the newest command of the zone that holds most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Entry(Protocol):
    @property
    def zone_id(self) -> str: ...
    @property
    def place(self) -> int: ...


E = TypeVar("E", bound=Entry)


class ZoneQueue(Generic[E]):
    def __init__(self, room: int) -> None:
        self._room = room
        self._zones: dict[str, deque[E]] = {}
        self._held: set[str] = set()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def ready(self) -> bool:
        """Whether anything may be taken now."""
        return any(zone not in self._held for zone in self._zones)

    def put(self, entry: E) -> E | None:
        """Queues an entry. Returns the entry that had to give way: another zone's newest, this one, or None."""
        evicted = None
        if self._size >= self._room:
            evicted = self._give_way(entry)
            if evicted is entry:
                return entry
        self._zones.setdefault(entry.zone_id, deque()).append(entry)
        self._size += 1
        return evicted

    def put_back(self, entries: list[E]) -> None:
        """Returns entries that could not be served, to stand first again. They have been let in: never refused."""
        returned = {zone: self._zones.pop(zone, deque()) for zone in dict.fromkeys(e.zone_id for e in entries)}
        for entry in reversed(entries):
            returned[entry.zone_id].appendleft(entry)
        # The order of this dictionary is the order of turns.
        self._zones = {**returned, **self._zones}
        self._size += len(entries)

    def take(self, most: int) -> list[E]:
        """The next batch, in order of arrival."""
        if self._size <= most and not self._held:
            taken = [entry for waiting in self._zones.values() for entry in waiting]
            self._zones.clear()
            self._size = 0
        else:
            taken = list(self._by_turns(most))
            self._size -= len(taken)
        taken.sort(key=_place)
        return taken

    def take_zone(self, zone_id: str, most: int) -> list[E]:
        """One zone's next entries, held or not."""
        waiting = self._zones.get(zone_id)
        taken: list[E] = []
        while waiting and len(taken) < most:
            taken.append(waiting.popleft())
        if waiting is not None and not waiting:
            del self._zones[zone_id]
        self._size -= len(taken)
        return taken

    def hold(self, zone_id: str) -> None:
        """Keeps a zone out of batches while somebody waits for its lock."""
        self._held.add(zone_id)

    def release(self, zone_id: str) -> None:
        self._held.discard(zone_id)

    def _by_turns(self, most: int) -> Iterator[E]:
        turns = deque(zone for zone in self._zones if zone not in self._held)
        left = most
        while turns and left:
            zone = turns.popleft()
            waiting = self._zones.pop(zone)
            yield waiting.popleft()
            left -= 1
            if waiting:
                # Back in at the end of the dictionary: the next batch begins with the zones this one did not reach.
                self._zones[zone] = waiting
                turns.append(zone)

    def _give_way(self, newcomer: E) -> E:
        longest = max(self._zones.values(), key=len)
        own = self._zones.get(newcomer.zone_id, ())
        if len(own) + 1 >= len(longest):
            return newcomer
        evicted = longest.pop()
        self._size -= 1
        return evicted


def _place(entry: Entry) -> int:
    return entry.place
