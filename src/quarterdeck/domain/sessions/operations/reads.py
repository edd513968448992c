"""Reads of sessions: one, a page, a subtree, a receipt, the searches for sweeps, and the retention delete."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref, lowest_id_at
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.sessions.model import (
    Receipt,
    RemainingSession,
    Session,
    SessionFilter,
    SessionRef,
    State,
    TerminateResult,
    TreeNode,
)
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules import states
from quarterdeck.domain.sessions.rules.cascade import remaining_reasons
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement

REMAINING_MAX = 100
"""Maximum remaining sessions in a receipt."""


def load_statement(refs: Sequence[Ref]) -> BoundStatement:
    """The statement that loads sessions, for components that include it in their first round trip."""
    return Q.sessions_get(batch=[*refs])


def decode_sessions(rows: Sequence[Row]) -> dict[Ref, Session]:
    return {(session.zone_id, session.id): session for session in decode(rows, Session)}


async def show_sessions(tx: Transaction, commands: Sequence[SessionRef]) -> list[Session | Problem | Busy]:
    """Return sessions by id, as they read now: an expired session reads as terminated."""
    refs = sorted({(command.zone_id, command.session_id) for command in commands})
    batch, [rows] = await access.load(tx, commands, Q.sessions_get(batch=refs))
    sessions = decode_sessions(rows)
    outcomes: list[Session | Problem | Busy] = []
    for command in commands:
        session = sessions.get((command.zone_id, command.session_id))
        result = states.effective_session(session, tx.now) if session else states.session_not_found(command.session_id)
        outcomes.append(batch.problem(command) or result)
    return outcomes


async def list_sessions(tx: Transaction, filters: SessionFilter) -> list[Session]:
    """Return up to `limit` sessions, newest first, using the most selective index."""
    await access.require_token(tx, filters.bearer)
    ended = None if filters.status is None else int(filters.status is State.TERMINATED)
    live_status = None if ended else filters.status
    common = {"zone_id": filters.zone_id, "before": filters.before, "limit": filters.limit, "root_id": filters.root_id}
    application = {"application_id": filters.application_id}
    if filters.parent_id is not None:
        statement = Q.sessions_page_of_parent(
            parent_id=filters.parent_id, status=live_status, ended=ended, **common, **application
        )
    elif live_status is not None:
        statement = Q.sessions_page_of_status(status=live_status, **common, **application)
    elif filters.application_id is not None:
        statement = Q.sessions_page_of_application(ended=ended, **common, **application)
    else:
        statement = Q.sessions_page(ended=ended, **common, **application)
    [rows] = await tx.read(statement)
    if not rows:
        await zones.require_zone(tx, filters.zone_id)
    return [states.effective_session(session, tx.now) for session in decode(rows, Session)]


async def list_subtree(tx: Transaction, ref: SessionRef) -> list[Session]:
    """Return a session and all its descendants, parents first."""
    await access.require_token(tx, ref.bearer)
    [rows] = await tx.read(Q.sessions_subtrees(batch=[(ref.zone_id, ref.session_id)]))
    if not rows:
        raise states.session_not_found(ref.session_id)
    return [states.effective_session(session, tx.now) for session in decode([row[1:] for row in rows], Session)]


async def build_receipt(tx: Transaction, result: TerminateResult, duration_ms: int) -> Receipt:
    """Build the receipt from the rows after the termination, not from what the termination intended."""
    if result.session_id is None:
        # For a zone, only sessions that were live are counted: there may be millions that ended earlier.
        [node_rows] = await tx.read(Q.session_nodes_of_zones(batch=[(result.zone_id,)]))
        nodes = decode(node_rows, TreeNode)
        ended_count = result.stopped
    else:
        [[[count]], node_rows] = await tx.read(
            Q.sessions_count_ended_in_subtree(zone_id=result.zone_id, session_id=result.session_id),
            Q.session_nodes_of_subtrees(batch=[(result.zone_id, result.session_id)]),
        )
        nodes = decode([row[1:] for row in node_rows], TreeNode)
        ended_count = int(str(count))
    remaining = remaining_reasons(nodes)
    return Receipt(
        zone_id=result.zone_id,
        session_id=result.session_id,
        cascade_id=result.cascade_id,
        reason=result.reason,
        asked=ended_count + sum(node.terminated_at is None for node in nodes),
        stopped=result.stopped,
        already_stopped=max(0, ended_count - result.stopped),
        duration_ms=duration_ms,
        joined=result.joined,
        left=[RemainingSession(session_id, reason) for session_id, reason in [*remaining.items()][:REMAINING_MAX]],
    )


# -- searches for sweeps, across zones ----------------------------------------------------------------------------


async def find_expired(tx: Transaction, limit: int) -> list[Ref]:
    """The topmost expired session of each branch."""
    return _decode_refs(*await tx.read(Q.sessions_expired(limit=limit)))


async def find_orphaned(tx: Transaction, limit: int) -> list[Ref]:
    """Live sessions whose parent is terminated or missing."""
    return _decode_refs(*await tx.read(Q.sessions_orphaned(limit=limit)))


async def find_unfinished_cascades(tx: Transaction, limit: int) -> list[Ref]:
    """Unfinished cascades as (zone, cascade)."""
    return _decode_refs(*await tx.read(Q.cascades_unfinished(limit=limit)))


def _decode_refs(rows: Sequence[Row]) -> list[Ref]:
    return [(str(zone_id), str(row_id)) for zone_id, row_id in rows]


def retention_statements(before: Millis, limit: int) -> list[BoundStatement]:
    """Delete up to `limit` sessions and up to `limit` cascades that ended before a time; children before their parents.

    No live tree is affected: the TTL of a session is at most one day, and the retention period is longer. Events have
    their own retention (`engine.event_retention`).
    """
    return [
        Q.sessions_delete_expired(before=before, before_id=lowest_id_at(before), limit=limit),
        Q.cascades_delete_expired(before=before, limit=limit),
    ]
