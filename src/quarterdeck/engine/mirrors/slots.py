"""Slots, shown to others: how many of a zone's places for child sessions are taken, kept on a board outside.

The database is the judge, and nothing that is admitted or refused here ever asks the board. It is for other components,
which may look before they leap, and leap all the same.

What is written is never a step up or down, which would drift with every one that got lost, but what the database says,
with the position of the log it is of: both are read in one statement. Of two writers the later position wins, whoever
comes last. A process writes the zones that its own commits have touched (`SlotKeeper`), a moment after the commit.

Whatever goes wrong is found by comparison (`Reconciler`): a process killed between commit and board, a board that was
away or wiped, a hand that wrote into it, a database that was restored. The board is looked at first and the database
after it, so a position that the board has and the log has not reached cannot be of this log, and is overruled.

A repair is counted where the board was wrong: not where a zone has changed a moment ago and its writer is under way,
and not where sessions have expired, which no event tells until a sweep comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Collection, Mapping, Sequence
from enum import Enum, auto
from functools import partial
from typing import NamedTuple, Protocol

from quarterdeck.bus.redis.interfaces import BusUnavailable, SlotCounter, SlotWriter, StoredSlotCounter
from quarterdeck.core.retry import Policy, backoff
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.queries import Q
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction

log = logging.getLogger("quarterdeck.slots")
SLOT_EVENT_TYPES = ("session.spawn", "session.terminate", "cascade.begin", "zone.create", "zone.change", "zone.recount")
"""Events with which a zone's slots, or how many there are, may change."""
SLOTS = "slots"
ZONES_MAX = 500
"""Zones in one exchange."""
PAGES_MAX = 40
"""Exchanges of one pass. The next goes on from there."""
GATHER_SECONDS = 0.02
WRITE_GRACE_MS = 2_000
"""How long after a commit its process may take to write the zone."""
RECENT_POSITIONS = 50_000
"""Positions that are looked through for such a commit."""
RETRY = Policy(max_attempts=0, base_ms=100, multiplier=2.0, cap_ms=2_000)


class SlotUsage(NamedTuple):
    """What the database says of a zone's slots."""

    zone_id: str
    live: int
    """Children that count, the expired that no sweep has reached among them."""
    expired: int
    limit: int
    pos: int

    @property
    def taken(self) -> int:
        return min(max(0, self.live - self.expired), self.limit)

    def to_counter(self, replaces_pos: str | None = None) -> SlotCounter:
        return SlotCounter(self.zone_id, max(0, self.live - self.expired), self.limit, self.pos, replaces_pos)


class SlotSource(Protocol):
    """The room that counts."""

    async def load_usage(self, tx: Transaction, zone_ids: Collection[str]) -> list[SlotUsage]:
        """These zones, if they exist; each as of one position."""

    async def list_zones(self, tx: Transaction, after: str, limit: int) -> list[str]:
        """Zones after this one, in order."""


# -- what is wrong ---------------------------------------------------------------------------------------------------


class SlotComparison(Enum):
    MATCH = auto()
    STALE = auto()
    """Not wrong: only time has passed."""
    UNCERTAIN = auto()
    """Wrong, unless the zone has changed a moment ago."""
    MISMATCH = auto()
    UNKNOWN_POSITION = auto()
    """Of a position that the log does not have."""


def compare(usage: SlotUsage, stored: StoredSlotCounter) -> SlotComparison:
    """What is to be thought of the board, which was looked at before the database was."""
    pos = stored_position(stored)
    if pos is None:
        return SlotComparison.UNCERTAIN
    if pos > usage.pos:
        return SlotComparison.UNKNOWN_POSITION
    if stored.taken == str(usage.taken):
        return SlotComparison.MATCH
    if _is_between(stored.taken, usage.taken, min(usage.live, usage.limit)):
        return SlotComparison.STALE
    return SlotComparison.MISMATCH if pos == usage.pos else SlotComparison.UNCERTAIN


def stored_position(stored: StoredSlotCounter) -> int | None:
    return _number(stored.pos)


def _is_between(text: str | None, low: int, high: int) -> bool:
    number = _number(text)
    return number is not None and low <= number <= high


def _number(text: str | None) -> int | None:
    return int(text) if text and len(text) <= 18 and text.isascii() and text.isdigit() else None


# -- keeping ---------------------------------------------------------------------------------------------------------


class SlotMirror:
    """Writes the zones that this process has touched."""

    def __init__(self, cross_zone_engine: Engine, source: SlotSource, slot_writer: SlotWriter) -> None:
        self._cross_zone_engine = cross_zone_engine
        self._source = source
        self._slot_writer = slot_writer
        self._changed_zones: set[str] = set()
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def on_commit(self, events: Sequence[NewEvent]) -> None:
        """Hears of what was committed here. Only remembers it: the commit's caller is waiting."""
        self._changed_zones.update(event.zone_id for event in events if event.type in SLOT_EVENT_TYPES)
        if self._changed_zones:
            self._wakeup.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="slots")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._slot_writer.close()

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            try:
                await self.write_changed()
            except Exception as error:
                # So broad because nobody would notice the end of this task; what was touched is not forgotten.
                failures += 1
                is_expected = isinstance(error, BusUnavailable)
                if failures == 1 or not is_expected:
                    log.warning("slots cannot be written: %s", error, exc_info=not is_expected)
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
                # Also if whoever writes is stopped: what was not written is still to be written.
                self._changed_zones |= chunk
                raise


# -- comparing -------------------------------------------------------------------------------------------------------


class SlotReconciler:
    """Compares the board with the database, zone by zone, round and round. Any number of processes may."""

    def __init__(self, cross_zone_engine: Engine, source: SlotSource, slot_writer: SlotWriter, every_ms: int) -> None:
        self.repairs = 0
        self._cross_zone_engine = cross_zone_engine
        self._source = source
        self._slot_writer = slot_writer
        self._every_ms = every_ms
        self._position = ""
        self._is_unavailable = False

    def sweep(self) -> Sweep:
        return Sweep(SLOTS, self._every_ms, ZONES_MAX * PAGES_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        """One pass; how many zones it has repaired."""
        try:
            repaired = await self._reconcile_pages(batch)
        except BusUnavailable as error:
            # No failure of the sweep, and one line for a whole outage: the pass after it repairs what is wrong.
            if not self._is_unavailable:
                log.warning("slots cannot be compared: %s", error)
            self._is_unavailable = True
            return 0
        self._is_unavailable = False
        return repaired

    async def _reconcile_pages(self, batch: int) -> int:
        repaired = 0
        for _ in range(max(1, batch // ZONES_MAX)):
            zone_ids = await self._cross_zone_engine.read(
                lambda tx: self._source.list_zones(tx, self._position, ZONES_MAX)
            )
            repaired += await self.reconcile(zone_ids)
            self._position = zone_ids[-1] if len(zone_ids) == ZONES_MAX else ""
            if not self._position:
                break
            await asyncio.sleep(0)
        self.repairs += repaired
        return repaired

    async def reconcile(self, zone_ids: Sequence[str]) -> int:
        """Rights what is wrong of these zones; how many were."""
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
            comparison is not SlotComparison.STALE and usage.zone_id not in recently_changed
            for usage, comparison in changes.items()
        )


async def _recently_changed(tx: Transaction, uncertain: Mapping[SlotUsage, StoredSlotCounter]) -> set[str]:
    """Which of these zones have changed since the position that is shown of them, so lately that whoever did it may not
    have come to writing it."""
    await tx.read()
    batch: list[tuple[object, ...]] = [
        (usage.zone_id, max(stored_position(stored) or 0, usage.pos - RECENT_POSITIONS))
        for usage, stored in uncertain.items()
    ]
    types: list[tuple[object, ...]] = [(name,) for name in SLOT_EVENT_TYPES]
    [rows] = await tx.read(Q.log_zones_changed(batch=batch, types=types, since=tx.now - WRITE_GRACE_MS))
    return {str(zone_id) for zone_id, changed in rows if changed is not None}
