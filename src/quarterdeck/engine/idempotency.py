"""Idempotency keys in the database (`core.idempotency` defines them).

Keys are loaded and stored in the transaction of the operation, under the zone's lock. So exactly one of any number of
concurrent requests with the same key creates the object, and the others return it.
"""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import DAY, Millis
from quarterdeck.core.idempotency import Key, KeyRecord
from quarterdeck.engine.queries import Q
from quarterdeck.engine.sweep_passes import ROWS_PER_SCAN, SLICE, Position, scan
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement


def load_keys(keys: list[Key]) -> BoundStatement:
    return Q.keys_load(batch=[(k.zone_id, k.application_id, k.operation, k.key) for k in keys])


def decode_records(rows: list[Row]) -> dict[Key, KeyRecord]:
    return {record.full_key(): record for record in decode(rows, KeyRecord)}


def store_records(records: list[KeyRecord], now: Millis) -> BoundStatement:
    return Q.keys_store(batch=[(*msgspec.structs.astuple(record), now) for record in records])


# -- retention ---------------------------------------------------------------------------------------------------

KEY_RETENTION = "key-retention"


class _KeyRow(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    application_id: str
    operation: str
    key: str
    created_at: Millis


START = _KeyRow("", "", "", "", 0)


class KeyRetention:
    """Deletes keys that are older than any object they could refer to, cycling through the table."""

    def __init__(self, cross_zone_engine: Engine, retention_days: float, every_ms: int) -> None:
        self._cross_zone_engine = cross_zone_engine
        self._retention_ms = round(retention_days * DAY)
        self._every_ms = every_ms
        self.run_once = scan(START, self._process_slice)

    def sweep(self) -> Sweep:
        return Sweep(KEY_RETENTION, self._every_ms, ROWS_PER_SCAN, self.run_once)

    async def _process_slice(self, position: Position[_KeyRow]) -> int:
        return await self._cross_zone_engine.transact(lambda tx: self._delete_slice(tx, position))

    async def _delete_slice(self, tx: Transaction, position: Position[_KeyRow]) -> int:
        last = position.value
        scope = {"zone_id": last.zone_id, "application_id": last.application_id, "operation": last.operation}
        keys = await tx.fetch(_KeyRow, Q.keys_slice(key=last.key, limit=SLICE, **scope))
        position.advance(keys)
        cutoff = tx.now - self._retention_ms
        expired = [(key.zone_id, key.application_id, key.operation, key.key) for key in keys if key.created_at < cutoff]
        if expired:
            tx.write(Q.keys_delete_expired(batch=expired, before=cutoff))
        return len(expired)
