"""Which task goes to which agent.

Tasks are taken in the order of their turns, whatever their class; each goes to the least loaded of the agents that have
what it asks for and room for one more, and of equals to the one whose id comes first. So the same tasks and agents give
the same matches, whoever computes them.

Tasks of one class ask the same: what suits one suits all. So sets of agents are numbers with a bit for each agent, in
the order of their ids: those that suit a class, and those that carry a certain load. A match is the lowest bit of two
such numbers, and what a thousand agents can do is compared in one step. Loads only grow, so each class need never look
below the load at which it last found somebody.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Seat:
    """An agent that tasks can be given to, as far as that matters here."""

    agent_id: str
    capabilities: frozenset[str]
    slots: int
    """How many tasks it may hold at once."""
    held: int
    """And holds already."""
    launcher: str = ""
    """By what it is started: what can start only so many is full when they are."""
    task_types: frozenset[str] | None = None
    """Of what types its tasks may be; None is of any."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Tasks of one class that may begin."""

    required: frozenset[str]
    waiting: Sequence[tuple[int, str]]
    """(turn, task), in this order"""
    task_type: str = ""


@dataclass(frozen=True, slots=True)
class Match:
    task_id: str
    agent_id: str


def matched(queues: Iterable[Queue], seats: Iterable[Seat], room: Mapping[str, int] | None = None) -> list[Match]:
    """In the order of turns. `room` says how many more each launcher can start; one that is not named there starts any
    number."""
    return _Matching(seats, room or {}).run([queue for queue in queues if queue.waiting])


class _Matching:
    def __init__(self, seats: Iterable[Seat], room: Mapping[str, int]) -> None:
        self._seats = sorted((seat for seat in seats if seat.held < seat.slots), key=_by_id)
        self._held = [seat.held for seat in self._seats]
        self._room = dict(room)
        self._everybody = (1 << len(self._seats)) - 1
        self._can: dict[str, int] = {}
        """Capability → those that have it."""
        self._does: dict[str, int] = {}
        """Type of tasks → those that do only some types, and this one."""
        self._does_any = 0
        self._started_by: dict[str, int] = {}
        """Launcher → those that it starts."""
        self._carrying: dict[float, int] = {}
        """Load → those that carry it and have room for more; the loads are in order in `_loads`."""
        for number, seat in enumerate(self._seats):
            for capability in seat.capabilities:
                self._can[capability] = self._can.get(capability, 0) | 1 << number
            if seat.task_types is None:
                self._does_any |= 1 << number
            for task_type in seat.task_types or ():
                self._does[task_type] = self._does.get(task_type, 0) | 1 << number
            self._started_by[seat.launcher] = self._started_by.get(seat.launcher, 0) | 1 << number
            load = seat.held / seat.slots
            self._carrying[load] = self._carrying.get(load, 0) | 1 << number
        self._loads = sorted(self._carrying)
        self._open = self._everybody
        for launcher, left in room.items():
            self._close(launcher, left)

    def run(self, queues: Sequence[Queue]) -> list[Match]:
        matches: list[Match] = []
        suited = [self._suited(queue) for queue in queues]
        least = [0.0] * len(queues)
        heads = [(*queue.waiting[0], number, 0) for number, queue in enumerate(queues)]
        heapq.heapify(heads)
        while heads:
            _, task_id, number, place = heads[0]
            found = self._least_loaded(suited[number], least[number])
            if found is None:
                # Nobody is left for this class, and nobody will be: loads only grow.
                heapq.heappop(heads)
                continue
            agent, least[number] = found
            matches.append(Match(task_id, self._seats[agent].agent_id))
            self._give(agent, least[number])
            waiting = queues[number].waiting
            if place + 1 < len(waiting):
                heapq.heapreplace(heads, (*waiting[place + 1], number, place + 1))
            else:
                heapq.heappop(heads)
        return matches

    def _suited(self, queue: Queue) -> int:
        suited = self._does_any | self._does.get(queue.task_type, 0)
        for capability in queue.required:
            suited &= self._can.get(capability, 0)
        return suited

    def _least_loaded(self, suited: int, at_least: float) -> tuple[int, float] | None:
        suited &= self._open
        for load in self._loads[bisect_left(self._loads, at_least) :] if suited else ():
            if found := suited & self._carrying[load]:
                return (found & -found).bit_length() - 1, load
        return None

    def _give(self, agent: int, load: float) -> None:
        seat, bit = self._seats[agent], 1 << agent
        self._carrying[load] ^= bit
        if not self._carrying[load]:
            del self._carrying[load]
            del self._loads[bisect_left(self._loads, load)]
        self._held[agent] += 1
        if self._held[agent] < seat.slots:
            heavier = self._held[agent] / seat.slots
            if heavier not in self._carrying:
                insort(self._loads, heavier)
            self._carrying[heavier] = self._carrying.get(heavier, 0) | bit
        if seat.launcher in self._room:
            self._room[seat.launcher] -= 1
            self._close(seat.launcher, self._room[seat.launcher])

    def _close(self, launcher: str, left: int) -> None:
        if left <= 0:
            self._open &= ~self._started_by.get(launcher, 0)


def _by_id(seat: Seat) -> str:
    return seat.agent_id
