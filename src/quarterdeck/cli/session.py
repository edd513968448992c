"""Sessions: spawn, list, show, draw as a tree, suspend, resume, stop."""

from __future__ import annotations

import sys
import time

from quarterdeck.cli.command_table import (
    DURATION,
    ID,
    JSON_OBJECT,
    TEXT,
    Argument,
    Command,
    CommandTable,
    Option,
    choice,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import PAGING, print_details, print_list
from quarterdeck.cli.output import cell, table
from quarterdeck.cli.receipt import RECEIPT_EXIT_HELP, format_session_count, print_receipt
from quarterdeck.cli.session_tree import age_and_lifetime, draw, glyphs_for
from quarterdeck.client.api import Document, page_items
from quarterdeck.core.errors import Conflict


def build_command_table() -> CommandTable:
    id_argument = (Argument("id", "ID", ID),)
    return CommandTable(
        (
            Command(("session", "spawn"), "Start a session and print its id.", spawn, options=_SPAWN_OPTIONS),
            Command(("session", "list"), "List sessions, newest first.", list_, options=_LIST_OPTIONS),
            Command(("session", "show"), "Show one session.", show, id_argument),
            Command(("session", "tree"), "Draw a session and all below it.", tree, id_argument),
            Command(("session", "suspend"), "Put a session and all below it to sleep.", suspend, id_argument),
            Command(("session", "resume"), "Wake what only this session's suspension holds.", resume, id_argument),
            Command(
                ("session", "stop"),
                "End a session and all below it.",
                stop,
                id_argument,
                _STOP_OPTIONS,
                RECEIPT_EXIT_HELP,
            ),
        ),
        {"session": "Live runs of agents. Sessions form trees."},
    )


_KIND = choice("instance", "service", "ephemeral")
_STATUS = choice("active", "suspended", "terminated")
_SPAWN_OPTIONS = (
    Option("--app", "The application that owns it.", ID, required=True),
    Option("--parent", "The session it is spawned under.", ID),
    Option("--ttl", "How long it may live: 90, 15m, 2h [default: 1h].", DURATION),
    Option("--capability", "A capability it has; may be repeated.", TEXT, many=True),
    Option("--metadata", "A JSON object to keep with it.", JSON_OBJECT),
    Option("--key", "Idempotency key: repeating the command gives the same session.", TEXT),
    Option("--sid", "The sid of the sign-in behind it [default: the token's].", TEXT),
    Option("--kind", "What it is for.", _KIND),
)
_LIST_OPTIONS = (
    Option("--status", "Only those in this status.", _STATUS),
    Option("--app", "Only those of this application.", ID),
    Option("--parent", "Only those right below this session.", ID),
    Option("--root", "Only those of the tree with this root.", ID),
    *PAGING,
)
_STOP_OPTIONS = (
    Option("--reason", "Why, for the record [default: requested].", TEXT),
    Option("--receipt", "Print what was stopped, and what was left."),
)


def spawn(context: Context) -> int:
    """The id alone on stdout, because it is what the next command wants: `qd session tree $(qd session
    spawn …)`."""
    fields = {
        "application_id": context.required_text("app"),
        "parent_id": context.text("parent"),
        "ttl_seconds": context.number("ttl"),
        "capabilities": context.values("capability") or None,
        "metadata": context.parsed.values["metadata"],
        "session_sid": context.text("sid"),
        "kind": context.text("kind"),
    }
    body = {name: value for name, value in fields.items() if value is not None}
    reply = context.server().call("POST", context.in_zone("agents"), body=body, key=context.text("key"))
    context.show(reply.document, lambda session: cell(session.get("id")))
    return 0


def list_(context: Context) -> int:
    query = {
        "status": context.text("status"),
        "application_id": context.text("app"),
        "parent_id": context.text("parent"),
        "root_id": context.text("root"),
    }
    return print_list(context, context.in_zone("agents"), query, _table)


def show(context: Context) -> int:
    # The same value under two names is told once.
    return print_details(context, context.in_zone("agents", context.required_text("id")), "agent_session_id")


def tree(context: Context) -> int:
    subtree = context.server().get(context.in_zone("agents", context.required_text("id"), "tree"))
    glyphs = glyphs_for(sys.stdout.encoding)
    context.show(subtree, lambda document: draw(page_items(document), time.time(), context.styler, glyphs))
    return 0


def suspend(context: Context) -> int:
    session_id = context.required_text("id")
    reply = context.server().call("POST", context.in_zone("agents", session_id, "suspend"))
    context.show(reply.document, lambda document: f"suspended {session_id}: {_format_change(document, 'suspended')}")
    return 0


def resume(context: Context) -> int:
    session_id = context.required_text("id")
    try:
        reply = context.server().call("POST", context.in_zone("agents", session_id, "resume"))
    except Conflict as conflict:
        holder_id = conflict.members.get("held_by")
        if isinstance(holder_id, str) and not context.as_json:
            # People are told what to type; a program has the holder's id as a member of its own.
            conflict.members["frees"] = f"`{_command_line(context, 'session', 'resume', holder_id)}`"
        raise
    context.show(reply.document, lambda document: f"resumed {session_id}: {_format_change(document, 'resumed')}")
    if reply.document.get("resumed") == 0 and not context.as_json:
        context.note(
            f"an ancestor still holds it: `{_command_line(context, 'explain', 'session', session_id)}` says which"
        )
    return 0


def stop(context: Context) -> int:
    session_id, receipt = context.required_text("id"), context.flag("receipt")
    query = {"reason": context.text("reason"), "receipt": receipt}
    reply = context.server().call("DELETE", context.in_zone("agents", session_id), query=query)
    if receipt:
        return print_receipt(context, reply.document)
    context.show({"id": session_id, "status": "terminated"}, lambda document: f"stopped {cell(document['id'])}")
    return 0


def _format_change(document: Document, name: str) -> str:
    """How many fell asleep or woke."""
    changed = document.get(name)
    count = changed if isinstance(changed, int) else 0
    if name == "suspended":
        return f"{format_session_count(count)} fell asleep" if count else "it slept already"
    return f"{format_session_count(count)} woke" if count else "it sleeps on"


def _command_line(context: Context, *words: str) -> str:
    """A command to type next, for the zone that this one was about."""
    zone = context.text("zone")
    return " ".join(["qd", *words, *([] if zone is None else ["--zone", zone])])


def _table(context: Context, sessions: list[Document]) -> str:
    if not sessions:
        return f"no such sessions in zone {context.zone}"
    now = time.time()
    field_names = ("id", "application_id", "status", "depth", "parent_id")
    rows = [[*(session.get(name) for name in field_names), *age_and_lifetime(session, now)] for session in sessions]
    return table(("ID", "APPLICATION", "STATUS", "DEPTH", "PARENT", "AGE", "LIFE"), rows, context.styler)
