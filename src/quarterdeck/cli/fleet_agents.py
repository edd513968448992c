"""`qd agent` with a fleet id: works on the agents of that fleet. Without one, `agent` uses the agent registry."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quarterdeck.cli.command_table import JSON_ARRAY, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import usage_error
from quarterdeck.cli.fleet_common import (
    AGENT_ID_OPTION,
    PANE_CLOSE_SECONDS,
    CommandFunction,
    agent_id_or_none,
    fleet_id_or_none,
    fleet_path,
    fleets_path,
    non_empty_text,
    parse_member_id,
    pick_fields,
    require_fleet_id,
    with_fleet_errors,
)
from quarterdeck.cli.list_output import load_all
from quarterdeck.cli.output import cell, fields
from quarterdeck.client.api import Document

SKILLS_OPTION = Option("--skills", "JSON array of the agent's skills. Needs a fleet id.", JSON_ARRAY, field="skills")


@with_fleet_errors
def register(context: Context) -> None:
    refuse_options_except(context, "--name", "--description", "--skills")
    name, description = non_empty_text(context, "name"), context.text("description")
    if context.text("id") is not None:
        raise usage_error(
            "A fleet assigns the ids of its agents. Remove ID, or use the agent registry without a fleet id."
        )
    if name is None or description is None:
        raise usage_error("Give --name and --description.")
    member = context.server().call("POST", fleet_path(context, "members"), body=context.body()).document
    context.show(
        pick_fields(member, "agent_id", "name", "registered_at"),
        lambda document: f"{cell(document['agent_id'])} {cell(document['name'])}",
    )


@with_fleet_errors
def list_(context: Context) -> None:
    # The member list of a fleet has no filters or pages.
    refuse_options_except(context, "--full", "--all")
    members = load_all(context.server(), fleet_path(context, "members"), "members")
    separator = "\n\n" if context.flag("full") else "\n"
    context.show(
        [_member_document(context, member) for member in members],
        lambda _: separator.join(_format_member(context, member) for member in members) or "No members found.",
    )


@with_fleet_errors
def show(context: Context) -> None:
    member = context.server().get(fleets_path(require_fleet_id(context), "members", _agent_id(context)))
    context.show(_member_document(context, member), lambda _: _format_member(context, member))


@with_fleet_errors
def deregister(context: Context) -> None:
    refuse_options_except(context, "--agent-id")
    agent_id = _agent_id(context)
    # If the agent has a pane, the server responds only after the pane has closed.
    context.server(extra_seconds=PANE_CLOSE_SECONDS).call("DELETE", fleet_path(context, "members", agent_id))
    context.show({"agent_id": agent_id, "status": "deregistered"}, f"Agent {agent_id} deregistered.")


def in_fleet(run_in_fleet: CommandFunction) -> Callable[[CommandFunction], CommandFunction]:
    """Make a command of the agent registry run another function if a fleet id is given."""

    def decorate(run: CommandFunction) -> CommandFunction:
        def run_either(context: Context) -> int | None:
            if fleet_id_or_none(context) is not None:
                return run_in_fleet(context)
            fleet_options = (SKILLS_OPTION, AGENT_ID_OPTION)
            _refuse_options(context, fleet_options, "needs a fleet. Give --fleet-id or set QD_FLEET_ID.")
            return run(context)

        return run_either

    return decorate


def refuse_options_except(context: Context, *names: str) -> None:
    """Refuse options of the agent registry: ignoring them silently would mislead the user."""
    others = [option for option in context.parsed.command.options if option.name not in names]
    _refuse_options(context, others, "cannot be used with a fleet. Remove it, or remove --fleet-id and QD_FLEET_ID.")


def _refuse_options(context: Context, options: Sequence[Option], reason: str) -> None:
    for option in options:
        if option in context.parsed.command.options and context.is_given(option):
            raise usage_error(f"{option.name} {reason}")


def _agent_id(context: Context) -> int:
    """Return the agent id from the ID argument, --agent-id or QD_AGENT_ID."""
    id_text = context.text("id")
    agent_id = agent_id_or_none(context) if id_text is None else parse_member_id(id_text, "ID")
    if agent_id is None:
        raise usage_error("Give the ID of an agent.")
    return agent_id


def _member_document(context: Context, member: Document) -> Document:
    return member if context.flag("full") else pick_fields(member, "agent_id", "name", "description", "status", "kind")


def _format_member(context: Context, member: Document) -> str:
    if context.flag("full"):
        return fields([(name, value) for name, value in member.items() if value is not None], context.styler)
    return " ".join(cell(member.get(name)) for name in ("agent_id", "name", "status"))
