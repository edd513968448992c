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

from quarterdeck.engine.secrets.field_encryption import FieldCipher, key_ids_in
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import BoundStatement, Statement

PAGE_ROWS = 100
"""Rows in memory at once, each with some fields of a mebibyte at most."""
PAGES_PER_STEP = 10
"""In one step."""


@dataclass(frozen=True, slots=True)
class SecretColumns:
    """A table that keeps sealed values, in rows that are named by zone and id."""

    table: str
    fields: tuple[str, ...]
    page: Statement
    """(after_zone, after_id, limit) → zone, id, and each field that may hold sealed values, or null."""
    replace: Statement
    """A batch of zone, id and, for each field, the text that was read and the new one, or nulls; the ids that moved."""


class RotationPosition(NamedTuple):
    table: str
    zone_id: str
    id: str


@dataclass(slots=True)
class RotationStep:
    rows_scanned: int = 0
    """Rows."""
    counts: Counter[str] = field(default_factory=Counter)
    """Sealed values that were found, by the id of their key."""
    reencrypted: int = 0
    undecryptable: int = 0
    """Values that did not open, and stay as they are."""
    changed_meanwhile: int = 0
    """Rows that were written meanwhile: the next round looks at them again."""
    next: RotationPosition | None = None
    """Where to go on; None when there is no more."""


class RowUpdate(NamedTuple):
    """What is to be written of one row."""

    params: tuple[object, ...]
    reencrypted: int


LockZones = Callable[[Transaction, Iterable[str]], BoundStatement]


@dataclass(frozen=True, slots=True)
class SecretRotation:
    engine: Engine
    cross_zone_engine: Engine
    cipher: FieldCipher
    secret_columns: Sequence[SecretColumns]
    lock_zones: LockZones
    """Of zones: what of a zone is written anew is written under it."""

    async def count(self, after: RotationPosition | None) -> RotationStep:
        """Counts, and changes nothing."""
        return await self._run_step(after, is_writing=False)

    async def rotate(self, after: RotationPosition | None) -> RotationStep:
        return await self._run_step(after, is_writing=True)

    def first_position(self) -> RotationPosition | None:
        return RotationPosition(self.secret_columns[0].table, "", "") if self.secret_columns else None

    def is_valid_position(self, position: RotationPosition) -> bool:
        return any(columns.table == position.table for columns in self.secret_columns)

    async def _run_step(self, after: RotationPosition | None, *, is_writing: bool) -> RotationStep:
        step = RotationStep(next=after or self.first_position())
        for _ in range(PAGES_PER_STEP):
            if step.next is None:
                break
            await self._run_page(step, step.next, is_writing)
        return step

    async def _run_page(self, step: RotationStep, after: RotationPosition, is_writing: bool) -> None:
        columns = next(shelf for shelf in self.secret_columns if shelf.table == after.table)
        statement = columns.page(after_zone=after.zone_id, after_id=after.id, limit=PAGE_ROWS)
        [rows] = await self.cross_zone_engine.read(lambda tx: tx.read(statement))
        step.rows_scanned += len(rows)
        for row in rows:
            for text in row[2:]:
                step.counts.update(key_ids_in(str(text)) if text is not None else ())
        if is_writing:
            await self._write_page(step, columns, rows)
        if len(rows) == PAGE_ROWS:
            step.next = RotationPosition(columns.table, str(rows[-1][0]), str(rows[-1][1]))
        else:
            step.next = self._next_table(columns)

    def _next_table(self, columns: SecretColumns) -> RotationPosition | None:
        following = self.secret_columns[self.secret_columns.index(columns) + 1 :]
        return RotationPosition(following[0].table, "", "") if following else None

    async def _write_page(self, step: RotationStep, columns: SecretColumns, rows: Sequence[Row]) -> None:
        by_zone: dict[str, list[RowUpdate]] = {}
        for row in rows:
            if update := self._reencrypt_row(step, columns, row):
                by_zone.setdefault(str(row[0]), []).append(update)
        for zone_id, updates in sorted(by_zone.items()):
            written_ids = await self._replace_rows(columns, zone_id, updates)
            step.reencrypted += sum(sheet.reencrypted for sheet in updates if sheet.params[1] in written_ids)
            step.changed_meanwhile += len(updates) - len(written_ids)

    def _reencrypt_row(self, step: RotationStep, columns: SecretColumns, row: Row) -> RowUpdate | None:
        zone_id, row_id, *texts = row
        params: list[object] = [zone_id, row_id]
        reencrypted = 0
        for name, text in zip(columns.fields, texts, strict=True):
            if text is None or not (old_count := self._count_old_keys(str(text))):
                params += [None, None]
                continue
            new_text = self.cipher.reencrypt(str(text), (str(zone_id), columns.table, str(row_id), name))
            remaining = self._count_old_keys(new_text)
            step.undecryptable += remaining
            reencrypted += old_count - remaining
            params += [text, new_text] if old_count > remaining else [None, None]
        return RowUpdate(tuple(params), reencrypted) if reencrypted else None

    def _count_old_keys(self, text: str) -> int:
        return sum(key_id != self.cipher.keyring.encryption_key_id for key_id in key_ids_in(text))

    async def _replace_rows(self, columns: SecretColumns, zone_id: str, updates: Sequence[RowUpdate]) -> set[str]:
        batch: list[tuple[object, ...]] = [update.params for update in updates]

        async def write(tx: Transaction) -> set[str]:
            _, rows = await tx.read(self.lock_zones(tx, [zone_id]), columns.replace(batch=batch))
            return {str(row[0]) for row in rows}

        return await self.engine.transact(write, zones=[zone_id])
