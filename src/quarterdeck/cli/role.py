"""`qd role`: the role assignments of a zone. The API calls them members; in the CLI, members belong to fleets."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import TEXT, Argument, Command, CommandTable, Option, uppercase_choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import PAGING, ago, print_details, print_list
from quarterdeck.cli.output import cell, table
from quarterdeck.client.api import Document


def build_command_table() -> CommandTable:
    subject_argument = (Argument("subject", "SUBJECT", TEXT),)
    return CommandTable(
        (
            Command(("role", "list"), "List the role assignments of a zone.", list_, options=PAGING),
            Command(("role", "show"), "Show the role of a subject.", show, subject_argument),
            Command(("role", "set"), "Assign a role to a subject.", set_, subject_argument, (_ROLE_OPTION,), _SET_HELP),
            Command(("role", "remove"), "Remove the role of a subject.", remove, subject_argument, (), _REMOVE_HELP),
        ),
        {"role": "Manage the roles of users and programs in a zone."},
    )


_ROLE_OPTION = Option("--role", "Role to assign.", uppercase_choice("OWNER", "ADMIN", "MEMBER", "AGENT"), required=True)
_SET_HELP = "SUBJECT is the `sub` claim of a token. Only an OWNER can assign or remove the role OWNER."
_REMOVE_HELP = "A subject without an assigned role has the role that its token claims, if the issuer is trusted."


def list_(context: Context) -> int:
    return print_list(context, context.api_path("members"), {}, _table)


def show(context: Context) -> int:
    return print_details(context, context.api_path("members", context.required_text("subject")))


def set_(context: Context) -> int:
    body: Document = {"role": context.required_text("role")}
    document = (
        context.server().call("PUT", context.api_path("members", context.required_text("subject")), body=body).document
    )
    context.show(
        document,
        lambda assignment: (
            f"{cell(assignment.get('subject'))} has role {cell(assignment.get('role'))} in zone {context.zone}."
        ),
    )
    return 0


def remove(context: Context) -> int:
    subject = context.required_text("subject")
    context.server().call("DELETE", context.api_path("members", subject))
    document: Document = {"subject": subject, "status": "removed"}
    context.show(document, lambda _: f"Removed the role of {cell(subject)} in zone {context.zone}.")
    return 0


def _table(context: Context, assignments: list[Document]) -> str:
    if not assignments:
        return f"No roles assigned in zone {context.zone}. Each subject has the role that its token claims."
    now = time.time()
    rows = [
        [
            assignment.get("subject"),
            assignment.get("role"),
            assignment.get("addedBy"),
            ago(assignment.get("createdAt"), now),
        ]
        for assignment in assignments
    ]
    return table(("SUBJECT", "ROLE", "ADDED BY", "SINCE"), rows, context.styler)
