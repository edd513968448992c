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

from quarterdeck.client.api import Query, Server
from quarterdeck.client.http_types import Lost, TimedOut, Unreachable
from quarterdeck.core.errors import Fault, Problem

SILENCE_SECONDS = 90.0
"""A server says something on every stream once a minute at least. One that does not is gone; TCP has not noticed."""
LINE_MAX = 64 * 1024 * 1024
COME_AGAIN_MS = 1_000
PAUSE_MAX_MS = 15_000


class Message(NamedTuple):
    """One event of a stream, as the standard for server-sent events reads it."""

    id: str
    event: str
    data: str


class NobodyReads(Exception):
    """Whoever this was told to has gone."""


class Late(Exception):
    """The follower's time is up."""


class Reading:
    """Messages out of pieces that end anywhere, over however many connections: the last id outlives them all."""

    def __init__(self) -> None:
        self.last: str | None = None
        self.retry_ms = COME_AGAIN_MS
        self._rest = b""
        self._told: dict[str, str] = {}

    def begin(self) -> None:
        """A new connection: what the one before left half said is not to be heard."""
        self._rest, self._told = b"", {}

    def feed(self, piece: bytes) -> Iterator[Message | None]:
        """What has been said whole; None for a sign of life, which says nothing else."""
        *whole, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LINE_MAX:
            raise Lost("garbled_answer", "The answer cannot be read: a line is longer than the bound.")
        for line in whole:
            if line.startswith(b":"):
                continue
            text = line.removesuffix(b"\r").decode("utf-8", "replace")
            if text:
                self._note(text)
            else:
                yield self._message()

    def _note(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        more = name == "data" and "data" in self._told
        self._told[name] = f"{self._told['data']}\n{value}" if more else value

    def _message(self) -> Message | None:
        told, self._told = self._told, {}
        self.last = told.get("id", self.last)
        if told.get("retry", "").isdigit():
            self.retry_ms = min(int(told["retry"]), PAUSE_MAX_MS)
        if "data" not in told:
            return None
        return Message(self.last or "", told.get("event", "message"), told["data"])


class Follower:
    """One stream, however many connections it takes."""

    def __init__(
        self,
        reach: Callable[[], Server | None],
        path: str,
        query: Query,
        say: Callable[[str], None],
        output: int | None,
    ) -> None:
        self._reach = reach
        self._path = path
        self._query = query
        self._say = say
        self._output = output
        """A descriptor that is given up on, and the stream with it, when nobody reads it any more."""
        self.deadline: float | None = None
        """Until when to follow, by the monotonic clock; `Late` is raised then."""
        self._reading = Reading()
        self._failures = 0

    def messages(self, first: Server) -> Iterator[Message]:
        """Everything from where the query begins. The first connection is made here and now (what keeps it from being
        made is raised): whoever looks afterwards misses nothing between the look and the first message."""
        return self._go_on(self._open(first))

    def _go_on(self, opened: Iterator[bytes]) -> Iterator[Message]:
        while True:
            try:
                yield from self._read(opened)
                why = "The server ended the stream."
            except (Lost, TimedOut) as fault:
                why = fault.detail
            self._say(f"{why} Trying again.")
            opened = self._open_again()
            last = self._reading.last
            self._say(f"following again{f' after {last}' if last else ''}")

    def _open(self, server: Server) -> Iterator[bytes]:
        last = self._reading.last
        headers = {} if last is None else {"Last-Event-ID": last}
        return server.stream(self._path, self._query, headers, self._readable)

    def _open_again(self) -> Iterator[bytes]:
        while True:
            self._failures += 1
            self._pause()
            try:
                server = self._reach()
                if server is not None:
                    return self._open(server)
            except (Unreachable, Lost, TimedOut):
                continue
            except Problem as problem:
                # A fault of the server's may pass; a refusal will not.
                if not isinstance(problem, Fault):
                    raise

    def _pause(self) -> None:
        from random import random

        from quarterdeck.core.retry import Policy, delay

        retry_ms = self._reading.retry_ms
        policy = Policy(max_attempts=0, base_ms=retry_ms, cap_ms=max(retry_ms, PAUSE_MAX_MS))
        self._wait(None, delay(policy, attempt=self._failures, chance=random()) / 1000)

    def _read(self, pieces: Iterator[bytes]) -> Iterator[Message]:
        self._reading.begin()
        for piece in pieces:
            for message in self._reading.feed(piece):
                self._failures = 0
                if message is not None:
                    yield message

    # -- waiting, with an eye on whoever reads what is printed ---------------------------------------------------

    def _readable(self, connection: socket.socket) -> None:
        pending = getattr(connection, "pending", None)
        # What TLS has decrypted already makes no socket readable.
        if (pending is None or not pending()) and not self._wait(connection, SILENCE_SECONDS):
            raise TimeoutError

    def _wait(self, connection: socket.socket | None, seconds: float) -> bool:
        """Whether there is something to read before the time is over."""
        poll = select.poll()
        if connection is not None:
            poll.register(connection, select.POLLIN)
        if self._output is not None:
            poll.register(self._output, 0)
        if self.deadline is not None:
            seconds = max(0.0, min(seconds, self.deadline - time.monotonic()))
        deadline = time.monotonic() + seconds
        found = dict(poll.poll(seconds * 1000))
        if not found and self.deadline is not None and time.monotonic() >= self.deadline:
            raise Late
        output = 0 if self._output is None else found.pop(self._output, 0)
        if output & (select.POLLERR | select.POLLHUP):
            raise NobodyReads
        if output:
            # It cannot be waited on here (some systems' terminals): then only writing will tell.
            self._output = None
            return bool(found) or self._wait(connection, max(0.0, deadline - time.monotonic()))
        return bool(found)
