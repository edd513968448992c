"""Idempotency keys in the database (what they are is in `core.keys`).

Keys are loaded and stored in the transaction of the operation itself, under the zone's lock, so of any number of
concurrent callers exactly one makes and the others are shown what was made.
"""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.keys import Binding, Key
from quarterdeck.engine.queries import Q
from quarterdeck.store.port import Row, decode
from quarterdeck.store.sql import Bound


def load(keys: list[Key]) -> Bound:
    return Q.keys_load(batch=[(k.zone_id, k.application_id, k.operation, k.key) for k in keys])


def loaded(rows: list[Row]) -> dict[Key, Binding]:
    return {binding.scope(): binding for binding in decode(rows, Binding)}


def store(bindings: list[Binding], now: Millis) -> Bound:
    return Q.keys_store(batch=[(*msgspec.structs.astuple(binding), now) for binding in bindings])
