"""`qd up`, `status`, `stop` and `logs`: the server of a data directory."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

from quarterdeck.cli.admin import DATABASE_OPTION, OWN_VARIABLES_OPTION, exec_server_command
from quarterdeck.cli.command_table import NUMBER, TEXT, Group, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, decode_object, fields, format_duration, parse_timestamp, to_json_line
from quarterdeck.client import discovery, file_locks
from quarterdeck.client.api import ApiClient, Document
from quarterdeck.client.data_dir import DataDir
from quarterdeck.client.http_types import Lost, TimedOut, Unreachable
from quarterdeck.core.errors import EXIT_FAILED, Invalid, NotFound

GROUP = Group("")
_BLOCK_BYTES = 64 * 1024
_POLL_SECONDS = 0.2


@GROUP.command("status", "Show the state of the server. Exits 1 if it is not ready.")
def status(context: Context) -> int:
    url = context.server_location.explicit_url(context.environ)
    report = _remote_status(context, url) if url else _local_status(context, context.data_dir)
    context.show(report, lambda document: _format_status(context, document))
    return 0 if report["ready"] else EXIT_FAILED


@GROUP.command("stop", "Stop the server of the data directory and wait until it has exited.")
def stop(context: Context) -> None:
    data_dir = context.local_data_dir()
    pid = _running_pid(context, data_dir)
    report: Document = {"stopped": pid is not None, "running": False, "data": data_dir.path}
    if pid is None:
        context.show(report, f"No server is running for {data_dir.path}.")
        return
    timeout_seconds = context.server_location.timeout or discovery.DEFAULT_TIMEOUT_SECONDS
    # The server may have exited in the meantime. Then the wait below is short.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if not file_locks.wait_until_free(data_dir.server_lock_path, timeout_seconds):
        raise TimedOut(
            "stop_timeout",
            f"The server (pid {pid}) received SIGTERM but has not exited after {timeout_seconds:g} s. "
            "Wait longer with --timeout.",
            pid=pid,
        )
    context.show({**report, "pid": pid}, f"Stopped the server of {data_dir.path} (pid {pid}).")


def _remote_status(context: Context, url: str) -> Document:
    server = discovery.client_for_url(context.server_location, context.environ, url)
    is_ready, reason = _check_readiness(server)
    return {"running": reason is None, "ready": is_ready, "url": url, "why": reason}


def _local_status(context: Context, data_dir: DataDir) -> Document:
    report: Document = {"running": data_dir.has_running_server(), "ready": False, "data": data_dir.path}
    if not report["running"]:
        return {**report, "why": "no server is running"}
    record = data_dir.read_record()
    server = discovery.connect_data_dir(context.server_location, context.environ, data_dir)
    if record is None or server is None:
        # A server takes the lock first and writes the record last. So if no server responds, the record is from an
        # earlier server.
        return {**report, "why": "a server has locked the directory but is not responding: it is starting or stopping"}
    is_ready, reason = _check_readiness(server)
    return {**report, **record._asdict(), "ready": is_ready, "why": reason}


def _check_readiness(server: ApiClient) -> tuple[bool, str | None]:
    """Return whether the server is ready, and the reason if it could not be reached."""
    try:
        return server.send("GET", "/ready").status == 200, None
    except (Unreachable, TimedOut, Lost) as error:
        return False, error.detail


def _format_status(context: Context, report: Document) -> str:
    state = "ready" if report["ready"] else "running, not ready" if report["running"] else "not running"
    started_at = parse_timestamp(report.get("started_at"))
    age = "" if started_at is None else format_duration(time.time() - started_at)
    values = {"status": state, **report, "since": f"{cell(report['started_at'])} ({age})" if age else None}
    names = ("status", "why", "url", "pid", "version", "database", "data", "socket", "since")
    return fields([(name, values[name]) for name in names if values.get(name) is not None], context.styler)


def _running_pid(context: Context, data_dir: DataDir) -> int | None:
    """Return the pid of the process that listens on the directory's socket, or None if no server is running.

    The recorded pid is used only if the system does not report the listener's pid: after a crash, another process may
    have the recorded one.
    """
    server = discovery.wait_for_server(context.server_location, context.environ, data_dir)
    record = data_dir.read_record()
    if server is None or record is None:
        return None
    pid = discovery.listener_pid(server.connection.open()) or record.pid
    if pid <= 1:
        # Never signal 0, our own process group, or 1, the init process.
        detail = f"The server of {data_dir.path} is in another pid namespace, such as a container. Stop it there."
        raise Invalid("no_pid", detail)
    return pid


GROUP.command(
    "up",
    "Run a server in the foreground.",
    Option("--host", "Address to listen on [default: 127.0.0.1].", TEXT),
    Option("--port", "Port to listen on; 0 picks a free port [default: 4000].", NUMBER),
    DATABASE_OPTION,
    Option("--migrate", "Upgrade the PostgreSQL schema before starting."),
    OWN_VARIABLES_OPTION,
)(exec_server_command)


# -- logs ------------------------------------------------------------------------------------------------------------


@GROUP.command(
    "logs",
    "Print the log of a server that was started automatically.",
    Option("--follow", "Keep printing new lines until Ctrl-C.", short="-f"),
    Option("--lines", "Number of lines from the end [default: 50].", NUMBER, short="-n"),
)
def logs(context: Context) -> None:
    path = context.local_data_dir().log_path
    line_count = context.number("lines")
    try:
        log_fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        detail = f"{path} does not exist. Only a server that was started automatically writes this log."
        raise NotFound("no_log", detail) from None
    try:
        for line in read_last_lines(log_fd, 50 if line_count is None else line_count):
            context.write(_format_line(line, context.as_json))
        if context.flag("follow"):
            _follow(context, path, log_fd)
    finally:
        os.close(log_fd)


def read_last_lines(log_fd: int, count: int) -> list[bytes]:
    """Return the last lines of an open file. Reads backwards, and leaves the file position at the end."""
    end = os.lseek(log_fd, 0, os.SEEK_END)
    data = b""
    position = end
    # Read one more line break than lines, because the first line of the data may be partial.
    while position > 0 and data.count(b"\n") <= count:
        size = min(_BLOCK_BYTES, position)
        position -= size
        data = os.pread(log_fd, size, position) + data
    return data.splitlines()[-count:] if count else []


def read_added_lines(log_fd: int) -> Iterator[bytes]:
    """Yield the complete lines after the file position. A partial last line is left for the next call."""
    data = b""
    while chunk := os.read(log_fd, _BLOCK_BYTES):
        data += chunk
    complete, newline, partial = data.rpartition(b"\n")
    os.lseek(log_fd, -len(partial), os.SEEK_CUR)
    yield from (complete + newline).splitlines()


def _follow(context: Context, path: str, log_fd: int) -> None:
    """Print new lines until Ctrl-C. Polls, because the standard library cannot watch a file."""
    current_fd = log_fd
    while True:
        for line in read_added_lines(current_fd):
            context.write(_format_line(line, context.as_json))
        sys.stdout.flush()
        current_fd = _reopen_if_rotated(path, current_fd)
        time.sleep(_POLL_SECONDS)


def _reopen_if_rotated(path: str, current_fd: int) -> int:
    """Switch to the start of the new log after a rotation, which renames or truncates the old one."""
    open_stat = os.fstat(current_fd)
    try:
        path_stat = os.stat(path)  # noqa: PTH116 - importing pathlib takes 10 ms
    except FileNotFoundError:
        return current_fd
    if (path_stat.st_dev, path_stat.st_ino) != (open_stat.st_dev, open_stat.st_ino):
        new_fd = os.open(path, os.O_RDONLY)
        os.dup2(new_fd, current_fd)
        os.close(new_fd)
    elif path_stat.st_size < os.lseek(current_fd, 0, os.SEEK_CUR):
        os.lseek(current_fd, 0, os.SEEK_SET)
    return current_fd


def _format_line(line: bytes, as_json: bool) -> str:
    """Format one line. With --json it becomes an object, even if it is plain text, such as a line of a traceback."""
    text = line.decode("utf-8", "replace")
    if not as_json:
        return text if text.isprintable() else cell(text)
    return to_json_line({"message": text}) if decode_object(text) is None else text
