"""`qd agent` with a fleet id: the agents of a fleet. Without one it is about those of the registry (`agent`)."""

from __future__ import annotations

import json

from quarterdeck.cli.command_table import MEMBER, Kind, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import Usage
from quarterdeck.cli.fleet_common import (
    AGENT,
    PANES_SECONDS,
    agent_or_none,
    fleet,
    fleets,
    picked,
    plainly,
    tell,
    worded,
)
from quarterdeck.cli.output import cell, fields
from quarterdeck.client.api import Document, Server, items_of


def _array(text: str) -> list[object]:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        raise ValueError(f"this is not JSON: {wrong}") from None
    if not isinstance(value, list):
        raise ValueError('this is not a JSON array, such as [{"name": "review"}]')
    return value


SKILLS = Option("--skills", "With a fleet id: a JSON array of what it can do.", Kind("JSON", _array))


@plainly
def register(context: Context) -> int:
    require_only(context, "--name", "--description", "--skills")
    name, description = worded(context, "name"), context.text("description")
    if context.text("id") is not None:
        raise Usage("usage", "A fleet gives out the ids of its agents: leave ID away, or the fleet's id.")
    if name is None or description is None:
        raise Usage("usage", "Who is it? Give --name and --description.")
    body: Document = {"name": name, "description": description}
    skills = context.ask.values["skills"]
    if skills is not None:
        body["skills"] = skills
    told = context.server().call("POST", fleets(fleet(context), "members"), body=body).document
    tell(
        context,
        picked(told, "agent_id", "name", "registered_at"),
        lambda: f"{cell(told.get('agent_id'))} {cell(told.get('name'))}",
    )
    return 0


@plainly
def list_(context: Context) -> int:
    # Of a fleet all are listed, and nothing else.
    require_only(context, "--full", "--all")
    found = members(context.server(), fleet(context))
    between = "\n\n" if context.flag("full") else "\n"
    tell(
        context,
        [_document(context, one) for one in found],
        lambda: between.join(_block(context, one) for one in found) or "No members found.",
    )
    return 0


@plainly
def show(context: Context) -> int:
    found = context.server().get(fleets(fleet(context), "members", _named(context)))
    tell(context, _document(context, found), lambda: _block(context, found))
    return 0


@plainly
def deregister(context: Context) -> int:
    require_only(context, "--agent-id")
    number = _named(context)
    server = context.server()
    # One with a pane has it closed, and that is waited for.
    server.connection.timeout += PANES_SECONDS
    server.call("DELETE", fleets(fleet(context), "members", number))
    tell(context, {"agent_id": number, "status": "deregistered"}, lambda: f"Agent {number} deregistered.")
    return 0


def require_only(context: Context, *names: str) -> None:
    """Refuses what is about agents of the registry: dropped in silence, it would be taken for heard."""
    for option in context.ask.command.options:
        if option.name not in names and _is_given(context, option):
            detail = f"{option.name} is about agents of the registry, and a fleet is named (--fleet-id, QD_FLEET_ID)."
            raise Usage("usage", detail)


def require_none(context: Context) -> None:
    """The other way round, where no fleet is named."""
    for option in context.ask.command.options:
        if option.name in (SKILLS.name, AGENT.name) and _is_given(context, option):
            detail = f"{option.name} is about agents of a fleet, and none is named (--fleet-id, QD_FLEET_ID)."
            raise Usage("usage", detail)


def _is_given(context: Context, option: Option) -> bool:
    value = context.ask.values[option.key]
    return value is not None and value is not False and value != ()


def members(server: Server, where: int, **query: bool) -> list[Document]:
    """Those who are there, in the order they came."""
    pages = server.pages(fleets(where, "members"), {**query, "limit": 500})
    return [one for page in pages for one in items_of(page, "members")]


def _named(context: Context) -> int:
    """By ID, or by --agent-id."""
    given = context.text("id")
    if given is None:
        number = agent_or_none(context)
        if number is None:
            raise Usage("usage", "Which agent? Give its id.")
        return number
    try:
        return int(str(MEMBER.convert(given)))
    except ValueError as wrong:
        raise Usage("usage", f"ID: {wrong}.") from None


def _document(context: Context, member: Document) -> Document:
    return member if context.flag("full") else picked(member, "agent_id", "name", "description", "status", "kind")


def _block(context: Context, member: Document) -> str:
    if context.flag("full"):
        return fields([(name, value) for name, value in member.items() if value is not None], context.paint)
    return " ".join(cell(member.get(name)) for name in ("agent_id", "name", "status"))
