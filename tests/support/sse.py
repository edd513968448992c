"""A client of event streams, by hand: it can be cut at any byte, can stop reading, and hides nothing."""

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
    """From the bytes of an answer to messages, as the standard reads them: the last id outlives the message."""

    last_id: str = ""
    retry: int | None = None
    comments: list[str] = field(default_factory=list)
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    """Of an answer that is no stream."""
    finished: bool = False
    """Whether the answer came to its proper end."""
    _buffer: bytes = b""
    _chunk_remaining: int = 0
    """Bytes of the present chunk that are still to come, with the line break behind it."""
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
        """What there is of them: a client need not wait for the end of a chunk."""
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
    """One stream, open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, decoder: SseDecoder) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: list[SseMessage] = []
        self.decoder = decoder

    @classmethod
    async def request(cls, url: str, path: str, token: str | None, **headers: str) -> SseStream:
        """Asks for a stream, and returns when the head of the answer is there, whatever it says."""
        parts = urlsplit(url)
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # Small, so that a client that stops reading is felt by the server, and not swallowed by the kernel.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_connect(connection, (parts.hostname, parts.port))
            reader, writer = await asyncio.open_connection(sock=connection, limit=32_768)
        except BaseException:  # a cancellation too: nobody else knows of it yet, who could close it
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
        """A stream that must be granted."""
        stream = await cls.request(url, path, token, **headers)
        assert stream.decoder.status == 200, stream.decoder.body
        return stream

    async def read_some(self, size: int = _READ) -> int:
        """Reads what there is, up to so many bytes, and says how many; 0 when nothing more will come."""
        try:
            data = await self._reader.read(size)
        except ConnectionError:
            return 0
        self._waiting += self.decoder.feed(data)
        return len(data)

    async def wait_until_started(self) -> None:
        """Returns when the server has said where the stream begins, which may come with the head or after it."""
        async with asyncio.timeout(LIMIT):
            while not self.decoder.last_id:
                assert await self.read_some(), "the stream has ended"

    def take_received(self) -> list[SseMessage]:
        """What has been received and not been looked at yet."""
        messages, self._waiting = self._waiting, []
        return messages

    async def next(self, limit: float = LIMIT) -> SseMessage:
        async with asyncio.timeout(limit):
            while not self._waiting:
                assert await self.read_some(), "the stream has ended"
        return self._waiting.pop(0)

    async def take(self, count: int) -> list[SseMessage]:
        return [await self.next() for _ in range(count)]

    async def read_to_end(self, limit: float = LIMIT) -> list[SseMessage]:
        """Everything up to the end, which must be a proper one."""
        async with asyncio.timeout(limit):
            while not self.decoder.finished and await self.read_some():
                pass
        assert self.decoder.finished, "the stream was cut off"
        return self.take_received()

    async def wait_for_comment(self, comment: str) -> None:
        """Returns when the server has said this in a comment."""
        async with asyncio.timeout(LIMIT):
            while comment not in self.decoder.comments:
                assert await self.read_some(), f"the stream ended without {comment!r}: {self.decoder.comments}"

    def reset(self) -> None:
        """Ends the connection with a reset, as a crashed client's machine would; unless the server did before."""
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
