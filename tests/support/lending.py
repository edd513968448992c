"""Delegations as tests write them: rows and asks with plain defaults, and the lanes of the room on a keel."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import system_now
from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import KeyRecord
from quarterdeck.core.ids import new_id
from quarterdeck.domain.delegations import operations as delegations
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
from quarterdeck.domain.delegations.rules import DelegationBatchInput, DelegationDecider, Ref, is_active
from quarterdeck.domain.delegations.rules.topological_order import (
    RANK_GAP,
    Region,
    RespaceRequest,
    TopologicalOrder,
    WalkRequest,
    spaced_ranks,
    topological_sort,
)
from quarterdeck.domain.delegations.sweeps import EXPIRY, sweeps as delegation_sweeps
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import Session, SessionRef
from quarterdeck.engine.event_log import Event
from quarterdeck.engine.sweeps import SweepRunner
from tests.support.asking import APP, NOW, ZONE, admin, session
from tests.support.keel import Cell, Keel
from tests.support.making import struct_of

LATER = NOW + 500_000
"""When an edge ends that does not say; the sessions of `asking` end after it."""
_numbers = itertools.count(1)


def edge(source: str, target: str, **stored: object) -> Edge:
    """A row that is active at NOW, lends the scopes `a` and `b` for everything, and may be passed on ten times."""
    plain: dict[str, object] = {
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
        "expires_at": LATER,
        "edge_version": 1,
        "created_by": "tester",
        "trace": None,
        "ended_at": None,
        "ended_reason": None,
        "created_at": NOW - 1_000,
        "updated_at": NOW - 1_000,
    }
    row = plain | stored
    return msgspec.convert([row[name] for name in Edge.__struct_fields__], Edge)


def link(source: str, target: str, parent: str | None = None, **stored: object) -> GraphEdge:
    row = edge(source, target, parent_edge_id=parent, **stored)
    return GraphEdge(*(getattr(row, name) for name in GraphEdge.__struct_fields__))


def delegate(source: str, target: str, **asked: object) -> Delegate:
    """An ask of the zone's administrator for nothing in particular."""
    plain: dict[str, object] = {
        "id": new_id(),
        "zone_id": ZONE,
        "caller": admin(),
        "source_session_id": source,
        "target_session_id": target,
    }
    return struct_of(Delegate, **(plain | asked))


def known(
    *edges: Edge,
    sessions: Iterable[Session] | None = None,
    bindings: Sequence[KeyRecord] = (),
    hollow: Iterable[Edge] = (),
    now: int = NOW,
) -> DelegationBatchInput:
    """What lending knows of a zone with these edges in it. Sessions that are not given are live."""
    given = {row.id: row for row in sessions or ()}
    names = {name for each in edges for name in (each.source_session_id, each.target_session_id)}
    rows = {name: session(id=name) for name in {*names, *"abcdefgh"}} | given
    return DelegationBatchInput(
        now=now,
        sessions={(ZONE, name): row for name, row in rows.items()},
        edges={(each.zone_id, each.id): each for each in edges},
        orphaned={(each.zone_id, each.id) for each in hollow},
        target_sessions={(each.zone_id, each.target_session_id) for each in edges},
        ranks={(ZONE, name): place * RANK_GAP for place, name in enumerate(topological_sort(_pairs(edges, now)))},
        rank_bounds={ZONE: (0, len(names) * RANK_GAP)},
        keys={binding.scope(): binding for binding in bindings},
    )


def lend(asks: Sequence[Delegate], now: DelegationBatchInput) -> list[DelegatedEdge | Problem]:
    """What becomes of asks, where the graph is what is known of it and what they make."""
    ledger, graph = DelegationDecider(now), Graph(now.ranks, _pairs(now.edges.values(), now.now))
    outcomes = []
    for ask in asks:
        while isinstance(found := ledger.decide(ask), WalkRequest | RespaceRequest):
            graph.supply(ledger.order, found)
        graph.write(ledger.order, [(each.source_session_id, each.target_session_id) for each in ledger.take_created()])
        outcomes.append(found)
    return outcomes


def _pairs(edges: Iterable[Edge], now: int) -> list[tuple[str, str]]:
    return [(each.source_session_id, each.target_session_id) for each in edges if is_active(each, now)]


class Graph:
    """A zone's edges and ranks as the database has them, for an order to be run without one."""

    def __init__(self, ranks: Mapping[Ref, int] | None = None, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self.ranks = {session: rank for (_, session), rank in (ranks or {}).items()}
        self.pairs = list(pairs)
        self.looked: list[int] = []
        """How many sessions each walk has told of."""
        self.spaced = 0

    def ahead(self, start: str, within: range | None = None) -> list[str]:
        return self._reached(start, self.pairs, within)

    def behind(self, start: str, within: range | None = None) -> list[str]:
        return self._reached(start, [(target, source) for source, target in self.pairs], within)

    def _reached(self, start: str, pairs: Iterable[tuple[str, str]], within: range | None) -> list[str]:
        steps: dict[str, set[str]] = {}
        for one, other in pairs:
            steps.setdefault(one, set()).add(other)
        found = {start: None}
        for at in (pending := [start]):
            for each in sorted(steps.get(at, ())):
                if each not in found and (within is None or self.ranks[each] in within):
                    found[each] = None
                    pending.append(each)
        return list(found)

    def supply(self, order: TopologicalOrder, lack: WalkRequest | RespaceRequest) -> None:
        if isinstance(lack, RespaceRequest):
            self.spaced += 1
            everybody = sorted(self.ranks, key=lambda each: self.ranks[each])
            ranks = spaced_ranks(len(everybody), *order.rank_bounds(lack.zone_id))
            assert not {*ranks} & {*self.ranks.values()}
            self.ranks = dict(zip(everybody, ranks, strict=True))
            order.replace_ranks(lack.zone_id, self.ranks)
            return
        within = range(lack.target_rank, lack.source_rank + 1)
        ahead, behind = (
            {each: self.ranks[each] for each in found[: lack.limit]}
            for found in (self.ahead(lack.target, within), self.behind(lack.source, within))
        )
        self.looked.append(len(ahead) + len(behind))
        below = max((rank for rank in self.ranks.values() if rank < lack.target_rank), default=None)
        above = min((rank for rank in self.ranks.values() if rank > lack.source_rank), default=None)
        order.add_region(lack, Region(ahead, behind, below, above))

    def write(self, order: TopologicalOrder, pairs: Iterable[tuple[str, str]]) -> None:
        self.pairs += pairs
        self.ranks |= {session: rank for _, session, rank in order.take_changes()}

    def bounds(self) -> dict[str, tuple[int, int]]:
        return {ZONE: (min(self.ranks.values()), max(self.ranks.values()))} if self.ranks else {}

    def order(self) -> TopologicalOrder:
        """As the next batch finds it."""
        return TopologicalOrder({(ZONE, session): rank for session, rank in self.ranks.items()}, self.bounds())

    def is_in_order(self) -> bool:
        return len({*self.ranks.values()}) == len(self.ranks) and all(
            self.ranks[source] < self.ranks[target] for source, target in self.pairs
        )


class Lending:
    """The room on a keel, as `app.py` puts it together."""

    def __init__(self, keel: Keel, chunk: int = 1_000) -> None:
        self.keel = keel
        self.delegates = keel.lanes.add_write_lane("delegate", delegations.create_edges)
        self.revokes = keel.lanes.add_write_lane("revoke", delegations.Revoker(sessions.Terminator(chunk)).revoke)
        self.shows = keel.lanes.add_read_lane(
            "delegation-show", sessions.with_bearer_check(delegations.show, writes=False)
        )
        self.expires = keel.lanes.add_write_lane("delegation-expire", delegations.expire_edges)

    async def sessions(self, number: int, zone_id: str = ZONE, **asked: object) -> list[Session]:
        return [await self.keel.spawn(zone_id, **asked) for _ in range(number)]

    async def lend(self, source: Session, target: Session, **asked: object) -> Edge:
        """An edge that must be made; of the zone's administrator, unless another caller is named."""
        plain: dict[str, object] = {"zone_id": source.zone_id, "caller": admin(source.zone_id)}
        done = await self.delegates.submit(delegate(source.id, target.id, **(plain | asked)))
        assert done.created
        return done.edge

    async def chain(self, members: Sequence[Session], **asked: object) -> list[Edge]:
        """From each to the next, each derived from the one before."""
        return [await self.lend(one, other, **asked) for one, other in itertools.pairwise(members)]

    async def revoke(self, edge: Edge, caller: Caller | None = None, *, keep_sessions: bool = False) -> RevokeResult:
        """Revokes an edge, and sees every ending through."""
        ask = Revoke(edge.zone_id, edge.id, caller or admin(edge.zone_id), keep_sessions)
        done = await self.revokes.submit(ask)
        if done.cascade_id is not None:
            await self.keel.finisher.finish_cascade(edge.zone_id, done.cascade_id)
        return done

    async def show(self, edge: Edge) -> Edge:
        return await self.shows.submit(EdgeRef(edge.zone_id, edge.id))

    async def status(self, *edges: Edge) -> list[str]:
        return [(await self.show(edge)).status for edge in edges]

    async def page(self, **wanted: object) -> list[Edge]:
        plain: dict[str, object] = {"zone_id": ZONE, "limit": 500}
        asked = struct_of(EdgeFilter, **(plain | wanted))
        return await self.keel.engine.read(lambda tx: delegations.list_edges(tx, asked), zones=[asked.zone_id])

    async def traverse(self, edge: Edge, limit: int = 1_000) -> Traversal:
        ref = EdgeRef(edge.zone_id, edge.id)
        return await self.keel.engine.read(lambda tx: delegations.traverse(tx, ref, limit), zones=[edge.zone_id])

    async def authority(self, session: Session) -> Authority:
        ref = SessionRef(session.zone_id, session.id)
        return await self.keel.engine.read(lambda tx: delegations.read_authority(tx, ref), zones=[ref.zone_id])

    async def explain(self, edge: Edge) -> EdgeExplanation:
        ref = EdgeRef(edge.zone_id, edge.id)
        return await self.keel.engine.read(lambda tx: delegations.explain(tx, ref), zones=[ref.zone_id])

    async def sweep(self, name: str = EXPIRY, batch: int = 500, days: float = 90.0) -> int:
        told = DelegationSettings(delegation_sweep_batch=batch, delegation_retention_days=days)
        return await SweepRunner(delegation_sweeps(self.keel.everywhere, self.expires.submit, told)).run_now(name)

    def let_expire(self, *edges: Edge) -> None:
        """Lets these have expired a while ago. Name those that are derived, too: none outlasts its parent."""
        for each in edges:
            self.keel.side.run(
                "update delegation_edges set expires_at = ? where zone_id = ? and id = ?",
                each.created_at - 1,
                each.zone_id,
                each.id,
            )

    def out_of_order(self) -> list[tuple[Cell, ...]]:
        """Active edges whose ends do not stand in order."""
        return self.keel.side.run(
            "select e.source_session_id, e.target_session_id, a.rank, b.rank from delegation_edges e "
            "left join delegation_ranks a on a.zone_id = e.zone_id and a.session_id = e.source_session_id "
            "left join delegation_ranks b on b.zone_id = e.zone_id and b.session_id = e.target_session_id "
            "where e.status = 'active' and e.expires_at > ? "
            "and (a.rank is null or b.rank is null or a.rank >= b.rank)",
            system_now(),
        )

    async def events(self) -> list[Event]:
        return [event for event in await self.keel.log() if event.type.startswith("delegation.")]

    def epoch(self, zone_id: str = ZONE) -> int:
        [[value]] = self.keel.side.run("select epoch from delegation_epochs where zone_id = ?", zone_id)
        assert isinstance(value, int)
        return value


def data_of(event: Event) -> dict[str, object]:
    return msgspec.json.decode(event.data, type=dict[str, object])
