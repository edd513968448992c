"""Claims invocations, one claim after another, each for as many invocations as there are free slots.

The worker claims the next batch while the current one is running. A claim with an unknown outcome is repeated under the
same claim id, which returns the same leases, so no lease is lost. While the server is unreachable, claims are retried
for as long as the worker runs.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from quarterdeck.core.ids import new_id
from quarterdeck.core.retry import Policy, backoff
from quarterdeck.sdk.errors import Conflict, Fault, NotFound, Problem, Refusal
from quarterdeck.sdk.invocation_worker.in_flight import InFlight
from quarterdeck.sdk.invocations import Invocations
from quarterdeck.sdk.types import BULK_MAX, Lease, Token

log = logging.getLogger("quarterdeck.sdk.worker")
WAIT_SECONDS = 30.0
RETRY_POLICY = Policy(max_attempts=0, base_ms=200, cap_ms=15_000)
SUSPENDED = "agent_suspended"
Register = Callable[[], Awaitable[tuple[str, bool]]]
"""Returns the service's id, and whether this worker registered it. False if the worker was given a `Service`."""


class Claimer:
    def __init__(self, invocations: Invocations, in_flight: InFlight, register: Register) -> None:
        self._invocations = invocations
        self._in_flight = in_flight
        self._register = register
        self._service_id = ""
        self._claim_id: str | None = None
        """The id of a claim whose outcome is unknown."""
        self._failures = 0
        self._is_registered = False
        """Whether the service is known to exist: this worker registered it, or a claim has succeeded."""

    async def run(self, add_leases: Callable[[tuple[Lease, ...]], None]) -> None:
        """Claim until cancelled. Raises if the server refuses permanently."""
        while True:
            free_slots = await self._in_flight.wait_for_slots()
            started_at = asyncio.get_running_loop().time()
            try:
                if not self._service_id:
                    self._service_id, self._is_registered = await self._register()
                leases = await self._claim(min(free_slots, BULK_MAX), WAIT_SECONDS)
            except Problem as problem:
                await self._handle_problem(problem)
                continue
            self._is_registered = True
            if leases:
                add_leases(leases)
            elif asyncio.get_running_loop().time() - started_at < min(1.0, WAIT_SECONDS / 2):
                # The server returned no leases early: it does not hold this long poll, or it is about to stop.
                await self._pause()
                continue
            self._failures = 0

    async def release_pending_claim(self) -> None:
        """Give back the leases of the claim that was in transit when `run` was cancelled."""
        if self._claim_id is None or not self._service_id:
            return
        leases = await self._claim(1, 0.0)
        if leases:
            await self._invocations.release([Token(lease.id, lease.attempt_token) for lease in leases])

    async def _claim(self, limit: int, wait_seconds: float) -> tuple[Lease, ...]:
        if self._claim_id is None:
            self._claim_id = new_id()
        try:
            leases = await self._invocations.claim(
                self._service_id, self._claim_id, most=limit, wait_seconds=wait_seconds
            )
        except Refusal:
            self._claim_id = None
            raise
        self._claim_id = None
        return leases

    async def _handle_problem(self, problem: Problem) -> None:
        """Raise the problem unless a later claim may succeed."""
        if isinstance(problem, Fault) or (isinstance(problem, Conflict) and problem.code == SUSPENDED):
            log.warning("cannot claim invocations now: %s", problem.detail)
        elif isinstance(problem, NotFound) and self._is_registered:
            # The service was unregistered, for example because the session in its `Offer` ended.
            log.warning("%s Registering it again.", problem.detail)
            self._service_id, self._is_registered = "", False
        else:
            raise problem
        await self._pause()

    async def _pause(self) -> None:
        self._failures += 1
        await asyncio.sleep(backoff(RETRY_POLICY, attempt=self._failures, jitter=random.random()) / 1000)
