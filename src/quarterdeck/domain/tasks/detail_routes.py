"""Routes for task logs, explanations, dependency trees, costs and budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec
from msgspec import UNSET, Meta

from quarterdeck.core import paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.errors import Invalid
from quarterdeck.core.ids import new_id
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.tasks import request_commands
from quarterdeck.domain.tasks.model.cost_types import (
    MICROS_PER_USD,
    Budget,
    BudgetBody,
    BudgetKeyQuery,
    BudgetList,
    BudgetQuery,
    BudgetView,
    CostFilter,
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
    LogList,
    LogPage,
    LogPosition,
    LogQuery,
)
from quarterdeck.domain.tasks.operations import budgets, explain, logs
from quarterdeck.domain.tasks.operations.log_long_poll import LogLongPoll
from quarterdeck.domain.tasks.operations.reads import TaskLookup
from quarterdeck.domain.tasks.rules import budgets as budget_rules, log_rendering
from quarterdeck.engine.transaction import Engine, Transaction

T = TypeVar("T")
OLDEST_LISTING, NEWEST_LISTING = "task-log.asc", "task-log.desc"
BUDGET_LISTING = "budgets"
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
LINE_FIELDS = ("message", "level", "event", "details", "stack_trace")


@dataclass(frozen=True, slots=True)
class TaskDetailHandlers:
    engine: Engine
    submit_lines: Callable[[AddLogLines], asyncio.Future[list[str]]]
    submit_budget: Callable[[PutBudget | RemoveBudget], asyncio.Future[Budget]]
    log_long_poll: LogLongPoll

    # -- logs ----------------------------------------------------------------------------------------------------

    async def add_lines(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, LogBody)
        items = _log_items(body)
        command = AddLogLines(
            zone_id=call.zone_id,
            caller=call.caller,
            id=call.params["id"],
            attempt_token=request_commands.resolve_token(call, body.attempt_token),
            lines=tuple(log_rendering.new_line(item, new_id()) for item in items),
        )
        return Reply(LogAdded(await self.submit_lines(command)), 201)

    async def list_lines(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, LogQuery)
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
        body = LogList([log_rendering.to_view(entry, filters.id) for entry in page.entries], cursor)
        return Reply(body, 200, call.next_link(cursor))

    async def _read_log(self, call: Call, filters: LogFilter, wait_ms: int) -> LogPage:
        if wait_ms:
            return await self.log_long_poll.read_log(filters, wait_ms / 1000)
        return await self._read(call, lambda tx: logs.read_log(tx, filters))

    # -- explanation and tree ------------------------------------------------------------------------------------

    async def explain(self, call: Call) -> TaskExplanation:
        lookup = TaskLookup(call.zone_id, call.params["id"], call.caller)
        return await self._read(call, lambda tx: explain.explain(tx, lookup))

    async def get_tree(self, call: Call) -> TaskTree:
        query = call.query
        assert isinstance(query, TreeQuery)
        lookup = TaskLookup(call.zone_id, call.params["id"], call.caller)
        return await self._read(call, lambda tx: explain.read_tree(tx, lookup, query.depth))

    # -- costs and budgets ---------------------------------------------------------------------------------------

    async def list_costs(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, CostQuery)
        listing = f"costs.{query.group_by}"
        after = _decode_cost_cursor(query.group_by, paging.decode(listing, query.cursor)) if query.cursor else None
        filters = CostFilter(
            zone_id=call.zone_id,
            caller=call.caller,
            group_by=query.group_by,
            since_day=_parse_day("since", query.since),
            until_day=_parse_day("until", query.until),
            after=after,
            limit=query.limit + 1,
        )
        groups = await self._read(call, lambda tx: budgets.read_costs(tx, filters))
        count, last = paging.trim_page([group.key for group in groups], query.limit)
        # "=" distinguishes an empty key from no cursor. Costs reported while no agent held the task have agent "".
        next_cursor = None if last is None else paging.encode(listing, f"={last}")
        views = [
            CostView(group.key, budget_rules.to_dollars(group.usd_micros), group.input_tokens, group.output_tokens)
            for group in groups[:count]
        ]
        return Reply(CostList(query.group_by, views, next_cursor), 200, call.next_link(next_cursor))

    async def list_budgets(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, BudgetQuery)
        after = _decode_budget_cursor(query.cursor) if query.cursor else ("", "", "")
        found_budgets = await self._read(
            call, lambda tx: budgets.list_budgets(tx, call.caller, call.zone_id, after, query.limit + 1)
        )
        keys = [
            msgspec.json.encode((budget.scope, budget.scope_key, budget.period)).decode() for budget in found_budgets
        ]
        count, last = paging.trim_page(keys, query.limit)
        next_cursor = None if last is None else paging.encode(BUDGET_LISTING, last)
        views = [budget_rules.to_view(budget) for budget in found_budgets[:count]]
        return Reply(BudgetList(views, next_cursor), 200, call.next_link(next_cursor))

    async def put_budget(self, call: Call) -> BudgetView:
        body = call.body
        assert isinstance(body, BudgetBody)
        if body.usd is None and body.tokens is None:
            raise Invalid("invalid_body", "A budget needs a limit: set `usd`, `tokens` or both.", field="$.usd")
        command = PutBudget(
            zone_id=call.zone_id,
            caller=call.caller,
            trace=call.trace,
            scope=body.scope,
            scope_key=_scope_key(body.scope, body.key, "invalid_body", "$.key"),
            period=body.period,
            usd_micros=None if body.usd is None else round(body.usd * MICROS_PER_USD),
            tokens=body.tokens,
        )
        return budget_rules.to_view(await self.submit_budget(command))

    async def remove_budget(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, BudgetKeyQuery)
        command = RemoveBudget(
            zone_id=call.zone_id,
            caller=call.caller,
            trace=call.trace,
            scope=query.scope,
            scope_key=_scope_key(query.scope, query.key, "invalid_query", "key"),
            period=query.period,
        )
        await self.submit_budget(command)
        return Reply(None, 204)

    async def _read(self, call: Call, operation: Callable[[Transaction], Awaitable[T]]) -> T:
        """Read with row security for the zone of the request and the zone of the caller's session."""
        return await self.engine.read(operation, zones={call.zone_id, call.caller.zone_id})


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


def _decode_budget_cursor(cursor: str) -> tuple[str, str, str]:
    try:
        return msgspec.json.decode(paging.decode(BUDGET_LISTING, cursor), type=tuple[str, str, str])
    except msgspec.DecodeError:
        raise _invalid_cursor() from None


def _invalid_cursor() -> Invalid:
    return Invalid(
        "invalid_cursor", "The cursor is not from this list. Use the `nextCursor` of its previous page.", field="cursor"
    )


def _decode_cost_cursor(group_by: GroupBy, value: str) -> str:
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
            query=LogQuery, response=LogList, errors=(*NOT_FOUND, "invalid_cursor"), tags=TASK_TAGS,
            permission="tasks.read", is_long_poll=True, description=LOG_DESCRIPTION,
        ),
        Route(
            "POST", TASK_PATH + "/logs", handlers.add_lines, "Add lines to the log of a task", LIFECYCLE, body=LogBody,
            response=LogAdded, status=201, tags=TASK_TAGS, permission="tasks.work",
            errors=APPEND_ERRORS,
            description="One line, or up to 100 in `lines`, with the token of the current attempt. Lines cannot be "
            "changed; secrets in them are redacted before storage.",
        ),
        Route(
            "GET", TASK_PATH + "/explain", handlers.explain, "Explain the state of a task", LIFECYCLE,
            response=TaskExplanation, errors=NOT_FOUND, tags=TASK_TAGS, permission="tasks.read",
        ),
        Route(
            "GET", TASK_PATH + "/tree", handlers.get_tree, "Get the dependencies and dependents of a task", LIFECYCLE,
            query=TreeQuery, response=TaskTree, errors=NOT_FOUND, tags=TASK_TAGS, permission="tasks.read",
        ),
        Route(
            "GET", "/api/v1/costs", handlers.list_costs, "Sum the costs of tasks", LIFECYCLE, query=CostQuery,
            response=CostList, errors=("invalid_cursor",), tags=COST_TAGS, permission="costs.read",
            description="Ordered by the group key. Days are in UTC.",
        ),
        Route(
            "GET", "/api/v1/budgets", handlers.list_budgets, "List budgets and their use", LIFECYCLE,
            query=BudgetQuery, response=BudgetList, errors=("invalid_cursor",), tags=COST_TAGS, permission="costs.read",
        ),
        Route(
            "PUT", "/api/v1/budgets", handlers.put_budget, "Set a budget", LIFECYCLE, body=BudgetBody,
            response=BudgetView, errors=(*NOT_FOUND, "too_many_budgets", "zone_ended"), tags=COST_TAGS,
            permission="budgets.change",
            description="A new budget includes the costs of its period so far. While a budget is spent, its tasks are "
            "not claimed until the period ends or the budget is raised; running attempts continue.",
        ),
        Route(
            "DELETE", "/api/v1/budgets", handlers.remove_budget, "Remove a budget", LIFECYCLE, query=BudgetKeyQuery,
            status=204, errors=("budget_not_found", "zone_ended"), tags=COST_TAGS, permission="budgets.change",
        ),
    ]  # fmt: skip
