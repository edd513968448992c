"""Who is admitted. `admit` is the specification of the quota table.

It is given everything it may know (the zones' terms, the parents, what keys stand for, the counts, the time) and
decides each ask in order of arrival, counting what it has admitted itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import msgspec

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.errors import Forbidden, Frozen, LimitReached, NotFound, Problem
from quarterdeck.core.idempotency import Binding, Key, conflict
from quarterdeck.domain.sessions.model import Member, Session, Spawn, Spawned, State
from quarterdeck.domain.sessions.rules.states import SESSION, asleep, bearer_problem, is_live
from quarterdeck.domain.zones.model import CEILINGS, Limits, Terms

SPAWN = "spawn"
"""The operation's name in the scope of an idempotency key."""
RETRY_SECONDS = 5
"""A hint for whoever met a bound that others can free."""


# -- counting ----------------------------------------------------------------------------------------------------

CountKey = tuple[str, str, str]
"""(zone, scope, key): what one row of `admission_counts` counts."""


class Count(msgspec.Struct, frozen=True):
    live: int = 0
    ever: int = 0


NOTHING = Count()
Counts = Mapping[CountKey, Count]


class Expired(msgspec.Struct, frozen=True, array_like=True):
    """So many sessions of one kind that have expired and were not swept."""

    zone_id: str
    application_id: str
    parent_id: str | None
    root_id: str
    number: int


class Counted(Protocol):
    """What of a row says where a session is counted."""

    @property
    def zone_id(self) -> str: ...
    @property
    def application_id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def root_id(self) -> str: ...


def counted_in(session: Counted) -> Iterator[CountKey]:
    """Every row of `admission_counts` that a session is counted in."""
    zone = session.zone_id
    yield (zone, "zone", "")
    yield (zone, "application", session.application_id)
    yield (zone, "tree", session.root_id)
    if session.parent_id is not None:
        yield (zone, "concurrent", "")
        yield (zone, "parent", session.parent_id)


def emptied_by(session: Session | Member) -> Iterator[CountKey]:
    """The rows of `admission_counts` in which nothing can be counted any more once a session has ended."""
    yield (session.zone_id, "parent", session.id)
    if session.parent_id is None:
        yield (session.zone_id, "tree", session.id)


def tally(sessions: Iterable[Counted]) -> dict[CountKey, int]:
    counted: dict[CountKey, int] = {}
    for session in sessions:
        for key in counted_in(session):
            counted[key] = counted.get(key, 0) + 1
    return counted


def without(counts: Counts, gone: Sequence[Expired]) -> dict[CountKey, Count]:
    """Counts less what has expired but was not swept: it no longer holds a place, though it once took one."""
    corrected = dict(counts)
    for group in gone:
        for key in counted_in(group):
            if known := corrected.get(key):
                corrected[key] = Count(known.live - group.number, known.ever)
    return corrected


# -- the bounds --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bound:
    """One row of the quota table: its name on the wire, its refusal code, and what would free it."""

    name: str
    code: str
    counts: str
    frees: str
    waiting_helps: bool = True


MAX_SESSIONS = Bound(
    "max_sessions", "agent_zone_limit_exceeded", "live sessions in the zone", "a session of the zone ends"
)
MAX_PER_APPLICATION = Bound(
    "max_sessions_per_application", "agent_limit_exceeded", "live sessions of the application in the zone",
    "a session of the application ends",
)  # fmt: skip
MAX_CHILDREN = Bound(
    "max_children", "agent_children_limit_exceeded", "live children of the parent", "a child of the parent ends"
)
MAX_DEPTH = Bound(
    "max_depth", "agent_depth_limit_exceeded", "distance of the parent from its root", "spawn under a session nearer "
    "to the root", waiting_helps=False,
)  # fmt: skip
MAX_TREE_SIZE = Bound(
    "max_tree_size", "agent_tree_limit_exceeded", "live sessions of the tree", "a session of the tree ends"
)
MAX_TREE_SPAWNS = Bound(
    "max_tree_spawns", "agent_tree_spawns_exceeded", "sessions ever admitted in the tree", "nothing within this tree: "
    "start a new one", waiting_helps=False,
)  # fmt: skip
MAX_CONCURRENT = Bound(
    "max_concurrent", "agent_concurrency_limit_exceeded", "live child sessions in the zone",
    "a child session of the zone ends",
)  # fmt: skip
BOUNDS = (
    MAX_SESSIONS, MAX_PER_APPLICATION, MAX_CHILDREN, MAX_DEPTH, MAX_TREE_SIZE, MAX_TREE_SPAWNS, MAX_CONCURRENT,
)  # fmt: skip
"""In the order in which they are checked: the first that holds is the one that is named."""


# -- admission ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Known:
    """Everything admission may know, read under the zones' locks."""

    now: Millis
    terms: Mapping[str, Terms]
    sessions: Mapping[tuple[str, str], Session] = field(default_factory=dict)
    """By (zone, id): parents, the sessions that callers' tokens speak for, and what keys stand for."""
    keys: Mapping[Key, Binding] = field(default_factory=dict)
    counts: Counts = field(default_factory=dict)

    def parent_of(self, ask: Spawn) -> Session | None:
        return self.sessions.get((ask.zone_id, ask.parent_id)) if ask.parent_id is not None else None


def admit(asks: Sequence[Spawn], known: Known) -> list[Spawned | Problem]:
    """Decides each ask in order. What is admitted counts against those after it; what is refused does not."""
    ledger = Ledger(known)
    return [ledger.decide(ask) for ask in asks]


def closed_door(ask: Spawn, known: Known) -> Problem | None:
    """What refuses an ask whatever is used: the zone is over or frozen, there is nothing to spawn under, whoever asks
    sleeps."""
    terms = known.terms[ask.zone_id]
    if terms.ended:
        return NotFound("zone_not_found", f"The zone {ask.zone_id!r} has ended.", frees="nothing: use another zone")
    if terms.frozen:
        return Frozen(
            "zone_frozen", f"Admission to zone {ask.zone_id!r} is frozen.", frees="an administrator thaws the zone"
        )
    return _parent_problem(ask, known) or asleep(ask.caller, known.sessions)


def _parent_problem(ask: Spawn, known: Known) -> Problem | None:
    if ask.parent_id is None:
        return None
    parent = known.parent_of(ask)
    if parent is None or not is_live(parent, known.now):
        return NotFound("parent_not_found", f"There is no live session {ask.parent_id!r} to spawn under.")
    if parent.status is not State.ACTIVE:
        return NotFound(
            "parent_not_found",
            f"The session {ask.parent_id!r} is suspended; nothing can be spawned under it.",
            frees="it is resumed",
        )
    if not ask.caller.may_act_for(parent.application_id, "spawn_under"):
        return Forbidden("parent_ownership_required", "The parent belongs to another application.")
    return None


class Ledger:
    """Known counts and keys, plus what this batch has added to them so far."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._added: dict[CountKey, int] = {}
        self._bound: dict[Key, tuple[str, Session]] = {}

    def decide(self, ask: Spawn) -> Spawned | Problem:
        return self._stranger(ask) or self._replay(ask) or self._refusal(ask) or self._enter(ask)

    def _stranger(self, ask: Spawn) -> Problem | None:
        return bearer_problem(ask.bearer, self._known.sessions, self._known.now)

    def _replay(self, ask: Spawn) -> Spawned | Problem | None:
        """A key that stands for a live session decides before every bound."""
        if ask.key is None:
            return None
        scope = Key(ask.zone_id, ask.application_id, SPAWN, ask.key)
        found = self._bound.get(scope)
        if found is None and (binding := self._known.keys.get(scope)):
            session = self._known.sessions.get((ask.zone_id, binding.subject_id))
            if session is not None and is_live(session, self._known.now):
                found = (binding.digest, session)
        if found is None:
            return None
        digest, session = found
        return Spawned(session, created=False) if digest == ask.digest else conflict(scope)

    def _refusal(self, ask: Spawn) -> Problem | None:
        return closed_door(ask, self._known) or next(
            (exceeded(bound, limit, used) for bound, limit, used in self.uses(ask) if used + 1 > limit), None
        )

    def uses(self, ask: Spawn) -> Iterator[tuple[Bound, int, int]]:
        """Each bound an ask is judged by, its limit, and how much of it is used, in the order of BOUNDS."""
        limits = self._known.terms[ask.zone_id].limits
        for bound, used in self._used(ask, self._known.parent_of(ask)):
            yield bound, getattr(limits, bound.name), used

    def _used(self, ask: Spawn, parent: Session | None) -> Iterator[tuple[Bound, int]]:
        """How much of each bound is used, in the order of BOUNDS."""
        zone = ask.zone_id
        tree = (zone, "tree", parent.root_id if parent else ask.id)
        yield MAX_SESSIONS, self._live((zone, "zone", ""))
        yield MAX_PER_APPLICATION, self._live((zone, "application", ask.application_id))
        if parent:
            yield MAX_CHILDREN, self._live((zone, "parent", parent.id))
            yield MAX_DEPTH, parent.depth
        yield MAX_TREE_SIZE, self._live(tree)
        yield MAX_TREE_SPAWNS, self._known.counts.get(tree, NOTHING).ever + self._added.get(tree, 0)
        if parent:
            yield MAX_CONCURRENT, self._live((zone, "concurrent", ""))

    def _live(self, key: CountKey) -> int:
        return self._known.counts.get(key, NOTHING).live + self._added.get(key, 0)

    def _enter(self, ask: Spawn) -> Spawned:
        parent = self._known.parent_of(ask)
        session = admitted(ask, parent, limits_text(self._known.terms[ask.zone_id].limits), self._known.now)
        for key in counted_in(session):
            self._added[key] = self._added.get(key, 0) + 1
        if ask.key is not None:
            self._bound[Key(ask.zone_id, ask.application_id, SPAWN, ask.key)] = (ask.digest, session)
        return Spawned(session, created=True)


@lru_cache(maxsize=4096)
def limits_text(limits: Limits) -> str:
    return msgspec.json.encode(limits).decode()


def admitted(ask: Spawn, parent: Session | None, limits: str, now: Millis) -> Session:
    """The session an admitted ask becomes. It never outlives its parent."""
    expires_at = now + ask.ttl_seconds * SECOND
    return Session(
        id=ask.id,
        zone_id=ask.zone_id,
        application_id=ask.application_id,
        parent_id=ask.parent_id,
        root_id=parent.root_id if parent else ask.id,
        session_sid=ask.session_sid,
        kind=ask.kind,
        status=SESSION.start,
        depth=parent.depth + 1 if parent else 0,
        capabilities=ask.capabilities,
        metadata=ask.metadata,
        ttl_seconds=ask.ttl_seconds,
        limits=limits,
        spawned_at=now,
        expires_at=min(expires_at, parent.expires_at) if parent else expires_at,
        suspended_at=None,
        terminated_at=None,
        termination_reason=None,
        created_at=now,
        updated_at=now,
        held=0,
        cascade_id=None,
    )


def exceeded(bound: Bound, limit: int, used: int) -> LimitReached:
    helps: dict[str, object] = {"retry_after": RETRY_SECONDS} if bound.waiting_helps else {}
    return LimitReached(
        bound.code,
        f"{bound.name} is {limit}, and {used} are used ({bound.counts}).",
        bound=bound.name,
        limit=limit,
        used=used,
        frees=f"{bound.frees}; or an administrator raises {bound.name} (ceiling {CEILINGS[bound.name]})",
        **helps,
    )
