"""`qd task logs`: prints the log of a task and follows it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from quarterdeck.cli.command_table import ID_ARGUMENT, LEVEL, NUMBER, TEXT, Group, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.input import PAST_TIME, parse_past_time
from quarterdeck.cli.output import TextStyler, cell, pad, parse_timestamp, to_json_line
from quarterdeck.client.api import ApiClient, Document, Query, next_cursor, page_items

GROUP = Group("task")
_PAGE_SIZE = 500
_EVENTS_WITHOUT_DETAILS = ("state_transition", "progress_update")
"""The message of these events repeats their details, so only --json prints the details."""


@GROUP.command(
    "logs",
    "Print the log of a task, oldest first.",
    ID_ARGUMENT,
    Option("--follow", "Keep printing new lines until Ctrl-C.", short="-f"),
    Option("--level", "Only lines with this level.", LEVEL, field="level"),
    Option("--event", "Only lines with this event, such as state_transition or progress_update.", TEXT, field="event"),
    Option("--since", "Only lines since this time; 10m means 10 minutes ago.", PAST_TIME),
    Option("--limit", "Maximum number of lines, from the end [default: 100].", NUMBER, short="-n"),
    description="The log has the state changes of the task and lines from its agents. --json prints one object per "
    "line.",
)
def logs(context: Context) -> None:
    limit = context.number("limit")
    log = _TaskLog(context)
    lines = log.load_last(100 if limit is None else limit)
    if not lines and not context.flag("follow"):
        context.hint("The log has no matching lines.")
    for line in lines:
        log.print_line(line)
    if context.flag("follow"):
        log.follow()


class _TaskLog:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._path = context.api_path("agent-tasks", context.required_text("id"), "logs")
        self._query: Query = context.query()
        since = context.text("since")
        self._since = 0.0 if since is None else parse_timestamp(parse_past_time(since, time.time())) or 0.0
        self._cursor: str | None = None
        """The position after the last line that was read, where `follow` continues."""

    def load_last(self, limit: int) -> list[Document]:
        """Load the last lines, oldest first. With --follow, reads the log forward, so that `follow` can continue."""
        server = self._context.server()
        if self._context.flag("follow"):
            lines = [*self._load_all(server)]
            return lines[max(len(lines) - limit, 0) :]
        newest: list[Document] = []
        page_query: Query = {**self._query, "order": "desc", "limit": max(min(limit, _PAGE_SIZE), 1)}
        for page in server.pages(self._path, page_query):
            items = page_items(page)
            newest += [line for line in items if self._is_recent(line)]
            if len(newest) >= limit or not all(map(self._is_recent, items)):
                break
        return newest[:limit][::-1]

    def follow(self) -> None:
        """Print new lines until Ctrl-C, with long polls."""
        from quarterdeck.cli.long_poll import WAIT_MS, repeat_long_poll  # imported here: only --follow needs it

        def print_next_lines(server: ApiClient) -> bool:
            for line in self._load_next(server, WAIT_MS):
                self.print_line(line)
            return False

        repeat_long_poll(self._context, print_next_lines)

    def print_line(self, line: Document) -> None:
        self._context.write(to_json_line(line) if self._context.as_json else format_line(line, self._context.styler))
        sys.stdout.flush()

    def _load_all(self, server: ApiClient) -> Iterator[Document]:
        """Yield all lines up to now."""
        while items := self._load_next(server, 0):
            yield from filter(self._is_recent, items)

    def _load_next(self, server: ApiClient, wait_ms: int) -> list[Document]:
        page_query: Query = {
            **self._query,
            "order": "asc",
            "limit": _PAGE_SIZE,
            "cursor": self._cursor,
            "waitMs": wait_ms or None,
        }
        page = server.get(self._path, page_query)
        cursor = next_cursor(page)
        self._cursor = cursor if isinstance(cursor, str) else self._cursor
        return page_items(page)

    def _is_recent(self, line: Document) -> bool:
        return (parse_timestamp(line.get("createdAt")) or 0.0) >= self._since


def format_line(line: Document, styler: TextStyler) -> str:
    """Format one line, and below it the stack trace, indented."""
    old_status, new_status, details = line.get("previousStatus"), line.get("newStatus"), line.get("details")
    level = cell(line.get("level"))
    parts = [
        cell(line.get("createdAt")),
        styler.color_by_status(level, pad(level, 8)),
        pad(cell(line.get("event")), 16),
    ]
    if new_status is not None and new_status != old_status:
        parts.append(cell(new_status) if old_status is None else f"{cell(old_status)} → {cell(new_status)}")
    if line.get("message"):
        parts.append(cell(line["message"]))
    if details and line.get("event") not in _EVENTS_WITHOUT_DETAILS:
        parts.append(styler.dim(cell(details)))
    trace = line.get("stackTrace")
    trace_lines = [f"    {cell(trace_line)}" for trace_line in trace.splitlines()] if isinstance(trace, str) else []
    return "\n".join(["  ".join(parts), *trace_lines])
