"""`qd member`: create, delete, list, capture, send-input, exec, ping."""

from __future__ import annotations

import sys

from quarterdeck.cli.command_table import FILE, NUMBER, TEXT, Argument, Group, Option, key_option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import report_problem, usage_error
from quarterdeck.cli.fleet_common import (
    AGENT_ID_OPTION,
    CODING_AGENT,
    MEMBER_ID_OPTION,
    PANE_CLOSE_SECONDS,
    current_pane,
    escape_control_characters,
    fleet_path,
    fleets_path,
    non_empty_text,
    pick_fields,
    read_text,
    require_agent_id,
    require_fleet_id,
    require_text,
    with_fleet_errors,
)
from quarterdeck.cli.list_output import Column, age, format_table, load_all, nested
from quarterdeck.cli.output import cell, format_duration, parse_timestamp
from quarterdeck.client.api import ApiClient, Document, Query, page_items
from quarterdeck.core.errors import EXIT_USAGE, Invalid, Problem

GROUP = Group(
    "member", "Manage the members of a fleet. Each is a coding agent in its own pane.", wrap=with_fleet_errors
)


_TEXT_ARGUMENT = Argument("words", "TEXT", TEXT, required=False, many=True)


@GROUP.command(
    "create",
    "Start a coding agent in its own pane.",
    _TEXT_ARGUMENT._replace(metavar="PROMPT"),
    AGENT_ID_OPTION,
    Option("--name", "Name of the member.", TEXT, required=True),
    Option("--description", "Purpose of the member.", TEXT, required=True, field="description"),
    Option("--coding-agent", "Coding agent to run in the pane [default: claude].", CODING_AGENT, field="coding_agent"),
    Option("--model", "Model for the coding agent.", TEXT),
    Option("--prompt-file", "File with the first prompt, as an absolute path.", FILE),
    key_option("member"),
    description=(
        "Only the fleet's director (--agent-id) can create members. Give the first prompt with --prompt-file "
        "or as words after two dashes. The default prompt has the member's name and director, and explains "
        "how to poll, acknowledge and send messages."
    ),
)
def create(context: Context) -> None:
    body = context.body(
        name=non_empty_text(context, "name"),
        director_id=require_agent_id(context),
        model=non_empty_text(context, "model"),
        prompt=_read_prompt(context),
        pane=current_pane(context),
    )
    path, key = fleet_path(context, "members"), context.idempotency_key()
    member = context.server().call("POST", path, body=body, key=key).document
    context.show(pick_fields(member, "agent_id", "name", "registered_at", "placement"), _format_created)


def _format_created(member: Document) -> str:
    pane = nested(member, "placement")
    placement = f"backend={cell(pane.get('coding_agent'))} pane={cell(pane.get('tmux_pane_id'))}"
    return f"{cell(member['agent_id'])} {cell(member['name'])} {placement}"


def _read_prompt(context: Context) -> str | None:
    words, file = context.values("words"), context.text("prompt_file")
    if words and file is not None:
        raise usage_error("Give --prompt-file or the words after --, not both.")
    if file is None:
        return " ".join(map(str, words)) or None
    if not file.startswith("/"):
        raise usage_error(f"--prompt-file: {file!r} is not an absolute path.")
    text = read_text(file)
    if not text.strip():
        raise Invalid("empty_prompt", f"{file} is empty")
    return text


@GROUP.command(
    "delete",
    "Stop a member's agent and deregister the member.",
    MEMBER_ID_OPTION,
    Option("--force", "Kill the process in the pane at once.", field="force"),
    description=(
        "Sends an exit command to the agent and waits until its pane has closed. If the agent does not exit "
        "in time, or another program is in the foreground of the pane, the agent stays a member. The command "
        "then prints the end of the pane and exits 2."
    ),
)
def delete(context: Context) -> int:
    # The server responds only after the pane has closed.
    server = context.server(extra_seconds=PANE_CLOSE_SECONDS)
    try:
        deletion = server.call("DELETE", _path(context), query=context.query()).document
    except Problem as problem:
        if problem.code != STILL_THERE_CODE:
            raise
        return _report_still_there(context, problem)
    context.show(deletion, f"Member deleted.\n{_format_pane_outcome(deletion)}")
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
    tail = problem.members.get("tail")
    report_problem(problem, as_json=context.as_json, prefix="Error")
    if not context.as_json and isinstance(tail, str):
        sys.stderr.write(f"--- end of its pane ---\n{escape_control_characters(tail.rstrip())}\n---\n")
    return EXIT_USAGE


# -- list and capture ------------------------------------------------------------------------------------------------


@GROUP.command(
    "list",
    "List members and their panes.",
    Option("--activity", "Show when each member last sent, received and acknowledged a message."),
)
def list_(context: Context) -> None:
    server, fleet_id, with_activity = context.server(), require_fleet_id(context), context.flag("activity")
    members = [
        {**member, **_load_activity(server, fleet_id, member)} if with_activity else member
        for member in load_all(server, fleets_path(fleet_id, "members"), "members", activity=with_activity)
        if member.get("kind") != "builtin-administrator"
    ]
    columns = _ACTIVITY_COLUMNS if with_activity else _COLUMNS
    context.show(members, lambda items: format_table(context, columns, items, "No members found."))


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


def _format_idle(member: Document, now: float) -> str | None:
    times = [parse_timestamp(member.get(name)) for name in ("last_sent", "last_received", "last_acknowledged")]
    known_times = [timestamp for timestamp in times if timestamp is not None]
    return format_duration(now - max(known_times)) if known_times else None


_COLUMNS = (
    Column("ID", "agent_id"),
    Column("NAME", "name"),
    Column("BACKEND", lambda member, _: nested(member, "placement").get("coding_agent")),
    Column("PANE", lambda member, _: nested(member, "placement").get("tmux_pane_id")),
)
_ACTIVITY_COLUMNS = (
    *_COLUMNS,
    Column("UNREAD", "unread"),
    Column("SENT", age("last_sent")),
    Column("RECEIVED", age("last_received")),
    Column("ACKNOWLEDGED", age("last_acknowledged")),
    Column("IDLE", _format_idle),
)


@GROUP.command(
    "capture",
    "Print the content of a pane.",
    MEMBER_ID_OPTION,
    Option("--lines", "Number of lines from the end [default: 30].", NUMBER, field="lines"),
    Option("--ansi", "Keep colors, as escape sequences.", field="ansi"),
)
def capture(context: Context) -> None:
    def render(document: Document) -> str:
        text = str(document.get("text") or "")
        # With --ansi, the user wants the escape sequences.
        return text if context.flag("ansi") else escape_control_characters(text)

    context.send("GET", context.with_query(_path(context, "capture")), render)


# -- typing ----------------------------------------------------------------------------------------------------------


@GROUP.command(
    "send-input",
    "Type text into a pane.",
    _TEXT_ARGUMENT,
    MEMBER_ID_OPTION,
    Option("--text", "Text to type; - for standard input.", TEXT),
    Option("--text-file", "File with the text to type; - for standard input.", FILE),
    Option("--no-enter", "Do not press Enter after the text."),
    description="Give one line of text as TEXT, with --text or --text-file, or on standard input with -.",
)
def send_input(context: Context) -> None:
    body: Document = {"text": require_text(context, _joined_words(context)), "enter": not context.flag("no_enter")}
    _post_action(context, "send-input", body, "Typed into")


@GROUP.command(
    "exec",
    "Make a member's agent run a shell command.",
    _TEXT_ARGUMENT,
    MEMBER_ID_OPTION,
    description="Types the command with a leading ! into the pane. The agent runs it with its own permissions.",
)
def exec_(context: Context) -> None:
    words = _joined_words(context)
    if words is None:
        raise usage_error("Give a command, in quotes or after two dashes.")
    _post_action(context, "exec", {"text": words}, "Sent a command to")


@GROUP.command("ping", "Ping a member, so that it polls for messages.", MEMBER_ID_OPTION)
def ping(context: Context) -> None:
    _post_action(context, "ping", None, "Pinged")


def _post_action(context: Context, action: str, body: Document | None, label: str) -> None:
    member = f"member {context.number('member_id')}"
    context.send(
        "POST", _path(context, action), lambda reply: f"{label} {member} ({cell(reply.get('pane_id'))}).", body=body
    )


def _joined_words(context: Context) -> str | None:
    return " ".join(map(str, context.values("words"))).strip() or None


def _path(context: Context, *action: str) -> str:
    return fleet_path(context, "members", context.number("member_id"), *action)
