"""UUIDv7 text ids (RFC 9562), made by the server before the statement that stores them.

Time order matters to both engines: random keys cost SQLite a factor of four on insert. Within one process
ids never go backwards, also inside one millisecond: 12 bits of counter follow the timestamp, then 62 bits
of chance.
"""

from __future__ import annotations

import os
import re
import time
from functools import lru_cache

PATH_ID = re.compile(r"[A-Za-z0-9_.\-:]{1,128}")
NAME_MAX = 255
NUMERIC_ID = re.compile(r"[1-9][0-9]{0,15}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_COUNTER_BITS = 12
_ENTROPY_BYTES = 512
_VARIANT_DIGITS = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
"""RFC 9562 wants the bits 10 here; the other two are chance."""


class IdGenerator:
    """Makes ids in order. Every spawn makes two, so what can be shared is: entropy is drawn and spelt for 64 ids at a
    time, and the head of an id is spelt once a millisecond."""

    def __init__(self) -> None:
        self._last_tick = 0
        self._prefix_millis = -1
        self._prefix = ""
        self._random_pool = ""
        self._pool_offset = 0

    def __call__(self) -> str:
        tick = time.time_ns() // 1_000_000 << _COUNTER_BITS
        if tick <= self._last_tick:
            # Same millisecond, or a clock that stepped back: count on from the last id, borrowing from the future.
            tick = self._last_tick + 1
        self._last_tick = tick
        milliseconds = tick >> _COUNTER_BITS
        if milliseconds != self._prefix_millis:
            self._prefix_millis, self._prefix = (
                milliseconds,
                f"{milliseconds >> 16:08x}-{milliseconds & 0xFFFF:04x}-7",
            )
        offset = self._pool_offset
        if offset >= len(self._random_pool):
            self._random_pool, offset = os.urandom(_ENTROPY_BYTES).hex(), 0
        self._pool_offset = offset + 16
        random_digits = self._random_pool[offset : offset + 16]
        variant = _VARIANT_DIGITS[random_digits[0]]
        return f"{self._prefix}{tick & 0xFFF:03x}-{variant}{random_digits[1:4]}-{random_digits[4:]}"


new_id = IdGenerator()


def lowest_id_at(milliseconds: int) -> str:
    """Below every id made at this instant or later, above every id made before it."""
    return f"{milliseconds >> 16:08x}-{milliseconds & 0xFFFF:04x}-7"


def id_created_at(id_text: str) -> int:
    """When an id of ours was made, in milliseconds since 1970."""
    return int(id_text[:8] + id_text[9:13], 16)


@lru_cache(maxsize=4096)
def is_path_id(text: str) -> bool:
    """Whether a text may stand as an id in a path: the contract's form, anchored at both ends. The same zones and
    applications are asked about over and over."""
    return PATH_ID.fullmatch(text) is not None


def is_numeric_id(text: str) -> bool:
    """Whether a text is a number as ids of fleets, members and messages are: spelt one way only."""
    return NUMERIC_ID.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether a text may be somebody's name: what issuers call people is theirs to choose, within bounds."""
    return 0 < len(text) <= NAME_MAX and _CONTROL.search(text) is None
