"""`qd role`: the role assignments of a zone. The API calls them members; in the CLI, members belong to fleets."""

from __future__ import annotations

from quarterdeck.cli.command_table import ROLE, TEXT, Argument, Group, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import PAGING, Column, print_details, print_list, time_ago
from quarterdeck.cli.output import cell
from quarterdeck.client.api import Document

GROUP = Group("role", "Manage the roles of users and programs in a zone.")


@GROUP.command("list", "List the role assignments of a zone.", *PAGING)
def list_(context: Context) -> None:
    empty = f"No roles assigned in zone {context.zone}. Each subject has the role that its token claims."
    print_list(context, context.api_path("members"), _COLUMNS, empty)


@GROUP.command("show", "Show the role of a subject.", Argument("subject", "SUBJECT", TEXT))
def show(context: Context) -> None:
    print_details(context, _path(context))


@GROUP.command(
    "set",
    "Assign a role to a subject.",
    Argument("subject", "SUBJECT", TEXT),
    Option("--role", "Role to assign.", ROLE, required=True, field="role"),
    description="SUBJECT is the `sub` claim of a token. Only an OWNER can assign or remove the role OWNER.",
)
def set_(context: Context) -> None:
    def render(assignment: Document) -> str:
        subject, role = cell(assignment.get("subject")), cell(assignment.get("role"))
        return f"{subject} has role {role} in zone {context.zone}."

    context.send("PUT", _path(context), render, body=context.body())


@GROUP.command(
    "remove",
    "Remove the role of a subject.",
    Argument("subject", "SUBJECT", TEXT),
    description="A subject without an assigned role has the role that its token claims, if the issuer is trusted.",
)
def remove(context: Context) -> None:
    subject = context.required_text("subject")
    text = f"Removed the role of {cell(subject)} in zone {context.zone}."
    context.remove(_path(context), {"subject": subject, "status": "removed"}, text)


def _path(context: Context) -> str:
    return context.api_path("members", context.required_text("subject"))


_COLUMNS = (
    Column("SUBJECT", "subject"),
    Column("ROLE", "role"),
    Column("ADDED BY", "addedBy"),
    Column("SINCE", time_ago("createdAt")),
)
