"""API keys: create, list, revoke."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import DURATION, ID, TEXT, Argument, Command, Noun, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import PAGES, show_list
from quarterdeck.cli.output import cell, instant, span, table
from quarterdeck.client.api import Document


def noun() -> Noun:
    one = (Argument("id", "ID", ID),)
    return Noun(
        (
            Command(("key", "create"), "Create an API key and print it, this once.", create, options=_CREATE),
            Command(("key", "list"), "List API keys, newest first.", list_, options=PAGES),
            Command(("key", "revoke"), "Revoke an API key, for good.", revoke, one),
        ),
        {"key": "API keys: for programs that have no issuer to give them tokens."},
    )


_CREATE = (
    Option("--app", "The application it speaks for.", ID, required=True),
    Option("--name", "What people call it [default: the application's id].", TEXT),
    Option("--scope", "A scope it carries; may be repeated [default: that of the agent plane].", TEXT, many=True),
    Option("--session", "The session it speaks for; it ends with that session.", ID),
    Option("--ttl", "How long it is good: 90, 15m, 2h, 30d [default: it does not expire].", DURATION),
)


def create(context: Context) -> int:
    """The key alone on stdout, so that a script can keep it: `KEY=$(qd key create --app A)`."""
    asked: Document = {
        "application_id": context.given("app"),
        "name": context.text("name"),
        "scopes": context.many("scope") or None,
        "session_id": context.text("session"),
        "ttl_seconds": context.number("ttl"),
    }
    body = {name: value for name, value in asked.items() if value is not None}
    reply = context.server().call("POST", context.in_zone("keys"), body=body)
    context.show(reply.document, lambda made: cell(made.get("key")))
    context.note(f"key {cell(reply.document.get('id'))} is shown this once; it cannot be shown again")
    return 0


def list_(context: Context) -> int:
    return show_list(context, context.in_zone("keys"), {}, _table)


def revoke(context: Context) -> int:
    target = context.given("id")
    context.server().call("DELETE", context.in_zone("keys", target))
    context.show({"id": target, "status": "revoked"}, lambda told: f"revoked {cell(told['id'])}")
    return 0


def _table(context: Context, keys: list[Document]) -> str:
    if not keys:
        return f"no keys in zone {context.zone}"
    now = time.time()
    named = ("id", "name", "application_id", "scopes", "session_id", "status")
    rows = [[*(key.get(name) for name in named), _left(key, now)] for key in keys]
    return table(("ID", "NAME", "APPLICATION", "SCOPES", "SESSION", "STATUS", "LIFE"), rows, context.paint)


def _left(key: Document, now: float) -> str:
    """How long it is still good."""
    if key.get("status") != "live":
        return "ended"
    expires = instant(key.get("expires_at"))
    return "no end" if expires is None else f"{span(expires - now)} left"
