"""`qd task logs`: what happened to a task and what its agents wrote down, as a list or as it grows."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from quarterdeck.cli.command_table import ID, NUMBER, TEXT, Argument, Command, Option, any_case
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import Paint, as_json, cell, instant, pad
from quarterdeck.cli.time_args import EARLIER, earlier
from quarterdeck.client.api import Document, Query, Server, cursor_of, items_of

LEVELS = ("DEBUG", "INFO", "WARN", "ERROR", "CRITICAL")
_PAGE = 500
_TOLD = ("state_transition", "progress_update")
"""What the message of these says already is not said again; --json has it all."""


def command() -> Command:
    one = (Argument("id", "ID", ID),)
    return Command(("task", "logs"), "What happened to a task, oldest first.", logs, one, _OPTIONS, _TELLING)


_OPTIONS = (
    Option("--follow", "Go on printing what happens.", short="-f"),
    Option("--level", "Only those of this level.", any_case(*LEVELS)),
    Option("--event", "Only those of this kind: state_transition, progress_update, …", TEXT),
    Option("--since", "Only those since: an instant, or 10m (so long ago).", EARLIER),
    Option("--limit", "How many of the last at most [default: 100].", NUMBER, short="-n"),
)
_TELLING = "Its transitions, and the lines that its agents wrote. With --json each is an object on a line of its own."


def logs(context: Context) -> int:
    limit = context.number("limit")
    log = _Log(context)
    told = log.last(100 if limit is None else limit)
    if not told and not context.flag("follow") and not context.as_json:
        context.note("nothing of that kind is in its log")
    for line in told:
        log.tell(line)
    if context.flag("follow"):
        log.follow()
    return 0


class _Log:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._path = context.work("agent-tasks", context.given("id"), "logs")
        self._query: Query = {"level": context.text("level"), "event": context.text("event")}
        since = context.text("since")
        self._since = 0.0 if since is None else instant(earlier(since, time.time())) or 0.0
        self._cursor: str | None = None
        """Where to go on following."""

    def last(self, limit: int) -> list[Document]:
        """The last of them, the oldest first. Whoever follows reads on from there, so that nothing is missed."""
        server = self._context.server()
        if self._context.flag("follow"):
            told = [*self._all(server)]
            return told[max(len(told) - limit, 0) :]
        newest: list[Document] = []
        asked: Query = {**self._query, "order": "desc", "limit": max(min(limit, _PAGE), 1)}
        for page in server.pages(self._path, asked):
            items = items_of(page)
            newest += [line for line in items if self._is_wanted(line)]
            if len(newest) >= limit or not all(map(self._is_wanted, items)):
                break
        return newest[:limit][::-1]

    def follow(self) -> None:
        """Until Ctrl-C. The server answers when there is something, or when it has waited for long enough."""
        from quarterdeck.cli.long_poll import WAIT_MS, trail  # whoever only looks does not pay for it

        def next_lines(server: Server) -> bool:
            for line in self._more(server, WAIT_MS):
                self.tell(line)
            return False

        trail(self._context, next_lines)

    def tell(self, line: Document) -> None:
        self._context.write(as_json(line) if self._context.as_json else line_of(line, self._context.paint))
        sys.stdout.flush()

    def _all(self, server: Server) -> Iterator[Document]:
        """Everything up to now."""
        while items := self._more(server, 0):
            yield from filter(self._is_wanted, items)

    def _more(self, server: Server, wait_ms: int) -> list[Document]:
        asked: Query = {
            **self._query,
            "order": "asc",
            "limit": _PAGE,
            "cursor": self._cursor,
            "waitMs": wait_ms or None,
        }
        page = server.get(self._path, asked)
        cursor = cursor_of(page)
        self._cursor = cursor if isinstance(cursor, str) else self._cursor
        return items_of(page)

    def _is_wanted(self, line: Document) -> bool:
        return (instant(line.get("createdAt")) or 0.0) >= self._since


def line_of(line: Document, paint: Paint) -> str:
    """One line, and below it, indented, where something failed."""
    before, after, details = line.get("previousStatus"), line.get("newStatus"), line.get("details")
    level = cell(line.get("level"))
    told = [cell(line.get("createdAt")), paint.status(level, pad(level, 8)), pad(cell(line.get("event")), 16)]
    if after is not None and after != before:
        told.append(cell(after) if before is None else f"{cell(before)} → {cell(after)}")
    if line.get("message"):
        told.append(cell(line["message"]))
    if details and line.get("event") not in _TOLD:
        told.append(paint.dim(cell(details)))
    trace = line.get("stackTrace")
    below = [f"    {cell(one)}" for one in trace.splitlines()] if isinstance(trace, str) else []
    return "\n".join(["  ".join(told), *below])
