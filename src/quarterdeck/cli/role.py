"""Roles: who belongs to a zone, and what they may do there. The wire calls them members; here those are of fleets."""

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
            Command(("role", "list"), "List who has a role in a zone.", list_, options=PAGING),
            Command(("role", "show"), "Show somebody's role.", show, subject_argument),
            Command(("role", "set"), "Give somebody a role.", set_, subject_argument, (_ROLE_OPTION,), _SET_HELP),
            Command(("role", "remove"), "Take somebody's role away.", remove, subject_argument, (), _REMOVE_HELP),
        ),
        {"role": "Who belongs to a zone, and what they may do."},
    )


_ROLE_OPTION = Option(
    "--role", "What they may do.", uppercase_choice("OWNER", "ADMIN", "MEMBER", "AGENT"), required=True
)
_SET_HELP = "SUBJECT is who a token is about: its `sub`. Only an OWNER makes or unmakes an OWNER."
_REMOVE_HELP = "Who was given none has the role that the token says, if its issuer is believed."


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
            f"{cell(assignment.get('subject'))} is {cell(assignment.get('role'))} of zone {context.zone}"
        ),
    )
    return 0


def remove(context: Context) -> int:
    subject = context.required_text("subject")
    context.server().call("DELETE", context.api_path("members", subject))
    document: Document = {"subject": subject, "status": "removed"}
    context.show(document, lambda _: f"removed {cell(subject)} from zone {context.zone}")
    return 0


def _table(context: Context, assignments: list[Document]) -> str:
    if not assignments:
        return f"no roles in zone {context.zone}: each bearer has the one that its token says"
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
