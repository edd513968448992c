"""Following a server's events, over whatever cuts the connection.

A stream that ends, breaks or falls silent is opened again, after a pause that grows and is never quite the same, from
the last id that was seen: nothing is missed and nothing comes twice. What the server refuses (a token that is no longer
good, a zone that is gone) is not asked again.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from quarterdeck.client.api import ApiClient, Query
from quarterdeck.client.http_types import Lost, TimedOut, Unreachable
from quarterdeck.core.errors import Fault, Problem

STREAM_TIMEOUT_SECONDS = 90.0
"""A server says something on every stream once a minute at least. One that does not is gone; TCP has not noticed."""
LINE_MAX = 64 * 1024 * 1024
DEFAULT_RETRY_MS = 1_000
RETRY_MAX_MS = 15_000


class SseMessage(NamedTuple):
    """One event of a stream, as the standard for server-sent events reads it."""

    id: str
    event: str
    data: str


class OutputClosed(Exception):
    """Whoever this was told to has gone."""


class DeadlineReached(Exception):
    """The follower's time is up."""


class SseParser:
    """Messages out of pieces that end anywhere, over however many connections: the last id outlives them all."""

    def __init__(self) -> None:
        self.last_event_id: str | None = None
        self.retry_ms = DEFAULT_RETRY_MS
        self._partial_line = b""
        self._fields: dict[str, str] = {}

    def reset(self) -> None:
        """A new connection: what the one before left half said is not to be heard."""
        self._partial_line, self._fields = b"", {}

    def feed(self, data: bytes) -> Iterator[SseMessage | None]:
        """What has been said whole; None for a sign of life, which says nothing else."""
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        if len(self._partial_line) > LINE_MAX:
            raise Lost("garbled_answer", "The answer cannot be read: a line is longer than the bound.")
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
    """One stream, however many connections it takes."""

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
        """A descriptor that is given up on, and the stream with it, when nobody reads it any more."""
        self.deadline: float | None = None
        """Until when to follow, by the monotonic clock; `Late` is raised then."""
        self._parser = SseParser()
        self._failures = 0

    def messages(self, server: ApiClient) -> Iterator[SseMessage]:
        """Everything from where the query begins. The first connection is made here and now (what keeps it from being
        made is raised): whoever looks afterwards misses nothing between the look and the first message."""
        return self._read_forever(self._open_stream(server))

    def _read_forever(self, chunks: Iterator[bytes]) -> Iterator[SseMessage]:
        while True:
            try:
                yield from self._read_messages(chunks)
                reason = "The server ended the stream."
            except (Lost, TimedOut) as fault:
                reason = fault.detail
            self._report(f"{reason} Trying again.")
            chunks = self._reopen_stream()
            last_event_id = self._parser.last_event_id
            self._report(f"following again{f' after {last_event_id}' if last_event_id else ''}")

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
                # A fault of the server's may pass; a refusal will not.
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

    # -- waiting, with an eye on whoever reads what is printed ---------------------------------------------------

    def _wait_readable(self, connection: socket.socket) -> None:
        pending = getattr(connection, "pending", None)
        # What TLS has decrypted already makes no socket readable.
        if (pending is None or not pending()) and not self._wait(connection, STREAM_TIMEOUT_SECONDS):
            raise TimeoutError

    def _wait(self, connection: socket.socket | None, seconds: float) -> bool:
        """Whether there is something to read before the time is over."""
        poll = select.poll()
        if connection is not None:
            poll.register(connection, select.POLLIN)
        if self._output_fd is not None:
            poll.register(self._output_fd, 0)
        if self.deadline is not None:
            seconds = max(0.0, min(seconds, self.deadline - time.monotonic()))
        deadline = time.monotonic() + seconds
        ready = dict(poll.poll(seconds * 1000))
        if not ready and self.deadline is not None and time.monotonic() >= self.deadline:
            raise DeadlineReached
        output_events = 0 if self._output_fd is None else ready.pop(self._output_fd, 0)
        if output_events & (select.POLLERR | select.POLLHUP):
            raise OutputClosed
        if output_events:
            # It cannot be waited on here (some systems' terminals): then only writing will tell.
            self._output_fd = None
            return bool(ready) or self._wait(connection, max(0.0, deadline - time.monotonic()))
        return bool(ready)
