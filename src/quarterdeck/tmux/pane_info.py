"""What tmux tells of a pane, and what must hold of one before something is done to it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from quarterdeck.tmux.quoting import COMMAND_FORMAT, command_word

_FIELDS = (
    *("pane_id", "window_id", "pane_pid", "pid", "start_time", "pane_dead", "pane_input_off", "pane_tty"),
    # No session has a colon in its name. What runs in a pane is named by itself, so it stands last.
    *("session_name", "pane_current_command"),
)


@dataclass(frozen=True, slots=True)
class PaneSeen:
    pane_id: str
    session: str
    window_id: str
    pid: int
    command: str
    """Of whoever leads the group in front, as tmux names it."""
    is_dead: bool
    server_pid: int = 0
    server_started: int = 0
    """Seconds since 1970."""
    tty: str = ""
    takes_input: bool = True


@dataclass(frozen=True, slots=True)
class Pin:
    """What must hold of a pane in the moment in which something is done to it; None: whatever it is."""

    pane_id: str
    server_pid: int | None = None
    pid: int | None = None
    command: str | None = None
    takes_input: bool = False
    """It is not dead, and nobody has closed it to input."""

    @property
    def condition(self) -> str:
        """As a format of tmux: one comparison, of what is with what should be."""
        wanted = [("#{pane_id}", self.pane_id)]
        if self.server_pid is not None:
            wanted.append(("#{pid}", str(self.server_pid)))
        if self.pid is not None:
            wanted.append(("#{pane_pid}", str(self.pid)))
        if self.takes_input:
            wanted.append(("#{?pane_dead,dead,lives}", "lives"))
            wanted.append(("#{?pane_input_off,closed,open}", "open"))
        if self.command is not None:
            wanted.append((COMMAND_FORMAT, command_word(self.command)))
        is_now, should_be = (" ".join(part) for part in zip(*wanted, strict=True))
        return f"#{{==:{is_now},{should_be}}}"


class Rows:
    """How a list of panes is asked for and read. What runs in a pane may call itself anything, lines of this very list
    included; but it cannot know the word that each line of it begins with."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)
        self.format = ":".join((self._mark, *(f"#{{{field}}}" for field in _FIELDS)))

    def read(self, told: str) -> dict[str, PaneSeen]:
        begins = f"{self._mark}:"
        rows = [line.removeprefix(begins) for line in told.split("\n") if line.startswith(begins)]
        panes = [_pane(dict(zip(_FIELDS, row.split(":", len(_FIELDS) - 1), strict=True))) for row in rows]
        return {pane.pane_id: pane for pane in panes}


def last_lines(screen: str, lines: int) -> str:
    """The end of what was captured, without what is empty after it, in the colours that it had."""
    shown = screen.rstrip().split("\n")
    before, kept = shown[:-lines], shown[-lines:]
    # A colour is said where it begins, which may be in a line that is left out.
    colours: list[str] = []
    for each in re.findall(r"\x1b\[[0-9;:]*m", "\n".join(before)):
        colours = [] if each in ("\x1b[m", "\x1b[0m") else [*colours[-16:], each]
    return "".join(colours) + "\n".join(kept)


def _pane(told: Mapping[str, str]) -> PaneSeen:
    return PaneSeen(
        pane_id=told["pane_id"],
        session=told["session_name"],
        window_id=told["window_id"],
        pid=int(told["pane_pid"] or 0),
        command=told["pane_current_command"],
        # Empty where it does not: a pane that lives has nothing to say of its death.
        is_dead=told["pane_dead"] == "1",
        server_pid=int(told["pid"]),
        server_started=int(told["start_time"] or 0),
        tty=told["pane_tty"],
        takes_input=told["pane_input_off"] != "1",
    )
