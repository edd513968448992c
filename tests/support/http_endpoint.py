"""An HTTP endpoint on loopback: counts connections, stores requests, and sends the response that a test sets."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

ResponseSource = bytes | Callable[["ReceivedRequest"], bytes]


@dataclass(frozen=True)
class ReceivedRequest:
    path: str
    headers: dict[str, str]
    """By lower-case name."""
    body: bytes


def http_response(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def json_response(body: bytes, status: str = "200 OK") -> bytes:
    return http_response(body, status, "Content-Type: application/json")


class HttpEndpoint:
    """Responds once `may_respond` is set. An empty response only closes the connection."""

    def __init__(self) -> None:
        self.port = 0
        self.scheme = "http"
        self.connections = 0
        self.requests: list[ReceivedRequest] = []
        self.response: ResponseSource = http_response()
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self._request_received = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    async def wait_for_request(self, number: int = 1) -> ReceivedRequest:
        """Wait for this many requests. Return the last of them."""
        async with asyncio.timeout(20), self._request_received:
            await self._request_received.wait_for(lambda: len(self.requests) >= number)
        return self.requests[number - 1]

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            request = await _read_request(reader)
            async with self._request_received:
                self.requests.append(request)
                self._request_received.notify_all()
            await self.may_respond.wait()
            writer.write(self.response(request) if callable(self.response) else self.response)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _read_request(reader: asyncio.StreamReader) -> ReceivedRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return ReceivedRequest(first.split(" ")[1], headers, body)


@contextlib.asynccontextmanager
async def run_endpoint(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[HttpEndpoint]:
    endpoint = HttpEndpoint()
    server = await asyncio.start_server(endpoint.handle, host, 0, ssl=tls)
    endpoint.port = server.sockets[0].getsockname()[1]
    endpoint.scheme = "http" if tls is None else "https"
    try:
        yield endpoint
    finally:
        endpoint.may_respond.set()
        server.close()
        await server.wait_closed()
