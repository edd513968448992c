"""Keeps the slot counters in Redis in sync with the database. A counter is a zone's number of live child sessions.

The counters are a hint for other programs. The server does not use them to admit sessions.

Writers never increment a counter, because it would drift with every lost update. They write the database's value
together with its position in the log; one statement reads both. Of two writers, the one with the later position wins,
regardless of the order in which they write. Shortly after a commit, the process writes the zones that the commit has
changed (`SlotMirror`).

A comparison (`SlotReconciler`) finds all errors: a process was killed between commit and write, Redis was unreachable
or wiped, someone else wrote a value, the database was restored. Redis is read first and then the database. So a
position in Redis that the log has not reached cannot come from this log, and is replaced.

A repair is counted only if Redis was wrong. It is not counted if a zone has just changed and its writer is about to
write it, or if sessions have expired, for which there is no event until a sweep runs.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import NamedTuple, Protocol

from quarterdeck.bus.redis.interfaces import BusUnavailable, SlotCounter, SlotWriter, StoredSlotCounter
from quarterdeck.core.retry import Policy, backoff
from quarterdeck.engine.background import BackgroundLoop
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.queries import Q
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction

log = logging.getLogger("quarterdeck.slots")
SLOT_EVENT_TYPES = ("session.spawn", "session.terminate", "cascade.begin", "zone.create", "zone.change", "zone.recount")
"""Events that may change the slots of a zone, or their limit."""
SLOTS = "slots"
ZONES_MAX = 500
"""Maximum zones per read or write."""
PAGES_MAX = 40
"""Maximum pages per pass. The next pass continues after them."""
GATHER_SECONDS = 0.02
WRITE_GRACE_MS = 2_000
"""How long a process may take to write a zone after its commit."""
RECENT_POSITIONS = 50_000
"""How many of the newest positions are searched for a recent commit."""
RETRY = Policy(max_attempts=0, base_ms=100, multiplier=2.0, cap_ms=2_000)


class SlotUsage(NamedTuple):
    """The slots of a zone in the database."""

    zone_id: str
    live: int
    """Live child sessions, including expired ones that no sweep has terminated yet."""
    expired: int
    limit: int
    pos: int

    @property
    def taken(self) -> int:
        return min(max(0, self.live - self.expired), self.limit)

    def to_counter(self, replaces_pos: str | None = None) -> SlotCounter:
        return SlotCounter(self.zone_id, max(0, self.live - self.expired), self.limit, self.pos, replaces_pos)


class SlotSource(Protocol):
    """The component that counts sessions."""

    async def load_usage(self, tx: Transaction, zone_ids: Collection[str]) -> list[SlotUsage]:
        """The usage of these zones, if they exist, each as of one position."""

    async def list_zones(self, tx: Transaction, after: str, limit: int) -> list[str]:
        """Zones after this one, in order."""


# -- comparison ------------------------------------------------------------------------------------------------------


class SlotComparison(Enum):
    MATCH = auto()
    OUTDATED = auto()
    """Not counted as wrong: sessions have expired since the counter was written."""
    UNCERTAIN = auto()
    """Wrong, unless the zone has just changed."""
    MISMATCH = auto()
    UNKNOWN_POSITION = auto()
    """The stored position is beyond the end of the log."""


def compare(usage: SlotUsage, stored: StoredSlotCounter) -> SlotComparison:
    """Compare a stored counter with the database, which was read after it."""
    pos = stored_position(stored)
    if pos is None:
        return SlotComparison.UNCERTAIN
    if pos > usage.pos:
        return SlotComparison.UNKNOWN_POSITION
    if stored.taken == str(usage.taken):
        return SlotComparison.MATCH
    if _is_between(stored.taken, usage.taken, min(usage.live, usage.limit)):
        return SlotComparison.OUTDATED
    return SlotComparison.MISMATCH if pos == usage.pos else SlotComparison.UNCERTAIN


def stored_position(stored: StoredSlotCounter) -> int | None:
    return _parse_number(stored.pos)


def _is_between(text: str | None, low: int, high: int) -> bool:
    number = _parse_number(text)
    return number is not None and low <= number <= high


def _parse_number(text: str | None) -> int | None:
    return int(text) if text and len(text) <= 18 and text.isascii() and text.isdigit() else None


# -- writing ---------------------------------------------------------------------------------------------------------


class SlotMirror(BackgroundLoop):
    """Writes the zones that this process has changed."""

    def __init__(self, cross_zone_engine: Engine, source: SlotSource, slot_writer: SlotWriter) -> None:
        super().__init__("slots")
        self._cross_zone_engine = cross_zone_engine
        self._source = source
        self._slot_writer = slot_writer
        self._changed_zones: set[str] = set()
        self._wakeup = asyncio.Event()

    def on_commit(self, events: Sequence[NewEvent]) -> None:
        """Called with committed events. Only stores the zones, because the commit's caller is waiting."""
        self._changed_zones.update(event.zone_id for event in events if event.type in SLOT_EVENT_TYPES)
        if self._changed_zones:
            self._wakeup.set()

    async def stop(self) -> None:
        await super().stop()
        await self._slot_writer.close()

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            try:
                await self.write_changed()
            except Exception as error:
                # Broad, because the end of this task would go unnoticed. The changed zones are kept.
                failures += 1
                is_expected = isinstance(error, BusUnavailable)
                if failures == 1 or not is_expected:
                    log.warning("cannot write slot counters to Redis: %s", error, exc_info=not is_expected)
                self._wakeup.set()
                await asyncio.sleep(backoff(RETRY, attempt=failures, jitter=random.random()) / 1000)
                continue
            failures = 0
            await asyncio.sleep(GATHER_SECONDS)

    async def write_changed(self) -> None:
        while self._changed_zones:
            chunk = {*sorted(self._changed_zones)[:ZONES_MAX]}
            self._changed_zones -= chunk
            try:
                usages = await self._cross_zone_engine.read(partial(self._source.load_usage, zone_ids=chunk))
                if usages:
                    await self._slot_writer.write([usage.to_counter() for usage in usages])
            except BaseException:
                # Also on cancellation: these zones must still be written.
                self._changed_zones |= chunk
                raise


# -- reconciliation --------------------------------------------------------------------------------------------------


class SlotReconciler:
    """Compares Redis with the database, zone by zone, in repeated passes. Any number of processes may do so."""

    def __init__(self, cross_zone_engine: Engine, source: SlotSource, slot_writer: SlotWriter, every_ms: int) -> None:
        self.repair_count = 0
        self._cross_zone_engine = cross_zone_engine
        self._source = source
        self._slot_writer = slot_writer
        self._every_ms = every_ms
        self._last_zone_id = ""
        self._is_unavailable = False

    def sweep(self) -> Sweep:
        return Sweep(SLOTS, self._every_ms, ZONES_MAX * PAGES_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        """Run one pass. Return how many zones it repaired."""
        try:
            repaired = await self._reconcile_pages(batch)
        except BusUnavailable as error:
            # Not a failure of the sweep, and one line per outage: a later pass repairs the differences.
            if not self._is_unavailable:
                log.warning("cannot compare slot counters in Redis: %s", error)
            self._is_unavailable = True
            return 0
        self._is_unavailable = False
        return repaired

    async def _reconcile_pages(self, batch: int) -> int:
        repaired = 0
        for _ in range(max(1, batch // ZONES_MAX)):
            zone_ids = await self._cross_zone_engine.read(
                lambda tx: self._source.list_zones(tx, self._last_zone_id, ZONES_MAX)
            )
            repaired += await self.reconcile(zone_ids)
            self._last_zone_id = zone_ids[-1] if len(zone_ids) == ZONES_MAX else ""
            if not self._last_zone_id:
                break
            await asyncio.sleep(0)
        self.repair_count += repaired
        return repaired

    async def reconcile(self, zone_ids: Sequence[str]) -> int:
        """Repair the counters of these zones. Return how many were wrong."""
        if not zone_ids:
            return 0
        stored = dict(zip(zone_ids, await self._slot_writer.read(zone_ids), strict=True))
        usages = await self._cross_zone_engine.read(lambda tx: self._source.load_usage(tx, zone_ids))
        comparisons = {usage: compare(usage, stored[usage.zone_id]) for usage in usages}
        changes = {
            usage: comparison for usage, comparison in comparisons.items() if comparison is not SlotComparison.MATCH
        }
        if not changes:
            return 0
        uncertain = {
            usage: stored[usage.zone_id]
            for usage, comparison in changes.items()
            if comparison is SlotComparison.UNCERTAIN
        }
        recently_changed = (
            await self._cross_zone_engine.read(lambda tx: _recently_changed(tx, uncertain)) if uncertain else set()
        )
        await self._slot_writer.write(
            [
                usage.to_counter(stored[usage.zone_id].pos if comparison is SlotComparison.UNKNOWN_POSITION else None)
                for usage, comparison in changes.items()
            ]
        )
        return sum(
            comparison is not SlotComparison.OUTDATED and usage.zone_id not in recently_changed
            for usage, comparison in changes.items()
        )


async def _recently_changed(tx: Transaction, uncertain: Mapping[SlotUsage, StoredSlotCounter]) -> set[str]:
    """Which of these zones have changed after the stored position, so recently that the change may not be written
    yet."""
    await tx.read()
    batch = [
        (usage.zone_id, max(stored_position(stored) or 0, usage.pos - RECENT_POSITIONS))
        for usage, stored in uncertain.items()
    ]
    types = [(name,) for name in SLOT_EVENT_TYPES]
    [rows] = await tx.read(Q.log_zones_changed(batch=batch, types=types, since=tx.now - WRITE_GRACE_MS))
    return {str(zone_id) for zone_id, changed in rows if changed is not None}
