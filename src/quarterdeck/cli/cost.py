"""`qd cost` and `qd budget`: task costs and limits on them."""

from __future__ import annotations

from quarterdeck.cli.command_table import NUMBER, TEXT, Group, Option, ParamType, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import usage_error
from quarterdeck.cli.input import DAY
from quarterdeck.cli.list_output import PAGING, Column, print_list, time_from_now
from quarterdeck.cli.output import cell
from quarterdeck.client.api import Document

ROOT = Group("")
BUDGET = Group("budget", "Manage budgets: limits on task costs. Tasks wait when their budget is used up.")
GROUPS = (ROOT, BUDGET)


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
_BUDGET_KEY_OPTIONS = (
    Option("--scope", "What the budget limits [default: zone].", choice("zone", "type", "task")),
    Option("--for", "Task type or task id, with --scope type or task.", TEXT),
    Option("--period", "Period of the budget [default: month].", choice("day", "week", "month", "total")),
)
_SCOPE_VALUES = {"zone": "workspace", "type": "taskType", "task": "task"}


@ROOT.command(
    "cost",
    "Show the costs of tasks.",
    Option("--by", "Field to group by [default: zone].", choice(*_GROUP_CHOICES)),
    Option("--since", "First day, in UTC: 2026-01-31, or 7d for 7 days ago.", DAY, field="since"),
    Option("--until", "First day to exclude, in the same format as --since.", DAY, field="until"),
    *PAGING,
)
def cost(context: Context) -> None:
    group_by = context.text("by") or "zone"
    query = context.query(groupBy=_GROUP_FIELDS[_GROUP_CHOICES.index(group_by)])
    columns = (
        Column(group_by.upper(), "key"),
        Column("USD", lambda row, _: format_usd(row.get("usd"))),
        Column("TOKENS IN", "inputTokens"),
        Column("TOKENS OUT", "outputTokens"),
    )
    print_list(context, context.api_path("costs"), columns, f"No costs found in zone {context.zone}.", query)


@BUDGET.command("list", "List budgets and how much of each is used.", *PAGING)
def list_(context: Context) -> None:
    empty = f"No budgets in zone {context.zone}: costs are not limited."
    print_list(context, context.api_path("budgets"), _BUDGET_COLUMNS, empty)


@BUDGET.command(
    "set",
    "Set a budget.",
    *_BUDGET_KEY_OPTIONS,
    Option("--usd", "Limit in US dollars.", ParamType("USD", _parse_usd), field="usd"),
    Option("--tokens", "Limit in tokens, input and output together.", NUMBER, field="tokens"),
    description=(
        "When a budget is used up, its tasks are not assigned until the period ends or the budget is raised. "
        "Running tasks continue. `qd explain task` shows whether a task is waiting for a budget."
    ),
)
def set_(context: Context) -> None:
    amounts = context.body()
    if not amounts:
        raise usage_error("Give --usd, --tokens or both.")
    body = {**_budget_key(context), **amounts}
    context.send(
        "PUT", context.api_path("budgets"), lambda budget: f"Set the budget for {_describe_budget(budget)}.", body=body
    )


@BUDGET.command("remove", "Remove a budget.", *_BUDGET_KEY_OPTIONS)
def remove(context: Context) -> None:
    budget_key = _budget_key(context)
    query = {name: str(value) for name, value in budget_key.items()}
    text = f"Removed the budget for {_describe_budget(budget_key)}."
    context.remove(context.api_path("budgets"), {**budget_key, "status": "removed"}, text, query=query)


def _budget_key(context: Context) -> Document:
    scope, key = context.text("scope") or "zone", context.text("for")
    if (scope == "zone") != (key is None):
        raise usage_error("Give --for with --scope type or --scope task, but not with --scope zone.")
    named: Document = {} if key is None else {"key": key}
    return {"scope": _SCOPE_VALUES[scope], **named, "period": context.text("period") or "month"}


def _describe_budget(budget: Document) -> str:
    scope, key, period = budget.get("scope"), budget.get("key"), cell(budget.get("period"))
    subject = "the zone" if scope == "workspace" else f"{'type' if scope == 'taskType' else 'task'} {cell(key)}"
    return f"{subject}, {'total' if period == 'total' else f'per {period}'}"


def format_usd(value: object) -> str | None:
    return f"{value:.4f}" if isinstance(value, int | float) else None


_BUDGET_COLUMNS = (
    Column("BUDGET", lambda budget, _: _describe_budget(budget)),
    Column("USD", lambda budget, _: format_usd(budget.get("usd"))),
    Column("USED USD", lambda budget, _: format_usd(budget.get("usedUsd"))),
    Column("TOKENS", "tokens"),
    Column("USED TOKENS", "usedTokens"),
    Column("STATE", lambda budget, _: "spent" if budget.get("isSpent") is True else "open"),
    Column("PERIOD ENDS", time_from_now("periodEndsAt")),
)
