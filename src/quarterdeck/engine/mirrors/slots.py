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

from quarterdeck.bus.redis.interfaces import Away, Board, Shown, Slot
from quarterdeck.core.retry import Policy, delay
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.queries import Q
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Tx

log = logging.getLogger("quarterdeck.slots")
TOUCHING = ("session.spawn", "session.terminate", "cascade.begin", "zone.create", "zone.change", "zone.recount")
"""Events with which a zone's slots, or how many there are, may change."""
SLOTS = "slots"
ZONES_MAX = 500
"""Zones in one exchange."""
PAGES_MAX = 40
"""Exchanges of one pass. The next goes on from there."""
GATHER_SECONDS = 0.02
UNDER_WAY_MS = 2_000
"""How long after a commit its process may take to write the zone."""
RECENT = 50_000
"""Positions that are looked through for such a commit."""
RETRY = Policy(max_attempts=0, base_ms=100, multiplier=2.0, cap_ms=2_000)


class Use(NamedTuple):
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

    def slot(self, overrules: str | None = None) -> Slot:
        return Slot(self.zone_id, max(0, self.live - self.expired), self.limit, self.pos, overrules)


class Counts(Protocol):
    """The room that counts."""

    async def of(self, tx: Tx, zone_ids: Collection[str]) -> list[Use]:
        """These zones, if they exist; each as of one position."""

    async def names(self, tx: Tx, after: str, limit: int) -> list[str]:
        """Zones after this one, in order."""


# -- what is wrong ---------------------------------------------------------------------------------------------------


class Verdict(Enum):
    RIGHT = auto()
    STALE = auto()
    """Not wrong: only time has passed."""
    DOUBTFUL = auto()
    """Wrong, unless the zone has changed a moment ago."""
    WRONG = auto()
    FOREIGN = auto()
    """Of a position that the log does not have."""


def judge(use: Use, shown: Shown) -> Verdict:
    """What is to be thought of the board, which was looked at before the database was."""
    pos = position_of(shown)
    if pos is None:
        return Verdict.DOUBTFUL
    if pos > use.pos:
        return Verdict.FOREIGN
    if shown.taken == str(use.taken):
        return Verdict.RIGHT
    if _is_between(shown.taken, use.taken, min(use.live, use.limit)):
        return Verdict.STALE
    return Verdict.WRONG if pos == use.pos else Verdict.DOUBTFUL


def position_of(shown: Shown) -> int | None:
    return _number(shown.pos)


def _is_between(text: str | None, low: int, high: int) -> bool:
    number = _number(text)
    return number is not None and low <= number <= high


def _number(text: str | None) -> int | None:
    return int(text) if text and len(text) <= 18 and text.isascii() and text.isdigit() else None


# -- keeping ---------------------------------------------------------------------------------------------------------


class SlotKeeper:
    """Writes the zones that this process has touched."""

    def __init__(self, everywhere: Engine, counts: Counts, board: Board) -> None:
        self._everywhere = everywhere
        self._counts = counts
        self._board = board
        self._touched: set[str] = set()
        self._woken = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def committed(self, events: Sequence[NewEvent]) -> None:
        """Hears of what was committed here. Only remembers it: the commit's caller is waiting."""
        self._touched.update(event.zone_id for event in events if event.type in TOUCHING)
        if self._touched:
            self._woken.set()

    def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name="slots")

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
        await self._board.close()

    async def _run(self) -> None:
        failures = 0
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self.write_touched()
            except Exception as error:
                # So broad because nobody would notice the end of this task; what was touched is not forgotten.
                failures += 1
                expected = isinstance(error, Away)
                if failures == 1 or not expected:
                    log.warning("slots cannot be written: %s", error, exc_info=not expected)
                self._woken.set()
                await asyncio.sleep(delay(RETRY, attempt=failures, chance=random.random()) / 1000)
                continue
            failures = 0
            await asyncio.sleep(GATHER_SECONDS)

    async def write_touched(self) -> None:
        while self._touched:
            some = {*sorted(self._touched)[:ZONES_MAX]}
            self._touched -= some
            try:
                uses = await self._everywhere.read(partial(self._counts.of, zone_ids=some))
                if uses:
                    await self._board.write([use.slot() for use in uses])
            except BaseException:
                # Also if whoever writes is stopped: what was not written is still to be written.
                self._touched |= some
                raise


# -- comparing -------------------------------------------------------------------------------------------------------


class Reconciler:
    """Compares the board with the database, zone by zone, round and round. Any number of processes may."""

    def __init__(self, everywhere: Engine, counts: Counts, board: Board, every_ms: int) -> None:
        self.repairs = 0
        self._everywhere = everywhere
        self._counts = counts
        self._board = board
        self._every_ms = every_ms
        self._place = ""
        self._is_away = False

    def sweep(self) -> Sweep:
        return Sweep(SLOTS, self._every_ms, ZONES_MAX * PAGES_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        """One pass; how many zones it has repaired."""
        try:
            repaired = await self._pass(batch)
        except Away as error:
            # No failure of the sweep, and one line for a whole outage: the pass after it repairs what is wrong.
            if not self._is_away:
                log.warning("slots cannot be compared: %s", error)
            self._is_away = True
            return 0
        self._is_away = False
        return repaired

    async def _pass(self, batch: int) -> int:
        repaired = 0
        for _ in range(max(1, batch // ZONES_MAX)):
            names = await self._everywhere.read(lambda tx: self._counts.names(tx, self._place, ZONES_MAX))
            repaired += await self.compare(names)
            self._place = names[-1] if len(names) == ZONES_MAX else ""
            if not self._place:
                break
            await asyncio.sleep(0)
        self.repairs += repaired
        return repaired

    async def compare(self, zone_ids: Sequence[str]) -> int:
        """Rights what is wrong of these zones; how many were."""
        if not zone_ids:
            return 0
        shown = dict(zip(zone_ids, await self._board.read(zone_ids), strict=True))
        uses = await self._everywhere.read(lambda tx: self._counts.of(tx, zone_ids))
        verdicts = {use: judge(use, shown[use.zone_id]) for use in uses}
        changes = {use: verdict for use, verdict in verdicts.items() if verdict is not Verdict.RIGHT}
        if not changes:
            return 0
        doubtful = {use: shown[use.zone_id] for use, verdict in changes.items() if verdict is Verdict.DOUBTFUL}
        under_way = await self._everywhere.read(lambda tx: _just_touched(tx, doubtful)) if doubtful else set()
        await self._board.write(
            [use.slot(shown[use.zone_id].pos if v is Verdict.FOREIGN else None) for use, v in changes.items()]
        )
        return sum(v is not Verdict.STALE and use.zone_id not in under_way for use, v in changes.items())


async def _just_touched(tx: Tx, doubtful: Mapping[Use, Shown]) -> set[str]:
    """Which of these zones have changed since the position that is shown of them, so lately that whoever did it may not
    have come to writing it."""
    await tx.read()
    batch: list[tuple[object, ...]] = [
        (use.zone_id, max(position_of(shown) or 0, use.pos - RECENT)) for use, shown in doubtful.items()
    ]
    kinds: list[tuple[object, ...]] = [(name,) for name in TOUCHING]
    [rows] = await tx.read(Q.log_touched(batch=batch, types=kinds, since=tx.now - UNDER_WAY_MS))
    return {str(zone_id) for zone_id, touched in rows if touched is not None}
