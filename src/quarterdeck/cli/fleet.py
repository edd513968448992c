"""`qd fleet`: create, list, show, delete."""

from __future__ import annotations

import os

from quarterdeck.cli.command_table import FLEET_ID, TEXT, Argument, Command, CommandTable, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.fleet_common import (
    CODING_AGENT,
    FULL_OPTION,
    PANE_CLOSE_SECONDS,
    current_pane,
    fleets_path,
    pick_fields,
    print_result,
    require_fleet_id,
    with_fleet_errors,
)
from quarterdeck.cli.input import without_none
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document, page_items


def build_command_table() -> CommandTable:
    id_argument, optional_id_argument = Argument("id", "ID", FLEET_ID), Argument("id", "ID", FLEET_ID, required=False)
    return CommandTable(
        (
            Command(
                ("fleet", "create"),
                "Create a fleet and become its director.",
                with_fleet_errors(create),
                options=_CREATE_OPTIONS,
                description=_CREATE_HELP,
            ),
            Command(
                ("fleet", "list"), "List fleets, newest first.", with_fleet_errors(list_), options=(_DELETED_OPTION,)
            ),
            Command(("fleet", "show"), "Show one fleet.", with_fleet_errors(show), (optional_id_argument,)),
            Command(
                ("fleet", "delete"),
                "Delete a fleet and close its panes. This cannot be undone.",
                with_fleet_errors(delete),
                (id_argument,),
                _DELETE_OPTIONS,
                _DELETE_HELP,
            ),
        ),
        {"fleet": "Manage fleets of coding agents. A fleet has a director, members and an administrator."},
    )


_CREATE_OPTIONS = (
    Option("--label", "Label of the fleet.", TEXT),
    Option("--coding-agent", "Coding agent that runs in this pane [default: claude].", CODING_AGENT),
    Option("--no-pane", "Register the director without a pane, even inside tmux."),
    Option("--key", "Idempotency key: the same key returns the same fleet.", TEXT),
    FULL_OPTION,
)
_CREATE_HELP = """Prints the ids of the fleet, its director and its administrator. Inside tmux, this pane shows a
notice when the director gets a message. Outside tmux, the director has no pane and must poll for messages."""
_DELETED_OPTION = Option("--deleted", "Include deleted fleets.")
_DELETE_OPTIONS = (Option("--keep-panes", "Leave the members' panes open."),)
_DELETE_HELP = """Closes the panes of all members and deregisters them. Messages are kept. If a pane cannot be closed or
the server stops, run the command again to finish the deletion. Ctrl-C does not stop the deletion."""


def create(context: Context) -> int:
    pane = None if context.flag("no_pane") else current_pane(context)
    if pane is None and not context.flag("no_pane") and not context.as_json:
        context.note("Not inside tmux, so the director has no pane. Use --no-pane to hide this note.")
    body = {"label": context.text("label"), "coding_agent": context.text("coding_agent"), "pane": pane}
    key = context.text("key") or f"qd-{os.urandom(16).hex()}"
    document = context.server().call("POST", fleets_path(), body=without_none(body), key=key).document
    names = ("fleet_id", "label", "created_at", "administrator_agent_id", "director")
    is_full = context.flag("full")
    print_result(
        context,
        document if is_full else pick_fields(document, *names),
        lambda: _format_details(context, document) if is_full else _format_created(document),
    )
    return 0


def list_(context: Context) -> int:
    fleets = _load_fleets(context)
    rows = [
        {
            **pick_fields(fleet, "fleet_id", "label", "created_at", "deleted_at"),
            **_director_fields(fleet),
            **pick_fields(fleet, "members"),
        }
        for fleet in fleets
    ]
    headers = ("ID", "DIRECTOR", "MEMBERS", "CREATED", "LABEL")
    names = ("fleet_id", "director_agent_id", "members", "created_at", "label")
    print_result(
        context,
        rows,
        lambda: (
            table(headers, [[fleet[name] for name in names] for fleet in rows], context.styler)
            if rows
            else "No fleets found."
        ),
    )
    return 0


def show(context: Context) -> int:
    fleet_id = context.number("id") or require_fleet_id(context)
    fleet = context.server().get(fleets_path(fleet_id))
    print_result(context, fleet, lambda: _format_details(context, fleet))
    return 0


def delete(context: Context) -> int:
    fleet_id = context.number("id")
    assert fleet_id is not None  # parsing fails if it is missing
    server = context.server()
    # The server responds only after the panes have closed.
    server.connection.timeout_seconds += PANE_CLOSE_SECONDS
    document = server.call("DELETE", fleets_path(fleet_id), query={"keep_panes": context.flag("keep_panes")}).document
    print_result(
        context,
        document,
        lambda: f"Deleted fleet {fleet_id}. Deregistered {cell(document.get('deregistered_count'))} agents.",
    )
    closed, still_open = document.get("panes_closed"), document.get("panes_left")
    if (closed or still_open) and not context.as_json:
        context.note(
            f"Panes: {cell(closed)} closed, {cell(still_open)} left open. The director's pane is never closed."
        )
    return 0


def _load_fleets(context: Context) -> list[Document]:
    pages = context.server().pages(fleets_path(), {"deleted": context.flag("deleted"), "limit": 200})
    return [fleet for page in pages for fleet in page_items(page, "fleets")]


def _director_fields(fleet: Document) -> Document:
    director = fleet.get("director")
    return {"director_agent_id": director.get("agent_id") if isinstance(director, dict) else None}


def _format_created(fleet: Document) -> str:
    director = _director_fields(fleet)["director_agent_id"]
    return f"{cell(fleet.get('fleet_id'))} director={cell(director)} admin={cell(fleet.get('administrator_agent_id'))}"


def _format_details(context: Context, document: Document) -> str:
    """Format all fields. The name of a nested field includes its parents: `director.placement.tmux_pane_id`."""
    return fields(_flatten(document, ""), context.styler)


def _flatten(document: Document, prefix: str) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for name, value in document.items():
        pairs += _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]
    return pairs
