"""What a worker holds: leases that wait for their turn, that run, and whose outcome is not told yet.

All of them are kept alive by one heartbeat for all, a third of a lease after the last. Its answer says which attempts
are not wanted any more, and which leases are lost.

Leases are taken ahead only as far as they are begun soon: a lease that waits here runs against its deadline, and keeps
others from serving it. How far that is follows from how long methods take. One that has waited for a whole beat all the
same is given back, without counting.
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

log = logging.getLogger("quarterdeck.sdk.invocation_worker")
PREFETCH_SECONDS = 0.25
"""How soon what is taken ahead should begin."""
MEAN_WEIGHT = 0.2
"""Of the last method in how long methods take."""
RETRY_SECONDS = 0.5
MIN_HEARTBEAT_SECONDS = 0.05


@dataclass(slots=True, eq=False)
class HeldLease:
    """One lease."""

    lease: Lease
    context: Context
    task: asyncio.Task[None] | None = None
    has_ended: bool = False
    """Its method has; its outcome is yet to be told."""
    is_dropped: bool = False
    """Nobody wants to know what becomes of it."""
    heartbeats: int = 0
    """How often it was prolonged before it began."""

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
    def running(self) -> int:
        return len(self._running)

    # -- taking and beginning ----------------------------------------------------------------------------------------

    def free_slots(self) -> int:
        """How many more may be taken now."""
        return self._limits.concurrency + self._prefetch_count() - len(self._held)

    async def wait_for_slots(self) -> int:
        while (free_slots := self.free_slots()) <= 0:
            self._slot_freed.clear()
            await self._slot_freed.wait()
        return free_slots

    def add(self, held: Iterable[HeldLease]) -> None:
        for entry in held:
            if entry.lease.attempt_token in self._held:
                continue  # given once more by a claim that was made once more
            self._held[entry.lease.attempt_token] = entry
            self._waiting.append(entry)
            lease_seconds = (entry.lease.lease_expires_at - entry.lease.updated_at).total_seconds()
            self._heartbeat_seconds = max(MIN_HEARTBEAT_SECONDS, lease_seconds / 3)
        self._not_empty.set()
        self._start_waiting()

    def mark_ended(self, held: HeldLease, seconds: float) -> None:
        """Its method has returned; its lease is held until the outcome is told."""
        if held.has_ended:
            return
        self._running.discard(held)
        held.has_ended = True
        if not held.is_dropped:
            self._mean_seconds = (
                seconds
                if self._mean_seconds is None
                else self._mean_seconds + MEAN_WEIGHT * (seconds - self._mean_seconds)
            )
        self._start_waiting()
        self._slot_freed.set()

    def remove(self, attempt_token: str) -> None:
        self._held.pop(attempt_token, None)
        self._slot_freed.set()

    def _prefetch_count(self) -> int:
        if self._mean_seconds is None:
            return 0
        startable = self._limits.concurrency * PREFETCH_SECONDS / max(self._mean_seconds, 1e-6)
        return min(self._limits.prefetch, int(startable))

    def _start_waiting(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._running) < self._limits.concurrency:
            held = self._waiting.popleft()
            self._running.add(held)
            held.task = loop.create_task(self._start(held))
            # Heard of by the task and not within it: one that is dropped before its first step never runs at all.
            held.task.add_done_callback(partial(self._on_task_done, held, loop.time()))

    def _on_task_done(self, held: HeldLease, started_at: float, task: asyncio.Task[None]) -> None:
        self.mark_ended(held, asyncio.get_running_loop().time() - started_at)

    # -- letting go --------------------------------------------------------------------------------------------------

    def drop_waiting(self) -> list[Token]:
        """What has not begun, to be given back."""
        return self._drop(list(self._waiting))

    def drop_running(self) -> list[Token]:
        """What has not ended. Coroutines are canceled; threads are told, and nobody waits for them."""
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

    # -- keeping alive -----------------------------------------------------------------------------------------------

    async def keep_alive(self, invocations: Invocations) -> None:
        """Beats for everything that is held, until cancelled."""
        pause = 0.0
        while True:
            if not self._held:
                self._not_empty.clear()
                await self._not_empty.wait()
            await asyncio.sleep(pause or self._heartbeat_seconds)
            try:
                await self._release_stale(invocations)
                await self._send_heartbeats(invocations)
                pause = 0.0
            except Fault as fault:
                log.warning("%d leases cannot be prolonged now: %s", len(self._held), fault.detail)
                pause = min(RETRY_SECONDS, self._heartbeat_seconds)

    async def _release_stale(self, invocations: Invocations) -> None:
        stale = [held for held in self._waiting if held.heartbeats > 0]
        for batch in split_batches(self._drop(stale)):
            await invocations.release(batch)

    async def _send_heartbeats(self, invocations: Invocations) -> None:
        for held in self._waiting:
            held.heartbeats += 1
        for batch in split_batches([held.token for held in self._held.values()]):
            tokens = {token.id: token.attempt_token for token in batch}
            for item in await invocations.heartbeat(batch):
                found = self._held.get(tokens.get(item.id, ""))
                if found is not None:
                    self._handle_heartbeat_item(found, item)

    def _handle_heartbeat_item(self, held: HeldLease, item: Item) -> None:
        if item.cancel:
            held.context.cancel()
        # Of one that has ended the report will say whether it counts: it may have been told in this very moment.
        if item.error is not None and not item.error.passes and not held.has_ended:
            log.warning("the lease of %s is lost: %s", item.id, item.error.detail)
            self._drop([held])


def split_batches(tokens: Sequence[Token]) -> Iterable[Sequence[Token]]:
    return (tokens[start : start + BULK_MAX] for start in range(0, len(tokens), BULK_MAX))
