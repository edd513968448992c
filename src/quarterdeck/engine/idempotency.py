"""Idempotency keys in the database (what they are is in `core.keys`).

Keys are loaded and stored in the transaction of the operation itself, under the zone's lock, so of any number of
concurrent callers exactly one makes and the others are shown what was made.
"""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import DAY, Millis
from quarterdeck.core.idempotency import Binding, Key
from quarterdeck.engine.queries import Q
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import Bound


def load(keys: list[Key]) -> Bound:
    return Q.keys_load(batch=[(k.zone_id, k.application_id, k.operation, k.key) for k in keys])


def loaded(rows: list[Row]) -> dict[Key, Binding]:
    return {binding.scope(): binding for binding in decode(rows, Binding)}


def store(bindings: list[Binding], now: Millis) -> Bound:
    return Q.keys_store(batch=[(*msgspec.structs.astuple(binding), now) for binding in bindings])


# -- retention ---------------------------------------------------------------------------------------------------

KEY_RETENTION = "key-retention"
SLICE = 5_000
"""Keys that one transaction looks at."""
SLICES_MAX = 100
"""Slices that one pass looks at: half a million keys."""


class _Seen(msgspec.Struct, frozen=True, array_like=True):
    zone_id: str
    application_id: str
    operation: str
    key: str
    created_at: Millis


BEGINNING = _Seen("", "", "", "", 0)


class KeyRetention:
    """Removes keys that are older than anything they could stand for, walking round and round the table.

    The place it has come to is kept in this process only: losing it costs a walk from the beginning, and several
    walkers at once remove nothing that one of them would not.
    """

    def __init__(self, everywhere: Engine, days: float, every_ms: int) -> None:
        self._everywhere = everywhere
        self._window = round(days * DAY)
        self._every_ms = every_ms
        self._place = BEGINNING

    def sweep(self) -> Sweep:
        return Sweep(KEY_RETENTION, self._every_ms, SLICE * SLICES_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        removed = 0
        for _ in range(SLICES_MAX):
            removed += await self._everywhere.transact(self._forget)
            if not self._place.zone_id:
                break
        return removed

    async def _forget(self, tx: Tx) -> int:
        at = self._place
        named = {"zone_id": at.zone_id, "application_id": at.application_id, "operation": at.operation}
        [rows] = await tx.read(Q.keys_slice(key=at.key, limit=SLICE, **named))
        seen = decode(rows, _Seen)
        self._place = seen[-1] if len(seen) == SLICE else BEGINNING
        before = tx.now - self._window
        old: list[tuple[object, ...]] = [
            (each.zone_id, each.application_id, each.operation, each.key) for each in seen if each.created_at < before
        ]
        if old:
            tx.write(Q.keys_forget(batch=old, before=before))
        return len(old)
