"""Answers out of bytes that come in any pieces: HTTP/1.1 without a socket, for those who must not block.

`http` asks its socket for the next line and waits; here the bytes come by themselves, and whatever they make up is read
as far as it goes. Both read the same framings under the same bounds.
"""

from __future__ import annotations

from collections.abc import Callable

from quarterdeck.client.http_types import BODILESS, BODY_MAX, HEAD_MAX, Answer, Lost, chunk_size, garbled

_LINE_MAX = 1_024
"""Of what stands between two chunks."""


class Framing:
    """One answer. Fed until it is whole; `take` gives what has come of its body."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.has_head = False
        self.is_whole = False
        self.keeps = False
        """Whether the connection may serve another exchange."""
        self.is_chunked = False
        self._version = b""
        self._left = 0
        self._buffer = bytearray()
        self._body = bytearray()
        self._step: Callable[[], bool] = self._head

    @property
    def has_begun(self) -> bool:
        return self.has_head or bool(self._buffer)

    @property
    def waiting(self) -> int:
        """Bytes of the body that nobody has taken yet."""
        return len(self._body)

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while self._step():
            pass
        if len(self._body) > BODY_MAX:
            raise garbled("the body is longer than the bound")

    def end(self) -> None:
        """No more bytes come. That is the end of a body without any other, and of every other the loss."""
        if self.has_head and self._step == self._to_end:
            self.is_whole = True
        elif not self.is_whole:
            raise Lost("answer_lost", "The server closed the connection before its answer was whole.")

    def take(self) -> bytes:
        taken = bytes(self._body)
        self._body.clear()
        return taken

    def answer(self) -> Answer:
        return Answer(self.status, self.headers, self.take())

    # -- steps: each says whether the next may be tried with what there is -----------------------------------------

    def _head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end > HEAD_MAX or (end < 0 and len(self._buffer) > HEAD_MAX):
            raise garbled("the head is longer than the bound")
        if end < 0:
            self._refuse_other_tongues()
            return False
        lines = bytes(self._buffer[:end]).split(b"\r\n")
        del self._buffer[: end + 4]
        self.status, self._version = _read_status(lines[0])
        self.headers = _read_headers(lines[1:])
        if not 100 <= self.status < 200:
            self.has_head = True
            self._step = self._begin_body()
        return True

    def _refuse_other_tongues(self) -> None:
        """Whoever does not speak HTTP may never send the end of a head."""
        start = bytes(self._buffer[:7])
        if not b"HTTP/1.".startswith(start):
            raise garbled("it does not speak HTTP/1.1")

    def _begin_body(self) -> Callable[[], bool]:
        self.keeps = self._version != b"HTTP/1.0" and self.headers.get("connection", "").lower() != "close"
        if self.status in BODILESS:
            return self._finish
        if "transfer-encoding" in self.headers:
            if self.headers["transfer-encoding"].lower() != "chunked":
                raise garbled("its transfer encoding is unknown")
            self.is_chunked = True
            return self._size
        if "content-length" in self.headers:
            self._left = _read_length(self.headers["content-length"])
            return self._counted
        self.keeps = False
        return self._to_end

    def _counted(self) -> bool:
        self._move()
        if self._left == 0:
            self._step = self._finish
        return self._left == 0

    def _to_end(self) -> bool:
        self._left = len(self._buffer)
        self._move()
        return False

    def _size(self) -> bool:
        line = self._line()
        if line is None:
            return False
        self._left = chunk_size(line)
        if self._left > BODY_MAX:
            raise garbled("the body is longer than the bound")
        self._step = self._chunk if self._left else self._trailer
        return True

    def _chunk(self) -> bool:
        self._move()
        if self._left == 0:
            self._step = self._chunk_end
        return self._left == 0

    def _chunk_end(self) -> bool:
        if len(self._buffer) < 2:
            return False
        if self._buffer[:2] != b"\r\n":
            raise garbled("a chunk is longer than it says")
        del self._buffer[:2]
        self._step = self._size
        return True

    def _trailer(self) -> bool:
        line = self._line()
        if line == b"":
            self._step = self._finish
        return line is not None

    def _finish(self) -> bool:
        self.is_whole = True
        # What comes behind an answer nobody asked for: such a connection is not to be trusted with another.
        self.keeps = self.keeps and not self._buffer
        return False

    # -- pieces of them ----------------------------------------------------------------------------------------------

    def _move(self) -> None:
        if not self._body and len(self._buffer) == self._left:
            # The common case, without a copy: all of it has come, and nothing else.
            self._body, self._buffer = self._buffer, self._body
            self._left = 0
            return
        piece = self._buffer[: self._left]
        del self._buffer[: self._left]
        self._body += piece
        self._left -= len(piece)

    def _line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end > _LINE_MAX or (end < 0 and len(self._buffer) > _LINE_MAX):
            raise garbled("a line is longer than the bound")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line


def _read_status(line: bytes) -> tuple[int, bytes]:
    version, _, rest = line.partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or not code.isdigit() or len(code) != 3:
        raise garbled("it does not speak HTTP/1.1")
    return int(code), version


def _read_headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise garbled("a header has no colon")
        key, value = name.lower(), value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers


def _read_length(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise garbled("its Content-Length is not a number")
    if len(text) > 12 or int(text) > BODY_MAX:
        raise garbled("the body is longer than the bound")
    return int(text)
