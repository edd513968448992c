"""What is asked of one tmux server: look, split, paste, Enter, capture, kill.

What must hold of a pane is held against it by tmux itself, in the call that does something to it (`Pin`): between a
look and a keystroke a pane may become another's. Text goes in through a buffer, never as keys: keys would also go to
every pane that is synchronized with this one, and are caught by whoever scrolls in it.

What a new pane is given (a token among it) is read by tmux from its standard input: arguments can be seen by every user
of the machine, and tmux takes few of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence

from quarterdeck.panes import processes
from quarterdeck.panes.calling import Calls, why
from quarterdeck.panes.ending import HoldsUs, end
from quarterdeck.panes.errors import PaneChanged, TmuxError
from quarterdeck.panes.notice import one_line
from quarterdeck.panes.seen import PaneSeen, Pin, Rows, last_lines
from quarterdeck.panes.turns import turn
from quarterdeck.panes.version import LEAST_VERSION, version
from quarterdeck.panes.words import VARIABLE, no_format, pane, quoted, window

__all__ = ["LEAST_VERSION", "PaneChanged", "PaneSeen", "Tmux", "TmuxError", "version"]

ENTER_AFTER_SECONDS = 0.12
"""An agent takes what comes in one piece for one paste, an Enter at its end included: that one must come apart."""
TEXT_MAX = 256 * 1024
LINES_MAX = 10_000
GONE_SECONDS = 2.0
PAUSE_SECONDS = 0.02


class Tmux:
    def __init__(self, socket: str, seconds: float = 5.0, server_pid: int | None = None) -> None:
        """`seconds` for each call. `server_pid`: only this server is meant; another on its socket is not touched."""
        self.socket = socket
        self._calls = Calls(socket, seconds)
        self._server_pid = server_pid

    # -- looking -------------------------------------------------------------------------------------------------

    async def server_pid(self) -> int | None:
        """None: no server answers on that socket."""
        if not await self._calls.answers():
            return None
        told = (await self._calls.done("display-message", "-p", "#{pid}")).strip()
        if not told.isdecimal():
            raise TmuxError(f"tmux was asked for its pid and said {one_line(told)[:80]!r}.")
        return int(told)

    async def panes(self) -> dict[str, PaneSeen]:
        """All of this server's, by id, with one call; none if no server answers."""
        if not await self._calls.answers():
            return {}
        rows = Rows()
        return rows.read(await self._calls.done("list-panes", "-a", "-F", rows.format))

    async def capture(self, pane_id: str, lines: int, *, ansi: bool = False) -> str:
        """The last lines that it shows or has shown."""
        lines = max(1, min(lines, LINES_MAX))
        command = f"capture-pane -p {'-e ' if ansi else ''}-S -{lines} -t {pane(pane_id)}"
        told = await self._calls.done_if(Pin(pane_id, self._server_pid), command)
        return last_lines(told, lines)

    # -- making --------------------------------------------------------------------------------------------------

    async def split(
        self,
        window_id: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        directory: str | None = None,
    ) -> str:
        """A new pane of a window, and in it a program that no shell has begun; its id. Without a directory it begins
        where the window's own pane is."""
        _refuse_odd(argv, environment, directory)
        path = environment.get("PATH")
        await self._find(window(window_id), argv[0], path)
        script = _split_script(window_id, argv, environment, directory)
        try:
            pane_id, pid = await self._new_pane(script, path)
        except TmuxError:
            # Mostly there is no space where it would be split; spread out evenly there is.
            await self._calls.done("select-layout", "-t", window_id, "tiled")
            pane_id, pid = await self._new_pane(script, path)
        await self._calls.run(["select-layout", "-t", window_id, "tiled"])
        seen = (await self.panes()).get(pane_id)
        if seen is None or seen.is_dead or seen.pid != pid:
            raise TmuxError(f"{one_line(argv[0])!r} ended as soon as it had begun.")
        return pane_id

    async def _find(self, window_id: str, program: str, path: str | None) -> None:
        """That the program is there is looked at first: tmux would only show a pane that is gone at once."""
        mark = secrets.token_hex(8)
        shown = f"{mark}:#{{window_id}}:#{{pid}}:#{{PATH}}"
        told = await self._calls.done("display-message", "-p", "-t", window_id, shown)
        found = told.partition(f"{mark}:")[2].strip("\n").split(":", 2)
        if len(found) != 3 or found[0] != window_id:
            raise TmuxError(f"There is no window {window_id}.")
        self._refuse_other(int(found[1]))
        if shutil.which(program, path=path or found[2] or os.defpath) is None:
            raise TmuxError(f"There is no program {one_line(program)!r} on PATH.")

    async def _new_pane(self, script: str, path: str | None) -> tuple[str, int]:
        # A PATH of ours would go before the one in the script: tmux takes it for that of whoever asks.
        environment = {} if path is None else {"PATH": path}
        ran = await self._calls.run(["source-file", "-"], script.encode(), environment)
        told = ran.out.decode(errors="replace").strip().rpartition("\n")[2].split(":")
        if len(told) != 3:
            raise TmuxError(why(ran, "tmux made no pane"))
        pane_id, pid, server_pid = pane(told[0]), int(told[1]), int(told[2])
        if self._server_pid not in (None, server_pid):
            await self._calls.done_if(Pin(pane_id, server_pid, pid), f"kill-pane -t {pane_id}")
            self._refuse_other(server_pid)
        return pane_id, pid

    # -- typing --------------------------------------------------------------------------------------------------

    async def paste(self, pane_id: str, text: str, *, seen: PaneSeen | None = None) -> None:
        """One line of text, in brackets if the program knows them; only if the pane is as it was seen."""
        # Here, and not only where lines are made: an ESC would end the brackets, and a line feed is an Enter.
        line = one_line(text)
        if len(line) > TEXT_MAX:
            raise TmuxError(f"{len(line)} characters are more than a pane is sent at once ({TEXT_MAX}).")
        if line:
            await self._put(self._pin(pane_id, seen), line.encode(), "-p")

    async def enter(self, pane_id: str, *, seen: PaneSeen | None = None) -> None:
        await self._put(self._pin(pane_id, seen), b"\r", "-r")

    async def type_line(
        self,
        pane_id: str,
        text: str,
        *,
        seen: PaneSeen | None = None,
        still: Callable[[], bool] | None = None,
    ) -> None:
        """The text, and after a while Enter, when nobody else types there: neither if the pane is no longer what was
        seen, nor unless it is `still` what it should be. Without `seen` it is looked at first."""
        if seen is None and (seen := (await self.panes()).get(pane(pane_id))) is None:
            raise PaneChanged(f"Pane {pane_id} is gone.")
        async with turn(self.socket, pane(pane_id)):
            if still is not None and not still():
                raise PaneChanged(f"Pane {pane_id} is no longer what it was.")
            await self.paste(pane_id, text, seen=seen)
            await asyncio.sleep(ENTER_AFTER_SECONDS)
            if still is not None and not still():
                raise PaneChanged(f"Pane {pane_id} is no longer what it was.")
            await self.enter(pane_id, seen=seen)

    def _pin(self, pane_id: str, seen: PaneSeen | None) -> Pin:
        if seen is None:
            return Pin(pane(pane_id), self._server_pid, takes_input=True)
        self._refuse_other(seen.server_pid)
        return Pin(pane(pane_id), seen.server_pid or None, seen.pid, seen.command, takes_input=True)

    async def _put(self, pin: Pin, text: bytes, how: str) -> None:
        name = f"quarterdeck-{secrets.token_hex(8)}"
        pasting = f"paste-buffer {how} -d -b {name} -t {pin.pane_id}"
        try:
            await self._calls.done_if(pin, pasting, before=("load-buffer", "-b", name, "-"), said=text)
        except TmuxError:
            # It was not pasted, or nobody knows: nothing of it is to lie about.
            await self._calls.run(["delete-buffer", "-b", name])
            raise

    # -- ending --------------------------------------------------------------------------------------------------

    async def kill(self, pane_id: str) -> None:
        """Ends what runs in the pane, and the pane; returns when all of it is gone."""
        seen = (await self.panes()).get(pane(pane_id))
        if seen is None:
            return
        self._refuse_other(seen.server_pid)
        await self._end_in(seen)
        # Mostly it has gone by itself, and sometimes its server with it: the look says whether it has.
        with contextlib.suppress(TmuxError):
            await self._calls.done_if(Pin(pane_id, seen.server_pid, seen.pid), f"kill-pane -t {pane_id}")
        await self._see_gone(seen)

    async def _end_in(self, seen: PaneSeen) -> None:
        root = (await asyncio.to_thread(processes.take)).get(seen.pid)
        # Not a child of this tmux server: the pid is somebody else's here, whoever it was.
        if seen.is_dead or root is None or root.is_gone or root.parent != seen.server_pid:
            return
        try:
            left = await end(root)
        except HoldsUs:
            raise TmuxError(
                f"Pane {seen.pane_id} holds this very process, which does not end itself."
            ) from None
        if left:
            names = ", ".join(f"{each.pid} ({one_line(each.command)})" for each in left)
            raise TmuxError(f"Pane {seen.pane_id} has processes that do not end: {names}.")

    async def _see_gone(self, seen: PaneSeen) -> None:
        until = asyncio.get_running_loop().time() + GONE_SECONDS
        while now := (await self.panes()).get(seen.pane_id):
            if (now.server_pid, now.pid) != (seen.server_pid, seen.pid):
                return
            if asyncio.get_running_loop().time() > until:
                raise TmuxError(f"Pane {seen.pane_id} is still there.")
            await asyncio.sleep(PAUSE_SECONDS)

    def _refuse_other(self, server_pid: int) -> None:
        if self._server_pid not in (None, server_pid):
            raise PaneChanged(
                f"On {one_line(self.socket)} answers another tmux server than pid {self._server_pid}."
            )


def _refuse_odd(argv: Sequence[str], environment: Mapping[str, str], directory: str | None) -> None:
    if not argv or not all(VARIABLE.fullmatch(name) for name in environment):
        raise TmuxError("A pane needs a command, and variables that have names.")
    if any("\0" in each for each in (*argv, *environment.values(), directory or "")):
        raise TmuxError("Neither a command nor its environment can hold a NUL.")


def _split_script(
    window_id: str, argv: Sequence[str], environment: Mapping[str, str], directory: str | None
) -> str:
    """Read by tmux from its standard input."""
    where = "#{pane_current_path}" if directory is None else no_format(directory)
    # One argument alone would be handed to a shell.
    command = argv if len(argv) > 1 else ["env", *argv]
    given = [part for name, value in environment.items() for part in ("-e", quoted(f"{name}={value}"))]
    shown = '"#{pane_id}:#{pane_pid}:#{pid}"'
    words = ["split-window", "-d", "-P", "-F", shown, "-t", window_id, "-c", quoted(where)]
    return " ".join([*words, *given, "--", *map(quoted, command)]) + "\n"
