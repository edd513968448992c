"""HTTP without a library: for malformed requests, connections that are cut, and responses that must be complete."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


class NoResponse(Exception):
    """The server closed or reset the connection without a byte of a response."""


class TruncatedResponse(Exception):
    """The server began a response and did not finish it."""


@dataclass(frozen=True)
class RawResponse:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class RawConnection:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, url: str) -> RawConnection:
        parts = urlsplit(url)
        return cls(*await asyncio.open_connection(parts.hostname, parts.port))

    async def send_and_read(self, request: bytes, limit: float = 30.0) -> RawResponse:
        """Send a request and read its complete response."""
        try:
            await self.send(request)
        except ConnectionError:
            raise NoResponse from None
        return await self.read_response(limit)

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def read_response(self, limit: float = 30.0) -> RawResponse:
        async with asyncio.timeout(limit):
            return await self._read_response()

    async def is_closed_by_server(self, limit: float = 30.0) -> bool:
        """Whether the server has closed the connection and sends nothing more."""
        async with asyncio.timeout(limit):
            try:
                return await self._reader.read(1) == b""
            except ConnectionError:
                return True

    def reset(self) -> None:
        """Close the connection with a reset, as the machine of a crashed client does."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        # The server may have closed first.
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _read_response(self) -> RawResponse:
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as incomplete:
            raise (TruncatedResponse if incomplete.partial else NoResponse) from None
        except ConnectionError:
            raise NoResponse from None
        status_line, *lines = head.decode("latin-1").strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        try:
            body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise TruncatedResponse from None
        return RawResponse(int(status_line.split()[1]), headers, body)


async def send_all(url: str, requests: Sequence[bytes]) -> list[RawResponse]:
    """Send the requests at the same time, each on its own open connection. Return the responses."""
    connections = [await RawConnection.open(url) for _ in requests]
    try:
        return await asyncio.gather(
            *(c.send_and_read(request_bytes) for c, request_bytes in zip(connections, requests, strict=True))
        )
    finally:
        for connection in connections:
            await connection.close()


def build_request(method: str, target: str, token: str | None = None, body: object = None, **headers: str) -> bytes:
    """The bytes of a request. `body` is encoded as JSON unless it is bytes."""
    content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {target} HTTP/1.1", "Host: quarterdeck", f"Content-Length: {len(content)}"]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content
