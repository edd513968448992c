"""Claims tasks with two concurrent claims, each for as many tasks as there are free slots.

While the tasks of one claim are being started, the other claim is in transit. A claim with an unknown outcome is
repeated under the same claim id, which returns the same tasks, so no task is lost. While the server is unreachable,
claims are retried for as long as the worker runs. If the agent no longer exists, for example in a new database, it is
registered again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from quarterdeck.core.ids import new_id
from quarterdeck.core.retry import Policy, backoff
from quarterdeck.sdk.errors import Fault, NotFound, Problem, Refusal
from quarterdeck.sdk.task_worker.in_flight import InFlight
from quarterdeck.sdk.tasks import Tasks
from quarterdeck.sdk.work_types import TaskLease, TaskReturn

log = logging.getLogger("quarterdeck.sdk.worker")
WAIT_SECONDS = 30.0
CLAIM_MAX = 250
CONCURRENT_CLAIMS = 2
RETRY_POLICY = Policy(max_attempts=0, base_ms=200, cap_ms=15_000)
NO_AGENT, DRAINING, TERMINATED = "agent_not_found", "agent_draining", "agent_terminated"
AddLeases = Callable[[Sequence[TaskLease]], None]


class Claimer:
    """Makes one claim after another. A worker has `CONCURRENT_CLAIMS` claimers."""

    def __init__(self, tasks: Tasks, in_flight: InFlight, agent_id: str, task_types: list[str] | None) -> None:
        self._tasks = tasks
        self._in_flight = in_flight
        self._agent_id = agent_id
        self._task_types = task_types
        self._claim_id: str | None = None
        """The id of a claim whose outcome is unknown."""
        self._failures = 0

    async def run(self, add_leases: AddLeases, register: Callable[[], Awaitable[None]]) -> None:
        """Claim until cancelled. Raises if the server refuses permanently."""
        while True:
            free_slots = await self._in_flight.wait_for_slots(CLAIM_MAX)
            started_at = asyncio.get_running_loop().time()
            try:
                with self._in_flight.reserve_slots(free_slots):
                    leases = await self._claim(free_slots, WAIT_SECONDS)
            except Fault as fault:
                log.warning("cannot claim tasks now: %s", fault.detail)
                leases = ()
            except NotFound as problem:
                if problem.code != NO_AGENT:
                    raise
                log.warning("%s Registering it again.", problem.detail)
                await register()
                leases = ()
            if leases:
                self._failures = 0
                add_leases(leases)
            elif asyncio.get_running_loop().time() - started_at < min(1.0, WAIT_SECONDS / 2):
                # The claim returned no tasks early: there was a problem, or the server is about to stop.
                await self._pause()

    async def claim_now(self) -> Sequence[TaskLease]:
        """Claim the tasks that are ready now, without waiting."""
        return await self._claim(max(1, self._in_flight.free_slots(CLAIM_MAX)), 0.0)

    async def release_pending_claim(self) -> None:
        """Give back the tasks of the claim that was in transit when `run` was cancelled."""
        if self._claim_id is None:
            return
        leases = await self._claim(1, 0.0)
        if leases:
            await self._tasks.release([TaskReturn(lease.id, lease.attempt_token) for lease in leases])

    async def _claim(self, limit: int, wait_seconds: float) -> Sequence[TaskLease]:
        if self._claim_id is None:
            self._claim_id = new_id()
        try:
            leases = await self._tasks.claim(
                self._agent_id, self._claim_id, most=limit, wait_seconds=wait_seconds, task_types=self._task_types
            )
        except Refusal:
            self._claim_id = None
            raise
        self._claim_id = None
        return leases

    async def _pause(self) -> None:
        self._failures += 1
        await asyncio.sleep(backoff(RETRY_POLICY, attempt=self._failures, jitter=random.random()) / 1000)


def is_agent_ending(error: BaseException | None) -> bool:
    """Whether the error means that the agent is draining or terminated, which is not a failure of the worker."""
    return isinstance(error, Problem) and error.code in (DRAINING, TERMINATED)
