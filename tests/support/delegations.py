"""Delegations for tests: rows and commands with defaults, an in-memory graph, and a harness with the lanes."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import system_now
from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.core.ids import Ref, new_id
from quarterdeck.domain.delegations.component import Delegations
from quarterdeck.domain.delegations.model import (
    Authority,
    Delegate,
    DelegatedEdge,
    DelegationSettings,
    Edge,
    EdgeExplanation,
    EdgeFilter,
    EdgeRef,
    EdgeState,
    GraphEdge,
    Revoke,
    RevokeResult,
    Traversal,
)
from quarterdeck.domain.delegations.operations import reads
from quarterdeck.domain.delegations.rules.creation import DelegationBatchInput, DelegationDecider
from quarterdeck.domain.delegations.rules.states import is_active
from quarterdeck.domain.delegations.rules.topological_order import (
    RANK_GAP,
    RespaceRequest,
    TopologicalOrder,
    WalkRequest,
    WalkResult,
    spaced_ranks,
    topological_sort,
)
from quarterdeck.domain.delegations.sweeps import EXPIRY, sweeps as delegation_sweeps
from quarterdeck.domain.sessions.component import Sessions
from quarterdeck.domain.sessions.model import Session, SessionRef, SessionSettings
from quarterdeck.engine.event_log import Event
from quarterdeck.engine.sweeps import SweepRunner
from tests.support.builders import APP, NOW, ZONE, admin, session_row
from tests.support.runtime import RuntimeHarness, SqlValue
from tests.support.structs import build_struct

EDGE_EXPIRES_AT = NOW + 500_000
"""The default expiry of an edge. The sessions of `session_row` expire later."""
_numbers = itertools.count(1)


def edge_row(source: str, target: str, **fields: object) -> Edge:
    """A row that is active at NOW, delegates the scopes `a` and `b` for all resources, and allows ten hops."""
    defaults: dict[str, object] = {
        "id": f"e{next(_numbers):06d}",
        "zone_id": ZONE,
        "source_session_id": source,
        "target_session_id": target,
        "issuer_application_id": APP,
        "receiver_application_id": APP,
        "scopes": '["a","b"]',
        "resource_id": None,
        "resources": None,
        "hops": 10,
        "constraints_json": "{}",
        "parent_edge_id": None,
        "status": EdgeState.ACTIVE,
        "expires_at": EDGE_EXPIRES_AT,
        "edge_version": 1,
        "created_by": "tester",
        "trace": None,
        "ended_at": None,
        "ended_reason": None,
        "created_at": NOW - 1_000,
        "updated_at": NOW - 1_000,
    }
    row = defaults | fields
    return msgspec.convert([row[name] for name in Edge.__struct_fields__], Edge)


def graph_edge(source: str, target: str, parent: str | None = None, **fields: object) -> GraphEdge:
    row = edge_row(source, target, parent_edge_id=parent, **fields)
    return GraphEdge(*(getattr(row, name) for name in GraphEdge.__struct_fields__))


def delegate_command(source: str, target: str, **fields: object) -> Delegate:
    """A command of the zone's administrator, with these fields."""
    defaults: dict[str, object] = {
        "id": new_id(),
        "zone_id": ZONE,
        "caller": admin(),
        "source_session_id": source,
        "target_session_id": target,
    }
    return build_struct(Delegate, **(defaults | fields))


def delegation_input(
    *edges: Edge,
    sessions: Iterable[Session] | None = None,
    key_records: Sequence[KeyRecord] = (),
    orphaned: Iterable[Edge] = (),
    now: int = NOW,
) -> DelegationBatchInput:
    """The input of a delegation batch in a zone with these edges. Sessions that are not given are live."""
    sessions_by_id = {row.id: row for row in sessions or ()}
    names = {name for edge in edges for name in (edge.source_session_id, edge.target_session_id)}
    rows = {name: session_row(id=name) for name in {*names, *"abcdefgh"}} | sessions_by_id
    sessions_by_ref = {(ZONE, name): row for name, row in rows.items()}
    return DelegationBatchInput(
        now=now,
        sessions=sessions_by_ref,
        caller_sessions=sessions_by_ref,
        edges={(edge.zone_id, edge.id): edge for edge in edges},
        orphaned={(edge.zone_id, edge.id) for edge in orphaned},
        ever_delegated_to={(edge.zone_id, edge.target_session_id) for edge in edges},
        topological_ranks={
            (ZONE, name): position * RANK_GAP
            for position, name in enumerate(topological_sort(_active_pairs(edges, now)))
        },
        rank_bounds={ZONE: (0, len(names) * RANK_GAP)},
        keys={record.full_key(): record for record in key_records},
    )


def decide(commands: Sequence[Delegate], input_data: DelegationBatchInput) -> list[DelegatedEdge | Problem]:
    """Decide these commands on the edges of the input and on the edges that the commands create."""
    decider, graph = (
        DelegationDecider(input_data),
        InMemoryGraph(input_data.topological_ranks, _active_pairs(input_data.edges.values(), input_data.now)),
    )
    outcomes = []
    for command in commands:
        while isinstance(found := decider.decide(command), WalkRequest | RespaceRequest):
            graph.run_request(decider.order, found)
        graph.apply(
            decider.order, [(edge.source_session_id, edge.target_session_id) for edge in decider.take_created()]
        )
        outcomes.append(found)
    return outcomes


def _active_pairs(edges: Iterable[Edge], now: int) -> list[tuple[str, str]]:
    return [(edge.source_session_id, edge.target_session_id) for edge in edges if is_active(edge, now)]


class InMemoryGraph:
    """Edges and ranks of a zone in memory, to test `TopologicalOrder` without a database."""

    def __init__(self, ranks: Mapping[Ref, int] | None = None, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self.ranks = {session: rank for (_, session), rank in (ranks or {}).items()}
        self.pairs = list(pairs)
        self.walk_sizes: list[int] = []
        """The number of sessions that each walk returned."""
        self.respace_count = 0

    def walk_forward(self, start: str, rank_range: range | None = None) -> list[str]:
        return self._reachable(start, self.pairs, rank_range)

    def walk_backward(self, start: str, rank_range: range | None = None) -> list[str]:
        return self._reachable(start, [(target, source) for source, target in self.pairs], rank_range)

    def _reachable(self, start: str, pairs: Iterable[tuple[str, str]], rank_range: range | None) -> list[str]:
        steps: dict[str, set[str]] = {}
        for source, target in pairs:
            steps.setdefault(source, set()).add(target)
        found = {start: None}
        for current in (pending := [start]):
            for neighbour in sorted(steps.get(current, ())):
                if neighbour not in found and (rank_range is None or self.ranks[neighbour] in rank_range):
                    found[neighbour] = None
                    pending.append(neighbour)
        return list(found)

    def run_request(self, order: TopologicalOrder, request: WalkRequest | RespaceRequest) -> None:
        if isinstance(request, RespaceRequest):
            self.respace_count += 1
            session_ids = sorted(self.ranks, key=lambda session_id: self.ranks[session_id])
            ranks = spaced_ranks(len(session_ids), *order.rank_bounds(request.zone_id))
            assert not {*ranks} & {*self.ranks.values()}
            self.ranks = dict(zip(session_ids, ranks, strict=True))
            order.replace_ranks(request.zone_id, self.ranks)
            return
        rank_range = range(request.target_rank, request.source_rank + 1)
        forward, backward = (
            {session_id: self.ranks[session_id] for session_id in found[: request.limit]}
            for found in (self.walk_forward(request.target, rank_range), self.walk_backward(request.source, rank_range))
        )
        self.walk_sizes.append(len(forward) + len(backward))
        below = max((rank for rank in self.ranks.values() if rank < request.target_rank), default=None)
        above = min((rank for rank in self.ranks.values() if rank > request.source_rank), default=None)
        order.add_walk_result(request, WalkResult(forward, backward, below, above))

    def apply(self, order: TopologicalOrder, pairs: Iterable[tuple[str, str]]) -> None:
        self.pairs += pairs
        self.ranks |= {session: rank for _, session, rank in order.take_changes()}

    def bounds(self) -> dict[str, tuple[int, int]]:
        return {ZONE: (min(self.ranks.values()), max(self.ranks.values()))} if self.ranks else {}

    def new_order(self) -> TopologicalOrder:
        """The order as the next batch loads it."""
        return TopologicalOrder({(ZONE, session): rank for session, rank in self.ranks.items()}, self.bounds())

    def is_topological(self) -> bool:
        return len({*self.ranks.values()}) == len(self.ranks) and all(
            self.ranks[source] < self.ranks[target] for source, target in self.pairs
        )


class DelegationHarness:
    """The lanes of delegations on a runtime, connected as in `app.py`."""

    def __init__(self, runtime: RuntimeHarness, chunk: int = 1_000) -> None:
        self.runtime = runtime
        shared = runtime.with_settings(SessionSettings(cascade_chunk=chunk))
        parts = Delegations(shared, Sessions(shared))
        self.delegate_lane, self.revoke_lane = parts.delegate_lane, parts.revoke_lane
        self.show_lane, self.expire_lane = parts.show_lane, parts.expire_lane

    async def spawn_sessions(self, count: int, zone_id: str = ZONE, **fields: object) -> list[Session]:
        return [await self.runtime.spawn(zone_id, **fields) for _ in range(count)]

    async def delegate(self, source: Session, target: Session, **fields: object) -> Edge:
        """Create an edge and assert that it is new. The caller is the zone's administrator unless given."""
        defaults: dict[str, object] = {"zone_id": source.zone_id, "caller": admin(source.zone_id)}
        result = await self.delegate_lane.submit(delegate_command(source.id, target.id, **(defaults | fields)))
        assert result.created
        return result.edge

    async def delegate_chain(self, sessions: Sequence[Session], **fields: object) -> list[Edge]:
        """Create an edge from each session to the next, each derived from the edge before."""
        return [await self.delegate(source, target, **fields) for source, target in itertools.pairwise(sessions)]

    async def revoke(self, edge: Edge, caller: Caller | None = None, *, keep_sessions: bool = False) -> RevokeResult:
        """Revoke an edge and finish the cascade, if one began."""
        command = Revoke(edge.zone_id, edge.id, caller or admin(edge.zone_id), keep_sessions)
        result = await self.revoke_lane.submit(command)
        if result.cascade_id is not None:
            await self.runtime.cascade_runner.finish_cascade(edge.zone_id, result.cascade_id)
        return result

    async def read(self, edge: Edge) -> Edge:
        return await self.show_lane.submit(EdgeRef(edge.zone_id, edge.id))

    async def read_statuses(self, *edges: Edge) -> list[str]:
        return [(await self.read(edge)).status for edge in edges]

    async def list_edges(self, **fields: object) -> list[Edge]:
        defaults: dict[str, object] = {"zone_id": ZONE, "limit": 500}
        filters = build_struct(EdgeFilter, **(defaults | fields))
        return await self.runtime.engine.read(lambda tx: reads.list_edges(tx, filters), zones=[filters.zone_id])

    async def traverse(self, edge: Edge, limit: int = 1_000) -> Traversal:
        ref = EdgeRef(edge.zone_id, edge.id)
        return await self.runtime.engine.read(lambda tx: reads.traverse(tx, ref, limit), zones=[edge.zone_id])

    async def read_authority(self, session: Session) -> Authority:
        ref = SessionRef(session.zone_id, session.id)
        return await self.runtime.engine.read(lambda tx: reads.read_authority(tx, ref), zones=[ref.zone_id])

    async def explain(self, edge: Edge) -> EdgeExplanation:
        ref = EdgeRef(edge.zone_id, edge.id)
        return await self.runtime.engine.read(lambda tx: reads.explain(tx, ref), zones=[ref.zone_id])

    async def run_sweep(self, name: str = EXPIRY, batch: int = 500, days: float = 90.0) -> int:
        settings = DelegationSettings(delegation_sweep_batch=batch, delegation_retention_days=days)
        return await SweepRunner(
            delegation_sweeps(self.runtime.cross_zone_engine, self.expire_lane.submit, settings)
        ).run_now(name)

    def expire_edges(self, *edges: Edge) -> None:
        """Backdate the expiry of these edges. Include derived edges: no edge outlives its parent."""
        for edge in edges:
            self.runtime.database.execute(
                "update delegation_edges set expires_at = ? where zone_id = ? and id = ?",
                edge.created_at - 1,
                edge.zone_id,
                edge.id,
            )

    def edges_out_of_order(self) -> list[tuple[SqlValue, ...]]:
        """Active edges whose source is not ranked before their target."""
        return self.runtime.database.execute(
            "select e.source_session_id, e.target_session_id, a.rank, b.rank from delegation_edges e "
            "left join delegation_ranks a on a.zone_id = e.zone_id and a.session_id = e.source_session_id "
            "left join delegation_ranks b on b.zone_id = e.zone_id and b.session_id = e.target_session_id "
            "where e.status = 'active' and e.expires_at > ? "
            "and (a.rank is null or b.rank is null or a.rank >= b.rank)",
            system_now(),
        )

    async def read_events(self) -> list[Event]:
        return [event for event in await self.runtime.read_log() if event.type.startswith("delegation.")]

    def read_epoch(self, zone_id: str = ZONE) -> int:
        [[value]] = self.runtime.database.execute("select epoch from delegation_epochs where zone_id = ?", zone_id)
        assert isinstance(value, int)
        return value


def event_data(event: Event) -> dict[str, object]:
    return msgspec.json.decode(event.data, type=dict[str, object])
