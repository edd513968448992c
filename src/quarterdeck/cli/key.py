"""API keys: create, list, revoke."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import DURATION, ID, TEXT, Argument, Command, CommandTable, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import PAGING, print_list
from quarterdeck.cli.output import cell, instant, span, table
from quarterdeck.client.api import Document


def build_command_table() -> CommandTable:
    id_argument = (Argument("id", "ID", ID),)
    return CommandTable(
        (
            Command(("key", "create"), "Create an API key and print it, this once.", create, options=_CREATE_OPTIONS),
            Command(("key", "list"), "List API keys, newest first.", list_, options=PAGING),
            Command(("key", "revoke"), "Revoke an API key, for good.", revoke, id_argument),
        ),
        {"key": "API keys: for programs that have no issuer to give them tokens."},
    )


_CREATE_OPTIONS = (
    Option("--app", "The application it speaks for.", ID, required=True),
    Option("--name", "What people call it [default: the application's id].", TEXT),
    Option("--scope", "A scope it carries; may be repeated [default: that of the agent plane].", TEXT, many=True),
    Option("--session", "The session it speaks for; it ends with that session.", ID),
    Option("--ttl", "How long it is good: 90, 15m, 2h, 30d [default: it does not expire].", DURATION),
)


def create(context: Context) -> int:
    """The key alone on stdout, so that a script can keep it: `KEY=$(qd key create --app A)`."""
    fields: Document = {
        "application_id": context.required_text("app"),
        "name": context.text("name"),
        "scopes": context.values("scope") or None,
        "session_id": context.text("session"),
        "ttl_seconds": context.number("ttl"),
    }
    body = {name: value for name, value in fields.items() if value is not None}
    reply = context.server().call("POST", context.in_zone("keys"), body=body)
    context.show(reply.document, lambda created: cell(created.get("key")))
    context.note(f"key {cell(reply.document.get('id'))} is shown this once; it cannot be shown again")
    return 0


def list_(context: Context) -> int:
    return print_list(context, context.in_zone("keys"), {}, _table)


def revoke(context: Context) -> int:
    key_id = context.required_text("id")
    context.server().call("DELETE", context.in_zone("keys", key_id))
    context.show({"id": key_id, "status": "revoked"}, lambda document: f"revoked {cell(document['id'])}")
    return 0


def _table(context: Context, keys: list[Document]) -> str:
    if not keys:
        return f"no keys in zone {context.zone}"
    now = time.time()
    field_names = ("id", "name", "application_id", "scopes", "session_id", "status")
    rows = [[*(key.get(name) for name in field_names), _format_lifetime(key, now)] for key in keys]
    return table(("ID", "NAME", "APPLICATION", "SCOPES", "SESSION", "STATUS", "LIFE"), rows, context.styler)


def _format_lifetime(key: Document, now: float) -> str:
    """How long it is still good."""
    if key.get("status") != "live":
        return "ended"
    expires_at = instant(key.get("expires_at"))
    return "no end" if expires_at is None else f"{span(expires_at - now)} left"
