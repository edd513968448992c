"""`qd explain`: explains the state of an object and what would change it, and whether a spawn would be admitted."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from quarterdeck.cli.command_table import ID, ID_ARGUMENT, Group, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import nested
from quarterdeck.cli.output import cell, fields, format_duration, parse_timestamp, table
from quarterdeck.client.api import Document, build_path, page_items
from quarterdeck.core.errors import EXIT_REFUSED

GROUP = Group("explain", "Explain the state of an object and what would change it.")


@GROUP.command("session", "Explain the state of a session.", ID_ARGUMENT)
def session(context: Context) -> None:
    _explain(context, context.zone_path("agents"), _ExplanationText.session)


@GROUP.command("invocation", "Explain the state of an invocation.", ID_ARGUMENT)
def invocation(context: Context) -> None:
    _explain(context, context.zone_path("invocations"), _ExplanationText.invocation)


@GROUP.command("delegation", "Explain the state of a delegation.", ID_ARGUMENT)
def delegation(context: Context) -> None:
    _explain(context, context.zone_path("delegations"), _ExplanationText.delegation)


@GROUP.command("task", "Explain the state of a task.", ID_ARGUMENT)
def task(context: Context) -> None:
    _explain(context, context.api_path("agent-tasks"), _ExplanationText.task)


def _explain(context: Context, path: str, render: Callable[[_ExplanationText, Document], str]) -> None:
    text = _ExplanationText(context)
    context.send("GET", path + build_path(context.required_text("id"), "explain"), lambda reply: render(text, reply))


@GROUP.command(
    "spawn",
    "Check whether a spawn would be admitted now.",
    Option("--app", "Application that would own the session.", ID, required=True, field="application_id"),
    Option("--parent", "Parent of the session [default: none, a root session].", ID, field="parent_id"),
    description=(
        "Nothing is spawned. Exits 0 if a spawn would be admitted and 3 if it would be refused. This is no "
        "guarantee: another spawn may take the last slot first."
    ),
)
def spawn(context: Context) -> int:
    path = context.with_query(context.zone_path("explain", "spawn"))
    explanation = context.send("GET", path, _ExplanationText(context).spawn)
    return 0 if explanation.get("admitted") is True else EXIT_REFUSED


class _ExplanationText:
    """Formats explanations. On a terminal, sentences are wrapped at its width; otherwise each is one line."""

    def __init__(self, context: Context) -> None:
        self._styler = context.styler
        self._columns = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else 0

    def session(self, explanation: Document) -> str:
        session, spawn = nested(explanation, "session"), nested(explanation, "spawn")
        parts = self._heading(
            f"session {cell(session.get('id'))} of {cell(session.get('application_id'))}", session, explanation
        )
        pairs = [
            *_held_by_pairs(explanation, session),
            *_ended_by_pairs(nested(explanation, "ended_by"), session, time.time()),
        ]
        if pairs:
            parts += ["", fields(pairs, self._styler)]
        parts += ["", self._verdict(spawn, "A spawn under this session")]
        # The counters of a tree are removed when it ends. Zeros would suggest that it never had sessions.
        return "\n".join(parts if session.get("status") == "terminated" else [*parts, "", self._bounds_table(spawn)])

    def invocation(self, explanation: Document) -> str:
        invocation = nested(explanation, "invocation")
        call = f"{cell(invocation.get('method'))} of service {cell(invocation.get('service_id'))}"
        parts = self._heading(f"invocation {cell(invocation.get('id'))}, {call}", invocation, explanation)
        return "\n".join([*parts, *self._section("what happens next:", _strings(explanation, "next"))])

    def delegation(self, explanation: Document) -> str:
        edge = nested(explanation, "edge")
        endpoints = f"{cell(edge.get('source_session_id'))} to {cell(edge.get('target_session_id'))}"
        parts = self._heading(f"delegation {cell(edge.get('id'))} from {endpoints}", edge, explanation)
        pairs: list[tuple[str, object]] = [("scopes", edge.get("scopes"))]
        if edge.get("resources") is not None:
            pairs.append(("resources", edge["resources"]))
        chain = [cell(ancestor.get("id")) for ancestor in page_items(explanation, "chain")]
        pairs += [("derived from" if index == 0 else "", edge_id) for index, edge_id in enumerate(chain)]
        ended_by = nested(explanation, "ended_by")
        pairs += [("ended by", ended_by.get("actor")), ("event", ended_by.get("pos"))] if ended_by else []
        parts += ["", fields(pairs, self._styler)]
        return "\n".join([*parts, *self._section("what cannot be derived from it:", _strings(explanation, "refuses"))])

    def task(self, explanation: Document) -> str:
        task = nested(explanation, "task")
        title = f"{cell(task.get('title'))} ({cell(task.get('taskType'))})"
        parts = self._heading(f"task {cell(task.get('id'))}, {title}", task, explanation)
        return "\n".join([*parts, *self._section("what happens next:", _strings(explanation, "next"))])

    def _heading(self, title: str, subject: Document, explanation: Document) -> list[str]:
        """Format the title with the status, then one line per reason."""
        status = cell(subject.get("status"))
        reasons = [self._wrap(cell(reason), "  ") for reason in _strings(explanation, "why")]
        return [self._styler.bold(f"{title}: ") + self._styler.color_by_status(status, status), *reasons]

    def _section(self, title: str, sentences: list[str]) -> list[str]:
        if not sentences:
            return []
        return ["", self._styler.bold(title), *(self._wrap(cell(sentence), "  ") for sentence in sentences)]

    def spawn(self, explanation: Document) -> str:
        parent = explanation.get("parent_id")
        spawn = f"A spawn by {cell(explanation.get('application_id'))} in zone {cell(explanation.get('zone_id'))}"
        position = "as a root" if parent is None else f"under {cell(parent)}"
        return "\n".join([self._verdict(explanation, f"{spawn}, {position},"), "", self._bounds_table(explanation)])

    def _verdict(self, explanation: Document, subject: str) -> str:
        """Format whether a spawn would be admitted. For a refusal, also format each reason and what frees it."""
        if explanation.get("admitted") is True:
            return self._wrap(f"{subject} would be admitted now.", "")
        lines = [self._styler.bold(self._wrap(f"{subject} would be refused now:", ""))]
        for refusal in page_items(explanation, "refused_by"):
            lines.append(self._wrap(f"{cell(refusal.get('error'))}: {cell(refusal.get('detail'))}", "  "))
            if refusal.get("frees"):
                lines.append(self._wrap(f"what frees it: {cell(refusal['frees'])}", "    "))
        return "\n".join(lines)

    def _bounds_table(self, explanation: Document) -> str:
        rows = [
            [bound.get(name) for name in ("bound", "used", "limit")] + [_format_remaining(bound)]
            for bound in page_items(explanation, "bounds")
        ]
        return table(("BOUND", "USED", "LIMIT", "LEFT"), rows, self._styler)

    def _wrap(self, sentence: str, indent: str) -> str:
        if len(indent) + len(sentence) <= self._columns or not self._columns:
            return indent + sentence
        from textwrap import wrap  # the import takes 5 ms, and few sentences are too long

        # Ids contain hyphens and must stay on one line, so that they can be copied.
        lines = wrap(sentence, max(self._columns - len(indent) - 2, 20), break_on_hyphens=False, break_long_words=False)
        return "\n".join(f"{indent}{'  ' if index else ''}{line}" for index, line in enumerate(lines))


def _held_by_pairs(explanation: Document, session: Document) -> list[tuple[str, object]]:
    """Format the sessions whose suspension keeps this one suspended, one line each."""
    session_id = session.get("id")
    holders = [
        f"{cell(holder)}{' (itself)' if holder == session_id else ''}" for holder in _strings(explanation, "held_by")
    ]
    return [("suspended by" if index == 0 else "", line) for index, line in enumerate(holders)]


def _ended_by_pairs(ended_by: Document, session: Document, now: float) -> list[tuple[str, object]]:
    if not ended_by:
        return []
    cause, ended_at = ended_by.get("cause"), parse_timestamp(ended_by.get("at"))
    if cause == session.get("id"):
        cause_text = "itself"
    elif cause == session.get("zone_id"):
        cause_text = f"zone {cell(cause)}"
    else:
        cause_text = f"ancestor {cell(cause)}"
    age_text = "" if ended_at is None else f" ({format_duration(now - ended_at)} ago)"
    pairs: list[tuple[str, object]] = [
        ("ended by", ended_by.get("actor")),
        ("ended with", cause_text),
        ("event", cell(ended_by.get("pos")) + age_text),
    ]
    return [*pairs, ("trace", ended_by["trace"])] if ended_by.get("trace") else pairs


def _format_remaining(bound: Document) -> str:
    remaining = cell(bound.get("left"))
    return f"{remaining}, full" if remaining == "0" else remaining


def _strings(document: Document, name: str) -> list[str]:
    value = document.get(name)
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []
