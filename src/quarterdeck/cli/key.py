"""`qd key`: create, list and revoke API keys."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import DURATION, ID, TEXT, Argument, Command, CommandTable, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import PAGING, print_list
from quarterdeck.cli.output import cell, format_duration, parse_timestamp, table
from quarterdeck.client.api import Document


def build_command_table() -> CommandTable:
    id_argument = (Argument("id", "ID", ID),)
    return CommandTable(
        (
            Command(
                ("key", "create"),
                "Create an API key and print it.",
                create,
                options=_CREATE_OPTIONS,
                description="The key is printed once and cannot be shown again.",
            ),
            Command(("key", "list"), "List API keys, newest first.", list_, options=PAGING),
            Command(("key", "revoke"), "Revoke an API key. This cannot be undone.", revoke, id_argument),
        ),
        {"key": "Manage API keys, for programs that have no token issuer."},
    )


_CREATE_OPTIONS = (
    Option("--app", "Application that the key acts for.", ID, required=True),
    Option("--name", "Display name [default: the application id].", TEXT),
    Option("--scope", "Scope to grant; repeatable [default: agent:lifecycle].", TEXT, many=True),
    Option("--session", "Session that the key acts for. The key is valid only while the session is live.", ID),
    Option("--ttl", "Lifetime, such as 90s, 15m, 2h or 30d [default: no expiry].", DURATION),
)


def create(context: Context) -> int:
    # Only the key goes to stdout, so that a script can store it: KEY=$(qd key create --app A)
    fields: Document = {
        "application_id": context.required_text("app"),
        "name": context.text("name"),
        "scopes": context.values("scope") or None,
        "session_id": context.text("session"),
        "ttl_seconds": context.number("ttl"),
    }
    body = {name: value for name, value in fields.items() if value is not None}
    reply = context.server().call("POST", context.zone_path("keys"), body=body)
    context.show(reply.document, lambda created: cell(created.get("key")))
    context.note(f"Key {cell(reply.document.get('id'))} is shown only once. Store it now.")
    return 0


def list_(context: Context) -> int:
    return print_list(context, context.zone_path("keys"), {}, _table)


def revoke(context: Context) -> int:
    key_id = context.required_text("id")
    context.server().call("DELETE", context.zone_path("keys", key_id))
    context.show({"id": key_id, "status": "revoked"}, lambda document: f"Revoked key {cell(document['id'])}.")
    return 0


def _table(context: Context, keys: list[Document]) -> str:
    if not keys:
        return f"No API keys in zone {context.zone}."
    now = time.time()
    field_names = ("id", "name", "application_id", "scopes", "session_id", "status")
    rows = [[*(key.get(name) for name in field_names), _format_expiry(key, now)] for key in keys]
    return table(("ID", "NAME", "APPLICATION", "SCOPES", "SESSION", "STATUS", "EXPIRES"), rows, context.styler)


def _format_expiry(key: Document, now: float) -> str:
    if key.get("status") != "live":
        return "ended"
    expires_at = parse_timestamp(key.get("expires_at"))
    return "never" if expires_at is None else f"in {format_duration(expires_at - now)}"
