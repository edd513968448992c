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

from quarterdeck.bus.redis.interfaces import BusUnavailable
from quarterdeck.bus.redis.key_layout import KeyWriter
from quarterdeck.core.retry import Policy, backoff
from quarterdeck.domain.coordination.model import LEASE_NAME
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine import leases
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import StoreError

log = logging.getLogger("quarterdeck.coordinator")
INTERVAL_SECONDS = 5.0
ZONES_MAX = 500
"""Zones in one exchange."""
PAGES_MAX = 20
"""Exchanges. Of zones beyond them nothing is shown."""
RETRY = Policy(max_attempts=0, base_ms=500, multiplier=2.0, cap_ms=10_000)


class _RetryLoop:
    """Something that goes on by itself, and tries again if it fails."""

    def __init__(self, name: str, run_once: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._run_once = run_once
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._run_once()
            except Exception as error:
                # So broad because nobody would notice the end of this task; Redis away is one line for all of it.
                failures += 1
                is_expected = isinstance(error, BusUnavailable | StoreError)
                if failures == 1 or not is_expected:
                    log.warning("%s cannot go on: %s", self._name, error, exc_info=not is_expected)
                await asyncio.sleep(backoff(RETRY, attempt=failures, jitter=random.random()) / 1000)
                continue
            failures = 0
            await asyncio.sleep(INTERVAL_SECONDS)


class LockPublisher(_RetryLoop):
    """Shows who coordinates, of each zone."""

    def __init__(self, cross_zone_engine: Engine, key_writer: KeyWriter, instance_id: str) -> None:
        super().__init__("coordinator-lock", self.publish)
        self._cross_zone_engine = cross_zone_engine
        self._key_writer = key_writer
        self._instance_id = instance_id

    async def publish(self) -> None:
        holder = await self._cross_zone_engine.read(self._holder)
        if holder not in (None, self._instance_id):
            # Whoever it is shows it.
            return
        after = ""
        for _ in range(PAGES_MAX):
            found = await self._cross_zone_engine.read(partial(zones.list_zones, after=after, limit=ZONES_MAX))
            active_zones = [zone.id for zone in found if zone.ended_at is None]
            if active_zones:
                await self._key_writer.show_coordinator(active_zones, self._instance_id, overwrite=holder is not None)
            if len(found) < ZONES_MAX:
                return
            after = found[-1].id

    async def _holder(self, tx: Transaction) -> str | None:
        """Who holds the lease; None if nobody does."""
        lease = await leases.read_holder(tx, LEASE_NAME)
        return lease.holder if lease is not None and lease.expires_at > tx.now else None


class CommandListener(_RetryLoop):
    """Hears of commands, and has the coordinator look."""

    def __init__(self, key_writer: KeyWriter, wake: Callable[[], None]) -> None:
        super().__init__("coordinator-commands", self.listen)
        self._key_writer = key_writer
        self._wake = wake

    async def listen(self) -> None:
        await self._key_writer.listen(self._wake)
