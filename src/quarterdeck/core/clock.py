"""Instants are integers: milliseconds since 1970, UTC. They are shown as ISO-8601 with milliseconds and Z.

The database's clock is the one that decides (DESIGN §4); this module only names the type and shows it.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

Millis = int
SECOND = 1_000
MINUTE = 60 * SECOND
DAY = 24 * 60 * MINUTE


def system_now() -> Millis:
    """This machine's clock. SQLite's `now_ms()` is this; PostgreSQL has its own."""
    return time.time_ns() // 1_000_000


def iso(instant: Millis) -> str:
    """2026-01-02T03:04:05.678Z"""
    seconds, millis = divmod(instant, SECOND)
    return f"{_seconds_text(seconds)}.{millis:03d}Z"


def iso_or_none(instant: Millis | None) -> str | None:
    return None if instant is None else iso(instant)


_last_second: tuple[int, str] = (0, "1970-01-01T00:00:00")


def _seconds_text(seconds: int) -> str:
    # Most instants formatted in one batch share their second; remembering one saves most of the strftime.
    global _last_second
    known, text = _last_second
    if known != seconds:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        _last_second = (seconds, text)
    return text
