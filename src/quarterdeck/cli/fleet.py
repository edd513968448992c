"""`qd fleet`: create, list, show, delete."""

from __future__ import annotations

from quarterdeck.cli.command_table import FLEET_ID, TEXT, Argument, Group, Option, key_option
from quarterdeck.cli.context import Context
from quarterdeck.cli.fleet_common import (
    CODING_AGENT,
    FULL_OPTION,
    PANE_CLOSE_SECONDS,
    current_pane,
    fleets_path,
    pick_fields,
    require_fleet_id,
    with_fleet_errors,
)
from quarterdeck.cli.list_output import Column, format_table, load_all, nested
from quarterdeck.cli.output import cell, fields
from quarterdeck.client.api import Document

GROUP = Group(
    "fleet",
    "Manage fleets of coding agents. A fleet has a director, members and an administrator.",
    wrap=with_fleet_errors,
)


@GROUP.command(
    "create",
    "Create a fleet and become its director.",
    Option("--label", "Label of the fleet.", TEXT, field="label"),
    Option(
        "--coding-agent", "Coding agent that runs in this pane [default: claude].", CODING_AGENT, field="coding_agent"
    ),
    Option("--no-pane", "Register the director without a pane, even inside tmux."),
    key_option("fleet"),
    FULL_OPTION,
    description=(
        "Prints the ids of the fleet, its director and its administrator. Inside tmux, this pane shows a "
        "notice when the director gets a message. Outside tmux, the director has no pane and must poll for "
        "messages."
    ),
)
def create(context: Context) -> None:
    pane = None if context.flag("no_pane") else current_pane(context)
    if pane is None and not context.flag("no_pane"):
        context.hint("Not inside tmux, so the director has no pane. Use --no-pane to hide this note.")
    reply = context.server().call("POST", fleets_path(), body=context.body(pane=pane), key=context.idempotency_key())
    if context.flag("full"):
        context.show(reply.document, lambda fleet: _format_details(context, fleet))
    else:
        names = ("fleet_id", "label", "created_at", "administrator_agent_id", "director")
        context.show(pick_fields(reply.document, *names), _format_created)


@GROUP.command("list", "List fleets, newest first.", Option("--deleted", "Include deleted fleets."))
def list_(context: Context) -> None:
    fleets = load_all(context.server(), fleets_path(), "fleets", 200, deleted=context.flag("deleted"))
    documents: list[Document] = [
        {
            **pick_fields(fleet, "fleet_id", "label", "created_at", "deleted_at"),
            "director_agent_id": _director_id(fleet),
            **pick_fields(fleet, "members"),
        }
        for fleet in fleets
    ]
    context.show(documents, lambda items: format_table(context, _COLUMNS, items, "No fleets found."))


@GROUP.command("show", "Show one fleet.", Argument("id", "ID", FLEET_ID, required=False))
def show(context: Context) -> None:
    fleet_id = context.number("id") or require_fleet_id(context)
    context.send("GET", fleets_path(fleet_id), lambda fleet: _format_details(context, fleet))


@GROUP.command(
    "delete",
    "Delete a fleet and close its panes. This cannot be undone.",
    Argument("id", "ID", FLEET_ID),
    Option("--keep-panes", "Leave the members' panes open.", field="keep_panes"),
    description=(
        "Closes the panes of all members and deregisters them. Messages are kept. If a pane cannot be closed "
        "or the server stops, run the command again to finish the deletion. Ctrl-C does not stop the "
        "deletion."
    ),
)
def delete(context: Context) -> None:
    fleet_id = context.number("id")
    # The server responds only after the panes have closed.
    server = context.server(extra_seconds=PANE_CLOSE_SECONDS)
    deletion = server.call("DELETE", fleets_path(fleet_id), query=context.query()).document
    context.show(deletion, f"Deleted fleet {fleet_id}. Deregistered {cell(deletion.get('deregistered_count'))} agents.")
    closed, still_open = deletion.get("panes_closed"), deletion.get("panes_left")
    if closed or still_open:
        context.hint(
            f"Panes: {cell(closed)} closed, {cell(still_open)} left open. The director's pane is never closed."
        )


def _director_id(fleet: Document) -> object:
    return nested(fleet, "director").get("agent_id")


def _format_created(fleet: Document) -> str:
    fleet_id, administrator_id = cell(fleet["fleet_id"]), cell(fleet["administrator_agent_id"])
    return f"{fleet_id} director={cell(_director_id(fleet))} admin={administrator_id}"


def _format_details(context: Context, document: Document) -> str:
    """Format all fields. The name of a nested field includes its parents: `director.placement.tmux_pane_id`."""
    return fields(_flatten(document, ""), context.styler)


def _flatten(document: Document, prefix: str) -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for name, value in document.items():
        pairs += _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]
    return pairs


_COLUMNS = (
    Column("ID", "fleet_id"),
    Column("DIRECTOR", "director_agent_id"),
    Column("MEMBERS", "members"),
    Column("CREATED", "created_at"),
    Column("LABEL", "label"),
)
