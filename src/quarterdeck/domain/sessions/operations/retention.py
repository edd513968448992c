"""Retention: deletes sessions that ended long ago, children before their parents, in small batches.

No live tree is affected: the TTL of a session is at most one day, and the retention period is longer. Events have
their own retention (`engine.event_retention`).
"""

from __future__ import annotations

from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import lowest_id_at
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.store.sql import BoundStatement


def retention_statements(before: Millis, limit: int) -> list[BoundStatement]:
    """Delete up to `limit` sessions, and up to `limit` cascades, that ended before a time."""
    return [
        Q.sessions_delete_expired(before=before, before_id=lowest_id_at(before), limit=limit),
        Q.cascades_delete_expired(before=before, limit=limit),
    ]
