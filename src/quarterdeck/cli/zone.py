"""`qd zone`: create, list, show, quotas, freeze, thaw, stop, delete."""

from __future__ import annotations

import sys
from typing import TextIO

from quarterdeck.cli.command_table import ID, LIMIT, REASON_OPTION, TEXT, Argument, Group, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import usage_error
from quarterdeck.cli.list_output import Column, field_lines, format_table, load_all, nested
from quarterdeck.cli.output import table
from quarterdeck.cli.receipt import RECEIPT_EXIT_HELP, RECEIPT_OPTION, delete_and_print, print_receipt
from quarterdeck.client.api import Document, build_path
from quarterdeck.core.errors import Invalid

GROUP = Group("zone", "Manage zones, which are tenants. Every object belongs to exactly one zone.")


_CONFIRM_HELP = (
    "On a terminal you confirm by typing the zone's id. Without a terminal, or to skip this, give --yes. "
    + RECEIPT_EXIT_HELP
)
_REQUIRED_ZONE = Argument("target", "ZONE", ID)
_ZONE = _REQUIRED_ZONE._replace(required=False)
_LIMIT_OPTION = Option("--set", "Limit to set; repeatable. NAME=default resets the limit.", LIMIT, many=True)
_YES_OPTION = Option("--yes", "Do not ask for confirmation.")


@GROUP.command(
    "create", "Create a zone.", _REQUIRED_ZONE, Option("--name", "Display name.", TEXT, field="name"), _LIMIT_OPTION
)
def create(context: Context) -> None:
    zone = context.required_text("target")
    reply = context.server().call("PUT", _path(context), body=context.body(quotas=_limits(context) or None))
    context.show(reply.document, f"Created zone {zone}." if reply.status == 201 else f"Zone {zone} already exists.")


@GROUP.command("list", "List all zones.")
def list_(context: Context) -> None:
    # Load all pages: a user who is looking for a zone must not mistake one page for the full list.
    zones = load_all(context.server(), "/zones")
    context.show({"items": zones}, lambda _: format_table(context, _COLUMNS, zones))


@GROUP.command("show", "Show one zone.", _ZONE)
def show(context: Context) -> None:
    context.send("GET", _path(context), field_lines(context))


@GROUP.command("quotas", "Show or set the quotas of a zone.", _ZONE, _LIMIT_OPTION)
def quotas(context: Context) -> None:
    path, limits = _path(context, "quotas"), _limits(context)
    document = context.send(
        "PUT" if limits else "GET", path, lambda quotas: _quota_table(context, quotas), body=limits or None
    )
    if document.get("frozen"):
        context.hint("The zone is frozen: no new sessions are admitted, whatever the quotas allow.")


@GROUP.command("freeze", "Block new sessions in a zone. Live sessions continue.", _ZONE)
def freeze(context: Context) -> None:
    zone = _target_zone(context)
    context.send("POST", _path(context, "freeze"), f"Froze zone {zone}. Undo with `qd zone thaw {zone}`.")


@GROUP.command("thaw", "Allow new sessions in a frozen zone again.", _ZONE)
def thaw(context: Context) -> None:
    context.send("POST", _path(context, "thaw"), f"Thawed zone {_target_zone(context)}.")


@GROUP.command(
    "stop",
    "Terminate all sessions of a zone and freeze it.",
    _REQUIRED_ZONE,
    REASON_OPTION,
    _YES_OPTION,
    description=_CONFIRM_HELP,
)
def stop(context: Context) -> int:
    _confirm(context, "terminates all sessions of the zone and blocks new ones until it is thawed")
    return print_receipt(context, context.server().call("POST", _path(context, "stop"), query=context.query()).document)


@GROUP.command(
    "delete",
    "Delete a zone permanently.",
    _REQUIRED_ZONE,
    REASON_OPTION,
    RECEIPT_OPTION,
    _YES_OPTION,
    description=_CONFIRM_HELP,
)
def delete(context: Context) -> int | None:
    _confirm(context, "deletes the zone and all its sessions permanently; its id cannot be used again")
    zone = context.required_text("target")
    return delete_and_print(context, _path(context), {"id": zone, "status": "ended"}, f"Deleted zone {zone}.")


def _confirm(context: Context, effect: str) -> None:
    """Raise unless the user confirms by typing the zone's id: a `y` would be typed too easily."""
    if context.flag("yes"):
        return
    zone = context.required_text("target")
    command = " ".join(context.parsed.command.words)
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        raise usage_error(f"`qd {command} {zone}` {effect}. Give --yes: this is not a terminal.")
    # Close the connection before the prompt: the server may drop it while the user types.
    server = context.server()
    live_sessions = nested(server.get(_path(context, "quotas")), "used").get("sessions")
    server.connection.close()
    session_count = str(live_sessions) if isinstance(live_sessions, int) else "unknown"
    context.note(f"This {effect}. Live sessions: {session_count}.")
    sys.stderr.write("    To confirm, type the zone's id: ")
    sys.stderr.flush()
    typed_id = sys.stdin.readline()
    if not typed_id.endswith("\n"):
        sys.stderr.write("\n")  # after end of input the cursor is still on the line of the prompt
    if typed_id.strip() != zone:
        raise Invalid("not_confirmed", f"The id does not match. Zone {zone} was not changed.")


def _is_terminal(stream: TextIO | None) -> bool:
    # None: the stream was closed before the process started.
    return stream is not None and stream.isatty()


def _target_zone(context: Context) -> str:
    """Return the zone from the argument or, if it is not given, the zone of the context."""
    return context.text("target") or context.zone


def _path(context: Context, *segments: str) -> str:
    return build_path("zones", _target_zone(context), *segments)


def _limits(context: Context) -> Document:
    return {pair[0]: pair[1] for pair in context.values("set") if isinstance(pair, tuple)}


def _state(zone: Document) -> str:
    # A deleted zone is frozen too: "ended" takes precedence.
    return "ended" if zone.get("ended_at") else "frozen" if zone.get("frozen") else "open"


def _quota_table(context: Context, document: Document) -> str:
    """Format the limits. Only limits of the whole zone have a USED value, not those per tree or per session."""
    limits, used, overrides = (nested(document, name) for name in ("limits", "used", "overrides"))
    rows = [
        [
            name,
            limit,
            used.get(name, used.get(name.removeprefix("max_"))),
            "this zone" if name in overrides else "default",
        ]
        for name, limit in limits.items()
    ]
    return table(("QUOTA", "LIMIT", "USED", "SET BY"), rows, context.styler)


_COLUMNS = (
    Column("ZONE", "id"),
    Column("NAME", "name"),
    Column("STATE", lambda zone, _: _state(zone)),
    Column("CREATED", "created_at"),
)
