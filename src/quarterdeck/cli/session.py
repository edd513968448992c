"""`qd session`: spawn, list, show, tree, suspend, resume, stop."""

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
from quarterdeck.cli.session_tree import age_and_expiry, draw, glyphs_for
from quarterdeck.client.api import Document, page_items
from quarterdeck.core.errors import Conflict


def build_command_table() -> CommandTable:
    id_argument = (Argument("id", "ID", ID),)
    return CommandTable(
        (
            Command(("session", "spawn"), "Spawn a session and print its id.", spawn, options=_SPAWN_OPTIONS),
            Command(("session", "list"), "List sessions, newest first.", list_, options=_LIST_OPTIONS),
            Command(("session", "show"), "Show one session.", show, id_argument),
            Command(("session", "tree"), "Draw a session and its descendants.", tree, id_argument),
            Command(("session", "suspend"), "Suspend a session and its descendants.", suspend, id_argument),
            Command(
                ("session", "resume"), "Resume a session and the descendants suspended with it.", resume, id_argument
            ),
            Command(
                ("session", "stop"),
                "Terminate a session and its descendants.",
                stop,
                id_argument,
                _STOP_OPTIONS,
                RECEIPT_EXIT_HELP,
            ),
        ),
        {"session": "Manage sessions: live runs of agents. Sessions form trees."},
    )


_KIND = choice("instance", "service", "ephemeral")
_STATUS = choice("active", "suspended", "terminated")
_SPAWN_OPTIONS = (
    Option("--app", "Application that owns the session.", ID, required=True),
    Option("--parent", "Parent session [default: none, a root session].", ID),
    Option("--ttl", "Lifetime, such as 90s, 15m or 2h [default: 1h].", DURATION),
    Option("--capability", "Capability of the session; repeatable.", TEXT, many=True),
    Option("--metadata", "JSON object to store with the session.", JSON_OBJECT),
    Option("--key", "Idempotency key: the same key returns the same session.", TEXT),
    Option("--sid", "Sign-in session id (sid) [default: the sid of the token].", TEXT),
    Option("--kind", "Kind of session.", _KIND),
)
_LIST_OPTIONS = (
    Option("--status", "Only sessions with this status.", _STATUS),
    Option("--app", "Only sessions of this application.", ID),
    Option("--parent", "Only direct children of this session.", ID),
    Option("--root", "Only sessions of the tree with this root.", ID),
    *PAGING,
)
_STOP_OPTIONS = (
    Option("--reason", "Reason to record [default: requested].", TEXT),
    Option("--receipt", "Print a receipt: how many sessions were stopped, and which were not."),
)


def spawn(context: Context) -> int:
    # Only the id goes to stdout, so that a script can use it: qd session tree $(qd session spawn …)
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
    reply = context.server().call("POST", context.zone_path("agents"), body=body, key=context.text("key"))
    context.show(reply.document, lambda session: cell(session.get("id")))
    return 0


def list_(context: Context) -> int:
    query = {
        "status": context.text("status"),
        "application_id": context.text("app"),
        "parent_id": context.text("parent"),
        "root_id": context.text("root"),
    }
    return print_list(context, context.zone_path("agents"), query, _table)


def show(context: Context) -> int:
    # `agent_session_id` repeats `id`.
    return print_details(context, context.zone_path("agents", context.required_text("id")), "agent_session_id")


def tree(context: Context) -> int:
    subtree = context.server().get(context.zone_path("agents", context.required_text("id"), "tree"))
    glyphs = glyphs_for(sys.stdout.encoding)
    context.show(subtree, lambda document: draw(page_items(document), time.time(), context.styler, glyphs))
    return 0


def suspend(context: Context) -> int:
    session_id = context.required_text("id")
    reply = context.server().call("POST", context.zone_path("agents", session_id, "suspend"))
    context.show(reply.document, lambda document: _format_suspension(session_id, document))
    return 0


def resume(context: Context) -> int:
    session_id = context.required_text("id")
    try:
        reply = context.server().call("POST", context.zone_path("agents", session_id, "resume"))
    except Conflict as conflict:
        holder_id = conflict.members.get("held_by")
        if isinstance(holder_id, str) and not context.as_json:
            # Text output shows the command to run. JSON output has the id of the session to resume in `held_by`.
            conflict.members["frees"] = f"`{_command_line(context, 'session', 'resume', holder_id)}`"
        raise
    context.show(reply.document, lambda document: _format_resumption(session_id, document))
    if reply.document.get("resumed") == 0 and not context.as_json:
        command = _command_line(context, "explain", "session", session_id)
        context.note(f"An ancestor is still suspended. Find it with `{command}`.")
    return 0


def stop(context: Context) -> int:
    session_id, wants_receipt = context.required_text("id"), context.flag("receipt")
    query = {"reason": context.text("reason"), "receipt": wants_receipt}
    reply = context.server().call("DELETE", context.zone_path("agents", session_id), query=query)
    if wants_receipt:
        return print_receipt(context, reply.document)
    context.show(
        {"id": session_id, "status": "terminated"}, lambda document: f"Stopped session {cell(document['id'])}."
    )
    return 0


def _format_suspension(session_id: str, document: Document) -> str:
    count = document.get("suspended")
    if not isinstance(count, int) or count == 0:
        return f"Session {session_id} was already suspended."
    return f"Suspended {session_id}: {format_session_count(count)} suspended."


def _format_resumption(session_id: str, document: Document) -> str:
    count = document.get("resumed")
    if not isinstance(count, int) or count == 0:
        return f"Session {session_id} is still suspended."
    return f"Resumed {session_id}: {format_session_count(count)} resumed."


def _command_line(context: Context, *words: str) -> str:
    """Format a command for the user to run next, in the same zone."""
    zone = context.text("zone")
    return " ".join(["qd", *words, *([] if zone is None else ["--zone", zone])])


def _table(context: Context, sessions: list[Document]) -> str:
    if not sessions:
        return f"No sessions found in zone {context.zone}."
    now = time.time()
    field_names = ("id", "application_id", "status", "depth", "parent_id")
    rows = [[*(session.get(name) for name in field_names), *age_and_expiry(session, now)] for session in sessions]
    return table(("ID", "APPLICATION", "STATUS", "DEPTH", "PARENT", "AGE", "EXPIRY"), rows, context.styler)
