"""Routes for task logs, explanations, dependency trees, costs and budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta

from quarterdeck.core import paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.errors import Invalid
from quarterdeck.core.ids import new_id
from quarterdeck.core.paging import CamelPage, Listing
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.domain.tasks.model.cost_types import (
    MICROS_PER_USD,
    Budget,
    BudgetBody,
    BudgetKeyQuery,
    BudgetQuery,
    BudgetView,
    CostFilter,
    CostGroup,
    CostList,
    CostQuery,
    CostView,
    GroupBy,
    PutBudget,
    RemoveBudget,
    Scope,
)
from quarterdeck.domain.tasks.model.explain_types import TaskExplanation, TaskTree, TreeQuery
from quarterdeck.domain.tasks.model.log_types import (
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
from quarterdeck.domain.tasks.operations import budgets, explain, logs
from quarterdeck.domain.tasks.operations.log_long_poll import LogLongPoll
from quarterdeck.domain.tasks.operations.reads import TaskLookup
from quarterdeck.domain.tasks.routes import request_commands
from quarterdeck.domain.tasks.rules import budgets as budget_rules, log_rendering
from quarterdeck.engine.transaction import Engine

OLDEST_LISTING, NEWEST_LISTING = "task-log.asc", "task-log.desc"
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
BUDGETS = Listing[Budget]("budgets", lambda row: msgspec.json.encode((row.scope, row.scope_key, row.period)).decode())
LINE_FIELDS = ("message", "level", "event", "details", "stack_trace")


@dataclass(frozen=True, slots=True)
class TaskDetailHandlers:
    engine: Engine
    submit_lines: Callable[[AddLogLines], asyncio.Future[list[str]]]
    submit_budget: Callable[[PutBudget | RemoveBudget], asyncio.Future[Budget]]
    log_long_poll: LogLongPoll

    # -- logs ----------------------------------------------------------------------------------------------------

    async def add_lines(self, call: Call[LogBody, None]) -> Reply[LogAdded]:
        body = call.body
        items = _log_items(body)
        command = AddLogLines(
            zone_id=call.zone_id,
            caller=call.caller,
            id=call.params["id"],
            attempt_token=request_commands.resolve_token(call, body.attempt_token),
            lines=tuple(log_rendering.new_line(item, new_id()) for item in items),
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
        views = [log_rendering.to_view(entry, filters.id) for entry in page.entries]
        return Reply(CamelPage(views, cursor), headers=call.next_link(cursor))

    async def _read_log(self, call: AnyCall, filters: LogFilter, wait_ms: int) -> LogPage:
        if wait_ms:
            return await self.log_long_poll.read_log(filters, wait_ms / 1000)
        return await self.engine.read(lambda tx: logs.read_log(tx, filters), zones=call.zones)

    # -- explanation and tree ------------------------------------------------------------------------------------

    async def explain(self, call: Call[None, None]) -> TaskExplanation:
        lookup = TaskLookup(call.zone_id, call.params["id"], call.caller)
        return await self.engine.read(lambda tx: explain.explain(tx, lookup), zones=call.zones)

    async def get_tree(self, call: Call[None, TreeQuery]) -> TaskTree:
        lookup = TaskLookup(call.zone_id, call.params["id"], call.caller)
        return await self.engine.read(lambda tx: explain.read_tree(tx, lookup, call.query.depth), zones=call.zones)

    # -- costs and budgets ---------------------------------------------------------------------------------------

    async def list_costs(self, call: Call[None, CostQuery]) -> Reply[CostList]:
        query = call.query
        # "=" distinguishes an empty key from no cursor. Costs reported while no agent held the task have agent "".
        listing = Listing[CostGroup](f"costs.{query.group_by}", lambda group: f"={group.key}")
        start_key = listing.start_key(query)
        filters = CostFilter(
            zone_id=call.zone_id,
            caller=call.caller,
            group_by=query.group_by,
            since_day=_parse_day("since", query.since),
            until_day=_parse_day("until", query.until),
            after=None if start_key is None else _decode_cost_key(query.group_by, start_key),
            limit=query.limit + 1,
        )
        groups = await self.engine.read(lambda tx: budgets.read_costs(tx, filters), zones=call.zones)
        return listing.reply(call, groups, _cost_view, partial(CostList, query.group_by))

    async def list_budgets(self, call: Call[None, BudgetQuery]) -> Reply[CamelPage[BudgetView]]:
        query = call.query
        start_key = BUDGETS.start_key(query)
        after = ("", "", "") if start_key is None else _decode_budget_key(start_key)
        rows = await self.engine.read(
            lambda tx: budgets.list_budgets(tx, call.caller, call.zone_id, after, query.limit + 1), zones=call.zones
        )
        return BUDGETS.reply(call, rows, budget_rules.to_view, CamelPage)

    async def put_budget(self, call: Call[BudgetBody, None]) -> BudgetView:
        body = call.body
        if body.usd is None and body.tokens is None:
            raise Invalid("invalid_body", "A budget needs a limit: set `usd`, `tokens` or both.", field="$.usd")
        command = PutBudget(
            **call.caller_fields,
            scope=body.scope,
            scope_key=_scope_key(body.scope, body.key, "invalid_body", "$.key"),
            period=body.period,
            usd_micros=None if body.usd is None else round(body.usd * MICROS_PER_USD),
            tokens=body.tokens,
        )
        return budget_rules.to_view(await self.submit_budget(command))

    async def remove_budget(self, call: Call[None, BudgetKeyQuery]) -> Reply[None]:
        query = call.query
        command = RemoveBudget(
            **call.caller_fields,
            scope=query.scope,
            scope_key=_scope_key(query.scope, query.key, "invalid_query", "key"),
            period=query.period,
        )
        await self.submit_budget(command)
        return Reply(None, 204)


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
        raise _invalid_cursor() from None


def _decode_budget_key(sort_key: str) -> tuple[str, str, str]:
    try:
        return msgspec.json.decode(sort_key, type=tuple[str, str, str])
    except msgspec.DecodeError:
        raise _invalid_cursor() from None


def _cost_view(group: CostGroup) -> CostView:
    return CostView(group.key, budget_rules.to_dollars(group.usd_micros), group.input_tokens, group.output_tokens)


def _invalid_cursor() -> Invalid:
    return Invalid(
        "invalid_cursor", "The cursor is not from this list. Use the `nextCursor` of its previous page.", field="cursor"
    )


def _decode_cost_key(group_by: GroupBy, value: str) -> str:
    prefix, key = value[:1], value[1:]
    if prefix != "=" or (group_by == "day" and not budget_rules.is_day(key)):
        raise _invalid_cursor()
    return key


def _parse_day(field: str, text: str | None) -> int | None:
    return None if text is None else budget_rules.parse_day(text, field)


def _scope_key(scope: Scope, key: str | None, code: str, field: str) -> str:
    if (scope is Scope.ZONE) != (key is None):
        detail = "`key` is required for the scopes `taskType` and `task`, and not allowed for `workspace`."
        raise Invalid(code, detail, field=field)
    return key or ""


# -- route table -------------------------------------------------------------------------------------------------

TASK_PATH = "/api/v1/agent-tasks/{id}"
TASK_TAGS, COST_TAGS = ("tasks",), ("costs",)
NOT_FOUND = ("task_not_found",)
LOG_DESCRIPTION = (
    "The task's transitions and the lines that its agents have added, newest first. To follow the log, use "
    "`order=asc`: `nextCursor` says where to continue, even after an empty page, and with `waitMs` the "
    "response waits for new entries. "
    "Transitions have the event `state_transition`, `progress_update`, `warning`, `change` or `unblocked`. Their "
    "level is INFO; a warning is WARN, a failure or an abort ERROR, and a failure with no retry left CRITICAL. "
    "Transitions are available as long as the event log is retained."
)
APPEND_ERRORS = (*NOT_FOUND, "stale_attempt", "attempt_token_required", "log_full", "field_too_large", "reserved_key")


def routes(handlers: TaskDetailHandlers) -> list[Route]:
    return [
        Route(
            "GET", TASK_PATH + "/logs", handlers.list_lines, "List or follow the log of a task", LIFECYCLE,
            errors=(*NOT_FOUND, "invalid_cursor"), tags=TASK_TAGS, permission="tasks.read", is_long_poll=True,
            description=LOG_DESCRIPTION,
        ),
        Route(
            "POST", TASK_PATH + "/logs", handlers.add_lines, "Add lines to the log of a task", LIFECYCLE, status=201,
            tags=TASK_TAGS, permission="tasks.work", errors=APPEND_ERRORS,
            description="One line, or up to 100 in `lines`, with the token of the current attempt. Lines cannot be "
            "changed; secrets in them are redacted before storage.",
        ),
        Route(
            "GET", TASK_PATH + "/explain", handlers.explain, "Explain the state of a task", LIFECYCLE, errors=NOT_FOUND,
            tags=TASK_TAGS, permission="tasks.read",
        ),
        Route(
            "GET", TASK_PATH + "/tree", handlers.get_tree, "Get the dependencies and dependents of a task", LIFECYCLE,
            errors=NOT_FOUND, tags=TASK_TAGS, permission="tasks.read",
        ),
        Route(
            "GET", "/api/v1/costs", handlers.list_costs, "Sum the costs of tasks", LIFECYCLE,
            errors=("invalid_cursor",), tags=COST_TAGS, permission="costs.read",
            description="Ordered by the group key. Days are in UTC.",
        ),
        Route(
            "GET", "/api/v1/budgets", handlers.list_budgets, "List budgets and their use", LIFECYCLE,
            errors=("invalid_cursor",), tags=COST_TAGS, permission="costs.read",
        ),
        Route(
            "PUT", "/api/v1/budgets", handlers.put_budget, "Set a budget", LIFECYCLE,
            errors=(*NOT_FOUND, "too_many_budgets", "zone_ended"), tags=COST_TAGS, permission="budgets.change",
            description="A new budget includes the costs of its period so far. While a budget is spent, its tasks are "
            "not claimed until the period ends or the budget is raised; running attempts continue.",
        ),
        Route(
            "DELETE", "/api/v1/budgets", handlers.remove_budget, "Remove a budget", LIFECYCLE, status=204,
            errors=("budget_not_found", "zone_ended"), tags=COST_TAGS, permission="budgets.change",
        ),
    ]  # fmt: skip
