"""Sessions: spawn, list, show, draw as a tree, suspend, resume, stop."""

from __future__ import annotations

import sys
import time

from quarterdeck.cli.command_table import DURATION, ID, OBJECT, TEXT, Argument, Command, Noun, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.list_output import PAGES, show_list, show_one
from quarterdeck.cli.output import cell, table
from quarterdeck.cli.receipt import LEFT_EXITS, hand_out, sessions
from quarterdeck.cli.session_tree import draw, life, lines_for
from quarterdeck.client.api import Document, items_of
from quarterdeck.core.errors import Conflict


def noun() -> Noun:
    one = (Argument("id", "ID", ID),)
    return Noun(
        (
            Command(("session", "spawn"), "Start a session and print its id.", spawn, options=_SPAWN),
            Command(("session", "list"), "List sessions, newest first.", list_, options=_LIST),
            Command(("session", "show"), "Show one session.", show, one),
            Command(("session", "tree"), "Draw a session and all below it.", tree, one),
            Command(("session", "suspend"), "Put a session and all below it to sleep.", suspend, one),
            Command(("session", "resume"), "Wake what only this session's suspension holds.", resume, one),
            Command(("session", "stop"), "End a session and all below it.", stop, one, _STOP, LEFT_EXITS),
        ),
        {"session": "Live runs of agents. Sessions form trees."},
    )


_KINDS = choice("instance", "service", "ephemeral")
_STATUSES = choice("active", "suspended", "terminated")
_SPAWN = (
    Option("--app", "The application that owns it.", ID, required=True),
    Option("--parent", "The session it is spawned under.", ID),
    Option("--ttl", "How long it may live: 90, 15m, 2h [default: 1h].", DURATION),
    Option("--capability", "A capability it has; may be repeated.", TEXT, many=True),
    Option("--metadata", "A JSON object to keep with it.", OBJECT),
    Option("--key", "Idempotency key: repeating the command gives the same session.", TEXT),
    Option("--sid", "The sid of the sign-in behind it [default: the token's].", TEXT),
    Option("--kind", "What it is for.", _KINDS),
)
_LIST = (
    Option("--status", "Only those in this status.", _STATUSES),
    Option("--app", "Only those of this application.", ID),
    Option("--parent", "Only those right below this session.", ID),
    Option("--root", "Only those of the tree with this root.", ID),
    *PAGES,
)
_STOP = (
    Option("--reason", "Why, for the record [default: requested].", TEXT),
    Option("--receipt", "Print what was stopped, and what was left."),
)


def spawn(context: Context) -> int:
    """The id alone on stdout, because it is what the next command wants: `qd session tree $(qd session
    spawn …)`."""
    asked = {
        "application_id": context.given("app"),
        "parent_id": context.text("parent"),
        "ttl_seconds": context.number("ttl"),
        "capabilities": context.many("capability") or None,
        "metadata": context.ask.values["metadata"],
        "session_sid": context.text("sid"),
        "kind": context.text("kind"),
    }
    body = {name: value for name, value in asked.items() if value is not None}
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
    return show_list(context, context.in_zone("agents"), query, _table)


def show(context: Context) -> int:
    # The same value under two names is told once.
    return show_one(context, context.in_zone("agents", context.given("id")), "agent_session_id")


def tree(context: Context) -> int:
    subtree = context.server().get(context.in_zone("agents", context.given("id"), "tree"))
    lines = lines_for(sys.stdout.encoding)
    context.show(subtree, lambda told: draw(items_of(told), time.time(), context.paint, lines))
    return 0


def suspend(context: Context) -> int:
    target = context.given("id")
    reply = context.server().call("POST", context.in_zone("agents", target, "suspend"))
    context.show(reply.document, lambda told: f"suspended {target}: {_moved(told, 'suspended')}")
    return 0


def resume(context: Context) -> int:
    target = context.given("id")
    try:
        reply = context.server().call("POST", context.in_zone("agents", target, "resume"))
    except Conflict as refused:
        holder = refused.members.get("held_by")
        if isinstance(holder, str) and not context.as_json:
            # People are told what to type; a program has the holder's id as a member of its own.
            refused.members["frees"] = f"`{_line(context, 'session', 'resume', holder)}`"
        raise
    context.show(reply.document, lambda told: f"resumed {target}: {_moved(told, 'resumed')}")
    if reply.document.get("resumed") == 0 and not context.as_json:
        context.note(f"an ancestor still holds it: `{_line(context, 'explain', 'session', target)}` says which")
    return 0


def stop(context: Context) -> int:
    target, receipt = context.given("id"), context.flag("receipt")
    query = {"reason": context.text("reason"), "receipt": receipt}
    reply = context.server().call("DELETE", context.in_zone("agents", target), query=query)
    if receipt:
        return hand_out(context, reply.document)
    context.show({"id": target, "status": "terminated"}, lambda told: f"stopped {cell(told['id'])}")
    return 0


def _moved(told: Document, name: str) -> str:
    """How many fell asleep or woke."""
    moved = told.get(name)
    count = moved if isinstance(moved, int) else 0
    if name == "suspended":
        return f"{sessions(count)} fell asleep" if count else "it slept already"
    return f"{sessions(count)} woke" if count else "it sleeps on"


def _line(context: Context, *words: str) -> str:
    """A command to type next, for the zone that this one was about."""
    zone = context.text("zone")
    return " ".join(["qd", *words, *([] if zone is None else ["--zone", zone])])


def _table(context: Context, sessions: list[Document]) -> str:
    if not sessions:
        return f"no such sessions in zone {context.zone}"
    now = time.time()
    named = ("id", "application_id", "status", "depth", "parent_id")
    rows = [[*(session.get(name) for name in named), *life(session, now)] for session in sessions]
    return table(("ID", "APPLICATION", "STATUS", "DEPTH", "PARENT", "AGE", "LIFE"), rows, context.paint)
