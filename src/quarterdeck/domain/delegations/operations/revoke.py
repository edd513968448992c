"""Revoking: what falls is decided from the graph as it stands under the zone's lock, and written in one transaction.

What is derived from the edges is loaded, and what else holds the sessions that it leads to. Where a
session ends by it, the graph ahead of it and of all that stand under it is loaded whole, once; and then once more for
whoever ends by that, because somebody under them may have lent something, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.delegations import rules
from quarterdeck.domain.delegations.model import Edge, EdgeVerb, Link, Revoke, Revoked, Standing
from quarterdeck.domain.delegations.operations.end_edges import Leaving, end, load_zones, standings_of
from quarterdeck.domain.delegations.operations.reads import hollow
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import DELEGATION_REVOKED, Falling, Fell, Ref
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import Ended, Terminate
from quarterdeck.domain.sessions.operations.caller_session import bearers_of
from quarterdeck.domain.sessions.rules import bearer_problem, ownership_required
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Tx
from quarterdeck.store.interface import Row, decode

Batch = list[tuple[object, ...]]


class Revoker:
    """An object only because it must know how sessions are ended."""

    def __init__(self, ender: sessions.Ender) -> None:
        self._ender = ender

    async def revoke(self, tx: Tx, asks: Sequence[Revoke]) -> list[Revoked | Problem | Busy]:
        """Revokes edges. Done twice it moves nothing the second time."""
        concerned = zones_of(asks)
        refs: Batch = [*sorted({(ask.zone_id, ask.edge_id) for ask in asks})]
        locked_rows, named, zone_rows, session_rows = await tx.read(
            zones.lock(tx, concerned),
            Q.delegations_get(batch=refs),
            load_zones(concerned),
            sessions.get(sorted(bearers_of(asks))),
        )
        edges = {(edge.zone_id, edge.id): edge for edge in decode(named, Edge)}
        bearers = sessions.by_ref(session_rows)
        why_not = await zones.unlocked(tx, concerned - zones.locked(locked_rows).keys())
        outcomes: list[Revoked | Problem | Busy] = []
        for ask in asks:
            stranger = bearer_problem(ask.bearer, bearers, tx.now)
            outcomes.append(sessions.held_up(ask, why_not) or stranger or _refusal(ask, edges) or Revoked())
        due = {place: ask for place, ask in enumerate(asks) if isinstance(outcomes[place], Revoked)}
        graph = _Graph(tx, standings_of(zone_rows))
        fallen = await graph.fall(due)
        leaving = [each for place, fell in fallen.items() for each in _leaving(tx, asks[place], fell)]
        if leaving:
            await end(tx, leaving, graph.standings)
        ended = await self._end_sessions(tx, asks, fallen)
        for place, fell in fallen.items():
            outcomes[place] = _told(fell, ended.get(place))
        return outcomes

    async def _end_sessions(self, tx: Tx, asks: Sequence[Revoke], fallen: dict[int, Fell]) -> dict[int, Ended]:
        """All of a batch at once: what is too much for one transaction is counted over all of it. What ends by one
        revocation is one ending."""
        places = [place for place, fell in fallen.items() if fell.emptied]
        if not places:
            return {}
        orders = [_order(asks[place], fallen[place]) for place in places]
        outcomes = zip(places, await self._ender.terminate(tx, orders), strict=True)
        # A session whose row is gone has ended long ago.
        return {place: outcome for place, outcome in outcomes if isinstance(outcome, Ended)}


def _order(ask: Revoke, fell: Fell) -> Terminate:
    [first, *others] = [session_id for _, session_id in fell.emptied]
    return Terminate(
        ask.zone_id, first, DELEGATION_REVOKED, trace=ask.trace, by=ask.caller.subject, along=tuple(others)
    )


def _refusal(ask: Revoke, edges: dict[Ref, Edge]) -> Problem | None:
    edge = edges.get((ask.zone_id, ask.edge_id))
    if edge is None:
        return rules.not_found(ask.edge_id)
    lends = ask.caller.may_act_for(edge.issuer_application_id, "delegate_from")
    # Whoever received it may give it up.
    receives = ask.caller.may_act_for(edge.receiver_application_id, "delegate_to")
    return None if lends or receives else ownership_required(edge.issuer_application_id)


class _Graph:
    """The part of the graph that a batch of revocations must know, loaded as far as they reach."""

    def __init__(self, tx: Tx, standings: Mapping[str, Standing]) -> None:
        self._tx = tx
        self.standings = standings
        self._falling = Falling(tx.now)

    async def fall(self, due: Mapping[int, Revoke]) -> dict[int, Fell]:
        """By place: what each ask takes, in order of arrival."""
        if not due:
            return {}
        refs: Batch = [*sorted({(ask.zone_id, ask.edge_id) for ask in due.values()})]
        [links] = await self._tx.read(Q.delegations_falling(batch=refs))
        await self._know(links)
        return {place: await self._fall(ask) for place, ask in due.items()}

    async def _fall(self, ask: Revoke) -> Fell:
        fell = self._falling.revoke((ask.zone_id, ask.edge_id), ends=not ask.keep_sessions)
        told = 0
        while ended := fell.emptied[told:]:
            told = len(fell.emptied)
            tree, ahead = await self._tx.read(
                Q.delegations_below(batch=[*ended]), Q.delegations_ahead_of_trees(batch=[*ended])
            )
            await self._know(ahead)
            self._falling.end([(str(zone_id), str(session_id)) for zone_id, session_id in tree], fell)
        return fell

    async def _know(self, rows: Sequence[Row]) -> None:
        links = decode(rows, Link)
        refs = ((link.zone_id, link.id) for link in links)
        self._falling.know(links, await hollow(self._tx, refs, self.standings))


def _leaving(tx: Tx, ask: Revoke, fell: Fell) -> list[Leaving]:
    actor = ask.caller.subject
    return [Leaving(link, EdgeVerb.REVOKE, reason, actor, tx.now, ask.trace) for link, reason in fell.edges]


def _told(fell: Fell, ended: Ended | None) -> Revoked:
    return Revoked(
        revoked_edges=len(fell.edges),
        affected_sessions=len(fell.affected),
        terminated_agents=ended.stopped if ended else 0,
        cascade_id=ended.cascade_id if ended else None,
    )
