"""How text is written where tmux would otherwise read more into it than text.

tmux reads three languages. Arguments of its own are plain, but for a `;` at the end of one. A script, as `source-file`
reads it, has quotes, escapes, variables and conditions. And formats, in which `#(…)` runs a command: a directory of a
new pane is one. What comes from outside goes through here before it becomes part of any of them.
"""

from __future__ import annotations

import re

from quarterdeck.tmux.errors import TmuxError

_SAFE = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:=@%+,- ")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OTHER = "[^a-zA-Z0-9_.+-]+"
COMMAND_FORMAT = f"#{{s/{_OTHER}/_/:pane_current_command}}"
"""What runs in a pane, with whatever could mean something in a format replaced; `command_word` does the same."""


def pane(given: str) -> str:
    return _id(given, r"%[0-9]{1,9}", "pane")


def window(given: str) -> str:
    return _id(given, r"@[0-9]{1,9}", "window")


def command_word(command: str) -> str:
    return re.sub(_OTHER, "_", command)


def quoted(text: str) -> str:
    """A string of a script: every byte that is not harmless as its number."""
    return '"' + "".join(chr(b) if b in _SAFE else f"\\{b:03o}" for b in text.encode()) + '"'


def no_format(text: str) -> str:
    """Text where a format is expected: nothing in it is expanded, and no command in it is run."""
    return text.replace("#", "##")


def _id(given: str, pattern: str, what: str) -> str:
    if re.fullmatch(pattern, given) is None:
        raise TmuxError(f"{given[:80]!r} is not the id of a {what} of tmux.")
    return given
