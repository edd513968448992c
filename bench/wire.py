"""One kept-alive HTTP connection on a raw socket, for the generators: at most one request under way at a time."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator

from bench.orders import NUMBER, Order

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    def __init__(self, answered: Callable[[Connection, int], None], lost: Callable[[Connection], None]) -> None:
        self._answered = answered
        self._lost = lost
        self._buffer = b""
        self._whole = 0
        self._transport: asyncio.WriteTransport | None = None
        self.began = 0.0
        """For whoever sends: when the request under way began, by whatever clock."""
        self.answer = b""
        """The last one, whole."""

    def connection_made(self, transport: asyncio.WriteTransport) -> None:  # type: ignore[override]  # TCP has no other
        self._transport = transport

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._whole:
            head = self._buffer.find(b"\r\n\r\n")
            if head < 0:
                return
            length = _LENGTH.search(self._buffer, 0, head + 2)
            self._whole = head + 4 + (int(length[1]) if length else 0)
        if len(self._buffer) >= self._whole:
            status = int(self._buffer[9:12])
            self.answer, self._buffer, self._whole = self._buffer, b"", 0
            self._answered(self, status)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def encoded(order: Order) -> list[bytes]:
    """The requests of an order, as bytes, one per path."""
    body = order.body.encode()
    kind = "content-type: application/json\r\n" if body else ""
    return [
        f"{order.method} {path} HTTP/1.1\r\nhost: {order.host}:{order.port}\r\n"
        f"authorization: Bearer {order.token}\r\n{kind}content-length: {len(body)}\r\n\r\n".encode()
        + body
        for path in order.paths
    ]


def in_turn(order: Order) -> Iterator[bytes]:
    """What is sent, one after the other, without end: the paths in turn, each with its number if it has one."""
    every = itertools.cycle(encoded(order))
    if NUMBER not in order.body:
        return every
    mark = NUMBER.encode()
    return (one.replace(mark, b"%0*d" % (len(mark), number)) for number, one in enumerate(every, 1))


def percentile(ordered: list[float], part: float) -> float:
    """By nearest rank, of values that are sorted."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0
