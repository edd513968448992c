"""How text is written where tmux would otherwise read more into it than text.

tmux reads three languages. Arguments of its own are plain, but for a `;` at the end of one. A script, as `source-file`
reads it, has quotes, escapes, variables and conditions. And formats, in which `#(…)` runs a command: a directory of a
new pane is one. What comes from outside goes through here before it becomes part of any of them.
"""

from __future__ import annotations

import re

from quarterdeck.tmux.errors import TmuxError

_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=@%+,- ")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNSAFE_CHARACTERS = "[^a-zA-Z0-9_.+-]+"
COMMAND_FORMAT = f"#{{s/{_UNSAFE_CHARACTERS}/_/:pane_current_command}}"
"""What runs in a pane, with whatever could mean something in a format replaced; `command_word` does the same."""


def require_pane_id(text: str) -> str:
    return _require_id(text, r"%[0-9]{1,9}", "pane")


def require_window_id(text: str) -> str:
    return _require_id(text, r"@[0-9]{1,9}", "window")


def sanitize_command(command: str) -> str:
    return re.sub(_UNSAFE_CHARACTERS, "_", command)


def quote(text: str) -> str:
    """A string of a script: every byte that is not harmless as its number."""
    return '"' + "".join(chr(b) if b in _SAFE else f"\\{b:03o}" for b in text.encode()) + '"'


def escape_format(text: str) -> str:
    """Text where a format is expected: nothing in it is expanded, and no command in it is run."""
    return text.replace("#", "##")


def _require_id(text: str, pattern: str, noun: str) -> str:
    if re.fullmatch(pattern, text) is None:
        raise TmuxError(f"{text[:80]!r} is not the id of a {noun} of tmux.")
    return text
