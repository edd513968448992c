"""Keeps attempts alive: one call extends the leases of all held attempts, at intervals of one third of the lease time.

The response names attempts that were canceled and leases that were lost. An attempt that has waited for a full interval
without starting is given back and does not count: while it waits here, its deadline approaches and no other worker can
run it. Task attempts have no leases: their agent's heartbeat keeps them alive (`task_worker.calls`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from quarterdeck.sdk.errors import Fault
from quarterdeck.sdk.type_mixins import BULK_MAX
from quarterdeck.sdk.types import Item
from quarterdeck.sdk.worker_core.in_flight import HeldAttempt, InFlight

log = logging.getLogger("quarterdeck.sdk.worker")
H = TypeVar("H", bound=HeldAttempt)
R = TypeVar("R")
T = TypeVar("T")
RETRY_SECONDS = 0.5
MIN_HEARTBEAT_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class LeaseCalls(Generic[H]):
    extend: Callable[[Sequence[H]], Awaitable[Sequence[Item]]]
    release: Callable[[Sequence[H]], Awaitable[object]]


class LeaseKeeper(Generic[H, R]):
    def __init__(self, in_flight: InFlight[H, R], calls: LeaseCalls[H]) -> None:
        self._in_flight: InFlight[H, R] = in_flight
        self._calls: LeaseCalls[H] = calls
        self._interval_seconds = MIN_HEARTBEAT_SECONDS
        self._has_waited: set[H] = set()
        """Attempts that were already waiting at the last heartbeat."""

    def set_lease_seconds(self, seconds: float) -> None:
        self._interval_seconds = max(MIN_HEARTBEAT_SECONDS, seconds / 3)

    async def run(self) -> None:
        """Extend all held leases until cancelled."""
        pause_seconds = 0.0
        while True:
            await self._in_flight.wait_until_held()
            await asyncio.sleep(pause_seconds or self._interval_seconds)
            try:
                await self._release_long_waiting()
                await self.extend_leases()
                pause_seconds = 0.0
            except Fault as fault:
                log.warning("cannot extend %d leases now: %s", len(self._in_flight), fault.detail)
                pause_seconds = min(RETRY_SECONDS, self._interval_seconds)

    async def _release_long_waiting(self) -> None:
        long_waiting = [held for held in self._in_flight.waiting if held in self._has_waited]
        for batch in split_batches(self._in_flight.drop(long_waiting)):
            await self._calls.release(batch)

    async def extend_leases(self) -> None:
        self._has_waited = set(self._in_flight.waiting)
        for batch in split_batches(self._in_flight.held):
            by_id = {held.id: held for held in batch}
            for item in await self._calls.extend(batch):
                if item.id in by_id and self._in_flight.is_held(by_id[item.id]):
                    self._handle_item(by_id[item.id], item)

    def _handle_item(self, held: H, item: Item) -> None:
        if item.cancel:
            held.cancel("canceled")
        # If the attempt has ended, ignore the error: its report may just have been accepted, and settles the attempt.
        if item.error is not None and not item.error.is_temporary and not held.has_ended:
            log.warning("lost the lease of %s: %s", item.id, item.error.detail)
            self._in_flight.drop([held])


def split_batches(items: Sequence[T]) -> Iterable[Sequence[T]]:
    return (items[start : start + BULK_MAX] for start in range(0, len(items), BULK_MAX))
