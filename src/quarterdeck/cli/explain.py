"""Why: what state something is in and through whom, what would move it, and what a spawn now would meet."""

from __future__ import annotations

import os
import sys
import time

from quarterdeck.cli.command_table import ID, Argument, Command, Noun, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, fields, instant, span, table
from quarterdeck.client.api import Document, items_of
from quarterdeck.core.errors import EXIT_REFUSED


def noun() -> Noun:
    one = (Argument("id", "ID", ID),)
    return Noun(
        (
            Command(("explain", "session"), "Why a session is as it is.", session, one),
            Command(("explain", "invocation"), "Why an invocation is as it is.", invocation, one),
            Command(("explain", "delegation"), "Why a delegation is as it is.", delegation, one),
            Command(("explain", "task"), "Why a task is as it is.", task, one),
            Command(("explain", "spawn"), "What a spawn would meet now.", spawn, (), _SPAWN, _EXITS),
        ),
        {"explain": "Why something is as it is, and what would change it."},
    )


_SPAWN = (
    Option("--app", "The application that would own the session.", ID, required=True),
    Option("--parent", "The session it would be spawned under [default: none, a new tree].", ID),
)
_EXITS = (
    "Nothing is spawned. Exits 0 if a spawn would be admitted and 3 if it would be refused, by whatever. It is no "
    "promise: another spawn may come first."
)


def session(context: Context) -> int:
    told = context.server().get(context.in_zone("agents", context.given("id"), "explain"))
    context.show(told, lambda document: _Page(context).session(document))
    return 0


def invocation(context: Context) -> int:
    told = context.server().get(context.in_zone("invocations", context.given("id"), "explain"))
    context.show(told, lambda document: _Page(context).invocation(document))
    return 0


def delegation(context: Context) -> int:
    told = context.server().get(context.in_zone("delegations", context.given("id"), "explain"))
    context.show(told, lambda document: _Page(context).delegation(document))
    return 0


def task(context: Context) -> int:
    told = context.server().get(context.work("agent-tasks", context.given("id"), "explain"))
    context.show(told, lambda document: _Page(context).task(document))
    return 0


def spawn(context: Context) -> int:
    query = {"application_id": context.given("app"), "parent_id": context.text("parent")}
    told = context.server().get(context.in_zone("explain", "spawn"), query)
    context.show(told, lambda document: _Page(context).spawn(document))
    return 0 if told.get("admitted") is True else EXIT_REFUSED


class _Page:
    """What people read. On a terminal sentences are folded at its width; elsewhere each is one line."""

    def __init__(self, context: Context) -> None:
        self._paint = context.paint
        self._columns = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0

    def session(self, told: Document) -> str:
        one, spawn = _mapping(told, "session"), _mapping(told, "spawn")
        parts = self._head(f"session {cell(one.get('id'))} of {cell(one.get('application_id'))}", one, told)
        pairs = [*_holders(told, one), *_ender(_mapping(told, "ended_by"), one, time.time())]
        if pairs:
            parts += ["", fields(pairs, self._paint)]
        parts += ["", self._verdict(spawn, "A spawn under it")]
        # The counts of a tree go when it ends: zeros would read as if nothing had ever been spawned in it.
        return "\n".join(parts if one.get("status") == "terminated" else [*parts, "", self._bounds(spawn)])

    def invocation(self, told: Document) -> str:
        one = _mapping(told, "invocation")
        what = f"{cell(one.get('method'))} of service {cell(one.get('service_id'))}"
        parts = self._head(f"invocation {cell(one.get('id'))}, {what}", one, told)
        return "\n".join([*parts, *self._sentences("what would move it:", _texts(told, "next"))])

    def delegation(self, told: Document) -> str:
        edge = _mapping(told, "edge")
        ends = f"{cell(edge.get('source_session_id'))} to {cell(edge.get('target_session_id'))}"
        parts = self._head(f"delegation {cell(edge.get('id'))} from {ends}", edge, told)
        pairs: list[tuple[str, object]] = [("lends", edge.get("scopes"))]
        if edge.get("resources") is not None:
            pairs.append(("for", edge["resources"]))
        line = [cell(one.get("id")) for one in items_of(told, "chain")]
        pairs += [("derived from" if at == 0 else "", name) for at, name in enumerate(line)]
        ended_by = _mapping(told, "ended_by")
        pairs += [("ended by", ended_by.get("actor")), ("event", ended_by.get("pos"))] if ended_by else []
        parts += ["", fields(pairs, self._paint)]
        return "\n".join([*parts, *self._sentences("what could not be derived from it:", _texts(told, "refuses"))])

    def task(self, told: Document) -> str:
        one = _mapping(told, "task")
        what = f"{cell(one.get('title'))} ({cell(one.get('taskType'))})"
        parts = self._head(f"task {cell(one.get('id'))}, {what}", one, told)
        return "\n".join([*parts, *self._sentences("what would move it:", _texts(told, "next"))])

    def _head(self, what: str, one: Document, told: Document) -> list[str]:
        """What it is and its state; then why, sentence by sentence."""
        status = cell(one.get("status"))
        said = [self._folded(cell(why), "  ") for why in _texts(told, "why")]
        return [self._paint.bold(f"{what}: ") + self._paint.status(status, status), *said]

    def _sentences(self, title: str, sentences: list[str]) -> list[str]:
        if not sentences:
            return []
        return ["", self._paint.bold(title), *(self._folded(cell(one), "  ") for one in sentences)]

    def spawn(self, told: Document) -> str:
        parent = told.get("parent_id")
        what = f"A spawn by {cell(told.get('application_id'))} in zone {cell(told.get('zone_id'))}"
        under = "as a new tree" if parent is None else f"under {cell(parent)}"
        return "\n".join([self._verdict(told, f"{what}, {under},"), "", self._bounds(told)])

    def _verdict(self, told: Document, what: str) -> str:
        """Whether it would be admitted, and everything that would refuse it, with what would free that."""
        if told.get("admitted") is True:
            return self._folded(f"{what} would be admitted now.", "")
        lines = [self._paint.bold(self._folded(f"{what} would be refused now:", ""))]
        for refusal in items_of(told, "refused_by"):
            lines.append(self._folded(f"{cell(refusal.get('error'))}: {cell(refusal.get('detail'))}", "  "))
            if refusal.get("frees"):
                lines.append(self._folded(f"what frees it: {cell(refusal['frees'])}", "    "))
        return "\n".join(lines)

    def _bounds(self, told: Document) -> str:
        rows = [
            [one.get(name) for name in ("bound", "used", "limit")] + [_left(one)] for one in items_of(told, "bounds")
        ]
        return table(("BOUND", "USED", "LIMIT", "LEFT"), rows, self._paint)

    def _folded(self, sentence: str, indent: str) -> str:
        if len(indent) + len(sentence) <= self._columns or not self._columns:
            return indent + sentence
        from textwrap import wrap  # 5 ms, and few sentences are too long

        # Ids hold hyphens, and must stay whole to be copied.
        lines = wrap(sentence, max(self._columns - len(indent) - 2, 20), break_on_hyphens=False, break_long_words=False)
        return "\n".join(f"{indent}{'  ' if at else ''}{line}" for at, line in enumerate(lines))


def _holders(told: Document, one: Document) -> list[tuple[str, object]]:
    """Each session whose flag keeps this one asleep, on a line of its own."""
    own = one.get("id")
    said = [f"{cell(name)}{' (itself)' if name == own else ''}" for name in _texts(told, "held_by")]
    return [("held by" if at == 0 else "", line) for at, line in enumerate(said)]


def _ender(told: Document, one: Document, now: float) -> list[tuple[str, object]]:
    if not told:
        return []
    cause, at = told.get("cause"), instant(told.get("at"))
    if cause == one.get("id"):
        through = "itself"
    elif cause == one.get("zone_id"):
        through = f"its zone {cell(cause)}"
    else:
        through = f"its ancestor {cell(cause)}"
    ago = "" if at is None else f" ({span(now - at)} ago)"
    pairs: list[tuple[str, object]] = [
        ("ended by", told.get("actor")),
        ("through", through),
        ("event", cell(told.get("pos")) + ago),
    ]
    return [*pairs, ("trace", told["trace"])] if told.get("trace") else pairs


def _left(bound: Document) -> str:
    left = cell(bound.get("left"))
    return f"{left}, full" if left == "0" else left


def _mapping(document: Document, name: str) -> Document:
    value = document.get(name)
    return value if isinstance(value, dict) else {}


def _texts(document: Document, name: str) -> list[str]:
    value = document.get(name)
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
