"""Zones: create, list, show, the quotas in force, freeze, thaw, and the big red button."""

from __future__ import annotations

import sys
from typing import TextIO

from quarterdeck.cli.command_table import ID, LIMIT, TEXT, Argument, Command, Noun, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import Usage
from quarterdeck.cli.output import fields, table
from quarterdeck.cli.receipt import LEFT_EXITS, hand_out, sessions
from quarterdeck.client.api import Document, items_of, path_of
from quarterdeck.core.errors import Invalid

_PAGE = 500
"""As many as the server gives at once."""


def noun() -> Noun:
    named, optional = (Argument("target", "ZONE", ID),), (Argument("target", "ZONE", ID, required=False),)
    limits = Option("--set", "A limit, or NAME=default to unset it; may be repeated.", LIMIT, many=True)
    name = Option("--name", "What people call it.", TEXT)
    return Noun(
        (
            Command(("zone", "create"), "Create a zone.", create, named, (name, limits)),
            Command(("zone", "list"), "List the zones.", list_),
            Command(("zone", "show"), "Show one zone.", show, optional),
            Command(("zone", "quotas"), "Show or set what a zone may use.", quotas, optional, (limits,)),
            Command(("zone", "freeze"), "Admit no session to a zone; who runs goes on.", freeze, optional),
            Command(("zone", "thaw"), "Admit sessions to a zone again.", thaw, optional),
            Command(("zone", "stop"), "End every session of a zone, and freeze it.", stop, named, _STOP, _RED),
            Command(("zone", "delete"), "End a zone for good.", delete, named, _DELETE, _RED),
        ),
        {"zone": "The tenants: everything belongs to exactly one zone."},
    )


_RED = (
    "On a terminal it asks for the zone's name to be typed; elsewhere, and to be asked nothing, give --yes. "
    + LEFT_EXITS
)
_REASON = Option("--reason", "Why, for the record [default: requested].", TEXT)
_YES = Option("--yes", "Do it without asking.")
_STOP = (_REASON, _YES)
_DELETE = (_REASON, Option("--receipt", "Print what was stopped, and what was left."), _YES)


def create(context: Context) -> int:
    zone, limits = context.given("target"), _limits(context)
    body: Document = {}
    if context.text("name") is not None:
        body["name"] = context.text("name")
    if limits:
        body["quotas"] = limits
    reply = context.server().call("PUT", path_of("zones", zone), body=body)
    said = "created zone" if reply.status == 201 else "there already is a zone"
    context.show(reply.document, lambda told: f"{said} {zone}")
    return 0


def list_(context: Context) -> int:
    """All of them, however many pages that takes: whoever looks for a zone must not take a page for the whole."""
    items: list[object] = []
    for page in context.server().pages("/zones", {"limit": _PAGE}):
        items += items_of(page)
    context.show({"items": items}, lambda told: _table(context, items_of(told)))
    return 0


def show(context: Context) -> int:
    zone = context.server().get(path_of("zones", _target(context)))
    context.show(zone, lambda told: fields(_said(told), context.paint))
    return 0


def quotas(context: Context) -> int:
    path, limits, server = path_of("zones", _target(context), "quotas"), _limits(context), context.server()
    told = server.call("PUT", path, body=limits).document if limits else server.get(path)
    context.show(told, lambda document: _quotas(context, document))
    if told.get("frozen") and not context.as_json:
        context.note("the zone is frozen: whatever is left of these, no session is admitted")
    return 0


def freeze(context: Context) -> int:
    zone = _target(context)
    reply = context.server().call("POST", path_of("zones", zone, "freeze"))
    context.show(reply.document, lambda told: f"froze zone {zone}: `qd zone thaw {zone}` admits sessions again")
    return 0


def thaw(context: Context) -> int:
    zone = _target(context)
    reply = context.server().call("POST", path_of("zones", zone, "thaw"))
    context.show(reply.document, lambda told: f"thawed zone {zone}")
    return 0


def stop(context: Context) -> int:
    zone = context.given("target")
    _confirm(context, zone, "ends every session of the zone and admits no more until it is thawed")
    query = {"reason": context.text("reason")}
    reply = context.server().call("POST", path_of("zones", zone, "stop"), query=query)
    return hand_out(context, reply.document)


def delete(context: Context) -> int:
    zone, receipt = context.given("target"), context.flag("receipt")
    _confirm(context, zone, "ends the zone for good, with every session in it; its id is not used again")
    query = {"reason": context.text("reason"), "receipt": receipt}
    reply = context.server().call("DELETE", path_of("zones", zone), query=query)
    if receipt:
        return hand_out(context, reply.document)
    context.show({"id": zone, "status": "ended"}, lambda told: f"ended zone {zone}")
    return 0


def _confirm(context: Context, zone: str, does: str) -> None:
    """Returns if this may be done to the zone. Its name must be typed: a `y` is typed too easily, and in the wrong
    terminal."""
    if context.flag("yes"):
        return
    verb = " ".join(context.ask.command.words)
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stderr)):
        raise Usage("usage", f"`qd {verb} {zone}` {does}. There is nobody here to ask: give --yes to do it.")
    # A server of its own: the connection would go stale while the question waits.
    server = context.server()
    used = _mapping(server.get(path_of("zones", zone, "quotas")), "used").get("sessions")
    server.connection.close()
    live = sessions(used) if isinstance(used, int) else "an unknown number of sessions"
    context.note(f"this {does}. Live in it now: {live}.")
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


def _target(context: Context) -> str:
    """The zone named as an argument, else the one this command works in anyway."""
    return context.text("target") or context.zone


def _limits(context: Context) -> Document:
    return {pair[0]: pair[1] for pair in context.many("set") if isinstance(pair, tuple)}


def _table(context: Context, zones: list[Document]) -> str:
    rows = [[zone.get("id"), zone.get("name"), _state(zone), zone.get("created_at")] for zone in zones]
    return table(("ZONE", "NAME", "STATE", "CREATED"), rows, context.paint)


def _state(zone: Document) -> str:
    """In one word. What has ended is frozen as well, and nobody wants to know."""
    return "ended" if zone.get("ended_at") else "frozen" if zone.get("frozen") else "open"


def _said(zone: Document) -> list[tuple[str, object]]:
    return [(name, value) for name, value in zone.items() if value is not None]


def _quotas(context: Context, told: Document) -> str:
    """What counts in the whole zone has a number used; what counts per tree or per session has none of
    its own."""
    limits, used, own = (_mapping(told, name) for name in ("limits", "used", "overrides"))
    rows = [
        [name, limit, used.get(name, used.get(name.removeprefix("max_"))), "this zone" if name in own else "default"]
        for name, limit in limits.items()
    ]
    return table(("QUOTA", "LIMIT", "USED", "SET BY"), rows, context.paint)


def _mapping(document: Document, name: str) -> Document:
    value = document.get(name)
    return value if isinstance(value, dict) else {}
