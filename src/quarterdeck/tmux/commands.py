"""Runs tmux commands on one socket. Each command runs the tmux binary once. Also the installed and required version."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from quarterdeck.tmux.errors import PaneChanged, TmuxError
from quarterdeck.tmux.notice_text import one_line
from quarterdeck.tmux.pane_info import PaneGuard
from quarterdeck.tmux.subprocess_run import ProgramError, ProgramResult, run

CONCURRENT_MAX = 16
"""The maximum number of concurrent commands per tmux server. More would only wait for each other."""
ERROR_TEXT_MAX = 300
MIN_VERSION = (3, 2)
"""The first version that can set the environment of a new pane and read commands from standard input."""
VERSION_TIMEOUT_SECONDS = 5.0


class TmuxCommands:
    def __init__(self, socket: str, timeout_seconds: float) -> None:
        self.socket = socket
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(CONCURRENT_MAX)

    async def run_guarded(
        self, guard: PaneGuard, command: str, *, setup_command: Sequence[str] = (), stdin: bytes = b""
    ) -> str:
        """Run a command on a pane if the guard holds. tmux checks the guard in the same call. Returns the output.

        tmux parses `command` as a script, so it must contain only constants, validated ids and numbers. `setup_command`
        runs first, whether or not the guard holds.
        """
        marker = secrets.token_hex(8)
        prefix = [*setup_command, ";"] if setup_command else []
        output = await self.run_checked(
            *prefix,
            *("if-shell", "-F", "-t", guard.pane_id, guard.condition),
            f"{command} ; display-message -p {marker}",
            stdin=stdin,
        )
        result, found_marker, _ = output.rpartition(marker)
        if not found_marker:
            raise PaneChanged(f"Pane {guard.pane_id} no longer exists or has changed.")
        return result

    async def run_checked(self, *arguments: str, stdin: bytes = b"") -> str:
        result = await self.run(arguments, stdin)
        if result.exit_code != 0:
            raise TmuxError(error_text(result, f"tmux {arguments[0]} failed"))
        return result.stdout.decode(errors="replace")

    async def run(
        self, arguments: Sequence[str], stdin: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> ProgramResult:
        self._require_own_socket()
        program = shutil.which("tmux")
        if program is None:
            raise TmuxError("tmux is not installed (on Debian and Ubuntu: apt-get install tmux).")
        # Do not pass our own environment, because tmux would pass it on to its server.
        full_environment = {"TERM": "dumb", **(environment or {})}
        try:
            async with self._slots:
                argv = [program, "-u", "-S", self.socket, *arguments]
                return await run(argv, full_environment, stdin, self._timeout_seconds)
        except ProgramError as error:
            raise TmuxError(f"{error}.") from None

    async def is_server_running(self) -> bool:
        """Whether a tmux server is listening on the socket. False if the socket does not exist."""
        if not self._socket_exists():
            return False
        try:
            async with asyncio.timeout(self._timeout_seconds):
                _, writer = await asyncio.open_unix_connection(self.socket)
        except TimeoutError:
            raise TmuxError(
                f"The tmux server on {one_line(self.socket)} did not accept a connection within "
                f"{self._timeout_seconds:g} s."
            ) from None
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as error:
            raise TmuxError(f"{one_line(self.socket)} cannot be reached ({error.strerror}).") from None
        writer.close()
        return True

    def _socket_exists(self) -> bool:
        try:
            Path(self.socket).lstat()
        except FileNotFoundError:
            return False
        except (OSError, ValueError):
            # The path is invalid, or its directory is not accessible: the check below raises.
            pass
        self._require_own_socket()
        return True

    def _require_own_socket(self) -> None:
        """Raise unless the socket belongs to this user: the owner of the socket can read everything that is typed."""
        path_text = one_line(self.socket)[:ERROR_TEXT_MAX]
        try:
            socket_stat = Path(self.socket).stat()
        except (OSError, ValueError):
            raise TmuxError(f"There is no tmux socket at {path_text}.") from None
        if not Path(self.socket).is_absolute():
            raise TmuxError(f"The path of a tmux socket must be absolute, and {path_text} is not.")
        if not stat.S_ISSOCK(socket_stat.st_mode) or socket_stat.st_uid != os.geteuid():
            raise TmuxError(f"{path_text} is not a socket of this user.")


def error_text(result: ProgramResult, summary: str) -> str:
    """The summary and the program's output, in one line."""
    output = one_line((result.stderr + result.stdout).decode(errors="replace"))[:ERROR_TEXT_MAX]
    return f"{summary}: {output}." if output else f"{summary}."


def installed_version() -> tuple[tuple[int, int], str] | None:
    """The version numbers and the version text. None if tmux is not installed or reports no version. Blocks."""
    program = shutil.which("tmux")
    if program is None:
        return None
    try:
        completed = subprocess.run(  # noqa: S603 - a list of constants, and no shell
            [program, "-V"], stdin=subprocess.DEVNULL, capture_output=True, timeout=VERSION_TIMEOUT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(completed.stdout.decode(errors="replace").strip())


def parse_version(text: str) -> tuple[tuple[int, int], str] | None:
    """Parse `tmux 3.3a`, or `tmux next-3.5`, a pre-release that counts as 3.5."""
    match = re.search(r"([0-9]+)\.([0-9]+)", text)
    return None if match is None else ((int(match[1]), int(match[2])), text)
