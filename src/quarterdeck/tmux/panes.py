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
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence

from quarterdeck.tmux import process_table
from quarterdeck.tmux.commands import Calls, why
from quarterdeck.tmux.errors import NoSpace, PaneChanged, TmuxError
from quarterdeck.tmux.notice_text import one_line
from quarterdeck.tmux.pane_info import PaneSeen, Pin, Rows, last_lines
from quarterdeck.tmux.pane_lock import turn
from quarterdeck.tmux.quoting import VARIABLE, no_format, pane, quoted, window
from quarterdeck.tmux.terminate import HoldsUs, end
from quarterdeck.tmux.version import LEAST_VERSION, version

__all__ = ["LEAST_VERSION", "PaneChanged", "PaneSeen", "Tmux", "TmuxError", "version"]

log = logging.getLogger("quarterdeck.tmux")
ENTER_AFTER_SECONDS = 0.12
"""An agent takes what comes in one piece for one paste, an Enter at its end included: that one must come apart."""
TEXT_MAX = 256 * 1024
LINES_MAX = 10_000
NO_SPACE = b"no space for new pane"
MARK = "QUARTERDECK_PANE"
"""The variable by which a pane that was begun is found again."""
GONE_SECONDS = 2.0
PAUSE_SECONDS = 0.02


class Tmux:
    def __init__(self, socket: str, seconds: float = 5.0, server_pid: int | None = None) -> None:
        """`seconds` for each call. `server_pid`: only this server is meant; another on its socket is not touched."""
        self.socket = socket
        self._seconds = seconds
        self._calls = Calls(socket, seconds)
        self._server_pid = server_pid

    # -- looking -------------------------------------------------------------------------------------------------

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
        self, window_id: str, argv: Sequence[str], environment: Mapping[str, str], directory: str | None = None
    ) -> str:
        """A new pane of a window, and in it a program that no shell has begun; its id. Without a directory it begins
        where the window's own pane is. Whatever fails, or cuts this, there is no such pane afterwards."""
        _refuse_odd(argv, environment, directory)
        path = environment.get("PATH")
        await self._find(window(window_id), argv[0], path)
        mark = secrets.token_hex(8)
        script = _split_script(window_id, ["env", f"{MARK}={mark}", *argv], environment, directory)
        try:
            if (pane_id := await self._begun(window_id, script, path)) is None:
                raise TmuxError(f"{one_line(argv[0])!r} ended as soon as it had begun.")
            return pane_id
        except TmuxError as error:
            if left := await self._undo(mark):
                raise TmuxError(f"{error} {left}") from None
            raise
        except BaseException:
            # Also where whoever asked is cut: nobody else knows of it.
            await self._undo(mark)
            raise

    async def _begun(self, window_id: str, script: str, path: str | None) -> str | None:
        """None: it has ended already."""
        try:
            pane_id, pid = await self._new_pane(script, path)
        except NoSpace:
            # Where it would be split there is none; spread out evenly there is.
            await self._calls.done("select-layout", "-t", window_id, "tiled")
            pane_id, pid = await self._new_pane(script, path)
        await self._calls.run(["select-layout", "-t", window_id, "tiled"])
        seen = (await self.panes()).get(pane_id)
        return None if seen is None or seen.is_dead or seen.pid != pid else pane_id

    async def _undo(self, mark: str) -> str | None:
        """Ends what was begun, found by its mark: of a call that was not answered nobody has heard the id. A sentence
        where that cannot be done."""
        found = f"#{{?#{{m:*{mark}*,#{{pane_start_command}}}},#{{pane_id}},}}"
        try:
            ids = (await self._calls.done("list-panes", "-a", "-F", found)).split()
            panes = await self.panes() if ids else {}
            for pane_id in ids:
                if pane_id in panes:
                    await self._kill(panes[pane_id])
        except TmuxError as left:
            log.warning("a pane that was begun may be left: %s", left)
            return f"The pane that was begun may be left: {left}"
        return None

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
            error = NoSpace if NO_SPACE in ran.err + ran.out else TmuxError
            raise error(why(ran, "tmux made no pane"))
        pane_id, pid, server_pid = pane(told[0]), int(told[1]), int(told[2])
        self._refuse_other(server_pid)
        return pane_id, pid

    # -- typing --------------------------------------------------------------------------------------------------

    async def type_line(
        self, seen: PaneSeen, text: str, *, still: Callable[[], bool] = lambda: True, enters: bool = True
    ) -> None:
        """One line of text, in brackets if the program knows them, and after a while Enter, when nobody else types
        there: neither if the pane is no longer what was seen, nor unless it is `still` what it should be."""
        # Here, and not only where lines are made: an ESC would end the brackets, and a line feed is an Enter.
        line = one_line(text)
        if len(line) > TEXT_MAX:
            raise TmuxError(f"{len(line)} characters are more than a pane is sent at once ({TEXT_MAX}).")
        self._refuse_other(seen.server_pid)
        pin = Pin(pane(seen.pane_id), seen.server_pid, seen.pid, seen.command, takes_input=True)
        async with turn(self.socket, seen.pane_id, self._seconds):
            _refuse_changed(seen, still)
            if line:
                await self._put(pin, line.encode(), "-p")
            if enters:
                await asyncio.sleep(ENTER_AFTER_SECONDS)
                _refuse_changed(seen, still)
                await self._put(pin, b"\r", "-r")

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
        await self._kill(seen)

    async def _kill(self, seen: PaneSeen) -> None:
        await self._end_in(seen)
        # Mostly it has gone by itself, and sometimes its server with it: the look says whether it has.
        with contextlib.suppress(TmuxError):
            pin = Pin(seen.pane_id, seen.server_pid, seen.pid)
            await self._calls.done_if(pin, f"kill-pane -t {seen.pane_id}")
        await self._see_gone(seen)

    async def _end_in(self, seen: PaneSeen) -> None:
        root = (await asyncio.to_thread(process_table.take)).get(seen.pid)
        # Not a child of this tmux server: the pid is somebody else's here, whoever it was.
        if seen.is_dead or root is None or root.is_gone or root.parent != seen.server_pid:
            return
        try:
            left = await end(root)
        except HoldsUs:
            raise TmuxError(f"Pane {seen.pane_id} holds this very process, which does not end itself.") from None
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
            raise PaneChanged(f"On {one_line(self.socket)} answers another tmux server than pid {self._server_pid}.")


def _refuse_changed(seen: PaneSeen, still: Callable[[], bool]) -> None:
    if not still():
        raise PaneChanged(f"Pane {seen.pane_id} is no longer what it was.")


def _refuse_odd(argv: Sequence[str], environment: Mapping[str, str], directory: str | None) -> None:
    if not argv or not all(VARIABLE.fullmatch(name) for name in environment):
        raise TmuxError("A pane needs a command, and variables that have names.")
    if "=" in argv[0]:
        raise TmuxError(f"{one_line(argv[0])!r} would be taken for a variable, not for a program.")
    if any("\0" in each for each in (*argv, *environment.values(), directory or "")):
        raise TmuxError("Neither a command nor its environment can hold a NUL.")


def _split_script(window_id: str, argv: Sequence[str], environment: Mapping[str, str], directory: str | None) -> str:
    """Read by tmux from its standard input."""
    where = "#{pane_current_path}" if directory is None else no_format(directory)
    given = [part for name, value in environment.items() for part in ("-e", quoted(f"{name}={value}"))]
    shown = '"#{pane_id}:#{pane_pid}:#{pid}"'
    words = ["split-window", "-d", "-P", "-F", shown, "-t", window_id, "-c", quoted(where)]
    return " ".join([*words, *given, "--", *map(quoted, argv)]) + "\n"
