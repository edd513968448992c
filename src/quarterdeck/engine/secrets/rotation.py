"""Re-encrypts values under older keys, a bounded step at a time, while the server runs.

A step reads some rows in key order, from where the previous step ended. Values under an older key are re-encrypted and
written under the lock of their zone, unless the text has changed since it was read. So a step may run twice, or never,
or in two processes at once: nothing is lost, and the next round finds what was missed. The server does not store the
progress of a rotation; the caller does, with the position that each step returns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from quarterdeck.engine.secrets.field_encryption import FieldCipher, key_ids_in
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import BoundStatement

PAGE_ROWS = 100
"""Rows in memory at once, each with several fields of at most 1 MiB."""
PAGES_PER_STEP = 10


class SelectPage(Protocol):
    """The statement that reads the next rows: zone, id, and each field that may hold encrypted values, or null."""

    def __call__(self, *, after_zone: str, after_id: str, limit: int) -> BoundStatement: ...


@dataclass(frozen=True, slots=True)
class SecretColumns:
    """A table whose rows have a zone, an id and fields that may hold encrypted values."""

    table: str
    fields: tuple[str, ...]
    select_page: SelectPage
    replace: Callable[..., BoundStatement]
    """(batch) of zone, id and, per field, the text that was read and the new text, or nulls → the updated ids."""


class RotationPosition(NamedTuple):
    table: str
    zone_id: str
    id: str


@dataclass(slots=True)
class RotationStep:
    rows_scanned: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    """Encrypted values found, by key id."""
    reencrypted: int = 0
    undecryptable: int = 0
    """Values that cannot be decrypted and are left unchanged."""
    changed_meanwhile: int = 0
    """Rows that changed after they were read. The next round reads them again."""
    next: RotationPosition | None = None
    """Where to continue; None at the end."""


class RowUpdate(NamedTuple):
    """The re-encrypted fields of one row."""

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
    """Locks zones. Rows of a zone are written under its lock."""

    async def count(self, after: RotationPosition | None) -> RotationStep:
        """Count values by key, without changing anything."""
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
        columns = next(columns for columns in self.secret_columns if columns.table == after.table)
        statement = columns.select_page(after_zone=after.zone_id, after_id=after.id, limit=PAGE_ROWS)
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
            step.reencrypted += sum(update.reencrypted for update in updates if update.params[1] in written_ids)
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
        batch = [update.params for update in updates]

        async def write(tx: Transaction) -> set[str]:
            _, rows = await tx.read(self.lock_zones(tx, [zone_id]), columns.replace(batch=batch))
            return {str(row[0]) for row in rows}

        return await self.engine.transact(write, zones=[zone_id])
