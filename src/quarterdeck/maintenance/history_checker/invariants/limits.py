"""No limit was exceeded at any instant.

What is live rises only by an admission, so it is enough to count at each: the log is told again from the first event,
and after every spawn each bound that counts it is held against the limit of that moment. That is the snapshot which the
session was admitted with; and what the zone itself had set by then, which the snapshot must repeat. A session past its
time counts as gone from that instant on, one that a cascade has stamped from the stamp on.

Limits that were lowered stop nobody who runs: a count may stand above a new limit, and only an admission above it is a
breach.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.domain.zones.model import CEILINGS
from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.model import Evidence, Finding, Ref
from quarterdeck.maintenance.history_checker.replay import Life, Lives, reading

NAME = "limits"
Place = tuple[str, str, str]
"""(zone, bound, what it counts in)"""
Limits = Mapping[str, int]


def judge(evidence: Evidence) -> Iterator[Finding]:
    lives, ledger = Lives(evidence), Ledger()
    snapshots = _snapshots(evidence)
    quotas: dict[str, Mapping[str, int | None]] = {}
    for born_before in lives:
        ledger.enter(born_before)
    for event, told in reading(evidence):
        for gone in lives.feed(event, told):
            ledger.leave(gone)
        if event.type in ("zone.create", "zone.change"):
            quotas[event.zone_id] = told.quotas
        elif event.type == "session.spawn" and (life := lives.get(event.zone_id, event.subject)):
            if life.spawned_pos != event.pos:
                continue
            ledger.pass_to(event.zone_id, event.at)
            ledger.enter(life)
            snapshot = snapshots.get((life.zone_id, life.id))
            own = _own(quotas.get(event.zone_id, {}))
            yield from _exceeded(event, ledger, life, {**own, **(_limits(snapshot) if snapshot else {})})
            yield from _not_in_force(event, own, _limits(snapshot) if snapshot else own)


def _snapshots(evidence: Evidence) -> dict[Ref, str]:
    # Sessions of one zone mostly share one text: kept once.
    known: dict[str, str] = {}
    return {(row.zone_id, row.id): known.setdefault(row.limits, row.limits) for row in evidence.rows.sessions}


@lru_cache(maxsize=4096)
def _limits(text: str) -> Limits:
    try:
        found: dict[str, int] = msgspec.json.decode(text, type=dict[str, int])
    except msgspec.DecodeError:
        return {}
    return found


def _own(quotas: Mapping[str, int | None]) -> Limits:
    """What a zone set for itself, within the ceilings."""
    return {
        name: min(limit, CEILINGS[name]) for name, limit in quotas.items() if limit is not None and name in CEILINGS
    }


def _exceeded(event: Event, ledger: Ledger, life: Life, limits: Limits) -> Iterator[Finding]:
    for bound, used in ledger.used(life):
        limit = limits.get(bound)
        if limit is not None and used > limit:
            detail = f"with the session {life.id}, {bound} counted {used}, and the limit was {limit}"
            yield Finding(NAME, life.zone_id, life.id, detail, event.pos)


def _not_in_force(event: Event, own: Limits, snapshot: Limits) -> Iterator[Finding]:
    for bound, limit in own.items():
        if snapshot.get(bound, limit) != limit:
            detail = (
                f"the session {event.subject} was admitted with {bound} = {snapshot[bound]}, and the zone's limit "
                f"was {limit}"
            )
            yield Finding(NAME, event.zone_id, event.subject, detail, event.pos)


class Ledger:
    """How many are live in everything that is bounded."""

    def __init__(self) -> None:
        self._counts: Counter[Place] = Counter()
        self._ever: Counter[Ref] = Counter()
        self._counted: dict[Ref, Life] = {}
        self._by_time: dict[str, list[tuple[Millis, str]]] = {}

    def enter(self, life: Life) -> None:
        self._ever[life.zone_id, life.root_id] += 1
        if life.ended_pos is not None:
            return
        self._counted[life.zone_id, life.id] = life
        self._counts.update(_counted_in(life))
        heapq.heappush(self._by_time.setdefault(life.zone_id, []), (life.expires_at, life.id))

    def leave(self, life: Life) -> None:
        if self._counted.pop((life.zone_id, life.id), None):
            self._counts.subtract(_counted_in(life))

    def pass_to(self, zone_id: str, at: Millis) -> None:
        """Whoever's time has run out by then is gone."""
        waiting = self._by_time.get(zone_id, [])
        while waiting and waiting[0][0] <= at:
            _, session_id = heapq.heappop(waiting)
            if life := self._counted.get((zone_id, session_id)):
                self.leave(life)

    def used(self, life: Life) -> Iterator[tuple[str, int]]:
        for place in _counted_in(life):
            yield place[1], self._counts[place]
        yield "max_tree_spawns", self._ever[life.zone_id, life.root_id]
        yield "max_depth", life.depth


def _counted_in(life: Life) -> Iterator[Place]:
    yield life.zone_id, "max_sessions", ""
    yield life.zone_id, "max_sessions_per_application", life.application_id
    yield life.zone_id, "max_tree_size", life.root_id
    if life.parent_id is not None:
        yield life.zone_id, "max_concurrent", ""
        yield life.zone_id, "max_children", life.parent_id
