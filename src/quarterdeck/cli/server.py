"""The server of a data directory: start it, ask how it is, stop it, read its log."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from quarterdeck.cli.admin import DATABASE_OPTION, OWN_VARIABLES_OPTION, exec_server_command
from quarterdeck.cli.command_table import NUMBER, TEXT, Command, CommandTable, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, fields, instant, span
from quarterdeck.cli.server_logs import LOGS_OPTIONS, logs
from quarterdeck.client import discovery, file_locks
from quarterdeck.client.api import ApiClient, Document
from quarterdeck.client.data_dir import DataDir
from quarterdeck.client.http_types import Lost, TimedOut, Unreachable
from quarterdeck.client.socket_peer import listener_pid
from quarterdeck.core.errors import EXIT_FAILED, Invalid


def build_command_table() -> CommandTable:
    return CommandTable(
        (
            Command(("up",), "Start a server and stay with it.", exec_server_command, options=_UP_OPTIONS),
            Command(("status",), "Tell whether a server runs, and where; fails if none is ready.", status),
            Command(("stop",), "Stop the data directory's server and wait for its end.", stop),
            Command(("logs",), "Print the log of a server that was started automatically.", logs, options=LOGS_OPTIONS),
        ),
        {},
    )


_UP_OPTIONS = (
    Option("--host", "The address to listen on [default: 127.0.0.1].", TEXT),
    Option("--port", "The port to listen on, 0 for any that is free [default: 4000].", NUMBER),
    DATABASE_OPTION,
    Option("--migrate", "Bring PostgreSQL's schema up to date first."),
    OWN_VARIABLES_OPTION,
)


def status(context: Context) -> int:
    url = context.server_location.explicit_url(context.environ)
    report = _remote_status(context, url) if url else _local_status(context, context.data_dir)
    context.show(report, lambda document: _format_status(context, document))
    return 0 if report["ready"] else EXIT_FAILED


def stop(context: Context) -> int:
    data_dir = context.local_data_dir()
    pid = _running_pid(context, data_dir)
    if pid is None:
        report: Document = {"stopped": False, "running": False, "data": data_dir.path}
        context.show(report, lambda document: f"no server runs for {data_dir.path}")
        return 0
    seconds = context.server_location.timeout or discovery.DEFAULT_TIMEOUT_SECONDS
    # It may have ended by itself since; then the wait is short.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if not file_locks.wait_until_free(data_dir.server_lock, seconds):
        raise TimedOut(
            "stop_timeout", f"The server (pid {pid}) was told to stop and still drains after {seconds:g} s.", pid=pid
        )
    report = {"stopped": True, "running": False, "data": data_dir.path, "pid": pid}
    context.show(report, lambda document: f"stopped the server of {data_dir.path} (pid {pid})")
    return 0


def _remote_status(context: Context, url: str) -> Document:
    server = discovery.client_for_url(context.server_location, context.environ, url)
    ready, reason = _readiness(server)
    return {"running": reason is None, "ready": ready, "url": url, "why": reason}


def _local_status(context: Context, data_dir: DataDir) -> Document:
    if not data_dir.has_running_server():
        return {"running": False, "ready": False, "data": data_dir.path, "why": "no server runs"}
    record, server = (
        data_dir.read_record(),
        discovery.connect_data_dir(context.server_location, context.environ, data_dir),
    )
    report: Document = {"running": True, "ready": False, "data": data_dir.path}
    if record is None or server is None:
        # The lock is taken first and the record written last, so a record without an answer is an earlier
        # server's.
        return {**report, "why": "a server holds the directory and does not answer: it is starting or draining"}
    ready, reason = _readiness(server)
    return {**report, **record._asdict(), "ready": ready, "why": reason}


def _readiness(server: ApiClient) -> tuple[bool, str | None]:
    """Whether it is ready, and why it could not be asked if it could not."""
    try:
        return server.send("GET", "/ready").status == 200, None
    except (Unreachable, TimedOut, Lost) as error:
        return False, error.detail


def _format_status(context: Context, report: Document) -> str:
    state = "ready" if report["ready"] else "running, not ready" if report["running"] else "not running"
    pairs: list[tuple[str, object]] = [("status", state)]
    for name in ("why", "url", "pid", "version", "database", "data", "socket"):
        if report.get(name) is not None:
            pairs.append((name, report[name]))
    started_at = instant(report.get("started_at"))
    if started_at is not None:
        pairs.append(("since", f"{cell(report['started_at'])} ({span(time.time() - started_at)})"))
    return fields(pairs, context.styler)


def _running_pid(context: Context, data_dir: DataDir) -> int | None:
    """The process to stop: who listens on the directory's socket, which no reused pid can do."""
    server = discovery.wait_for_server(context.server_location, context.environ, data_dir)
    record = data_dir.read_record()
    if server is None or record is None:
        return None
    pid = listener_pid(server.connection.open()) or record.pid
    if pid <= 1:
        # 0 would be our own process group, and nobody means 1.
        raise Invalid("no_pid", f"The server of {data_dir.path} runs where its process cannot be signalled from here.")
    return pid
