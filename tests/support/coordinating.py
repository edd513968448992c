"""Coordination as tests of the rooms write it: a coordinator on a keel, whose turns a test takes by hand, and launchers
that start what the test says."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from quarterdeck.core.clock import system_now
from quarterdeck.domain.coordination import coordinator as coordinators, launchers as launching
from quarterdeck.domain.coordination.coordinator import Coordinator
from quarterdeck.domain.coordination.launchers import AgentTokenSpec, TaskLauncher
from quarterdeck.domain.coordination.metrics import CoordinatorMetrics
from quarterdeck.domain.coordination.model import LEASE_NAME, CoordinationSettings, LauncherConfigs
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.model.rows import Task
from quarterdeck.domain.tasks.operations import strategies
from quarterdeck.engine.leases import Fence, Lease
from quarterdeck.engine.outbound_http import ALLOW_ALL, OutboundClient
from quarterdeck.engine.wakeups import Wakeups
from tests.support.agency import Agency
from tests.support.keel import Keel
from tests.support.sealing import NEW, safe_of
from tests.support.working import Working

TURNS_MAX = 50


class Coordinating:
    """One process that coordinates. Several on one database are several of these."""

    def __init__(
        self,
        keel: Keel,
        launchers: LauncherConfigs | None = None,
        environment: dict[str, str] | None = None,
        server: str | None = None,
    ) -> None:
        self.keel = keel
        self.work = Working(keel)
        self.agency = Agency(keel)
        self.wakes = Wakeups()
        self.safe = safe_of(NEW)
        settings = CoordinationSettings(launchers=launchers)
        means = launching.LauncherDeps(
            keel.everywhere,
            self.wakes,
            keel.tasks.submit,
            keel.lanes.add_read_lane("launch-show", tasks.read_tasks).submit,
            self.agency.beats.submit,
            self.safe,
            _token,
            OutboundClient(ALLOW_ALL),
            environment or {},
            server,
        )
        self.pad = TaskLauncher(means, settings, 10.0)
        self.ranks = keel.lanes.add_write_lane("task-rank", strategies.run_batch)
        self.figures = CoordinatorMetrics()
        self.took: list[float] = []
        acts = coordinators.CoordinatorDeps(
            keel.everywhere, keel.tasks.submit, self.agency.looks.submit, self.ranks.submit, self.took.append
        )
        self.coordinator = Coordinator(acts, self.pad, settings, self.figures)
        self.lease = Lease(keel.everywhere, LEASE_NAME, "tester", 60_000)

    async def fence(self) -> Fence:
        held = await self.lease.acquire()
        assert held is not None
        return held

    async def turn(self) -> float | None:
        """One turn, and in how many seconds there is more."""
        return await self.coordinator.run_cycle(await self.fence())

    async def turns(self) -> float | None:
        """Turns until there is nothing to do for now; in how many seconds there is."""
        for _ in range(TURNS_MAX):
            again = await self.turn()
            if again is None or again > coordinators.REPEAT_SECONDS:
                return again
        raise AssertionError(f"after {TURNS_MAX} turns the coordinator still finds something")

    async def task(self, task_id: str) -> Task:
        return (await self.work.show(task_id)).task

    async def told(self, task_id: str) -> list[str]:
        return [event.type for event in await self.keel.log() if event.subject == task_id]

    # -- time, from the side

    def pass_by(self, task_id: str, *columns: str) -> None:
        """Lets the moments that a task waits for have come a while ago."""
        for column in columns:
            self.keel.side.run(
                f"update agent_tasks set {column} = ? where id = ? and {column} is not null",
                system_now() - 60_000,
                task_id,
            )


def _token(mandate: AgentTokenSpec) -> str:
    return f"token of {mandate.agent_id} for {mandate.attempt_token}"


@contextlib.asynccontextmanager
async def coordinating(keel: Keel, launchers: LauncherConfigs) -> AsyncIterator[Coordinating]:
    """With launchers whose processes end with the test."""
    made = Coordinating(keel, launchers)
    made.pad.start()
    try:
        yield made
    finally:
        await made.pad.stop()
