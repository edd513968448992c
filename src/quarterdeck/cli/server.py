"""The server of a data directory: start it, ask how it is, stop it, read its log."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

from quarterdeck.cli.admin import DATABASE, PLAIN_ENVIRONMENT, hand_over
from quarterdeck.cli.command_table import NUMBER, TEXT, Command, Noun, Option
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, fields, instant, span
from quarterdeck.cli.server_logs import LOGS, logs
from quarterdeck.client import discovery, file_locks
from quarterdeck.client.api import Document, Server
from quarterdeck.client.data_dir import Place
from quarterdeck.client.http_types import Lost, TimedOut, Unreachable
from quarterdeck.client.socket_peer import listener_pid
from quarterdeck.core.errors import EXIT_FAILED, Invalid


def noun() -> Noun:
    return Noun(
        (
            Command(("up",), "Start a server and stay with it.", hand_over, options=_UP),
            Command(("status",), "Tell whether a server runs, and where; fails if none is ready.", status),
            Command(("stop",), "Stop the data directory's server and wait for its end.", stop),
            Command(("logs",), "Print the log of a server that was started automatically.", logs, options=LOGS),
        ),
        {},
    )


_UP = (
    Option("--host", "The address to listen on [default: 127.0.0.1].", TEXT),
    Option("--port", "The port to listen on, 0 for any that is free [default: 4000].", NUMBER),
    DATABASE,
    Option("--migrate", "Bring PostgreSQL's schema up to date first."),
    PLAIN_ENVIRONMENT,
)


def status(context: Context) -> int:
    url = context.where.address(context.environ)
    told = _status_at(context, url) if url else _status_here(context, context.place)
    context.show(told, lambda document: _described(context, document))
    return 0 if told["ready"] else EXIT_FAILED


def stop(context: Context) -> int:
    place = context.own_place()
    pid = _running_pid(context, place)
    if pid is None:
        told: Document = {"stopped": False, "running": False, "data": place.path}
        context.show(told, lambda document: f"no server runs for {place.path}")
        return 0
    seconds = context.where.timeout or discovery.TIMEOUT
    # It may have ended by itself since; then the wait is short.
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    if not file_locks.wait_until_free(place.server_lock, seconds):
        raise TimedOut(
            "stop_timeout", f"The server (pid {pid}) was told to stop and still drains after {seconds:g} s.", pid=pid
        )
    told = {"stopped": True, "running": False, "data": place.path, "pid": pid}
    context.show(told, lambda document: f"stopped the server of {place.path} (pid {pid})")
    return 0


def _status_at(context: Context, url: str) -> Document:
    server = discovery.at_address(context.where, context.environ, url)
    ready, why = _readiness(server)
    return {"running": why is None, "ready": ready, "url": url, "why": why}


def _status_here(context: Context, place: Place) -> Document:
    if not place.is_served():
        return {"running": False, "ready": False, "data": place.path, "why": "no server runs"}
    record, server = place.record(), discovery.of_place(context.where, context.environ, place)
    told: Document = {"running": True, "ready": False, "data": place.path}
    if record is None or server is None:
        # The lock is taken first and the record written last, so a record without an answer is an earlier
        # server's.
        return {**told, "why": "a server holds the directory and does not answer: it is starting or draining"}
    ready, why = _readiness(server)
    return {**told, **record._asdict(), "ready": ready, "why": why}


def _readiness(server: Server) -> tuple[bool, str | None]:
    """Whether it is ready, and why it could not be asked if it could not."""
    try:
        return server.ask("GET", "/ready").status == 200, None
    except (Unreachable, TimedOut, Lost) as silent:
        return False, silent.detail


def _described(context: Context, told: Document) -> str:
    word = "ready" if told["ready"] else "running, not ready" if told["running"] else "not running"
    pairs: list[tuple[str, object]] = [("status", word)]
    for name in ("why", "url", "pid", "version", "database", "data", "socket"):
        if told.get(name) is not None:
            pairs.append((name, told[name]))
    since = instant(told.get("started_at"))
    if since is not None:
        pairs.append(("since", f"{cell(told['started_at'])} ({span(time.time() - since)})"))
    return fields(pairs, context.paint)


def _running_pid(context: Context, place: Place) -> int | None:
    """The process to stop: who listens on the directory's socket, which no reused pid can do."""
    server = discovery.awaited(context.where, context.environ, place)
    record = place.record()
    if server is None or record is None:
        return None
    pid = listener_pid(server.connection.open()) or record.pid
    if pid <= 1:
        # 0 would be our own process group, and nobody means 1.
        raise Invalid("no_pid", f"The server of {place.path} runs where its process cannot be signalled from here.")
    return pid
