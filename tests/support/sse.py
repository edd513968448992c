"""A client of event streams without a library: it can cut the connection at any byte and stop reading."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.support.raw_http import build_request

LIMIT = 30.0
_READ = 65_536


@dataclass(frozen=True)
class SseMessage:
    id: str
    event: str
    data: str

    def json(self) -> Any:
        return json.loads(self.data)


@dataclass
class SseDecoder:
    """Decodes the bytes of a response into messages. The last id stays valid for later messages, as in the standard."""

    last_id: str = ""
    retry: int | None = None
    comments: list[str] = field(default_factory=list)
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    """The body of a response that is not a stream."""
    finished: bool = False
    """Whether the response was terminated properly."""
    _buffer: bytes = b""
    _chunk_remaining: int = 0
    """Missing bytes of the current chunk, including its trailing line break."""
    _is_last: bool = False
    _text: bytes = b""
    _fields: dict[str, str] = field(default_factory=dict)

    def feed(self, data: bytes) -> list[SseMessage]:
        self._buffer += data
        if self.status is None and not self._take_head():
            return []
        if self.headers.get("transfer-encoding") != "chunked":
            self.body, self._buffer = self.body + self._buffer, b""
            self.finished = len(self.body) >= int(self.headers["content-length"])
            return []
        self._take_chunks()
        *lines, self._text = self._text.split(b"\n")
        return [message for line in lines if (message := self._take_line(line.decode()))]

    def _take_head(self) -> bool:
        head, end, rest = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return False
        status, *lines = head.decode("latin-1").split("\r\n")
        self.status = int(status.split()[1])
        self.headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
        self._buffer = rest
        return True

    def _take_chunks(self) -> None:
        """Take all available data: a client need not wait for the end of a chunk."""
        while self._buffer and not self.finished:
            if not self._chunk_remaining:
                size, end, rest = self._buffer.partition(b"\r\n")
                if not end:
                    return
                self._buffer, self._chunk_remaining, self._is_last = rest, int(size, 16) + 2, int(size, 16) == 0
            piece, self._buffer = self._buffer[: self._chunk_remaining], self._buffer[self._chunk_remaining :]
            self._text += piece[: max(0, self._chunk_remaining - 2)]
            self._chunk_remaining -= len(piece)
            self.finished = self._is_last and not self._chunk_remaining

    def _take_line(self, line: str) -> SseMessage | None:
        if line.startswith(":"):
            self.comments.append(line[1:].strip())
        elif line:
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
        else:
            return self._dispatch()
        return None

    def _dispatch(self) -> SseMessage | None:
        fields, self._fields = self._fields, {}
        self.last_id = fields.get("id", self.last_id)
        if "retry" in fields:
            self.retry = int(fields["retry"])
        if "data" not in fields:
            return None
        return SseMessage(self.last_id, fields.get("event", "message"), fields["data"])


class SseStream:
    """One open stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: SseDecoder) -> None:
        self._reader = reader
        self._writer = writer
        self._received: list[SseMessage] = []
        self.decoder = decoder

    @classmethod
    async def request(cls, url: str, path: str, token: str | None, **headers: str) -> SseStream:
        """Request a stream. Return when the head of the response has arrived, whatever its status is."""
        parts = urlsplit(url)
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # A small buffer: when the client stops reading, the server must notice instead of filling the kernel's buffer.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(connection, (parts.hostname, parts.port))
            reader, writer = await asyncio.open_connection(sock=connection, limit=32_768)
        except BaseException:  # also a cancellation: nothing else could close the socket yet
            connection.close()
            raise
        stream = cls(reader, writer, SseDecoder())
        writer.write(build_request("GET", path, token, **{"Accept": "text/event-stream", **headers}))
        async with asyncio.timeout(LIMIT):
            while stream.decoder.status is None and await stream.read_some():
                pass
        return stream

    @classmethod
    async def open(cls, url: str, path: str, token: str, **headers: str) -> SseStream:
        """Request a stream and assert that the status is 200."""
        stream = await cls.request(url, path, token, **headers)
        assert stream.decoder.status == 200, stream.decoder.body
        return stream

    async def read_some(self, size: int = _READ) -> int:
        """Read up to `size` available bytes and return their number, or 0 at the end of the connection."""
        try:
            data = await self._reader.read(size)
        except ConnectionError:
            return 0
        self._received += self.decoder.feed(data)
        return len(data)

    async def wait_until_started(self) -> None:
        """Wait until the server has sent the position at which the stream begins."""
        async with asyncio.timeout(LIMIT):
            while not self.decoder.last_id:
                assert await self.read_some(), "the stream has ended"

    def take_received(self) -> list[SseMessage]:
        """Return the received messages that were not taken yet."""
        messages, self._received = self._received, []
        return messages

    async def next(self, limit: float = LIMIT) -> SseMessage:
        async with asyncio.timeout(limit):
            while not self._received:
                assert await self.read_some(), "the stream has ended"
        return self._received.pop(0)

    async def take(self, count: int) -> list[SseMessage]:
        return [await self.next() for _ in range(count)]

    async def read_to_end(self, limit: float = LIMIT) -> list[SseMessage]:
        """Read all messages to the end of the stream, which must be a proper one."""
        async with asyncio.timeout(limit):
            while not self.decoder.finished and await self.read_some():
                pass
        assert self.decoder.finished, "the stream was cut off"
        return self.take_received()

    async def wait_for_comment(self, comment: str) -> None:
        """Wait until the server has sent this comment."""
        async with asyncio.timeout(LIMIT):
            while comment not in self.decoder.comments:
                assert await self.read_some(), f"the stream ended without {comment!r}: {self.decoder.comments}"

    def reset(self) -> None:
        """Close the connection with a reset, as the machine of a crashed client does, unless it is closed already."""
        if not self._writer.transport.is_closing():
            sock = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def open_stream(url: str, path: str, token: str, **headers: str) -> AsyncIterator[SseStream]:
    stream = await SseStream.open(url, path, token, **headers)
    try:
        yield stream
    finally:
        await stream.close()
