"""`qd member`: create, delete, list, capture, send-input, exec, ping."""

from __future__ import annotations

import os
import sys
import time

from quarterdeck.cli.command_table import FILE, NUMBER, TEXT, Argument, Command, CommandTable, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.fleet_agents import load_members
from quarterdeck.cli.fleet_common import (
    AGENT_ID_OPTION,
    CODING_AGENT,
    MEMBER_ID_OPTION,
    PANE_CLOSE_SECONDS,
    current_pane,
    escape_control_characters,
    fleets_path,
    non_empty_text,
    pick_fields,
    print_result,
    read_text,
    require_agent_id,
    require_fleet_id,
    require_text,
    target_member_id,
    with_fleet_errors,
)
from quarterdeck.cli.input import without_none
from quarterdeck.cli.output import cell, format_duration, parse_timestamp, table
from quarterdeck.client.api import ApiClient, Document, Query, page_items
from quarterdeck.core.errors import EXIT_USAGE, Invalid, Problem


def build_command_table() -> CommandTable:
    text_argument = Argument("words", "TEXT", TEXT, required=False, many=True)
    prompt_argument, text_arguments = text_argument._replace(metavar="PROMPT"), (text_argument,)
    return CommandTable(
        (
            Command(
                ("member", "create"),
                "Start a coding agent in its own pane.",
                with_fleet_errors(create),
                (prompt_argument,),
                _CREATE_OPTIONS,
                _CREATE_HELP,
            ),
            Command(
                ("member", "delete"),
                "Stop a member's agent and deregister the member.",
                with_fleet_errors(delete),
                options=(MEMBER_ID_OPTION, Option("--force", "Kill the process in the pane at once.")),
                description=_DELETE_HELP,
            ),
            Command(
                ("member", "list"),
                "List members and their panes.",
                with_fleet_errors(list_),
                options=(_ACTIVITY_OPTION,),
            ),
            Command(
                ("member", "capture"),
                "Print the content of a pane.",
                with_fleet_errors(capture),
                options=_CAPTURE_OPTIONS,
            ),
            Command(
                ("member", "send-input"),
                "Type text into a pane.",
                with_fleet_errors(send_input),
                text_arguments,
                _SEND_INPUT_OPTIONS,
                _SEND_INPUT_HELP,
            ),
            Command(
                ("member", "exec"),
                "Make a member's agent run a shell command.",
                with_fleet_errors(exec_),
                text_arguments,
                (MEMBER_ID_OPTION,),
                _EXEC_HELP,
            ),
            Command(
                ("member", "ping"),
                "Ping a member, so that it polls for messages.",
                with_fleet_errors(ping),
                options=(MEMBER_ID_OPTION,),
            ),
        ),
        {"member": "Manage the members of a fleet. Each is a coding agent in its own pane."},
    )


_CREATE_OPTIONS = (
    AGENT_ID_OPTION,
    Option("--name", "Name of the member.", TEXT, required=True),
    Option("--description", "Purpose of the member.", TEXT, required=True),
    Option("--coding-agent", "Coding agent to run in the pane [default: claude].", CODING_AGENT),
    Option("--model", "Model for the coding agent.", TEXT),
    Option("--prompt-file", "File with the first prompt, as an absolute path.", FILE),
    Option("--key", "Idempotency key: the same key returns the same member.", TEXT),
)
_CREATE_HELP = """Only the fleet's director (--agent-id) can create members. Give the first prompt with --prompt-file or
as words after two dashes. The default prompt has the member's name and director, and explains how to poll, acknowledge
and send messages."""
_DELETE_HELP = """Sends an exit command to the agent and waits until its pane has closed. If the agent does not exit in
time, or another program is in the foreground of the pane, the agent stays a member. The command then prints the
end of the pane and exits 2."""
_ACTIVITY_OPTION = Option("--activity", "Show when each member last sent, received and acknowledged a message.")
_CAPTURE_OPTIONS = (
    MEMBER_ID_OPTION,
    Option("--lines", "Number of lines from the end [default: 30].", NUMBER),
    Option("--ansi", "Keep colors, as escape sequences."),
)
_SEND_INPUT_OPTIONS = (
    MEMBER_ID_OPTION,
    Option("--text", "Text to type; - for standard input.", TEXT),
    Option("--text-file", "File with the text to type; - for standard input.", FILE),
    Option("--no-enter", "Do not press Enter after the text."),
)
_SEND_INPUT_HELP = "Give one line of text as TEXT, with --text or --text-file, or on standard input with -."
_EXEC_HELP = "Types the command with a leading ! into the pane. The agent runs it with its own permissions."


def create(context: Context) -> int:
    body = without_none(
        {
            "name": non_empty_text(context, "name"),
            "description": context.required_text("description"),
            "director_id": require_agent_id(context),
            "coding_agent": context.text("coding_agent"),
            "model": non_empty_text(context, "model"),
            "prompt": _read_prompt(context),
            "pane": current_pane(context),
        }
    )
    key = context.text("key") or f"qd-{os.urandom(16).hex()}"
    path = fleets_path(require_fleet_id(context), "members")
    document = context.server().call("POST", path, body=body, key=key).document
    print_result(
        context,
        pick_fields(document, "agent_id", "name", "registered_at", "placement"),
        lambda: f"{cell(document.get('agent_id'))} {cell(document.get('name'))} {_format_placement(document)}",
    )
    return 0


def _read_prompt(context: Context) -> str | None:
    words, file = context.values("words"), context.text("prompt_file")
    if words and file is not None:
        raise UsageError("usage", "Give --prompt-file or the words after --, not both.")
    if file is None:
        return " ".join(map(str, words)) or None
    if not file.startswith("/"):
        raise UsageError("usage", f"--prompt-file: {file!r} is not an absolute path.")
    text = read_text(file)
    if not text.strip():
        raise Invalid("empty_prompt", f"{file} is empty")
    return text


def delete(context: Context) -> int:
    member_id = target_member_id(context)
    server = context.server()
    # The server responds only after the pane has closed.
    server.connection.timeout_seconds += PANE_CLOSE_SECONDS
    try:
        document = server.call(
            "DELETE",
            fleets_path(require_fleet_id(context), "members", member_id),
            query={"force": context.flag("force")},
        ).document
    except Problem as problem:
        if problem.code != STILL_THERE_CODE:
            raise
        return _report_still_there(context, problem)
    print_result(context, document, lambda: f"Member deleted.\n{_format_pane_outcome(document)}")
    return 0


STILL_THERE_CODE = "member_still_there"
_PANE_OUTCOMES = {
    "exited": "was closed",
    "killed": "was killed",
    "pane_gone": "no longer existed",
    "other_host": "is on another host and was not closed",
    "other_tmux": "belonged to a tmux server that has exited",
    "not_the_agent": "is now running something else and was not closed",
}


def _format_pane_outcome(receipt: Document) -> str:
    pane_id, outcome = receipt.get("pane_id"), receipt.get("pane")
    if pane_id is None or outcome in (None, "no_pane"):
        return "The member had no pane."
    return f"Pane {cell(pane_id)} {_PANE_OUTCOMES.get(str(outcome), cell(outcome))}."


def _report_still_there(context: Context, problem: Problem) -> int:
    """Report that the member still exists. Prints the end of its pane, which shows what the agent is waiting for."""
    from quarterdeck.cli.errors import report_problem

    tail = problem.members.get("tail")
    report_problem(problem, as_json=context.as_json, prefix="Error")
    if not context.as_json and isinstance(tail, str):
        sys.stderr.write(f"--- end of its pane ---\n{escape_control_characters(tail.rstrip())}\n---\n")
    return EXIT_USAGE


# -- list and capture ------------------------------------------------------------------------------------------------


def list_(context: Context) -> int:
    server = context.server()
    fleet_id = require_fleet_id(context)
    members = [
        member
        for member in load_members(server, fleet_id, activity=context.flag("activity"))
        if member.get("kind") != "builtin-administrator"
    ]
    if context.flag("activity"):
        members = [{**member, **_load_activity(server, fleet_id, member)} for member in members]
    print_result(context, members, lambda: _table(context, members) if members else "No members found.")
    return 0


def _load_activity(server: ApiClient, fleet_id: int, member: Document) -> Document:
    """Load the times of the newest messages. Each request reads one item, so long lists cost no more."""

    def load_newest(mailbox: str, field: str, **query: str) -> object:
        path = fleets_path(fleet_id, "members", member.get("agent_id"), mailbox)
        newest_query: Query = {**query, "limit": 1}
        messages = page_items(server.get(path, newest_query), "messages")
        return messages[0].get(field) if messages else None

    return {
        "last_sent": load_newest("sent", "created_at"),
        "last_received": load_newest("inbox", "created_at"),
        "last_acknowledged": load_newest("inbox", "status_timestamp", status="completed"),
    }


def _table(context: Context, members: list[Document]) -> str:
    headers = ["ID", "NAME", "BACKEND", "PANE"]
    rows: list[list[object]] = [
        [
            member.get("agent_id"),
            member.get("name"),
            _pane_field(member, "coding_agent"),
            _pane_field(member, "tmux_pane_id"),
        ]
        for member in members
    ]
    if context.flag("activity"):
        headers += ["UNREAD", "SENT", "RECEIVED", "ACKNOWLEDGED", "IDLE"]
        now = time.time()
        for row, member in zip(rows, members, strict=True):
            times = [parse_timestamp(member.get(name)) for name in ("last_sent", "last_received", "last_acknowledged")]
            known_times = [timestamp for timestamp in times if timestamp is not None]
            row += [
                member.get("unread"),
                *(None if timestamp is None else format_duration(now - timestamp) for timestamp in times),
            ]
            row.append(format_duration(now - max(known_times)) if known_times else None)
    return table(headers, rows, context.styler)


def capture(context: Context) -> int:
    query: Query = {"lines": context.number("lines"), "ansi": context.flag("ansi")}
    document = context.server().get(_path(context, "capture"), query)
    text = str(document.get("text") or "")
    # With --ansi, the user wants the escape sequences.
    print_result(context, document, lambda: text if context.flag("ansi") else escape_control_characters(text))
    return 0


# -- typing ----------------------------------------------------------------------------------------------------------


def send_input(context: Context) -> int:
    body: Document = {"text": require_text(context, _joined_words(context)), "enter": not context.flag("no_enter")}
    return _post_action(context, "send-input", body, "Typed into")


def exec_(context: Context) -> int:
    words = _joined_words(context)
    if words is None:
        raise UsageError("usage", "Give a command, in quotes or after two dashes.")
    return _post_action(context, "exec", {"text": words}, "Sent a command to")


def ping(context: Context) -> int:
    return _post_action(context, "ping", None, "Pinged")


def _post_action(context: Context, action: str, body: Document | None, label: str) -> int:
    document = context.server().call("POST", _path(context, action), body=body).document
    print_result(
        context, document, lambda: f"{label} member {target_member_id(context)} ({cell(document.get('pane_id'))})."
    )
    return 0


def _joined_words(context: Context) -> str | None:
    return " ".join(map(str, context.values("words"))).strip() or None


def _path(context: Context, action: str) -> str:
    return fleets_path(require_fleet_id(context), "members", target_member_id(context), action)


def _format_placement(member: Document) -> str:
    return f"backend={cell(_pane_field(member, 'coding_agent'))} pane={cell(_pane_field(member, 'tmux_pane_id'))}"


def _pane_field(member: Document, name: str) -> object:
    placement = member.get("placement")
    return placement.get(name) if isinstance(placement, dict) else None
