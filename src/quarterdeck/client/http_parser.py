"""Incremental HTTP/1.1 response parser without I/O, for both clients.

It is fed bytes as they arrive and parses what is complete. It accepts bodies with a Content-Length, chunked bodies, and
bodies that end with the connection. Lines may end with CRLF or with LF alone. Every size is limited.
"""

from __future__ import annotations

from collections.abc import Callable

from quarterdeck.client.http_types import Lost, Response

HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 64 * 1024 * 1024
_STATUSES_WITHOUT_BODY = frozenset({204, 304})
_LINE_BYTES_MAX = 1_024
"""The maximum length of a chunk-size line or a trailer line."""


class ResponseParser:
    """Parses one response. Feed it until `is_complete`. `take_body` returns the part of the body that has arrived."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.has_head = False
        self.is_complete = False
        self.keep_alive = False
        """Whether the connection can be used for another exchange."""
        self.is_chunked = False
        self._version = b""
        self._remaining = 0
        self._trailer_bytes = 0
        self._buffer = bytearray()
        self._body = bytearray()
        self._step: Callable[[], bool] = self._parse_head

    @property
    def has_data(self) -> bool:
        return self.has_head or bool(self._buffer)

    @property
    def is_stream(self) -> bool:
        """Whether the body is a stream, which a client may read as it arrives. False until the head is complete."""
        return self.status == 200 and self.is_chunked

    @property
    def buffered_body_size(self) -> int:
        """Bytes of the body that `take_body` has not returned yet."""
        return len(self._body)

    def feed(self, data: bytes) -> None:
        self._buffer += data
        while self._step():
            pass
        if len(self._body) > BODY_BYTES_MAX:
            raise _malformed_response(f"the body is longer than {BODY_BYTES_MAX} bytes")

    def feed_eof(self) -> None:
        """Handle the end of the connection, which completes a body without a declared length.

        Raises `Lost` if the response is incomplete.
        """
        if self.has_head and self._step == self._parse_until_close:
            self.is_complete = True
        elif not self.is_complete:
            raise Lost("answer_lost", "The server closed the connection before the response was complete.")

    def take_body(self) -> bytes:
        data = bytes(self._body)
        self._body.clear()
        return data

    def response(self) -> Response:
        return Response(self.status, self.headers, self.take_body())

    # -- steps: each returns whether the next step can run with the bytes that have arrived ------------------------

    def _parse_head(self) -> bool:
        end, blank_line = self._buffer.find(b"\n\r\n"), b"\n\r\n"
        bare_end = self._buffer.find(b"\n\n", 0, end + 1 or None)
        if bare_end >= 0:
            end, blank_line = bare_end, b"\n\n"
        if end > HEAD_BYTES_MAX or (end < 0 and len(self._buffer) > HEAD_BYTES_MAX):
            raise _malformed_response(f"the head is longer than {HEAD_BYTES_MAX} bytes")
        if end < 0:
            self._require_http()
            return False
        lines = bytes(self._buffer[:end]).split(b"\n")
        del self._buffer[: end + len(blank_line)]
        self.status, self._version = _read_status(lines[0])
        self.headers = _read_headers(lines[1:])
        if not 100 <= self.status < 200:
            self.has_head = True
            self._step = self._first_body_step()
        return True

    def _require_http(self) -> None:
        """Fail early: a server that does not use HTTP may never send the end of a head."""
        if not b"HTTP/1.".startswith(bytes(self._buffer[:7])):
            raise _malformed_response("it is not HTTP/1.1")
        if (end := self._buffer.find(b"\n")) >= 0:
            _read_status(bytes(self._buffer[:end]))

    def _first_body_step(self) -> Callable[[], bool]:
        self.keep_alive = self._version != b"HTTP/1.0" and self.headers.get("connection", "").lower() != "close"
        if self.status in _STATUSES_WITHOUT_BODY:
            return self._finish
        if "transfer-encoding" in self.headers:
            if self.headers["transfer-encoding"].lower() != "chunked":
                raise _malformed_response("the transfer encoding is not `chunked`")
            self.is_chunked = True
            return self._parse_chunk_size
        if "content-length" in self.headers:
            self._remaining = _read_length(self.headers["content-length"])
            return self._parse_fixed_length
        self.keep_alive = False
        return self._parse_until_close

    def _parse_fixed_length(self) -> bool:
        return self._parse_remaining(self._finish)

    def _parse_until_close(self) -> bool:
        self._remaining = len(self._buffer)
        self._move_to_body()
        return False

    def _parse_chunk_size(self) -> bool:
        line = self._take_line()
        if line is None:
            return False
        self._remaining = _read_chunk_size(line)
        if self._remaining > BODY_BYTES_MAX:
            raise _malformed_response(f"the body is longer than {BODY_BYTES_MAX} bytes")
        self._step = self._parse_chunk if self._remaining else self._parse_trailer
        return True

    def _parse_chunk(self) -> bool:
        return self._parse_remaining(self._parse_chunk_end)

    def _parse_chunk_end(self) -> bool:
        line_end = bytes(self._buffer[:2])
        if line_end in (b"", b"\r"):
            return False
        if not line_end.startswith((b"\r\n", b"\n")):
            raise _malformed_response("a chunk is longer than its size")
        self._take_line()
        self._step = self._parse_chunk_size
        return True

    def _parse_trailer(self) -> bool:
        line = self._take_line()
        if line is None:
            return False
        if not line:
            self._step = self._finish
            return True
        _read_headers([line])  # only checked: the clients use no trailers
        self._trailer_bytes += len(line) + 1
        if self._trailer_bytes >= HEAD_BYTES_MAX:
            raise _malformed_response(f"the head is longer than {HEAD_BYTES_MAX} bytes")
        return True

    def _finish(self) -> bool:
        self.is_complete = True
        # Bytes after the response belong to no request, so the connection must not be reused.
        self.keep_alive = self.keep_alive and not self._buffer
        return False

    # -- helpers for the steps ---------------------------------------------------------------------------------------

    def _parse_remaining(self, next_step: Callable[[], bool]) -> bool:
        self._move_to_body()
        if self._remaining == 0:
            self._step = next_step
        return self._remaining == 0

    def _move_to_body(self) -> None:
        if not self._body and len(self._buffer) == self._remaining:
            # The common case: the buffer holds exactly the body, so swapping the two avoids a copy.
            self._body, self._buffer = self._buffer, self._body
            self._remaining = 0
            return
        part = self._buffer[: self._remaining]
        del self._buffer[: self._remaining]
        self._body += part
        self._remaining -= len(part)

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\n")
        if end > _LINE_BYTES_MAX or (end < 0 and len(self._buffer) > _LINE_BYTES_MAX):
            raise _malformed_response(f"a line is longer than {_LINE_BYTES_MAX} bytes")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line.removesuffix(b"\r")


def _read_status(line: bytes) -> tuple[int, bytes]:
    version, _, rest = line.partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or not code.isdigit() or len(code) != 3:
        raise _malformed_response("it is not HTTP/1.1")
    return int(code), version


def _read_headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise _malformed_response("a header has no colon")
        key, value = name.lower(), value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers


def _read_length(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise _malformed_response("the Content-Length is not a number")
    if len(text) > 12 or int(text) > BODY_BYTES_MAX:
        raise _malformed_response(f"the body is longer than {BODY_BYTES_MAX} bytes")
    return int(text)


def _read_chunk_size(line: bytes) -> int:
    text = line.partition(b";")[0].strip()
    # int() would also accept "-1", "+1" and "1_0".
    if not 0 < len(text) <= 8 or text.strip(b"0123456789abcdefABCDEF"):
        raise _malformed_response("a chunk has no valid size")
    return int(text, 16)


def _malformed_response(reason: str) -> Lost:
    return Lost("garbled_answer", f"Malformed response: {reason}.")
