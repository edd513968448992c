"""Structured logs: one JSON object per line on standard error.

Request lines are buffered for up to `FLUSH_SECONDS` and written together, because one system call per request would
make up a tenth of the cost of a request. A killed process loses the buffered request lines. Log records are written
immediately.

Request lines contain no header, body or query, so they cannot leak a secret. Error texts come from other code,
including libraries, so values that are recognizable as secrets are redacted.
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
    """Buffers lines and writes them together."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lines: list[bytes] = []
        self._flush_timer: asyncio.TimerHandle | None = None
        self.lost_line_count = 0

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
            # A full disk or a closed pipe must not fail the request that logs. The loss cannot be logged either, so it
            # is counted and shown in /metrics.
            self.lost_line_count += len(lines)

    def write_now(self, line: bytes) -> None:
        """Write the buffered lines and this line immediately. Unlike `write`, this needs no running event loop."""
        self._lines.append(line)
        self.flush()


class JsonHandler(logging.Handler):
    """Writes log records, with their exceptions, as JSON lines."""

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


def request_log(writer: LineWriter, level: str) -> LineWriter | None:
    """The writer for request lines. None if the level excludes them."""
    return writer if LEVELS[level] <= LEVELS["info"] else None


def set_up_logging(level: str) -> LineWriter:
    """Send all logging of this process to standard error as JSON."""
    writer = LineWriter(2)
    root = logging.getLogger()
    handler = JsonHandler(writer)
    # The level is set on the handler too: a logger with its own level ignores the root's.
    handler.setLevel(LEVELS[level])
    root.handlers = [handler]
    root.setLevel(LEVELS[level])
    return writer
