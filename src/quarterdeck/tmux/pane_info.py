"""What tmux reports about a pane, and guards: conditions that a pane must satisfy when a command runs on it."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from quarterdeck.tmux.quoting import COMMAND_FORMAT, sanitize_command

_FIELDS = (
    *("pane_id", "window_id", "pane_pid", "pid", "start_time", "pane_dead", "pane_input_off", "pane_tty"),
    # Session names contain no colon. A program chooses its own command name, so that field comes last.
    *("session_name", "pane_current_command"),
)


@dataclass(frozen=True, slots=True)
class PaneInfo:
    pane_id: str
    session: str
    window_id: str
    pid: int
    command: str
    """The name of the foreground process group's leader, as tmux reports it."""
    is_dead: bool
    server_pid: int = 0
    server_started_at: int = 0
    """Unix time in seconds."""
    tty: str = ""
    takes_input: bool = True


@dataclass(frozen=True, slots=True)
class PaneGuard:
    """Conditions that a pane must satisfy when a command runs on it. A field that is None is not checked."""

    pane_id: str
    server_pid: int | None = None
    pid: int | None = None
    command: str | None = None
    must_take_input: bool = False
    """Whether to check that the pane is not dead and its input is not disabled."""

    @property
    def condition(self) -> str:
        """The guard as a tmux format: one comparison of actual and expected values."""
        comparisons = [("#{pane_id}", self.pane_id)]
        if self.server_pid is not None:
            comparisons.append(("#{pid}", str(self.server_pid)))
        if self.pid is not None:
            comparisons.append(("#{pane_pid}", str(self.pid)))
        if self.must_take_input:
            comparisons.append(("#{?pane_dead,dead,alive}", "alive"))
            comparisons.append(("#{?pane_input_off,closed,open}", "open"))
        if self.command is not None:
            comparisons.append((COMMAND_FORMAT, sanitize_command(self.command)))
        actual, expected = (" ".join(part) for part in zip(*comparisons, strict=True))
        return f"#{{==:{actual},{expected}}}"


class PaneListFormat:
    """The format and the parser of a list of panes.

    A program can choose any command name, even one that looks like lines of this list. So each line starts with a
    random marker that the program cannot know.
    """

    def __init__(self) -> None:
        self._marker = secrets.token_hex(8)
        self.format = ":".join((self._marker, *(f"#{{{field}}}" for field in _FIELDS)))

    def parse(self, output: str) -> dict[str, PaneInfo]:
        prefix = f"{self._marker}:"
        rows = [line.removeprefix(prefix) for line in output.split("\n") if line.startswith(prefix)]
        panes = [_parse_pane(dict(zip(_FIELDS, row.split(":", len(_FIELDS) - 1), strict=True))) for row in rows]
        return {pane.pane_id: pane for pane in panes}


def last_lines(screen: str, max_lines: int) -> str:
    """The last lines of a captured screen, without trailing empty lines, with their colors."""
    lines = screen.rstrip().split("\n")
    omitted_lines, shown_lines = lines[:-max_lines], lines[-max_lines:]
    # The code that sets the color of the first line may be in an omitted line.
    colors: list[str] = []
    for code in re.findall(r"\x1b\[[0-9;:]*m", "\n".join(omitted_lines)):
        colors = [] if code in ("\x1b[m", "\x1b[0m") else [*colors[-16:], code]
    return "".join(colors) + "\n".join(shown_lines)


def _parse_pane(fields: Mapping[str, str]) -> PaneInfo:
    return PaneInfo(
        pane_id=fields["pane_id"],
        session=fields["session_name"],
        window_id=fields["window_id"],
        pid=int(fields["pane_pid"] or 0),
        command=fields["pane_current_command"],
        # Empty for a live pane.
        is_dead=fields["pane_dead"] == "1",
        server_pid=int(fields["pid"]),
        server_started_at=int(fields["start_time"] or 0),
        tty=fields["pane_tty"],
        takes_input=fields["pane_input_off"] != "1",
    )
