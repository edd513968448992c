"""Structured logs: one JSON object a line, on standard error.

The lines of requests are gathered for a moment and written together, because a system call per request would be a
tenth of what a request costs. A process that is killed loses that moment of them; everything else that is logged is
written at once.
No line ever holds a header, a body or a query: there is no secret to leak in what is never given to it. What is logged
of errors is written by others, libraries among them: out of it is struck what says itself that it is a secret.
"""

from __future__ import annotations

import asyncio
import logging
import os
import traceback

import msgspec

from quarterdeck.core.clock import iso, system_now
from quarterdeck.core.redaction import redact_text

LEVELS = {"debug": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "fatal": 50, "critical": 50}
BUFFERED_LINES_MAX = 1_000
FLUSH_SECONDS = 0.05


class LineWriter:
    """Gathers lines, and writes them together."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: list[bytes] = []
        self._flush_timer: asyncio.TimerHandle | None = None
        self.lost_lines = 0

    def write(self, line: bytes) -> None:
        self._lines.append(line)
        if len(self._lines) >= BUFFERED_LINES_MAX:
            self.flush()
        elif self._flush_timer is None:
            self._flush_timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        lines, self._lines = self._lines, []
        data = memoryview(b"".join(lines))
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            # A full disk or a closed pipe: whoever had something to say must not fail for it. Counted, and shown at
            # /metrics, because there is nowhere left to say it.
            self.lost_lines += len(lines)

    def write_now(self, line: bytes) -> None:
        """For what cannot wait: what is wrong, and what is said from outside the loop."""
        self._lines.append(line)
        self.flush()


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
            "message": redact_text(record.getMessage()),
        }
        if record.exc_info and record.exc_info[1]:
            line["error"] = redact_text("".join(traceback.format_exception(record.exc_info[1])))
        self._writer.write_now(msgspec.json.encode(line) + b"\n")


def set_up_logging(level: str) -> LineWriter:
    """Sends everything that is logged in this process to standard error as JSON."""
    writer = LineWriter(2)
    root = logging.getLogger()
    handler = JsonHandler(writer)
    # The handler's own level, too: a library may have given its logger one, and then the root's is not asked.
    handler.setLevel(LEVELS[level])
    root.handlers = [handler]
    root.setLevel(LEVELS[level])
    return writer
