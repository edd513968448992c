"""A harness for the coordinator: tests run its cycles one by one and configure its launchers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from quarterdeck.core.clock import system_now
from quarterdeck.domain.coordination.background.coordinator import REPEAT_SECONDS
from quarterdeck.domain.coordination.component import Coordination, CoordinationDeps
from quarterdeck.domain.coordination.model import LEASE_NAME, CoordinationSettings, LauncherConfigs
from quarterdeck.domain.tasks.model.rows import Task
from quarterdeck.engine.leases import Fence, Lease
from quarterdeck.engine.settings import ServerSettings
from tests.support.agents import AgentHarness
from tests.support.runtime import RuntimeHarness, token_text
from tests.support.tasks import TaskHarness

CYCLES_MAX = 50


class CoordinatorHarness:
    """The coordinator of one process. Several processes on one database are several harnesses."""

    def __init__(
        self,
        runtime: RuntimeHarness,
        launchers: LauncherConfigs | None = None,
        environment: dict[str, str] | None = None,
        server_url: str | None = None,
    ) -> None:
        self.runtime = runtime
        self.task_harness = TaskHarness(runtime)
        self.agent_harness = AgentHarness(runtime)
        self.wakeups, self.cipher = runtime.wakeups, runtime.cipher
        shared = runtime.with_settings(
            CoordinationSettings(launchers=launchers), ServerSettings(shutdown_grace_ms=10_000)
        )
        deps = CoordinationDeps(
            runtime.agents, runtime.tasks, runtime.cipher, token_text, environment or {}, server_url
        )
        parts = Coordination(shared, deps, runs_coordinator=True)
        self.coordinator, self.launcher, self.rank_lane = parts.coordinator, parts.launcher, parts.rank_lane
        self.metrics = parts.metrics
        self.lease = Lease(runtime.cross_zone_engine, LEASE_NAME, "tester", 60_000)

    async def acquire_fence(self) -> Fence:
        fence = await self.lease.acquire()
        assert fence is not None
        return fence

    async def run_cycle(self) -> float | None:
        """Run one cycle. Return the seconds until the next is due."""
        return await self.coordinator.run_cycle(await self.acquire_fence())

    async def run_until_idle(self) -> float | None:
        """Run cycles until nothing is due now. Return the seconds until something is."""
        for _ in range(CYCLES_MAX):
            next_seconds = await self.run_cycle()
            if next_seconds is None or next_seconds > REPEAT_SECONDS:
                return next_seconds
        raise AssertionError(f"the coordinator still finds work after {CYCLES_MAX} cycles")

    async def read_task(self, task_id: str) -> Task:
        return (await self.task_harness.read(task_id)).task

    async def event_types(self, task_id: str) -> list[str]:
        return [event.type for event in await self.runtime.read_log() if event.subject == task_id]

    # -- time, set directly in the database

    def expire_columns(self, task_id: str, *columns: str) -> None:
        """Set these time columns of a task to one minute ago, unless they are null."""
        for column in columns:
            self.runtime.database.execute(
                f"update agent_tasks set {column} = ? where id = ? and {column} is not null",
                system_now() - 60_000,
                task_id,
            )


@contextlib.asynccontextmanager
async def start_coordinator(runtime: RuntimeHarness, launchers: LauncherConfigs) -> AsyncIterator[CoordinatorHarness]:
    """Start the launchers. Their processes end with the context."""
    harness = CoordinatorHarness(runtime, launchers)
    harness.launcher.start()
    try:
        yield harness
    finally:
        await harness.launcher.stop()
