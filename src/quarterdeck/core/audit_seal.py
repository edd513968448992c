"""Seals: signed hashes over ranges of the event log. With them the log can be verified later without the server.

A seal covers a gapless range of positions. Each event is hashed in one canonical encoding. `digest` is the hash of
those hashes, in order. `leaves` holds the first eight bytes of each hash, so that verification can name the altered
row. The seal's own hash covers these fields, `floor` and the hash of the previous seal; the signature covers the seal's
hash. So the newest signature covers the log from its start to that seal. Without the key, seals cannot be inserted or
replaced, and none can be removed except from the end of the chain.

`floor` is the position up to which retention may have deleted events. The signature covers it, so that a deletion by
someone without the key cannot be mistaken for retention.

This module creates seals; `core.audit_verify` checks a log against them.
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
"""Finding another event with the same leaf takes about 2⁶⁴ tries. The complete hashes are covered by `digest`."""
GENESIS = ""
"""The `previous` of the first seal."""
_SCHEME = "quarterdeck-seal-1"
_NONE_TYPE = type(None)


class Seal(msgspec.Struct, frozen=True, array_like=True):
    """A row of `seals`. Fields are in column order."""

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
        """The text under which a seal is recorded outside the database."""
        return f"{self.number}:{self.hash}"


class Signer(Protocol):
    """Holds the signing key. `kid` is the key's thumbprint."""

    @property
    def kid(self) -> str: ...
    def sign(self, message: bytes) -> bytes: ...


class SealInput(msgspec.Struct, frozen=True):
    """The content of the next seal: the hashes of the events from `first_pos` on, and the new floor."""

    first_pos: int
    event_hashes: Sequence[bytes]
    floor: int


class SealEnd(msgspec.Struct, frozen=True, array_like=True):
    """The columns of a seal that retention needs."""

    last_pos: int
    number: int
    at: Millis


class InvalidEventRow(Exception):
    """A row of `events` whose column types are not those of the table. The server never writes such a row."""

    def __init__(self, pos: int) -> None:
        super().__init__(f"the row at position {pos} has a value of a wrong type")
        self.pos = pos


def create_seal(seal_input: SealInput, previous: Seal | None, now: Millis, signer: Signer) -> Seal:
    """Create and sign the next seal of the chain."""
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
        # If the clock was set back, the times of the chain must still not decrease.
        at=max(now, previous.at) if previous else now,
    )
    hashed = msgspec.structs.replace(unsigned, hash=hash_seal(unsigned))
    return msgspec.structs.replace(hashed, signature=_to_base64(signer.sign(signing_message(hashed))))


# -- retention ----------------------------------------------------------------------------------------------------


def is_expired(end: SealEnd, newest: Seal, cutoff: Millis) -> bool:
    """Whether retention may delete the events of a seal: it was created by `cutoff` and is not the newest seal.

    The seal's own time is used, not the times of its events, because the seal's time is signed.
    """
    return end.number < newest.number and end.at <= cutoff


def next_floor(ends: Sequence[SealEnd], newest: Seal, cutoff: Millis, lowest_needed: int | None = None) -> int | None:
    """The last position of the last expired seal that ends below `lowest_needed`, or None if there is none.

    `lowest_needed` is the lowest position that a reader of the log still needs. It is None if no reader needs any.
    """
    expired_positions = [
        end.last_pos
        for end in ends
        if is_expired(end, newest, cutoff) and (lowest_needed is None or end.last_pos < lowest_needed)
    ]
    return max(expired_positions, default=None)


# -- events -------------------------------------------------------------------------------------------------------


def _row_types() -> frozenset[tuple[type, ...]]:
    """The allowed types of a row of `events`, column by column. Three columns are nullable."""
    nullable: tuple[type, type] = (str, _NONE_TYPE)
    return frozenset(
        (int, str, str, str, str, str, from_state, to_state, str, trace, int)
        for from_state, to_state, trace in product(nullable, repeat=3)
    )


ROW_TYPES = _row_types()


def hash_events(rows: Sequence[Row]) -> list[bytes]:
    """The hash of each event. Raises `InvalidEventRow` for a row whose types are not in `ROW_TYPES`.

    JSON encodes the types in `ROW_TYPES` unambiguously. Other types could collide: bytes are encoded like the string
    that is their base64 form.
    """
    for row in rows:
        if tuple(map(type, row)) not in ROW_TYPES:
            raise InvalidEventRow(row_position(row))
    encode = _ENCODER.encode
    return [sha256(encode(row)).digest() for row in rows]


_ENCODER = msgspec.json.Encoder()


def row_position(row: Row) -> int:
    pos = row[0]
    assert isinstance(pos, int)  # the primary key, an integer in both databases
    return pos


# -- hashes -------------------------------------------------------------------------------------------------------


def digest_hashes(event_hashes: Sequence[bytes]) -> str:
    return sha256(b"".join(event_hashes)).hexdigest()


def hash_seal(seal: Seal) -> str:
    """Covers all fields except the hash itself and the signature."""
    leaves_hash = sha256(seal.leaves.encode()).hexdigest()
    hashed_fields = (
        _SCHEME,
        seal.number,
        seal.first_pos,
        seal.last_pos,
        seal.floor,
        seal.digest,
        leaves_hash,
        seal.previous,
        seal.kid,
        seal.at,
    )
    return sha256(msgspec.json.encode(hashed_fields)).hexdigest()


def signing_message(seal: Seal) -> bytes:
    """The signed bytes. The same key signs tokens, but a token's text has no spaces, so the two cannot be equal."""
    return f"quarterdeck seal {seal.hash}".encode()


def decode_leaves(seal: Seal) -> list[bytes]:
    """Raises ValueError if the text is not base64 or the last leaf is incomplete."""
    joined = base64.b64decode(seal.leaves, validate=True)
    if len(joined) % LEAF_BYTES:
        raise ValueError("the last leaf is incomplete")
    return [joined[offset : offset + LEAF_BYTES] for offset in range(0, len(joined), LEAF_BYTES)]


def decode_signature(seal: Seal) -> bytes:
    """Raises ValueError if the text is not base64."""
    return base64.b64decode(seal.signature, validate=True)


def _to_base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
