"""The order of a zone's sessions: along every active edge ranks rise, so a cycle cannot be where they do.

Whether an edge closes a cycle is then mostly seen from two numbers. Only where the source stands above the target does
the graph have to be looked at, and only between the two: what is *ahead* of the target up to the source's rank, and
what is *behind* the source down to the target's. If neither meets the other end, the smaller of the two moves, whole
and in its own order, to the other side: what is behind to just below the target, or what is ahead to just above the
source. Nothing else has to move: whoever lends to what is behind stands below the target already, and whoever receives
from what is ahead stands above the source.

Ranks are spaced, so there is nearly always room; where there is none, the zone is spaced anew (`spaced`). What moves
goes to the far end of its gap in small steps: the next one usually comes to the same place.

`Order` decides and keeps what is to be written; whoever runs it does the looking. Edges that end break no order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.domain.delegations.rules.states import Ref

RANK_GAP = 2**32
RANK_STEP = 2**16
RANK_LIMIT = 2**61
"""Beyond this no rank is given out: a zone that has come so far is spaced anew."""
FIRST_WALK_LIMIT = 64
WALK_LIMIT_FACTOR = 8


@dataclass(frozen=True, slots=True)
class WalkRequest:
    """Asked for: what is ahead of the target up to the source, and behind the source down to the target."""

    zone_id: str
    source: str
    target: str
    target_rank: int
    """The target's rank."""
    source_rank: int
    """The source's, which is above it."""
    limit: int
    """How many sessions of each are told. Fewer are all there are."""


@dataclass(frozen=True, slots=True)
class Region:
    """What a walk has found: sessions and their ranks, both ends included."""

    forward: Mapping[str, int]
    backward: Mapping[str, int]
    rank_below: int | None
    """The next rank below the target's; None: it is the lowest."""
    rank_above: int | None
    """The next rank above the source's; None: it is the highest."""


@dataclass(frozen=True, slots=True)
class RespaceRequest:
    """Asked for: that this zone's ranks are spaced anew. There is no room where something must go."""

    zone_id: str


EdgeKey = tuple[str, str, str]
"""(zone, source, target)"""


class TopologicalOrder:
    """The ranks that a batch concerns, and what it changes in them."""

    def __init__(self, ranks: Mapping[Ref, int], bounds: Mapping[str, tuple[int, int]]) -> None:
        """`bounds` are the lowest and the highest rank of each zone."""
        self._ranks = {**ranks}
        self._bounds = {**bounds}
        self._changed: dict[Ref, int] = {}
        self._walk_limits: dict[EdgeKey, int] = {}
        self._planned_ranks: dict[EdgeKey, dict[str, int]] = {}
        self._cycles: set[EdgeKey] = set()
        self._full_zones: set[str] = set()

    def missing_input(self, zone_id: str, source: str, target: str) -> WalkRequest | RespaceRequest | None:
        """What has to be known or done before this edge can be decided."""
        lowest, highest = self.rank_bounds(zone_id)
        if zone_id in self._full_zones or lowest < -RANK_LIMIT or highest > RANK_LIMIT:
            return RespaceRequest(zone_id)
        target_rank, source_rank = self._ranks.get((zone_id, target)), self._ranks.get((zone_id, source))
        key = (zone_id, source, target)
        if (
            target_rank is None
            or source_rank is None
            or source_rank < target_rank
            or key in self._cycles
            or key in self._planned_ranks
        ):
            return None
        return WalkRequest(
            zone_id, source, target, target_rank, source_rank, self._walk_limits.get(key, FIRST_WALK_LIMIT)
        )

    def add_region(self, walk: WalkRequest, region: Region) -> None:
        """Takes what a walk has found. One that found no end on either side has to go further."""
        key = (walk.zone_id, walk.source, walk.target)
        if walk.source in region.forward or walk.target in region.backward:
            self._cycles.add(key)
            return
        candidates = _move_candidates(walk, region)
        if not candidates:
            self._walk_limits[key] = walk.limit * WALK_LIMIT_FACTOR
            return
        fitting = [candidate for candidate in candidates if candidate.free_ranks >= len(candidate.session_ids)]
        if not fitting:
            self._full_zones.add(walk.zone_id)
            return
        best = min(fitting, key=lambda candidate: (len(candidate.session_ids), -candidate.free_ranks))
        self._planned_ranks[key] = dict(zip(best.session_ids, best.new_ranks(), strict=True))

    def closes_cycle(self, zone_id: str, source: str, target: str) -> bool:
        """Whether this edge would close a cycle. Asked only when nothing is lacking."""
        return (zone_id, source, target) in self._cycles

    def add_edge(self, zone_id: str, source: str, target: str) -> None:
        """An edge is made: whoever is new gets a rank, and what stood in its way moves."""
        lowest, highest = self.rank_bounds(zone_id)
        target_rank, source_rank = self._ranks.get((zone_id, target)), self._ranks.get((zone_id, source))
        new_ranks = self._planned_ranks.get((zone_id, source, target), {})
        if source_rank is None:
            new_ranks = {source: lowest - RANK_GAP if target_rank is not None else highest + RANK_GAP}
        if target_rank is None:
            new_ranks = {**new_ranks, target: highest + (RANK_GAP if source_rank is not None else 2 * RANK_GAP)}
        if not new_ranks:
            return
        for session_id, rank in new_ranks.items():
            self._ranks[zone_id, session_id] = self._changed[zone_id, session_id] = rank
        self._bounds[zone_id] = (min(lowest, *new_ranks.values()), max(highest, *new_ranks.values()))
        # Whatever was found out was found out about other ranks.
        self._planned_ranks.clear()
        self._walk_limits.clear()

    def rank_bounds(self, zone_id: str) -> tuple[int, int]:
        return self._bounds.get(zone_id, (0, 0))

    def replace_ranks(self, zone_id: str, ranks: Mapping[str, int]) -> None:
        """The zone has these ranks now, and no others; they are written already."""
        self._ranks = {ref: rank for ref, rank in self._ranks.items() if ref[0] != zone_id}
        self._ranks |= {(zone_id, session_id): rank for session_id, rank in ranks.items()}
        self._bounds[zone_id] = (min(ranks.values(), default=0), max(ranks.values(), default=0))
        self._full_zones.discard(zone_id)
        self._planned_ranks.clear()
        self._walk_limits.clear()

    def take_changes(self) -> list[tuple[str, str, int]]:
        """What is to be written, since it was last asked."""
        changed, self._changed = self._changed, {}
        return [(*ref, rank) for ref, rank in sorted(changed.items())]


@dataclass(frozen=True, slots=True)
class _MoveCandidate:
    """Those who could move, lowest first, and the gap they would move into; one end of it may be open."""

    session_ids: Sequence[str]
    rank_below: int | None
    rank_above: int | None
    moves_up: bool

    @property
    def free_ranks(self) -> int:
        return (
            RANK_LIMIT if self.rank_below is None or self.rank_above is None else self.rank_above - self.rank_below - 1
        )

    def new_ranks(self) -> list[int]:
        count = len(self.session_ids)
        start, step = self._start_and_step(count)
        return [start + step * (n + 1) for n in range(count)]

    def _start_and_step(self, count: int) -> tuple[int, int]:
        if self.rank_below is None:
            assert self.rank_above is not None  # of a gap one end is an end of the edge
            return self.rank_above - RANK_GAP * (count + 1), RANK_GAP
        if self.rank_above is None:
            return self.rank_below, RANK_GAP
        step = min(RANK_STEP, (self.rank_above - self.rank_below) // (count + 1))
        # To the end that the next one to come here does not need: it comes to just above the source, or just below
        # the target, again.
        return (self.rank_above - step * (count + 1) if self.moves_up else self.rank_below), step


def _move_candidates(walk: WalkRequest, region: Region) -> list[_MoveCandidate]:
    """Of the two those that are known whole."""
    candidates: list[_MoveCandidate] = []
    if len(region.backward) < walk.limit:
        candidates.append(
            _MoveCandidate(_by_rank(region.backward), region.rank_below, walk.target_rank, moves_up=False)
        )
    if len(region.forward) < walk.limit:
        candidates.append(_MoveCandidate(_by_rank(region.forward), walk.source_rank, region.rank_above, moves_up=True))
    return candidates


def _by_rank(ranks: Mapping[str, int]) -> list[str]:
    return sorted(ranks, key=lambda session_id: ranks[session_id])


# -- a zone as a whole --------------------------------------------------------------------------------------------


def spaced_ranks(count: int, lowest: int, highest: int) -> list[int]:
    """So many ranks, evenly apart, none of them between the two: they are written in parts, in any order, and none may
    meet one that is still to be replaced. On the side that leads back towards zero."""
    if lowest + highest > 0:
        top = min(lowest - RANK_GAP, 0)
        return [top - RANK_GAP * (count - 1 - n) for n in range(count)]
    bottom = max(highest + RANK_GAP, 0)
    return [bottom + RANK_GAP * n for n in range(count)]


def topological_sort(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Whoever stands in one of these pairs of (source, target), each source before its targets. What is in a cycle,
    which only a hand in the database can have closed, comes last."""
    targets_of: dict[str, set[str]] = {}
    for source, target in pairs:
        targets_of.setdefault(source, set()).add(target)
        targets_of.setdefault(target, set())
    in_degree = dict.fromkeys(targets_of, 0)
    for targets in targets_of.values():
        for target in targets:
            in_degree[target] += 1
    sorted_ids = sorted(session_id for session_id, degree in in_degree.items() if not degree)
    for session_id in sorted_ids:
        for target in sorted(targets_of[session_id]):
            in_degree[target] -= 1
            if not in_degree[target]:
                sorted_ids.append(target)
    return sorted_ids + sorted(targets_of.keys() - set(sorted_ids))
