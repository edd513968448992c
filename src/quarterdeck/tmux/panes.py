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
from quarterdeck.tmux.commands import TmuxCommands, error_text
from quarterdeck.tmux.errors import NoSpace, PaneChanged, TmuxError
from quarterdeck.tmux.notice_text import one_line
from quarterdeck.tmux.pane_info import PaneGuard, PaneInfo, PaneListFormat, last_lines
from quarterdeck.tmux.pane_lock import lock_pane
from quarterdeck.tmux.quoting import VARIABLE_NAME, escape_format, quote, require_pane_id, require_window_id
from quarterdeck.tmux.terminate import ContainsThisProcess, terminate_tree
from quarterdeck.tmux.version import MIN_VERSION, installed_version

__all__ = ["MIN_VERSION", "PaneChanged", "PaneInfo", "Tmux", "TmuxError", "installed_version"]

log = logging.getLogger("quarterdeck.tmux")
ENTER_DELAY_SECONDS = 0.12
"""An agent takes what comes in one piece for one paste, an Enter at its end included: that one must come apart."""
TEXT_MAX = 256 * 1024
LINES_MAX = 10_000
NO_SPACE_MESSAGE = b"no space for new pane"
MARKER_VARIABLE = "QUARTERDECK_PANE"
"""The variable by which a pane that was begun is found again."""
CLOSE_TIMEOUT_SECONDS = 2.0
POLL_SECONDS = 0.02


class Tmux:
    def __init__(self, socket: str, seconds: float = 5.0, server_pid: int | None = None) -> None:
        """`seconds` for each call. `server_pid`: only this server is meant; another on its socket is not touched."""
        self.socket = socket
        self._seconds = seconds
        self._commands = TmuxCommands(socket, seconds)
        self._server_pid = server_pid

    # -- looking -------------------------------------------------------------------------------------------------

    async def panes(self) -> dict[str, PaneInfo]:
        """All of this server's, by id, with one call; none if no server answers."""
        if not await self._commands.is_server_running():
            return {}
        rows = PaneListFormat()
        return rows.parse(await self._commands.run_checked("list-panes", "-a", "-F", rows.format))

    async def capture(self, pane_id: str, lines: int, *, ansi: bool = False) -> str:
        """The last lines that it shows or has shown."""
        lines = max(1, min(lines, LINES_MAX))
        command = f"capture-pane -p {'-e ' if ansi else ''}-S -{lines} -t {require_pane_id(pane_id)}"
        output = await self._commands.run_guarded(PaneGuard(pane_id, self._server_pid), command)
        return last_lines(output, lines)

    # -- making --------------------------------------------------------------------------------------------------

    async def split(
        self, window_id: str, argv: Sequence[str], environment: Mapping[str, str], directory: str | None = None
    ) -> str:
        """A new pane of a window, and in it a program that no shell has begun; its id. Without a directory it begins
        where the window's own pane is. Whatever fails, or cuts this, there is no such pane afterwards."""
        _check_split_arguments(argv, environment, directory)
        path = environment.get("PATH")
        await self._check_window_and_program(require_window_id(window_id), argv[0], path)
        marker = secrets.token_hex(8)
        script = _split_script(window_id, ["env", f"{MARKER_VARIABLE}={marker}", *argv], environment, directory)
        try:
            if (pane_id := await self._start_pane(window_id, script, path)) is None:
                raise TmuxError(f"{one_line(argv[0])!r} ended as soon as it had begun.")
            return pane_id
        except TmuxError as error:
            if warning := await self._kill_marked(marker):
                raise TmuxError(f"{error} {warning}") from None
            raise
        except BaseException:
            # Also where whoever asked is cut: nobody else knows of it.
            await self._kill_marked(marker)
            raise

    async def _start_pane(self, window_id: str, script: str, path: str | None) -> str | None:
        """None: it has ended already."""
        try:
            pane_id, pid = await self._create_pane(script, path)
        except NoSpace:
            # Where it would be split there is none; spread out evenly there is.
            await self._commands.run_checked("select-layout", "-t", window_id, "tiled")
            pane_id, pid = await self._create_pane(script, path)
        await self._commands.run(["select-layout", "-t", window_id, "tiled"])
        info = (await self.panes()).get(pane_id)
        return None if info is None or info.is_dead or info.pid != pid else pane_id

    async def _kill_marked(self, marker: str) -> str | None:
        """Ends what was begun, found by its mark: of a call that was not answered nobody has heard the id. A sentence
        where that cannot be done."""
        pane_format = f"#{{?#{{m:*{marker}*,#{{pane_start_command}}}},#{{pane_id}},}}"
        try:
            ids = (await self._commands.run_checked("list-panes", "-a", "-F", pane_format)).split()
            panes = await self.panes() if ids else {}
            for pane_id in ids:
                if pane_id in panes:
                    await self._kill(panes[pane_id])
        except TmuxError as error:
            log.warning("a pane that was begun may be left: %s", error)
            return f"The pane that was begun may be left: {error}"
        return None

    async def _check_window_and_program(self, window_id: str, program: str, path: str | None) -> None:
        """That the program is there is looked at first: tmux would only show a pane that is gone at once."""
        marker = secrets.token_hex(8)
        window_format = f"{marker}:#{{window_id}}:#{{pid}}:#{{PATH}}"
        output = await self._commands.run_checked("display-message", "-p", "-t", window_id, window_format)
        fields = output.partition(f"{marker}:")[2].strip("\n").split(":", 2)
        if len(fields) != 3 or fields[0] != window_id:
            raise TmuxError(f"There is no window {window_id}.")
        self._require_same_server(int(fields[1]))
        if shutil.which(program, path=path or fields[2] or os.defpath) is None:
            raise TmuxError(f"There is no program {one_line(program)!r} on PATH.")

    async def _create_pane(self, script: str, path: str | None) -> tuple[str, int]:
        # A PATH of ours would go before the one in the script: tmux takes it for that of whoever asks.
        environment = {} if path is None else {"PATH": path}
        result = await self._commands.run(["source-file", "-"], script.encode(), environment)
        fields = result.stdout.decode(errors="replace").strip().rpartition("\n")[2].split(":")
        if len(fields) != 3:
            error_type = NoSpace if NO_SPACE_MESSAGE in result.stderr + result.stdout else TmuxError
            raise error_type(error_text(result, "tmux made no pane"))
        pane_id, pid, server_pid = require_pane_id(fields[0]), int(fields[1]), int(fields[2])
        self._require_same_server(server_pid)
        return pane_id, pid

    # -- typing --------------------------------------------------------------------------------------------------

    async def type_line(
        self, info: PaneInfo, text: str, *, is_still_ready: Callable[[], bool] = lambda: True, press_enter: bool = True
    ) -> None:
        """One line of text, in brackets if the program knows them, and after a while Enter, when nobody else types
        there: neither if the pane is no longer what was seen, nor unless it is `still` what it should be."""
        # Here, and not only where lines are made: an ESC would end the brackets, and a line feed is an Enter.
        line = one_line(text)
        if len(line) > TEXT_MAX:
            raise TmuxError(f"{len(line)} characters are more than a pane is sent at once ({TEXT_MAX}).")
        self._require_same_server(info.server_pid)
        guard = PaneGuard(require_pane_id(info.pane_id), info.server_pid, info.pid, info.command, takes_input=True)
        async with lock_pane(self.socket, info.pane_id, self._seconds):
            _require_unchanged(info, is_still_ready)
            if line:
                await self._paste(guard, line.encode(), "-p")
            if press_enter:
                await asyncio.sleep(ENTER_DELAY_SECONDS)
                _require_unchanged(info, is_still_ready)
                await self._paste(guard, b"\r", "-r")

    async def _paste(self, guard: PaneGuard, text: bytes, flag: str) -> None:
        buffer_name = f"quarterdeck-{secrets.token_hex(8)}"
        command = f"paste-buffer {flag} -d -b {buffer_name} -t {guard.pane_id}"
        try:
            await self._commands.run_guarded(guard, command, before=("load-buffer", "-b", buffer_name, "-"), stdin=text)
        except TmuxError:
            # It was not pasted, or nobody knows: nothing of it is to lie about.
            await self._commands.run(["delete-buffer", "-b", buffer_name])
            raise

    # -- ending --------------------------------------------------------------------------------------------------

    async def kill(self, pane_id: str) -> None:
        """Ends what runs in the pane, and the pane; returns when all of it is gone."""
        info = (await self.panes()).get(require_pane_id(pane_id))
        if info is None:
            return
        self._require_same_server(info.server_pid)
        await self._kill(info)

    async def _kill(self, info: PaneInfo) -> None:
        await self._terminate_processes(info)
        # Mostly it has gone by itself, and sometimes its server with it: the look says whether it has.
        with contextlib.suppress(TmuxError):
            guard = PaneGuard(info.pane_id, info.server_pid, info.pid)
            await self._commands.run_guarded(guard, f"kill-pane -t {info.pane_id}")
        await self._wait_closed(info)

    async def _terminate_processes(self, info: PaneInfo) -> None:
        root = (await asyncio.to_thread(process_table.list_processes)).get(info.pid)
        # Not a child of this tmux server: the pid is somebody else's here, whoever it was.
        if info.is_dead or root is None or root.is_gone or root.parent_pid != info.server_pid:
            return
        try:
            remaining = await terminate_tree(root)
        except ContainsThisProcess:
            raise TmuxError(f"Pane {info.pane_id} holds this very process, which does not end itself.") from None
        if remaining:
            names = ", ".join(f"{process.pid} ({one_line(process.command)})" for process in remaining)
            raise TmuxError(f"Pane {info.pane_id} has processes that do not end: {names}.")

    async def _wait_closed(self, info: PaneInfo) -> None:
        deadline = asyncio.get_running_loop().time() + CLOSE_TIMEOUT_SECONDS
        while current := (await self.panes()).get(info.pane_id):
            if (current.server_pid, current.pid) != (info.server_pid, info.pid):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise TmuxError(f"Pane {info.pane_id} is still there.")
            await asyncio.sleep(POLL_SECONDS)

    def _require_same_server(self, server_pid: int) -> None:
        if self._server_pid not in (None, server_pid):
            raise PaneChanged(f"On {one_line(self.socket)} answers another tmux server than pid {self._server_pid}.")


def _require_unchanged(info: PaneInfo, is_still_ready: Callable[[], bool]) -> None:
    if not is_still_ready():
        raise PaneChanged(f"Pane {info.pane_id} is no longer what it was.")


def _check_split_arguments(argv: Sequence[str], environment: Mapping[str, str], directory: str | None) -> None:
    if not argv or not all(VARIABLE_NAME.fullmatch(name) for name in environment):
        raise TmuxError("A pane needs a command, and variables that have names.")
    if "=" in argv[0]:
        raise TmuxError(f"{one_line(argv[0])!r} would be taken for a variable, not for a program.")
    if any("\0" in text for text in (*argv, *environment.values(), directory or "")):
        raise TmuxError("Neither a command nor its environment can hold a NUL.")


def _split_script(window_id: str, argv: Sequence[str], environment: Mapping[str, str], directory: str | None) -> str:
    """Read by tmux from its standard input."""
    directory_format = "#{pane_current_path}" if directory is None else escape_format(directory)
    environment_options = [part for name, value in environment.items() for part in ("-e", quote(f"{name}={value}"))]
    pane_format = '"#{pane_id}:#{pane_pid}:#{pid}"'
    command = ["split-window", "-d", "-P", "-F", pane_format, "-t", window_id, "-c", quote(directory_format)]
    return " ".join([*command, *environment_options, "--", *map(quote, argv)]) + "\n"
