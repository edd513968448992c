"""Structured logs: one JSON object a line, on standard error.

Lines are gathered and written once per turn of the loop, because a system call per request would be a tenth of what a
request costs. What is not yet written when the process is killed is lost; everything else is flushed on the way out.
No line ever holds a header, a body or a query: there is no secret to leak in what is never given to it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import traceback

import msgspec

from quarterdeck.core.clock import iso, system_now

LEVELS = {"debug": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "fatal": 50, "critical": 50}
GATHER_MAX = 1_000


class LineWriter:
    """Gathers lines, and writes them together."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: list[bytes] = []
        self._due = False

    def write(self, line: bytes) -> None:
        self._lines.append(line)
        if self._due and len(self._lines) < GATHER_MAX:
            return
        try:
            asyncio.get_running_loop().call_soon(self.flush)
            self._due = True
        except RuntimeError:  # outside the loop: while starting, while stopping, or in another thread
            self.flush()

    def flush(self) -> None:
        lines, self._lines, self._due = self._lines, [], False
        data = memoryview(b"".join(lines))
        while data:
            data = data[os.write(self._descriptor, data) :]


class JsonHandler(logging.Handler):
    """Carries the standard library's records, with their exceptions, into the same stream."""

    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        line: dict[str, object] = {
            "time": iso(system_now()),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[1]:
            line["error"] = "".join(traceback.format_exception(record.exc_info[1]))
        self._writer.write(msgspec.json.encode(line) + b"\n")


def set_up(level: str) -> LineWriter:
    """Sends everything that is logged in this process to standard error as JSON."""
    writer = LineWriter(2)
    root = logging.getLogger()
    root.handlers = [JsonHandler(writer)]
    root.setLevel(LEVELS[level])
    return writer
