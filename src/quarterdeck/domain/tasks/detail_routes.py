"""The routes of what is known of tasks beside themselves: their logs, why they are as they are, and what they cost."""

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
    MICROS,
    Budget,
    BudgetBody,
    BudgetList,
    BudgetNameQuery,
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
    AddLines,
    LogAdded,
    LogBody,
    LogFilter,
    LogItem,
    LogList,
    LogPage,
    LogQuery,
    Place,
)
from quarterdeck.domain.tasks.operations import budgets as budgeting, explain as insight, logs
from quarterdeck.domain.tasks.operations.log_long_poll import Following
from quarterdeck.domain.tasks.operations.reads import TaskRef
from quarterdeck.domain.tasks.rules import budgets as spending, log_rendering
from quarterdeck.engine.transaction import Engine, Tx

T = TypeVar("T")
OLDEST, NEWEST = "task-log.asc", "task-log.desc"
BUDGETS = "budgets"
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
LINE_FIELDS = ("message", "level", "event", "details", "stack_trace")


@dataclass(frozen=True, slots=True)
class RecordDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    submit_lines: Callable[[AddLines], asyncio.Future[list[str]]]
    submit_budget: Callable[[PutBudget | RemoveBudget], asyncio.Future[Budget]]
    following: Following

    # -- the log of a task ---------------------------------------------------------------------------------------

    async def add_lines(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, LogBody)
        items = _items(body)
        ask = AddLines(
            zone_id=call.zone,
            caller=call.caller,
            id=call.params["id"],
            token=request_commands.token(call, body.attempt_token),
            lines=tuple(log_rendering.said(item, new_id()) for item in items),
        )
        return Reply(LogAdded(await self.submit_lines(ask)), 201)

    async def list_lines(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, LogQuery)
        oldest_first = query.order == "asc"
        if query.wait_ms and not oldest_first:
            raise Invalid("invalid_query", "Only whoever reads the oldest first can wait for more.", field="waitMs")
        listing = OLDEST if oldest_first else NEWEST
        wanted = LogFilter(
            zone_id=call.zone,
            caller=call.caller,
            id=call.params["id"],
            limit=query.limit,
            oldest_first=oldest_first,
            place=_place(listing, query.cursor) if query.cursor else None,
            level=query.level,
            event=query.event,
        )
        page = await self._page(call, wanted, query.wait_ms)
        # Oldest first there may always be more: the cursor says where to go on, also where nothing was found.
        cursor = None if page.is_last and not oldest_first else _cursor(listing, page.place)
        body = LogList([log_rendering.view(entry, wanted.id) for entry in page.entries], cursor)
        return Reply(body, 200, call.link_to_next(cursor))

    async def _page(self, call: Call, wanted: LogFilter, wait_ms: int) -> LogPage:
        if wait_ms:
            return await self.following.page(wanted, wait_ms / 1000)
        return await self._read(call, lambda tx: logs.page(tx, wanted))

    # -- insight -------------------------------------------------------------------------------------------------

    async def explain(self, call: Call) -> TaskExplanation:
        ref = TaskRef(call.zone, call.params["id"], call.caller)
        return await self._read(call, lambda tx: insight.explain(tx, ref))

    async def tree(self, call: Call) -> TaskTree:
        query = call.query
        assert isinstance(query, TreeQuery)
        ref = TaskRef(call.zone, call.params["id"], call.caller)
        return await self._read(call, lambda tx: insight.tree(tx, ref, query.depth))

    # -- money ---------------------------------------------------------------------------------------------------

    async def costs(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, CostQuery)
        listing = f"costs.{query.group_by}"
        after = _cost_after(query.group_by, paging.decode(listing, query.cursor)) if query.cursor else None
        wanted = CostFilter(
            zone_id=call.zone,
            caller=call.caller,
            group_by=query.group_by,
            since=_day("since", query.since),
            until=_day("until", query.until),
            after=after,
            limit=query.limit + 1,
        )
        found = await self._read(call, lambda tx: budgeting.costs(tx, wanted))
        shown, last = paging.clip([each.key for each in found], query.limit)
        # The empty name is a name, too: an agent's, of costs that were said by hand.
        following = None if last is None else paging.encode(listing, f"={last}")
        views = [
            CostView(each.key, spending.dollars(each.usd_micros), each.input_tokens, each.output_tokens)
            for each in found[:shown]
        ]
        return Reply(CostList(query.group_by, views, following), 200, call.link_to_next(following))

    async def list_budgets(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, BudgetQuery)
        after = _budget_after(query.cursor) if query.cursor else ("", "", "")
        found = await self._read(call, lambda tx: budgeting.page(tx, call.caller, call.zone, after, query.limit + 1))
        names = [msgspec.json.encode((b.scope, b.scope_key, b.period)).decode() for b in found]
        shown, last = paging.clip(names, query.limit)
        following = None if last is None else paging.encode(BUDGETS, last)
        views = [spending.view(budget) for budget in found[:shown]]
        return Reply(BudgetList(views, following), 200, call.link_to_next(following))

    async def put_budget(self, call: Call) -> BudgetView:
        body = call.body
        assert isinstance(body, BudgetBody)
        if body.usd is None and body.tokens is None:
            raise Invalid("invalid_body", "A budget limits `usd`, `tokens` or both.", field="$.usd")
        ask = PutBudget(
            zone_id=call.zone,
            caller=call.caller,
            trace=call.trace,
            scope=body.scope,
            scope_key=_scope_key(body.scope, body.key, "invalid_body", "$.key"),
            period=body.period,
            usd_micros=None if body.usd is None else round(body.usd * MICROS),
            tokens=body.tokens,
        )
        return spending.view(await self.submit_budget(ask))

    async def remove_budget(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, BudgetNameQuery)
        ask = RemoveBudget(
            zone_id=call.zone,
            caller=call.caller,
            trace=call.trace,
            scope=query.scope,
            scope_key=_scope_key(query.scope, query.key, "invalid_query", "key"),
            period=query.period,
        )
        await self.submit_budget(ask)
        return Reply(None, 204)

    async def _read(self, call: Call, operation: Callable[[Tx], Awaitable[T]]) -> T:
        """Behind the wall: the zone that is looked at, and the zone of the caller's own session."""
        return await self.engine.read(operation, zones={call.zone, call.caller.zone_id})


def _items(body: LogBody) -> list[LogItem]:
    if body.lines is UNSET:
        return [LogItem(**{name: getattr(body, name) for name in LINE_FIELDS})]
    if any(getattr(body, name) != getattr(LogBody(), name) for name in LINE_FIELDS):
        raise Invalid("invalid_body", "It is one line, or `lines`, and not both.", field="$.lines")
    return body.lines


def _cursor(listing: str, place: Place) -> str:
    return paging.encode(listing, f"{place.pos}.{place.number}")


def _place(listing: str, cursor: str) -> Place:
    pos, _, number = paging.decode(listing, cursor).partition(".")
    try:
        return Place(*(msgspec.convert(each, _Number, strict=False) for each in (pos, number)))
    except msgspec.ValidationError:
        raise _foreign() from None


def _budget_after(cursor: str) -> tuple[str, str, str]:
    try:
        return msgspec.json.decode(paging.decode(BUDGETS, cursor), type=tuple[str, str, str])
    except msgspec.DecodeError:
        raise _foreign() from None


def _foreign() -> Invalid:
    return Invalid("invalid_cursor", "This cursor was not given out by this list.", field="cursor")


def _cost_after(group_by: GroupBy, place: str) -> str:
    sign, name = place[:1], place[1:]
    if sign != "=" or (group_by == "day" and not spending.is_day(name)):
        raise _foreign()
    return name


def _day(field: str, name: str | None) -> int | None:
    return None if name is None else spending.day_named(name, field)


def _scope_key(scope: Scope, key: str | None, code: str, field: str) -> str:
    if (scope is Scope.ZONE) != (key is None):
        detail = "A budget of a type or a task has a `key`, which names it; one of the workspace has none."
        raise Invalid(code, detail, field=field)
    return key or ""


# -- the table ---------------------------------------------------------------------------------------------------

ONE = "/api/v1/agent-tasks/{id}"
TASKS, MONEY = ("tasks",), ("costs",)
MISSING = ("task_not_found",)
FOLLOWING = (
    "Its transitions, and what its agents say, newest first; `order=asc` is for following: `nextCursor` says where to "
    "go on, also if there was nothing, and with `waitMs` the answer comes when there is something, or when the time is "
    "up. Transitions have the event `state_transition`, `progress_update`, `warning`, `change` or `unblocked`, and the "
    "level INFO; a warning is WARN, a failure or an abort ERROR, and the failure after which no retries are left "
    "CRITICAL. They are there as long as the event log is kept."
)
SAYING = (*MISSING, "stale_attempt", "attempt_token_required", "log_full", "field_too_large", "reserved_key")


def routes(desk: RecordDesk) -> list[Route]:
    return [
        Route(
            "GET", ONE + "/logs", desk.list_lines, "List or follow the log of a task", LIFECYCLE, query=LogQuery,
            answer=LogList, refusals=(*MISSING, "invalid_cursor"), tags=TASKS, power="tasks.read", waits=True,
            description=FOLLOWING,
        ),
        Route(
            "POST", ONE + "/logs", desk.add_lines, "Say something in the log of a task", LIFECYCLE, body=LogBody,
            answer=LogAdded, status=201, tags=TASKS, power="tasks.work",
            refusals=SAYING,
            description="One line, or up to 100 as `lines`, by whoever holds the task. What was said stays said; "
            "secrets in it are not kept.",
        ),
        Route(
            "GET", ONE + "/explain", desk.explain, "Why a task is as it is", LIFECYCLE, answer=TaskExplanation,
            refusals=MISSING, tags=TASKS, power="tasks.read",
        ),
        Route(
            "GET", ONE + "/tree", desk.tree, "Show what a task depends on, and what depends on it", LIFECYCLE,
            query=TreeQuery, answer=TaskTree, refusals=MISSING, tags=TASKS, power="tasks.read",
        ),
        Route(
            "GET", "/api/v1/costs", desk.costs, "Sum up what tasks have cost", LIFECYCLE, query=CostQuery,
            answer=CostList, refusals=("invalid_cursor",), tags=MONEY, power="costs.read",
            description="In the order of what it is grouped by. Days are those of UTC.",
        ),
        Route(
            "GET", "/api/v1/budgets", desk.list_budgets, "List budgets, and what is spent of them", LIFECYCLE,
            query=BudgetQuery, answer=BudgetList, refusals=("invalid_cursor",), tags=MONEY, power="costs.read",
        ),
        Route(
            "PUT", "/api/v1/budgets", desk.put_budget, "Set a budget", LIFECYCLE, body=BudgetBody, answer=BudgetView,
            refusals=(*MISSING, "too_many_budgets", "zone_ended"), tags=MONEY, power="budgets.change",
            description="A new one counts what its period has seen already. Where a budget is spent, nothing of it is "
            "handed out until its period ends or it is raised; what runs goes on.",
        ),
        Route(
            "DELETE", "/api/v1/budgets", desk.remove_budget, "Remove a budget", LIFECYCLE, query=BudgetNameQuery,
            status=204, refusals=("budget_not_found", "zone_ended"), tags=MONEY, power="budgets.change",
        ),
    ]  # fmt: skip
