"""No limit is exceeded at any position.

Only an admission can raise a count, so it is enough to check at each spawn. The event log is replayed, and after every
spawn each count is compared with the limit at that position. The limit is the one stored with the session when it was
admitted, which must equal the zone's limit at that position. An expired session stops counting at its expiry, and a
session in a cascade stops counting when the cascade starts.

Lowering a limit ends no session, so a count may be above the new limit. Only an admission above it is a violation.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import Ref
from quarterdeck.domain.zones.model import CEILINGS
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import Evidence, Violation
from quarterdeck.maintenance.history_checker.session_replay import ReplayedSession, SessionReplay, readable_events

NAME = "limits"
CounterKey = tuple[str, str, str]
"""(zone, bound, key): the key is the application, tree or parent whose sessions are counted, or "" for the zone."""
Limits = Mapping[str, int]


def check(evidence: Evidence) -> Iterator[Violation]:
    sessions, counts = SessionReplay(evidence), LiveCounts()
    stored_limits = _stored_limits(evidence)
    quotas: dict[str, Mapping[str, int | None]] = {}
    for earlier_session in sessions:
        counts.add(earlier_session)
    for event, data in readable_events(evidence):
        for ended_session in sessions.apply(event, data):
            counts.remove(ended_session)
        if event.type in ("zone.create", "zone.change"):
            quotas[event.zone_id] = data.quotas
        elif event.type == "session.spawn" and (session := sessions.get(event.zone_id, event.subject)):
            if session.spawned_pos != event.pos:
                continue
            counts.expire_until(event.zone_id, event.at)
            counts.add(session)
            stored_json = stored_limits.get((session.zone_id, session.id))
            zone_limits = _zone_limits(quotas.get(event.zone_id, {}))
            yield from _check_exceeded(
                event, counts, session, {**zone_limits, **(_parse_limits(stored_json) if stored_json else {})}
            )
            yield from _check_stored_limits(
                event, zone_limits, _parse_limits(stored_json) if stored_json else zone_limits
            )


def _stored_limits(evidence: Evidence) -> dict[Ref, str]:
    # Most sessions of a zone have the same limits, so each distinct string is kept in memory only once.
    interned: dict[str, str] = {}
    return {(row.zone_id, row.id): interned.setdefault(row.limits, row.limits) for row in evidence.rows.sessions}


@lru_cache(maxsize=4096)
def _parse_limits(text: str) -> Limits:
    try:
        limits: dict[str, int] = msgspec.json.decode(text, type=dict[str, int])
    except msgspec.DecodeError:
        return {}
    return limits


def _zone_limits(quotas: Mapping[str, int | None]) -> Limits:
    """The zone's own quotas, capped by the ceilings."""
    return {
        name: min(limit, CEILINGS[name]) for name, limit in quotas.items() if limit is not None and name in CEILINGS
    }


def _check_exceeded(event: Event, counts: LiveCounts, session: ReplayedSession, limits: Limits) -> Iterator[Violation]:
    for bound, used in counts.used(session):
        limit = limits.get(bound)
        if limit is not None and used > limit:
            detail = f"with session {session.id}, {bound} counted {used}, but the limit was {limit}"
            yield Violation(NAME, session.zone_id, session.id, detail, event.pos)


def _check_stored_limits(event: Event, zone_limits: Limits, stored: Limits) -> Iterator[Violation]:
    for bound, limit in zone_limits.items():
        if stored.get(bound, limit) != limit:
            detail = (
                f"session {event.subject} was admitted with {bound} = {stored[bound]}, but the zone's limit was {limit}"
            )
            yield Violation(NAME, event.zone_id, event.subject, detail, event.pos)


class LiveCounts:
    """The number of live sessions for each bound."""

    def __init__(self) -> None:
        self._counts: Counter[CounterKey] = Counter()
        self._total_spawned: Counter[Ref] = Counter()
        self._counted_sessions: dict[Ref, ReplayedSession] = {}
        self._by_expiry: dict[str, list[tuple[Millis, str]]] = {}

    def add(self, session: ReplayedSession) -> None:
        self._total_spawned[session.zone_id, session.root_id] += 1
        if session.ended_pos is not None:
            return
        self._counted_sessions[session.zone_id, session.id] = session
        self._counts.update(_counter_keys(session))
        heapq.heappush(self._by_expiry.setdefault(session.zone_id, []), (session.expires_at, session.id))

    def remove(self, session: ReplayedSession) -> None:
        if self._counted_sessions.pop((session.zone_id, session.id), None):
            self._counts.subtract(_counter_keys(session))

    def expire_until(self, zone_id: str, now: Millis) -> None:
        """Stop counting the sessions that have expired by `now`."""
        by_expiry = self._by_expiry.get(zone_id, [])
        while by_expiry and by_expiry[0][0] <= now:
            _, session_id = heapq.heappop(by_expiry)
            if session := self._counted_sessions.get((zone_id, session_id)):
                self.remove(session)

    def used(self, session: ReplayedSession) -> Iterator[tuple[str, int]]:
        for key in _counter_keys(session):
            yield key[1], self._counts[key]
        yield "max_tree_spawns", self._total_spawned[session.zone_id, session.root_id]
        yield "max_depth", session.depth


def _counter_keys(session: ReplayedSession) -> Iterator[CounterKey]:
    yield session.zone_id, "max_sessions", ""
    yield session.zone_id, "max_sessions_per_application", session.application_id
    yield session.zone_id, "max_tree_size", session.root_id
    if session.parent_id is not None:
        yield session.zone_id, "max_concurrent", ""
        yield session.zone_id, "max_children", session.parent_id
