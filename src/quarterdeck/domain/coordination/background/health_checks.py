"""Health of the coordinator and of what it depends on: database, Valkey, gateways.

The route needs no credential, so its cost is limited. Each dependency is probed in the background, by one probe at a
time and at most every 5 seconds. A request waits at most 1 second for a running probe; a dependency that does not
respond by then is reported as down. So additional requests cause no additional probes, and no request hangs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core.clock import iso_or_none
from quarterdeck.domain.coordination.background.metrics import CoordinatorMetrics
from quarterdeck.domain.coordination.model import CoordinatorHealth, CycleView
from quarterdeck.engine.leader_loop import LeaderLoop

log = logging.getLogger("quarterdeck.coordinator")
FRESH_SECONDS = 5.0
"""How long the result of a probe is used."""
PROBE_WAIT_SECONDS = 1.0
NOT_CONFIGURED = "not_configured"
Probe = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class StatusLabels:
    up: str
    down: str


CONNECTED = StatusLabels("connected", "disconnected")
REACHABLE = StatusLabels("reachable", "unreachable")


class HealthCheck:
    """The state of one dependency. It is up if its last probe returned in time and raised nothing."""

    def __init__(self, probe: Probe, labels: StatusLabels) -> None:
        self._probe = probe
        self._labels = labels
        self._probed_at: float | None = None
        self._probe_task: asyncio.Task[None] | None = None
        self._is_up = False

    async def status(self) -> str:
        now = asyncio.get_running_loop().time()
        if self._probe_task is None and (self._probed_at is None or now - self._probed_at >= FRESH_SECONDS):
            self._probed_at = now
            self._probe_task = asyncio.create_task(self._run_probe(), name="health")
            self._probe_task.add_done_callback(self._clear_probe)
        if self._probe_task is not None:
            done, _ = await asyncio.wait({self._probe_task}, timeout=PROBE_WAIT_SECONDS)
            self._is_up = self._is_up and bool(done)
        return self._labels.up if self._is_up else self._labels.down

    async def _run_probe(self) -> None:
        try:
            await self._probe()
            self._is_up = True
        except Exception as error:
            # Any exception means that the dependency is down.
            log.debug("health probe failed: %r", error)
            self._is_up = False

    def _clear_probe(self, task: asyncio.Task[None]) -> None:
        self._probe_task = None

    async def close(self) -> None:
        if self._probe_task is not None:
            self._probe_task.cancel()
            await asyncio.wait({self._probe_task})


class HealthReporter:
    def __init__(
        self,
        leader_loop: LeaderLoop,
        metrics: CoordinatorMetrics,
        database: HealthCheck,
        valkey: HealthCheck | None,
        gateway: HealthCheck | None,
    ) -> None:
        self._leader_loop = leader_loop
        self._metrics = metrics
        self._database = database
        self._valkey = valkey
        self._gateway = gateway

    @property
    def is_active(self) -> bool:
        """Whether this process is the coordinator or ready to take over."""
        return self._leader_loop.is_running and self._leader_loop.error is None

    async def build_view(self) -> CoordinatorHealth:
        database, valkey, gateway = await asyncio.gather(
            self._database.status(), _status_of(self._valkey), _status_of(self._gateway)
        )
        is_healthy = self.is_active and database == CONNECTED.up
        healthy_states = {CONNECTED.up, REACHABLE.up, NOT_CONFIGURED}
        status = "unhealthy" if not is_healthy else "healthy" if {valkey, gateway} <= healthy_states else "degraded"
        cycle = CycleView(self.is_active, iso_or_none(self._metrics.last_cycle_at), self._metrics.cycles)
        return CoordinatorHealth(status, cycle, database, valkey, gateway)

    def start(self) -> None:
        """Nothing to do: the first request starts the probes."""

    async def stop(self) -> None:
        for check in (self._database, self._valkey, self._gateway):
            if check is not None:
                await check.close()


async def _status_of(check: HealthCheck | None) -> str:
    return NOT_CONFIGURED if check is None else await check.status()
