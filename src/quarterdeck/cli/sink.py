"""`qd sink` and `qd redis`: delivery of the event log, and the mirror of tasks and agents in Redis."""

from __future__ import annotations

from quarterdeck.cli.command_table import ID, NUMBER, Argument, Group, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import usage_error
from quarterdeck.cli.list_output import Column, field_lines, fields_and_table, print_items
from quarterdeck.cli.output import cell
from quarterdeck.client.api import Document, build_path, page_items
from quarterdeck.core.errors import EXIT_FAILED

SINK = Group("sink", "Manage sinks, which deliver the event log to other systems.")
REDIS = Group("redis", "Manage the mirror of tasks and agents in Redis.")
GROUPS = (SINK, REDIS)


@SINK.command("list", "List sinks and their lag.")
def list_(context: Context) -> None:
    print_items(context, "/sinks", _COLUMNS, "No sinks. Set REDIS_URL on a server to configure one.")


@SINK.command("show", "Show one sink with its waiting and dead entries.", Argument("name", "NAME", ID))
def show(context: Context) -> None:
    context.send("GET", _path(context), lambda sink: _format_sink(context, sink))


@SINK.command(
    "requeue",
    "Retry dead entries.",
    Argument("name", "NAME", ID),
    Option("--pos", "Retry the dead entries of the event at this position.", NUMBER, field="pos"),
    Option("--all", "Retry all dead entries.", field="all"),
)
def requeue(context: Context) -> None:
    if (context.number("pos") is None) != context.flag("all"):
        raise usage_error("Give --pos N or --all.")
    context.send(
        "POST",
        f"{_path(context)}/requeue",
        lambda reply: f"Requeued entries: {cell(reply.get('requeued'))}.",
        body=context.body(),
    )


def _path(context: Context) -> str:
    return build_path("sinks", context.required_text("name"))


def _state(sink: Document) -> str:
    if error := sink.get("error"):
        return cell(error)
    return "ok" if sink.get("is_configured") else "not configured on this server"


def _format_sink(context: Context, sink: Document) -> str:
    field_names = ("name", "position", "head", "lag_events", "lag_seconds", "waiting", "dead", "run_at")
    pairs = [*((name, sink.get(name)) for name in field_names), ("state", _state(sink))]
    return fields_and_table(context, pairs, _ENTRY_COLUMNS, page_items(sink, "entries"))


_COLUMNS = (
    Column("NAME", "name"),
    Column("POSITION", "position"),
    Column("LAG", "lag_events"),
    Column("LAG SECONDS", "lag_seconds"),
    Column("WAITING", "waiting"),
    Column("DEAD", "dead"),
    Column("LAST RUN", "run_at"),
    Column("STATE", lambda sink, _: _state(sink)),
)
_ENTRY_COLUMNS = (
    Column("POS", "pos"),
    Column("STREAM", "stream"),
    Column("SUBJECT", "subject"),
    Column("ATTEMPTS", "attempts"),
    Column("NEXT ATTEMPT", "next_at"),
    Column("DEAD SINCE", "dead_at"),
    Column("ERROR", "error"),
)


@REDIS.command("status", "Show the state of the mirror. Exits 1 if it is not complete.")
def status(context: Context) -> int:
    return _print_mirror(context, "GET", "/redis")


@REDIS.command(
    "rebuild",
    "Rewrite all keys of the mirror.",
    description=(
        "Writes all keys from the database and deletes keys for objects that are not in it. Readers see no "
        "gap during the rebuild. Exits 1 if it takes longer than 14 seconds: the rebuild then continues in "
        "the server, and `qd redis status` shows its state."
    ),
)
def rebuild(context: Context) -> int:
    return _print_mirror(context, "POST", "/redis/rebuild", body={})


def _print_mirror(context: Context, method: str, path: str, body: Document | None = None) -> int:
    mirror = context.send(method, path, field_lines(context, "state", "written", "repairs"), body=body)
    return 0 if mirror.get("state") == "whole" else EXIT_FAILED
