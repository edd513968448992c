"""Ranks of a zone's sessions. They increase along every active edge, so active edges cannot form a cycle.

A new edge from a lower to a higher rank closes no cycle. Only if the source ranks above the target is the graph walked,
and only between the two ranks. The *forward* walk starts at the target and goes up to the source's rank. The *backward*
walk starts at the source and goes down to the target's rank. The sessions that a walk finds are its *region*. If the
forward region contains the source, or the backward region the target, the edge would close a cycle. Otherwise the
smaller region moves and keeps its own order: the backward region to just below the target, or the forward region to
just above the source. No other session has to move: sources of edges into the backward region already rank below the
target, and targets of edges out of the forward region already rank above the source.

There are gaps between ranks, so there is nearly always a free rank. If there is none, all ranks of the zone are
respaced (`spaced_ranks`). The next region usually moves into the same gap, next to the same source or target. So a
region that moves takes closely spaced ranks at the other end of the gap.

`TopologicalOrder` decides, and collects the ranks to write; its caller runs the walks. Ending an edge cannot break the
order, so it changes no ranks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.core.ids import Ref

RANK_GAP = 2**32
"""Distance between ranks that are added below the lowest or above the highest rank of a zone."""
RANK_STEP = 2**16
"""Maximum distance between the new ranks of a region that moves into a gap between two ranks."""
RANK_LIMIT = 2**61
"""A zone with a rank above this, or below the negative of this, is respaced."""
FIRST_WALK_LIMIT = 64
WALK_LIMIT_FACTOR = 8
"""If a walk was too short, the limit of the next one is this many times higher."""


@dataclass(frozen=True, slots=True)
class WalkRequest:
    """Walk forward from the target up to the source's rank, and backward from the source down to the target's."""

    zone_id: str
    source: str
    target: str
    target_rank: int
    source_rank: int
    """Above the target's rank."""
    limit: int
    """Maximum number of sessions per direction. A direction that finds fewer is complete."""


@dataclass(frozen=True, slots=True)
class WalkResult:
    """The two regions that a walk found: sessions and their ranks, including the session where a direction starts."""

    forward: Mapping[str, int]
    backward: Mapping[str, int]
    rank_below: int | None
    """The next rank below the target's; None if the target is the lowest."""
    rank_above: int | None
    """The next rank above the source's; None if the source is the highest."""


@dataclass(frozen=True, slots=True)
class RespaceRequest:
    """Respace the ranks of this zone, because a gap has too few free ranks or a rank exceeds `RANK_LIMIT`."""

    zone_id: str


EdgeKey = tuple[str, str, str]
"""(zone id, source session id, target session id)"""


class TopologicalOrder:
    """The ranks that a batch reads and changes. Decides for each new edge whether it closes a cycle."""

    def __init__(self, ranks: Mapping[Ref, int], bounds: Mapping[str, tuple[int, int]]) -> None:
        """`bounds` has the lowest and the highest rank of each zone."""
        self._ranks = {**ranks}
        self._bounds = {**bounds}
        self._changed: dict[Ref, int] = {}
        self._walk_limits: dict[EdgeKey, int] = {}
        self._planned_ranks: dict[EdgeKey, dict[str, int]] = {}
        self._cycles: set[EdgeKey] = set()
        self._zones_to_respace: set[str] = set()

    def next_request(self, zone_id: str, source: str, target: str) -> WalkRequest | RespaceRequest | None:
        """Return the walk or the respacing that is needed before this edge can be decided, or None."""
        lowest, highest = self.rank_bounds(zone_id)
        if zone_id in self._zones_to_respace or lowest < -RANK_LIMIT or highest > RANK_LIMIT:
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

    def add_walk_result(self, walk: WalkRequest, result: WalkResult) -> None:
        """Add the result of a walk. If neither direction is complete, `next_request` requests a larger walk."""
        key = (walk.zone_id, walk.source, walk.target)
        if walk.source in result.forward or walk.target in result.backward:
            self._cycles.add(key)
            return
        candidates = _move_candidates(walk, result)
        if not candidates:
            self._walk_limits[key] = walk.limit * WALK_LIMIT_FACTOR
            return
        fitting = [candidate for candidate in candidates if candidate.free_ranks >= len(candidate.session_ids)]
        if not fitting:
            self._zones_to_respace.add(walk.zone_id)
            return
        best = min(fitting, key=lambda candidate: (len(candidate.session_ids), -candidate.free_ranks))
        self._planned_ranks[key] = dict(zip(best.session_ids, best.new_ranks(), strict=True))

    def closes_cycle(self, zone_id: str, source: str, target: str) -> bool:
        """Whether this edge would close a cycle. Valid only if `next_request` returns None."""
        return (zone_id, source, target) in self._cycles

    def add_edge(self, zone_id: str, source: str, target: str) -> None:
        """Add an edge: assign ranks to new sessions, and apply the planned move if there is one."""
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
        # Earlier walk results refer to the old ranks.
        self._planned_ranks.clear()
        self._walk_limits.clear()

    def rank_bounds(self, zone_id: str) -> tuple[int, int]:
        return self._bounds.get(zone_id, (0, 0))

    def replace_ranks(self, zone_id: str, ranks: Mapping[str, int]) -> None:
        """Replace all ranks of the zone. The caller has already written them."""
        self._ranks = {ref: rank for ref, rank in self._ranks.items() if ref[0] != zone_id}
        self._ranks |= {(zone_id, session_id): rank for session_id, rank in ranks.items()}
        self._bounds[zone_id] = (min(ranks.values(), default=0), max(ranks.values(), default=0))
        self._zones_to_respace.discard(zone_id)
        self._planned_ranks.clear()
        self._walk_limits.clear()

    def take_changes(self) -> list[tuple[str, str, int]]:
        """Return (zone id, session id, rank) for ranks that changed since the last call, to be written."""
        changed, self._changed = self._changed, {}
        return [(*ref, rank) for ref, rank in sorted(changed.items())]


@dataclass(frozen=True, slots=True)
class _MoveCandidate:
    """Sessions that could move, lowest rank first, and the gap between two ranks that they would move into.

    `rank_below` or `rank_above` is None if there is no rank on that side of the gap.
    """

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
            assert self.rank_above is not None  # a gap has a rank on at least one side
            return self.rank_above - RANK_GAP * (count + 1), RANK_GAP
        if self.rank_above is None:
            return self.rank_below, RANK_GAP
        step = min(RANK_STEP, (self.rank_above - self.rank_below) // (count + 1))
        # Leave the ranks next to the source or target free for the next region that moves into this gap.
        return (self.rank_above - step * (count + 1) if self.moves_up else self.rank_below), step


def _move_candidates(walk: WalkRequest, result: WalkResult) -> list[_MoveCandidate]:
    """Return the regions that the walk found completely: none, one or both."""
    candidates: list[_MoveCandidate] = []
    if len(result.backward) < walk.limit:
        candidates.append(
            _MoveCandidate(_by_rank(result.backward), result.rank_below, walk.target_rank, moves_up=False)
        )
    if len(result.forward) < walk.limit:
        candidates.append(_MoveCandidate(_by_rank(result.forward), walk.source_rank, result.rank_above, moves_up=True))
    return candidates


def _by_rank(ranks: Mapping[str, int]) -> list[str]:
    return sorted(ranks, key=lambda session_id: ranks[session_id])


# -- all ranks of a zone ------------------------------------------------------------------------------------------


def spaced_ranks(count: int, lowest: int, highest: int) -> list[int]:
    """Return `count` evenly spaced ranks outside the range from `lowest` to `highest`.

    A new rank must not equal an old one: ranks are unique, and the new ones are written in chunks. The new ranks are
    below the range if its center is positive and otherwise above it, so that ranks stay near zero.
    """
    if lowest + highest > 0:
        top = min(lowest - RANK_GAP, 0)
        return [top - RANK_GAP * (count - 1 - n) for n in range(count)]
    bottom = max(highest + RANK_GAP, 0)
    return [bottom + RANK_GAP * n for n in range(count)]


def topological_sort(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return all sessions of these (source, target) pairs, each source before its targets.

    Sessions in a cycle, and those reachable from one, come last. A cycle exists only if someone edited the database by
    hand.
    """
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
