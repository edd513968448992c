"""`qd session`: spawn, list, show, tree, suspend, resume, stop."""

from __future__ import annotations

import sys
import time

from quarterdeck.cli.command_table import (
    DURATION,
    ID,
    ID_ARGUMENT,
    JSON_OBJECT,
    REASON_OPTION,
    TEXT,
    Group,
    Option,
    choice,
    key_option,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import PAGING, Column, field_text, print_details, print_list
from quarterdeck.cli.receipt import RECEIPT_EXIT_HELP, RECEIPT_OPTION, delete_and_print, format_session_count
from quarterdeck.cli.session_tree import age_and_expiry, draw, glyphs_for
from quarterdeck.client.api import Document, page_items
from quarterdeck.core.errors import Conflict

GROUP = Group("session", "Manage sessions: live runs of agents. Sessions form trees.")


@GROUP.command(
    "spawn",
    "Spawn a session and print its id.",
    Option("--app", "Application that owns the session.", ID, required=True, field="application_id"),
    Option("--parent", "Parent session [default: none, a root session].", ID, field="parent_id"),
    Option("--ttl", "Lifetime, such as 90s, 15m or 2h [default: 1h].", DURATION, field="ttl_seconds"),
    Option("--capability", "Capability of the session; repeatable.", TEXT, many=True, field="capabilities"),
    Option("--metadata", "JSON object to store with the session.", JSON_OBJECT, field="metadata"),
    key_option("session"),
    Option("--sid", "Sign-in session id (sid) [default: the sid of the token].", TEXT, field="session_sid"),
    Option("--kind", "Kind of session.", choice("instance", "service", "ephemeral"), field="kind"),
)
def spawn(context: Context) -> None:
    # Only the id goes to stdout, so that a script can use it: qd session tree $(qd session spawn …)
    context.send("POST", context.zone_path("agents"), field_text("id"), body=context.body(), key=context.text("key"))


@GROUP.command(
    "list",
    "List sessions, newest first.",
    Option("--status", "Only sessions with this status.", choice("active", "suspended", "terminated"), field="status"),
    Option("--app", "Only sessions of this application.", ID, field="application_id"),
    Option("--parent", "Only direct children of this session.", ID, field="parent_id"),
    Option("--root", "Only sessions of the tree with this root.", ID, field="root_id"),
    *PAGING,
)
def list_(context: Context) -> None:
    print_list(context, context.zone_path("agents"), _COLUMNS, f"No sessions found in zone {context.zone}.")


@GROUP.command("show", "Show one session.", ID_ARGUMENT)
def show(context: Context) -> None:
    # `agent_session_id` repeats `id`.
    print_details(context, _path(context), "agent_session_id")


@GROUP.command("tree", "Draw a session and its descendants.", ID_ARGUMENT)
def tree(context: Context) -> None:
    glyphs = glyphs_for(sys.stdout.encoding)
    context.send(
        "GET", _path(context, "tree"), lambda tree: draw(page_items(tree), time.time(), context.styler, glyphs)
    )


@GROUP.command("suspend", "Suspend a session and its descendants.", ID_ARGUMENT)
def suspend(context: Context) -> None:
    session_id = context.required_text("id")
    unchanged, changed = f"Session {session_id} was already suspended.", f"Suspended {session_id}"
    context.send(
        "POST", _path(context, "suspend"), lambda reply: _format_change(reply, "suspended", unchanged, changed)
    )


@GROUP.command("resume", "Resume a session and the descendants suspended with it.", ID_ARGUMENT)
def resume(context: Context) -> None:
    session_id = context.required_text("id")
    unchanged, changed = f"Session {session_id} is still suspended.", f"Resumed {session_id}"
    try:
        document = context.send(
            "POST", _path(context, "resume"), lambda reply: _format_change(reply, "resumed", unchanged, changed)
        )
    except Conflict as conflict:
        holder_id = conflict.members.get("held_by")
        if isinstance(holder_id, str) and not context.as_json:
            # Text output shows the command to run. JSON output has the id of the session to resume in `held_by`.
            conflict.members["frees"] = f"`{_command_line(context, 'session', 'resume', holder_id)}`"
        raise
    if document.get("resumed") == 0:
        command = _command_line(context, "explain", "session", session_id)
        context.hint(f"An ancestor is still suspended. Find it with `{command}`.")


@GROUP.command(
    "stop",
    "Terminate a session and its descendants.",
    ID_ARGUMENT,
    REASON_OPTION,
    RECEIPT_OPTION,
    description=RECEIPT_EXIT_HELP,
)
def stop(context: Context) -> int | None:
    session_id = context.required_text("id")
    document: Document = {"id": session_id, "status": "terminated"}
    return delete_and_print(context, _path(context), document, f"Stopped session {session_id}.")


def _format_change(document: Document, field: str, unchanged: str, changed: str) -> str:
    """Format how many sessions the request changed. `field` has the count."""
    count = document.get(field)
    return f"{changed}: {format_session_count(count)} {field}." if isinstance(count, int) and count else unchanged


def _command_line(context: Context, *words: str) -> str:
    """Format a command for the user to run next, in the same zone."""
    zone = context.text("zone")
    return " ".join(["qd", *words, *([] if zone is None else ["--zone", zone])])


def _path(context: Context, *segments: str) -> str:
    return context.zone_path("agents", context.required_text("id"), *segments)


_COLUMNS = (
    Column("ID", "id"),
    Column("APPLICATION", "application_id"),
    Column("STATUS", "status"),
    Column("DEPTH", "depth"),
    Column("PARENT", "parent_id"),
    Column("AGE", lambda session, now: age_and_expiry(session, now)[0]),
    Column("EXPIRY", lambda session, now: age_and_expiry(session, now)[1]),
)
