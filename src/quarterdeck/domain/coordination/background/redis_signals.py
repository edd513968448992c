"""Publishes the coordinator in Redis, with one key per zone, and listens on a command channel. Redis decides nothing.

A lease in the database decides which process is the coordinator. The key names that process and expires after 30
seconds. If another program writes the key, the key is wrong until the holder of the lease overwrites it, and nothing
else is affected. While there is nothing to do, no process holds the lease, and the key still names the last holder.

A message on the command channel wakes the coordinator. The content of the message is ignored, because the coordinator
finds due work in the database.
"""

from __future__ import annotations

import asyncio
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
from quarterdeck.engine.background import BackgroundLoop
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import StoreError

log = logging.getLogger("quarterdeck.coordinator")
INTERVAL_SECONDS = 5.0
ZONES_MAX = 500
"""Zones per page."""
PAGES_MAX = 20
"""Pages per round. Zones on later pages get no key."""
RETRY = Policy(max_attempts=0, base_ms=500, multiplier=2.0, cap_ms=10_000)


class _RetryLoop(BackgroundLoop):
    """A background task that runs `run_once` at an interval, with a backoff after failures."""

    def __init__(self, name: str, run_once: Callable[[], Awaitable[None]]) -> None:
        super().__init__(name)
        self._run_once = run_once

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._run_once()
            except Exception as error:
                # Any exception: otherwise this task would end unnoticed. An outage of Redis is logged once.
                failures += 1
                is_expected = isinstance(error, BusUnavailable | StoreError)
                if failures == 1 or not is_expected:
                    log.warning("%s failed and will be retried: %s", self.name, error, exc_info=not is_expected)
                await asyncio.sleep(backoff(RETRY, attempt=failures, jitter=random.random()) / 1000)
                continue
            failures = 0
            await asyncio.sleep(INTERVAL_SECONDS)


class CoordinatorKeyPublisher(_RetryLoop):
    """Writes the key that names the coordinator, for each zone."""

    def __init__(self, cross_zone_engine: Engine, key_writer: KeyWriter, instance_id: str) -> None:
        super().__init__("coordinator-lock", self.publish)
        self._cross_zone_engine = cross_zone_engine
        self._key_writer = key_writer
        self._instance_id = instance_id

    async def publish(self) -> None:
        holder = await self._cross_zone_engine.read(self._read_holder)
        if holder not in (None, self._instance_id):
            # The holder writes the keys itself.
            return
        after = ""
        for _ in range(PAGES_MAX):
            page = await self._cross_zone_engine.read(partial(zones.list_zones, after=after, limit=ZONES_MAX))
            active_zone_ids = [zone.id for zone in page if zone.ended_at is None]
            if active_zone_ids:
                await self._key_writer.write_coordinator(
                    active_zone_ids, self._instance_id, overwrite=holder is not None
                )
            if len(page) < ZONES_MAX:
                return
            after = page[-1].id

    async def _read_holder(self, tx: Transaction) -> str | None:
        """Return the process that holds the lease, if any."""
        lease = await leases.read_holder(tx, LEASE_NAME)
        return lease.holder if lease is not None and lease.expires_at > tx.now else None


class CommandListener(_RetryLoop):
    """Listens on the command channel and wakes the coordinator."""

    def __init__(self, key_writer: KeyWriter, wake: Callable[[], None]) -> None:
        super().__init__("coordinator-commands", self.listen)
        self._key_writer = key_writer
        self._wake = wake

    async def listen(self) -> None:
        await self._key_writer.listen_for_commands(self._wake)
