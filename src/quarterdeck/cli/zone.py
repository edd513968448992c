"""`qd zone`: create, list, show, quotas, freeze, thaw, stop, delete."""

from __future__ import annotations

import sys
from typing import TextIO

from quarterdeck.cli.command_table import ID, LIMIT, TEXT, Argument, Command, CommandTable, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.output import fields, table
from quarterdeck.cli.receipt import RECEIPT_EXIT_HELP, print_receipt
from quarterdeck.client.api import Document, build_path, page_items
from quarterdeck.core.errors import Invalid

_PAGE_SIZE = 500
"""The server's maximum page size."""


def build_command_table() -> CommandTable:
    zone_argument, optional_zone_argument = (
        (Argument("target", "ZONE", ID),),
        (Argument("target", "ZONE", ID, required=False),),
    )
    limit_option = Option("--set", "Limit to set; repeatable. NAME=default resets the limit.", LIMIT, many=True)
    name_option = Option("--name", "Display name.", TEXT)
    return CommandTable(
        (
            Command(("zone", "create"), "Create a zone.", create, zone_argument, (name_option, limit_option)),
            Command(("zone", "list"), "List all zones.", list_),
            Command(("zone", "show"), "Show one zone.", show, optional_zone_argument),
            Command(
                ("zone", "quotas"), "Show or set the quotas of a zone.", quotas, optional_zone_argument, (limit_option,)
            ),
            Command(
                ("zone", "freeze"),
                "Block new sessions in a zone. Live sessions continue.",
                freeze,
                optional_zone_argument,
            ),
            Command(("zone", "thaw"), "Allow new sessions in a frozen zone again.", thaw, optional_zone_argument),
            Command(
                ("zone", "stop"),
                "Terminate all sessions of a zone and freeze it.",
                stop,
                zone_argument,
                _STOP_OPTIONS,
                _CONFIRM_HELP,
            ),
            Command(
                ("zone", "delete"), "Delete a zone permanently.", delete, zone_argument, _DELETE_OPTIONS, _CONFIRM_HELP
            ),
        ),
        {"zone": "Manage zones, which are tenants. Every object belongs to exactly one zone."},
    )


_CONFIRM_HELP = (
    "On a terminal you confirm by typing the zone's id. Without a terminal, or to skip this, give --yes. "
    + RECEIPT_EXIT_HELP
)
_REASON_OPTION = Option("--reason", "Reason to record [default: requested].", TEXT)
_YES_OPTION = Option("--yes", "Do not ask for confirmation.")
_STOP_OPTIONS = (_REASON_OPTION, _YES_OPTION)
_DELETE_OPTIONS = (
    _REASON_OPTION,
    Option("--receipt", "Print a receipt: how many sessions were stopped, and which were not."),
    _YES_OPTION,
)


def create(context: Context) -> int:
    zone, limits = context.required_text("target"), _limits(context)
    body: Document = {}
    if context.text("name") is not None:
        body["name"] = context.text("name")
    if limits:
        body["quotas"] = limits
    reply = context.server().call("PUT", build_path("zones", zone), body=body)
    outcome = f"Created zone {zone}." if reply.status == 201 else f"Zone {zone} already exists."
    context.show(reply.document, lambda document: outcome)
    return 0


def list_(context: Context) -> int:
    # Load all pages: a user who is looking for a zone must not mistake one page for the full list.
    items: list[object] = []
    for page in context.server().pages("/zones", {"limit": _PAGE_SIZE}):
        items += page_items(page)
    context.show({"items": items}, lambda document: _table(context, page_items(document)))
    return 0


def show(context: Context) -> int:
    zone = context.server().get(build_path("zones", _target_zone(context)))
    context.show(zone, lambda document: fields(_zone_fields(document), context.styler))
    return 0


def quotas(context: Context) -> int:
    path, limits, server = build_path("zones", _target_zone(context), "quotas"), _limits(context), context.server()
    document = server.call("PUT", path, body=limits).document if limits else server.get(path)
    context.show(document, lambda document: _quota_table(context, document))
    if document.get("frozen") and not context.as_json:
        context.note("The zone is frozen: no new sessions are admitted, whatever the quotas allow.")
    return 0


def freeze(context: Context) -> int:
    zone = _target_zone(context)
    reply = context.server().call("POST", build_path("zones", zone, "freeze"))
    context.show(reply.document, lambda document: f"Froze zone {zone}. Undo with `qd zone thaw {zone}`.")
    return 0


def thaw(context: Context) -> int:
    zone = _target_zone(context)
    reply = context.server().call("POST", build_path("zones", zone, "thaw"))
    context.show(reply.document, lambda document: f"Thawed zone {zone}.")
    return 0


def stop(context: Context) -> int:
    zone = context.required_text("target")
    _confirm(context, zone, "terminates all sessions of the zone and blocks new ones until it is thawed")
    query = {"reason": context.text("reason")}
    reply = context.server().call("POST", build_path("zones", zone, "stop"), query=query)
    return print_receipt(context, reply.document)


def delete(context: Context) -> int:
    zone, wants_receipt = context.required_text("target"), context.flag("receipt")
    _confirm(context, zone, "deletes the zone and all its sessions permanently; its id cannot be used again")
    query = {"reason": context.text("reason"), "receipt": wants_receipt}
    reply = context.server().call("DELETE", build_path("zones", zone), query=query)
    if wants_receipt:
        return print_receipt(context, reply.document)
    context.show({"id": zone, "status": "ended"}, lambda document: f"Deleted zone {zone}.")
    return 0


def _confirm(context: Context, zone: str, effect: str) -> None:
    """Raise unless the user confirms by typing the zone's id: a `y` would be typed too easily."""
    if context.flag("yes"):
        return
    command = " ".join(context.parsed.command.words)
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        raise UsageError("usage", f"`qd {command} {zone}` {effect}. Give --yes: this is not a terminal.")
    # Close the connection before the prompt: the server may drop it while the user types.
    server = context.server()
    live_sessions = _mapping(server.get(build_path("zones", zone, "quotas")), "used").get("sessions")
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


def _limits(context: Context) -> Document:
    return {pair[0]: pair[1] for pair in context.values("set") if isinstance(pair, tuple)}


def _table(context: Context, zones: list[Document]) -> str:
    rows = [[zone.get("id"), zone.get("name"), _state(zone), zone.get("created_at")] for zone in zones]
    return table(("ZONE", "NAME", "STATE", "CREATED"), rows, context.styler)


def _state(zone: Document) -> str:
    # A deleted zone is frozen too: "ended" takes precedence.
    return "ended" if zone.get("ended_at") else "frozen" if zone.get("frozen") else "open"


def _zone_fields(zone: Document) -> list[tuple[str, object]]:
    return [(name, value) for name, value in zone.items() if value is not None]


def _quota_table(context: Context, document: Document) -> str:
    """Format the limits. Only limits of the whole zone have a USED value, not those per tree or per session."""
    limits, used, overrides = (_mapping(document, name) for name in ("limits", "used", "overrides"))
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


def _mapping(document: Document, name: str) -> Document:
    value = document.get(name)
    return value if isinstance(value, dict) else {}
