"""Decides which edges are created.

A `DelegationDecider` decides the commands of a batch in order of arrival. If the graph must be walked or the ranks
respaced first, `decide` returns a request. The caller runs the request and calls `decide` again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Forbidden, Invalid, Problem
from quarterdeck.core.idempotency import Key, KeyRecord, key_conflict
from quarterdeck.core.ids import Ref
from quarterdeck.domain.access.rules import LivenessFields, suspended_caller_problem
from quarterdeck.domain.delegations.model import Delegate, DelegatedEdge, Edge
from quarterdeck.domain.delegations.rules import states
from quarterdeck.domain.delegations.rules.attenuation import (
    GrantTerms,
    edge_terms,
    find_excess,
    requested_expiry,
    requested_terms,
    token_terms,
)
from quarterdeck.domain.delegations.rules.states import DELEGATION_STATES, encode_names
from quarterdeck.domain.delegations.rules.topological_order import RespaceRequest, TopologicalOrder, WalkRequest
from quarterdeck.domain.sessions.model import Session, State
from quarterdeck.domain.sessions.rules import is_live, ownership_required

CREATE_OPERATION = "delegation.create"
"""The operation name in the idempotency keys of new delegations."""


@dataclass(frozen=True, slots=True)
class DelegationBatchInput:
    """The rows from which new edges are decided, read under the zones' locks."""

    now: Millis
    sessions: Mapping[Ref, Session]
    """The sources and the targets."""
    caller_sessions: Mapping[Ref, LivenessFields] = field(default_factory=dict)
    """The sessions that the callers' tokens act for."""
    edges: Mapping[Ref, Edge] = field(default_factory=dict)
    """Active edges into the sources, edges named as parents, and edges that tokens and idempotency keys refer to."""
    orphaned: Collection[Ref] = ()
    """Edges whose source session, or a source session further up their chain, has ended."""
    ever_delegated_to: Collection[Ref] = ()
    """The sources that were ever the target of an edge, in any state."""
    topological_ranks: Mapping[Ref, int] = field(default_factory=dict)
    """Ranks of the sources and targets that have one."""
    rank_bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The lowest and the highest rank of each zone."""
    keys: Mapping[Key, KeyRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Endpoints:
    source: Session
    target: Session

    @property
    def expires_at(self) -> Millis:
        """When the first of the two sessions expires."""
        return min(self.source.expires_at, self.target.expires_at)


class DelegationDecider:
    """Decides the commands of a batch. Each decision sees the edges that earlier commands have created."""

    def __init__(self, loaded: DelegationBatchInput) -> None:
        self._loaded = loaded
        self._now = loaded.now
        self._edges = {**loaded.edges}
        self._ever_delegated_to = {*loaded.ever_delegated_to}
        self.order = TopologicalOrder(loaded.topological_ranks, loaded.rank_bounds)
        self._inbound: dict[Ref, list[Edge]] = {}
        for edge in loaded.edges.values():
            self._inbound.setdefault((edge.zone_id, edge.target_session_id), []).append(edge)
        self._keyed_edges: dict[Key, tuple[str, Edge]] = {}
        self._created: list[Edge] = []

    def take_created(self) -> list[Edge]:
        """Return the edges created since the last call, to be written."""
        created, self._created = self._created, []
        return created

    def decide(self, command: Delegate) -> DelegatedEdge | Problem | WalkRequest | RespaceRequest:
        """Return the result of a command, or a request that the caller must run for `order` first."""
        endpoints = self._find_endpoints(command)
        if isinstance(endpoints, Problem):
            return endpoints
        return (
            _ownership_problem(command, endpoints)
            or self._idempotent_result(command, endpoints)
            or self._precondition_problem(command, endpoints)
            or self.order.next_request(command.zone_id, command.source_session_id, command.target_session_id)
            or self._cycle_problem(command)
            or self._create_edge(command, endpoints)
        )

    # -- endpoints and keys

    def _find_endpoints(self, command: Delegate) -> _Endpoints | Problem:
        endpoints = []
        for session_id in (command.source_session_id, command.target_session_id):
            session = self._loaded.sessions.get((command.zone_id, session_id))
            if session is None or not is_live(session, self._now):
                return states.endpoint_not_found(session_id)
            endpoints.append(session)
        return _Endpoints(*endpoints)

    def _idempotent_result(self, command: Delegate, endpoints: _Endpoints) -> DelegatedEdge | Problem | None:
        """Return the edge that the idempotency key created, or a conflict. None if there is no edge or it has ended."""
        if command.idempotency_key is None:
            return None
        key = creation_key(command, endpoints.source)
        keyed_edge = self._keyed_edges.get(key)
        if keyed_edge is None and (key_record := self._loaded.keys.get(key)):
            edge = self._edges.get((command.zone_id, key_record.subject_id))
            if edge is not None and states.is_active(edge, self._now):
                keyed_edge = (key_record.digest, edge)
        if keyed_edge is None:
            return None
        digest, edge = keyed_edge
        return DelegatedEdge(edge, created=False) if digest == command.request_digest else key_conflict(key)

    # -- refusals

    def _precondition_problem(self, command: Delegate, endpoints: _Endpoints) -> Problem | None:
        if problem := suspended_caller_problem(command.caller, self._loaded.caller_sessions):
            return problem
        for session in (endpoints.source, endpoints.target):
            if session.status is not State.ACTIVE:
                return states.endpoint_suspended(session.id)
        expires_at = requested_expiry(command, self._now)
        if expires_at is not None and expires_at <= self._now:
            return states.already_expired()
        return None

    def _cycle_problem(self, command: Delegate) -> Problem | None:
        if self.order.closes_cycle(command.zone_id, command.source_session_id, command.target_session_id):
            return states.cycle_denied(command.source_session_id, command.target_session_id)
        return None

    # -- authority

    def _find_parent(self, command: Delegate) -> Edge | Problem | None:
        """Return the parent edge, None if the caller's token covers the request, or a problem if nothing covers it."""
        token_edge_id = command.caller.delegation_edge_id
        if token_edge_id is not None:
            return self._parent_from_token(command, token_edge_id)
        if command.parent_edge_id is not None:
            parent = self._edges.get((command.zone_id, command.parent_edge_id))
            if parent is None:
                return states.not_found(command.parent_edge_id)
            return self._check_parent(command, parent)
        source = (command.zone_id, command.source_session_id)
        if source in self._ever_delegated_to:
            return self._find_covering_parent(command, self._inbound.get(source, ()))
        excess = find_excess(self._requested_terms(command, None), token_terms(command.caller))
        return states.exceeds_authority("The request exceeds what the token may delegate.", excess) if excess else None

    def _parent_from_token(self, command: Delegate, edge_id: str) -> Edge | Problem:
        """A token that names an edge can delegate only from that edge."""
        edge = self._edges.get((command.zone_id, edge_id))
        if command.parent_edge_id not in (None, edge_id):
            return _token_edge_problem(edge_id, "`parent_edge_id` names a different delegation.")
        if edge is None or edge.target_session_id != command.source_session_id:
            return _token_edge_problem(edge_id, "That delegation does not lead to the source.")
        return self._check_parent(command, edge)

    def _check_parent(self, command: Delegate, parent: Edge) -> Edge | Problem:
        if parent.target_session_id != command.source_session_id:
            return Invalid(
                "invalid_parent_edge",
                f"Delegation {parent.id!r} does not lead to the source. Name an inbound delegation of the source.",
                field="parent_edge_id",
            )
        if excess := self._excess_over_parent(command, parent):
            return states.exceeds_authority(f"Delegation {parent.id!r} does not cover the request.", excess, parent.id)
        return parent

    def _find_covering_parent(self, command: Delegate, inbound: Sequence[Edge]) -> Edge | Problem:
        """Return the covering edge that expires last, and among equals the one with the lowest id."""
        candidates = sorted(inbound, key=lambda edge: (-edge.expires_at, edge.id))
        closest: tuple[Edge, list[str]] | None = None
        for edge in candidates:
            excess = self._excess_over_parent(command, edge)
            if not excess:
                return edge
            if closest is None or len(excess) < len(closest[1]):
                closest = (edge, excess)
        if closest is None:
            detail = "The source can delegate only from its inbound delegations, and all of them have ended."
            return states.exceeds_authority(detail, ["The source has no active inbound delegation."])
        return states.exceeds_authority("No delegation to the source covers the request.", closest[1], closest[0].id)

    def _excess_over_parent(self, command: Delegate, parent: Edge) -> list[str]:
        """Return sentences that say why the parent does not cover the request. Empty if it does."""
        if not states.is_active(parent, self._now):
            return [f"The delegation is {states.with_current_status(parent, self._now).status}."]
        if (parent.zone_id, parent.id) in self._loaded.orphaned:
            return ["A source session in its chain has ended."]
        return find_excess(self._requested_terms(command, parent), edge_terms(parent))

    def _requested_terms(self, command: Delegate, parent: Edge | None) -> GrantTerms:
        parent_terms = edge_terms(parent) if parent is not None else token_terms(command.caller)
        return requested_terms(command, parent_terms, self._now)

    # -- creation

    def _create_edge(self, command: Delegate, endpoints: _Endpoints) -> DelegatedEdge | Problem:
        parent = self._find_parent(command)
        if isinstance(parent, Problem):
            return parent
        edge = _new_edge(command, endpoints, parent, self._requested_terms(command, parent), self._now)
        target = (edge.zone_id, edge.target_session_id)
        self._created.append(edge)
        self._edges[edge.zone_id, edge.id] = edge
        self._inbound.setdefault(target, []).append(edge)
        self._ever_delegated_to.add(target)
        self.order.add_edge(edge.zone_id, edge.source_session_id, edge.target_session_id)
        if command.idempotency_key is not None:
            self._keyed_edges[creation_key(command, endpoints.source)] = (command.request_digest, edge)
        return DelegatedEdge(edge, created=True)


def creation_key(command: Delegate, source: Session) -> Key:
    """The idempotency key of a command. It belongs to the application of the source session."""
    return Key(command.zone_id, source.application_id, CREATE_OPERATION, command.idempotency_key or "")


def _ownership_problem(command: Delegate, endpoints: _Endpoints) -> Problem | None:
    for session, action in ((endpoints.source, "delegate_from"), (endpoints.target, "delegate_to")):
        if not command.caller.can_act_for(session.application_id, action):
            return ownership_required(session.application_id)
    if command.issuer_application_id not in (None, endpoints.source.application_id):
        return Invalid(
            "invalid_issuer_application",
            f"The source belongs to application {endpoints.source.application_id!r}.",
            field="issuer_application_id",
        )
    if command.receiver_application_id not in (None, endpoints.target.application_id):
        return Invalid(
            "invalid_receiver_application",
            f"The target belongs to application {endpoints.target.application_id!r}.",
            field="receiver_application_id",
        )
    return None


def _token_edge_problem(edge_id: str, reason: str) -> Forbidden:
    return states.exceeds_authority(f"The token can delegate only from delegation {edge_id!r}.", [reason], edge_id)


def _new_edge(command: Delegate, endpoints: _Endpoints, parent: Edge | None, terms: GrantTerms, now: Millis) -> Edge:
    assert terms.scopes is not None  # a request always names its scopes
    return Edge(
        id=command.id,
        zone_id=command.zone_id,
        source_session_id=command.source_session_id,
        target_session_id=command.target_session_id,
        issuer_application_id=endpoints.source.application_id,
        receiver_application_id=endpoints.target.application_id,
        scopes=encode_names(terms.scopes),
        resource_id=command.resource_id,
        resources=None if terms.resources is None else encode_names(terms.resources),
        hops=terms.hops,
        constraints_json=_stored_constraints(command, terms),
        parent_edge_id=parent.id if parent else None,
        status=DELEGATION_STATES.initial,
        # If an edge outlived one of its sessions, it would be shown as active but lend nothing, and so would all edges
        # derived from it. The expiry of a session is never extended.
        expires_at=min(terms.expires_at, endpoints.expires_at),
        edge_version=1,
        created_by=command.caller.subject,
        trace=command.trace,
        ended_at=None,
        ended_reason=None,
        created_at=now,
        updated_at=now,
    )


def _stored_constraints(command: Delegate, terms: GrantTerms) -> str:
    """Return the requested constraints, plus inherited actions and budget, so that each edge has all its limits."""
    inherited: dict[str, object] = {}
    if command.actions is None and terms.actions is not None:
        inherited["actions"] = sorted(terms.actions)
    if command.budget is None and terms.budget is not None:
        inherited["budget"] = terms.budget
    if not inherited:
        return command.constraints
    requested = msgspec.json.decode(command.constraints, type=dict[str, object])
    return msgspec.json.encode({**requested, **inherited}).decode()
