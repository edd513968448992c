"""Follows a server's event stream (server-sent events) and reconnects when the connection is lost.

A stream that ends, breaks or is silent for 90 s is reopened with exponential backoff and jitter. The new connection
starts after the last event id, so no event is missed or repeated. If the server no longer has that position, it sends a
`reset` event and then all stored events. A refusal, for example of an expired token, is raised and not retried.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from quarterdeck.client.api import ApiClient, Query
from quarterdeck.client.http_types import Lost, TimedOut, Unreachable
from quarterdeck.core.errors import Fault, Problem

STREAM_TIMEOUT_SECONDS = 90.0
"""The server writes to every stream at least once a minute. After this much silence the connection is considered dead,
even if TCP has not noticed."""
LINE_BYTES_MAX = 64 * 1024 * 1024
DEFAULT_RETRY_MS = 1_000
RETRY_MAX_MS = 15_000


class SseMessage(NamedTuple):
    """One event, as the server-sent events standard defines it."""

    id: str
    event: str
    data: str


class OutputClosed(Exception):
    """The process that reads the output of this command has closed it."""


class DeadlineReached(Exception):
    """`EventStream.deadline` has passed."""


class SseParser:
    """Parses messages from chunks that may end anywhere. Keeps the last event id across connections."""

    def __init__(self) -> None:
        self.last_event_id: str | None = None
        self.retry_ms = DEFAULT_RETRY_MS
        self._partial_line = b""
        self._fields: dict[str, str] = {}

    def reset(self) -> None:
        """Discard the incomplete message of the previous connection."""
        self._partial_line, self._fields = b"", {}

    def feed(self, data: bytes) -> Iterator[SseMessage | None]:
        """Yield complete messages. Yields None for a message without data, such as a keep-alive."""
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        if len(self._partial_line) > LINE_BYTES_MAX:
            raise Lost("garbled_answer", f"Malformed response: a line is longer than {LINE_BYTES_MAX} bytes.")
        for line in lines:
            if line.startswith(b":"):
                continue
            text = line.removesuffix(b"\r").decode("utf-8", "replace")
            if text:
                self._add_field(text)
            else:
                yield self._finish_message()

    def _add_field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        is_continuation = name == "data" and "data" in self._fields
        self._fields[name] = f"{self._fields['data']}\n{value}" if is_continuation else value

    def _finish_message(self) -> SseMessage | None:
        fields, self._fields = self._fields, {}
        self.last_event_id = fields.get("id", self.last_event_id)
        if fields.get("retry", "").isdigit():
            self.retry_ms = min(int(fields["retry"]), RETRY_MAX_MS)
        if "data" not in fields:
            return None
        return SseMessage(self.last_event_id or "", fields.get("event", "message"), fields["data"])


class EventStream:
    """One event stream over any number of connections."""

    def __init__(
        self,
        connect: Callable[[], ApiClient | None],
        path: str,
        query: Query,
        report: Callable[[str], None],
        output_fd: int | None,
    ) -> None:
        self._connect = connect
        self._path = path
        self._query = query
        self._report = report
        self._output_fd = output_fd
        """The descriptor that the caller prints to. `OutputClosed` is raised when its other end is closed."""
        self.deadline: float | None = None
        """A time on the monotonic clock. `DeadlineReached` is raised when it has passed."""
        self._parser = SseParser()
        self._failures = 0

    def messages(self, server: ApiClient) -> Iterator[SseMessage]:
        """Return an iterator over all messages that match the query, from the query's start position on.

        This call opens the first connection and raises if that fails, so a caller that reads the current state
        afterwards misses no event.
        """
        return self._read_forever(self._open_stream(server))

    def _read_forever(self, chunks: Iterator[bytes]) -> Iterator[SseMessage]:
        while True:
            try:
                yield from self._read_messages(chunks)
                reason = "The server ended the stream."
            except (Lost, TimedOut) as fault:
                reason = fault.detail
            self._report(f"{reason} Reconnecting.")
            chunks = self._reopen_stream()
            last_event_id = self._parser.last_event_id
            self._report(f"reconnected{f' after event {last_event_id}' if last_event_id else ''}")

    def _open_stream(self, server: ApiClient) -> Iterator[bytes]:
        last_event_id = self._parser.last_event_id
        headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
        return server.stream(self._path, self._query, headers, self._wait_readable)

    def _reopen_stream(self) -> Iterator[bytes]:
        while True:
            self._failures += 1
            self._wait_before_retry()
            try:
                server = self._connect()
                if server is not None:
                    return self._open_stream(server)
            except (Unreachable, Lost, TimedOut):
                continue
            except Problem as problem:
                # A server fault may be temporary. A refusal is not.
                if not isinstance(problem, Fault):
                    raise

    def _wait_before_retry(self) -> None:
        from random import random

        from quarterdeck.core.retry import Policy, backoff

        retry_ms = self._parser.retry_ms
        policy = Policy(max_attempts=0, base_ms=retry_ms, cap_ms=max(retry_ms, RETRY_MAX_MS))
        self._wait(None, backoff(policy, attempt=self._failures, jitter=random()) / 1000)

    def _read_messages(self, chunks: Iterator[bytes]) -> Iterator[SseMessage]:
        self._parser.reset()
        for chunk in chunks:
            for message in self._parser.feed(chunk):
                self._failures = 0
                if message is not None:
                    yield message

    # -- waits, which also watch the output descriptor -------------------------------------------------------------

    def _wait_readable(self, connection: socket.socket) -> None:
        pending = getattr(connection, "pending", None)
        # Bytes that TLS has already decrypted do not make the socket readable.
        if (pending is None or not pending()) and not self._wait(connection, STREAM_TIMEOUT_SECONDS):
            raise TimeoutError

    def _wait(self, connection: socket.socket | None, seconds: float) -> bool:
        """Wait, and return whether the connection became readable in time."""
        if self.deadline is not None:
            seconds = max(0.0, min(seconds, self.deadline - time.monotonic()))
        deadline = time.monotonic() + seconds
        ready = _poll(connection, self._output_fd, seconds)
        if not ready and self.deadline is not None and time.monotonic() >= self.deadline:
            raise DeadlineReached
        output_events = 0 if self._output_fd is None else ready.pop(self._output_fd, 0)
        if output_events & (select.POLLERR | select.POLLHUP):
            raise OutputClosed
        if output_events:
            # Some systems cannot poll a terminal. There, only a failed write shows that it was closed.
            self._output_fd = None
            return bool(ready) or self._wait(connection, max(0.0, deadline - time.monotonic()))
        return bool(ready)


def _poll(connection: socket.socket | None, output_fd: int | None, seconds: float) -> dict[int, int]:
    """Wait for input from the connection or for an error of the output. Returns the events by file descriptor."""
    if sys.platform == "win32":  # has no poll, and cannot watch the output
        if connection is None:
            time.sleep(seconds)
            return {}
        readable, _, _ = select.select([connection], [], [], seconds)
        return {found.fileno(): 1 for found in readable}
    poll = select.poll()
    if connection is not None:
        poll.register(connection, select.POLLIN)
    if output_fd is not None:
        poll.register(output_fd, 0)
    return dict(poll.poll(seconds * 1000))
