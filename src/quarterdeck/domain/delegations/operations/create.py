"""Creates delegations: loads under the zones' locks, decides with `rules.creation`, writes the result."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Key, KeyRecord
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.delegations.model import Delegate, DelegatedEdge, Edge, ZoneEpoch
from quarterdeck.domain.delegations.operations import topological_order
from quarterdeck.domain.delegations.operations.end_edges import (
    created_event,
    decode_zone_epochs,
    raise_epochs,
    zone_epochs_statement,
)
from quarterdeck.domain.delegations.operations.reads import load_orphaned
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import creation
from quarterdeck.domain.delegations.rules.creation import DelegationBatchInput, DelegationDecider, creation_key
from quarterdeck.domain.delegations.rules.topological_order import RespaceRequest, WalkRequest
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.engine import idempotency
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode


async def create_edges(tx: Transaction, commands: Sequence[Delegate]) -> list[DelegatedEdge | Problem | Busy]:
    """Create edges, in order of arrival.

    Usually one round trip of reads is enough. Further reads are needed for idempotency keys, for an edge from a higher
    to a lower rank, while a cascade is unfinished, and to rebuild ranks that are not valid.
    """
    source_refs = sorted({(command.zone_id, command.source_session_id) for command in commands})
    endpoint_refs = {
        (command.zone_id, session_id)
        for command in commands
        for session_id in (command.source_session_id, command.target_session_id)
    }
    batch, [named_rows, inbound_rows, target_rows, rank_rows, zone_rows, session_rows] = await access.lock(
        tx,
        commands,
        Q.delegations_get(batch=_named_edge_refs(commands)),
        Q.delegations_inbound(batch=source_refs),
        Q.delegation_target_sessions(batch=source_refs),
        Q.delegation_ranks_get(batch=sorted(endpoint_refs)),
        zone_epochs_statement(zones_of(commands)),
        sessions.load_statement(sorted(endpoint_refs)),
    )
    problems = [batch.problem(command) for command in commands]
    accepted = [command for command, problem in zip(commands, problems, strict=True) if problem is None]
    zone_epochs = decode_zone_epochs(zone_rows)
    edges = _edges_by_ref([*named_rows, *inbound_rows])
    loaded = DelegationBatchInput(
        now=tx.now,
        sessions=sessions.decode_sessions(session_rows),
        caller_sessions=batch.sessions,
        edges=edges,
        orphaned=await load_orphaned(tx, _refs_in_zones(edges, accepted), zone_epochs),
        ever_delegated_to={(str(zone_id), str(session_id)) for zone_id, session_id in target_rows},
        topological_ranks={(str(zone_id), str(session_id)): int(str(rank)) for zone_id, session_id, rank in rank_rows},
        rank_bounds={zone_id: zone_epoch.rank_bounds for zone_id, zone_epoch in zone_epochs.items()},
    )
    decider = creation.DelegationDecider(await _load_keys(tx, accepted, loaded))
    for zone_id in sorted({command.zone_id for command in accepted}):
        if zone_epochs[zone_id].ranked != zone_epochs[zone_id].epoch:
            await topological_order.rebuild_order(tx, zone_id, decider.order)
    decisions = iter([await _decide_one(tx, decider, command) for command in accepted])
    outcomes = [problem or next(decisions) for problem in problems]
    _persist(tx, decider)
    _record_created(tx, commands, outcomes, zone_epochs)
    return outcomes


async def _decide_one(tx: Transaction, decider: DelegationDecider, command: Delegate) -> DelegatedEdge | Problem:
    while isinstance(decision := decider.decide(command), WalkRequest | RespaceRequest):
        # The walk must see the edges that this batch has created.
        _persist(tx, decider)
        await topological_order.run_request(tx, decider.order, decision)
    return decision


def _refs_in_zones(edges: Iterable[Ref], commands: Sequence[Delegate]) -> list[Ref]:
    zone_ids = {command.zone_id for command in commands}
    return [ref for ref in edges if ref[0] in zone_ids]


def _named_edge_refs(commands: Iterable[Delegate]) -> list[Ref]:
    """The edges that the commands name as parents, and those that the callers' tokens name."""
    refs = {
        (command.zone_id, edge_id)
        for command in commands
        for edge_id in (command.parent_edge_id, command.caller.delegation_edge_id)
        if edge_id is not None
    }
    return sorted(refs)


def _edges_by_ref(rows: Sequence[Row]) -> dict[Ref, Edge]:
    return {(edge.zone_id, edge.id): edge for edge in decode(rows, Edge)}


async def _load_keys(
    tx: Transaction, commands: Sequence[Delegate], loaded: DelegationBatchInput
) -> DelegationBatchInput:
    """Add the records of idempotency keys. A second read, because the key contains the source's application."""
    keys: set[Key] = set()
    for command in commands:
        source = loaded.sessions.get((command.zone_id, command.source_session_id))
        if command.idempotency_key is not None and source is not None:
            keys.add(creation_key(command, source))
    if not keys:
        return loaded
    key_rows, edge_rows = await tx.read(
        idempotency.load_keys([*keys]), Q.delegations_of_keys(batch=[msgspec.structs.astuple(key) for key in keys])
    )
    return dataclasses.replace(
        loaded, keys=idempotency.decode_records(key_rows), edges={**loaded.edges, **_edges_by_ref(edge_rows)}
    )


def _persist(tx: Transaction, decider: DelegationDecider) -> None:
    """Write the edges created since the last call, and the changed ranks."""
    if new_edges := decider.take_created():
        tx.write(Q.delegations_insert(batch=[msgspec.structs.astuple(edge) for edge in new_edges]))
    topological_order.write_ranks(tx, decider.order)


def _record_created(
    tx: Transaction,
    commands: Sequence[Delegate],
    outcomes: Sequence[DelegatedEdge | Problem | Busy],
    zone_epochs: Mapping[str, ZoneEpoch],
) -> None:
    """Store the idempotency keys of created edges, raise the epochs, and emit the events."""
    new_edges = [
        (command, outcome.edge)
        for command, outcome in zip(commands, outcomes, strict=True)
        if isinstance(outcome, DelegatedEdge) and outcome.created
    ]
    if key_records := [
        _key_record(command, edge) for command, edge in new_edges if command.idempotency_key is not None
    ]:
        tx.write(idempotency.store_records(key_records, tx.now))
    new_epochs = raise_epochs(tx, {edge.zone_id for _, edge in new_edges}, zone_epochs)
    for _, edge in new_edges:
        tx.emit(created_event(edge, new_epochs[edge.zone_id]))


def _key_record(command: Delegate, edge: Edge) -> KeyRecord:
    return KeyRecord(
        command.zone_id,
        edge.issuer_application_id,
        creation.CREATE_OPERATION,
        command.idempotency_key or "",
        command.request_digest,
        edge.id,
    )
