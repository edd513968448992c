"""A keep-alive HTTP connection on a raw socket, for the generators: at most one request in flight."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator

from bench.child_types import NUMBER_PLACEHOLDER, LoadConfig

_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    def __init__(self, on_response: Callable[[Connection, int], None], on_lost: Callable[[Connection], None]) -> None:
        self._on_response = on_response
        self._on_lost = on_lost
        self._buffer = b""
        self._response_size = 0
        self._transport: asyncio.WriteTransport | None = None
        self.started_at = 0.0
        """Set by the sender: when the request in flight started, on the sender's clock."""
        self.response = b""
        """The last complete response."""

    def connection_made(self, transport: asyncio.WriteTransport) -> None:  # type: ignore[override]  # TCP can write
        self._transport = transport

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._response_size:
            head_end = self._buffer.find(b"\r\n\r\n")
            if head_end < 0:
                return
            length = _CONTENT_LENGTH.search(self._buffer, 0, head_end + 2)
            self._response_size = head_end + 4 + (int(length[1]) if length else 0)
        if len(self._buffer) >= self._response_size:
            status = int(self._buffer[9:12])
            self.response, self._buffer, self._response_size = self._buffer, b"", 0
            self._on_response(self, status)

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def encode_requests(config: LoadConfig) -> list[bytes]:
    """The requests of a config as bytes, one per path."""
    body = config.body.encode()
    content_type = "content-type: application/json\r\n" if body else ""
    return [
        f"{config.method} {path} HTTP/1.1\r\nhost: {config.host}:{config.port}\r\n"
        f"authorization: Bearer {config.token}\r\n{content_type}content-length: {len(body)}\r\n\r\n".encode()
        + body
        for path in config.paths
    ]


def cycle_requests(config: LoadConfig) -> Iterator[bytes]:
    """An endless sequence of requests: the paths in turn, numbered if the body has the placeholder."""
    requests = itertools.cycle(encode_requests(config))
    if NUMBER_PLACEHOLDER not in config.body:
        return requests
    placeholder = NUMBER_PLACEHOLDER.encode()
    return (
        request.replace(placeholder, b"%0*d" % (len(placeholder), number)) for number, request in enumerate(requests, 1)
    )


def percentile(ordered: list[float], fraction: float) -> float:
    """The value at index `len(ordered) * fraction`, rounded down; 0 without values. They must be sorted."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))] if ordered else 0.0
