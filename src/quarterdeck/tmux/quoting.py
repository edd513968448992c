"""Quotes text for tmux, so that tmux reads it as text only.

tmux has three syntaxes. Command-line arguments are plain text, except that a `;` at the end of one separates commands.
A script, as read by `source-file`, has quotes, escapes, variables and conditions. In a format, `#(…)` runs a command;
the directory of a new pane is a format. All external text is quoted here before it becomes part of a script or format.
"""

from __future__ import annotations

import re

from quarterdeck.tmux.errors import TmuxError

_SAFE_BYTES = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=@%+,- ")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNSAFE_CHARACTERS = "[^a-zA-Z0-9_.+-]+"
COMMAND_FORMAT = f"#{{s/{_UNSAFE_CHARACTERS}/_/:pane_current_command}}"
"""The command of a pane, with characters that are special in a format replaced. `sanitize_command` does the same."""


def require_pane_id(text: str) -> str:
    return _require_id(text, r"%[0-9]{1,9}", "pane")


def require_window_id(text: str) -> str:
    return _require_id(text, r"@[0-9]{1,9}", "window")


def sanitize_command(command: str) -> str:
    return re.sub(_UNSAFE_CHARACTERS, "_", command)


def quote(text: str) -> str:
    """Quote a string for a script. Every unsafe byte becomes an octal escape."""
    return '"' + "".join(chr(b) if b in _SAFE_BYTES else f"\\{b:03o}" for b in text.encode()) + '"'


def escape_format(text: str) -> str:
    """Escape text for a format, so that nothing in it is expanded or run."""
    return text.replace("#", "##")


def _require_id(text: str, pattern: str, noun: str) -> str:
    if re.fullmatch(pattern, text) is None:
        raise TmuxError(f"{text[:80]!r} is not a tmux {noun} id.")
    return text
