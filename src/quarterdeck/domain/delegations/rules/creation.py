"""Which edges are made. A `Ledger` is given what it may know, and decides each ask in order of arrival; where that
needs more of the graph it says so, is told, and is asked again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Forbidden, Invalid, Problem
from quarterdeck.core.idempotency import Key, KeyRecord, key_conflict
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
from quarterdeck.domain.delegations.rules.states import DELEGATION_STATES, Ref, encode_names
from quarterdeck.domain.delegations.rules.topological_order import RespaceRequest, TopologicalOrder, WalkRequest
from quarterdeck.domain.sessions.model import Session, State
from quarterdeck.domain.sessions.rules import bearer_problem, is_live, ownership_required, suspended_caller_problem

CREATE_OPERATION = "delegation.create"
"""The operation's name in the scope of an idempotency key."""


@dataclass(frozen=True, slots=True)
class DelegationBatchInput:
    """Everything that decides, read under the zones' locks."""

    now: Millis
    sessions: Mapping[Ref, Session]
    """Sources, targets, and the sessions that callers' tokens speak for."""
    edges: Mapping[Ref, Edge] = field(default_factory=dict)
    """Active ones into the sources; those that are named as parents; those that tokens and keys stand for."""
    orphaned: Collection[Ref] = ()
    """Edges of which a lender, or one further up its line, has ended."""
    target_sessions: Collection[Ref] = ()
    """Sessions that an edge has ever led to."""
    ranks: Mapping[Ref, int] = field(default_factory=dict)
    """Of the sources and targets, as far as they have one."""
    rank_bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The lowest and the highest rank of each zone that has any."""
    keys: Mapping[Key, KeyRecord] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Endpoints:
    """Both ends of an edge that is asked for."""

    source: Session
    target: Session

    @property
    def expires_at(self) -> Millis:
        """When the first of both is over, and the authority with it."""
        return min(self.source.expires_at, self.target.expires_at)


class DelegationDecider:
    """What is known, plus what this batch has added to it so far: what is made can be lent on, and closes cycles, for
    those after it."""

    def __init__(self, loaded: DelegationBatchInput) -> None:
        self._loaded = loaded
        self._now = loaded.now
        self._edges = {**loaded.edges}
        self._target_sessions = {*loaded.target_sessions}
        self.order = TopologicalOrder(loaded.ranks, loaded.rank_bounds)
        self._inbound: dict[Ref, list[Edge]] = {}
        for edge in loaded.edges.values():
            self._inbound.setdefault((edge.zone_id, edge.target_session_id), []).append(edge)
        self._keyed_edges: dict[Key, tuple[str, Edge]] = {}
        self._created: list[Edge] = []

    def take_created(self) -> list[Edge]:
        """The edges that were made since it was last asked: they are to be written."""
        created, self._created = self._created, []
        return created

    def decide(self, command: Delegate) -> DelegatedEdge | Problem | WalkRequest | RespaceRequest:
        """What becomes of an ask, or what its `order` lacks before that can be said."""
        if caller_problem := bearer_problem(command.bearer, self._loaded.sessions, self._now):
            return caller_problem
        endpoints = self._find_endpoints(command)
        if isinstance(endpoints, Problem):
            return endpoints
        return (
            _ownership_problem(command, endpoints)
            or self._idempotent_result(command, endpoints)
            or self._precondition_problem(command, endpoints)
            or self.order.missing_input(command.zone_id, command.source_session_id, command.target_session_id)
            or self._cycle_problem(command)
            or self._create_edge(command, endpoints)
        )

    # -- who is concerned

    def _find_endpoints(self, command: Delegate) -> _Endpoints | Problem:
        endpoints = []
        for session_id in (command.source_session_id, command.target_session_id):
            session = self._loaded.sessions.get((command.zone_id, session_id))
            if session is None or not is_live(session, self._now):
                return states.endpoint_not_found(session_id)
            endpoints.append(session)
        return _Endpoints(*endpoints)

    def _idempotent_result(self, command: Delegate, endpoints: _Endpoints) -> DelegatedEdge | Problem | None:
        """A key that stands for an edge decides while that edge is active."""
        if command.idempotency_key is None:
            return None
        scope = key_scope(command, endpoints.source)
        found = self._keyed_edges.get(scope)
        if found is None and (key_record := self._loaded.keys.get(scope)):
            edge = self._edges.get((command.zone_id, key_record.subject_id))
            if edge is not None and states.is_active(edge, self._now):
                found = (key_record.digest, edge)
        if found is None:
            return None
        digest, edge = found
        return DelegatedEdge(edge, created=False) if digest == command.request_digest else key_conflict(scope)

    # -- what is refused

    def _precondition_problem(self, command: Delegate, endpoints: _Endpoints) -> Problem | None:
        if problem := suspended_caller_problem(command.caller, self._loaded.sessions):
            return problem
        for session in (endpoints.source, endpoints.target):
            if session.status is not State.ACTIVE:
                return states.suspended(session.id)
        expires_at = requested_expiry(command, self._now)
        if expires_at is not None and expires_at <= self._now:
            return states.already_expired()
        return None

    def _cycle_problem(self, command: Delegate) -> Problem | None:
        if self.order.closes_cycle(command.zone_id, command.source_session_id, command.target_session_id):
            return states.cycle_denied(command.source_session_id, command.target_session_id)
        return None

    # -- by what authority

    def _find_parent(self, command: Delegate, endpoints: _Endpoints) -> Edge | Problem | None:
        """The edge it is derived from; None: out of the caller's token."""
        token_edge_id = command.caller.delegation_edge_id
        if token_edge_id is not None:
            return self._parent_from_token(command, endpoints, token_edge_id)
        if command.parent_edge_id is not None:
            parent = self._edges.get((command.zone_id, command.parent_edge_id))
            if parent is None:
                return states.not_found(command.parent_edge_id)
            return self._check_parent(command, endpoints, parent)
        source = (command.zone_id, command.source_session_id)
        if source in self._target_sessions:
            return self._find_covering_parent(command, endpoints, self._inbound.get(source, ()))
        problems = find_excess(self._requested_terms(command, endpoints, None), token_terms(command.caller))
        return states.exceeds_authority("This goes beyond what the token may lend.", problems) if problems else None

    def _parent_from_token(self, command: Delegate, endpoints: _Endpoints, edge_id: str) -> Edge | Problem:
        """A token that names an edge speaks by that edge, and by no other."""
        edge = self._edges.get((command.zone_id, edge_id))
        if command.parent_edge_id not in (None, edge_id):
            return _token_edge_problem(edge_id, "It is to be derived from another one.")
        if edge is None or edge.target_session_id != command.source_session_id:
            return _token_edge_problem(edge_id, "That one does not lead to the source.")
        return self._check_parent(command, endpoints, edge)

    def _check_parent(self, command: Delegate, endpoints: _Endpoints, parent: Edge) -> Edge | Problem:
        if parent.target_session_id != command.source_session_id:
            return Invalid(
                "invalid_parent_edge",
                f"The delegation {parent.id!r} does not lead to the source: it lends it nothing.",
                field="parent_edge_id",
            )
        if problems := self._parent_problems(command, endpoints, parent):
            return states.exceeds_authority(f"The delegation {parent.id!r} does not cover this.", problems, parent.id)
        return parent

    def _find_covering_parent(
        self, command: Delegate, endpoints: _Endpoints, inbound: Sequence[Edge]
    ) -> Edge | Problem:
        """Of the edges that cover it the one that expires last; of those the one with the lowest id."""
        candidates = sorted(inbound, key=lambda edge: (-edge.expires_at, edge.id))
        closest: tuple[Edge, list[str]] | None = None
        for edge in candidates:
            problems = self._parent_problems(command, endpoints, edge)
            if not problems:
                return edge
            if closest is None or len(problems) < len(closest[1]):
                closest = (edge, problems)
        if closest is None:
            detail = "What was lent to the source is over, and it lends nothing else."
            return states.exceeds_authority(detail, ["No active delegation leads to the source."])
        return states.exceeds_authority("No delegation to the source covers this.", closest[1], closest[0].id)

    def _parent_problems(self, command: Delegate, endpoints: _Endpoints, parent: Edge) -> list[str]:
        if not states.is_active(parent, self._now):
            return [f"It is {states.with_current_status(parent, self._now).status}."]
        if (parent.zone_id, parent.id) in self._loaded.orphaned:
            return ["A session that it was lent by has ended."]
        return find_excess(self._requested_terms(command, endpoints, parent), edge_terms(parent))

    def _requested_terms(self, command: Delegate, endpoints: _Endpoints, parent: Edge | None) -> GrantTerms:
        parent_terms = edge_terms(parent) if parent is not None else token_terms(command.caller)
        return requested_terms(command, parent_terms, self._now)

    # -- what is made

    def _create_edge(self, command: Delegate, endpoints: _Endpoints) -> DelegatedEdge | Problem:
        parent = self._find_parent(command, endpoints)
        if isinstance(parent, Problem):
            return parent
        edge = _new_edge(command, endpoints, parent, self._requested_terms(command, endpoints, parent), self._now)
        target = (edge.zone_id, edge.target_session_id)
        self._created.append(edge)
        self._edges[edge.zone_id, edge.id] = edge
        self._inbound.setdefault(target, []).append(edge)
        self._target_sessions.add(target)
        self.order.add_edge(edge.zone_id, edge.source_session_id, edge.target_session_id)
        if command.idempotency_key is not None:
            self._keyed_edges[key_scope(command, endpoints.source)] = (command.request_digest, edge)
        return DelegatedEdge(edge, created=True)


def key_scope(command: Delegate, source: Session) -> Key:
    """The scope of an ask's key: what an application lends is what its sessions lend."""
    return Key(command.zone_id, source.application_id, CREATE_OPERATION, command.idempotency_key or "")


def _ownership_problem(command: Delegate, endpoints: _Endpoints) -> Problem | None:
    for session, permission in ((endpoints.source, "delegate_from"), (endpoints.target, "delegate_to")):
        if not command.caller.can_act_for(session.application_id, permission):
            return ownership_required(session.application_id)
    if command.issuer_application_id not in (None, endpoints.source.application_id):
        return Invalid(
            "invalid_issuer_application",
            f"The source belongs to the application {endpoints.source.application_id!r}.",
            field="issuer_application_id",
        )
    if command.receiver_application_id not in (None, endpoints.target.application_id):
        return Invalid(
            "invalid_receiver_application",
            f"The target belongs to the application {endpoints.target.application_id!r}.",
            field="receiver_application_id",
        )
    return None


def _token_edge_problem(edge_id: str, reason: str) -> Forbidden:
    return states.exceeds_authority(f"The token is held to the delegation {edge_id!r}.", [reason], edge_id)


def _new_edge(command: Delegate, endpoints: _Endpoints, parent: Edge | None, terms: GrantTerms, now: Millis) -> Edge:
    assert terms.scopes is not None  # an ask names its scopes
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
        # Whatever was asked for: an edge that outlasted one of its sessions would read as active and hold nothing, and
        # so would all that is derived from it. No session's end is ever put off.
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
    """As they were given, and what was taken over from the parent: every edge says for itself what it bounds."""
    inherited: dict[str, object] = {}
    if command.actions is None and terms.actions is not None:
        inherited["actions"] = sorted(terms.actions)
    if command.budget is None and terms.budget is not None:
        inherited["budget"] = terms.budget
    if not inherited:
        return command.constraints
    requested = msgspec.json.decode(command.constraints, type=dict[str, object])
    return msgspec.json.encode({**requested, **inherited}).decode()
