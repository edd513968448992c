"""Moments as people give them: an instant, or so long from now, or so long ago."""

from __future__ import annotations

from quarterdeck.cli.command_table import Kind, seconds


def later(text: str, now: float) -> str:
    """The instant that `+10m` or an ISO-8601 instant means."""
    return _iso(now + seconds(text[1:])) if text[:1] == "+" else _given(text)


def earlier(text: str, now: float) -> str:
    """The instant that `10m` (so long ago) or an ISO-8601 instant means."""
    try:
        back = seconds(text)
    except ValueError:
        return _given(text)
    return _iso(now - back)


def _later(text: str) -> str:
    later(text, 0.0)
    return text


def _earlier(text: str) -> str:
    earlier(text, 0.0)
    return text


def day(text: str, now: float) -> str:
    """The day that `7d` (so long ago) or 2026-01-31 means, in UTC."""
    try:
        back = seconds(text)
    except ValueError:
        if len(text) != 10 or not _given(text):
            raise ValueError(f"{text!r} is not a day: 2026-01-31 is, or a time such as 7d") from None
        return text
    return _iso(now - back)[:10]


def _day(text: str) -> str:
    day(text, 0.0)
    return text


# What was typed is kept: when "now" is, is known only when the command runs.
LATER = Kind("WHEN", _later)
EARLIER = Kind("WHEN", _earlier)
DAY = Kind("DAY", _day)


def _given(text: str) -> str:
    """Without an offset it is meant as the clock on the wall shows it."""
    from datetime import datetime  # 2 ms, and few commands name a moment

    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is not a moment: 2026-01-31T09:00:00Z is, or a time such as 10m") from None


def _iso(at: float) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        raise ValueError("that moment is too far away for a calendar") from None
