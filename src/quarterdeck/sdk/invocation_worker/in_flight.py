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
AHEAD_SECONDS = 0.25
"""How soon what is taken ahead should begin."""
SHARE = 0.2
"""Of the last method in how long methods take."""
RETRY_SECONDS = 0.5
LEAST_BEAT_SECONDS = 0.05


@dataclass(slots=True, eq=False)
class Held:
    """One lease."""

    lease: Lease
    context: Context
    task: asyncio.Task[None] | None = None
    has_ended: bool = False
    """Its method has; its outcome is yet to be told."""
    is_dropped: bool = False
    """Nobody wants to know what becomes of it."""
    beats: int = 0
    """How often it was prolonged before it began."""

    @property
    def token(self) -> Token:
        return Token(self.lease.id, self.lease.attempt_token)


@dataclass(slots=True)
class Limits:
    concurrency: int
    prefetch: int


class Holdings:
    def __init__(self, limits: Limits, begin: Callable[[Held], Coroutine[None, None, None]]) -> None:
        self._limits = limits
        self._begin = begin
        self._held: dict[str, Held] = {}
        self._waiting: deque[Held] = deque()
        self._running: set[Held] = set()
        self._mean: float | None = None
        self._beat_seconds = 0.0
        self._freed = asyncio.Event()
        self._some = asyncio.Event()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def running(self) -> int:
        return len(self._running)

    # -- taking and beginning ----------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many more may be taken now."""
        return self._limits.concurrency + self._ahead() - len(self._held)

    async def until_room(self) -> int:
        while (room := self.room()) <= 0:
            self._freed.clear()
            await self._freed.wait()
        return room

    def take(self, held: Iterable[Held]) -> None:
        for each in held:
            if each.lease.attempt_token in self._held:
                continue  # given once more by a claim that was made once more
            self._held[each.lease.attempt_token] = each
            self._waiting.append(each)
            lasts = (each.lease.lease_expires_at - each.lease.updated_at).total_seconds()
            self._beat_seconds = max(LEAST_BEAT_SECONDS, lasts / 3)
        self._some.set()
        self._fill()

    def ended(self, held: Held, seconds: float) -> None:
        """Its method has returned; its lease is held until the outcome is told."""
        if held.has_ended:
            return
        self._running.discard(held)
        held.has_ended = True
        if not held.is_dropped:
            self._mean = seconds if self._mean is None else self._mean + SHARE * (seconds - self._mean)
        self._fill()
        self._freed.set()

    def forget(self, attempt_token: str) -> None:
        self._held.pop(attempt_token, None)
        self._freed.set()

    def _ahead(self) -> int:
        if self._mean is None:
            return 0
        soon = self._limits.concurrency * AHEAD_SECONDS / max(self._mean, 1e-6)
        return min(self._limits.prefetch, int(soon))

    def _fill(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._running) < self._limits.concurrency:
            held = self._waiting.popleft()
            self._running.add(held)
            held.task = loop.create_task(self._begin(held))
            # Heard of by the task and not within it: one that is dropped before its first step never runs at all.
            held.task.add_done_callback(partial(self._done, held, loop.time()))

    def _done(self, held: Held, began: float, task: asyncio.Task[None]) -> None:
        self.ended(held, asyncio.get_running_loop().time() - began)

    # -- letting go --------------------------------------------------------------------------------------------------

    def drop_waiting(self) -> list[Token]:
        """What has not begun, to be given back."""
        return self._drop(list(self._waiting))

    def drop_running(self) -> list[Token]:
        """What has not ended. Coroutines are canceled; threads are told, and nobody waits for them."""
        return self._drop(list(self._running))

    async def until_none_runs(self) -> None:
        while tasks := [held.task for held in self._running if held.task is not None]:
            await asyncio.wait(tasks)

    def _drop(self, dropped: Sequence[Held]) -> list[Token]:
        for held in dropped:
            held.is_dropped = True
            held.context.cancel()
            self._held.pop(held.lease.attempt_token, None)
            if held.task is not None:
                held.task.cancel()
        gone = set(dropped)
        self._waiting = deque(held for held in self._waiting if held not in gone)
        self._freed.set()
        return [held.token for held in dropped]

    # -- keeping alive -----------------------------------------------------------------------------------------------

    async def keep_alive(self, invocations: Invocations) -> None:
        """Beats for everything that is held, until cancelled."""
        pause = 0.0
        while True:
            if not self._held:
                self._some.clear()
                await self._some.wait()
            await asyncio.sleep(pause or self._beat_seconds)
            try:
                await self._give_back_stale(invocations)
                await self._beat(invocations)
                pause = 0.0
            except Fault as fault:
                log.warning("%d leases cannot be prolonged now: %s", len(self._held), fault.detail)
                pause = min(RETRY_SECONDS, self._beat_seconds)

    async def _give_back_stale(self, invocations: Invocations) -> None:
        late = [held for held in self._waiting if held.beats > 0]
        for part in parts(self._drop(late)):
            await invocations.release(part)

    async def _beat(self, invocations: Invocations) -> None:
        for held in self._waiting:
            held.beats += 1
        for part in parts([held.token for held in self._held.values()]):
            tokens = {token.id: token.attempt_token for token in part}
            for item in await invocations.heartbeat(part):
                found = self._held.get(tokens.get(item.id, ""))
                if found is not None:
                    self._heard(found, item)

    def _heard(self, held: Held, item: Item) -> None:
        if item.cancel:
            held.context.cancel()
        # Of one that has ended the report will say whether it counts: it may have been told in this very moment.
        if item.error is not None and not item.error.passes and not held.has_ended:
            log.warning("the lease of %s is lost: %s", item.id, item.error.detail)
            self._drop([held])


def parts(tokens: Sequence[Token]) -> Iterable[Sequence[Token]]:
    return (tokens[at : at + BULK_MAX] for at in range(0, len(tokens), BULK_MAX))
