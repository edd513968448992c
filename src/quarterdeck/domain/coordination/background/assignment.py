"""Assigns ready tasks to agents with a launcher and launches them: read, match, submit, launch.

Agents without a launcher claim tasks themselves. A cycle first finds the zones with agents that can be launched, and
only then their ready tasks. So it costs almost nothing on a server whose agents all claim their tasks.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from quarterdeck.core.errors import Problem, Unavailable
from quarterdeck.domain.agents import operations as agents, rules as agent_rules
from quarterdeck.domain.agents.model import Agent
from quarterdeck.domain.coordination.background.launchers.launcher import TaskLauncher
from quarterdeck.domain.coordination.background.launchers.model import LaunchRequest
from quarterdeck.domain.coordination.rules.matching import AgentCapacity, ClassQueue, Match, match_tasks
from quarterdeck.domain.tasks.model.commands import Assign
from quarterdeck.domain.tasks.model.rows import TaskRef
from quarterdeck.domain.tasks.operations import coordinator_queries
from quarterdeck.domain.tasks.operations.batch import SubmitTaskCommand
from quarterdeck.domain.tasks.rules.batch_input import ClassRef, TaskClass
from quarterdeck.engine.leases import LeaseLost
from quarterdeck.engine.transaction import Engine, Transaction

log = logging.getLogger("quarterdeck.coordinator")
ZONES_MAX = 500
"""Maximum number of zones per cycle. The next cycle continues after them."""
AGENTS_MAX = 2_000
ASSIGN_MAX = 500
DEFER_SECONDS = 5.0
"""How long a task is deferred after its assignment was refused, for example because its budget is spent."""
_decode_names = msgspec.json.Decoder(list[str]).decode


class LauncherZone(NamedTuple):
    launcher: str
    zone_id: str


class LaunchCandidates(NamedTuple):
    """Zones with launchable agents and matching ready tasks."""

    launcher_zones: list[LauncherZone]
    classes: dict[ClassRef, TaskClass]


class TaskAssigner:
    def __init__(self, cross_zone_engine: Engine, submit: SubmitTaskCommand, task_launcher: TaskLauncher) -> None:
        self._cross_zone_engine = cross_zone_engine
        self._submit = submit
        self._task_launcher = task_launcher
        self._continue_after = dict.fromkeys(task_launcher.names, "")
        """Launcher → the zone after which the next cycle continues."""
        self._deferred: dict[TaskRef, float] = {}
        """Task → when it may be tried again, on the event loop's clock."""

    async def find_candidates(self, tx: Transaction) -> LaunchCandidates:
        """Find zones to assign tasks in. Runs two statements, or one if no zone has an agent that can be launched."""
        launcher_capacity = self._task_launcher.free_capacity()
        after = {name: self._continue_after[name] for name, remaining in launcher_capacity.items() if remaining > 0}
        launcher_zones = (
            [LauncherZone(*row) for row in await agents.list_launch_zones(tx, after, ZONES_MAX)] if after else []
        )
        if len(launcher_zones) < ZONES_MAX:
            self._continue_after = dict.fromkeys(self._continue_after, "")
        else:
            self._continue_after |= dict(sorted(launcher_zones))
        classes = (
            await coordinator_queries.load_ready_classes(
                tx, {launcher_zone.zone_id for launcher_zone in launcher_zones}
            )
            if launcher_zones
            else {}
        )
        ready_types: dict[str, set[str]] = {}
        for (zone_id, _), task_class in classes.items():
            ready_types.setdefault(zone_id, set()).add(task_class.task_type)
        return LaunchCandidates(
            [launcher_zone for launcher_zone in launcher_zones if self._has_work(launcher_zone, ready_types)], classes
        )

    def _has_work(self, launcher_zone: LauncherZone, ready_types: Mapping[str, set[str]]) -> bool:
        """Whether the zone has ready tasks that the launcher accepts. `ready_types` maps a zone to its task types."""
        ready, accepted = (
            ready_types.get(launcher_zone.zone_id, set()),
            self._task_launcher.task_types(launcher_zone.launcher),
        )
        return bool(ready if accepted is None else ready & accepted)

    async def assign(self, candidates: LaunchCandidates, leader_term: tuple[str, int]) -> int:
        """Assign tasks and start their launches. Returns the number of assigned tasks."""
        self._drop_expired_deferrals()
        free_agents = await self._cross_zone_engine.read(
            lambda tx: agents.list_launchable(tx, candidates.launcher_zones, AGENTS_MAX)
        )
        limits = self._class_limits(candidates.classes, free_agents)
        if not limits:
            return 0
        ready = await self._cross_zone_engine.read(lambda tx: coordinator_queries.load_ready_tasks(tx, limits))
        commands = self._match(candidates.classes, ready, free_agents, leader_term)
        outcomes = check_outcomes(
            await asyncio.gather(*(self._submit(command) for command in commands), return_exceptions=True)
        )
        agents_by_ref = {agent.ref: agent for agent in free_agents}
        assigned_count = 0
        for command, outcome in zip(commands, outcomes, strict=True):
            if isinstance(outcome, Problem):
                log.debug("task %s was not assigned: %r", command.id, outcome)
                self._deferred[command.zone_id, command.id] = asyncio.get_running_loop().time() + DEFER_SECONDS
                continue
            agent = agents_by_ref[command.zone_id, command.agent_id]
            assert agent.launcher is not None
            heartbeat_seconds = agent_rules.next_heartbeat_seconds(agent)
            self._task_launcher.start_launch(
                LaunchRequest(outcome, agent.launcher, heartbeat_seconds, agent.created_at)
            )
            assigned_count += 1
        return assigned_count

    def seconds_until_retry(self) -> float | None:
        """Seconds until a deferred task may be tried again; None if no task is deferred."""
        now = asyncio.get_running_loop().time()
        return max(0.0, min(self._deferred.values()) - now) if self._deferred else None

    def _drop_expired_deferrals(self) -> None:
        now = asyncio.get_running_loop().time()
        self._deferred = {ref: until for ref, until in self._deferred.items() if until > now}

    def _match(
        self,
        classes: Mapping[ClassRef, TaskClass],
        ready: Mapping[ClassRef, Sequence[tuple[int, str]]],
        free_agents: Sequence[Agent],
        leader_term: tuple[str, int],
    ) -> list[Assign]:
        """Match zone by zone. Each zone gets the launcher capacity that the previous zones have not used."""
        launcher_capacity = self._task_launcher.free_capacity()
        launchers = {agent.ref: agent.launcher or "" for agent in free_agents}
        commands: list[Assign] = []
        for zone_id in sorted({zone_id for zone_id, _ in ready}):
            queues = [
                ClassQueue(
                    classes[ref].capabilities,
                    [entry for entry in ready_entries if (zone_id, entry[1]) not in self._deferred],
                    classes[ref].task_type,
                )
                for ref, ready_entries in sorted(ready.items())
                if ref[0] == zone_id
            ]
            agent_capacities = [self._capacity_of(agent) for agent in free_agents if agent.zone_id == zone_id]
            for match in match_tasks(queues, agent_capacities, launcher_capacity)[: ASSIGN_MAX - len(commands)]:
                launcher = launchers[zone_id, match.agent_id]
                launcher_capacity[launcher] -= 1
                commands.append(self._assign_command(zone_id, match, launcher, leader_term))
        return commands

    def _assign_command(self, zone_id: str, match: Match, launcher: str, leader_term: tuple[str, int]) -> Assign:
        return Assign(
            zone_id=zone_id,
            id=match.task_id,
            leader_term=leader_term,
            agent_id=match.agent_id,
            attempt_token=secrets.token_urlsafe(16),
            launch_timeout_ms=self._task_launcher.launch_timeout_ms(launcher),
        )

    def _capacity_of(self, agent: Agent) -> AgentCapacity:
        assert agent.launcher is not None
        return AgentCapacity(
            agent.id,
            frozenset(_decode_names(agent.capabilities)),
            agent.max_concurrent_tasks,
            agent.held,
            agent.launcher,
            self._task_launcher.task_types(agent.launcher),
        )

    def _class_limits(self, classes: Mapping[ClassRef, TaskClass], free_agents: Sequence[Agent]) -> dict[ClassRef, int]:
        """Return how many tasks to read per class: the free slots of matching agents plus the deferred tasks."""
        slots: Counter[tuple[str, frozenset[str], frozenset[str] | None]] = Counter()
        for agent in free_agents:
            capacity = self._capacity_of(agent)
            slots[agent.zone_id, capacity.capabilities, capacity.task_types] += agent_rules.free_slots(agent)
        limits: dict[ClassRef, int] = {}
        for ref, task_class in classes.items():
            limit = sum(
                slot_count
                for (zone_id, capabilities, types), slot_count in slots.items()
                if zone_id == ref[0] and task_class.matches(capabilities, types)
            )
            if limit:
                limits[ref] = min(limit, ASSIGN_MAX) + len(self._deferred)
        return limits


R = TypeVar("R")


def check_outcomes(outcomes: Iterable[R | BaseException]) -> list[R | Problem]:
    """Return the result or refusal of each command. Raise the first error that must end the cycle: a lost lease, an
    unavailable database, or an unexpected exception."""
    results: list[R | Problem] = []
    for outcome in outcomes:
        if isinstance(outcome, BaseException) and (
            isinstance(outcome, LeaseLost | Unavailable) or not isinstance(outcome, Problem)
        ):
            raise outcome
        results.append(outcome)
    return results
