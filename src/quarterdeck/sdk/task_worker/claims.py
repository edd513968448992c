"""Taking tasks: two claims at once, each for as much as there is room for.

While what one brought is begun, the other is under way. A claim whose outcome is unknown is made again under its own
id, which gives the same tasks again, so none is left held by nobody. A server that is away is asked again for as long
as the worker runs. An agent that is not there any more (another database, say) is registered again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from quarterdeck.core.ids import new_id
from quarterdeck.core.retry import Policy, delay
from quarterdeck.sdk.errors import Fault, NotFound, Problem, Refusal
from quarterdeck.sdk.task_worker.in_flight import Holdings
from quarterdeck.sdk.tasks import Tasks
from quarterdeck.sdk.work_types import TaskLease, TaskReturn

log = logging.getLogger("quarterdeck.sdk.invocation_worker")
WAIT_SECONDS = 30.0
MOST = 250
CLAIMS = 2
AGAIN = Policy(max_attempts=0, base_ms=200, cap_ms=15_000)
NO_AGENT, DRAINING, TERMINATED = "agent_not_found", "agent_draining", "agent_terminated"
Take = Callable[[Sequence[TaskLease]], None]


class Claimer:
    """One claim after another, of those that may be under way at once."""

    def __init__(self, tasks: Tasks, holdings: Holdings, agent_id: str, wanted: list[str] | None) -> None:
        self._tasks = tasks
        self._holdings = holdings
        self._agent_id = agent_id
        self._wanted = wanted
        self._claim_id: str | None = None
        """Of a claim whose outcome is not known yet."""
        self._failures = 0

    async def run(self, take: Take, register: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled, or until the server refuses for good."""
        while True:
            room = await self._holdings.until_room(MOST)
            began = asyncio.get_running_loop().time()
            try:
                with self._holdings.asking_for(room):
                    leases = await self._claim(room, WAIT_SECONDS)
            except Fault as fault:
                log.warning("no tasks can be taken now: %s", fault.detail)
                leases = ()
            except NotFound as problem:
                if problem.code != NO_AGENT:
                    raise
                log.warning("%s Registering it again.", problem.detail)
                await register()
                leases = ()
            if leases:
                self._failures = 0
                take(leases)
            elif asyncio.get_running_loop().time() - began < min(1.0, WAIT_SECONDS / 2):
                # Nothing, and not for lack of patience: something is wrong, or this server is about to stop.
                await self._pause()

    async def once(self) -> Sequence[TaskLease]:
        """What there is now."""
        return await self._claim(max(1, self._holdings.room(MOST)), 0.0)

    async def give_back(self) -> None:
        """After `run` was cancelled in the middle of a claim: whatever that was given goes back."""
        if self._claim_id is None:
            return
        leases = await self._claim(1, 0.0)
        if leases:
            await self._tasks.release([TaskReturn(lease.id, lease.attempt_token) for lease in leases])

    async def _claim(self, most: int, wait_seconds: float) -> Sequence[TaskLease]:
        if self._claim_id is None:
            self._claim_id = new_id()
        try:
            leases = await self._tasks.claim(
                self._agent_id, self._claim_id, most=most, wait_seconds=wait_seconds, task_types=self._wanted
            )
        except Refusal:
            self._claim_id = None
            raise
        self._claim_id = None
        return leases

    async def _pause(self) -> None:
        self._failures += 1
        await asyncio.sleep(delay(AGAIN, attempt=self._failures, chance=random.random()) / 1000)


def ends_it(wrong: BaseException | None) -> bool:
    """Whether somebody has decided that the agent is to end, or has ended: that is no failure of the worker's."""
    return isinstance(wrong, Problem) and wrong.code in (DRAINING, TERMINATED)
