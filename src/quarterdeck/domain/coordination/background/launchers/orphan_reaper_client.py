"""Starts the orphan reaper (`orphan_reaper`) and reports the running process groups to it, so that they do not outlive
a server that is killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from asyncio.subprocess import DEVNULL, Process

from quarterdeck.domain.coordination.background.launchers import orphan_reaper
from quarterdeck.domain.coordination.background.launchers.model import LaunchFailed
from quarterdeck.engine.background import wait_at_most

log = logging.getLogger("quarterdeck.launching")
STOP_SECONDS = 1.0


class OrphanReaperClient:
    """Controls the orphan reaper of this server, which is started before the first process."""

    def __init__(self) -> None:
        self._start_lock = asyncio.Lock()
        self._process: Process | None = None
        self._pipe: int | None = None
        self._groups: dict[int, float] = {}
        """Process group → grace seconds."""

    async def start(self) -> None:
        """Start the reaper if it is not running. Raises `LaunchFailed` if it cannot be started."""
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
                    # Its own session: signals to the server's process group, such as Ctrl-C, do not reach it.
                    start_new_session=True,
                )
            except BaseException as error:
                # Also on cancellation: the pipe is not stored yet, so no other code can close it.
                os.close(write_end)
                if isinstance(error, OSError):
                    raise LaunchFailed(f"the orphan reaper cannot be started ({error.strerror})") from None
                raise
            finally:
                os.close(read_end)
            # The reaper reads continuously. If it stalls, the server must not block on the pipe.
            os.set_blocking(write_end, False)
            self._pipe = write_end
            for group, grace_seconds in self._groups.items():
                self._send(f"+ {group} {grace_seconds}")

    def watch(self, group: int, grace_seconds: float) -> None:
        """Report to the reaper that a process group has started, with its grace period."""
        self._groups[group] = grace_seconds
        self._send(f"+ {group} {grace_seconds}")

    def unwatch(self, group: int) -> None:
        """Report to the reaper that a process group has ended.

        Call this after the group has ended. If its id is reused before the call, the reaper sees a new start time.
        """
        if self._groups.pop(group, None) is not None:
            self._send(f"- {group}")

    async def stop(self) -> None:
        """Close the pipe. The reaper kills the groups that have not ended."""
        self._close()
        if self._process is not None:
            await wait_at_most(STOP_SECONDS, self._process.wait())

    def _send(self, line: str) -> None:
        if self._pipe is None:
            return
        try:
            os.write(self._pipe, f"{line}\n".encode())
        except OSError as error:
            # The reaper was killed or is not reading. The next launch starts a new one and reports all groups to it.
            log.warning("cannot write to the orphan reaper; processes are not watched until the next launch: %r", error)
            self._kill()
            self._close()

    def _kill(self) -> None:
        """Kill the reaper before its pipe is closed: a reaper that only stalled would end all groups at the close."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def _close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
