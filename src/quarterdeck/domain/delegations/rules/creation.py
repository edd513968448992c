"""Which edges are made. A `Ledger` is given what it may know, and decides each ask in order of arrival; where that
needs more of the graph it says so, is told, and is asked again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Forbidden, Invalid, Problem
from quarterdeck.core.idempotency import Binding, Key, conflict
from quarterdeck.domain.delegations.model import Delegate, Delegated, Edge
from quarterdeck.domain.delegations.rules import states
from quarterdeck.domain.delegations.rules.attenuation import Terms, excess, narrowed, terms_of, terms_of_token, until
from quarterdeck.domain.delegations.rules.states import DELEGATION, Ref, stored
from quarterdeck.domain.delegations.rules.topological_order import Crowded, Order, Walk
from quarterdeck.domain.sessions.model import Session, State
from quarterdeck.domain.sessions.rules import asleep, bearer_problem, is_live, ownership_required

CREATE = "delegation.create"
"""The operation's name in the scope of an idempotency key."""


@dataclass(frozen=True, slots=True)
class Known:
    """Everything that decides, read under the zones' locks."""

    now: Millis
    sessions: Mapping[Ref, Session]
    """Sources, targets, and the sessions that callers' tokens speak for."""
    edges: Mapping[Ref, Edge] = field(default_factory=dict)
    """Active ones into the sources; those that are named as parents; those that tokens and keys stand for."""
    hollow: Collection[Ref] = ()
    """Edges of which a lender, or one further up its line, has ended."""
    led_to: Collection[Ref] = ()
    """Sessions that an edge has ever led to."""
    ranks: Mapping[Ref, int] = field(default_factory=dict)
    """Of the sources and targets, as far as they have one."""
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """The lowest and the highest rank of each zone that has any."""
    keys: Mapping[Key, Binding] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Ends:
    """Both ends of an edge that is asked for."""

    source: Session
    target: Session

    @property
    def last(self) -> Millis:
        """When the first of both is over, and the authority with it."""
        return min(self.source.expires_at, self.target.expires_at)


class Ledger:
    """What is known, plus what this batch has added to it so far: what is made can be lent on, and closes cycles, for
    those after it."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._now = known.now
        self._edges = {**known.edges}
        self._led_to = {*known.led_to}
        self.order = Order(known.ranks, known.bounds)
        self._into: dict[Ref, list[Edge]] = {}
        for edge in known.edges.values():
            self._into.setdefault((edge.zone_id, edge.target_session_id), []).append(edge)
        self._bound: dict[Key, tuple[str, Edge]] = {}
        self._made: list[Edge] = []

    def take(self) -> list[Edge]:
        """The edges that were made since it was last asked: they are to be written."""
        taken, self._made = self._made, []
        return taken

    def decide(self, ask: Delegate) -> Delegated | Problem | Walk | Crowded:
        """What becomes of an ask, or what its `order` lacks before that can be said."""
        if stranger := bearer_problem(ask.bearer, self._known.sessions, self._now):
            return stranger
        ends = self._ends(ask)
        if isinstance(ends, Problem):
            return ends
        return (
            _ownership(ask, ends)
            or self._replay(ask, ends)
            or self._refusal(ask, ends)
            or self.order.lacks(ask.zone_id, ask.source_session_id, ask.target_session_id)
            or self._cycle(ask)
            or self._enter(ask, ends)
        )

    # -- who is concerned

    def _ends(self, ask: Delegate) -> _Ends | Problem:
        found = []
        for name in (ask.source_session_id, ask.target_session_id):
            session = self._known.sessions.get((ask.zone_id, name))
            if session is None or not is_live(session, self._now):
                return states.endpoint_not_found(name)
            found.append(session)
        return _Ends(*found)

    def _replay(self, ask: Delegate, ends: _Ends) -> Delegated | Problem | None:
        """A key that stands for an edge decides while that edge is active."""
        if ask.key is None:
            return None
        scope = key_of(ask, ends.source)
        found = self._bound.get(scope)
        if found is None and (binding := self._known.keys.get(scope)):
            edge = self._edges.get((ask.zone_id, binding.subject_id))
            if edge is not None and states.holds(edge, self._now):
                found = (binding.digest, edge)
        if found is None:
            return None
        digest, edge = found
        return Delegated(edge, created=False) if digest == ask.digest else conflict(scope)

    # -- what is refused

    def _refusal(self, ask: Delegate, ends: _Ends) -> Problem | None:
        if sleeping := asleep(ask.caller, self._known.sessions):
            return sleeping
        for session in (ends.source, ends.target):
            if session.status is not State.ACTIVE:
                return states.suspended(session.id)
        asked = until(ask, self._now)
        if asked is not None and asked <= self._now:
            return states.expired()
        return None

    def _cycle(self, ask: Delegate) -> Problem | None:
        if self.order.closes(ask.zone_id, ask.source_session_id, ask.target_session_id):
            return states.cycle(ask.source_session_id, ask.target_session_id)
        return None

    # -- by what authority

    def _authority(self, ask: Delegate, ends: _Ends) -> Edge | Problem | None:
        """The edge it is derived from; None: out of the caller's token."""
        token_edge = ask.caller.delegation_edge_id
        if token_edge is not None:
            return self._by_token_edge(ask, ends, token_edge)
        if ask.parent_edge_id is not None:
            parent = self._edges.get((ask.zone_id, ask.parent_edge_id))
            if parent is None:
                return states.not_found(ask.parent_edge_id)
            return self._by_named(ask, ends, parent)
        source = (ask.zone_id, ask.source_session_id)
        if source in self._led_to:
            return self._by_covering(ask, ends, self._into.get(source, ()))
        beyond = excess(self._wanted(ask, ends, None), terms_of_token(ask.caller))
        return states.exceeds("This goes beyond what the token may lend.", beyond) if beyond else None

    def _by_token_edge(self, ask: Delegate, ends: _Ends, edge_id: str) -> Edge | Problem:
        """A token that names an edge speaks by that edge, and by no other."""
        edge = self._edges.get((ask.zone_id, edge_id))
        if ask.parent_edge_id not in (None, edge_id):
            return _held_to(edge_id, "It is to be derived from another one.")
        if edge is None or edge.target_session_id != ask.source_session_id:
            return _held_to(edge_id, "That one does not lead to the source.")
        return self._by_named(ask, ends, edge)

    def _by_named(self, ask: Delegate, ends: _Ends, parent: Edge) -> Edge | Problem:
        if parent.target_session_id != ask.source_session_id:
            return Invalid(
                "invalid_parent_edge",
                f"The delegation {parent.id!r} does not lead to the source: it lends it nothing.",
                field="parent_edge_id",
            )
        if beyond := self._beyond(ask, ends, parent):
            return states.exceeds(f"The delegation {parent.id!r} does not cover this.", beyond, parent.id)
        return parent

    def _by_covering(self, ask: Delegate, ends: _Ends, into: Sequence[Edge]) -> Edge | Problem:
        """Of the edges that cover it the one that expires last; of those the one with the lowest id."""
        ranked = sorted(into, key=lambda edge: (-edge.expires_at, edge.id))
        nearest: tuple[Edge, list[str]] | None = None
        for edge in ranked:
            beyond = self._beyond(ask, ends, edge)
            if not beyond:
                return edge
            if nearest is None or len(beyond) < len(nearest[1]):
                nearest = (edge, beyond)
        if nearest is None:
            says = "What was lent to the source is over, and it lends nothing else."
            return states.exceeds(says, ["No active delegation leads to the source."])
        return states.exceeds("No delegation to the source covers this.", nearest[1], nearest[0].id)

    def _beyond(self, ask: Delegate, ends: _Ends, parent: Edge) -> list[str]:
        if not states.holds(parent, self._now):
            return [f"It is {states.as_read(parent, self._now).status}."]
        if (parent.zone_id, parent.id) in self._known.hollow:
            return ["A session that it was lent by has ended."]
        return excess(self._wanted(ask, ends, parent), terms_of(parent))

    def _wanted(self, ask: Delegate, ends: _Ends, parent: Edge | None) -> Terms:
        above = terms_of(parent) if parent is not None else terms_of_token(ask.caller)
        return narrowed(ask, above, self._now)

    # -- what is made

    def _enter(self, ask: Delegate, ends: _Ends) -> Delegated | Problem:
        parent = self._authority(ask, ends)
        if isinstance(parent, Problem):
            return parent
        edge = _made(ask, ends, parent, self._wanted(ask, ends, parent), self._now)
        target = (edge.zone_id, edge.target_session_id)
        self._made.append(edge)
        self._edges[edge.zone_id, edge.id] = edge
        self._into.setdefault(target, []).append(edge)
        self._led_to.add(target)
        self.order.enter(edge.zone_id, edge.source_session_id, edge.target_session_id)
        if ask.key is not None:
            self._bound[key_of(ask, ends.source)] = (ask.digest, edge)
        return Delegated(edge, created=True)


def key_of(ask: Delegate, source: Session) -> Key:
    """The scope of an ask's key: what an application lends is what its sessions lend."""
    return Key(ask.zone_id, source.application_id, CREATE, ask.key or "")


def _ownership(ask: Delegate, ends: _Ends) -> Problem | None:
    for session, power in ((ends.source, "delegate_from"), (ends.target, "delegate_to")):
        if not ask.caller.may_act_for(session.application_id, power):
            return ownership_required(session.application_id)
    if ask.issuer_application_id not in (None, ends.source.application_id):
        return Invalid(
            "invalid_issuer_application",
            f"The source belongs to the application {ends.source.application_id!r}.",
            field="issuer_application_id",
        )
    if ask.receiver_application_id not in (None, ends.target.application_id):
        return Invalid(
            "invalid_receiver_application",
            f"The target belongs to the application {ends.target.application_id!r}.",
            field="receiver_application_id",
        )
    return None


def _held_to(edge_id: str, why: str) -> Forbidden:
    return states.exceeds(f"The token is held to the delegation {edge_id!r}.", [why], edge_id)


def _made(ask: Delegate, ends: _Ends, parent: Edge | None, terms: Terms, now: Millis) -> Edge:
    assert terms.scopes is not None  # an ask names its scopes
    return Edge(
        id=ask.id,
        zone_id=ask.zone_id,
        source_session_id=ask.source_session_id,
        target_session_id=ask.target_session_id,
        issuer_application_id=ends.source.application_id,
        receiver_application_id=ends.target.application_id,
        scopes=stored(terms.scopes),
        resource_id=ask.resource_id,
        resources=None if terms.resources is None else stored(terms.resources),
        hops=terms.hops,
        constraints_json=_constraints(ask, terms),
        parent_edge_id=parent.id if parent else None,
        status=DELEGATION.start,
        # Whatever was asked for: an edge that outlasted one of its sessions would read as active and hold nothing, and
        # so would all that is derived from it. No session's end is ever put off.
        expires_at=min(terms.expires_at, ends.last),
        edge_version=1,
        created_by=ask.caller.subject,
        trace=ask.trace,
        ended_at=None,
        ended_reason=None,
        created_at=now,
        updated_at=now,
    )


def _constraints(ask: Delegate, terms: Terms) -> str:
    """As they were given, and what was taken over from the parent: every edge says for itself what it bounds."""
    taken: dict[str, object] = {}
    if ask.actions is None and terms.actions is not None:
        taken["actions"] = sorted(terms.actions)
    if ask.budget is None and terms.budget is not None:
        taken["budget"] = terms.budget
    if not taken:
        return ask.constraints
    given = msgspec.json.decode(ask.constraints, type=dict[str, object])
    return msgspec.json.encode({**given, **taken}).decode()
