"""What the commands of fleets share: who acts, and in which fleet; how much of a text is shown; how they fail.

Agents type these all day and read every word of the answer, so they are terse where others are kind: an error is
`Error: ` and a sentence, whatever went wrong exits with 1, and a text is clipped unless it is asked for in full.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from quarterdeck.cli.command_table import MEMBER, Kind, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import Usage
from quarterdeck.client.api import Document, path_of
from quarterdeck.core.errors import EXIT_FAILED, Invalid, Problem

AGENT = Option("--agent-id", "The member who acts [env QD_AGENT_ID].", MEMBER)
TARGET = Option("--member-id", "The member.", MEMBER, required=True)
FULL = Option("--full", "Every field, and texts as long as they are.")
CODING_AGENTS = Kind("claude|codex|opencode|…", str, ("claude", "codex", "opencode"))
"""What is offered; which there are is a matter of the server's configuration."""
PANES_SECONDS = 60.0
"""How much longer an answer may take that waits for panes to close."""
MAX_TEXT = 200
_TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""They change the direction in which what follows is read."""
Run = Callable[[Context], int]


def plainly(run: Run) -> Run:
    """The same command, whose failures are told as this plane tells them. A wrong command line stays one."""

    def run_plainly(context: Context) -> int:
        try:
            return run(context)
        except Usage:
            raise
        except Problem as problem:
            from quarterdeck.cli.errors import tell

            tell(problem, as_json=context.as_json, opening="Error")
            return EXIT_FAILED

    return run_plainly


def fleet_or_none(context: Context) -> int | None:
    return _number(context, "fleet_id", "QD_FLEET_ID")


def fleet(context: Context) -> int:
    found = fleet_or_none(context)
    if found is None:
        raise Usage("usage", "Which fleet? Give --fleet-id, or set QD_FLEET_ID. `qd fleet list` lists them.")
    return found


def agent_or_none(context: Context) -> int | None:
    return _number(context, "agent_id", "QD_AGENT_ID")


def agent(context: Context) -> int:
    found = agent_or_none(context)
    if found is None:
        raise Usage("usage", "Who acts? Give --agent-id, or set QD_AGENT_ID.")
    return found


def target(context: Context) -> int:
    """The member that a command is about."""
    found = context.number("member_id")
    assert found is not None  # both parsers refuse a line without it
    return found


def fleets(*rest: object) -> str:
    """A path below `fleets`: `fleets(1, "messages")`."""
    return path_of("api", "v1", "fleets", *map(str, rest))


def _number(context: Context, key: str, variable: str) -> int | None:
    given = context.number(key)
    told = context.environ.get(variable)
    if given is not None or not told:
        return given
    try:
        return int(str(MEMBER.convert(told)))
    except ValueError as wrong:
        raise Usage("usage", f"{variable}: {wrong}.") from None


def pane(context: Context) -> Document | None:
    """The pane that this command runs in, as tmux says by `$TMUX` (socket, pid, session) and `$TMUX_PANE`; None
    outside of tmux."""
    socket = context.environ.get("TMUX", "").rpartition(",")[0].rpartition(",")[0]
    pane_id = context.environ.get("TMUX_PANE", "")
    return {"socket": socket, "pane_id": pane_id} if socket and pane_id else None


def given_text(context: Context, words: str | None) -> str:
    """What is said by --text, by a file, or in words, of all of which `-` stands for standard input. One of them."""
    said, file = context.text("text"), context.text("text_file")
    if sum(one is not None for one in (said, file, words)) != 1:
        raise Usage("usage", "What is said? Give one of --text, --text-file and - (standard input).")
    given = words if said is None else said
    path = file if given is None else "-" if given == "-" else None
    text = str(given) if path is None else read_text(path)
    if not text:
        raise Invalid("empty_text", f"{'the text' if path is None else _named(path)} is empty")
    return text


def worded(context: Context, key: str) -> str | None:
    """What may be left away, but says something where it is given."""
    text = context.text(key)
    if text == "":
        raise Invalid("empty_text", f"--{key} is empty")
    return text


def read_text(path: str) -> str:
    """A file, or with `-` standard input, as it is."""
    import sys

    try:
        if path == "-":
            # None: it was closed before we began.
            data = b"" if sys.stdin is None else sys.stdin.buffer.read()
        else:
            with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs 10 ms
                data = file.read()
        return data.decode()
    except UnicodeDecodeError:
        raise NotReadable("not_text", f"{_named(path)} is not text in UTF-8") from None
    except OSError as wrong:
        raise NotReadable("not_readable", f"{_named(path)}: {wrong.strerror or wrong}") from None


class NotReadable(Invalid):
    """What was to be sent cannot be read."""

    status = 400
    title = "Not readable"


def _named(path: str) -> str:
    return "standard input" if path == "-" else path


def tell(context: Context, document: object, text: Callable[[], str]) -> None:
    """The answer: JSON in one line, without a blank, or what people and agents read."""
    if context.as_json:
        context.write(json.dumps(document, ensure_ascii=False, separators=(",", ":")))
    else:
        context.write(text())


def clipped(context: Context, text: object) -> str:
    """As much of a text as is shown: what is left out costs the reader nothing."""
    told = text if isinstance(text, str) else ""
    variable = context.environ.get("QD_MAX_TEXT_LEN")
    most = MAX_TEXT
    if variable:
        if not (variable.isascii() and variable.isdigit() and len(variable) <= 9):
            raise Usage("usage", f"QD_MAX_TEXT_LEN: {variable!r} is not a whole number.")
        most = int(variable)
    return told if len(told) <= most else f"{told[:most]}…"


def harmless(text: str) -> str:
    """A text on its own lines that cannot move the cursor: strangers wrote it. Lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(char if _is_harmless(char) else char.encode("unicode_escape").decode() for char in text)


def _is_harmless(char: str) -> bool:
    code = ord(char)
    return char in "\n\t" or (code >= 0x20 and not 0x7F <= code < 0xA0 and char not in _TURNING)


def picked(document: Document, *names: str) -> Document:
    """Of a document what is named, in that order."""
    return {name: document.get(name) for name in names}


COLUMNS = (
    *("task_id", "context_id", "from_agent_id", "to_agent_id", "type", "created_at"),
    *("status_state", "status_timestamp", "origin_task_id", "text"),
)


def document(context: Context, message: Document) -> Document:
    """`{"id","from","ts","text"}`, and what it is where it is not plainly from one to one; or all columns."""
    if context.flag("full"):
        return picked(message, *COLUMNS)
    told: Document = {
        "id": message.get("task_id"),
        "from": message.get("from_agent_id"),
        "ts": message.get("status_timestamp"),
        "text": clipped(context, message.get("text")),
    }
    if message.get("type") != "unicast":
        told["kind"] = message.get("type")
    if message.get("origin_task_id") is not None:
        told["origin"] = message["origin_task_id"]
    return told


def block(context: Context, message: Document) -> str:
    """The envelope in brackets and the text below it; or a line for every column, the text last."""
    told = document(context, message)
    text = harmless(str(told.pop("text") or ""))
    if context.flag("full"):
        told |= {name: message[name] for name in ("notified_at", "notice") if message.get(name) is not None}
        lines = [f"{name}: {'' if value is None else value}" for name, value in told.items()]
        return "\n".join([*lines, f"text: {text}"])
    head = [str(told["id"]), f"from:{told['from']}", str(told["ts"])]
    head += [f"{name}:{told[name]}" for name in ("kind", "origin") if name in told]
    return f"[{' | '.join(head)}]\n{text}"
