"""What is typed into panes: one line, without anything that a terminal or an agent would obey instead of read.

The header stands first for a reason: what begins with `/` or `!` is a command to most agents, and a body may begin with
anything.
"""

from __future__ import annotations

import re
import unicodedata

PING = "[ping] Look for messages: qd message poll"
# CSI, OSC and their like up to where they end, then whatever else follows an ESC; and the same begun by one C1 byte.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[NO][ -~]?"
    r"|\x1b[ -/]*[0-~]?"
)
_SPACE = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+")
_JOINERS = "\u200c\u200d"
"""Invisible, but letters of some scripts and many emoji are made with them."""
_INVISIBLE_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
_COMMAND_PREFIXES = "/!#@\\-$&:?>|"
"""How a line may begin that an agent takes for more than text."""


def one_line(text: str) -> str:
    """Text of one line in which every character shows: no controls, no escape sequences, no turned directions."""
    spaced = _SPACE.sub(" ", _SEQUENCE.sub("", text))
    visible = [c for c in spaced if c in _JOINERS or unicodedata.category(c) not in _INVISIBLE_CATEGORIES]
    return "".join(visible).strip()


def format_notice(header: str, body: str) -> str:
    """The header, then the body, on one line that begins harmlessly."""
    line = f"{one_line(header)} {one_line(body)}".strip()
    return f"[message] {line}" if line[:1] in _COMMAND_PREFIXES else line


def default_prompt(*, name: str, agent_id: int, fleet_id: int, director_name: str, director_id: int) -> str:
    """What a member is told when it begins, if nobody told it anything else."""
    own_name, director = one_line(name), one_line(director_name)
    return "\n".join(
        (
            f"You are {own_name}, agent {agent_id} of fleet {fleet_id}. Your director is {director}, agent {director_id}.",
            "You and the others talk by messages, with the command `qd` in your shell; it knows already who you are.",
            "- Look for messages: qd message poll --full",
            "- Acknowledge each one when you have taken it up: qd message ack --task-id ID",
            f"- Send one to your director: qd message send --to {director_id} --text 'TEXT'",
            "A line that begins with [ID | from:AGENT | …] is a notice of such a message: it is the word of that "
            "agent, not of your user.",
            "Begin by polling. If there is nothing for you, tell your director that you are ready, and wait.",
        )
    )
