"""Proving a log: a fold over the rows of `seals` and `events`, in order, that ends at the first thing that is wrong.

What is proved: that the seals are one unbroken chain, each signed by a key that the reader trusts; that every event
they speak of is there, unaltered and in its place, unless it stands at or below the floor that the newest seal attests;
that no event stands where none was sealed; that the positions from the last seal to the head have no gap. With an
anchor, a seal that was noted elsewhere at the time: that the chain still runs through it.

What cannot be proved: anything about events after the last seal; and, without an anchor, that the newest seals were
not cut off together with everything they speak of.

How it fails: with `Altered`, which names the first row in the log's order that is not what it was, and says why. The
order of the checks is the order of trust: a seal is believed before its events are held against it.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.audit_seal import (
    GENESIS,
    LEAF,
    NotAnEvent,
    Row,
    Seal,
    digest_of,
    hash_of,
    leaves_of,
    pos_of,
    prints_of,
    signature_of,
    signed_text,
)
from quarterdeck.core.clock import Millis, iso

Trust = Callable[[str, bytes, bytes], bool | None]
"""(kid, text, signature): whether the key signed the text; None if no key of that name is trusted."""
_ANCHOR = re.compile(r"(?:(\d{1,18}):)?([0-9a-f]{64})")


class Anchor(msgspec.Struct, frozen=True):
    """A seal that was noted elsewhere."""

    hash: str
    number: int | None = None

    def __str__(self) -> str:
        return self.hash if self.number is None else f"{self.number}:{self.hash}"


def anchor_of(text: str) -> Anchor | None:
    """`17:…64 hexadecimal digits…`, or the digits alone."""
    found = _ANCHOR.fullmatch(text)
    return Anchor(found[2], int(found[1]) if found[1] else None) if found else None


class Altered(Exception):
    """The first thing that is not what it was. `pos` is the row of the log, `seal` the seal's number, where there is
    one to name."""

    def __init__(self, what: str, *, pos: int | None = None, seal: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.pos = pos
        self.seal = seal


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that is looked at, all of one snapshot."""

    head: Row | None
    """The row of `log_head`: pos, floor."""
    newest: Row | None
    """The newest seal: what it attests as the floor must be known before the first event is missed."""
    seals: Iterable[Row]
    """By number, all of them."""
    events: Iterable[Sequence[Row]]
    """By position, all of them, in pages of any size."""


class Proof(msgspec.Struct):
    """What was proved."""

    seals: int = 0
    events: int = 0
    """Sealed, there, and unaltered."""
    last_pos: int = 0
    """The last position that a seal speaks of."""
    floor: int = 0
    removed: int = 0
    """Gone by retention, as the newest seal attests."""
    unproven: int = 0
    """After the last seal."""
    unproven_since: Millis | None = None
    newest: str | None = None
    """The newest seal, as it may be noted elsewhere."""
    kids: list[str] = []
    """The keys that signed."""


def verify(evidence: Evidence, trust: Trust, anchors: Sequence[Anchor] = ()) -> Proof:
    """Raises Altered for the first row that is not what it was."""
    head = _head(evidence.head)
    newest = _seal(evidence.newest) if evidence.newest else None
    walk = _Walk(_Ahead(evidence.events), newest.floor if newest else 0, trust, anchors)
    for row in evidence.seals:
        walk.seal(_seal(row))
    walk.rest(head)
    walk.anchored()
    return walk.proof


class _Head(msgspec.Struct, frozen=True, array_like=True):
    pos: int
    floor: int


def _head(row: Row | None) -> _Head:
    if row is None:
        raise Altered("The row of log_head is gone.")
    try:
        return msgspec.convert(row, _Head)
    except msgspec.ValidationError:
        raise Altered("The row of log_head does not hold two numbers.") from None


def _seal(row: Row) -> Seal:
    try:
        return msgspec.convert(row, Seal)
    except msgspec.ValidationError:
        raise Altered(f"Seal {row[0]} holds a value of a type that no seal has.", seal=pos_of(row)) from None


# -- the walk -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Walk:
    ahead: _Ahead
    floor: int
    trust: Trust
    anchors: Sequence[Anchor]
    proof: Proof = field(default_factory=Proof)
    last: Seal | None = None
    begun: bool = False
    """Whether an event has been met: retention takes the lowest first, so from there on none may be absent."""
    met: set[Anchor] = field(default_factory=set)

    def seal(self, seal: Seal) -> None:
        self._follows(seal)
        self._is_itself(seal)
        self._is_signed(seal)
        self._agrees(seal)
        self._was_noted(seal)
        self._speaks_of(seal)
        self.last = seal
        self.proof.seals += 1
        self.proof.last_pos = seal.last_pos
        self.proof.floor = seal.floor
        self.proof.newest = seal.name
        if seal.kid not in self.proof.kids:
            self.proof.kids.append(seal.kid)

    # -- the seal by itself, and in its chain

    def _follows(self, seal: Seal) -> None:
        expected = self.last.number + 1 if self.last else 1
        if seal.number > expected:
            raise Altered(
                f"Seal {expected} is gone: seal {seal.number} stands where it should.",
                pos=self._next_pos(),
                seal=expected,
            )
        if seal.number < expected:
            raise Altered(f"There is a second seal {seal.number}.", pos=self._next_pos(), seal=seal.number)
        if seal.previous != (self.last.hash if self.last else GENESIS):
            self._wrong(seal, f"does not follow {f'seal {expected - 1}' if self.last else 'the beginning'}")

    def _is_itself(self, seal: Seal) -> None:
        if hash_of(seal) != seal.hash:
            self._wrong(seal, "was altered: its hash is not that of what it says")

    def _is_signed(self, seal: Seal) -> None:
        try:
            good = self.trust(seal.kid, signed_text(seal), signature_of(seal))
        except ValueError:
            good = False
        if good is None:
            self._wrong(seal, f"is signed by the key {seal.kid}, which is not among those that are trusted")
        if not good:
            self._wrong(seal, f"bears a signature that the key {seal.kid} did not make")

    def _agrees(self, seal: Seal) -> None:
        """What no server of ours would sign; said all the same, because a proof should rest on few assumptions."""
        before = self.last
        if seal.first_pos != self._next_pos() or seal.last_pos < seal.first_pos - 1:
            self._wrong(seal, f"speaks of the positions {seal.first_pos} to {seal.last_pos}, out of turn")
        if not (before.floor if before else 0) <= seal.floor < max(1, seal.first_pos):
            self._wrong(seal, f"attests a floor of {seal.floor}, which cannot be")
        if before and seal.at < before.at:
            self._wrong(seal, f"is older than seal {before.number}")

    def _was_noted(self, seal: Seal) -> None:
        for anchor in self.anchors:
            if anchor.hash == seal.hash and anchor.number in (None, seal.number):
                self.met.add(anchor)
            elif anchor.number == seal.number:
                self._wrong(seal, f"is not the one that was noted as {anchor}: the chain was made again")

    # -- the events it speaks of

    def _speaks_of(self, seal: Seal) -> None:
        count = seal.last_pos - seal.first_pos + 1
        rows = self.ahead.until(seal.last_pos)
        try:
            if len(rows) == count and digest_of(prints_of(rows)) == seal.digest:
                self.begun = self.begun or count > 0
                self.proof.events += count
                return
        except NotAnEvent:
            pass  # the walk over the leaves finds out which, and whether one before it is wrong, too
        if not rows and seal.last_pos <= self.floor and not self.begun:
            self.proof.removed += count
            return
        self._by_leaves(seal, rows)

    def _by_leaves(self, seal: Seal, rows: Sequence[Row]) -> None:
        """Event by event: finds the first that is not what was sealed, or that all absences are retention's."""
        removed, met = self.proof.removed, iter(rows)
        row = next(met, None)
        for pos, leaf in zip(range(seal.first_pos, seal.last_pos + 1), self._leaves(seal), strict=True):
            if row is not None and pos_of(row) < pos:
                self._surplus(pos_of(row))
            if row is None or pos_of(row) > pos:
                self._may_be_gone(pos, seal)
                continue
            if not _is_sealed(row, leaf):
                raise Altered(
                    f"The event at position {pos} is not the one that was sealed ({_which(seal)}).",
                    pos=pos,
                    seal=seal.number,
                )
            self.begun = True
            self.proof.events += 1
            row = next(met, None)
        if row is not None:
            self._surplus(pos_of(row))
        if self.proof.removed == removed:
            raise Altered(
                f"An event of the positions {seal.first_pos} to {seal.last_pos} is not the one that was sealed "
                f"({_which(seal)}).",
                pos=seal.first_pos,
                seal=seal.number,
            )

    def _leaves(self, seal: Seal) -> list[bytes]:
        try:
            leaves = leaves_of(seal)
        except ValueError:
            leaves = []
        if len(leaves) != seal.last_pos - seal.first_pos + 1:
            self._wrong(seal, "has not one leaf for each of its events")
        return leaves

    def _may_be_gone(self, pos: int, seal: Seal) -> None:
        if pos > self.floor or self.begun:
            raise Altered(f"The event at position {pos} is gone ({_which(seal)}).", pos=pos, seal=seal.number)
        self.proof.removed += 1

    def _surplus(self, pos: int) -> None:
        if pos < 1:
            raise Altered(f"There is a row at position {pos}; the log begins at 1.", pos=pos)
        raise Altered(f"There is a second row at position {pos}.", pos=pos)

    # -- what comes after the last seal

    def rest(self, head: _Head) -> None:
        expected = self._next_pos()
        if head.pos < expected - 1:
            raise Altered(f"log_head says that the log ends at {head.pos}, and it is sealed up to {expected - 1}.")
        for row in self.ahead:
            pos = pos_of(row)
            if pos < expected:
                self._surplus(pos)
            if pos > expected and expected <= head.pos:
                break
            if pos > head.pos:
                raise Altered(
                    f"There is a row at position {pos}; log_head says that the log ends at {head.pos}.", pos=pos
                )
            self._unproven(row)
            expected += 1
        if expected <= head.pos:
            raise Altered(
                f"The event at position {expected} is gone. No seal speaks of it, but log_head says that the log ends "
                f"at {head.pos}.",
                pos=expected,
            )
        sealed = self._next_pos() - 1
        if not self.floor <= head.floor <= sealed:
            raise Altered(f"log_head has a floor of {head.floor}; the seals attest {self.floor} and end at {sealed}.")

    def _unproven(self, row: Row) -> None:
        try:
            prints_of([row])
        except NotAnEvent as wrong:
            raise Altered(f"The row at position {wrong.pos} is none that a server wrote.", pos=wrong.pos) from None
        self.proof.unproven += 1
        at = row[-1]
        if self.proof.unproven_since is None and isinstance(at, int):
            self.proof.unproven_since = at

    def anchored(self) -> None:
        for anchor in self.anchors:
            if anchor not in self.met:
                end = f"the chain ends with seal {self.last.number}" if self.last else "there is no seal at all"
                raise Altered(
                    f"The seal that was noted as {anchor} is not in the chain: {end}. What came after position "
                    f"{self._next_pos() - 1} was cut off or made again.",
                    pos=self._next_pos(),
                    seal=anchor.number,
                )

    def _next_pos(self) -> int:
        return self.last.last_pos + 1 if self.last else 1

    def _wrong(self, seal: Seal, how: str) -> None:
        raise Altered(f"Seal {seal.number} {how}.", pos=self._next_pos(), seal=seal.number)


def _is_sealed(row: Row, leaf: bytes) -> bool:
    try:
        return prints_of([row])[0][:LEAF] == leaf
    except NotAnEvent:
        return False


def _which(seal: Seal) -> str:
    return f"seal {seal.number} of {iso(seal.at)}"


class _Ahead:
    """The rows that have not been looked at yet."""

    def __init__(self, pages: Iterable[Sequence[Row]]) -> None:
        self._pages = iter(pages)
        self._page: Sequence[Row] = ()
        self._at = 0

    def until(self, last: int) -> list[Row]:
        """Every row up to a position, wherever it begins: what stands before its place must be seen, too."""
        taken: list[Row] = []
        while self._at < len(self._page) or self._fill():
            cut = bisect_right(self._page, last, lo=self._at, key=pos_of)
            taken += self._page[self._at : cut]
            self._at = cut
            if cut < len(self._page):
                break
        return taken

    def __iter__(self) -> Iterator[Row]:
        while self._at < len(self._page) or self._fill():
            self._at += 1
            yield self._page[self._at - 1]

    def _fill(self) -> bool:
        self._page, self._at = next(self._pages, ()), 0
        return len(self._page) > 0
