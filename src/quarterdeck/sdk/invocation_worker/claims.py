"""Taking work: one claim after another, each for as much as there is room for.

While one batch runs the next is waited for. A claim whose outcome is unknown is made again under its own id, which
gives the same leases again, so none is left held by nobody. A server that is away is asked again for as long as the
worker runs.
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

log = logging.getLogger("quarterdeck.sdk.invocation_worker")
WAIT_SECONDS = 30.0
RETRY_POLICY = Policy(max_attempts=0, base_ms=200, cap_ms=15_000)
SUSPENDED = "agent_suspended"
Register = Callable[[], Awaitable[tuple[str, bool]]]
"""Gives the id of the service, and whether it was registered by this: where it is this worker's to register."""


class Claimer:
    def __init__(self, invocations: Invocations, in_flight: InFlight, register: Register) -> None:
        self._invocations = invocations
        self._in_flight = in_flight
        self._register = register
        self._service_id = ""
        self._claim_id: str | None = None
        """Of a claim whose outcome is not known yet."""
        self._failures = 0
        self._is_registered = False
        """Whether the service was there when it was last heard of."""

    async def run(self, add_leases: Callable[[tuple[Lease, ...]], None]) -> None:
        """Until cancelled, or until the server refuses for good."""
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
                # Nothing, and not for lack of patience: this server lets nobody wait, or is about to stop.
                await self._pause()
                continue
            self._failures = 0

    async def release_pending_claim(self) -> None:
        """After `run` was cancelled in the middle of a claim: whatever that was given goes back."""
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
        """Raises it, unless work may be had later."""
        if isinstance(problem, Fault) or (isinstance(problem, Conflict) and problem.code == SUSPENDED):
            log.warning("no work can be taken now: %s", problem.detail)
        elif isinstance(problem, NotFound) and self._is_registered:
            # It went with a session that had registered it. Whoever still serves it may say so.
            log.warning("%s Registering it again.", problem.detail)
            self._service_id, self._is_registered = "", False
        else:
            raise problem
        await self._pause()

    async def _pause(self) -> None:
        self._failures += 1
        await asyncio.sleep(backoff(RETRY_POLICY, attempt=self._failures, jitter=random.random()) / 1000)
