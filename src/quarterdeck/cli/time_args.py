"""Moments as people give them: an instant, or so long from now, or so long ago."""

from __future__ import annotations

from quarterdeck.cli.command_table import ParamType, parse_duration


def parse_future_time(text: str, now: float) -> str:
    """The instant that `+10m` or an ISO-8601 instant means."""
    return _format_iso(now + parse_duration(text[1:])) if text[:1] == "+" else _parse_instant(text)


def parse_past_time(text: str, now: float) -> str:
    """The instant that `10m` (so long ago) or an ISO-8601 instant means."""
    try:
        seconds_ago = parse_duration(text)
    except ValueError:
        return _parse_instant(text)
    return _format_iso(now - seconds_ago)


def _check_future_time(text: str) -> str:
    parse_future_time(text, 0.0)
    return text


def _check_past_time(text: str) -> str:
    parse_past_time(text, 0.0)
    return text


def parse_day(text: str, now: float) -> str:
    """The day that `7d` (so long ago) or 2026-01-31 means, in UTC."""
    try:
        seconds_ago = parse_duration(text)
    except ValueError:
        if len(text) != 10 or not _parse_instant(text):
            raise ValueError(f"{text!r} is not a day: 2026-01-31 is, or a time such as 7d") from None
        return text
    return _format_iso(now - seconds_ago)[:10]


def _check_day(text: str) -> str:
    parse_day(text, 0.0)
    return text


# What was typed is kept: when "now" is, is known only when the command runs.
FUTURE_TIME = ParamType("WHEN", _check_future_time)
PAST_TIME = ParamType("WHEN", _check_past_time)
DAY = ParamType("DAY", _check_day)


def _parse_instant(text: str) -> str:
    """Without an offset it is meant as the clock on the wall shows it."""
    from datetime import datetime  # 2 ms, and few commands name a moment

    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is not a moment: 2026-01-31T09:00:00Z is, or a time such as 10m") from None


def _format_iso(timestamp: float) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        raise ValueError("that moment is too far away for a calendar") from None
