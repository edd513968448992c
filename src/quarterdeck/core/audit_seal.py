"""Seals: what the server signs about its log, so that anybody can prove the log later without asking the server.

A seal speaks of a stretch of the log, from one position to another, without gaps. Each event is hashed in one canonical
spelling; `digest` is the hash of those hashes, in order; `leaves` are the first eight bytes of each, so that whoever
finds that the stretch is no longer what it was can say which row is not. The seal's own hash covers all of that, the
hash of the seal before it, and `floor`; the signature covers the seal's hash. So the newest signature speaks for the
whole log, and a seal cannot be taken out, put in or made again without the key.

`floor` is the position up to which events may be gone by retention. It counts only when a seal says so: whoever deletes
rows without the key cannot pass it off as retention.

This module makes seals; `core.proof` holds a log against them.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from hashlib import sha256
from itertools import product
from typing import Protocol

import msgspec

from quarterdeck.core.clock import Millis

Row = tuple[object, ...]
LEAF_BYTES = 8
"""Bytes. Enough that nobody finds a second event for a leaf while the rows are still there to be compared in full."""
GENESIS = ""
"""What the first seal follows."""
_SCHEME = "quarterdeck-seal-1"
_NONE_TYPE = type(None)


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """A row of `seals`, in the order of its columns."""

    number: int
    first_pos: int
    last_pos: int
    floor: int
    digest: str
    leaves: str
    previous: str
    hash: str
    kid: str
    signature: str
    at: Millis

    @property
    def anchor(self) -> str:
        """How a seal is noted elsewhere: an anchor."""
        return f"{self.number}:{self.hash}"


class Signer(Protocol):
    """Whoever has the key. `kid` is the key's thumbprint, so that it can be named without being shown."""

    @property
    def kid(self) -> str: ...
    def sign(self, message: bytes) -> bytes: ...


class SealInput(msgspec.Struct, frozen=True):
    """What is to be sealed: the events from a position on, by their hashes, and the floor that holds from now on."""

    first_pos: int
    event_hashes: Sequence[bytes]
    floor: int


class SealEnd(msgspec.Struct, frozen=True, array_like=True):
    """Where a seal ends: as much of it as retention needs to know."""

    last_pos: int
    number: int
    at: Millis


class InvalidEventRow(Exception):
    """A row whose values are not of the types that the log is written in: no server of ours wrote it."""

    def __init__(self, pos: int) -> None:
        super().__init__(f"the row at position {pos} is not of the types of the log")
        self.pos = pos


def create_seal(seal_input: SealInput, previous: Seal | None, now: Millis, signer: Signer) -> Seal:
    """The next seal of the chain."""
    unsigned = Seal(
        number=previous.number + 1 if previous else 1,
        first_pos=seal_input.first_pos,
        last_pos=seal_input.first_pos + len(seal_input.event_hashes) - 1,
        floor=seal_input.floor,
        digest=digest_hashes(seal_input.event_hashes),
        leaves=_to_base64(b"".join(event_hash[:LEAF_BYTES] for event_hash in seal_input.event_hashes)),
        previous=previous.hash if previous else GENESIS,
        hash="",
        kid=signer.kid,
        signature="",
        # A clock that was set back must not make a chain that seems to run backwards.
        at=max(now, previous.at) if previous else now,
    )
    hashed = msgspec.structs.replace(unsigned, hash=hash_seal(unsigned))
    return msgspec.structs.replace(hashed, signature=_to_base64(signer.sign(signing_message(hashed))))


# -- retention ----------------------------------------------------------------------------------------------------


def is_expired(end: SealEnd, newest: Seal, cutoff: Millis) -> bool:
    """Whether everything up to this end may go: it was sealed long ago, by a seal that is not the last one. The time is
    that of the seal, which is signed, and not that of the events."""
    return end.number < newest.number and end.at <= cutoff


def next_floor(ends: Sequence[SealEnd], newest: Seal, cutoff: Millis, lowest_needed: int | None = None) -> int | None:
    """The floor to raise to: the end of the last whole seal that is due. `ends` are in order; `needed` is the lowest
    position that somebody who reads the log has not come past."""
    expired = [
        end.last_pos
        for end in ends
        if is_expired(end, newest, cutoff) and (lowest_needed is None or end.last_pos < lowest_needed)
    ]
    return max(expired, default=None)


# -- events -------------------------------------------------------------------------------------------------------


def _row_types() -> frozenset[tuple[type, ...]]:
    """The types a row of `events` may have, column by column; three of the columns may be null."""
    nullable: tuple[type, type] = (str, _NONE_TYPE)
    return frozenset(
        (int, str, str, str, str, str, from_state, to_state, str, trace, int)
        for from_state, to_state, trace in product(nullable, repeat=3)
    )


ROW_TYPES = _row_types()


def hash_events(rows: Sequence[Row]) -> list[bytes]:
    """The hash of each event. JSON of strings, integers and null says one thing in one way; anything else could be
    taken for something it is not (bytes for the text of their base64), so it is no event at all."""
    for row in rows:
        if tuple(map(type, row)) not in ROW_TYPES:
            raise InvalidEventRow(row_position(row))
    encode = _ENCODER.encode
    return [sha256(encode(row)).digest() for row in rows]


_ENCODER = msgspec.json.Encoder()


def row_position(row: Row) -> int:
    pos = row[0]
    assert isinstance(pos, int)  # the primary key, an integer on both engines
    return pos


# -- hashes -------------------------------------------------------------------------------------------------------


def digest_hashes(event_hashes: Sequence[bytes]) -> str:
    return sha256(b"".join(event_hashes)).hexdigest()


def hash_seal(seal: Seal) -> str:
    """Over everything but the hash itself and the signature."""
    leaves = sha256(seal.leaves.encode()).hexdigest()
    hashed_fields = (
        _SCHEME,
        seal.number,
        seal.first_pos,
        seal.last_pos,
        seal.floor,
        seal.digest,
        leaves,
        seal.previous,
        seal.kid,
        seal.at,
    )
    return sha256(msgspec.json.encode(hashed_fields)).hexdigest()


def signing_message(seal: Seal) -> bytes:
    """What the signature is of. The spaces keep it apart from everything else that the same key signs: the text of a
    token that is signed has none."""
    return f"quarterdeck seal {seal.hash}".encode()


def decode_leaves(seal: Seal) -> list[bytes]:
    """Raises ValueError for what is no base64, or not of whole leaves."""
    joined = base64.b64decode(seal.leaves, validate=True)
    if len(joined) % LEAF_BYTES:
        raise ValueError("leaves that are not whole")
    return [joined[offset : offset + LEAF_BYTES] for offset in range(0, len(joined), LEAF_BYTES)]


def decode_signature(seal: Seal) -> bytes:
    """Raises ValueError for what is no base64."""
    return base64.b64decode(seal.signature, validate=True)


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
