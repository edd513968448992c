"""Routes for costs and budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.errors import Invalid
from quarterdeck.core.paging import CamelPage, Listing
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.costs import rules
from quarterdeck.domain.costs.model import (
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
from quarterdeck.domain.costs.operations import reads
from quarterdeck.engine.transaction import Engine

BUDGETS = Listing[Budget]("budgets", lambda row: msgspec.json.encode((row.scope, row.scope_key, row.period)).decode())


@dataclass(frozen=True, slots=True)
class CostHandlers:
    engine: Engine
    submit_budget: Callable[[PutBudget | RemoveBudget], asyncio.Future[Budget]]

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
        groups = await self.engine.read(lambda tx: reads.read_costs(tx, filters), zones=call.zones)
        return listing.reply(call, groups, _cost_view, partial(CostList, query.group_by))

    async def list_budgets(self, call: Call[None, BudgetQuery]) -> Reply[CamelPage[BudgetView]]:
        query = call.query
        start_key = BUDGETS.start_key(query)
        after = ("", "", "") if start_key is None else _decode_budget_key(start_key)
        rows = await self.engine.read(
            lambda tx: reads.list_budgets(tx, call.caller, call.zone_id, after, query.limit + 1), zones=call.zones
        )
        return BUDGETS.reply(call, rows, rules.to_view, CamelPage)

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
        return rules.to_view(await self.submit_budget(command))

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


def _decode_budget_key(sort_key: str) -> tuple[str, str, str]:
    try:
        return msgspec.json.decode(sort_key, type=tuple[str, str, str])
    except msgspec.DecodeError:
        raise _invalid_cursor() from None


def _cost_view(group: CostGroup) -> CostView:
    return CostView(group.key, rules.to_dollars(group.usd_micros), group.input_tokens, group.output_tokens)


def _invalid_cursor() -> Invalid:
    return Invalid(
        "invalid_cursor", "The cursor is not from this list. Use the `nextCursor` of its previous page.", field="cursor"
    )


def _decode_cost_key(group_by: GroupBy, value: str) -> str:
    prefix, key = value[:1], value[1:]
    if prefix != "=" or (group_by == "day" and not rules.is_day(key)):
        raise _invalid_cursor()
    return key


def _parse_day(field: str, text: str | None) -> int | None:
    return None if text is None else rules.parse_day(text, field)


def _scope_key(scope: Scope, key: str | None, code: str, field: str) -> str:
    if (scope is Scope.ZONE) != (key is None):
        detail = "`key` is required for the scopes `taskType` and `task`, and not allowed for `workspace`."
        raise Invalid(code, detail, field=field)
    return key or ""


# -- route table -------------------------------------------------------------------------------------------------


def routes(handlers: CostHandlers) -> list[Route]:
    path, tags = "/api/v1/budgets", ("costs",)
    return [
        Route(
            "GET", "/api/v1/costs", handlers.list_costs, "Sum the costs of tasks", LIFECYCLE,
            errors=("invalid_cursor",), tags=tags, permission="costs.read",
            description="Ordered by the group key. Days are in UTC.",
        ),
        Route(
            "GET", path, handlers.list_budgets, "List budgets and their use", LIFECYCLE,
            errors=("invalid_cursor",), tags=tags, permission="costs.read",
        ),
        Route(
            "PUT", path, handlers.put_budget, "Set a budget", LIFECYCLE,
            errors=("task_not_found", "too_many_budgets", "zone_ended"), tags=tags, permission="budgets.change",
            description="A new budget includes the costs of its period so far. While a budget is spent, its tasks are "
            "not claimed until the period ends or the budget is raised; running attempts continue.",
        ),
        Route(
            "DELETE", path, handlers.remove_budget, "Remove a budget", LIFECYCLE, status=204,
            errors=("budget_not_found", "zone_ended"), tags=tags, permission="budgets.change",
        ),
    ]  # fmt: skip
