"""Text output for people: aligned tables and fields, colors, durations. Pure functions of their arguments."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

EMPTY_CELL = "-"
_STATUS_COLORS = {
    **dict.fromkeys(("active", "running", "succeeded", "healthy", "completed", "working"), "32"),
    **dict.fromkeys(("suspended", "pending", "starting", "degraded", "assigned", "paused", "warn"), "33"),
    **dict.fromkeys(("failed", "timed_out", "dead", "unhealthy", "aborted", "error", "critical"), "31"),
    **dict.fromkeys(("terminated", "canceled", "revoked", "expired", "archived", "debug"), "2"),
}
"""ANSI color of each status: green for active, yellow for waiting, red for failed, dim for ended."""


class TextStyler:
    """Styles text if enabled; otherwise returns it unchanged."""

    def __init__(self, is_enabled: bool) -> None:
        self.is_enabled = is_enabled

    def dim(self, text: str) -> str:
        return self._wrap("2", text)

    def bold(self, text: str) -> str:
        return self._wrap("1", text)

    def color_by_status(self, status: str, text: str) -> str:
        """Color the text by a status, which may be in upper or lower case."""
        return self._wrap(_STATUS_COLORS.get(status.lower(), ""), text)

    def _wrap(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.is_enabled and code else text


def cell(value: object) -> str:
    """Format one value as one line of text.

    Control characters are escaped: names and reasons come from other users and must not move the cursor.
    """
    if value is None or value == "":
        return EMPTY_CELL
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        text = ", ".join(value) or EMPTY_CELL
    else:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "replace").decode() for char in text)


def decode_object(text: str | bytes) -> dict[str, object] | None:
    """Decode a JSON object. Returns None if the text is not one."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def to_json_line(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def width(text: str) -> int:
    """Return the number of terminal columns: wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def pad(text: str, columns: int) -> str:
    return text + " " * (columns - width(text))


def clip(text: str, columns: int) -> str:
    """Cut the text to `columns`. Text that was cut ends with an ellipsis."""
    if width(text) <= columns:
        return text
    clipped, remaining = "", columns - 1
    for char in text:
        remaining -= width(char)
        if remaining < 0:
            break
        clipped += char
    return f"{clipped}…" if columns > 0 else ""


def table(headers: Sequence[str], rows: Iterable[Sequence[object]], styler: TextStyler) -> str:
    """Format an aligned table. Each column is as wide as its widest cell; lines have no trailing spaces."""
    body = [[cell(value) for value in row] for row in rows]
    widths = [max(map(width, column)) for column in zip(headers, *body, strict=True)]
    lines = [styler.bold(_format_row(headers, widths))]
    lines += [_format_row(row, widths) for row in body]
    return "\n".join(lines)


def fields(pairs: Iterable[tuple[str, object]], styler: TextStyler) -> str:
    """Format one name and value per line, with the values aligned."""
    rows = [(name, cell(value)) for name, value in pairs]
    name_width = max((width(name) for name, _ in rows), default=0)
    return "\n".join(f"{styler.bold(pad(name, name_width))}  {value}" for name, value in rows)


def format_duration(seconds: float) -> str:
    """Format the two largest units: 45s, 12m 5s, 3h 20m, 2d 4h."""
    remaining = max(int(seconds), 0)
    for size, unit, small_size, small_unit in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if remaining >= size:
            small_count = remaining % size // small_size
            large_text = f"{remaining // size}{unit}"
            return f"{large_text} {small_count}{small_unit}" if small_count else large_text
    return f"{remaining}s"


def parse_timestamp(value: object) -> float | None:
    """Return the Unix time of an ISO 8601 time, or None if the value is not one."""
    if not isinstance(value, str):
        return None
    from datetime import datetime  # the import takes 2 ms, and not every command shows a time

    try:
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        return None


def _format_row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(pad(text, widths[index]) for index, text in enumerate(cells)).rstrip()
