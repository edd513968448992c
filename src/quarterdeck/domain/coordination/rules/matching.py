"""Matches ready tasks with agents.

Tasks are matched in order of rank, across classes. Each gets the least loaded agent that has the required capabilities
and a free slot; among equally loaded agents, the one with the lowest id. So the same tasks and agents always give the
same matches.

Tasks of one class have the same requirements. Sets of agents are therefore integers with one bit per agent, in id
order: one set per class, one per load. A match is the lowest common bit of two sets, so 1,000 agents are compared in
one operation. Loads only increase, so a class never searches below the load at which it last found an agent.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AgentCapacity:
    agent_id: str
    capabilities: frozenset[str]
    slots: int
    """Maximum number of concurrent tasks."""
    held: int
    """Number of tasks that the agent holds now."""
    launcher: str = ""
    """The launcher that starts the agent. Launchers have a limited capacity."""
    task_types: frozenset[str] | None = None
    """Task types that the agent accepts; None means all."""


@dataclass(frozen=True, slots=True)
class ClassQueue:
    """The ready tasks of one class."""

    required_capabilities: frozenset[str]
    ready: Sequence[tuple[int, str]]
    """(rank, task id), sorted"""
    task_type: str = ""


@dataclass(frozen=True, slots=True)
class Match:
    task_id: str
    agent_id: str


def match_tasks(
    queues: Iterable[ClassQueue], agents: Iterable[AgentCapacity], launcher_capacity: Mapping[str, int] | None = None
) -> list[Match]:
    """Return the matches in order of rank. `launcher_capacity` is the number of sessions that each launcher can
    still start; a launcher without an entry has no limit."""
    return _Matcher(agents, launcher_capacity or {}).run([queue for queue in queues if queue.ready])


class _Matcher:
    def __init__(self, agents: Iterable[AgentCapacity], launcher_capacity: Mapping[str, int]) -> None:
        self._agents = sorted((agent for agent in agents if agent.held < agent.slots), key=_by_id)
        self._held = [agent.held for agent in self._agents]
        self._launcher_capacity = dict(launcher_capacity)
        self._all_agents = (1 << len(self._agents)) - 1
        self._by_capability: dict[str, int] = {}
        """Capability → agents that have it."""
        self._by_task_type: dict[str, int] = {}
        """Task type → agents that accept only some types, this one among them."""
        self._any_task_type = 0
        """Agents that accept all task types."""
        self._by_launcher: dict[str, int] = {}
        """Launcher → agents that it starts."""
        self._by_load: dict[float, int] = {}
        """Load → agents with this load and a free slot. `_loads` has the loads in order."""
        for index, agent in enumerate(self._agents):
            for capability in agent.capabilities:
                self._by_capability[capability] = self._by_capability.get(capability, 0) | 1 << index
            if agent.task_types is None:
                self._any_task_type |= 1 << index
            for task_type in agent.task_types or ():
                self._by_task_type[task_type] = self._by_task_type.get(task_type, 0) | 1 << index
            self._by_launcher[agent.launcher] = self._by_launcher.get(agent.launcher, 0) | 1 << index
            load = agent.held / agent.slots
            self._by_load[load] = self._by_load.get(load, 0) | 1 << index
        self._loads = sorted(self._by_load)
        self._available = self._all_agents
        """Agents whose launcher has capacity left."""
        for launcher, remaining in launcher_capacity.items():
            self._exclude_if_full(launcher, remaining)

    def run(self, queues: Sequence[ClassQueue]) -> list[Match]:
        matches: list[Match] = []
        eligible = [self._eligible_agents(queue) for queue in queues]
        min_loads = [0.0] * len(queues)
        heads = [(*queue.ready[0], queue_index, 0) for queue_index, queue in enumerate(queues)]
        heapq.heapify(heads)
        while heads:
            _, task_id, queue_index, task_index = heads[0]
            least_loaded = self._least_loaded(eligible[queue_index], min_loads[queue_index])
            if least_loaded is None:
                # No agent has a slot for this class any more, and none will get one: loads only increase.
                heapq.heappop(heads)
                continue
            agent_index, min_loads[queue_index] = least_loaded
            matches.append(Match(task_id, self._agents[agent_index].agent_id))
            self._assign(agent_index, min_loads[queue_index])
            ready = queues[queue_index].ready
            if task_index + 1 < len(ready):
                heapq.heapreplace(heads, (*ready[task_index + 1], queue_index, task_index + 1))
            else:
                heapq.heappop(heads)
        return matches

    def _eligible_agents(self, queue: ClassQueue) -> int:
        eligible = self._any_task_type | self._by_task_type.get(queue.task_type, 0)
        for capability in queue.required_capabilities:
            eligible &= self._by_capability.get(capability, 0)
        return eligible

    def _least_loaded(self, eligible: int, min_load: float) -> tuple[int, float] | None:
        """Return (agent index, load), or None if no agent of the set is available."""
        eligible &= self._available
        for load in self._loads[bisect_left(self._loads, min_load) :] if eligible else ():
            if candidates := eligible & self._by_load[load]:
                return (candidates & -candidates).bit_length() - 1, load
        return None

    def _assign(self, agent_index: int, load: float) -> None:
        agent, bit = self._agents[agent_index], 1 << agent_index
        self._by_load[load] ^= bit
        if not self._by_load[load]:
            del self._by_load[load]
            del self._loads[bisect_left(self._loads, load)]
        self._held[agent_index] += 1
        if self._held[agent_index] < agent.slots:
            new_load = self._held[agent_index] / agent.slots
            if new_load not in self._by_load:
                insort(self._loads, new_load)
            self._by_load[new_load] = self._by_load.get(new_load, 0) | bit
        if agent.launcher in self._launcher_capacity:
            self._launcher_capacity[agent.launcher] -= 1
            self._exclude_if_full(agent.launcher, self._launcher_capacity[agent.launcher])

    def _exclude_if_full(self, launcher: str, remaining: int) -> None:
        if remaining <= 0:
            self._available &= ~self._by_launcher.get(launcher, 0)


def _by_id(agent: AgentCapacity) -> str:
    return agent.agent_id
