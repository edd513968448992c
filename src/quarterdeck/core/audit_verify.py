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
    LEAF_BYTES,
    InvalidEventRow,
    Row,
    Seal,
    decode_leaves,
    decode_signature,
    digest_hashes,
    hash_events,
    hash_seal,
    row_position,
    signing_message,
)
from quarterdeck.core.clock import Millis, iso

VerifySignature = Callable[[str, bytes, bytes], bool | None]
"""(kid, text, signature): whether the key signed the text; None if no key of that name is trusted."""
_ANCHOR_PATTERN = re.compile(r"(?:(\d{1,18}):)?([0-9a-f]{64})")


class Anchor(msgspec.Struct, frozen=True):
    """A seal that was noted elsewhere."""

    hash: str
    number: int | None = None

    def __str__(self) -> str:
        return self.hash if self.number is None else f"{self.number}:{self.hash}"


def parse_anchor(text: str) -> Anchor | None:
    """`17:…64 hexadecimal digits…`, or the digits alone."""
    found = _ANCHOR_PATTERN.fullmatch(text)
    return Anchor(found[2], int(found[1]) if found[1] else None) if found else None


class VerificationError(Exception):
    """The first thing that is not what it was. `pos` is the row of the log, `seal` the seal's number, where there is
    one to name."""

    def __init__(self, message: str, *, pos: int | None = None, seal: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.pos = pos
        self.seal = seal


@dataclass(frozen=True, slots=True)
class VerificationInput:
    """Everything that is looked at, all of one snapshot."""

    head: Row | None
    """The row of `log_head`: pos, floor."""
    newest_seal: Row | None
    """The newest seal: what it attests as the floor must be known before the first event is missed."""
    seals: Iterable[Row]
    """By number, all of them."""
    events: Iterable[Sequence[Row]]
    """By position, all of them, in pages of any size."""


class VerificationResult(msgspec.Struct):
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


def verify(
    source: VerificationInput, verify_signature: VerifySignature, anchors: Sequence[Anchor] = ()
) -> VerificationResult:
    """Raises Altered for the first row that is not what it was."""
    head = _decode_head(source.head)
    newest = _decode_seal(source.newest_seal) if source.newest_seal else None
    verifier = _Verifier(_RowReader(source.events), newest.floor if newest else 0, verify_signature, anchors)
    for row in source.seals:
        verifier.check_seal(_decode_seal(row))
    verifier.check_unsealed(head)
    verifier.check_anchors()
    return verifier.result


class _Head(msgspec.Struct, frozen=True, array_like=True):
    pos: int
    floor: int


def _decode_head(row: Row | None) -> _Head:
    if row is None:
        raise VerificationError("The row of log_head is gone.")
    try:
        return msgspec.convert(row, _Head)
    except msgspec.ValidationError:
        raise VerificationError("The row of log_head does not hold two numbers.") from None


def _decode_seal(row: Row) -> Seal:
    try:
        return msgspec.convert(row, Seal)
    except msgspec.ValidationError:
        raise VerificationError(
            f"Seal {row[0]} holds a value of a type that no seal has.", seal=row_position(row)
        ) from None


# -- the walk -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Verifier:
    row_reader: _RowReader
    floor: int
    verify_signature: VerifySignature
    anchors: Sequence[Anchor]
    result: VerificationResult = field(default_factory=VerificationResult)
    last_seal: Seal | None = None
    has_seen_event: bool = False
    """Whether an event has been met: retention takes the lowest first, so from there on none may be absent."""
    found_anchors: set[Anchor] = field(default_factory=set)

    def check_seal(self, seal: Seal) -> None:
        self._check_chain(seal)
        self._check_hash(seal)
        self._check_signature(seal)
        self._check_ranges(seal)
        self._match_anchors(seal)
        self._check_events(seal)
        self.last_seal = seal
        self.result.seals += 1
        self.result.last_pos = seal.last_pos
        self.result.floor = seal.floor
        self.result.newest = seal.anchor
        if seal.kid not in self.result.kids:
            self.result.kids.append(seal.kid)

    # -- the seal by itself, and in its chain

    def _check_chain(self, seal: Seal) -> None:
        expected = self.last_seal.number + 1 if self.last_seal else 1
        if seal.number > expected:
            raise VerificationError(
                f"Seal {expected} is gone: seal {seal.number} stands where it should.",
                pos=self._next_pos(),
                seal=expected,
            )
        if seal.number < expected:
            raise VerificationError(f"There is a second seal {seal.number}.", pos=self._next_pos(), seal=seal.number)
        if seal.previous != (self.last_seal.hash if self.last_seal else GENESIS):
            self._raise_invalid_seal(
                seal, f"does not follow {f'seal {expected - 1}' if self.last_seal else 'the beginning'}"
            )

    def _check_hash(self, seal: Seal) -> None:
        if hash_seal(seal) != seal.hash:
            self._raise_invalid_seal(seal, "was altered: its hash is not that of what it says")

    def _check_signature(self, seal: Seal) -> None:
        try:
            is_valid = self.verify_signature(seal.kid, signing_message(seal), decode_signature(seal))
        except ValueError:
            is_valid = False
        if is_valid is None:
            self._raise_invalid_seal(
                seal, f"is signed by the key {seal.kid}, which is not among those that are trusted"
            )
        if not is_valid:
            self._raise_invalid_seal(seal, f"bears a signature that the key {seal.kid} did not make")

    def _check_ranges(self, seal: Seal) -> None:
        """What no server of ours would sign; said all the same, because a proof should rest on few assumptions."""
        previous = self.last_seal
        if seal.first_pos != self._next_pos() or seal.last_pos < seal.first_pos - 1:
            self._raise_invalid_seal(seal, f"speaks of the positions {seal.first_pos} to {seal.last_pos}, out of turn")
        if not (previous.floor if previous else 0) <= seal.floor < max(1, seal.first_pos):
            self._raise_invalid_seal(seal, f"attests a floor of {seal.floor}, which cannot be")
        if previous and seal.at < previous.at:
            self._raise_invalid_seal(seal, f"is older than seal {previous.number}")

    def _match_anchors(self, seal: Seal) -> None:
        for anchor in self.anchors:
            if anchor.hash == seal.hash and anchor.number in (None, seal.number):
                self.found_anchors.add(anchor)
            elif anchor.number == seal.number:
                self._raise_invalid_seal(seal, f"is not the one that was noted as {anchor}: the chain was made again")

    # -- the events it speaks of

    def _check_events(self, seal: Seal) -> None:
        count = seal.last_pos - seal.first_pos + 1
        rows = self.row_reader.read_up_to(seal.last_pos)
        try:
            if len(rows) == count and digest_hashes(hash_events(rows)) == seal.digest:
                self.has_seen_event = self.has_seen_event or count > 0
                self.result.events += count
                return
        except InvalidEventRow:
            pass  # the walk over the leaves finds out which, and whether one before it is wrong, too
        if not rows and seal.last_pos <= self.floor and not self.has_seen_event:
            self.result.removed += count
            return
        self._check_leaves(seal, rows)

    def _check_leaves(self, seal: Seal, rows: Sequence[Row]) -> None:
        """Event by event: finds the first that is not what was sealed, or that all absences are retention's."""
        removed, remaining = self.result.removed, iter(rows)
        row = next(remaining, None)
        for pos, leaf in zip(range(seal.first_pos, seal.last_pos + 1), self._decode_leaves(seal), strict=True):
            if row is not None and row_position(row) < pos:
                self._raise_extra_row(row_position(row))
            if row is None or row_position(row) > pos:
                self._count_removed(pos, seal)
                continue
            if not _matches_leaf(row, leaf):
                raise VerificationError(
                    f"The event at position {pos} is not the one that was sealed ({_describe_seal(seal)}).",
                    pos=pos,
                    seal=seal.number,
                )
            self.has_seen_event = True
            self.result.events += 1
            row = next(remaining, None)
        if row is not None:
            self._raise_extra_row(row_position(row))
        if self.result.removed == removed:
            raise VerificationError(
                f"An event of the positions {seal.first_pos} to {seal.last_pos} is not the one that was sealed "
                f"({_describe_seal(seal)}).",
                pos=seal.first_pos,
                seal=seal.number,
            )

    def _decode_leaves(self, seal: Seal) -> list[bytes]:
        try:
            leaves = decode_leaves(seal)
        except ValueError:
            leaves = []
        if len(leaves) != seal.last_pos - seal.first_pos + 1:
            self._raise_invalid_seal(seal, "has not one leaf for each of its events")
        return leaves

    def _count_removed(self, pos: int, seal: Seal) -> None:
        if pos > self.floor or self.has_seen_event:
            raise VerificationError(
                f"The event at position {pos} is gone ({_describe_seal(seal)}).", pos=pos, seal=seal.number
            )
        self.result.removed += 1

    def _raise_extra_row(self, pos: int) -> None:
        if pos < 1:
            raise VerificationError(f"There is a row at position {pos}; the log begins at 1.", pos=pos)
        raise VerificationError(f"There is a second row at position {pos}.", pos=pos)

    # -- what comes after the last seal

    def check_unsealed(self, head: _Head) -> None:
        expected = self._next_pos()
        if head.pos < expected - 1:
            raise VerificationError(
                f"log_head says that the log ends at {head.pos}, and it is sealed up to {expected - 1}."
            )
        for row in self.row_reader:
            pos = row_position(row)
            if pos < expected:
                self._raise_extra_row(pos)
            if pos > expected and expected <= head.pos:
                break
            if pos > head.pos:
                raise VerificationError(
                    f"There is a row at position {pos}; log_head says that the log ends at {head.pos}.", pos=pos
                )
            self._count_unsealed(row)
            expected += 1
        if expected <= head.pos:
            raise VerificationError(
                f"The event at position {expected} is gone. No seal speaks of it, but log_head says that the log ends "
                f"at {head.pos}.",
                pos=expected,
            )
        sealed = self._next_pos() - 1
        if not self.floor <= head.floor <= sealed:
            raise VerificationError(
                f"log_head has a floor of {head.floor}; the seals attest {self.floor} and end at {sealed}."
            )

    def _count_unsealed(self, row: Row) -> None:
        try:
            hash_events([row])
        except InvalidEventRow as error:
            raise VerificationError(
                f"The row at position {error.pos} is none that a server wrote.", pos=error.pos
            ) from None
        self.result.unproven += 1
        at = row[-1]
        if self.result.unproven_since is None and isinstance(at, int):
            self.result.unproven_since = at

    def check_anchors(self) -> None:
        for anchor in self.anchors:
            if anchor not in self.found_anchors:
                chain_end = (
                    f"the chain ends with seal {self.last_seal.number}" if self.last_seal else "there is no seal at all"
                )
                raise VerificationError(
                    f"The seal that was noted as {anchor} is not in the chain: {chain_end}. What came after position "
                    f"{self._next_pos() - 1} was cut off or made again.",
                    pos=self._next_pos(),
                    seal=anchor.number,
                )

    def _next_pos(self) -> int:
        return self.last_seal.last_pos + 1 if self.last_seal else 1

    def _raise_invalid_seal(self, seal: Seal, defect: str) -> None:
        raise VerificationError(f"Seal {seal.number} {defect}.", pos=self._next_pos(), seal=seal.number)


def _matches_leaf(row: Row, leaf: bytes) -> bool:
    try:
        return hash_events([row])[0][:LEAF_BYTES] == leaf
    except InvalidEventRow:
        return False


def _describe_seal(seal: Seal) -> str:
    return f"seal {seal.number} of {iso(seal.at)}"


class _RowReader:
    """The rows that have not been looked at yet."""

    def __init__(self, pages: Iterable[Sequence[Row]]) -> None:
        self._pages = iter(pages)
        self._page: Sequence[Row] = ()
        self._index = 0

    def read_up_to(self, last_pos: int) -> list[Row]:
        """Every row up to a position, wherever it begins: what stands before its place must be seen, too."""
        rows: list[Row] = []
        while self._index < len(self._page) or self._load_page():
            end = bisect_right(self._page, last_pos, lo=self._index, key=row_position)
            rows += self._page[self._index : end]
            self._index = end
            if end < len(self._page):
                break
        return rows

    def __iter__(self) -> Iterator[Row]:
        while self._index < len(self._page) or self._load_page():
            self._index += 1
            yield self._page[self._index - 1]

    def _load_page(self) -> bool:
        self._page, self._index = next(self._pages, ()), 0
        return len(self._page) > 0
