"""Fleets: create, list, show, delete."""

from __future__ import annotations

import os

from quarterdeck.cli.command_table import FLEET, TEXT, Argument, Command, Noun, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.fleet_common import CODING_AGENTS, FULL, PANES_SECONDS, fleet, fleets, pane, picked, plainly, tell
from quarterdeck.cli.input import without_nothing
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document, items_of


def noun() -> Noun:
    one, perhaps = Argument("id", "ID", FLEET), Argument("id", "ID", FLEET, required=False)
    return Noun(
        (
            Command(
                ("fleet", "create"),
                "Create a fleet, with you as its director.",
                plainly(create),
                options=_CREATE,
                description=_CREATING,
            ),
            Command(("fleet", "list"), "List fleets, newest first.", plainly(list_), options=(_DELETED,)),
            Command(("fleet", "show"), "Show one fleet.", plainly(show), (perhaps,)),
            Command(
                ("fleet", "delete"),
                "Delete a fleet for good, and close its panes.",
                plainly(delete),
                (one,),
                _DELETE,
                _DELETING,
            ),
        ),
        {"fleet": "Teams of coding agents: a director, its members, an administrator."},
    )


_CREATE = (
    Option("--label", "What it is for.", TEXT),
    Option("--coding-agent", "What runs in this pane [default: claude].", CODING_AGENTS),
    Option("--no-pane", "A director without a pane, also inside tmux."),
    Option("--key", "Idempotency key: repeating the command gives the same fleet.", TEXT),
    FULL,
)
_CREATING = """Prints the ids of the fleet, its director and its administrator. Inside tmux the director is this pane,
and is told there of what it is sent; elsewhere it has none, and polls."""
_DELETED = Option("--deleted", "Also those that were deleted.")
_DELETE = (Option("--keep-panes", "Leave the panes of its members open."),)
_DELETING = """The panes of its members are closed, then all are deregistered; its messages stay. If a pane cannot be
closed, or the server ends meanwhile, doing it again goes on with those that are left. Ctrl-C stops nothing."""


def create(context: Context) -> int:
    where = None if context.flag("no_pane") else pane(context)
    if where is None and not context.flag("no_pane") and not context.as_json:
        context.note("this is not inside tmux: the director has no pane (--no-pane says the same)")
    said = {"label": context.text("label"), "coding_agent": context.text("coding_agent"), "pane": where}
    key = context.text("key") or f"qd-{os.urandom(16).hex()}"
    told = context.server().call("POST", fleets(), body=without_nothing(said), key=key).document
    names = ("fleet_id", "label", "created_at", "administrator_agent_id", "director")
    full = context.flag("full")
    tell(context, told if full else picked(told, *names), lambda: _in_full(context, told) if full else _made(told))
    return 0


def list_(context: Context) -> int:
    found = _every(context)
    rows = [
        {**picked(one, "fleet_id", "label", "created_at", "deleted_at"), **_director(one), **picked(one, "members")}
        for one in found
    ]
    heads = ("ID", "DIRECTOR", "MEMBERS", "CREATED", "LABEL")
    names = ("fleet_id", "director_agent_id", "members", "created_at", "label")
    tell(
        context,
        rows,
        lambda: (
            table(heads, [[one[name] for name in names] for one in rows], context.paint) if rows else "No fleets found."
        ),
    )
    return 0


def show(context: Context) -> int:
    number = context.number("id") or fleet(context)
    found = context.server().get(fleets(number))
    tell(context, found, lambda: _in_full(context, found))
    return 0


def delete(context: Context) -> int:
    number = context.number("id")
    assert number is not None  # both parsers refuse a line without it
    server = context.server()
    # Its panes are closed meanwhile, and they are waited for.
    server.connection.timeout += PANES_SECONDS
    told = server.call("DELETE", fleets(number), query={"keep_panes": context.flag("keep_panes")}).document
    tell(context, told, lambda: f"Deleted fleet {number}. Deregistered {cell(told.get('deregistered_count'))} agents.")
    closed, left = told.get("panes_closed"), told.get("panes_left")
    if (closed or left) and not context.as_json:
        context.note(f"panes: {cell(closed)} closed, {cell(left)} left; a director's own stays")
    return 0


def _every(context: Context) -> list[Document]:
    pages = context.server().pages(fleets(), {"deleted": context.flag("deleted"), "limit": 200})
    return [one for page in pages for one in items_of(page, "fleets")]


def _director(one: Document) -> Document:
    director = one.get("director")
    return {"director_agent_id": director.get("agent_id") if isinstance(director, dict) else None}


def _made(told: Document) -> str:
    director = _director(told)["director_agent_id"]
    return f"{cell(told.get('fleet_id'))} director={cell(director)} admin={cell(told.get('administrator_agent_id'))}"


def _in_full(context: Context, told: Document) -> str:
    """What is within another thing is named with it: `director.placement.tmux_pane_id`."""
    return fields(_flat(told, ""), context.paint)


def _flat(told: Document, prefix: str) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for name, value in told.items():
        pairs += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]
    return pairs
