"""Claims attempts, each claim for as many as there are free slots.

The worker claims the next batch while the current one is running. A claim with an unknown outcome is repeated under the
same claim id, which returns the same leases, so no lease is lost. While the server is unreachable, claims are retried
for as long as the worker runs.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Generic, Protocol, TypeVar

from quarterdeck.core.ids import new_id
from quarterdeck.core.retry import Policy, backoff
from quarterdeck.sdk.errors import Fault, Problem, Refusal

log = logging.getLogger("quarterdeck.sdk.worker")
L = TypeVar("L")
WAIT_SECONDS = 30.0
RETRY_POLICY = Policy(max_attempts=0, base_ms=200, cap_ms=15_000)


class Slots(Protocol):
    """The free places of a worker."""

    def free_slots(self, limit: int) -> int: ...

    async def wait_for_slots(self, limit: int) -> int: ...

    def reserve_slots(self, count: int) -> AbstractContextManager[None]: ...


class ClaimSource(Protocol[L]):
    """The calls that claim and give back one kind of work."""

    noun: str
    limit: int
    """The maximum number of attempts in one claim."""

    async def prepare(self) -> None:
        """Called before each claim."""

    async def claim(self, claim_id: str, limit: int, wait_seconds: float) -> Sequence[L]: ...

    async def release(self, leases: Sequence[L]) -> None: ...

    async def handle_refusal(self, problem: Problem) -> None:
        """Raise the problem unless a later claim may succeed."""


class Claimer(Generic[L]):
    """Makes one claim after another."""

    def __init__(self, source: ClaimSource[L], slots: Slots) -> None:
        self._source: ClaimSource[L] = source
        self._slots = slots
        self._claim_id: str | None = None
        """The id of a claim whose outcome is unknown."""
        self._failures = 0

    async def run(self, add_leases: Callable[[Sequence[L]], None]) -> None:
        """Claim until cancelled. Raises if the server refuses permanently."""
        while True:
            free_slots = await self._slots.wait_for_slots(self._source.limit)
            waited_at = asyncio.get_running_loop().time() + min(1.0, WAIT_SECONDS / 2)
            leases: Sequence[L] = ()
            try:
                with self._slots.reserve_slots(free_slots):
                    await self._source.prepare()
                    leases = await self._claim(free_slots, WAIT_SECONDS)
                if leases or asyncio.get_running_loop().time() >= waited_at:
                    self._failures = 0
            except Fault as fault:
                log.warning("cannot claim %s now: %s", self._source.noun, fault.detail)
            except Problem as problem:
                await self._source.handle_refusal(problem)
            if leases:
                add_leases(leases)
            elif asyncio.get_running_loop().time() < waited_at:
                # The claim returned nothing early: there was a problem, or the server is about to stop.
                await self._pause()

    async def claim_now(self) -> Sequence[L]:
        """Claim what is ready now, without waiting."""
        return await self._claim(max(1, self._slots.free_slots(self._source.limit)), 0.0)

    async def release_pending_claim(self) -> None:
        """Give back the leases of the claim that was in transit when `run` was cancelled."""
        if self._claim_id is not None and (leases := await self._claim(1, 0.0)):
            await self._source.release(leases)

    async def _claim(self, limit: int, wait_seconds: float) -> Sequence[L]:
        if self._claim_id is None:
            self._claim_id = new_id()
        try:
            leases = await self._source.claim(self._claim_id, limit, wait_seconds)
        except Refusal:
            self._claim_id = None
            raise
        self._claim_id = None
        return leases

    async def _pause(self) -> None:
        self._failures += 1
        await asyncio.sleep(backoff(RETRY_POLICY, attempt=self._failures, jitter=random.random()) / 1000)
