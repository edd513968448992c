"""Shared by the fleet commands: fleet and agent ids, text input, message output, errors.

Agents run these commands constantly and pay for every token that they read, so the output is short: an error is
`Error: ` and a sentence, and message text is clipped unless --full is given.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from quarterdeck.cli.command_table import MEMBER_ID, Option, ParamType
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError, report_problem, usage_error
from quarterdeck.client.api import Document, build_path
from quarterdeck.core.errors import EXIT_FAILED, Invalid, Problem

AGENT_ID_OPTION = Option("--agent-id", "Member to act as [env: QD_AGENT_ID].", MEMBER_ID)
MEMBER_ID_OPTION = Option("--member-id", "Member id.", MEMBER_ID, required=True)
FULL_OPTION = Option("--full", "Print all fields, and do not clip text.")
CODING_AGENT = ParamType("claude|codex|opencode|…", str, ("claude", "codex", "opencode"))
"""Shell completion offers these names. The server's configuration decides which names are valid."""
PANE_CLOSE_SECONDS = 60.0
"""Added to the timeout of requests that the server answers only after panes have closed."""
DEFAULT_MAX_TEXT_LENGTH = "200"
_BIDI_CONTROLS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the text direction."""
CommandFunction = Callable[[Context], int | None]


def with_fleet_errors(run: CommandFunction) -> CommandFunction:
    """Wrap a fleet command: JSON is compact, and a problem prints `Error: …` and exits 1. Usage errors pass through."""

    def run_with_fleet_errors(context: Context) -> int | None:
        context.compact_json = True
        try:
            return run(context)
        except UsageError:
            raise
        except Problem as problem:
            report_problem(problem, as_json=context.as_json, prefix="Error")
            return EXIT_FAILED

    return run_with_fleet_errors


def fleet_id_or_none(context: Context) -> int | None:
    return context.number("fleet_id") or _id_in_variable(context, "QD_FLEET_ID")


def require_fleet_id(context: Context) -> int:
    return fleet_id_or_none(context) or _refuse("Give --fleet-id or set QD_FLEET_ID. `qd fleet list` lists the fleets.")


def agent_id_or_none(context: Context) -> int | None:
    return context.number("agent_id") or _id_in_variable(context, "QD_AGENT_ID")


def require_agent_id(context: Context) -> int:
    return agent_id_or_none(context) or _refuse("Give --agent-id or set QD_AGENT_ID.")


def _id_in_variable(context: Context, variable: str) -> int | None:
    text = context.environ.get(variable)
    return parse_member_id(text, variable) if text else None


def parse_member_id(text: str, source: str) -> int:
    """Parse the id of a fleet or member. `source` names the variable or argument in the error."""
    try:
        return int(str(MEMBER_ID.parse(text)))
    except ValueError as error:
        raise usage_error(f"{source}: {error}.") from None


def _refuse(detail: str) -> NoReturn:
    raise usage_error(detail)


def fleets_path(*segments: object) -> str:
    """Build a path below /api/v1/fleets: `fleets_path(1, "messages")`."""
    return build_path("api", "v1", "fleets", *map(str, segments))


def fleet_path(context: Context, *segments: object) -> str:
    """Build a path below the fleet of the command: `fleet_path(context, "messages")`."""
    return fleets_path(require_fleet_id(context), *segments)


def current_pane(context: Context) -> Document | None:
    """Return the pane that this command runs in, from TMUX (socket, pid, session) and TMUX_PANE. None outside tmux."""
    socket = context.environ.get("TMUX", "").rpartition(",")[0].rpartition(",")[0]
    pane_id = context.environ.get("TMUX_PANE", "")
    return {"socket": socket, "pane_id": pane_id} if socket and pane_id else None


def require_text(context: Context, argument_text: str | None) -> str:
    """Return the text from --text, --text-file or the arguments. Exactly one must be given; `-` is standard input."""
    option_text, file = context.text("text"), context.text("text_file")
    if sum(source is not None for source in (option_text, file, argument_text)) != 1:
        raise usage_error("Give exactly one of --text, --text-file or - (standard input).")
    inline_text = argument_text if option_text is None else option_text
    path = file if inline_text is None else "-" if inline_text == "-" else None
    text = str(inline_text) if path is None else read_text(path)
    if not text:
        raise Invalid("empty_text", f"{'the text' if path is None else _source_name(path)} is empty")
    return text


def non_empty_text(context: Context, key: str) -> str | None:
    """Return the text of an option, or None if it is not given. Raises if it is empty."""
    text = context.text(key)
    if text == "":
        raise Invalid("empty_text", f"--{key} is empty")
    return text


def read_text(path: str) -> str:
    """Read a file, or standard input if the path is `-`."""
    try:
        if path == "-":
            # sys.stdin is None if it was closed before the process started.
            data = b"" if sys.stdin is None else sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs 10 ms
                data = file.read()
        return data.decode()
    except UnicodeDecodeError:
        raise UnreadableInput("not_text", f"{_source_name(path)} is not valid UTF-8") from None
    except OSError as error:
        raise UnreadableInput("not_readable", f"{_source_name(path)}: {error.strerror or error}") from None


class UnreadableInput(Invalid, status=400, title="Not readable"): ...


def _source_name(path: str) -> str:
    return "standard input" if path == "-" else path


def clip_text(context: Context, text: object) -> str:
    """Clip the text to QD_MAX_TEXT_LEN characters (default 200), so that an agent reads fewer tokens."""
    content = text if isinstance(text, str) else ""
    variable = context.environ.get("QD_MAX_TEXT_LEN") or DEFAULT_MAX_TEXT_LENGTH
    if not (variable.isascii() and variable.isdigit() and len(variable) <= 9):
        raise usage_error(f"QD_MAX_TEXT_LEN: {variable!r} is not an integer (0 or greater).")
    limit = int(variable)
    return content if len(content) <= limit else f"{content[:limit]}…"


def escape_control_characters(text: str) -> str:
    """Escape control characters except newlines and tabs: text from other users must not move the cursor."""
    if text.isprintable():
        return text
    return "".join(char if _is_safe_character(char) else char.encode("unicode_escape").decode() for char in text)


def _is_safe_character(char: str) -> bool:
    code = ord(char)
    return char in "\n\t" or (code >= 0x20 and not 0x7F <= code < 0xA0 and char not in _BIDI_CONTROLS)


def pick_fields(document: Document, *names: str) -> Document:
    """Return only the named fields of a document, in this order."""
    return {name: document.get(name) for name in names}


MESSAGE_FIELDS = (
    *("task_id", "context_id", "from_agent_id", "to_agent_id", "type", "created_at"),
    *("status_state", "status_timestamp", "origin_task_id", "text"),
)


def message_document(context: Context, message: Document) -> Document:
    """Return `{"id","from","ts","text"}`, with `kind` and `origin` for a broadcast. With --full, all fields."""
    if context.flag("full"):
        return pick_fields(message, *MESSAGE_FIELDS)
    kind, origin = message.get("type"), message.get("origin_task_id")
    return {
        "id": message.get("task_id"),
        "from": message.get("from_agent_id"),
        "ts": message.get("status_timestamp"),
        "text": clip_text(context, message.get("text")),
        **({} if kind == "unicast" else {"kind": kind}),
        **({} if origin is None else {"origin": origin}),
    }


def format_message(context: Context, message: Document) -> str:
    """Format a header in brackets and the text below it. With --full, one line per field, the text last."""
    values = message_document(context, message)
    text = escape_control_characters(str(values.pop("text") or ""))
    if context.flag("full"):
        values |= {name: message[name] for name in ("notified_at", "notice") if message.get(name) is not None}
        lines = [f"{name}: {'' if value is None else value}" for name, value in values.items()]
        return "\n".join([*lines, f"text: {text}"])
    head = [str(values["id"]), f"from:{values['from']}", str(values["ts"])]
    head += [f"{name}:{values[name]}" for name in ("kind", "origin") if name in values]
    return f"[{' | '.join(head)}]\n{text}"
