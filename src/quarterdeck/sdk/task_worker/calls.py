"""The calls of a task worker: claim tasks, give them back, and send the heartbeat of the agent.

Two claims run at once: while the tasks of one are started, the other is in transit. If the agent no longer exists, for
example in a new database, it is registered again.

There is one heartbeat for the agent, at the interval that the server requests. It names all held tasks, and the
response names those to cancel or pause. While the server is unreachable, the held tasks continue and the heartbeat is
retried every second.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

from quarterdeck.sdk.agents import Agents
from quarterdeck.sdk.errors import Fault, NotFound, Problem
from quarterdeck.sdk.task_worker.handlers import HeldTask, Outcome
from quarterdeck.sdk.tasks import Tasks
from quarterdeck.sdk.wait import wait_at_most
from quarterdeck.sdk.work_types import TaskLease, TaskReturn
from quarterdeck.sdk.worker_core.in_flight import InFlight

if sys.platform != "win32":
    import resource

log = logging.getLogger("quarterdeck.sdk.worker")
CLAIM_MAX = 250
CONCURRENT_CLAIMS = 2
NO_AGENT, DRAINING, TERMINATED = "agent_not_found", "agent_draining", "agent_terminated"
HEARTBEAT_RETRY_SECONDS = 1.0
TASK_IDS_MAX = 1_000
"""The maximum number of tasks that one heartbeat can name."""


class TaskSource:
    noun = "tasks"

    def __init__(
        self, tasks: Tasks, agent_id: str, task_types: list[str] | None, register: Callable[[], Awaitable[None]]
    ) -> None:
        self._tasks = tasks
        self._agent_id = agent_id
        self._task_types = task_types
        self._register = register
        self.limit = CLAIM_MAX

    async def prepare(self) -> None:
        """The worker registers its agent before it claims."""

    async def claim(self, claim_id: str, limit: int, wait_seconds: float) -> Sequence[TaskLease]:
        return await self._tasks.claim(
            self._agent_id, claim_id, most=limit, wait_seconds=wait_seconds, task_types=self._task_types
        )

    async def release(self, leases: Sequence[TaskLease]) -> None:
        await self._tasks.release([TaskReturn(lease.id, lease.attempt_token) for lease in leases])

    async def handle_refusal(self, problem: Problem) -> None:
        if not isinstance(problem, NotFound) or problem.code != NO_AGENT:
            raise problem
        log.warning("%s Registering it again.", problem.detail)
        await self._register()


def is_agent_ending(error: BaseException | None) -> bool:
    """Whether the error means that the agent is draining or terminated, which is not a failure of the worker."""
    return isinstance(error, Problem) and error.code in (DRAINING, TERMINATED)


class HeartbeatSender:
    def __init__(self, agents: Agents, in_flight: InFlight[HeldTask, Outcome], agent_id: str) -> None:
        self._agents = agents
        self._in_flight = in_flight
        self._agent_id = agent_id
        self._due = asyncio.Event()
        self._usage = _ProcessUsage()

    async def run(self, interval_seconds: float, register: Callable[[], Awaitable[None]]) -> None:
        """Send heartbeats until cancelled, the first after `interval_seconds`. Raises if the server refuses one."""
        while True:
            await wait_at_most(interval_seconds, self._due)
            self._due.clear()
            try:
                interval_seconds = await self.send()
            except Fault as fault:
                log.warning("cannot send the heartbeat of %s now: %s", self._agent_id, fault.detail)
                interval_seconds = min(interval_seconds, HEARTBEAT_RETRY_SECONDS)
            except NotFound as problem:
                log.warning("%s Registering it again.", problem.detail)
                await register()

    def send_soon(self) -> None:
        """Make the next heartbeat due now."""
        self._due.set()

    async def send(self) -> float:
        """Send one heartbeat. Returns the seconds until the next one is due."""
        memory_mb, cpu_percent = self._usage.measure()
        feedback = await self._agents.heartbeat(
            self._agent_id,
            task_ids=[held.id for held in self._in_flight.held][:TASK_IDS_MAX],
            memory_mb=memory_mb,
            cpu_percent=cpu_percent,
        )
        self._in_flight.cancel(feedback.cancel, "canceled")
        self._in_flight.cancel(feedback.pause, "paused")
        for warning in feedback.warnings:
            log.warning("%s (%s): %s", self._agent_id, warning.task_id or warning.code, warning.detail)
        return feedback.next


class _ProcessUsage:
    """Memory and CPU use of this process."""

    def __init__(self) -> None:
        self._measured_at, self._cpu_seconds = time.monotonic(), time.process_time()

    def measure(self) -> tuple[float | None, float]:
        """Peak memory in MB (None on Windows), and CPU use since the last call in percent of one core."""
        measured_at, cpu_seconds = time.monotonic(), time.process_time()
        cpu_percent = 100 * (cpu_seconds - self._cpu_seconds) / max(measured_at - self._measured_at, 1e-3)
        self._measured_at, self._cpu_seconds = measured_at, cpu_seconds
        if sys.platform == "win32":
            return None, cpu_percent
        # macOS reports bytes, other systems KiB.
        units_per_mb = 1024 * 1024 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / units_per_mb, cpu_percent
