"""Sealing anew what older keys have sealed, a bounded step at a time, while everything else goes on.

A step reads some rows along the key of a table, wherever the step before ended; what of them is under an older key is
sealed anew and written, under the lock of its zone, if the text is still the one that was read. So a step may be made
twice, or never, or by two at once: nothing is lost, and what was missed is found by the next round. Nobody remembers
where a rotation stands; the caller does, by the place that each step hands back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from quarterdeck.engine.secrets.field_encryption import Safe, key_ids_in
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import Bound, Statement

PAGE = 100
"""Rows in memory at once, each with some fields of a mebibyte at most."""
PAGES = 10
"""In one step."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """A table that keeps sealed values, in rows that are named by zone and id."""

    table: str
    fields: tuple[str, ...]
    page: Statement
    """(after_zone, after_id, limit) → zone, id, and each field that may hold sealed values, or null."""
    replace: Statement
    """A batch of zone, id and, for each field, the text that was read and the new one, or nulls; the ids that moved."""


class Place(NamedTuple):
    table: str
    zone_id: str
    id: str


@dataclass(slots=True)
class Step:
    looked: int = 0
    """Rows."""
    counts: Counter[str] = field(default_factory=Counter)
    """Sealed values that were found, by the id of their key."""
    resealed: int = 0
    unopened: int = 0
    """Values that did not open, and stay as they are."""
    moved: int = 0
    """Rows that were written meanwhile: the next round looks at them again."""
    next: Place | None = None
    """Where to go on; None when there is no more."""


class Sheet(NamedTuple):
    """What is to be written of one row."""

    row: tuple[object, ...]
    resealed: int


Lock = Callable[[Tx, Iterable[str]], Bound]


@dataclass(frozen=True, slots=True)
class Rotation:
    engine: Engine
    everywhere: Engine
    safe: Safe
    shelves: Sequence[Shelf]
    lock: Lock
    """Of zones: what of a zone is written anew is written under it."""

    async def look(self, after: Place | None) -> Step:
        """Counts, and changes nothing."""
        return await self._step(after, writes=False)

    async def rotate(self, after: Place | None) -> Step:
        return await self._step(after, writes=True)

    def begins(self) -> Place | None:
        return Place(self.shelves[0].table, "", "") if self.shelves else None

    def is_place(self, place: Place) -> bool:
        return any(shelf.table == place.table for shelf in self.shelves)

    async def _step(self, after: Place | None, *, writes: bool) -> Step:
        done = Step(next=after or self.begins())
        for _ in range(PAGES):
            if done.next is None:
                break
            await self._page(done, done.next, writes)
        return done

    async def _page(self, done: Step, after: Place, writes: bool) -> None:
        shelf = next(shelf for shelf in self.shelves if shelf.table == after.table)
        wanted = shelf.page(after_zone=after.zone_id, after_id=after.id, limit=PAGE)
        [rows] = await self.everywhere.read(lambda tx: tx.read(wanted))
        done.looked += len(rows)
        for row in rows:
            for text in row[2:]:
                done.counts.update(key_ids_in(str(text)) if text is not None else ())
        if writes:
            await self._write(done, shelf, rows)
        if len(rows) == PAGE:
            done.next = Place(shelf.table, str(rows[-1][0]), str(rows[-1][1]))
        else:
            done.next = self._shelf_after(shelf)

    def _shelf_after(self, shelf: Shelf) -> Place | None:
        following = self.shelves[self.shelves.index(shelf) + 1 :]
        return Place(following[0].table, "", "") if following else None

    async def _write(self, done: Step, shelf: Shelf, rows: Sequence[Row]) -> None:
        by_zone: dict[str, list[Sheet]] = {}
        for row in rows:
            if sheet := self._anew(done, shelf, row):
                by_zone.setdefault(str(row[0]), []).append(sheet)
        for zone_id, sheets in sorted(by_zone.items()):
            moved = await self._replace(shelf, zone_id, sheets)
            done.resealed += sum(sheet.resealed for sheet in sheets if sheet.row[1] in moved)
            done.moved += len(sheets) - len(moved)

    def _anew(self, done: Step, shelf: Shelf, row: Row) -> Sheet | None:
        zone_id, row_id, *texts = row
        written: list[object] = [zone_id, row_id]
        resealed = 0
        for name, text in zip(shelf.fields, texts, strict=True):
            if text is None or not (old := self._older(str(text))):
                written += [None, None]
                continue
            new = self.safe.resealed(str(text), (str(zone_id), shelf.table, str(row_id), name))
            left = self._older(new)
            done.unopened += left
            resealed += old - left
            written += [text, new] if old > left else [None, None]
        return Sheet(tuple(written), resealed) if resealed else None

    def _older(self, text: str) -> int:
        return sum(key_id != self.safe.ring.sealing_id for key_id in key_ids_in(text))

    async def _replace(self, shelf: Shelf, zone_id: str, sheets: Sequence[Sheet]) -> set[str]:
        batch: list[tuple[object, ...]] = [sheet.row for sheet in sheets]

        async def write(tx: Tx) -> set[str]:
            _, moved = await tx.read(self.lock(tx, [zone_id]), shelf.replace(batch=batch))
            return {str(row[0]) for row in moved}

        return await self.engine.transact(write, zones=[zone_id])
