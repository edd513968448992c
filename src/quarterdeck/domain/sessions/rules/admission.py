"""Decides which spawns the quotas admit. `BOUNDS` is the quota table.

`admit` decides the commands in order of arrival and counts the sessions that it has admitted. `SpawnBatchInput` holds
all its input: the limits of the zones, the parents, the idempotency keys and their sessions, the counts and the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

import msgspec

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.errors import Forbidden, Frozen, LimitReached, NotFound, Problem
from quarterdeck.core.idempotency import Key, KeyRecord, key_conflict
from quarterdeck.domain.access.rules import LivenessFields, is_live, suspended_caller_problem
from quarterdeck.domain.sessions.model import Session, Spawn, Spawned, State, TreeNode
from quarterdeck.domain.sessions.rules.states import SESSION_STATES
from quarterdeck.domain.zones.model import CEILINGS, Limits, ZoneAdmissionState

SPAWN = "spawn"
"""The name of the operation in the scope of an idempotency key."""
RETRY_SECONDS = 5
"""The value of `retry_after` if the end of another session frees the bound."""


# -- counts ------------------------------------------------------------------------------------------------------

CountKey = tuple[str, str, str]
"""(zone, scope, key): the primary key of `admission_counts`."""


class Count(msgspec.Struct, frozen=True):
    live: int = 0
    ever: int = 0


NO_COUNT = Count()
Counts = Mapping[CountKey, Count]


class ExpiredGroup(msgspec.Struct, frozen=True, array_like=True):
    """Expired sessions with the same application, parent and tree that no sweep has terminated yet."""

    zone_id: str
    application_id: str
    parent_id: str | None
    root_id: str
    session_count: int


class CountedSession(Protocol):
    """The columns that decide which counts include a session."""

    @property
    def zone_id(self) -> str: ...
    @property
    def application_id(self) -> str: ...
    @property
    def parent_id(self) -> str | None: ...
    @property
    def root_id(self) -> str: ...


def count_keys(session: CountedSession) -> Iterator[CountKey]:
    """The rows of `admission_counts` that include a session."""
    zone = session.zone_id
    yield (zone, "zone", "")
    yield (zone, "application", session.application_id)
    yield (zone, "tree", session.root_id)
    if session.parent_id is not None:
        yield (zone, "concurrent", "")
        yield (zone, "parent", session.parent_id)


def obsolete_count_keys(session: Session | TreeNode) -> Iterator[CountKey]:
    """The rows of `admission_counts` that are no longer needed after a session has ended."""
    yield (session.zone_id, "parent", session.id)
    if session.parent_id is None:
        yield (session.zone_id, "tree", session.id)


def count_sessions(sessions: Iterable[CountedSession]) -> dict[CountKey, int]:
    counts: dict[CountKey, int] = {}
    for session in sessions:
        for key in count_keys(session):
            counts[key] = counts.get(key, 0) + 1
    return counts


def subtract_expired(counts: Counts, expired: Sequence[ExpiredGroup]) -> dict[CountKey, Count]:
    """Subtract sessions that have expired but are not swept yet. They count in `ever`, but no longer in `live`."""
    corrected = dict(counts)
    for group in expired:
        for key in count_keys(group):
            if count := corrected.get(key):
                corrected[key] = Count(count.live - group.session_count, count.ever)
    return corrected


# -- bounds ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bound:
    """One row of the quota table: its name on the wire and its error code.

    `unit` names what is counted, and `frees` what lowers the count. Both are phrases for messages.
    """

    name: str
    code: str
    unit: str
    frees: str
    is_retryable: bool = True


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
    "max_depth", "agent_depth_limit_exceeded", "levels from the root to the parent", "spawn under a session nearer "
    "to the root", is_retryable=False,
)  # fmt: skip
MAX_TREE_SIZE = Bound(
    "max_tree_size", "agent_tree_limit_exceeded", "live sessions of the tree", "a session of the tree ends"
)
MAX_TREE_SPAWNS = Bound(
    "max_tree_spawns", "agent_tree_spawns_exceeded", "sessions ever admitted in the tree", "nothing within this tree: "
    "start a new one", is_retryable=False,
)  # fmt: skip
MAX_CONCURRENT = Bound(
    "max_concurrent", "agent_concurrency_limit_exceeded", "live child sessions in the zone",
    "a child session of the zone ends",
)  # fmt: skip
BOUNDS = (
    MAX_SESSIONS, MAX_PER_APPLICATION, MAX_CHILDREN, MAX_DEPTH, MAX_TREE_SIZE, MAX_TREE_SPAWNS, MAX_CONCURRENT,
)  # fmt: skip
"""In the order of the checks: a refusal names the first bound that is reached."""


# -- admission ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SpawnBatchInput:
    """The input of a batch, loaded under the zones' locks, or without locks to explain a spawn."""

    now: Millis
    zones: Mapping[str, ZoneAdmissionState]
    sessions: Mapping[tuple[str, str], Session] = field(default_factory=dict)
    """By (zone, id): parents, and the sessions that idempotency keys created."""
    caller_sessions: Mapping[tuple[str, str], LivenessFields] = field(default_factory=dict)
    """By (zone, id): the sessions of callers' tokens."""
    keys: Mapping[Key, KeyRecord] = field(default_factory=dict)
    counts: Counts = field(default_factory=dict)

    def parent_of(self, command: Spawn) -> Session | None:
        return self.sessions.get((command.zone_id, command.parent_id)) if command.parent_id is not None else None


def admit(commands: Sequence[Spawn], loaded: SpawnBatchInput) -> list[Spawned | Problem]:
    """Decide the commands in order. Admitted spawns count against the limits of later commands; refused ones do not."""
    decider = SpawnDecider(loaded)
    return [decider.decide(command) for command in commands]


def precondition_problem(command: Spawn, loaded: SpawnBatchInput) -> Problem | None:
    """The problem with the zone, the parent or the caller that refuses a spawn regardless of quotas, or None."""
    zone = loaded.zones[command.zone_id]
    if zone.ended:
        return NotFound("zone_not_found", f"Zone {command.zone_id!r} has ended.", frees="nothing: use another zone")
    if zone.frozen:
        return Frozen(
            "zone_frozen",
            f"Zone {command.zone_id!r} is frozen and admits no sessions.",
            frees="an administrator thaws the zone",
        )
    return _parent_problem(command, loaded) or suspended_caller_problem(command.caller, loaded.caller_sessions)


def _parent_problem(command: Spawn, loaded: SpawnBatchInput) -> Problem | None:
    if command.parent_id is None:
        return None
    parent = loaded.parent_of(command)
    if parent is None or not is_live(parent, loaded.now):
        return NotFound("parent_not_found", f"Parent {command.parent_id!r} is not a live session of this zone.")
    if parent.status is not State.ACTIVE:
        return NotFound(
            "parent_not_found",
            f"Parent {command.parent_id!r} is suspended, so nothing can be spawned under it.",
            frees="it is resumed",
        )
    if not command.caller.can_act_for(parent.application_id, "spawn_under"):
        return Forbidden("parent_ownership_required", "The parent belongs to another application.")
    return None


class SpawnDecider:
    """Decides the spawns of one batch from the loaded counts and keys and from what the batch has added so far."""

    def __init__(self, loaded: SpawnBatchInput) -> None:
        self._loaded = loaded
        self._added_counts: dict[CountKey, int] = {}
        self._batch_keys: dict[Key, tuple[str, Session]] = {}

    def decide(self, command: Spawn) -> Spawned | Problem:
        return self._replay(command) or self._admission_problem(command) or self._admit(command)

    def _replay(self, command: Spawn) -> Spawned | Problem | None:
        """Return the live session that the idempotency key created, or a conflict. Checked before all bounds."""
        if command.key is None:
            return None
        key = Key(command.zone_id, command.application_id, SPAWN, command.key)
        previous = self._batch_keys.get(key)
        if previous is None and (record := self._loaded.keys.get(key)):
            session = self._loaded.sessions.get((command.zone_id, record.subject_id))
            if session is not None and is_live(session, self._loaded.now):
                previous = (record.digest, session)
        if previous is None:
            return None
        digest, session = previous
        return Spawned(session, created=False) if digest == command.digest else key_conflict(key)

    def _admission_problem(self, command: Spawn) -> Problem | None:
        return precondition_problem(command, self._loaded) or next(
            (
                limit_exceeded(bound, limit, used)
                for bound, limit, used in self.bound_usages(command)
                if used + 1 > limit
            ),
            None,
        )

    def bound_usages(self, command: Spawn) -> Iterator[tuple[Bound, int, int]]:
        """Each bound that applies to the spawn, with its limit and the used amount, in the order of BOUNDS."""
        limits = self._loaded.zones[command.zone_id].limits
        for bound, used in self._usages(command, self._loaded.parent_of(command)):
            yield bound, getattr(limits, bound.name), used

    def _usages(self, command: Spawn, parent: Session | None) -> Iterator[tuple[Bound, int]]:
        zone = command.zone_id
        tree = (zone, "tree", parent.root_id if parent else command.id)
        yield MAX_SESSIONS, self._live_count((zone, "zone", ""))
        yield MAX_PER_APPLICATION, self._live_count((zone, "application", command.application_id))
        if parent:
            yield MAX_CHILDREN, self._live_count((zone, "parent", parent.id))
            yield MAX_DEPTH, parent.depth
        yield MAX_TREE_SIZE, self._live_count(tree)
        yield MAX_TREE_SPAWNS, self._loaded.counts.get(tree, NO_COUNT).ever + self._added_counts.get(tree, 0)
        if parent:
            yield MAX_CONCURRENT, self._live_count((zone, "concurrent", ""))

    def _live_count(self, key: CountKey) -> int:
        return self._loaded.counts.get(key, NO_COUNT).live + self._added_counts.get(key, 0)

    def _admit(self, command: Spawn) -> Spawned:
        parent = self._loaded.parent_of(command)
        session = new_session(
            command, parent, limits_json(self._loaded.zones[command.zone_id].limits), self._loaded.now
        )
        for key in count_keys(session):
            self._added_counts[key] = self._added_counts.get(key, 0) + 1
        if command.key is not None:
            self._batch_keys[Key(command.zone_id, command.application_id, SPAWN, command.key)] = (
                command.digest,
                session,
            )
        return Spawned(session, created=True)


@lru_cache(maxsize=4096)
def limits_json(limits: Limits) -> str:
    return msgspec.json.encode(limits).decode()


def new_session(command: Spawn, parent: Session | None, limits: str, now: Millis) -> Session:
    """Build the session of an admitted spawn. It never outlives its parent."""
    expires_at = now + command.ttl_seconds * SECOND
    return Session(
        id=command.id,
        zone_id=command.zone_id,
        application_id=command.application_id,
        parent_id=command.parent_id,
        root_id=parent.root_id if parent else command.id,
        session_sid=command.session_sid,
        kind=command.kind,
        status=SESSION_STATES.initial,
        depth=parent.depth + 1 if parent else 0,
        capabilities=command.capabilities,
        metadata=command.metadata,
        ttl_seconds=command.ttl_seconds,
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


def limit_exceeded(bound: Bound, limit: int, used: int) -> LimitReached:
    extra: dict[str, object] = {"retry_after": RETRY_SECONDS} if bound.is_retryable else {}
    return LimitReached(
        bound.code,
        f"Quota {bound.name} reached: {used} of {limit} {bound.unit}.",
        bound=bound.name,
        limit=limit,
        used=used,
        frees=f"{bound.frees}; or an administrator raises {bound.name} (ceiling {CEILINGS[bound.name]})",
        **extra,
    )
