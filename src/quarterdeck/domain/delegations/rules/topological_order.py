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

SPACE = 2**32
STEP = 2**16
FARTHEST = 2**61
"""Beyond this no rank is given out: a zone that has come so far is spaced anew."""
FIRST_LOOK = 64
FURTHER = 8


@dataclass(frozen=True, slots=True)
class Walk:
    """Asked for: what is ahead of the target up to the source, and behind the source down to the target."""

    zone_id: str
    source: str
    target: str
    low: int
    """The target's rank."""
    high: int
    """The source's, which is above it."""
    most: int
    """How many sessions of each are told. Fewer are all there are."""


@dataclass(frozen=True, slots=True)
class Region:
    """What a walk has found: sessions and their ranks, both ends included."""

    ahead: Mapping[str, int]
    behind: Mapping[str, int]
    below: int | None
    """The next rank below the target's; None: it is the lowest."""
    above: int | None
    """The next rank above the source's; None: it is the highest."""


@dataclass(frozen=True, slots=True)
class Crowded:
    """Asked for: that this zone's ranks are spaced anew. There is no room where something must go."""

    zone_id: str


Pair = tuple[str, str, str]
"""(zone, source, target)"""


class Order:
    """The ranks that a batch concerns, and what it changes in them."""

    def __init__(self, ranks: Mapping[Ref, int], bounds: Mapping[str, tuple[int, int]]) -> None:
        """`bounds` are the lowest and the highest rank of each zone."""
        self._ranks = {**ranks}
        self._bounds = {**bounds}
        self._changed: dict[Ref, int] = {}
        self._most: dict[Pair, int] = {}
        self._moves: dict[Pair, dict[str, int]] = {}
        self._cycles: set[Pair] = set()
        self._crowded: set[str] = set()

    def lacks(self, zone_id: str, source: str, target: str) -> Walk | Crowded | None:
        """What has to be known or done before this edge can be decided."""
        lowest, highest = self.bounds_of(zone_id)
        if zone_id in self._crowded or lowest < -FARTHEST or highest > FARTHEST:
            return Crowded(zone_id)
        low, high = self._ranks.get((zone_id, target)), self._ranks.get((zone_id, source))
        pair = (zone_id, source, target)
        if low is None or high is None or high < low or pair in self._cycles or pair in self._moves:
            return None
        return Walk(zone_id, source, target, low, high, self._most.get(pair, FIRST_LOOK))

    def learn(self, walk: Walk, region: Region) -> None:
        """Takes what a walk has found. One that found no end on either side has to go further."""
        pair = (walk.zone_id, walk.source, walk.target)
        if walk.source in region.ahead or walk.target in region.behind:
            self._cycles.add(pair)
            return
        sides = _sides(walk, region)
        if not sides:
            self._most[pair] = walk.most * FURTHER
            return
        roomy = [side for side in sides if side.room >= len(side.members)]
        if not roomy:
            self._crowded.add(walk.zone_id)
            return
        best = min(roomy, key=lambda side: (len(side.members), -side.room))
        self._moves[pair] = dict(zip(best.members, best.places(), strict=True))

    def closes(self, zone_id: str, source: str, target: str) -> bool:
        """Whether this edge would close a cycle. Asked only when nothing is lacking."""
        return (zone_id, source, target) in self._cycles

    def enter(self, zone_id: str, source: str, target: str) -> None:
        """An edge is made: whoever is new gets a rank, and what stood in its way moves."""
        lowest, highest = self.bounds_of(zone_id)
        low, high = self._ranks.get((zone_id, target)), self._ranks.get((zone_id, source))
        moves = self._moves.get((zone_id, source, target), {})
        if high is None:
            moves = {source: lowest - SPACE if low is not None else highest + SPACE}
        if low is None:
            moves = {**moves, target: highest + (SPACE if high is not None else 2 * SPACE)}
        if not moves:
            return
        for session, rank in moves.items():
            self._ranks[zone_id, session] = self._changed[zone_id, session] = rank
        self._bounds[zone_id] = (min(lowest, *moves.values()), max(highest, *moves.values()))
        # Whatever was found out was found out about other ranks.
        self._moves.clear()
        self._most.clear()

    def bounds_of(self, zone_id: str) -> tuple[int, int]:
        return self._bounds.get(zone_id, (0, 0))

    def replaced(self, zone_id: str, ranks: Mapping[str, int]) -> None:
        """The zone has these ranks now, and no others; they are written already."""
        self._ranks = {ref: rank for ref, rank in self._ranks.items() if ref[0] != zone_id}
        self._ranks |= {(zone_id, session): rank for session, rank in ranks.items()}
        self._bounds[zone_id] = (min(ranks.values(), default=0), max(ranks.values(), default=0))
        self._crowded.discard(zone_id)
        self._moves.clear()
        self._most.clear()

    def take(self) -> list[tuple[str, str, int]]:
        """What is to be written, since it was last asked."""
        taken, self._changed = self._changed, {}
        return [(*ref, rank) for ref, rank in sorted(taken.items())]


@dataclass(frozen=True, slots=True)
class _Side:
    """Those who could move, lowest first, and the gap they would move into; one end of it may be open."""

    members: Sequence[str]
    below: int | None
    above: int | None
    upward: bool

    @property
    def room(self) -> int:
        return FARTHEST if self.below is None or self.above is None else self.above - self.below - 1

    def places(self) -> list[int]:
        number = len(self.members)
        start, step = self._from(number)
        return [start + step * (n + 1) for n in range(number)]

    def _from(self, number: int) -> tuple[int, int]:
        if self.below is None:
            assert self.above is not None  # of a gap one end is an end of the edge
            return self.above - SPACE * (number + 1), SPACE
        if self.above is None:
            return self.below, SPACE
        step = min(STEP, (self.above - self.below) // (number + 1))
        # To the end that the next one to come here does not need: it comes to just above the source, or just below
        # the target, again.
        return (self.above - step * (number + 1) if self.upward else self.below), step


def _sides(walk: Walk, region: Region) -> list[_Side]:
    """Of the two those that are known whole."""
    sides: list[_Side] = []
    if len(region.behind) < walk.most:
        sides.append(_Side(_in_order(region.behind), region.below, walk.low, upward=False))
    if len(region.ahead) < walk.most:
        sides.append(_Side(_in_order(region.ahead), walk.high, region.above, upward=True))
    return sides


def _in_order(found: Mapping[str, int]) -> list[str]:
    return sorted(found, key=lambda session: found[session])


# -- a zone as a whole --------------------------------------------------------------------------------------------


def spaced(number: int, lowest: int, highest: int) -> list[int]:
    """So many ranks, evenly apart, none of them between the two: they are written in parts, in any order, and none may
    meet one that is still to be replaced. On the side that leads back towards zero."""
    if lowest + highest > 0:
        top = min(lowest - SPACE, 0)
        return [top - SPACE * (number - 1 - n) for n in range(number)]
    bottom = max(highest + SPACE, 0)
    return [bottom + SPACE * n for n in range(number)]


def ordered(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Whoever stands in one of these pairs of (source, target), each source before its targets. What is in a cycle,
    which only a hand in the database can have closed, comes last."""
    ahead: dict[str, set[str]] = {}
    for source, target in pairs:
        ahead.setdefault(source, set()).add(target)
        ahead.setdefault(target, set())
    waits_for = dict.fromkeys(ahead, 0)
    for targets in ahead.values():
        for target in targets:
            waits_for[target] += 1
    found = sorted(session for session, number in waits_for.items() if not number)
    for session in found:
        for target in sorted(ahead[session]):
            waits_for[target] -= 1
            if not waits_for[target]:
                found.append(target)
    return found + sorted(ahead.keys() - set(found))
