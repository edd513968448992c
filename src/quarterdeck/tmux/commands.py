"""Calls to one tmux server, by its socket. Each is one run of the tmux binary."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from quarterdeck.tmux.errors import PaneChanged, TmuxError
from quarterdeck.tmux.notice_text import one_line
from quarterdeck.tmux.pane_info import Pin
from quarterdeck.tmux.subprocess_run import ProgramError, Ran, run

CALLS_MAX = 16
"""At once, of one server: more only wait for each other."""
SAID_MAX = 300


class Calls:
    def __init__(self, socket: str, seconds: float) -> None:
        self.socket = socket
        self._seconds = seconds
        self._free = asyncio.Semaphore(CALLS_MAX)

    async def done_if(self, pin: Pin, command: str, *, before: Sequence[str] = (), said: bytes = b"") -> str:
        """Does something to a pane if it is the one that is meant, in one step of tmux. What that said.

        `command` is read by tmux as a script: it holds words of ours, ids and numbers, and nothing else."""
        mark = secrets.token_hex(8)
        first = [*before, ";"] if before else []
        told = await self.done(
            *first,
            *("if-shell", "-F", "-t", pin.pane_id, pin.condition),
            f"{command} ; display-message -p {mark}",
            said=said,
        )
        answer, found, _ = told.rpartition(mark)
        if not found:
            raise PaneChanged(f"Pane {pin.pane_id} is gone, or no longer what it was.")
        return answer

    async def done(self, *arguments: str, said: bytes = b"") -> str:
        ran = await self.run(arguments, said)
        if ran.code != 0:
            raise TmuxError(why(ran, f"tmux {arguments[0]} failed"))
        return ran.out.decode(errors="replace")

    async def run(
        self, arguments: Sequence[str], said: bytes = b"", environment: Mapping[str, str] | None = None
    ) -> Ran:
        self._refuse_stranger()
        program = shutil.which("tmux")
        if program is None:
            raise TmuxError("tmux is not installed (on Debian and Ubuntu: apt-get install tmux).")
        # Of our own environment it is told nothing: it would hand it on to its server.
        told = {"TERM": "dumb", **(environment or {})}
        try:
            async with self._free:
                return await run([program, "-u", "-S", self.socket, *arguments], told, said, self._seconds)
        except ProgramError as error:
            raise TmuxError(f"{error}.") from None

    async def answers(self) -> bool:
        """Whether anybody listens there: that nobody does is an answer, and no error."""
        if not self._is_there():
            return False
        try:
            async with asyncio.timeout(self._seconds):
                _, writer = await asyncio.open_unix_connection(self.socket)
        except TimeoutError:
            raise TmuxError(f"Nobody takes calls on {one_line(self.socket)}.") from None
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError as error:
            raise TmuxError(f"{one_line(self.socket)} cannot be reached ({error.strerror}).") from None
        writer.close()
        return True

    def _is_there(self) -> bool:
        try:
            Path(self.socket).lstat()
        except FileNotFoundError:
            return False
        except (OSError, ValueError):
            # A name that cannot be one, or a directory that is closed to us: who is meant is not to be found out.
            pass
        self._refuse_stranger()
        return True

    def _refuse_stranger(self) -> None:
        """Whoever listens there hears what is typed: it must be this user's own."""
        shown = one_line(self.socket)[:SAID_MAX]
        try:
            found = Path(self.socket).stat()
        except (OSError, ValueError):
            raise TmuxError(f"There is no tmux socket at {shown}.") from None
        if not Path(self.socket).is_absolute():
            raise TmuxError(f"The path of a tmux socket begins at the root, not as {shown} does.")
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
            raise TmuxError(f"{shown} is not a socket of this user.")


def why(ran: Ran, otherwise: str) -> str:
    """What it said, in one line."""
    told = one_line((ran.err + ran.out).decode(errors="replace"))[:SAID_MAX]
    return f"{otherwise}: {told}." if told else f"{otherwise}."
