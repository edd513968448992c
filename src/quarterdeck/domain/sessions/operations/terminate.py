"""Terminates sessions in one transaction if they fit, otherwise marks them in one and terminates them in chunks.

The request that starts a cascade, requests that join it, and the sweep all submit `FinishCascade` until the cascade is
finished. Each chunk runs under the zone's lock, oldest cascade first. All submitters share the work, so a cascade
finishes even if one of them is killed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref, new_id
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.sessions.model import (
    Cascade,
    FinishCascade,
    FinishCascadeResult,
    State,
    StopZone,
    Terminate,
    TerminateResult,
    TreeNode,
)
from quarterdeck.domain.sessions.operations.reads import decode_sessions
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.domain.sessions.rules import admission
from quarterdeck.domain.sessions.rules.cascade import (
    SessionEnd,
    TerminateBatchInput,
    TerminateCommand,
    TerminateDecider,
)
from quarterdeck.domain.zones import operations as zones
from quarterdeck.domain.zones.model import Zone
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode
from quarterdeck.store.sql import BoundStatement, chunks

Sid = tuple[str, str]
"""(zone, sid)"""


class Terminator:
    def __init__(self, chunk_size: int) -> None:
        self._chunk_size = chunk_size

    async def terminate_sessions(
        self, tx: Transaction, commands: Sequence[Terminate]
    ) -> list[TerminateResult | Problem | Busy]:
        """Terminate sessions with their subtrees. Terminating a terminated session succeeds and changes nothing."""
        targets = {(command.zone_id, command.session_id) for command in commands}
        additional_targets = {
            (command.zone_id, session_id) for command in commands for session_id in command.also_terminate
        }
        batch, [node_rows, session_rows, cascade_rows] = await access.lock(
            tx,
            commands,
            Q.session_nodes_of_subtrees(batch=sorted(targets | additional_targets)),
            Q.sessions_get(batch=sorted(targets)),
            Q.cascades_open(batch=_zone_batch(commands)),
        )
        nodes: dict[tuple[str, str | None], list[TreeNode]] = {}
        for row, node in zip(node_rows, decode([row[1:] for row in node_rows], TreeNode), strict=True):
            nodes.setdefault((node.zone_id, str(row[0])), []).append(node)
        decider = TerminateDecider(
            TerminateBatchInput(tx.now, decode_sessions(session_rows), nodes, _decode_cascades(cascade_rows)),
            self._chunk_size,
        )
        outcomes = [batch.problem(command) or decider.decide(command, new_id()) for command in commands]
        await _persist(tx, decider)
        return outcomes

    async def stop_zones(self, tx: Transaction, commands: Sequence[StopZone]) -> list[TerminateResult | Problem | Busy]:
        """Freeze or end zones and terminate all their sessions."""
        batch, [node_rows, cascade_rows] = await access.lock(
            tx,
            commands,
            Q.session_nodes_of_zones(batch=_zone_batch(commands)),
            Q.cascades_open(batch=_zone_batch(commands)),
        )
        nodes: dict[tuple[str, str | None], list[TreeNode]] = {}
        for node in decode(node_rows, TreeNode):
            nodes.setdefault((node.zone_id, None), []).append(node)
        locked = dict(batch.zones)
        decider = TerminateDecider(
            TerminateBatchInput(tx.now, {}, nodes, _decode_cascades(cascade_rows)), self._chunk_size
        )
        outcomes: list[TerminateResult | Problem | Busy] = []
        for command in commands:
            problem = batch.problem(command)
            if problem is None:
                locked[command.zone_id] = _freeze_or_end(tx, locked[command.zone_id], command)
            outcomes.append(problem or decider.decide(command, new_id()))
        await _persist(tx, decider)
        return outcomes

    async def finish_cascades(
        self, tx: Transaction, commands: Sequence[FinishCascade]
    ) -> list[FinishCascadeResult | Problem | Busy]:
        """Run one chunk of the oldest cascade of each zone. Return whether the named cascades are finished."""
        batch, [cascade_rows] = await access.lock(tx, commands, Q.cascades_open(batch=_zone_batch(commands)))
        open_cascades = [cascade for cascade in decode(cascade_rows, Cascade) if cascade.zone_id in batch.zones]
        oldest_by_zone = {cascade.zone_id: cascade for cascade in reversed(open_cascades)}
        unfinished = {(cascade.zone_id, cascade.id) for cascade in open_cascades}
        limit = max(1, self._chunk_size // max(1, len(oldest_by_zone)))
        for cascade in oldest_by_zone.values():
            if await _finish_chunk(tx, cascade, limit):
                unfinished.discard((cascade.zone_id, cascade.id))
        return [
            batch.lock_failures.get(command.zone_id)
            or FinishCascadeResult((command.zone_id, command.cascade_id) not in unfinished)
            for command in commands
        ]


def _zone_batch(commands: Sequence[Terminate | StopZone | FinishCascade]) -> list[tuple[str]]:
    return [(zone_id,) for zone_id in sorted({command.zone_id for command in commands})]


def _decode_cascades(rows: Sequence[Row]) -> Mapping[Ref, Cascade]:
    return {(cascade.zone_id, cascade.id): cascade for cascade in decode(rows, Cascade)}


def _freeze_or_end(tx: Transaction, zone: Zone, command: StopZone) -> Zone:
    if zone.ended_at is not None:
        return zone
    zone = zones.set_frozen(tx, zone, True, command.actor, command.trace)
    return zones.end_zone(tx, zone, command.actor, command.trace) if command.ends_zone else zone


async def _persist(tx: Transaction, decider: TerminateDecider) -> None:
    """Write the decisions. Marked sessions are subtracted from the counts at once, because they are no longer live."""
    ends = [*decider.terminated, *(end for _, group in decider.marked for end in group)]
    if not ends:
        return
    for cascade, group in decider.marked:
        await _mark_cascade(tx, cascade, group)
    batch = [(*_node_ref(end.node), end.node.status, end.reason, end.ended_at) for end in decider.terminated]
    sids_in_use: set[Sid] = set()
    if batch:
        statement = Q.sessions_end(batch=batch, now=tx.now)
        sids_in_use = await _update_sessions(tx, statement, [end.node for end in decider.terminated])
    nodes = [end.node for end in ends]
    for decrements in chunks([(*key, n) for key, n in sorted(admission.count_sessions(nodes).items())]):
        tx.write(Q.counts_decrement(batch=decrements))
    for obsolete_keys in chunks(sorted({key for node in nodes for key in admission.obsolete_count_keys(node)})):
        tx.write(Q.counts_delete(batch=obsolete_keys))
    for end in decider.terminated:
        tx.emit(_terminated_event(end.node, end.reason, end.command, sids_in_use))


async def _update_sessions(tx: Transaction, statement: BoundStatement, nodes: Sequence[TreeNode]) -> set[Sid]:
    """Terminate these sessions, and return which of their sids other live sessions still use.

    The sids are read after all sessions of the transaction are terminated or marked, so that sessions that end together
    do not keep each other's sid in use.
    """
    sids = sorted({(node.zone_id, node.session_sid) for node in nodes})
    updated, sid_rows = await tx.read(statement, Q.sids_in_use(batch=sids, now=tx.now))
    if len(updated) != len(nodes):
        raise RuntimeError("sessions were changed by another transaction despite the zone's lock")
    return {(str(zone_id), str(sid)) for zone_id, sid, used in sid_rows if used is not None}


async def _mark_cascade(tx: Transaction, cascade: Cascade, ends: Sequence[SessionEnd]) -> None:
    batch = [
        (*_node_ref(end.node), end.node.status, position, end.reason, end.ended_at) for position, end in enumerate(ends)
    ]
    for piece in chunks(batch):
        [updated] = await tx.read(Q.sessions_mark_cascade(batch=piece, cascade_id=cascade.id, now=tx.now))
        if len(updated) != len(piece):
            raise RuntimeError("sessions were changed by another transaction despite the zone's lock")
    columns = msgspec.structs.asdict(cascade)
    del columns["settled"], columns["finished_at"]
    tx.write(Q.cascade_insert(**columns))
    # The mark itself is an event. From its time on, all these sessions read as terminated.
    data = {"cascade_id": cascade.id, "stamped": cascade.stamped, "reason": cascade.reason}
    subject = cascade.target_id or cascade.zone_id
    event_data = msgspec.json.encode(data).decode()
    tx.emit(NewEvent("cascade.begin", cascade.zone_id, subject, cascade.actor, data=event_data, trace=cascade.trace))


async def _finish_chunk(tx: Transaction, cascade: Cascade, limit: int) -> bool:
    """Terminate the next sessions of a cascade. Return whether the cascade is finished."""
    [rows] = await tx.read(Q.session_nodes_of_cascade(zone_id=cascade.zone_id, cascade_id=cascade.id, limit=limit))
    nodes = decode([row[:-1] for row in rows], TreeNode)
    batch = [(*_node_ref(node), node.status) for node in nodes]
    finished = len(nodes) < limit
    sids_in_use = (
        await _update_sessions(tx, Q.sessions_finish_cascade(batch=batch, now=tx.now), nodes) if batch else set()
    )
    tx.write(
        Q.cascade_progress(zone_id=cascade.zone_id, id=cascade.id, count=len(nodes), finished=int(finished), now=tx.now)
    )
    for row, node in zip(rows, nodes, strict=True):
        tx.emit(_terminated_event(node, str(row[-1]), cascade, sids_in_use))
    return finished


def _node_ref(node: TreeNode) -> Ref:
    return node.zone_id, node.id


def _terminated_event(
    node: TreeNode, reason: str, origin: TerminateCommand | Cascade, sids_in_use: Collection[Sid]
) -> NewEvent:
    cause = origin.target_id if isinstance(origin, Cascade) else origin.session_id
    fields = {
        "reason": reason,
        "cause": cause or node.zone_id,
        "session_sid": node.session_sid,
        "root_id": node.root_id,
        # A reader of events must not revoke the sid's credentials while a live session still uses the sid.
        "sid_in_use": (node.zone_id, node.session_sid) in sids_in_use,
    }
    data = msgspec.json.encode(fields).decode()
    return NewEvent(
        "session.terminate", node.zone_id, node.id, origin.actor, node.status, State.TERMINATED, data, origin.trace
    )


@dataclass(frozen=True, slots=True)
class CascadeRunner:
    """Runs cascades to their end through the lanes. Routes and sweeps share it."""

    submit_terminate: Callable[[Terminate], Awaitable[TerminateResult]]
    submit_stop: Callable[[StopZone], Awaitable[TerminateResult]]
    submit_finish: Callable[[FinishCascade], Awaitable[FinishCascadeResult]]

    async def terminate(self, command: Terminate) -> TerminateResult:
        return await self.run_to_end(await self.submit_terminate(command))

    async def stop_zone(self, command: StopZone) -> TerminateResult:
        return await self.run_to_end(await self.submit_stop(command))

    async def run_to_end(self, result: TerminateResult) -> TerminateResult:
        """Run chunks until the cascade is finished. Other requests and the sweep may run chunks of it too."""
        if result.cascade_id is not None:
            await self.finish_cascade(result.zone_id, result.cascade_id)
        return result

    async def finish_cascade(self, zone_id: str, cascade_id: str) -> None:
        while not (await self.submit_finish(FinishCascade(zone_id, cascade_id))).finished:
            pass
