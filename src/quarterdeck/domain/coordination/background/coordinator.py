"""The cycles of the coordinator: find due work, submit commands for it, compute when the next cycle is due.

A cycle reads the due work of all zones by index, up to a limit for each kind of work. Cycles repeat until nothing is
found. If many cycles in a row find the same work, that work is stuck, and the coordinator pauses.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from quarterdeck.core.clock import Millis, system_now
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import AgentResult, DueLivenessCheck, RefreshStatus
from quarterdeck.domain.coordination.background import dependency_cycles
from quarterdeck.domain.coordination.background.assignment import LaunchCandidates, TaskAssigner, check_outcomes
from quarterdeck.domain.coordination.background.dependency_cycles import WaitingTasks
from quarterdeck.domain.coordination.background.launchers.launcher import TaskLauncher
from quarterdeck.domain.coordination.background.metrics import CoordinatorMetrics
from quarterdeck.domain.coordination.model import CoordinationSettings
from quarterdeck.domain.coordination.rules import recovery
from quarterdeck.domain.coordination.rules.recovery import LeaderTerm, TasksToRecover
from quarterdeck.domain.tasks.model.commands import FailForCycle, TaskUpdate
from quarterdeck.domain.tasks.operations import coordinator_queries
from quarterdeck.domain.tasks.operations.batch import SubmitTaskCommand
from quarterdeck.domain.tasks.operations.coordinator_queries import DueTasks
from quarterdeck.domain.tasks.operations.strategies import RankingState, RerankSlice
from quarterdeck.engine.leases import Fence
from quarterdeck.engine.transaction import Engine, Transaction

log = logging.getLogger("quarterdeck.coordinator")
LIMIT = 500
"""Maximum number of tasks of each kind per cycle."""
AGENT_LIMIT = 100
"""Maximum number of agents per cycle. Lower than LIMIT, because all attempts of a stale agent are aborted with it."""
REPEAT_SECONDS, REPEATS_MAX, STUCK_SECONDS = 0.05, 100, 5.0
"""Pause between cycles that find the same work, and the longer pause after REPEATS_MAX of them. A few repeats are
normal: a task with 10,000 dependents takes ten cycles, and each of them finds the same task."""
METRICS_SECONDS = 10.0
"""Minimum time between two counts for the metrics."""
COUNT_MAX = 100_000


@dataclass(frozen=True, slots=True)
class CoordinatorDeps:
    cross_zone_engine: Engine
    submit: SubmitTaskCommand
    refresh_status: Callable[[RefreshStatus], Awaitable[AgentResult]]
    rerank: Callable[[RerankSlice], Awaitable[RankingState]]
    observe_seconds: Callable[[float], None]
    """Records the duration of a cycle."""


@dataclass(frozen=True, slots=True)
class CycleFindings:
    due_tasks: DueTasks
    due_liveness_checks: list[DueLivenessCheck]
    next_agent_check_ms: Millis | None
    candidates: LaunchCandidates
    is_dependency_check_due: bool

    @property
    def to_recover(self) -> TasksToRecover:
        return _to_recover(self.due_tasks)

    @property
    def has_work(self) -> bool:
        return self.has_due_work or bool(self.candidates.launcher_zones) or self.is_dependency_check_due

    @property
    def has_due_work(self) -> bool:
        """Whether agents, tasks or zones are due, not counting assignments and the dependency check."""
        return bool(len(self.to_recover) or self.due_liveness_checks or self.due_tasks.zones_to_rank)

    @property
    def wait_seconds(self) -> list[float]:
        """Seconds until each of the next known due times."""
        return [ms / 1000 for ms in (self.due_tasks.next_due_ms, self.next_agent_check_ms) if ms is not None]


class Coordinator:
    """The work of the coordinator's leader loop (implements `engine.leader_loop.LeaderWork`)."""

    def __init__(
        self,
        deps: CoordinatorDeps,
        task_launcher: TaskLauncher,
        settings: CoordinationSettings,
        metrics: CoordinatorMetrics,
    ) -> None:
        self._deps = deps
        self._assigner = TaskAssigner(deps.cross_zone_engine, deps.submit, task_launcher)
        self._metrics = metrics
        self._dependency_check_seconds = settings.coordinator_cycle_check_ms / 1000
        self._term: int | None = None
        self._dependencies_checked_at: float | None = None
        """When dependency cycles were last searched in all zones."""
        self._dependency_check_position = dependency_cycles.START
        self._counted_at: float | None = None
        self._last_due_work: tuple[TasksToRecover, Sequence[DueLivenessCheck]] | None = None
        self._repeat_count = 0

    async def is_due(self) -> bool | float:
        findings = await self._read_findings()
        self._count_cycle()
        if findings.has_work:
            return True
        return min(findings.wait_seconds, default=False)

    async def run_cycle(self, fence: Fence) -> float | None:
        """Check agents, assign, recover, re-rank, check dependencies. Returns seconds until the next cycle."""
        started_at = time.perf_counter()
        if fence.term != self._term:
            # A new term: the previous leader may have stopped in the middle of a dependency check.
            self._term, self._dependencies_checked_at = fence.term, None
        findings, leader_term = await self._read_findings(), (fence.name, fence.term)
        await self._refresh_agents(findings.due_liveness_checks)
        change_count = (
            await self._assigner.assign(findings.candidates, leader_term) if findings.candidates.launcher_zones else 0
        )
        await self.submit_recovery(findings.to_recover, leader_term)
        await self._rerank_zones(findings.due_tasks.zones_to_rank, leader_term)
        if findings.is_dependency_check_due:
            change_count += await self._check_dependency_cycles(leader_term)
        self._count_cycle()
        self._deps.observe_seconds(time.perf_counter() - started_at)
        return self._seconds_until_next(findings, change_count)

    async def on_stop(self, fence: Fence | None) -> None:
        """Nothing to do: all pending work is stored in rows."""

    def _seconds_until_next(self, findings: CycleFindings, change_count: int) -> float | None:
        due_work = (findings.to_recover, findings.due_liveness_checks)
        self._repeat_count = self._repeat_count + 1 if findings.has_due_work and due_work == self._last_due_work else 0
        self._last_due_work = due_work
        if self._repeat_count >= REPEATS_MAX:
            log.warning("the coordinator keeps finding the same work: %s", due_work)
            return STUCK_SECONDS
        if change_count or findings.has_due_work:
            return REPEAT_SECONDS if self._repeat_count else 0.0
        deferred_seconds = self._assigner.seconds_until_retry()
        return min([*findings.wait_seconds, *([] if deferred_seconds is None else [deferred_seconds])], default=None)

    # -- find ----------------------------------------------------------------------------------------------------

    async def _read_findings(self) -> CycleFindings:
        return await self._deps.cross_zone_engine.read(self._find_work)

    async def _find_work(self, tx: Transaction) -> CycleFindings:
        now = time.monotonic()
        due_tasks = await coordinator_queries.load_due_tasks(tx, LIMIT)
        due_liveness_checks = await agents.list_due_liveness_checks(tx, AGENT_LIMIT)
        next_agent_check_ms = await agents.ms_until_liveness_check(tx)
        candidates = await self._assigner.find_candidates(tx)
        has_interval_passed = (
            self._dependencies_checked_at is None
            or now - self._dependencies_checked_at >= self._dependency_check_seconds
        )
        is_dependency_check_due = has_interval_passed and await coordinator_queries.has_waiting_tasks(tx)
        if self._counted_at is None or now - self._counted_at >= METRICS_SECONDS:
            self._counted_at = now
            self._metrics.stale_agents = await agents.count_stale(tx)
            self._metrics.tasks_pending = await coordinator_queries.count_ready_tasks(tx, COUNT_MAX)
        return CycleFindings(due_tasks, due_liveness_checks, next_agent_check_ms, candidates, is_dependency_check_due)

    def _count_cycle(self) -> None:
        self._metrics.cycles += 1
        self._metrics.last_cycle_at = system_now()

    # -- act -----------------------------------------------------------------------------------------------------

    async def _refresh_agents(self, due_liveness_checks: Sequence[DueLivenessCheck]) -> None:
        commands = [RefreshStatus(zone_id=check.zone_id, agent_id=check.id) for check in due_liveness_checks]
        check_outcomes(await asyncio.gather(*map(self._deps.refresh_status, commands), return_exceptions=True))

    async def submit_recovery(self, to_recover: TasksToRecover, leader_term: LeaderTerm | None) -> None:
        await self._submit_all(recovery.recovery_commands(to_recover, leader_term, random.random))

    async def _rerank_zones(self, zones: Sequence[str], leader_term: LeaderTerm) -> None:
        commands = [RerankSlice(zone_id=zone_id, leader_term=leader_term) for zone_id in zones]
        check_outcomes(await asyncio.gather(*map(self._deps.rerank, commands), return_exceptions=True))

    async def _check_dependency_cycles(self, leader_term: LeaderTerm | None) -> int:
        """Fail tasks in dependency cycles. Returns their number."""
        waiting = await dependency_cycles.load_waiting(self._deps.cross_zone_engine, self._dependency_check_position)
        self._dependencies_checked_at, self._dependency_check_position = time.monotonic(), waiting.stopped_at
        return await self._fail_dependency_cycles(waiting, leader_term)

    async def _fail_dependency_cycles(self, waiting: WaitingTasks, leader_term: LeaderTerm | None) -> int:
        # In a thread: the search among 100,000 tasks would block the event loop.
        commands = await asyncio.to_thread(_dependency_cycle_commands, waiting, leader_term)
        if commands:
            log.error("dependency cycles found: %s", sorted({command.cycle for command in commands})[:10])
        await self._submit_all(commands)
        return len(commands)

    async def _submit_all(self, commands: Sequence[TaskUpdate]) -> None:
        check_outcomes(await asyncio.gather(*map(self._deps.submit, commands), return_exceptions=True))

    # -- on request ----------------------------------------------------------------------------------------------

    async def recover(self, zone_id: str | None) -> tuple[TasksToRecover, int, int]:
        """Run one recovery in one zone or in all. Returns (tasks found, agents checked, tasks in cycles).

        It needs no leader term: each command checks its row again and has the same effect as when the
        coordinator submits it. A recovery of one zone does not change when the other zones are checked for dependency
        cycles.
        """
        to_recover, due_liveness_checks = await self._deps.cross_zone_engine.read(
            partial(_load_recovery, zone_id=zone_id)
        )
        await self._refresh_agents(due_liveness_checks)
        await self.submit_recovery(to_recover, None)
        if zone_id is None:
            return to_recover, len(due_liveness_checks), await self._check_dependency_cycles(None)
        waiting = await dependency_cycles.load_waiting_in_zone(self._deps.cross_zone_engine, zone_id)
        return to_recover, len(due_liveness_checks), await self._fail_dependency_cycles(waiting, None)


async def _load_recovery(tx: Transaction, zone_id: str | None) -> tuple[TasksToRecover, list[DueLivenessCheck]]:
    due_tasks = await coordinator_queries.load_due_tasks(tx, LIMIT, zone_id)
    return _to_recover(due_tasks), await agents.list_due_liveness_checks(tx, AGENT_LIMIT, zone_id)


def _to_recover(due_tasks: DueTasks) -> TasksToRecover:
    return TasksToRecover(due_tasks.timed_out, due_tasks.overdue, due_tasks.due, due_tasks.dependents_pending)


def _dependency_cycle_commands(waiting: WaitingTasks, leader_term: LeaderTerm | None) -> list[FailForCycle]:
    return [
        command
        for zone_id, depends_on in waiting.depends_on.items()
        for command in recovery.dependency_cycle_commands(zone_id, depends_on, leader_term)
    ]
