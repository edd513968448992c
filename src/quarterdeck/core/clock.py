"""Times as integer milliseconds, their ISO-8601 form, and the clock that SQLite uses.

An instant is the number of milliseconds since 1970 in UTC. On the wire it is ISO-8601 with milliseconds and Z.
Decisions use the database's clock.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated

Millis = Annotated[int, "milliseconds"]
"""An instant or a duration."""
SECOND = 1_000
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE


def system_now() -> Millis:
    """This machine's clock. SQLite's `now_ms()` calls this; PostgreSQL has its own."""
    return time.time_ns() // 1_000_000


@lru_cache(maxsize=4096)
def iso(instant: Millis) -> str:
    """2026-01-02T03:04:05.678Z

    Cached, because all rows of a batch have the same instant: a hundred responses format it once.
    """
    seconds, millis = divmod(instant, SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{millis:03d}Z"


def iso_or_none(instant: Millis | None) -> str | None:
    return None if instant is None else iso(instant)
