"""An HTTP endpoint on loopback: counts who comes, keeps what it is told, and answers what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

Answer = bytes | Callable[["Received"], bytes]


@dataclass(frozen=True)
class Received:
    path: str
    headers: dict[str, str]
    """By their names in small letters."""
    body: bytes


def http_answer(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def json_answer(body: bytes, status: str = "200 OK") -> bytes:
    return http_answer(body, status, "Content-Type: application/json")


class Endpoint:
    """Answers when `open` allows; an empty answer is a connection that just ends."""

    def __init__(self) -> None:
        self.port = 0
        self.scheme = "http"
        self.connections = 0
        self.requests: list[Received] = []
        self.answer: Answer = http_answer()
        self.open = asyncio.Event()
        self.open.set()
        self._came = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    async def received(self, number: int = 1) -> Received:
        """The newest request, once so many have come."""
        async with asyncio.timeout(20), self._came:
            await self._came.wait_for(lambda: len(self.requests) >= number)
        return self.requests[number - 1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            request = await _read(reader)
            async with self._came:
                self.requests.append(request)
                self._came.notify_all()
            await self.open.wait()
            writer.write(self.answer(request) if callable(self.answer) else self.answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Received(first.split(" ")[1], headers, body)


@contextlib.asynccontextmanager
async def endpoint(tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> AsyncIterator[Endpoint]:
    made = Endpoint()
    server = await asyncio.start_server(made.serve, host, 0, ssl=tls)
    made.port = server.sockets[0].getsockname()[1]
    made.scheme = "http" if tls is None else "https"
    try:
        yield made
    finally:
        made.open.set()
        server.close()
        await server.wait_closed()
