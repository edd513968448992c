"""`qd cost` and `qd budget`: task costs and limits on them."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import NUMBER, TEXT, Command, CommandTable, Option, ParamType, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.input import without_none
from quarterdeck.cli.list_output import PAGING, print_list, relative_time
from quarterdeck.cli.output import cell, parse_timestamp, table
from quarterdeck.cli.time_args import DAY, parse_day
from quarterdeck.client.api import Document


def build_command_table() -> CommandTable:
    return CommandTable(
        (
            Command(("cost",), "Show the costs of tasks.", cost, options=_COST_OPTIONS),
            Command(("budget", "list"), "List budgets and how much of each is used.", list_, options=PAGING),
            Command(("budget", "set"), "Set a budget.", set_, options=_SET_OPTIONS, description=_SET_HELP),
            Command(("budget", "remove"), "Remove a budget.", remove, options=_BUDGET_KEY_OPTIONS),
        ),
        {"budget": "Manage budgets: limits on task costs. Tasks wait when their budget is used up."},
    )


def _parse_usd(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount <= 1e9:
        raise ValueError(f"{text!r} is not an amount in US dollars. Use a number from 0 to 1,000,000,000")
    return amount


_GROUP_FIELDS = ("task", "agent", "model", "taskType", "day", "workspace")
_GROUP_CHOICES = ("task", "agent", "model", "type", "day", "zone")
_COST_OPTIONS = (
    Option("--by", "Field to group by [default: zone].", choice(*_GROUP_CHOICES)),
    Option("--since", "First day, in UTC: 2026-01-31, or 7d for 7 days ago.", DAY),
    Option("--until", "First day to exclude, in the same format as --since.", DAY),
    *PAGING,
)
_BUDGET_KEY_OPTIONS = (
    Option("--scope", "What the budget limits [default: zone].", choice("zone", "type", "task")),
    Option("--for", "Task type or task id, with --scope type or task.", TEXT),
    Option("--period", "Period of the budget [default: month].", choice("day", "week", "month", "total")),
)
_SET_OPTIONS = (
    *_BUDGET_KEY_OPTIONS,
    Option("--usd", "Limit in US dollars.", ParamType("USD", _parse_usd)),
    Option("--tokens", "Limit in tokens, input and output together.", NUMBER),
)
_SET_HELP = """When a budget is used up, its tasks are not assigned until the period ends or the budget is raised.
Running tasks continue. `qd explain task` shows whether a task is waiting for a budget."""
_SCOPE_VALUES = {"zone": "workspace", "type": "taskType", "task": "task"}


def cost(context: Context) -> int:
    group_by = context.text("by") or "zone"
    since, until, now = context.text("since"), context.text("until"), time.time()
    query = {
        "groupBy": _GROUP_FIELDS[_GROUP_CHOICES.index(group_by)],
        "since": None if since is None else parse_day(since, now),
        "until": None if until is None else parse_day(until, now),
    }
    return print_list(context, context.api_path("costs"), query, lambda _, items: _cost_table(context, group_by, items))


def list_(context: Context) -> int:
    return print_list(context, context.api_path("budgets"), {}, _budget_table)


def set_(context: Context) -> int:
    amounts = without_none({"usd": context.parsed.values["usd"], "tokens": context.number("tokens")})
    if not amounts:
        raise UsageError("usage", "Give --usd, --tokens or both.")
    body: Document = {**_budget_key(context), **amounts}
    document = context.server().call("PUT", context.api_path("budgets"), body=body).document
    context.show(document, lambda _: f"Set the budget for {_describe_budget(document)}.")
    return 0


def remove(context: Context) -> int:
    budget_key = _budget_key(context)
    query = {name: str(value) for name, value in budget_key.items()}
    context.server().call("DELETE", context.api_path("budgets"), query=query)
    context.show(
        {**budget_key, "status": "removed"}, lambda document: f"Removed the budget for {_describe_budget(document)}."
    )
    return 0


def _budget_key(context: Context) -> Document:
    scope, key = context.text("scope") or "zone", context.text("for")
    if (scope == "zone") != (key is None):
        raise UsageError("usage", "Give --for with --scope type or --scope task, but not with --scope zone.")
    period = context.text("period") or "month"
    return without_none({"scope": _SCOPE_VALUES[scope], "key": key, "period": period})


def _describe_budget(budget: Document) -> str:
    scope, key, period = budget.get("scope"), budget.get("key"), cell(budget.get("period"))
    subject = "the zone" if scope == "workspace" else f"{'type' if scope == 'taskType' else 'task'} {cell(key)}"
    return f"{subject}, {'total' if period == 'total' else f'per {period}'}"


def _cost_table(context: Context, group_by: str, costs: list[Document]) -> str:
    if not costs:
        return f"No costs found in zone {context.zone}."
    rows = [
        [row.get("key"), format_usd(row.get("usd")), row.get("inputTokens"), row.get("outputTokens")] for row in costs
    ]
    return table((group_by.upper(), "USD", "TOKENS IN", "TOKENS OUT"), rows, context.styler)


def _budget_table(context: Context, budgets: list[Document]) -> str:
    if not budgets:
        return f"No budgets in zone {context.zone}: costs are not limited."
    now = time.time()
    rows = [
        [
            _describe_budget(budget),
            format_usd(budget.get("usd")),
            format_usd(budget.get("usedUsd")),
            budget.get("tokens"),
            budget.get("usedTokens"),
            "spent" if budget.get("isSpent") is True else "open",
            _period_end(budget, now),
        ]
        for budget in budgets
    ]
    return table(("BUDGET", "USD", "USED USD", "TOKENS", "USED TOKENS", "STATE", "PERIOD ENDS"), rows, context.styler)


def _period_end(budget: Document, now: float) -> str | None:
    ends_at = parse_timestamp(budget.get("periodEndsAt"))
    return None if ends_at is None else relative_time(ends_at - now)


def format_usd(value: object) -> str | None:
    return f"{value:.4f}" if isinstance(value, int | float) else None
