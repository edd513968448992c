"""Sinks: what is told to other systems, how far it has come, and what was given up."""

from __future__ import annotations

from quarterdeck.cli.command_table import ID, NUMBER, Argument, Command, Noun, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import Usage
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document, items_of, path_of


def noun() -> Noun:
    one = (Argument("name", "NAME", ID),)
    return Noun(
        (
            Command(("sink", "list"), "List sinks, and how far behind they are.", list_),
            Command(("sink", "show"), "Show a sink, what of it waits and what was given up.", show, one),
            Command(("sink", "requeue"), "Try again what was given up.", requeue, one, _REQUEUE),
        ),
        {"sink": "Sinks: what is told to other systems, from the log."},
    )


_REQUEUE = (
    Option("--pos", "The position of the event whose entries are meant.", NUMBER),
    Option("--all", "Everything that was given up."),
)


def list_(context: Context) -> int:
    page = context.server().get("/sinks", {})
    context.show(page, lambda found: _table(context, items_of(found)))
    return 0


def show(context: Context) -> int:
    context.show(context.server().get(_path(context), {}), lambda sink: _shown(context, sink))
    return 0


def requeue(context: Context) -> int:
    pos, is_all = context.number("pos"), context.flag("all")
    if (pos is None) != is_all:
        raise Usage("usage", "Say which: --pos N, or --all.")
    body: Document = {"all": True} if pos is None else {"pos": pos}
    reply = context.server().call("POST", f"{_path(context)}/requeue", body=body)
    context.show(reply.document, lambda told: f"{cell(told.get('requeued'))} are tried again")
    return 0


def _path(context: Context) -> str:
    return path_of("sinks", context.given("name"))


def _table(context: Context, sinks: list[Document]) -> str:
    if not sinks:
        return "no sinks: none was ever configured (REDIS_URL)"
    named = ("name", "position", "lag_events", "lag_seconds", "waiting", "dead", "run_at")
    rows = [[*(sink.get(name) for name in named), _state(sink)] for sink in sinks]
    return table(("NAME", "POSITION", "BEHIND", "SECONDS", "WAITING", "DEAD", "RUN", "STATE"), rows, context.paint)


def _state(sink: Document) -> str:
    if error := sink.get("error"):
        return cell(error)
    return "ok" if sink.get("is_configured") else "not configured at this server"


def _shown(context: Context, sink: Document) -> str:
    named = ("name", "position", "head", "lag_events", "lag_seconds", "waiting", "dead", "run_at")
    text = fields([*((name, sink.get(name)) for name in named), ("state", _state(sink))], context.paint)
    entries = items_of(sink, "entries")
    if not entries:
        return text
    heads = ("POS", "STREAM", "SUBJECT", "TRIES", "NEXT", "DEAD", "ERROR")
    wanted = ("pos", "stream", "subject", "attempts", "next_at", "dead_at", "error")
    rows = [[entry.get(name) for name in wanted] for entry in entries]
    return f"{text}\n\n{table(heads, rows, context.paint)}"
