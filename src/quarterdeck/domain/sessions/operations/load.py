"""Loads sessions by id, also for other components."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.ids import Ref
from quarterdeck.domain.sessions.model import Session
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement


def load_statement(refs: Sequence[Ref]) -> BoundStatement:
    """The statement that loads sessions, for components that include it in their first round trip."""
    return Q.sessions_get(batch=[*refs])


def decode_sessions(rows: Sequence[Row]) -> dict[Ref, Session]:
    return {(session.zone_id, session.id): session for session in decode(rows, Session)}
