"""`qd agent` with a fleet id: works on the agents of that fleet. Without one, `agent` uses the agent registry."""

from __future__ import annotations

import json

from quarterdeck.cli.command_table import MEMBER_ID, Option, ParamType
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.fleet_common import (
    AGENT_ID_OPTION,
    PANE_CLOSE_SECONDS,
    agent_id_or_none,
    fleets_path,
    non_empty_text,
    pick_fields,
    print_result,
    require_fleet_id,
    with_fleet_errors,
)
from quarterdeck.cli.output import cell, fields
from quarterdeck.client.api import ApiClient, Document, page_items


def _parse_json_array(text: str) -> list[object]:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the value is not valid JSON: {error}") from None
    if not isinstance(value, list):
        raise ValueError('the value is not a JSON array. Example: [{"name": "review"}]')
    return value


SKILLS_OPTION = Option(
    "--skills", "JSON array of the agent's skills. Needs a fleet id.", ParamType("JSON", _parse_json_array)
)


@with_fleet_errors
def register(context: Context) -> int:
    refuse_options_except(context, "--name", "--description", "--skills")
    name, description = non_empty_text(context, "name"), context.text("description")
    if context.text("id") is not None:
        raise UsageError(
            "usage", "A fleet assigns the ids of its agents. Remove ID, or use the agent registry without a fleet id."
        )
    if name is None or description is None:
        raise UsageError("usage", "Give --name and --description.")
    body: Document = {"name": name, "description": description}
    skills = context.parsed.values["skills"]
    if skills is not None:
        body["skills"] = skills
    document = context.server().call("POST", fleets_path(require_fleet_id(context), "members"), body=body).document
    print_result(
        context,
        pick_fields(document, "agent_id", "name", "registered_at"),
        lambda: f"{cell(document.get('agent_id'))} {cell(document.get('name'))}",
    )
    return 0


@with_fleet_errors
def list_(context: Context) -> int:
    # The member list of a fleet has no filters or pages.
    refuse_options_except(context, "--full", "--all")
    members = load_members(context.server(), require_fleet_id(context))
    separator = "\n\n" if context.flag("full") else "\n"
    print_result(
        context,
        [_member_document(context, member) for member in members],
        lambda: separator.join(_format_member(context, member) for member in members) or "No members found.",
    )
    return 0


@with_fleet_errors
def show(context: Context) -> int:
    member = context.server().get(fleets_path(require_fleet_id(context), "members", _agent_id(context)))
    print_result(context, _member_document(context, member), lambda: _format_member(context, member))
    return 0


@with_fleet_errors
def deregister(context: Context) -> int:
    refuse_options_except(context, "--agent-id")
    agent_id = _agent_id(context)
    server = context.server()
    # If the agent has a pane, the server responds only after the pane has closed.
    server.connection.timeout_seconds += PANE_CLOSE_SECONDS
    server.call("DELETE", fleets_path(require_fleet_id(context), "members", agent_id))
    print_result(context, {"agent_id": agent_id, "status": "deregistered"}, lambda: f"Agent {agent_id} deregistered.")
    return 0


def refuse_options_except(context: Context, *names: str) -> None:
    """Refuse options of the agent registry: ignoring them silently would mislead the user."""
    for option in context.parsed.command.options:
        if option.name not in names and _has_value(context, option):
            detail = f"{option.name} cannot be used with a fleet. Remove it, or remove --fleet-id and QD_FLEET_ID."
            raise UsageError("usage", detail)


def refuse_fleet_options(context: Context) -> None:
    """Refuse options that need a fleet id."""
    for option in context.parsed.command.options:
        if option.name in (SKILLS_OPTION.name, AGENT_ID_OPTION.name) and _has_value(context, option):
            detail = f"{option.name} needs a fleet. Give --fleet-id or set QD_FLEET_ID."
            raise UsageError("usage", detail)


def _has_value(context: Context, option: Option) -> bool:
    value = context.parsed.values[option.key]
    return value is not None and value is not False and value != ()


def load_members(server: ApiClient, fleet_id: int, **query: bool) -> list[Document]:
    """Load all members of the fleet, oldest first."""
    pages = server.pages(fleets_path(fleet_id, "members"), {**query, "limit": 500})
    return [member for page in pages for member in page_items(page, "members")]


def _agent_id(context: Context) -> int:
    """Return the agent id from the ID argument, --agent-id or QD_AGENT_ID."""
    id_text = context.text("id")
    if id_text is None:
        agent_id = agent_id_or_none(context)
        if agent_id is None:
            raise UsageError("usage", "Give the ID of an agent.")
        return agent_id
    try:
        return int(str(MEMBER_ID.parse(id_text)))
    except ValueError as error:
        raise UsageError("usage", f"ID: {error}.") from None


def _member_document(context: Context, member: Document) -> Document:
    return member if context.flag("full") else pick_fields(member, "agent_id", "name", "description", "status", "kind")


def _format_member(context: Context, member: Document) -> str:
    if context.flag("full"):
        return fields([(name, value) for name, value in member.items() if value is not None], context.styler)
    return " ".join(cell(member.get(name)) for name in ("agent_id", "name", "status"))
