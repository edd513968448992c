"""Revokes delegations: decides from the graph under the zone's lock, and writes the result in one transaction.

First it loads the edges derived from the named edges, with all other inbound edges of their targets. If a session ends,
it loads everything reachable from the session and its subtree. It repeats this for the sessions that end as a result,
because a session in their subtrees may be the source of further edges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.delegations.model import Edge, EdgeVerb, GraphEdge, Revoke, RevokeResult, ZoneEpoch
from quarterdeck.domain.delegations.operations.end_edges import (
    EndedEdge,
    decode_zone_epochs,
    end_edges,
    zone_epochs_statement,
)
from quarterdeck.domain.delegations.operations.reads import load_orphaned
from quarterdeck.domain.delegations.queries import Q
from quarterdeck.domain.delegations.rules import states
from quarterdeck.domain.delegations.rules.graph import Revocation, RevocationGraph
from quarterdeck.domain.delegations.rules.states import DELEGATION_REVOKED
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import Terminate, TerminateResult
from quarterdeck.domain.sessions.rules import ownership_required
from quarterdeck.engine.lanes import Busy, zones_of
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode


class Revoker:
    def __init__(self, terminator: sessions.Terminator) -> None:
        self._terminator = terminator

    async def revoke(self, tx: Transaction, commands: Sequence[Revoke]) -> list[RevokeResult | Problem | Busy]:
        """Revoke edges, and terminate sessions unless `keep_sessions`. A repeated command changes nothing."""
        refs = sorted({(command.zone_id, command.edge_id) for command in commands})
        batch, [edge_rows, zone_rows] = await access.lock(
            tx, commands, Q.delegations_get(batch=refs), zone_epochs_statement(zones_of(commands))
        )
        edges = {(edge.zone_id, edge.id): edge for edge in decode(edge_rows, Edge)}
        outcomes: list[RevokeResult | Problem | Busy] = [
            batch.problem(command) or _revoke_problem(command, edges) or RevokeResult() for command in commands
        ]
        accepted = {
            index: command for index, command in enumerate(commands) if isinstance(outcomes[index], RevokeResult)
        }
        loader = _GraphLoader(tx, decode_zone_epochs(zone_rows))
        revocations = await loader.revoke_all(accepted)
        ended_edges = [
            ended_edge
            for index, revocation in revocations.items()
            for ended_edge in _ended_edges(tx, commands[index], revocation)
        ]
        if ended_edges:
            await end_edges(tx, ended_edges, loader.zone_epochs)
        terminated = await self._terminate_sessions(tx, commands, revocations)
        for index, revocation in revocations.items():
            outcomes[index] = _revoke_result(revocation, terminated.get(index))
        return outcomes

    async def _terminate_sessions(
        self, tx: Transaction, commands: Sequence[Revoke], revocations: dict[int, Revocation]
    ) -> dict[int, TerminateResult]:
        """Terminate the sessions that end, one cascade per revocation. Return the results by command index.

        One call terminates all of them, because the limit on sessions per transaction applies to the whole batch.
        """
        indexes = [index for index, revocation in revocations.items() if revocation.ended_sessions]
        if not indexes:
            return {}
        terminations = [_terminate_command(commands[index], revocations[index]) for index in indexes]
        outcomes = zip(indexes, await self._terminator.terminate_sessions(tx, terminations), strict=True)
        # A Problem means that retention has deleted the session's row, so the session ended long ago.
        return {index: outcome for index, outcome in outcomes if isinstance(outcome, TerminateResult)}


def _terminate_command(command: Revoke, revocation: Revocation) -> Terminate:
    [first_id, *other_ids] = [session_id for _, session_id in revocation.ended_sessions]
    return Terminate(
        command.zone_id,
        first_id,
        DELEGATION_REVOKED,
        trace=command.trace,
        system_actor=command.caller.subject,
        also_terminate=tuple(other_ids),
    )


def _revoke_problem(command: Revoke, edges: dict[Ref, Edge]) -> Problem | None:
    edge = edges.get((command.zone_id, command.edge_id))
    if edge is None:
        return states.not_found(command.edge_id)
    owns_source = command.caller.can_act_for(edge.issuer_application_id, "delegate_from")
    # The receiving application may give the delegation up.
    owns_target = command.caller.can_act_for(edge.receiver_application_id, "delegate_to")
    return None if owns_source or owns_target else ownership_required(edge.issuer_application_id)


class _GraphLoader:
    """Decides the revocations of a batch, and loads the parts of the graph that they reach."""

    def __init__(self, tx: Transaction, zone_epochs: Mapping[str, ZoneEpoch]) -> None:
        self._tx = tx
        self.zone_epochs = zone_epochs
        self._graph = RevocationGraph(tx.now)

    async def revoke_all(self, accepted: Mapping[int, Revoke]) -> dict[int, Revocation]:
        """Decide the commands in order of arrival. Return the revocation of each by its index."""
        if not accepted:
            return {}
        refs = sorted({(command.zone_id, command.edge_id) for command in accepted.values()})
        [edge_rows] = await self._tx.read(Q.delegations_to_revoke(batch=refs))
        await self._add_rows(edge_rows)
        return {index: await self._revoke_one(command) for index, command in accepted.items()}

    async def _revoke_one(self, command: Revoke) -> Revocation:
        revocation = self._graph.revoke((command.zone_id, command.edge_id), ends_sessions=not command.keep_sessions)
        handled = 0
        while ended_sessions := revocation.ended_sessions[handled:]:
            handled = len(revocation.ended_sessions)
            subtree_rows, edge_rows = await self._tx.read(
                Q.delegation_session_subtrees(batch=[*ended_sessions]),
                Q.delegations_reachable_from_subtrees(batch=[*ended_sessions]),
            )
            await self._add_rows(edge_rows)
            self._graph.end_sessions(
                [(str(zone_id), str(session_id)) for zone_id, session_id in subtree_rows], revocation
            )
        return revocation

    async def _add_rows(self, rows: Sequence[Row]) -> None:
        edges = decode(rows, GraphEdge)
        refs = ((edge.zone_id, edge.id) for edge in edges)
        self._graph.add_edges(edges, await load_orphaned(self._tx, refs, self.zone_epochs))


def _ended_edges(tx: Transaction, command: Revoke, revocation: Revocation) -> list[EndedEdge]:
    actor = command.caller.subject
    return [EndedEdge(edge, EdgeVerb.REVOKE, reason, actor, tx.now, command.trace) for edge, reason in revocation.edges]


def _revoke_result(revocation: Revocation, terminated: TerminateResult | None) -> RevokeResult:
    return RevokeResult(
        revoked_edges=len(revocation.edges),
        affected_sessions=len(revocation.affected_sessions),
        terminated_agents=terminated.stopped if terminated else 0,
        cascade_id=terminated.cascade_id if terminated else None,
    )
