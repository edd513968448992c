"""Members of a fleet and their panes: create, delete, list, look at, type into, ping."""

from __future__ import annotations

import os
import sys
import time

from quarterdeck.cli.command_table import FILE, NUMBER, TEXT, Argument, Command, Noun, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import Usage
from quarterdeck.cli.fleet_agents import members
from quarterdeck.cli.fleet_common import (
    AGENT,
    CODING_AGENTS,
    PANES_SECONDS,
    TARGET,
    agent,
    fleet,
    fleets,
    given_text,
    harmless,
    pane,
    picked,
    plainly,
    read_text,
    target,
    tell,
    worded,
)
from quarterdeck.cli.input import without_nothing
from quarterdeck.cli.output import cell, instant, span, table
from quarterdeck.client.api import Document, Query, Server, items_of
from quarterdeck.core.errors import EXIT_USAGE, Invalid, Problem


def noun() -> Noun:
    words = Argument("words", "TEXT", TEXT, required=False, many=True)
    prompt, typed = words._replace(metavar="PROMPT"), (words,)
    return Noun(
        (
            Command(
                ("member", "create"),
                "Begin a coding agent in a pane of its own.",
                plainly(create),
                (prompt,),
                _CREATE,
                _CREATING,
            ),
            Command(
                ("member", "delete"),
                "Have a member exit, and deregister it.",
                plainly(delete),
                options=(TARGET, Option("--force", "Kill what runs in its pane, at once.")),
                description=_DELETING,
            ),
            Command(("member", "list"), "List members and their panes.", plainly(list_), options=(_ACTIVITY,)),
            Command(("member", "capture"), "Print what a pane shows.", plainly(capture), options=_CAPTURE),
            Command(("member", "send-input"), "Type into a pane.", plainly(send_input), typed, _INPUT, _TYPING),
            Command(
                ("member", "exec"),
                "Have a member's agent run a shell command.",
                plainly(exec_),
                typed,
                (TARGET,),
                _EXECUTING,
            ),
            Command(("member", "ping"), "Have a member look for messages.", plainly(ping), options=(TARGET,)),
        ),
        {"member": "Members of a fleet: coding agents, each in a pane of its own."},
    )


_CREATE = (
    AGENT,
    Option("--name", "What it is called.", TEXT, required=True),
    Option("--description", "What it is for.", TEXT, required=True),
    Option("--coding-agent", "What runs in its pane [default: claude].", CODING_AGENTS),
    Option("--model", "The model it works with.", TEXT),
    Option("--prompt-file", "A file with what it is told at first; its whole path.", FILE),
    Option("--key", "Idempotency key: repeating the command gives the same member.", TEXT),
)
_CREATING = """By the fleet's director (--agent-id). What it is told at first is given by --prompt-file, or by the words
after two dashes; without either it is told who it is, who directs it, and how to poll, acknowledge and send."""
_DELETING = """Its agent is told to exit, and is waited for. One that does not go in time, or cannot be told because
something else is in front of it, stays a member: the end of what its pane shows is printed, and the command exits
with 2."""
_ACTIVITY = Option("--activity", "Also when each last sent, received and acknowledged something.")
_CAPTURE = (
    TARGET,
    Option("--lines", "How many of the last lines [default: 30].", NUMBER),
    Option("--ansi", "With colours, as escape sequences."),
)
_INPUT = (
    TARGET,
    Option("--text", "What is typed (- for standard input).", TEXT),
    Option("--text-file", "A file with what is typed (- for standard input).", FILE),
    Option("--no-enter", "Type it, and leave the Enter to somebody else."),
)
_TYPING = "What is typed is given as words, by --text, by --text-file, or with - on standard input: one line."
_EXECUTING = "The agent is told by a leading ! to run it: the agent, not this command, and with its rights."


def create(context: Context) -> int:
    body = without_nothing(
        {
            "name": worded(context, "name"),
            "description": context.given("description"),
            "director_id": agent(context),
            "coding_agent": context.text("coding_agent"),
            "model": worded(context, "model"),
            "prompt": _prompt(context),
            "pane": pane(context),
        }
    )
    key = context.text("key") or f"qd-{os.urandom(16).hex()}"
    path = fleets(fleet(context), "members")
    told = context.server().call("POST", path, body=body, key=key).document
    tell(
        context,
        picked(told, "agent_id", "name", "registered_at", "placement"),
        lambda: f"{cell(told.get('agent_id'))} {cell(told.get('name'))} {_placed(told)}",
    )
    return 0


def _prompt(context: Context) -> str | None:
    words, file = context.many("words"), context.text("prompt_file")
    if words and file is not None:
        raise Usage("usage", "--prompt-file or the words after --: one of them.")
    if file is None:
        return " ".join(map(str, words)) or None
    if not file.startswith("/"):
        raise Usage("usage", f"--prompt-file takes a whole path, and {file!r} is none.")
    text = read_text(file)
    if not text.strip():
        raise Invalid("empty_prompt", f"{file} is empty")
    return text


def delete(context: Context) -> int:
    number = target(context)
    server = context.server()
    # The pane is watched until it has gone, and the answer waits for that.
    server.connection.timeout += PANES_SECONDS
    try:
        told = server.call(
            "DELETE", fleets(fleet(context), "members", number), query={"force": context.flag("force")}
        ).document
    except Problem as problem:
        if problem.code != STILL_THERE:
            raise
        return _still_there(context, problem)
    tell(context, told, lambda: f"Member deleted.\n{_fate(told)}")
    return 0


STILL_THERE = "member_still_there"
_FATES = {
    "exited": "has closed",
    "killed": "was killed",
    "pane_gone": "was gone already",
    "other_host": "is on another host, and was left alone",
    "other_tmux": "was of a tmux server that is gone",
    "not_the_agent": "runs something else by now, and was left open",
}


def _fate(told: Document) -> str:
    name, fate = told.get("pane_id"), told.get("pane")
    if name is None or fate in (None, "no_pane"):
        return "It had no pane."
    return f"Pane {cell(name)} {_FATES.get(str(fate), cell(fate))}."


def _still_there(context: Context, problem: Problem) -> int:
    """The member stays. What its pane shows says what it waits for."""
    from quarterdeck.cli.errors import tell as tell_problem

    tail = problem.members.get("tail")
    tell_problem(problem, as_json=context.as_json, opening="Error")
    if not context.as_json and isinstance(tail, str):
        sys.stderr.write(f"--- the last of its pane ---\n{harmless(tail.rstrip())}\n---\n")
    return EXIT_USAGE


# -- looking ---------------------------------------------------------------------------------------------------------


def list_(context: Context) -> int:
    server = context.server()
    where = fleet(context)
    found = [
        one
        for one in members(server, where, activity=context.flag("activity"))
        if one.get("kind") != "builtin-administrator"
    ]
    if context.flag("activity"):
        found = [{**one, **_activity(server, where, one)} for one in found]
    tell(context, found, lambda: _table(context, found) if found else "No members found.")
    return 0


def _activity(server: Server, where: int, member: Document) -> Document:
    """Each from the newest of a list: that costs the same, however long the list is."""

    def newest(box: str, name: str, **query: str) -> object:
        path = fleets(where, "members", member.get("agent_id"), box)
        asked: Query = {**query, "limit": 1}
        found = items_of(server.get(path, asked), "messages")
        return found[0].get(name) if found else None

    return {
        "last_sent": newest("sent", "created_at"),
        "last_received": newest("inbox", "created_at"),
        "last_acknowledged": newest("inbox", "status_timestamp", status="completed"),
    }


def _table(context: Context, found: list[Document]) -> str:
    heads = ["ID", "NAME", "BACKEND", "PANE"]
    rows: list[list[object]] = [
        [one.get("agent_id"), one.get("name"), _of_pane(one, "coding_agent"), _of_pane(one, "tmux_pane_id")]
        for one in found
    ]
    if context.flag("activity"):
        heads += ["UNREAD", "SENT", "RECEIVED", "ACKNOWLEDGED", "IDLE"]
        now = time.time()
        for row, one in zip(rows, found, strict=True):
            at = [instant(one.get(name)) for name in ("last_sent", "last_received", "last_acknowledged")]
            said = [when for when in at if when is not None]
            row += [one.get("unread"), *(None if when is None else span(now - when) for when in at)]
            row.append(span(now - max(said)) if said else None)
    return table(heads, rows, context.paint)


def capture(context: Context) -> int:
    query: Query = {"lines": context.number("lines"), "ansi": context.flag("ansi")}
    told = context.server().get(_path(context, "capture"), query)
    text = str(told.get("text") or "")
    # With --ansi the sequences are what was asked for.
    tell(context, told, lambda: text if context.flag("ansi") else harmless(text))
    return 0


# -- typing ----------------------------------------------------------------------------------------------------------


def send_input(context: Context) -> int:
    body: Document = {"text": given_text(context, _typed(context)), "enter": not context.flag("no_enter")}
    return _type(context, "send-input", body, "Typed into")


def exec_(context: Context) -> int:
    words = _typed(context)
    if words is None:
        raise Usage("usage", "Which command? Give it in quotes, or after two dashes.")
    return _type(context, "exec", {"text": words}, "Sent a command to")


def ping(context: Context) -> int:
    return _type(context, "ping", None, "Pinged")


def _type(context: Context, verb: str, body: Document | None, said: str) -> int:
    told = context.server().call("POST", _path(context, verb), body=body).document
    tell(context, told, lambda: f"{said} member {target(context)} ({cell(told.get('pane_id'))}).")
    return 0


def _typed(context: Context) -> str | None:
    return " ".join(map(str, context.many("words"))).strip() or None


def _path(context: Context, verb: str) -> str:
    return fleets(fleet(context), "members", target(context), verb)


def _placed(told: Document) -> str:
    return f"backend={cell(_of_pane(told, 'coding_agent'))} pane={cell(_of_pane(told, 'tmux_pane_id'))}"


def _of_pane(member: Document, name: str) -> object:
    placement = member.get("placement")
    return placement.get(name) if isinstance(placement, dict) else None
