"""`qd sink`: list, show, requeue."""

from __future__ import annotations

from quarterdeck.cli.command_table import ID, NUMBER, Argument, Command, CommandTable, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document, build_path, page_items


def build_command_table() -> CommandTable:
    name_argument = (Argument("name", "NAME", ID),)
    return CommandTable(
        (
            Command(("sink", "list"), "List sinks and their lag.", list_),
            Command(("sink", "show"), "Show one sink with its waiting and dead entries.", show, name_argument),
            Command(("sink", "requeue"), "Retry dead entries.", requeue, name_argument, _REQUEUE_OPTIONS),
        ),
        {"sink": "Manage sinks, which deliver the event log to other systems."},
    )


_REQUEUE_OPTIONS = (
    Option("--pos", "Retry the dead entries of the event at this position.", NUMBER),
    Option("--all", "Retry all dead entries."),
)


def list_(context: Context) -> int:
    page = context.server().get("/sinks", {})
    context.show(page, lambda _: _table(context, page_items(page)))
    return 0


def show(context: Context) -> int:
    context.show(context.server().get(_path(context), {}), lambda sink: _format_sink(context, sink))
    return 0


def requeue(context: Context) -> int:
    pos, requeue_all = context.number("pos"), context.flag("all")
    if (pos is None) != requeue_all:
        raise UsageError("usage", "Give --pos N or --all.")
    body: Document = {"all": True} if pos is None else {"pos": pos}
    reply = context.server().call("POST", f"{_path(context)}/requeue", body=body)
    context.show(reply.document, lambda document: f"Requeued entries: {cell(document.get('requeued'))}.")
    return 0


def _path(context: Context) -> str:
    return build_path("sinks", context.required_text("name"))


def _table(context: Context, sinks: list[Document]) -> str:
    if not sinks:
        return "No sinks. Set REDIS_URL on a server to configure one."
    field_names = ("name", "position", "lag_events", "lag_seconds", "waiting", "dead", "run_at")
    rows = [[*(sink.get(name) for name in field_names), _state(sink)] for sink in sinks]
    return table(
        ("NAME", "POSITION", "LAG", "LAG SECONDS", "WAITING", "DEAD", "LAST RUN", "STATE"), rows, context.styler
    )


def _state(sink: Document) -> str:
    if error := sink.get("error"):
        return cell(error)
    return "ok" if sink.get("is_configured") else "not configured on this server"


def _format_sink(context: Context, sink: Document) -> str:
    field_names = ("name", "position", "head", "lag_events", "lag_seconds", "waiting", "dead", "run_at")
    text = fields([*((name, sink.get(name)) for name in field_names), ("state", _state(sink))], context.styler)
    entries = page_items(sink, "entries")
    if not entries:
        return text
    headers = ("POS", "STREAM", "SUBJECT", "ATTEMPTS", "NEXT ATTEMPT", "DEAD SINCE", "ERROR")
    entry_fields = ("pos", "stream", "subject", "attempts", "next_at", "dead_at", "error")
    rows = [[entry.get(name) for name in entry_fields] for entry in entries]
    return f"{text}\n\n{table(headers, rows, context.styler)}"
