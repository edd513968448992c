"""Zones: create, list, show, the quotas in force, freeze, thaw, and the big red button."""

from __future__ import annotations

import sys
from typing import TextIO

from quarterdeck.cli.command_table import ID, LIMIT, TEXT, Argument, Command, CommandTable, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.output import fields, table
from quarterdeck.cli.receipt import RECEIPT_EXIT_HELP, format_session_count, print_receipt
from quarterdeck.client.api import Document, build_path, page_items
from quarterdeck.core.errors import Invalid

_PAGE_SIZE = 500
"""As many as the server gives at once."""


def build_command_table() -> CommandTable:
    zone_argument, optional_zone_argument = (
        (Argument("target", "ZONE", ID),),
        (Argument("target", "ZONE", ID, required=False),),
    )
    limit_option = Option("--set", "A limit, or NAME=default to unset it; may be repeated.", LIMIT, many=True)
    name_option = Option("--name", "What people call it.", TEXT)
    return CommandTable(
        (
            Command(("zone", "create"), "Create a zone.", create, zone_argument, (name_option, limit_option)),
            Command(("zone", "list"), "List the zones.", list_),
            Command(("zone", "show"), "Show one zone.", show, optional_zone_argument),
            Command(
                ("zone", "quotas"), "Show or set what a zone may use.", quotas, optional_zone_argument, (limit_option,)
            ),
            Command(
                ("zone", "freeze"), "Admit no session to a zone; who runs goes on.", freeze, optional_zone_argument
            ),
            Command(("zone", "thaw"), "Admit sessions to a zone again.", thaw, optional_zone_argument),
            Command(
                ("zone", "stop"),
                "End every session of a zone, and freeze it.",
                stop,
                zone_argument,
                _STOP_OPTIONS,
                _CONFIRM_HELP,
            ),
            Command(("zone", "delete"), "End a zone for good.", delete, zone_argument, _DELETE_OPTIONS, _CONFIRM_HELP),
        ),
        {"zone": "The tenants: everything belongs to exactly one zone."},
    )


_CONFIRM_HELP = (
    "On a terminal it asks for the zone's name to be typed; elsewhere, and to be asked nothing, give --yes. "
    + RECEIPT_EXIT_HELP
)
_REASON_OPTION = Option("--reason", "Why, for the record [default: requested].", TEXT)
_YES_OPTION = Option("--yes", "Do it without asking.")
_STOP_OPTIONS = (_REASON_OPTION, _YES_OPTION)
_DELETE_OPTIONS = (_REASON_OPTION, Option("--receipt", "Print what was stopped, and what was left."), _YES_OPTION)


def create(context: Context) -> int:
    zone, limits = context.required_text("target"), _limits(context)
    body: Document = {}
    if context.text("name") is not None:
        body["name"] = context.text("name")
    if limits:
        body["quotas"] = limits
    reply = context.server().call("PUT", build_path("zones", zone), body=body)
    outcome = "created zone" if reply.status == 201 else "there already is a zone"
    context.show(reply.document, lambda document: f"{outcome} {zone}")
    return 0


def list_(context: Context) -> int:
    """All of them, however many pages that takes: whoever looks for a zone must not take a page for the whole."""
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
        context.note("the zone is frozen: whatever is left of these, no session is admitted")
    return 0


def freeze(context: Context) -> int:
    zone = _target_zone(context)
    reply = context.server().call("POST", build_path("zones", zone, "freeze"))
    context.show(reply.document, lambda document: f"froze zone {zone}: `qd zone thaw {zone}` admits sessions again")
    return 0


def thaw(context: Context) -> int:
    zone = _target_zone(context)
    reply = context.server().call("POST", build_path("zones", zone, "thaw"))
    context.show(reply.document, lambda document: f"thawed zone {zone}")
    return 0


def stop(context: Context) -> int:
    zone = context.required_text("target")
    _confirm(context, zone, "ends every session of the zone and admits no more until it is thawed")
    query = {"reason": context.text("reason")}
    reply = context.server().call("POST", build_path("zones", zone, "stop"), query=query)
    return print_receipt(context, reply.document)


def delete(context: Context) -> int:
    zone, receipt = context.required_text("target"), context.flag("receipt")
    _confirm(context, zone, "ends the zone for good, with every session in it; its id is not used again")
    query = {"reason": context.text("reason"), "receipt": receipt}
    reply = context.server().call("DELETE", build_path("zones", zone), query=query)
    if receipt:
        return print_receipt(context, reply.document)
    context.show({"id": zone, "status": "ended"}, lambda document: f"ended zone {zone}")
    return 0


def _confirm(context: Context, zone: str, effect: str) -> None:
    """Returns if this may be done to the zone. Its name must be typed: a `y` is typed too easily, and in the wrong
    terminal."""
    if context.flag("yes"):
        return
    command = " ".join(context.parsed.command.words)
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        raise UsageError("usage", f"`qd {command} {zone}` {effect}. There is nobody here to ask: give --yes to do it.")
    # A server of its own: the connection would go stale while the question waits.
    server = context.server()
    used = _mapping(server.get(build_path("zones", zone, "quotas")), "used").get("sessions")
    server.connection.close()
    session_count = format_session_count(used) if isinstance(used, int) else "an unknown number of sessions"
    context.note(f"this {effect}. Live in it now: {session_count}.")
    sys.stderr.write("    To go on, type the zone's name: ")
    sys.stderr.flush()
    typed = sys.stdin.readline()
    if not typed.endswith("\n"):
        sys.stderr.write("\n")  # the end of the input left the cursor behind the question
    if typed.strip() != zone:
        raise Invalid("not_confirmed", f"That is not the zone's name: nothing was done to {zone}.")


def _is_terminal(stream: TextIO | None) -> bool:
    # None: the stream was closed before we began.
    return stream is not None and stream.isatty()


def _target_zone(context: Context) -> str:
    """The zone named as an argument, else the one this command works in anyway."""
    return context.text("target") or context.zone


def _limits(context: Context) -> Document:
    return {pair[0]: pair[1] for pair in context.values("set") if isinstance(pair, tuple)}


def _table(context: Context, zones: list[Document]) -> str:
    rows = [[zone.get("id"), zone.get("name"), _state(zone), zone.get("created_at")] for zone in zones]
    return table(("ZONE", "NAME", "STATE", "CREATED"), rows, context.styler)


def _state(zone: Document) -> str:
    """In one word. What has ended is frozen as well, and nobody wants to know."""
    return "ended" if zone.get("ended_at") else "frozen" if zone.get("frozen") else "open"


def _zone_fields(zone: Document) -> list[tuple[str, object]]:
    return [(name, value) for name, value in zone.items() if value is not None]


def _quota_table(context: Context, document: Document) -> str:
    """What counts in the whole zone has a number used; what counts per tree or per session has none of
    its own."""
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
