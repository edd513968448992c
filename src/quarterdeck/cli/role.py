"""Roles: who belongs to a zone, and what they may do there. The wire calls them members; here those are of fleets."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import TEXT, Argument, Command, Noun, Option, any_case
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import PAGES, ago, show_list, show_one
from quarterdeck.cli.output import cell, table
from quarterdeck.client.api import Document


def noun() -> Noun:
    one = (Argument("subject", "SUBJECT", TEXT),)
    return Noun(
        (
            Command(("role", "list"), "List who has a role in a zone.", list_, options=PAGES),
            Command(("role", "show"), "Show somebody's role.", show, one),
            Command(("role", "set"), "Give somebody a role.", set_, one, (_ROLE,), _SETTING),
            Command(("role", "remove"), "Take somebody's role away.", remove, one, (), _REMOVING),
        ),
        {"role": "Who belongs to a zone, and what they may do."},
    )


_ROLE = Option("--role", "What they may do.", any_case("OWNER", "ADMIN", "MEMBER", "AGENT"), required=True)
_SETTING = "SUBJECT is who a token is about: its `sub`. Only an OWNER makes or unmakes an OWNER."
_REMOVING = "Who was given none has the role that the token says, if its issuer is believed."


def list_(context: Context) -> int:
    return show_list(context, context.work("members"), {}, _table)


def show(context: Context) -> int:
    return show_one(context, context.work("members", context.given("subject")))


def set_(context: Context) -> int:
    body: Document = {"role": context.given("role")}
    told = context.server().call("PUT", context.work("members", context.given("subject")), body=body).document
    context.show(told, lambda one: f"{cell(one.get('subject'))} is {cell(one.get('role'))} of zone {context.zone}")
    return 0


def remove(context: Context) -> int:
    subject = context.given("subject")
    context.server().call("DELETE", context.work("members", subject))
    told: Document = {"subject": subject, "status": "removed"}
    context.show(told, lambda _: f"removed {cell(subject)} from zone {context.zone}")
    return 0


def _table(context: Context, members: list[Document]) -> str:
    if not members:
        return f"no roles in zone {context.zone}: each bearer has the one that its token says"
    now = time.time()
    rows = [
        [one.get("subject"), one.get("role"), one.get("addedBy"), ago(one.get("createdAt"), now)] for one in members
    ]
    return table(("SUBJECT", "ROLE", "ADDED BY", "SINCE"), rows, context.paint)
