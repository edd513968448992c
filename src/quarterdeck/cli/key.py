"""`qd key`: create, list and revoke API keys."""

from __future__ import annotations

from quarterdeck.cli.command_table import DURATION, ID, ID_ARGUMENT, TEXT, Group, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import PAGING, Column, field_text, print_list
from quarterdeck.cli.output import cell, format_duration, parse_timestamp
from quarterdeck.client.api import Document

GROUP = Group("key", "Manage API keys, for programs that have no token issuer.")


@GROUP.command(
    "create",
    "Create an API key and print it.",
    Option("--app", "Application that the key acts for.", ID, required=True, field="application_id"),
    Option("--name", "Display name [default: the application id].", TEXT, field="name"),
    Option("--scope", "Scope to grant; repeatable [default: agent:lifecycle].", TEXT, many=True, field="scopes"),
    Option(
        "--session",
        "Session that the key acts for. The key is valid only while the session is live.",
        ID,
        field="session_id",
    ),
    Option("--ttl", "Lifetime, such as 90s, 15m, 2h or 30d [default: no expiry].", DURATION, field="ttl_seconds"),
    description="The key is printed once and cannot be shown again.",
)
def create(context: Context) -> None:
    # Only the key goes to stdout, so that a script can store it: KEY=$(qd key create --app A)
    key = context.send("POST", context.zone_path("keys"), field_text("key"), body=context.body())
    context.note(f"Key {cell(key.get('id'))} is shown only once. Store it now.")


@GROUP.command("list", "List API keys, newest first.", *PAGING)
def list_(context: Context) -> None:
    print_list(context, context.zone_path("keys"), _COLUMNS, f"No API keys in zone {context.zone}.")


@GROUP.command("revoke", "Revoke an API key. This cannot be undone.", ID_ARGUMENT)
def revoke(context: Context) -> None:
    key_id = context.required_text("id")
    context.remove(context.zone_path("keys", key_id), {"id": key_id, "status": "revoked"}, f"Revoked key {key_id}.")


def _format_expiry(key: Document, now: float) -> str:
    if key.get("status") != "live":
        return "ended"
    expires_at = parse_timestamp(key.get("expires_at"))
    return "never" if expires_at is None else f"in {format_duration(expires_at - now)}"


_COLUMNS = (
    Column("ID", "id"),
    Column("NAME", "name"),
    Column("APPLICATION", "application_id"),
    Column("SCOPES", "scopes"),
    Column("SESSION", "session_id"),
    Column("STATUS", "status"),
    Column("EXPIRES", _format_expiry),
)
