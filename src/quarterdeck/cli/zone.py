"""Zones: create, list, show, and the quotas in force."""

from __future__ import annotations

from quarterdeck.cli.context import Context
from quarterdeck.cli.output import fields, table
from quarterdeck.cli.table import ID, LIMIT, TEXT, Argument, Command, Noun, Option
from quarterdeck.client.server import Document, items_of, path_of

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
        ),
        {"zone": "The tenants: everything belongs to exactly one zone."},
    )


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
    return 0


def _target(context: Context) -> str:
    """The zone named as an argument, else the one this command works in anyway."""
    return context.text("target") or context.zone


def _limits(context: Context) -> Document:
    return {pair[0]: pair[1] for pair in context.many("set") if isinstance(pair, tuple)}


def _table(context: Context, zones: list[Document]) -> str:
    rows = [[zone.get("id"), zone.get("name"), zone.get("created_at")] for zone in zones]
    return table(("ZONE", "NAME", "CREATED"), rows, context.paint)


def _said(zone: Document) -> list[tuple[str, object]]:
    return [(name, value) for name, value in zone.items() if value is not None]


def _quotas(context: Context, told: Document) -> str:
    """What counts in the whole zone has a number used; what counts per tree or per session has none of
    its own."""
    limits, used, own = (_mapping(told, name) for name in ("limits", "used", "overrides"))
    rows = [
        [
            name,
            limit,
            used.get(name, used.get(name.removeprefix("max_"))),
            "this zone" if name in own else "default",
        ]
        for name, limit in limits.items()
    ]
    return table(("QUOTA", "LIMIT", "USED", "SET BY"), rows, context.paint)


def _mapping(document: Document, name: str) -> Document:
    value = document.get(name)
    return value if isinstance(value, dict) else {}
