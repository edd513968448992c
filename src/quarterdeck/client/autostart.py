"""Starts a data directory's server if none is running.

The process that starts the server holds `start.lock`. Other processes wait for that lock and then find the server, so
concurrent commands start only one. The server inherits the write end of a pipe (`--ready-fd`) and writes the line
`ready URL` once it accepts requests. If the pipe closes without that line, the start failed, and the server's log ends
with the reason.
"""

# No `pathlib`: see client/data_dir.py.
# ruff: noqa: PTH103, PTH123

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable

from quarterdeck.client import file_locks
from quarterdeck.client.api import ApiClient
from quarterdeck.client.data_dir import DataDir, rotate_log
from quarterdeck.client.http_types import TimedOut, Unreachable
from quarterdeck.client.server_package import require_server
from quarterdeck.core.errors import Fault

READY_TIMEOUT_SECONDS = 60.0
"""Long, because the first start creates and migrates the database, perhaps on a slow disk."""
_LOG_TAIL_LINES = 20
_CLIENT_VARIABLES = ("QD_TOKEN", "QD_URL", "QD_ZONE")
"""Environment variables that only clients use. They are not passed to the server."""


FindRunning = Callable[[], ApiClient | None]
"""Returns a client that is connected to the directory's server, or None if it is not accepting connections."""


class ServerStartFailed(Fault, status=503, title="Server not started"):
    """The started server exited before it was ready."""


def ensure_server(data_dir: DataDir, report: Callable[[str], None], find_running: FindRunning) -> ApiClient | None:
    """Connect to the directory's server. Starts it if it is not running.

    Returns None if the new server became ready but then accepted no connection.
    """
    if not data_dir.has_running_server():
        require_server(f"No server is running for {data_dir.path}. Starting one")
    os.makedirs(data_dir.path, mode=0o700, exist_ok=True)
    try:
        with file_locks.lock_exclusive(data_dir.start_lock_path, READY_TIMEOUT_SECONDS):
            # The previous holder of the lock may have started the server, or a user may be starting one by hand.
            server = find_running() or wait_for_lock_holder(data_dir, find_running)
            if server is not None:
                return server
            _refuse_postgresql(data_dir)
            _start_server(data_dir, report)
            return find_running()
    except TimeoutError:
        raise TimedOut(
            "start_timeout",
            f"Another process has been starting a server in {data_dir.path} for more than {READY_TIMEOUT_SECONDS:g} s.",
        ) from None


def wait_for_lock_holder(data_dir: DataDir, find_running: FindRunning) -> ApiClient | None:
    """Connect to the server that holds `server.lock`, waiting while it starts or drains. None once it has exited.

    This polls, because only the process that started the server can read the pipe that reports readiness.
    """
    deadline = time.monotonic() + READY_TIMEOUT_SECONDS
    while data_dir.has_running_server():
        server = find_running()
        if server is not None:
            return server
        if time.monotonic() > deadline:
            raise TimedOut(
                "server_silent",
                f"The server of {data_dir.path} is running but has accepted no connection for "
                f"{READY_TIMEOUT_SECONDS:g} s. See `qd status`.",
            )
        time.sleep(0.05)
    return None


def _refuse_postgresql(data_dir: DataDir) -> None:
    record = data_dir.read_record()
    if record is not None and record.database == "postgresql":
        raise Unreachable(
            "server_not_running",
            f"No server is running for {data_dir.path}. A server that uses PostgreSQL is not started automatically: "
            "run `qd up`.",
        )


def _start_server(data_dir: DataDir, report: Callable[[str], None]) -> None:
    report(f"no server is running for {data_dir.path}: starting one (log: {data_dir.log_path}; `qd stop` stops it)")
    read_fd, write_fd = os.pipe()
    try:
        log_offset = _spawn_server(data_dir, write_fd)
        line = _read_line(read_fd, READY_TIMEOUT_SECONDS)
    finally:
        os.close(read_fd)
    if line is None:
        raise TimedOut(
            "start_timeout", f"The server was not ready within {READY_TIMEOUT_SECONDS:g} s. See {data_dir.log_path}."
        )
    if not line.startswith("ready"):
        raise ServerStartFailed("server_not_started", _start_failure_text(data_dir, log_offset), log=data_dir.log_path)


def _spawn_server(data_dir: DataDir, write_fd: int) -> int:
    """Start the server in its own process session. Returns the size of its log before the start."""
    import subprocess  # takes 8 ms, and is not needed if the server is already running

    # -P: a directory named quarterdeck in the working directory must not be imported instead of the package.
    command = [sys.executable, "-P", "-m", "quarterdeck", "up", "--data", data_dir.path, "--port", "0"]
    command += ["--auto-started", "--ready-fd", str(write_fd)]
    environ = _server_environ(data_dir)
    try:
        rotate_log(data_dir.log_path)
        log_fd = os.open(data_dir.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            log_offset = os.fstat(log_fd).st_size
            # Run in the data directory, so that the server does not keep the command's working directory in use.
            child = subprocess.Popen(  # noqa: S603 - our own interpreter and arguments
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                cwd=data_dir.path,
                env=environ,
                pass_fds=(write_fd,),
                start_new_session=True,
            )
        finally:
            os.close(log_fd)
    finally:
        os.close(write_fd)
    # The server outlives this process on purpose. With a return code set, Popen does not warn that it is still running.
    child.returncode = 0
    return log_offset


def _server_environ(data_dir: DataDir) -> dict[str, str]:
    """The environment for the server. Sets the log level to `warning`, unless the user has set a level.

    A line for every request would fill the disk, because the log is rotated only when a server starts.
    """
    environ = {name: value for name, value in os.environ.items() if name not in _CLIENT_VARIABLES}
    if "QD_LOG_LEVEL" not in environ and not _settings_file_sets(data_dir, "log_level"):
        environ["QD_LOG_LEVEL"] = "warning"
    return environ


def _settings_file_sets(data_dir: DataDir, key: str) -> bool:
    """Whether `quarterdeck.toml` in the data directory sets this key. An environment variable would override it."""
    import tomllib

    try:
        with open(f"{data_dir.path}/quarterdeck.toml", "rb") as file:
            return key in tomllib.load(file)
    except (OSError, ValueError):
        return False  # the server reports what is wrong with the file


def _read_line(read_fd: int, timeout_seconds: float) -> str | None:
    """Read the first line from the pipe. Returns a partial line if the pipe closes, and None after a time-out."""
    deadline = time.monotonic() + timeout_seconds
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
    """The error text, with the last lines that the new server wrote to the log."""
    descriptor = os.open(data_dir.log_path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        tail = os.pread(descriptor, 16_384, max(log_offset, size - 16_384))
    finally:
        os.close(descriptor)
    lines = tail.decode("utf-8", "replace").splitlines()[-_LOG_TAIL_LINES:]
    tail_text = "\n".join(f"  {line}" for line in lines) or "  (empty)"
    return f"The server did not start. The end of {data_dir.log_path}:\n{tail_text}"
