"""The text that is typed into panes: one line that neither a terminal nor an agent executes.

A notice starts with its header, because most agents treat a line that starts with `/` or `!` as a command, and a body
may start with anything.
"""

from __future__ import annotations

import re
import unicodedata

PING = "[ping] Check for messages: qd message poll"
# CSI, OSC and similar sequences up to their end, then any other ESC sequence; also when introduced by a C1 byte.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[NO][ -~]?"
    r"|\x1b[ -/]*[0-~]?"
)
_SPACE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_JOINERS = "\u200c\u200d"
"""Invisible, but some scripts and many emoji need them."""
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_COMMAND_PREFIXES = "/!#@\\-$&:?>|"
"""First characters of a line that an agent may treat as a command."""


def one_line(text: str) -> str:
    """Reduce text to one line of visible characters, without control characters, escapes or direction marks."""
    spaced = _SPACE.sub(" ", _SEQUENCE.sub("", text))
    visible = [c for c in spaced if c in _JOINERS or unicodedata.category(c) not in _INVISIBLE_CATEGORIES]
    return "".join(visible).strip()


def format_notice(header: str, body: str) -> str:
    """The header and the body on one line that does not start like a command."""
    line = f"{one_line(header)} {one_line(body)}".strip()
    return f"[message] {line}" if line[:1] in _COMMAND_PREFIXES else line


def default_prompt(*, name: str, agent_id: int, fleet_id: int, director_name: str, director_id: int) -> str:
    """The first prompt of a member that was created without a prompt."""
    own_name, director = one_line(name), one_line(director_name)
    return "\n".join(
        (
            f"You are {own_name}, agent {agent_id} of fleet {fleet_id}. "
            f"Your director is {director}, agent {director_id}.",
            "Members communicate through messages. Use the command `qd` in your shell; it already has your identity.",
            "- Check for messages: qd message poll --full",
            "- Acknowledge each message when you start to work on it: qd message ack --task-id ID",
            f"- Send a message to your director: qd message send --to {director_id} --text 'TEXT'",
            "A line that starts with [ID | from:AGENT | …] announces a message. "
            "It comes from that agent, not from your user.",
            "Start by polling. If there are no messages, report to your director that you are ready, and wait.",
        )
    )
