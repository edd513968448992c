"""Types for the log of a task, which consists of its events in the event log and the lines that its agents add."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from quarterdeck.core.caller import Bearer, Caller
from quarterdeck.core.clock import Millis
from quarterdeck.core.paging import Cursor, PageQuery
from quarterdeck.domain.tasks.model.bodies import Name, Text, Token
from quarterdeck.domain.tasks.model.log_lines import Level, NewLogLine

LINES_MAX = 10_000
"""Maximum number of lines that agents may add per task. Stack traces of failed attempts may exceed it."""
LINES_PER_REQUEST_MAX = 100
DETAILS_BYTES_MAX = 65_536
"""Maximum size of the `details` of a line."""
PAGE_BYTES_MAX = 4 << 20
"""A page ends with the line with which the total size of its lines reaches or exceeds this limit."""


class LogLine(msgspec.Struct, frozen=True, array_like=True):
    """A row of `task_log_lines`, in the order of `columns line` in `queries.sql`.

    The lines of a task are numbered in commit order.
    """

    zone_id: str
    task_id: str
    id: str
    number: int
    agent_id: str | None
    attempt: int
    level: Level
    event: str
    message: str | None
    details: str
    session_key: str | None
    stack_trace: str | None
    size: int
    created_at: Millis


class AddLogLines(msgspec.Struct, frozen=True, kw_only=True):
    zone_id: str
    caller: Caller
    id: str
    attempt_token: str | None
    lines: tuple[NewLogLine, ...]

    @property
    def bearer(self) -> Bearer | None:
        return self.caller.bearer


class LogPosition(msgspec.Struct, frozen=True, array_like=True):
    """How far a reader has read a task's log: a position in each of its two sources."""

    pos: int
    """Position in the event log of the last event read."""
    number: int
    """Number of the last line read."""


class LogFilter(msgspec.Struct, frozen=True, kw_only=True):
    zone_id: str
    caller: Caller
    id: str
    limit: int
    oldest_first: bool
    position: LogPosition | None
    level: Level | None
    event: str | None


class LogEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the merged log: a transition or a line."""

    pos: int | None
    """Position in the event log. None for a line."""
    number: int | None
    """Line number. None for a transition."""
    id: str
    agent_id: str | None
    level: Level
    event: str
    message: str | None
    details: str
    previous_status: str | None
    new_status: str | None
    session_key: str | None
    stack_trace: str | None
    created_at: Millis


class LogPage(msgspec.Struct, frozen=True):
    entries: list[LogEntry]
    position: LogPosition
    """Where the next page continues."""
    is_last: bool


# -- requests and responses --------------------------------------------------------------------------------------


class LogItem(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    message: Text | None = None
    level: Level = Level.INFO
    event: Name = "log"
    details: Annotated[dict[str, object], Meta(description="secrets in it are redacted before storage")] = {}
    stack_trace: Annotated[str, Meta(max_length=262_144)] | None = None


class LogBody(LogItem, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """One line, or several in `lines`."""

    lines: Annotated[list[LogItem], Meta(min_length=1, max_length=LINES_PER_REQUEST_MAX)] | UnsetType = UNSET
    attempt_token: Token | None = None


class LogQuery(PageQuery, frozen=True, rename="camel", forbid_unknown_fields=True):
    cursor: Cursor | None = None
    level: Level | None = None
    event: Name | None = None
    order: Annotated[Literal["asc", "desc"], Meta(description="oldest or newest first")] = "desc"
    wait_ms: Annotated[
        int, Meta(ge=0, le=60_000, description="with order=asc: how long to wait if there are no new entries")
    ] = 0


class LogView(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    task_id: str
    agent_id: str | None
    level: Level
    event: str
    message: str | None
    details: msgspec.Raw
    previous_status: str | None
    new_status: str | None
    session_key: str | None
    stack_trace: str | None
    created_at: str


class LogAdded(msgspec.Struct, frozen=True):
    ids: list[str]
