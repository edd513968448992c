"""What tasks have cost, and what they may cost."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import NUMBER, TEXT, Command, Kind, Noun, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import Usage
from quarterdeck.cli.input import without_nothing
from quarterdeck.cli.list_output import PAGES, show_list, when
from quarterdeck.cli.output import cell, instant, table
from quarterdeck.cli.time_args import DAY, day
from quarterdeck.client.api import Document


def noun() -> Noun:
    return Noun(
        (
            Command(("cost",), "What tasks have cost.", cost, options=_COST),
            Command(("budget", "list"), "List budgets, and what is spent of them.", list_, options=PAGES),
            Command(("budget", "set"), "Set what may be spent.", set_, options=_SET, description=_SETTING),
            Command(("budget", "remove"), "Take a budget away.", remove, options=_WHICH),
        ),
        {"budget": "What tasks may cost. Where one is spent, tasks wait."},
    )


def _money(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = -1.0
    if not 0 <= amount <= 1e9:
        raise ValueError(f"{text!r} is not an amount of dollars")
    return amount


_GROUPS = ("task", "agent", "model", "taskType", "day", "workspace")
_BY = ("task", "agent", "model", "type", "day", "zone")
_COST = (
    Option("--by", "What to sum up by [default: zone].", choice(*_BY)),
    Option("--since", "The first day that counts (in UTC): 2026-01-31, or 7d (so long ago).", DAY),
    Option("--until", "The first day that counts no more.", DAY),
    *PAGES,
)
_WHICH = (
    Option("--scope", "What it is for [default: zone].", choice("zone", "type", "task")),
    Option("--for", "The type, or the task's id.", TEXT),
    Option("--period", "For how long it is [default: month].", choice("day", "week", "month", "total")),
)
_SET = (
    *_WHICH,
    Option("--usd", "How many dollars.", Kind("USD", _money)),
    Option("--tokens", "How many tokens, in and out.", NUMBER),
)
_SETTING = """Where it is spent nothing of it is handed out, until the period ends or the budget is raised; what runs
goes on. `qd explain task` says so of a task that waits for it."""
_SCOPES = {"zone": "workspace", "type": "taskType", "task": "task"}


def cost(context: Context) -> int:
    by = context.text("by") or "zone"
    since, until, now = context.text("since"), context.text("until"), time.time()
    query = {
        "groupBy": _GROUPS[_BY.index(by)],
        "since": None if since is None else day(since, now),
        "until": None if until is None else day(until, now),
    }
    return show_list(context, context.work("costs"), query, lambda _, items: _costs(context, by, items))


def list_(context: Context) -> int:
    return show_list(context, context.work("budgets"), {}, _budgets)


def set_(context: Context) -> int:
    amounts = without_nothing({"usd": context.ask.values["usd"], "tokens": context.number("tokens")})
    if not amounts:
        raise Usage("usage", "How much may be spent? Give --usd, --tokens or both.")
    body: Document = {**_which(context), **amounts}
    told = context.server().call("PUT", context.work("budgets"), body=body).document
    context.show(told, lambda _: f"set the budget of {_named(told)}")
    return 0


def remove(context: Context) -> int:
    which = _which(context)
    query = {name: str(value) for name, value in which.items()}
    context.server().call("DELETE", context.work("budgets"), query=query)
    context.show({**which, "status": "removed"}, lambda told: f"removed the budget of {_named(told)}")
    return 0


def _which(context: Context) -> Document:
    scope, key = context.text("scope") or "zone", context.text("for")
    if (scope == "zone") != (key is None):
        raise Usage("usage", "--scope type and --scope task go with --for, which names the one it is for.")
    period = context.text("period") or "month"
    return without_nothing({"scope": _SCOPES[scope], "key": key, "period": period})


def _named(budget: Document) -> str:
    scope, key, period = budget.get("scope"), budget.get("key"), cell(budget.get("period"))
    of = "the zone" if scope == "workspace" else f"{'type' if scope == 'taskType' else 'task'} {cell(key)}"
    return f"{of}, {'in all' if period == 'total' else f'each {period}'}"


def _costs(context: Context, by: str, sums: list[Document]) -> str:
    if not sums:
        return f"nothing was spent in zone {context.zone}"
    rows = [[one.get("key"), dollars(one.get("usd")), one.get("inputTokens"), one.get("outputTokens")] for one in sums]
    return table((by.upper(), "USD", "TOKENS IN", "TOKENS OUT"), rows, context.paint)


def _budgets(context: Context, budgets: list[Document]) -> str:
    if not budgets:
        return f"no budgets in zone {context.zone}: nothing bounds what is spent"
    now = time.time()
    rows = [
        [
            _named(one),
            dollars(one.get("usd")),
            dollars(one.get("usedUsd")),
            one.get("tokens"),
            one.get("usedTokens"),
            "spent" if one.get("isSpent") is True else "open",
            _ends(one, now),
        ]
        for one in budgets
    ]
    return table(("OF", "USD", "USED", "TOKENS", "USED", "STATE", "ENDS"), rows, context.paint)


def _ends(budget: Document, now: float) -> str | None:
    at = instant(budget.get("periodEndsAt"))
    return None if at is None else when(at - now)


def dollars(value: object) -> str | None:
    return f"{value:.4f}" if isinstance(value, int | float) else None
