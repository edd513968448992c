"""Routes for the logs of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from quarterdeck.core import paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.errors import Invalid
from quarterdeck.core.ids import new_id
from quarterdeck.core.paging import CamelPage
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.domain.task_logs import rules
from quarterdeck.domain.task_logs.model import (
    AddLogLines,
    LogAdded,
    LogBody,
    LogFilter,
    LogItem,
    LogPage,
    LogPosition,
    LogQuery,
    LogView,
)
from quarterdeck.domain.task_logs.operations import reads
from quarterdeck.domain.task_logs.operations.long_poll import LogLongPoll
from quarterdeck.domain.tasks.routes import request_commands
from quarterdeck.engine.transaction import Engine

OLDEST_LISTING, NEWEST_LISTING = "task-log.asc", "task-log.desc"
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
LINE_FIELDS = ("message", "level", "event", "details", "stack_trace")


@dataclass(frozen=True, slots=True)
class LogHandlers:
    engine: Engine
    submit_lines: Callable[[AddLogLines], asyncio.Future[list[str]]]
    log_long_poll: LogLongPoll

    async def add_lines(self, call: Call[LogBody, None]) -> Reply[LogAdded]:
        body = call.body
        items = _log_items(body)
        command = AddLogLines(
            zone_id=call.zone_id,
            caller=call.caller,
            id=call.params["id"],
            attempt_token=request_commands.resolve_token(call, body.attempt_token),
            lines=tuple(rules.new_line(item, new_id()) for item in items),
        )
        return Reply(LogAdded(await self.submit_lines(command)), 201)

    async def list_lines(self, call: Call[None, LogQuery]) -> Reply[CamelPage[LogView]]:
        query = call.query
        oldest_first = query.order == "asc"
        if query.wait_ms and not oldest_first:
            raise Invalid("invalid_query", "`waitMs` needs `order=asc`.", field="waitMs")
        listing = OLDEST_LISTING if oldest_first else NEWEST_LISTING
        filters = LogFilter(
            zone_id=call.zone_id,
            caller=call.caller,
            id=call.params["id"],
            limit=query.limit,
            oldest_first=oldest_first,
            position=_decode_position(listing, query.cursor) if query.cursor else None,
            level=query.level,
            event=query.event,
        )
        page = await self._read_log(call, filters, query.wait_ms)
        # With `order=asc`, new entries may follow at any time, so every page has a cursor, even an empty page.
        cursor = None if page.is_last and not oldest_first else _encode_position(listing, page.position)
        views = [rules.to_view(entry, filters.id) for entry in page.entries]
        return Reply(CamelPage(views, cursor), headers=call.next_link(cursor))

    async def _read_log(self, call: AnyCall, filters: LogFilter, wait_ms: int) -> LogPage:
        if wait_ms:
            return await self.log_long_poll.read_log(filters, wait_ms / 1000)
        return await self.engine.read(lambda tx: reads.read_log(tx, filters), zones=call.zones)


def _log_items(body: LogBody) -> list[LogItem]:
    if body.lines is UNSET:
        return [LogItem(**{name: getattr(body, name) for name in LINE_FIELDS})]
    if any(getattr(body, name) != getattr(LogBody(), name) for name in LINE_FIELDS):
        raise Invalid("invalid_body", "Send the fields of one line, or `lines`, but not both.", field="$.lines")
    return body.lines


def _encode_position(listing: str, position: LogPosition) -> str:
    return paging.encode(listing, f"{position.pos}.{position.number}")


def _decode_position(listing: str, cursor: str) -> LogPosition:
    pos, _, number = paging.decode(listing, cursor).partition(".")
    try:
        return LogPosition(*(msgspec.convert(text, _Number, strict=False) for text in (pos, number)))
    except msgspec.ValidationError:
        detail = "The cursor is not from this list. Use the `nextCursor` of its previous page."
        raise Invalid("invalid_cursor", detail, field="cursor") from None


# -- route table -------------------------------------------------------------------------------------------------

PATH = "/api/v1/agent-tasks/{id}/logs"
TAGS = ("tasks",)
DESCRIPTION = (
    "The task's transitions and the lines that its agents have added, newest first. To follow the log, use "
    "`order=asc`: `nextCursor` says where to continue, even after an empty page, and with `waitMs` the "
    "response waits for new entries. "
    "Transitions have the event `state_transition`, `progress_update`, `warning`, `change` or `unblocked`. Their "
    "level is INFO; a warning is WARN, a failure or an abort ERROR, and a failure with no retry left CRITICAL. "
    "Transitions are available as long as the event log is retained."
)
APPEND_ERRORS = (
    "task_not_found", "stale_attempt", "attempt_token_required", "log_full", "field_too_large", "reserved_key",
)  # fmt: skip


def routes(handlers: LogHandlers) -> list[Route]:
    return [
        Route(
            "GET", PATH, handlers.list_lines, "List or follow the log of a task", LIFECYCLE,
            errors=("task_not_found", "invalid_cursor"), tags=TAGS, permission="tasks.read", is_long_poll=True,
            description=DESCRIPTION,
        ),
        Route(
            "POST", PATH, handlers.add_lines, "Add lines to the log of a task", LIFECYCLE, status=201,
            tags=TAGS, permission="tasks.work", errors=APPEND_ERRORS,
            description="One line, or up to 100 in `lines`, with the token of the current attempt. Lines cannot be "
            "changed; secrets in them are redacted before storage.",
        ),
    ]  # fmt: skip
