"""Retention: what ended long ago is removed, children before their parents, a few rows at a time.

No live tree is touched: a session lives for a day at most, and what is removed ended long before. The events about it
are kept by rules of their own (`engine.retention`).
"""

from __future__ import annotations

from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import lowest_id_at
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.engine.transaction import Transaction


async def delete_expired(tx: Transaction, retention_ms: Millis, limit: int) -> int:
    """Removes up to so many sessions that ended before the window, and cascades that were over before it."""
    # A read of nothing but the clock: what is old is decided by the database's time.
    await tx.read()
    before = tx.now - retention_ms
    deleted, _ = await tx.read(
        Q.sessions_delete_expired(before=before, before_id=lowest_id_at(before), limit=limit),
        Q.cascades_delete_expired(before=before, limit=limit),
    )
    return len(deleted)
