"""Revoking: what falls is decided from the graph as it stands under the zone's lock, and written in one transaction.

What is derived from the edges is loaded with the locks, and what else holds the sessions that it leads to. Where a
session ends by it, the graph ahead of it and of all that stand under it is loaded whole, once; and then once more for
whoever ends by that, because somebody under them may have lent something, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.delegations import rules
from quarterdeck.domain.delegations.model import Edge, EdgeVerb, Link, Revoke, Revoked
from quarterdeck.domain.delegations.operations.ending import Leaving, end, epochs_of, load_epochs
from quarterdeck.domain.delegations.operations.holding import sessions_as_read
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import DELEGATION_REVOKED, Falling, Fell, Ref
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import Ended, Terminate
from quarterdeck.domain.sessions.operations.bearers import bearers_of
from quarterdeck.domain.sessions.rules import bearer_problem, ownership_required
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.tx import Tx
from quarterdeck.store.port import decode

Batch = list[tuple[object, ...]]


class Revoker:
    """An object only because it must know how sessions are ended."""

    def __init__(self, ender: sessions.Ender) -> None:
        self._ender = ender

    async def revoke(self, tx: Tx, asks: Sequence[Revoke]) -> list[Revoked | Problem | Busy]:
        """Revokes edges. Done twice it moves nothing the second time."""
        concerned = zones_of(asks)
        refs: Batch = [*sorted({(ask.zone_id, ask.edge_id) for ask in asks})]
        locked_rows, named, links, epoch_rows = await tx.read(
            zones.lock(tx, concerned),
            Q.delegations_get(batch=refs),
            Q.delegations_falling(batch=refs),
            load_epochs(concerned),
        )
        edges = {(edge.zone_id, edge.id): edge for edge in decode(named, Edge)}
        why_not = await zones.unlocked(tx, concerned - zones.locked(locked_rows).keys())
        bearers = await sessions_as_read(tx, bearers_of(asks))
        falling = Falling(tx.now)
        falling.know(decode(links, Link))
        fallen: dict[int, Fell] = {}
        outcomes: list[Revoked | Problem | Busy] = []
        for place, ask in enumerate(asks):
            stranger = bearer_problem(ask.bearer, bearers, tx.now)
            refusal = sessions.held_up(ask, why_not) or stranger or _refusal(ask, edges)
            if refusal is None:
                fallen[place] = await _fall(tx, ask, falling)
            outcomes.append(refusal or Revoked())
        leaving = [each for place, fell in fallen.items() for each in _leaving(tx, asks[place], fell)]
        if leaving:
            await end(tx, leaving, epochs_of(epoch_rows))
        ended = await self._end_sessions(tx, asks, fallen)
        for place, fell in fallen.items():
            outcomes[place] = _told(fell, ended.get(place, ()))
        return outcomes

    async def _end_sessions(
        self, tx: Tx, asks: Sequence[Revoke], fallen: dict[int, Fell]
    ) -> dict[int, list[Ended]]:
        """All of a batch at once: what is too much for one transaction is counted over all of it."""
        places = [(place, ref) for place, fell in fallen.items() for ref in fell.emptied]
        if not places:
            return {}
        orders = [
            Terminate(*ref, DELEGATION_REVOKED, trace=asks[place].trace, by=asks[place].caller.subject)
            for place, ref in places
        ]
        ended: dict[int, list[Ended]] = {}
        for (place, _), outcome in zip(places, await self._ender.terminate(tx, orders), strict=True):
            # A session whose row is gone has ended long ago.
            if isinstance(outcome, Ended):
                ended.setdefault(place, []).append(outcome)
        return ended


def _refusal(ask: Revoke, edges: dict[Ref, Edge]) -> Problem | None:
    edge = edges.get((ask.zone_id, ask.edge_id))
    if edge is None:
        return rules.not_found(ask.edge_id)
    lends = ask.caller.may_act_for(edge.issuer_application_id, "delegate_from")
    # Whoever received it may give it up.
    receives = ask.caller.may_act_for(edge.receiver_application_id, "delegate_to")
    return None if lends or receives else ownership_required(edge.issuer_application_id)


async def _fall(tx: Tx, ask: Revoke, falling: Falling) -> Fell:
    fell = falling.revoke((ask.zone_id, ask.edge_id), ends=not ask.keep_sessions)
    told = 0
    while ended := fell.emptied[told:]:
        told = len(fell.emptied)
        tree, ahead = await tx.read(
            Q.delegations_below(batch=[*ended]), Q.delegations_ahead_of_trees(batch=[*ended])
        )
        falling.know(decode(ahead, Link))
        falling.end([(str(zone_id), str(session_id)) for zone_id, session_id in tree], fell)
    return fell


def _leaving(tx: Tx, ask: Revoke, fell: Fell) -> list[Leaving]:
    actor = ask.caller.subject
    return [Leaving(link, EdgeVerb.REVOKE, reason, actor, tx.now, ask.trace) for link, reason in fell.edges]


def _told(fell: Fell, ended: Sequence[Ended]) -> Revoked:
    cascades = dict.fromkeys(each.cascade_id for each in ended if each.cascade_id is not None)
    return Revoked(
        revoked_edges=len(fell.edges),
        affected_sessions=len(fell.affected),
        terminated_agents=sum(each.stopped for each in ended),
        cascades=tuple(cascades),
    )
