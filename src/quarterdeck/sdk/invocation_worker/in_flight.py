"""The leases that a worker holds: waiting, running, or ended and not yet reported.

One heartbeat call extends all of them, at intervals of one third of the lease time. Its response names attempts that
were canceled and leases that were lost.

The worker prefetches leases only if they will start soon: while a lease waits here, its deadline approaches and no
other worker can serve it. The mean duration of methods determines how many leases are prefetched. A lease that has
waited for a full heartbeat interval is given back, and its attempt does not count.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from quarterdeck.sdk.errors import Fault
from quarterdeck.sdk.invocation_worker.methods import Context
from quarterdeck.sdk.invocations import Invocations
from quarterdeck.sdk.types import BULK_MAX, Item, Lease, Token

log = logging.getLogger("quarterdeck.sdk.worker")
PREFETCH_SECONDS = 0.25
"""Leases are prefetched only if they are expected to start within this time."""
MEAN_WEIGHT = 0.2
"""Weight of the latest method in the moving average of durations."""
RETRY_SECONDS = 0.5
MIN_HEARTBEAT_SECONDS = 0.05


@dataclass(slots=True, eq=False)
class HeldLease:
    lease: Lease
    context: Context
    task: asyncio.Task[None] | None = None
    has_ended: bool = False
    """The method has ended. The outcome may not be reported yet."""
    is_dropped: bool = False
    """The outcome will not be reported."""
    heartbeat_count: int = 0
    """Heartbeats that were sent while the lease was waiting."""

    @property
    def token(self) -> Token:
        return Token(self.lease.id, self.lease.attempt_token)


@dataclass(slots=True)
class Limits:
    concurrency: int
    prefetch: int


class InFlight:
    def __init__(self, limits: Limits, start: Callable[[HeldLease], Coroutine[None, None, None]]) -> None:
        self._limits = limits
        self._start = start
        self._held: dict[str, HeldLease] = {}
        self._waiting: deque[HeldLease] = deque()
        self._running: set[HeldLease] = set()
        self._mean_seconds: float | None = None
        self._heartbeat_seconds = 0.0
        self._slot_freed = asyncio.Event()
        self._not_empty = asyncio.Event()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def running_count(self) -> int:
        return len(self._running)

    # -- slots and starts --------------------------------------------------------------------------------------------

    def free_slots(self) -> int:
        """How many more invocations may be claimed now."""
        return self._limits.concurrency + self._prefetch_count() - len(self._held)

    async def wait_for_slots(self) -> int:
        while (free_slots := self.free_slots()) <= 0:
            self._slot_freed.clear()
            await self._slot_freed.wait()
        return free_slots

    def add(self, leases: Iterable[HeldLease]) -> None:
        for held in leases:
            if held.lease.attempt_token in self._held:
                continue  # a repeated claim returned it again
            self._held[held.lease.attempt_token] = held
            self._waiting.append(held)
            lease_seconds = (held.lease.lease_expires_at - held.lease.updated_at).total_seconds()
            self._heartbeat_seconds = max(MIN_HEARTBEAT_SECONDS, lease_seconds / 3)
        self._not_empty.set()
        self._start_waiting()

    def mark_ended(self, held: HeldLease, duration_seconds: float) -> None:
        """Record that the method has ended. The lease is held until the outcome is reported."""
        if held.has_ended:
            return
        self._running.discard(held)
        held.has_ended = True
        if not held.is_dropped:
            self._mean_seconds = (
                duration_seconds
                if self._mean_seconds is None
                else self._mean_seconds + MEAN_WEIGHT * (duration_seconds - self._mean_seconds)
            )
        self._start_waiting()
        self._slot_freed.set()

    def remove(self, attempt_token: str) -> None:
        self._held.pop(attempt_token, None)
        self._slot_freed.set()

    def _prefetch_count(self) -> int:
        if self._mean_seconds is None:
            return 0
        startable_count = self._limits.concurrency * PREFETCH_SECONDS / max(self._mean_seconds, 1e-6)
        return min(self._limits.prefetch, int(startable_count))

    def _start_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._running) < self._limits.concurrency:
            held = self._waiting.popleft()
            self._running.add(held)
            held.task = loop.create_task(self._start(held))
            # A callback, not a `finally` in the coroutine: a task cancelled before its first step never enters it.
            held.task.add_done_callback(partial(self._on_task_done, held, loop.time()))

    def _on_task_done(self, held: HeldLease, started_at: float, task: asyncio.Task[None]) -> None:
        self.mark_ended(held, asyncio.get_running_loop().time() - started_at)

    # -- drops -------------------------------------------------------------------------------------------------------

    def drop_waiting(self) -> list[Token]:
        """Drop the leases whose methods have not started. Returns their tokens, so that they can be given back."""
        return self._drop(list(self._waiting))

    def drop_running(self) -> list[Token]:
        """Drop the leases of running methods. Cancels coroutines. Notifies threads, but does not wait for them."""
        return self._drop(list(self._running))

    async def wait_until_none_running(self) -> None:
        while tasks := [held.task for held in self._running if held.task is not None]:
            await asyncio.wait(tasks)

    def _drop(self, dropped: Sequence[HeldLease]) -> list[Token]:
        for held in dropped:
            held.is_dropped = True
            held.context.cancel()
            self._held.pop(held.lease.attempt_token, None)
            if held.task is not None:
                held.task.cancel()
        dropped_set = set(dropped)
        self._waiting = deque(held for held in self._waiting if held not in dropped_set)
        self._slot_freed.set()
        return [held.token for held in dropped]

    # -- heartbeats --------------------------------------------------------------------------------------------------

    async def keep_alive(self, invocations: Invocations) -> None:
        """Extend all held leases until cancelled."""
        pause_seconds = 0.0
        while True:
            if not self._held:
                self._not_empty.clear()
                await self._not_empty.wait()
            await asyncio.sleep(pause_seconds or self._heartbeat_seconds)
            try:
                await self._release_long_waiting(invocations)
                await self._send_heartbeats(invocations)
                pause_seconds = 0.0
            except Fault as fault:
                log.warning("cannot extend %d leases now: %s", len(self._held), fault.detail)
                pause_seconds = min(RETRY_SECONDS, self._heartbeat_seconds)

    async def _release_long_waiting(self, invocations: Invocations) -> None:
        long_waiting = [held for held in self._waiting if held.heartbeat_count > 0]
        for batch in split_batches(self._drop(long_waiting)):
            await invocations.release(batch)

    async def _send_heartbeats(self, invocations: Invocations) -> None:
        for held in self._waiting:
            held.heartbeat_count += 1
        for batch in split_batches([held.token for held in self._held.values()]):
            tokens = {token.id: token.attempt_token for token in batch}
            for item in await invocations.heartbeat(batch):
                held_lease = self._held.get(tokens.get(item.id, ""))
                if held_lease is not None:
                    self._handle_heartbeat_item(held_lease, item)

    def _handle_heartbeat_item(self, held: HeldLease, item: Item) -> None:
        if item.cancel:
            held.context.cancel()
        # If the method has ended, ignore the error: its report may just have been accepted, and settles the attempt.
        if item.error is not None and not item.error.is_temporary and not held.has_ended:
            log.warning("lost the lease of %s: %s", item.id, item.error.detail)
            self._drop([held])


def split_batches(tokens: Sequence[Token]) -> Iterable[Sequence[Token]]:
    return (tokens[start : start + BULK_MAX] for start in range(0, len(tokens), BULK_MAX))
