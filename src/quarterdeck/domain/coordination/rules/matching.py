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
class AgentCapacity:
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
class ClassQueue:
    """Tasks of one class that may begin."""

    required_capabilities: frozenset[str]
    ready: Sequence[tuple[int, str]]
    """(turn, task), in this order"""
    task_type: str = ""


@dataclass(frozen=True, slots=True)
class Match:
    task_id: str
    agent_id: str


def match_tasks(
    queues: Iterable[ClassQueue], agents: Iterable[AgentCapacity], launcher_capacity: Mapping[str, int] | None = None
) -> list[Match]:
    """In the order of turns. `room` says how many more each launcher can start; one that is not named there starts any
    number."""
    return _Matcher(agents, launcher_capacity or {}).run([queue for queue in queues if queue.ready])


class _Matcher:
    def __init__(self, agents: Iterable[AgentCapacity], launcher_capacity: Mapping[str, int]) -> None:
        self._agents = sorted((agent for agent in agents if agent.held < agent.slots), key=_by_id)
        self._held = [agent.held for agent in self._agents]
        self._launcher_capacity = dict(launcher_capacity)
        self._all_agents = (1 << len(self._agents)) - 1
        self._by_capability: dict[str, int] = {}
        """Capability → those that have it."""
        self._by_task_type: dict[str, int] = {}
        """Type of tasks → those that do only some types, and this one."""
        self._any_task_type = 0
        self._by_launcher: dict[str, int] = {}
        """Launcher → those that it starts."""
        self._by_load: dict[float, int] = {}
        """Load → those that carry it and have room for more; the loads are in order in `_loads`."""
        for number, agent in enumerate(self._agents):
            for capability in agent.capabilities:
                self._by_capability[capability] = self._by_capability.get(capability, 0) | 1 << number
            if agent.task_types is None:
                self._any_task_type |= 1 << number
            for task_type in agent.task_types or ():
                self._by_task_type[task_type] = self._by_task_type.get(task_type, 0) | 1 << number
            self._by_launcher[agent.launcher] = self._by_launcher.get(agent.launcher, 0) | 1 << number
            load = agent.held / agent.slots
            self._by_load[load] = self._by_load.get(load, 0) | 1 << number
        self._loads = sorted(self._by_load)
        self._available = self._all_agents
        for launcher, remaining in launcher_capacity.items():
            self._close_if_full(launcher, remaining)

    def run(self, queues: Sequence[ClassQueue]) -> list[Match]:
        matches: list[Match] = []
        eligible = [self._eligible_agents(queue) for queue in queues]
        min_loads = [0.0] * len(queues)
        heads = [(*queue.ready[0], number, 0) for number, queue in enumerate(queues)]
        heapq.heapify(heads)
        while heads:
            _, task_id, number, index = heads[0]
            found = self._least_loaded(eligible[number], min_loads[number])
            if found is None:
                # Nobody is left for this class, and nobody will be: loads only grow.
                heapq.heappop(heads)
                continue
            agent, min_loads[number] = found
            matches.append(Match(task_id, self._agents[agent].agent_id))
            self._assign(agent, min_loads[number])
            ready = queues[number].ready
            if index + 1 < len(ready):
                heapq.heapreplace(heads, (*ready[index + 1], number, index + 1))
            else:
                heapq.heappop(heads)
        return matches

    def _eligible_agents(self, queue: ClassQueue) -> int:
        eligible = self._any_task_type | self._by_task_type.get(queue.task_type, 0)
        for capability in queue.required_capabilities:
            eligible &= self._by_capability.get(capability, 0)
        return eligible

    def _least_loaded(self, eligible: int, min_load: float) -> tuple[int, float] | None:
        eligible &= self._available
        for load in self._loads[bisect_left(self._loads, min_load) :] if eligible else ():
            if found := eligible & self._by_load[load]:
                return (found & -found).bit_length() - 1, load
        return None

    def _assign(self, number: int, load: float) -> None:
        capacity, bit = self._agents[number], 1 << number
        self._by_load[load] ^= bit
        if not self._by_load[load]:
            del self._by_load[load]
            del self._loads[bisect_left(self._loads, load)]
        self._held[number] += 1
        if self._held[number] < capacity.slots:
            new_load = self._held[number] / capacity.slots
            if new_load not in self._by_load:
                insort(self._loads, new_load)
            self._by_load[new_load] = self._by_load.get(new_load, 0) | bit
        if capacity.launcher in self._launcher_capacity:
            self._launcher_capacity[capacity.launcher] -= 1
            self._close_if_full(capacity.launcher, self._launcher_capacity[capacity.launcher])

    def _close_if_full(self, launcher: str, remaining: int) -> None:
        if remaining <= 0:
            self._available &= ~self._by_launcher.get(launcher, 0)


def _by_id(agent: AgentCapacity) -> str:
    return agent.agent_id
