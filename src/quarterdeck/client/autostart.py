"""Starting a server where none runs: once, however many ask, and known to be ready by an event.

Who starts holds `start.lock`; the others wait for that lock and find the server there. The child inherits
the writing end of a pipe (`--ready-fd`): one line `ready URL` means that it serves, the end of the pipe
without that line means that it will not, and the reason is at the end of its log.
"""

# Without `pathlib`, as client.place says.
# ruff: noqa: PTH103, PTH105, PTH116, PTH123

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable

from quarterdeck.client import file_locks
from quarterdeck.client.api import ApiClient
from quarterdeck.client.data_dir import DataDir
from quarterdeck.client.http_types import TimedOut, Unreachable
from quarterdeck.core.errors import Fault

READY_TIMEOUT_SECONDS = 60.0
"""A first start migrates a new database, perhaps on a slow disk of a busy machine."""
_LOG_TAIL_LINES = 20
_LOG_MAX = 16 * 1024 * 1024
_CLIENT_VARIABLES = ("QD_TOKEN", "QD_URL", "QD_ZONE")


FindRunning = Callable[[], ApiClient | None]
"""Gives the directory's server if one answers now."""


class ServerStartFailed(Fault):
    """The server was started and gave up before it was ready."""

    status = 503
    title = "Server not started"


def ensure_server(data_dir: DataDir, report: Callable[[str], None], find_running: FindRunning) -> ApiClient | None:
    """The server of this directory, started if need be; None if it was ready and then did not answer."""
    os.makedirs(data_dir.path, mode=0o700, exist_ok=True)
    try:
        with file_locks.lock_exclusive(data_dir.start_lock, READY_TIMEOUT_SECONDS):
            # Whoever held the lock before us may have started it; else somebody may be starting one by hand.
            found = find_running() or wait_for_other(data_dir, find_running)
            if found is not None:
                return found
            _refuse_postgresql(data_dir)
            _start(data_dir, report)
            return find_running()
    except TimeoutError:
        raise TimedOut(
            "start_timeout", f"Another process has been starting a server in {data_dir.path} for too long."
        ) from None


def wait_for_other(data_dir: DataDir, find_running: FindRunning) -> ApiClient | None:
    """While a server holds the directory, waits until it answers: it may be starting, or draining. None
    when it is gone.

    Somebody else's child offers no event to wait for (its end would be one, its readiness is none), so this
    asks.
    """
    deadline = time.monotonic() + READY_TIMEOUT_SECONDS
    while data_dir.has_running_server():
        found = find_running()
        if found is not None:
            return found
        if time.monotonic() > deadline:
            raise TimedOut("server_silent", f"A server holds {data_dir.path} and does not answer; see `qd status`.")
        time.sleep(0.05)
    return None


def _refuse_postgresql(data_dir: DataDir) -> None:
    record = data_dir.read_record()
    if record is not None and record.database == "postgresql":
        raise Unreachable(
            "server_not_running",
            f"No server runs for {data_dir.path}. Its database is PostgreSQL, so none is started automatically: "
            "start it with `qd up`.",
        )


def _start(data_dir: DataDir, report: Callable[[str], None]) -> None:
    report(f"no server runs for {data_dir.path}: starting one (log: {data_dir.log}; `qd stop` ends it)")
    read_fd, write_fd = os.pipe()
    try:
        log_offset = _spawn(data_dir, write_fd)
        line = _read_line(read_fd, READY_TIMEOUT_SECONDS)
    finally:
        os.close(read_fd)
    if line is None:
        raise TimedOut(
            "start_timeout", f"The server was not ready within {READY_TIMEOUT_SECONDS:g} s; see {data_dir.log}."
        )
    if not line.startswith("ready"):
        raise ServerStartFailed("server_not_started", _start_failure_text(data_dir, log_offset), log=data_dir.log)


def _spawn(data_dir: DataDir, write_fd: int) -> int:
    """Starts the server in a session of its own and returns how long its log was before."""
    import subprocess  # 8 ms, and a command that finds its server never gets here

    # -P: a directory named quarterdeck where the user happens to stand must not be run in place of the
    # package.
    command = [sys.executable, "-P", "-m", "quarterdeck", "up", "--data", data_dir.path, "--port", "0"]
    command += ["--auto-started", "--ready-fd", str(write_fd)]
    environ = _server_environ(data_dir)
    try:
        _rotate_log(data_dir.log)
        log = os.open(data_dir.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            log_offset = os.fstat(log).st_size
            # The directory of its own, because a server must not pin the one its first user stood in.
            child = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=data_dir.path,
                env=environ,
                pass_fds=(write_fd,),
                start_new_session=True,
            )
        finally:
            os.close(log)
    finally:
        os.close(write_fd)
    # It outlives us on purpose; without this Popen would call that a leak.
    child.returncode = 0
    return log_offset


def _server_environ(data_dir: DataDir) -> dict[str, str]:
    """What the server is told. Unless its owner says otherwise it logs warnings only: nobody watches this log,
    and a line for every request would fill a disk."""
    environ = {name: value for name, value in os.environ.items() if name not in _CLIENT_VARIABLES}
    if "QD_LOG_LEVEL" not in environ and not _settings_file_sets(data_dir, "log_level"):
        environ["QD_LOG_LEVEL"] = "warning"
    return environ


def _settings_file_sets(data_dir: DataDir, key: str) -> bool:
    """Whether the directory's settings file sets this: a variable would beat it."""
    import tomllib

    try:
        with open(f"{data_dir.path}/quarterdeck.toml", "rb") as file:
            return key in tomllib.load(file)
    except (OSError, ValueError):
        return False  # what is wrong with it is the server's to say


def _rotate_log(log: str) -> None:
    """A log that has grown long is put aside, and one old one is kept. This happens at a start only, so what
    one start writes is bounded by its level alone (see `_environ`)."""
    try:
        if os.stat(log).st_size > _LOG_MAX:
            os.replace(log, f"{log}.1")
    except FileNotFoundError:
        pass


def _read_line(read_fd: int, seconds: float) -> str | None:
    """The first line from the pipe, what there was of it if the pipe ended, or None if the time did."""
    deadline = time.monotonic() + seconds
    data = b""
    poll = select.poll()
    poll.register(read_fd, select.POLLIN)
    while b"\n" not in data:
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        chunk = os.read(read_fd, 4096)
        if not chunk:
            break
        data += chunk
    return data.decode("utf-8", "replace").partition("\n")[0]


def _start_failure_text(data_dir: DataDir, log_offset: int) -> str:
    """The end of what this start wrote to the log: the reason is in its last lines."""
    descriptor = os.open(data_dir.log, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, 16_384, max(log_offset, size - 16_384))
    finally:
        os.close(descriptor)
    lines = tail.decode("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:]
    tail_text = "\n".join(f"  {line}" for line in lines) or "  (it wrote nothing)"
    return f"The server did not start. The end of {data_dir.log}:\n{tail_text}"
