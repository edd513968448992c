"""`qd agent` with a fleet id: the agents of a fleet. Without one it is about those of the registry (`agent`)."""

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
        raise ValueError(f"this is not JSON: {error}") from None
    if not isinstance(value, list):
        raise ValueError('this is not a JSON array, such as [{"name": "review"}]')
    return value


SKILLS_OPTION = Option(
    "--skills", "With a fleet id: a JSON array of what it can do.", ParamType("JSON", _parse_json_array)
)


@with_fleet_errors
def register(context: Context) -> int:
    require_only_options(context, "--name", "--description", "--skills")
    name, description = non_empty_text(context, "name"), context.text("description")
    if context.text("id") is not None:
        raise UsageError("usage", "A fleet gives out the ids of its agents: leave ID away, or the fleet's id.")
    if name is None or description is None:
        raise UsageError("usage", "Who is it? Give --name and --description.")
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
    # Of a fleet all are listed, and nothing else.
    require_only_options(context, "--full", "--all")
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
    require_only_options(context, "--agent-id")
    agent_id = _agent_id(context)
    server = context.server()
    # One with a pane has it closed, and that is waited for.
    server.connection.timeout += PANE_CLOSE_SECONDS
    server.call("DELETE", fleets_path(require_fleet_id(context), "members", agent_id))
    print_result(context, {"agent_id": agent_id, "status": "deregistered"}, lambda: f"Agent {agent_id} deregistered.")
    return 0


def require_only_options(context: Context, *names: str) -> None:
    """Refuses what is about agents of the registry: dropped in silence, it would be taken for heard."""
    for option in context.parsed.command.options:
        if option.name not in names and _has_value(context, option):
            detail = f"{option.name} is about agents of the registry, and a fleet is named (--fleet-id, QD_FLEET_ID)."
            raise UsageError("usage", detail)


def require_no_fleet_options(context: Context) -> None:
    """The other way round, where no fleet is named."""
    for option in context.parsed.command.options:
        if option.name in (SKILLS_OPTION.name, AGENT_ID_OPTION.name) and _has_value(context, option):
            detail = f"{option.name} is about agents of a fleet, and none is named (--fleet-id, QD_FLEET_ID)."
            raise UsageError("usage", detail)


def _has_value(context: Context, option: Option) -> bool:
    value = context.parsed.values[option.key]
    return value is not None and value is not False and value != ()


def load_members(server: ApiClient, fleet_id: int, **query: bool) -> list[Document]:
    """Those who are there, in the order they came."""
    pages = server.pages(fleets_path(fleet_id, "members"), {**query, "limit": 500})
    return [member for page in pages for member in page_items(page, "members")]


def _agent_id(context: Context) -> int:
    """By ID, or by --agent-id."""
    id_text = context.text("id")
    if id_text is None:
        agent_id = agent_id_or_none(context)
        if agent_id is None:
            raise UsageError("usage", "Which agent? Give its id.")
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
