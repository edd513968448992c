"""Operations on the panes of one tmux server: list, split, paste, Enter, capture, kill.

tmux itself checks the guard of a pane in the command that changes the pane (`PaneGuard`), because the pane may have
changed since it was listed. Text is pasted from a buffer, never sent as keys: keys would also go to all panes that are
synchronized with this one, and a pane in scroll mode would consume them.

tmux reads the environment of a new pane, which includes a token, from standard input: every user of the machine can see
command-line arguments, and tmux limits their size.
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

log = logging.getLogger("quarterdeck.tmux")
ENTER_DELAY_SECONDS = 0.12
"""An agent treats text that arrives at once as one paste, even a final Enter. So Enter is sent after this delay."""
TEXT_MAX_CHARACTERS = 256 * 1024
LINES_MAX = 10_000
NO_SPACE_MESSAGE = b"no space for new pane"
MARKER_VARIABLE = "QUARTERDECK_PANE"
"""Set by the start command of a new pane, so that the pane can be found if its id is unknown."""
CLOSE_TIMEOUT_SECONDS = 2.0
POLL_SECONDS = 0.02


class Tmux:
    def __init__(self, socket: str, timeout_seconds: float = 5.0, server_pid: int | None = None) -> None:
        """`timeout_seconds` limits each command. With `server_pid`, another server on the socket is refused."""
        self.socket = socket
        self._timeout_seconds = timeout_seconds
        self._commands = TmuxCommands(socket, timeout_seconds)
        self._server_pid = server_pid

    # -- reads ---------------------------------------------------------------------------------------------------

    async def list_panes(self) -> dict[str, PaneInfo]:
        """All panes of the server by id, with one command. Empty if no server is running."""
        if not await self._commands.is_server_running():
            return {}
        pane_list = PaneListFormat()
        output = await self._commands.run_checked("list-panes", "-a", "-F", pane_list.format)
        return pane_list.parse(output)

    async def capture(self, pane_id: str, max_lines: int, *, ansi: bool = False) -> str:
        """The last lines of the pane, including its scrollback."""
        max_lines = max(1, min(max_lines, LINES_MAX))
        command = f"capture-pane -p {'-e ' if ansi else ''}-S -{max_lines} -t {require_pane_id(pane_id)}"
        output = await self._commands.run_guarded(PaneGuard(pane_id, self._server_pid), command)
        return last_lines(output, max_lines)

    # -- creation ------------------------------------------------------------------------------------------------

    async def split(
        self, window_id: str, argv: Sequence[str], environment: Mapping[str, str], directory: str | None = None
    ) -> str:
        """Run a program in a new pane of a window, without a shell, and return the pane's id.

        Without `directory` the program starts in the directory of the window's active pane. After a failure or a
        cancellation the new pane is killed.
        """
        _check_split_arguments(argv, environment, directory)
        search_path = environment.get("PATH")
        await self._check_window_and_program(require_window_id(window_id), argv[0], search_path)
        marker = secrets.token_hex(8)
        script = _split_script(window_id, ["env", f"{MARKER_VARIABLE}={marker}", *argv], environment, directory)
        try:
            if (pane_id := await self._start_pane(window_id, script, search_path)) is None:
                raise TmuxError(f"{one_line(argv[0])!r} exited immediately after it was started.")
            return pane_id
        except TmuxError as error:
            if warning := await self._kill_marked(marker):
                raise TmuxError(f"{error} {warning}") from None
            raise
        except BaseException:
            # Includes cancellation: the caller does not get the id of the new pane, so it cannot kill it.
            await self._kill_marked(marker)
            raise

    async def _start_pane(self, window_id: str, script: str, search_path: str | None) -> str | None:
        """Create a pane and return its id. None if its program has already exited."""
        try:
            pane_id, pid = await self._create_pane(script, search_path)
        except NoSpace:
            # The active pane is too small to split. An even layout makes space.
            await self._commands.run_checked("select-layout", "-t", window_id, "tiled")
            pane_id, pid = await self._create_pane(script, search_path)
        await self._commands.run(["select-layout", "-t", window_id, "tiled"])
        info = (await self.list_panes()).get(pane_id)
        return None if info is None or info.is_dead or info.pid != pid else pane_id

    async def _kill_marked(self, marker: str) -> str | None:
        """Kill a new pane, found by its marker: tmux may not have returned its id. Returns a warning on failure."""
        pane_format = f"#{{?#{{m:*{marker}*,#{{pane_start_command}}}},#{{pane_id}},}}"
        try:
            ids = (await self._commands.run_checked("list-panes", "-a", "-F", pane_format)).split()
            panes = await self.list_panes() if ids else {}
            for pane_id in ids:
                if pane_id in panes:
                    await self._kill(panes[pane_id])
        except TmuxError as error:
            log.warning("a new pane may still exist: %s", error)
            return f"The new pane may still exist: {error}"
        return None

    async def _check_window_and_program(self, window_id: str, program: str, search_path: str | None) -> None:
        """Check that the window and the program exist. Without the program, tmux would create a pane that closes at
        once."""
        marker = secrets.token_hex(8)
        window_format = f"{marker}:#{{window_id}}:#{{pid}}:#{{PATH}}"
        output = await self._commands.run_checked("display-message", "-p", "-t", window_id, window_format)
        fields = output.partition(f"{marker}:")[2].strip("\n").split(":", 2)
        if len(fields) != 3 or fields[0] != window_id:
            raise TmuxError(f"The window {window_id} does not exist.")
        self._require_same_server(int(fields[1]))
        if shutil.which(program, path=search_path or fields[2] or os.defpath) is None:
            raise TmuxError(f"The program {one_line(program)!r} is not on PATH.")

    async def _create_pane(self, script: str, search_path: str | None) -> tuple[str, int]:
        # The PATH of the tmux client process overrides the one in the script, so set both.
        environment = {} if search_path is None else {"PATH": search_path}
        result = await self._commands.run(["source-file", "-"], script.encode(), environment)
        fields = result.stdout.decode(errors="replace").strip().rpartition("\n")[2].split(":")
        if len(fields) != 3:
            error_type = NoSpace if NO_SPACE_MESSAGE in result.stderr + result.stdout else TmuxError
            raise error_type(error_text(result, "tmux created no pane"))
        pane_id, pid, server_pid = require_pane_id(fields[0]), int(fields[1]), int(fields[2])
        self._require_same_server(server_pid)
        return pane_id, pid

    # -- keystrokes ----------------------------------------------------------------------------------------------

    async def paste_line(
        self, info: PaneInfo, text: str, *, is_still_ready: Callable[[], bool] = lambda: True, press_enter: bool = True
    ) -> None:
        """Paste one line and then press Enter, while holding the lock of the pane.

        Uses bracketed paste if the program supports it. Types nothing, or no Enter, if the pane differs from `info` or
        `is_still_ready` returns False.
        """
        # Sanitize here too: an ESC would end the bracketed paste, and a line feed would act as Enter.
        line = one_line(text)
        if len(line) > TEXT_MAX_CHARACTERS:
            raise TmuxError(f"The text has {len(line)} characters. The limit is {TEXT_MAX_CHARACTERS}.")
        self._require_same_server(info.server_pid)
        guard = PaneGuard(require_pane_id(info.pane_id), info.server_pid, info.pid, info.command, must_take_input=True)
        async with lock_pane(self.socket, info.pane_id, self._timeout_seconds):
            _require_unchanged(info, is_still_ready)
            if line:
                await self._paste(guard, line.encode(), "-p")
            if press_enter:
                await asyncio.sleep(ENTER_DELAY_SECONDS)
                _require_unchanged(info, is_still_ready)
                await self._paste(guard, b"\r", "-r")

    async def _paste(self, guard: PaneGuard, text: bytes, flag: str) -> None:
        buffer_name = f"quarterdeck-{secrets.token_hex(8)}"
        load_command = ("load-buffer", "-b", buffer_name, "-")
        paste_command = f"paste-buffer {flag} -d -b {buffer_name} -t {guard.pane_id}"
        try:
            await self._commands.run_guarded(guard, paste_command, setup_command=load_command, stdin=text)
        except TmuxError:
            # The text was not pasted, or the result is unknown. Do not leave the text in the buffer.
            await self._commands.run(["delete-buffer", "-b", buffer_name])
            raise

    # -- kill ----------------------------------------------------------------------------------------------------

    async def kill(self, pane_id: str) -> None:
        """Terminate the processes of the pane and close it. Returns when all of them have ended."""
        info = (await self.list_panes()).get(require_pane_id(pane_id))
        if info is None:
            return
        self._require_same_server(info.server_pid)
        await self._kill(info)

    async def _kill(self, info: PaneInfo) -> None:
        await self._terminate_processes(info)
        # Usually the pane, and sometimes its server, has already closed. `_wait_closed` checks that.
        with contextlib.suppress(TmuxError):
            guard = PaneGuard(info.pane_id, info.server_pid, info.pid)
            await self._commands.run_guarded(guard, f"kill-pane -t {info.pane_id}")
        await self._wait_closed(info)

    async def _terminate_processes(self, info: PaneInfo) -> None:
        root = (await asyncio.to_thread(process_table.list_processes)).get(info.pid)
        # If the process is not a child of this tmux server, the pid now belongs to another process.
        if info.is_dead or root is None or root.is_gone or root.parent_pid != info.server_pid:
            return
        try:
            remaining = await terminate_tree(root)
        except ContainsThisProcess:
            raise TmuxError(f"Pane {info.pane_id} contains this process, which cannot kill itself.") from None
        if remaining:
            names = ", ".join(f"{process.pid} ({one_line(process.command)})" for process in remaining)
            raise TmuxError(f"Pane {info.pane_id} has processes that could not be killed: {names}.")

    async def _wait_closed(self, info: PaneInfo) -> None:
        deadline = asyncio.get_running_loop().time() + CLOSE_TIMEOUT_SECONDS
        while current := (await self.list_panes()).get(info.pane_id):
            if (current.server_pid, current.pid) != (info.server_pid, info.pid):
                return
            if asyncio.get_running_loop().time() > deadline:
                raise TmuxError(f"Pane {info.pane_id} did not close within {CLOSE_TIMEOUT_SECONDS:g} s.")
            await asyncio.sleep(POLL_SECONDS)

    def _require_same_server(self, server_pid: int) -> None:
        if self._server_pid not in (None, server_pid):
            raise PaneChanged(f"The tmux server on {one_line(self.socket)} no longer has pid {self._server_pid}.")


def _require_unchanged(info: PaneInfo, is_still_ready: Callable[[], bool]) -> None:
    if not is_still_ready():
        raise PaneChanged(f"Pane {info.pane_id} has changed.")


def _check_split_arguments(argv: Sequence[str], environment: Mapping[str, str], directory: str | None) -> None:
    if not argv or not all(VARIABLE_NAME.fullmatch(name) for name in environment):
        raise TmuxError("A pane needs a command, and environment variables with valid names.")
    if "=" in argv[0]:
        raise TmuxError(f"The program {one_line(argv[0])!r} must not contain `=`: it would be read as a variable.")
    if any("\0" in text for text in (*argv, *environment.values(), directory or "")):
        raise TmuxError("The command, its environment and its directory must not contain a NUL character.")


def _split_script(window_id: str, argv: Sequence[str], environment: Mapping[str, str], directory: str | None) -> str:
    """The script that tmux reads from its standard input."""
    directory_format = "#{pane_current_path}" if directory is None else escape_format(directory)
    environment_options = [part for name, value in environment.items() for part in ("-e", quote(f"{name}={value}"))]
    pane_format = '"#{pane_id}:#{pane_pid}:#{pid}"'
    command = ["split-window", "-d", "-P", "-F", pane_format, "-t", window_id, "-c", quote(directory_format)]
    return " ".join([*command, *environment_options, "--", *map(quote, argv)]) + "\n"
