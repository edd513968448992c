"""Verifies an event log: reads the rows of `seals` and `events` in order and stops at the first wrong row.

`verify` checks that:

- the seals form one unbroken chain, and a trusted key signed each of them;
- every sealed event exists, unaltered and at its position, unless retention deleted it. Retention deletes the lowest
  positions first, and only up to the floor of the newest seal;
- no other event exists up to the last sealed position, and none after the head;
- the positions from the last seal to the head have no gap;
- the chain contains every anchor. An anchor is a seal recorded outside the database.

`verify` cannot check the content of events after the last seal. Without an anchor, it cannot detect that the newest
seals were deleted together with their events.

`VerificationError` names the first wrong row in log order and the reason. Each seal is verified before its events are
compared with it.
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
"""(kid, message, signature): whether that key signed the message. None if the key is not trusted."""
_ANCHOR_PATTERN = re.compile(r"(?:(\d{1,18}):)?([0-9a-f]{64})")


class Anchor(msgspec.Struct, frozen=True):
    """A seal recorded outside the database."""

    hash: str
    number: int | None = None

    def __str__(self) -> str:
        return self.hash if self.number is None else f"{self.number}:{self.hash}"


def parse_anchor(text: str) -> Anchor | None:
    """Parse `17:…64 hexadecimal digits…`, or the digits alone. Return None for anything else."""
    match = _ANCHOR_PATTERN.fullmatch(text)
    return Anchor(match[2], int(match[1]) if match[1] else None) if match else None


class VerificationError(Exception):
    """The log does not verify. `pos` is the position of the first error, `seal` the number of its seal, where known."""

    def __init__(self, message: str, *, pos: int | None = None, seal: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.pos = pos
        self.seal = seal


@dataclass(frozen=True, slots=True)
class VerificationInput:
    """The rows to verify, all from one snapshot."""

    head: Row | None
    """The row of `log_head`: pos, floor."""
    newest_seal: Row | None
    """Read before the others, because its floor decides which events may be missing."""
    seals: Iterable[Row]
    """All rows of `seals`, ordered by number."""
    events: Iterable[Sequence[Row]]
    """All rows of `events`, ordered by position, in pages of any size."""


class VerificationResult(msgspec.Struct):
    """The counts for a log that verified without an error."""

    seals: int = 0
    events: int = 0
    """Sealed events that are present and unaltered."""
    last_pos: int = 0
    """The last sealed position."""
    floor: int = 0
    removed: int = 0
    """Events that retention deleted."""
    unproven: int = 0
    """Events after the last seal."""
    unproven_since: Millis | None = None
    newest: str | None = None
    """The newest seal as an anchor."""
    kids: list[str] = []
    """The keys that signed the seals."""


def verify(
    source: VerificationInput, verify_signature: VerifySignature, anchors: Sequence[Anchor] = ()
) -> VerificationResult:
    """Raises `VerificationError` for the first wrong row."""
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
        raise VerificationError("The row of log_head is missing.")
    try:
        return msgspec.convert(row, _Head)
    except msgspec.ValidationError:
        raise VerificationError("The row of log_head does not hold two integers.") from None


def _decode_seal(row: Row) -> Seal:
    try:
        return msgspec.convert(row, Seal)
    except msgspec.ValidationError:
        raise VerificationError(f"Seal {row[0]} holds a value of a wrong type.", seal=row_position(row)) from None


# -- verification -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Verifier:
    row_reader: _RowReader
    floor: int
    verify_signature: VerifySignature
    anchors: Sequence[Anchor]
    result: VerificationResult = field(default_factory=VerificationResult)
    last_seal: Seal | None = None
    has_seen_event: bool = False
    """Whether an event was found. Retention deletes the lowest positions first, so no later event may be missing."""
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

    # -- the seal and its place in the chain

    def _check_chain(self, seal: Seal) -> None:
        expected = self.last_seal.number + 1 if self.last_seal else 1
        if seal.number > expected:
            raise VerificationError(
                f"Seal {expected} is missing: seal {seal.number} is in its place.", pos=self._next_pos(), seal=expected
            )
        if seal.number < expected:
            raise VerificationError(f"There is a second seal {seal.number}.", pos=self._next_pos(), seal=seal.number)
        if seal.previous != (self.last_seal.hash if self.last_seal else GENESIS):
            self._raise_invalid_seal(
                seal, f"does not follow {f'seal {expected - 1}' if self.last_seal else 'the start of the chain'}"
            )

    def _check_hash(self, seal: Seal) -> None:
        if hash_seal(seal) != seal.hash:
            self._raise_invalid_seal(seal, "was altered: its hash does not match its content")

    def _check_signature(self, seal: Seal) -> None:
        try:
            is_valid = self.verify_signature(seal.kid, signing_message(seal), decode_signature(seal))
        except ValueError:
            is_valid = False
        if is_valid is None:
            self._raise_invalid_seal(seal, f"is signed by the key {seal.kid}, which is not trusted")
        if not is_valid:
            self._raise_invalid_seal(seal, f"has a signature that the key {seal.kid} did not make")

    def _check_ranges(self, seal: Seal) -> None:
        # The server never signs a seal that fails these checks, but verification should not rely on the server.
        previous = self.last_seal
        if seal.first_pos != self._next_pos() or seal.last_pos < seal.first_pos - 1:
            self._raise_invalid_seal(seal, f"covers positions {seal.first_pos} to {seal.last_pos}, out of sequence")
        if not (previous.floor if previous else 0) <= seal.floor < max(1, seal.first_pos):
            self._raise_invalid_seal(seal, f"has an impossible floor of {seal.floor}")
        if previous and seal.at < previous.at:
            self._raise_invalid_seal(seal, f"is older than seal {previous.number}")

    def _match_anchors(self, seal: Seal) -> None:
        for anchor in self.anchors:
            if anchor.hash == seal.hash and anchor.number in (None, seal.number):
                self.found_anchors.add(anchor)
            elif anchor.number == seal.number:
                self._raise_invalid_seal(seal, f"is not the anchored seal {anchor}: the chain was rebuilt")

    # -- its events

    def _check_events(self, seal: Seal) -> None:
        count = seal.last_pos - seal.first_pos + 1
        rows = self.row_reader.read_up_to(seal.last_pos)
        try:
            if len(rows) == count and digest_hashes(hash_events(rows)) == seal.digest:
                self.has_seen_event = self.has_seen_event or count > 0
                self.result.events += count
                return
        except InvalidEventRow:
            pass  # `_check_leaves` finds the first wrong row, which may be an earlier one
        if not rows and seal.last_pos <= self.floor and not self.has_seen_event:
            self.result.removed += count
            return
        self._check_leaves(seal, rows)

    def _check_leaves(self, seal: Seal, rows: Sequence[Row]) -> None:
        """Compare event by event: raise for the first wrong one, and count the events that retention deleted."""
        removed_before, remaining = self.result.removed, iter(rows)
        row = next(remaining, None)
        for pos, leaf in zip(range(seal.first_pos, seal.last_pos + 1), self._decode_leaves(seal), strict=True):
            if row is not None and row_position(row) < pos:
                self._raise_extra_row(row_position(row))
            if row is None or row_position(row) > pos:
                self._count_removed(pos, seal)
                continue
            if not _matches_leaf(row, leaf):
                raise VerificationError(
                    f"The event at position {pos} is not the sealed one ({_describe_seal(seal)}).",
                    pos=pos,
                    seal=seal.number,
                )
            self.has_seen_event = True
            self.result.events += 1
            row = next(remaining, None)
        if row is not None:
            self._raise_extra_row(row_position(row))
        if self.result.removed == removed_before:
            raise VerificationError(
                f"An event of positions {seal.first_pos} to {seal.last_pos} is not the sealed one "
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
            self._raise_invalid_seal(seal, "does not have one leaf per event")
        return leaves

    def _count_removed(self, pos: int, seal: Seal) -> None:
        """Count a missing event as deleted by retention, or raise if retention cannot have deleted it."""
        if pos > self.floor or self.has_seen_event:
            raise VerificationError(
                f"The event at position {pos} is missing ({_describe_seal(seal)}).", pos=pos, seal=seal.number
            )
        self.result.removed += 1

    def _raise_extra_row(self, pos: int) -> None:
        if pos < 1:
            raise VerificationError(f"There is a row at position {pos}; the log starts at 1.", pos=pos)
        raise VerificationError(f"There is a second row at position {pos}.", pos=pos)

    # -- after the last seal

    def check_unsealed(self, head: _Head) -> None:
        expected = self._next_pos()
        if head.pos < expected - 1:
            raise VerificationError(
                f"log_head ends the log at position {head.pos}, but the log is sealed up to {expected - 1}."
            )
        for row in self.row_reader:
            pos = row_position(row)
            if pos < expected:
                self._raise_extra_row(pos)
            if pos > expected and expected <= head.pos:
                break
            if pos > head.pos:
                raise VerificationError(
                    f"There is a row at position {pos}, but log_head ends the log at {head.pos}.", pos=pos
                )
            self._count_unsealed(row)
            expected += 1
        if expected <= head.pos:
            raise VerificationError(
                f"The event at position {expected} is missing. It is not sealed, but log_head ends the log at "
                f"{head.pos}.",
                pos=expected,
            )
        sealed = self._next_pos() - 1
        if not self.floor <= head.floor <= sealed:
            raise VerificationError(
                f"log_head has floor {head.floor}; the floor of the seals is {self.floor}, and they end at {sealed}."
            )

    def _count_unsealed(self, row: Row) -> None:
        try:
            hash_events([row])
        except InvalidEventRow as error:
            raise VerificationError(
                f"The row at position {error.pos} was not written by a server.", pos=error.pos
            ) from None
        self.result.unproven += 1
        at = row[-1]
        if self.result.unproven_since is None and isinstance(at, int):
            self.result.unproven_since = at

    def check_anchors(self) -> None:
        for anchor in self.anchors:
            if anchor not in self.found_anchors:
                chain_end = (
                    f"the chain ends with seal {self.last_seal.number}" if self.last_seal else "there is no seal"
                )
                raise VerificationError(
                    f"The anchored seal {anchor} is not in the chain: {chain_end}. The log after position "
                    f"{self._next_pos() - 1} was deleted or rebuilt.",
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
    """Reads the rows of `events` in order, across pages."""

    def __init__(self, pages: Iterable[Sequence[Row]]) -> None:
        self._pages = iter(pages)
        self._page: Sequence[Row] = ()
        self._index = 0

    def read_up_to(self, last_pos: int) -> list[Row]:
        """The next rows up to a position. They include rows below the seal's range, which must be reported too."""
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
