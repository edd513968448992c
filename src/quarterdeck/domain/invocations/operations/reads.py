"""Show, list and explain invocations; search for sweeps and push delivery; delete rows past retention."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref, lowest_id_at
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.invocations.model import (
    Invocation,
    InvocationExplanation,
    InvocationFilter,
    ShowInvocation,
    State,
)
from quarterdeck.domain.invocations.operations.long_poll import ReadyService
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.domain.invocations.rules import errors, explain as explain_rules
from quarterdeck.domain.sessions import operations as sessions, rules as session_rules
from quarterdeck.domain.sessions.model import State as SessionState
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement

MAX_ID = "~"
"""Sorts after every id."""


async def show(tx: Transaction, commands: Sequence[ShowInvocation]) -> list[Invocation | Problem | Busy]:
    """One statement serves all clients that poll for results."""
    refs = sorted({(command.zone_id, command.id) for command in commands})
    batch, [rows] = await access.load(tx, commands, Q.invocations_get(batch=refs))
    invocations = {(row.zone_id, row.id): row for row in decode(rows, Invocation)}
    return [
        batch.problem(command) or invocations.get((command.zone_id, command.id)) or errors.not_found(command.id)
        for command in commands
    ]


async def list_invocations(tx: Transaction, filters: InvocationFilter) -> list[Invocation]:
    await access.require_token(tx, filters.bearer)
    results = await tx.read(*_page_statements(filters))
    rows = [row for result in results for row in result]
    if not rows:
        await zones.require_zone(tx, filters.zone_id)
    newest_first = sorted(decode(rows, Invocation), key=lambda row: row.id, reverse=True)
    return newest_first[: filters.limit]


def _page_statements(filters: InvocationFilter) -> list[BoundStatement]:
    """The statements that find a page.

    For one service, there is one statement per state, which reads the newest rows from an index. A single statement
    would have to search all ended invocations for the few running ones.
    """
    common: dict[str, str | int | None] = {
        "zone_id": filters.zone_id,
        "service_id": filters.service_id,
        "before": filters.before,
        "limit": filters.limit,
    }
    source, target = filters.source_session_id, filters.target_session_id
    if filters.service_id is not None and source is None and target is None:
        states = [filters.status] if filters.status else [*State]
        common["before"] = filters.before or MAX_ID
        return [Q.invocations_page_of_service(**common, status=state) for state in states]
    session_filters = {"source_session_id": source, "target_session_id": target}
    return [Q.invocations_page(**common, **session_filters, status=filters.status)]


async def explain(tx: Transaction, command: ShowInvocation) -> InvocationExplanation:
    await access.require_token(tx, command.bearer)
    [rows] = await tx.read(Q.invocations_get(batch=[(command.zone_id, command.id)]))
    if not rows:
        raise errors.not_found(command.id)
    [row] = decode(rows, Invocation)
    session_ids = [
        session_id for session_id in (row.source_session_id, row.target_session_id) if session_id is not None
    ]
    [session_rows] = await tx.read(sessions.load_statement([(row.zone_id, session_id) for session_id in session_ids]))
    sessions_by_ref = sessions.decode_sessions(session_rows)
    sessions_by_id = {session_id: sessions_by_ref.get((row.zone_id, session_id)) for session_id in session_ids}
    ended_ids = [
        session_id
        for session_id, session in sessions_by_id.items()
        if session is None or not session_rules.is_live(session, tx.now)
    ]
    suspended_ids = [
        session_id
        for session_id, session in sessions_by_id.items()
        if session is not None and session.status is SessionState.SUSPENDED
    ]
    return explain_rules.explain(row, tx.now, next(iter(ended_ids), None), next(iter(suspended_ids), None))


# -- across zones -------------------------------------------------------------------------------------------------


async def find_overdue(tx: Transaction, limit: int) -> list[Ref]:
    """Invocations whose deadline has passed, and invocations whose lease has expired, at most `limit` of each."""
    return _decode_refs(*await tx.read(Q.invocations_overdue(limit=limit)))


class ScanPosition(msgspec.Struct, frozen=True):
    """The position of a scan through open invocations: first by source session, then by target session."""

    by_target: bool = False
    session_id: str = ""
    parked: int = 0
    id: str = ""


SCAN_START = ScanPosition()


async def find_orphaned(tx: Transaction, position: ScanPosition, limit: int) -> tuple[list[Ref], ScanPosition]:
    """Read up to `limit` open invocations after `position`. Return those whose session has ended or was deleted, and
    the next position."""
    statement = Q.invocations_slice_by_target if position.by_target else Q.invocations_slice_by_source
    [rows] = await tx.read(
        statement(session_id=position.session_id, parked=position.parked, id=position.id, limit=limit)
    )
    orphaned_refs = [
        (str(zone_id), str(invocation_id)) for _, _, invocation_id, zone_id, is_orphaned in rows if is_orphaned
    ]
    if len(rows) == limit:
        session_id, parked, invocation_id, *_ = rows[-1]
        return orphaned_refs, ScanPosition(position.by_target, str(session_id), int(str(parked)), str(invocation_id))
    return orphaned_refs, SCAN_START if position.by_target else ScanPosition(by_target=True)


async def find_services_to_push(
    tx: Transaction, limit: int, excluded: Iterable[tuple[str, str | None]] = ()
) -> list[ReadyService]:
    """Push services with pending invocations, in the order in which their next invocations become due.

    `excluded` are (zone id, service id), or (zone id, None) for a whole zone.
    """
    [rows] = await tx.read(Q.invocations_to_push(excluded=[*excluded], limit=limit))
    return [
        ReadyService((str(zone_id), str(service_id)), int(str(next_at)), int(str(now)))
        for zone_id, service_id, next_at, now in rows
    ]


async def find_unreferenced_services(tx: Transaction, before: Millis, limit: int) -> list[Ref]:
    """Services that were unregistered before a time and have no stored invocation."""
    return _decode_refs(*await tx.read(Q.services_without_invocations(before=before, limit=limit)))


def retention_statements(before: Millis, limit: int) -> list[BoundStatement]:
    """Delete up to `limit` invocations that ended before a time."""
    return [Q.invocations_delete_expired(before=before, before_id=lowest_id_at(before), limit=limit)]


def _decode_refs(rows: Sequence[Row]) -> list[Ref]:
    return [(str(zone_id), str(row_id)) for zone_id, row_id in rows]
