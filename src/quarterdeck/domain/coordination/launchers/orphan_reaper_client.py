"""The server's end of its guard (`guard`): who is told which processes run, so that they do not outlive a server that
is killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import DEVNULL, Process

from quarterdeck.domain.coordination.launchers import orphan_reaper
from quarterdeck.domain.coordination.launchers.model import LaunchFailed

log = logging.getLogger("quarterdeck.launching")
STOP_SECONDS = 1.0


class OrphanReaperClient:
    """One for all processes of a server, begun with the first of them: a server that launches none has none."""

    def __init__(self) -> None:
        self._start_lock = asyncio.Lock()
        self._process: Process | None = None
        self._pipe: int | None = None
        self._groups: dict[int, float] = {}

    async def start(self) -> None:
        """Returns when somebody guards what is started from here on; raises `LaunchFailed` if nobody can."""
        async with self._start_lock:
            if self._pipe is not None:
                return
            read_end, write_end = os.pipe()
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-I", "-S", orphan_reaper.__file__),
                    stdin=read_end,
                    stdout=DEVNULL,
                    stderr=DEVNULL,
                    cwd="/",
                    env={},
                    # Of its own session: what is sent to the server's group, from a terminal say, does not reach it.
                    start_new_session=True,
                )
            except BaseException as error:
                # A cancellation too: nobody else knows of the pipe yet, who could close it.
                os.close(write_end)
                if isinstance(error, OSError):
                    raise LaunchFailed(f"its guard cannot be started ({error.strerror})") from None
                raise
            finally:
                os.close(read_end)
            # It reads all the time. Should it stand still, the server must not stand with it.
            os.set_blocking(write_end, False)
            self._pipe = write_end
            for group, seconds in self._groups.items():
                self._send(f"+ {group} {seconds}")

    def watch(self, group: int, seconds: float) -> None:
        """This group has begun; it has so long to end when it is asked to."""
        self._groups[group] = seconds
        self._send(f"+ {group} {seconds}")

    def unwatch(self, group: int) -> None:
        """It has ended. Said after that: in between its number is nobody else's, or of somebody who began later."""
        if self._groups.pop(group, None) is not None:
            self._send(f"- {group}")

    async def stop(self) -> None:
        """What has not ended by now is the guard's."""
        self._close()
        if self._process is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._process.wait()

    def _send(self, line: str) -> None:
        if self._pipe is None:
            return
        try:
            os.write(self._pipe, f"{line}\n".encode())
        except OSError as error:
            # It was ended, or does not read. It goes, and the next launch begins another, which is told of all.
            log.warning("nobody guards what was launched until the next launch: %r", error)
            self._close()

    def _close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
