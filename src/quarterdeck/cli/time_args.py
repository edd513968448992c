"""Time arguments: an ISO 8601 time, or a duration before or after now."""

from __future__ import annotations

from quarterdeck.cli.command_table import ParamType, parse_duration


def parse_future_time(text: str, now: float) -> str:
    """Parse `+10m` (from now) or an ISO 8601 time. Returns an ISO 8601 time."""
    return _format_iso(now + parse_duration(text[1:])) if text[:1] == "+" else _parse_iso_time(text)


def parse_past_time(text: str, now: float) -> str:
    """Parse `10m` (ago) or an ISO 8601 time. Returns an ISO 8601 time."""
    try:
        seconds_ago = parse_duration(text)
    except ValueError:
        return _parse_iso_time(text)
    return _format_iso(now - seconds_ago)


def _check_future_time(text: str) -> str:
    parse_future_time(text, 0.0)
    return text


def _check_past_time(text: str) -> str:
    parse_past_time(text, 0.0)
    return text


def parse_day(text: str, now: float) -> str:
    """Parse `7d` (ago) or a date such as 2026-01-31. Returns a date, in UTC."""
    try:
        seconds_ago = parse_duration(text)
    except ValueError:
        if len(text) != 10 or not _parse_iso_time(text):
            raise ValueError(f"{text!r} is not a date. Use a date such as 2026-01-31, or an age such as 7d") from None
        return text
    return _format_iso(now - seconds_ago)[:10]


def _check_day(text: str) -> str:
    parse_day(text, 0.0)
    return text


# The types check the text and return it unchanged: a relative time is resolved when the command runs.
FUTURE_TIME = ParamType("TIME", _check_future_time)
PAST_TIME = ParamType("TIME", _check_past_time)
DAY = ParamType("DATE", _check_day)


def _parse_iso_time(text: str) -> str:
    """Parse an ISO 8601 time. Without an offset it is local time."""
    from datetime import datetime  # the import takes 2 ms, and few commands need it

    try:
        return datetime.fromisoformat(text).astimezone().isoformat()
    except (ValueError, OverflowError, OSError):
        detail = f"{text!r} is not a time. Use 2026-01-31T09:00:00Z, or a duration: 10m (ago) or +10m (from now)"
        raise ValueError(detail) from None


def _format_iso(timestamp: float) -> str:
    from datetime import UTC, datetime

    try:
        return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        raise ValueError("the time is out of range: the year must be between 1 and 9999") from None
