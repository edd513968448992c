"""Values that are read when a command runs: JSON from a file or standard input, and times relative to now.

Also the options of claims, and their output.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence

from quarterdeck.cli.command_table import DURATION_MS, NUMBER, Option, ParamType, parse_duration
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import Column, format_table
from quarterdeck.client.api import Document, page_items

JSON_INPUT_HELP = "JSON, @FILE, or - for standard input"


def _read_json(text: str) -> object:
    source, content = read_input(text)
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source} is not valid JSON: {error}") from None


def _read_json_or_text(text: str) -> object:
    if text == "-" or text.startswith("@"):
        return _read_json(text)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# The text is read when the command runs, not when it is parsed, because standard input can be read only once.
JSON_INPUT = ParamType("TEXT", str, encode=_read_json)
JSON_OR_TEXT_INPUT = ParamType("TEXT", str, encode=_read_json_or_text)


def read_input(text: str) -> tuple[str, str]:
    """Return the name of the source, for error messages, and its content."""
    if text == "-":
        # sys.stdin is None if it was closed before the process started.
        return "standard input", "" if sys.stdin is None else sys.stdin.read()
    if text.startswith("@"):
        with open(text[1:], encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - pathlib costs 10 ms
            return text[1:], file.read()
    return repr(text), text


def claim_options(max_items: int, wait_field: str) -> tuple[Option, ...]:
    """Build the options of a claim. `max_items` is the largest --max that the server accepts."""
    return (
        Option("--max", f"Maximum number to claim, 1 to {max_items} [default: 1].", NUMBER, field="max"),
        Option(
            "--wait",
            "How long to wait for work, such as 20s or 1m [default: do not wait].",
            DURATION_MS,
            field=wait_field,
        ),
    )


def claim(context: Context, path: str, body: Document, columns: Sequence[Column], items_field: str) -> None:
    """Claim work and print it. `items_field` is the field of the response that has the claimed items."""
    # The response may take the requested wait plus the usual time.
    server = context.server(extra_seconds=(context.number("wait") or 0) / 1000)
    document = server.call("POST", path, body=body).document
    items = page_items(document, items_field)
    if items or context.as_json:
        context.show(document, lambda _: format_table(context, columns, items))
    else:
        context.note("No work is available.")


# -- times: an ISO 8601 time, or a duration before or after now ------------------------------------------------------


def parse_future_time(text: str, now: float) -> str:
    """Parse `+10m` (from now) or an ISO 8601 time. Returns an ISO 8601 time."""
    return _format_iso(now + parse_duration(text[1:])) if text[:1] == "+" else _parse_iso_time(text)


def parse_past_time(text: str, now: float) -> str:
    """Parse `10m` (ago) or an ISO 8601 time. Returns an ISO 8601 time."""
    return _parse_age(text, now) or _parse_iso_time(text)


def parse_day(text: str, now: float) -> str:
    """Parse `7d` (ago) or a date such as 2026-01-31. Returns a date, in UTC."""
    time_then = _parse_age(text, now)
    if time_then is None and (len(text) != 10 or not _parse_iso_time(text)):
        raise ValueError(f"{text!r} is not a date. Use a date such as 2026-01-31, or an age such as 7d")
    return (time_then or text)[:10]


def _parse_age(text: str, now: float) -> str | None:
    """Parse a duration before now. Returns an ISO 8601 time, or None if the text is not a duration."""
    try:
        seconds_ago = parse_duration(text)
    except ValueError:
        return None
    return _format_iso(now - seconds_ago)


def _relative_type(metavar: str, parse: Callable[[str, float], str]) -> ParamType:
    """Build a type that checks the text and returns it unchanged: it is resolved when the command runs."""
    return ParamType(metavar, lambda text: parse(text, 0.0) and text, encode=lambda text: parse(text, time.time()))


FUTURE_TIME = _relative_type("TIME", parse_future_time)
PAST_TIME = _relative_type("TIME", parse_past_time)
DAY = _relative_type("DATE", parse_day)


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
