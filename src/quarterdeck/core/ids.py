"""UUIDv7 text ids (RFC 9562), made by the server before the statement that stores them.

Time order matters to both engines: random keys cost SQLite a factor of four on insert. Within one process
ids never go backwards, also inside one millisecond: 12 bits of counter follow the timestamp, then 62 bits
of chance.
"""

from __future__ import annotations

import os
import re
import time

PATH_ID = re.compile(r"[A-Za-z0-9_.\-:]{1,128}")
_COUNTER_BITS = 12
_BLOCK = 512


class IdMaker:
    """Makes ids in order. Entropy is drawn in blocks: one system call for 64 ids instead of one each."""

    def __init__(self) -> None:
        self._last = 0
        self._pool = b""
        self._used = 0

    def __call__(self) -> str:
        tick = time.time_ns() // 1_000_000 << _COUNTER_BITS
        if tick <= self._last:
            # Same millisecond, or a clock that stepped back: count on from the last id, borrowing from the
            # future.
            tick = self._last + 1
        self._last = tick
        if self._used >= len(self._pool):
            self._pool, self._used = os.urandom(_BLOCK), 0
        chance = int.from_bytes(self._pool[self._used : self._used + 8], "big")
        self._used += 8
        milliseconds, counter = tick >> _COUNTER_BITS, tick & 0xFFF
        value = milliseconds << 80 | 0x7 << 76 | counter << 64 | 0b10 << 62 | chance & (1 << 62) - 1
        text = f"{value:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


new_id = IdMaker()


def is_path_id(text: str) -> bool:
    """Whether a text may stand as an id in a path: the contract's form, anchored at both ends."""
    return PATH_ID.fullmatch(text) is not None
