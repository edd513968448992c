"""What Redis shows of the coordinator, and what it says to it. Neither decides anything.

Who coordinates is decided by a lease in the database. It is shown under a key of each zone, for half a minute at a
time; whoever writes something else there changes what is shown, until the next time, and nothing more. While there is
nothing to do nobody holds the lease; then the process that is shown goes on being shown, as the one that would.

A command makes the coordinator look again at once. What it says is not even read: what is due is found in the database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial

from quarterdeck.bus.redis.interfaces import Away
from quarterdeck.bus.redis.key_layout import KeyBoard
from quarterdeck.core.retry import Policy, delay
from quarterdeck.domain.coordination.model import LEASE
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import leases
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.store.interface import StoreError

log = logging.getLogger("quarterdeck.coordinator")
EVERY_SECONDS = 5.0
ZONES_MAX = 500
"""Zones in one exchange."""
PAGES_MAX = 20
"""Exchanges. Of zones beyond them nothing is shown."""
RETRY = Policy(max_attempts=0, base_ms=500, multiplier=2.0, cap_ms=10_000)


class _Loop:
    """Something that goes on by itself, and tries again if it fails."""

    def __init__(self, name: str, once: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._once = once
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._once()
            except Exception as error:
                # So broad because nobody would notice the end of this task; Redis away is one line for all of it.
                failures += 1
                expected = isinstance(error, Away | StoreError)
                if failures == 1 or not expected:
                    log.warning("%s cannot go on: %s", self._name, error, exc_info=not expected)
                await asyncio.sleep(delay(RETRY, attempt=failures, chance=random.random()) / 1000)
                continue
            failures = 0
            await asyncio.sleep(EVERY_SECONDS)


class LockSign(_Loop):
    """Shows who coordinates, of each zone."""

    def __init__(self, everywhere: Engine, board: KeyBoard, own: str) -> None:
        super().__init__("coordinator-lock", self.show)
        self._everywhere = everywhere
        self._board = board
        self._own = own

    async def show(self) -> None:
        holder = await self._everywhere.read(self._holder)
        if holder not in (None, self._own):
            # Whoever it is shows it.
            return
        after = ""
        for _ in range(PAGES_MAX):
            found = await self._everywhere.read(partial(zones.page, after=after, limit=ZONES_MAX))
            living = [zone.id for zone in found if zone.ended_at is None]
            if living:
                await self._board.lock(living, self._own, surely=holder is not None)
            if len(found) < ZONES_MAX:
                return
            after = found[-1].id

    async def _holder(self, tx: Tx) -> str | None:
        """Who holds the lease; None if nobody does."""
        lease = await leases.holder_of(tx, LEASE)
        return lease.holder if lease is not None and lease.expires_at > tx.now else None


class Commands(_Loop):
    """Hears of commands, and has the coordinator look."""

    def __init__(self, board: KeyBoard, wake: Callable[[], None]) -> None:
        super().__init__("coordinator-commands", self.listen)
        self._board = board
        self._wake = wake

    async def listen(self) -> None:
        await self._board.listen(self._wake)
