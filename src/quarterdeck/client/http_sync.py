"""Blocking HTTP/1.1 client over a unix socket, TCP or TLS.

It uses a raw socket because importing `http.client` and the `email` package takes longer than the rest of a `qd`
command. It reads responses with Content-Length, chunked responses, and responses that end with the connection. Each
exchange on an open connection has one deadline, and the sizes of the head and of the body are limited. While a stream
(`open_stream`) is read, the caller limits each wait, and each chunk has a maximum size.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping

from quarterdeck.client.http_types import (
    BODY_BYTES_MAX,
    HEAD_BYTES_MAX,
    STATUSES_WITHOUT_BODY,
    Address,
    Lost,
    Request,
    Response,
    TimedOut,
    Unreachable,
    encode_request,
    error_text,
    malformed_response,
    parse_chunk_size,
)
from quarterdeck.core.errors import Fault

_READ_SIZE = 64 * 1024
WaitReadable = Callable[[socket.socket], None]
"""Returns when the socket is readable. Raises TimeoutError if that takes too long."""


class Connection:
    """A connection that is opened by the first exchange and reused until either side closes it."""

    def __init__(self, address: Address, timeout_seconds: float) -> None:
        self.address = address
        self.timeout_seconds = timeout_seconds
        self._socket: socket.socket | None = None

    def open(self) -> socket.socket:
        """Return the connected socket. Raises `Unreachable` or `TimedOut` if it cannot connect."""
        if self._socket is None:
            try:
                self._socket = _connect(self.address, self.timeout_seconds)
            except TimeoutError:
                raise TimedOut(
                    "connect_timeout", f"{self.address} did not accept a connection within {self.timeout_seconds:g} s."
                ) from None
            except (OSError, UnicodeError) as error:
                raise Unreachable(
                    "server_unreachable", f"Cannot connect to {self.address}: {error_text(error)}."
                ) from error
        return self._socket

    def exchange(self, request: Request) -> Response:
        data = encode_request(request, self.address)
        reader = _ResponseReader(self.open(), time.monotonic() + self.timeout_seconds)
        try:
            reader.send(data)
            response, keep_alive = _read_response(reader)
        except (OSError, Lost) as error:
            raise self._close_with_fault(error) from None
        if not keep_alive:
            self.close()
        return response

    def open_stream(self, request: Request, wait_readable: WaitReadable) -> tuple[Response, Iterator[bytes]]:
        """Send a request whose response may be a stream.

        For a stream, returns the head and an iterator over the chunks, which waits with `wait_readable`. Any other
        response is read completely, and the iterator is empty.
        """
        data = encode_request(request, self.address)
        reader = _ResponseReader(self.open(), time.monotonic() + self.timeout_seconds)
        try:
            reader.send(data)
            status, headers, _ = _read_head(reader)
            if status == 200 and headers.get("transfer-encoding", "").lower() == "chunked":
                return Response(status, headers, b""), self._iter_body(reader, wait_readable)
            body, _ = _read_body(reader, status, headers)
            return Response(status, headers, body), iter(())
        except (OSError, Lost) as error:
            raise self._close_with_fault(error) from None

    def _iter_body(self, reader: _ResponseReader, wait_readable: WaitReadable) -> Iterator[bytes]:
        reader.wait_readable = wait_readable
        try:
            while chunk := _read_chunk(reader, BODY_BYTES_MAX):
                yield chunk
        except TimeoutError:
            raise TimedOut("stream_silent", f"{self.address} sent nothing for too long.") from None
        except (OSError, Lost) as error:
            raise self._close_with_fault(error) from None
        finally:
            self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _close_with_fault(self, error: OSError | Lost) -> Fault:
        """Close the connection, and return the error to raise."""
        self.close()
        if isinstance(error, Lost):
            return error
        if isinstance(error, TimeoutError):
            return TimedOut("answer_timeout", f"{self.address} did not answer within {self.timeout_seconds:g} s.")
        return Lost("answer_lost", f"The connection to {self.address} was lost: {error_text(error)}.")


def _connect(address: Address, timeout_seconds: float) -> socket.socket:
    if address.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_seconds)
            connection.connect(address.host)
        except BaseException:  # including an interrupt: nothing else holds the socket yet, so close it here
            connection.close()
            raise
        return connection
    connection = socket.create_connection((address.host, address.port), timeout_seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if address.scheme == "http":
        return connection
    import ssl  # takes 15 ms, so it is imported only for TLS

    try:
        return ssl.create_default_context().wrap_socket(connection, server_hostname=address.host)
    except BaseException:  # including an interrupt: nothing else holds the socket yet, so close it here
        connection.close()
        raise


class _ResponseReader:
    """Sends one request and reads its response, with one deadline for both."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._socket = connection
        self._deadline = deadline
        self._buffer = bytearray()
        self.wait_readable: WaitReadable | None = None
        """If set, it is called before each read, and the deadline does not apply."""

    def send(self, data: bytes) -> None:
        self._set_socket_timeout()
        self._socket.sendall(data)

    def read_line(self, max_bytes: int) -> bytes:
        """Read the next line. Returns it without the line break."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > max_bytes:
                break
            self._fill()
        if end < 0 or end > max_bytes:
            raise malformed_response(f"a line is longer than {max_bytes} bytes")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line.removesuffix(b"\r")

    def read_exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def read_to_end(self) -> bytes:
        while self._receive():
            if len(self._buffer) > BODY_BYTES_MAX:
                raise malformed_response(f"the body is longer than {BODY_BYTES_MAX} bytes")
        return bytes(self._buffer)

    @property
    def is_buffer_empty(self) -> bool:
        return not self._buffer

    def _fill(self) -> None:
        if not self._receive():
            raise Lost("answer_lost", "The server closed the connection before the response was complete.")

    def _receive(self) -> int:
        if self.wait_readable is not None:
            self.wait_readable(self._socket)
        else:
            self._set_socket_timeout()
        data = self._socket.recv(_READ_SIZE)
        self._buffer += data
        return len(data)

    def _set_socket_timeout(self) -> None:
        remaining_seconds = self._deadline - time.monotonic()
        if remaining_seconds <= 0:  # a time-out of 0 would make the socket non-blocking, which raises a different error
            raise TimeoutError
        self._socket.settimeout(remaining_seconds)


def _read_response(reader: _ResponseReader) -> tuple[Response, bool]:
    """Read the final response. Also returns whether the connection can be used for another exchange."""
    status, headers, version = _read_head(reader)
    while 100 <= status < 200:
        status, headers, version = _read_head(reader)
    body, is_framed = _read_body(reader, status, headers)
    keep_alive = is_framed and reader.is_buffer_empty and version != b"HTTP/1.0"
    return Response(status, headers, body), keep_alive and headers.get("connection", "").lower() != "close"


def _read_head(reader: _ResponseReader) -> tuple[int, dict[str, str], bytes]:
    version, _, rest = reader.read_line(HEAD_BYTES_MAX).partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or not code.isdigit() or len(code) != 3:
        raise malformed_response("it is not HTTP/1.1")
    return int(code), _read_headers(reader), version


def _read_headers(reader: _ResponseReader) -> dict[str, str]:
    headers: dict[str, str] = {}
    remaining_bytes = HEAD_BYTES_MAX
    while line := reader.read_line(remaining_bytes):
        remaining_bytes -= len(line) + 1
        if remaining_bytes <= 0:
            raise malformed_response(f"the head is longer than {HEAD_BYTES_MAX} bytes")
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise malformed_response("a header has no colon")
        key, value = name.lower(), value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers


def _read_body(reader: _ResponseReader, status: int, headers: Mapping[str, str]) -> tuple[bytes, bool]:
    """Read the body. Also returns whether its end is marked; if not, it ends with the connection."""
    if status in STATUSES_WITHOUT_BODY:
        return b"", True
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked":
            raise malformed_response("the transfer encoding is not `chunked`")
        return _read_chunks(reader), True
    if "content-length" in headers:
        length = headers["content-length"]
        if not (length.isascii() and length.isdigit()):
            raise malformed_response("the Content-Length is not a number")
        if len(length) > 12 or int(length) > BODY_BYTES_MAX:
            raise malformed_response(f"the body is longer than {BODY_BYTES_MAX} bytes")
        return reader.read_exactly(int(length)), True
    return reader.read_to_end(), False


def _read_chunks(reader: _ResponseReader) -> bytes:
    body = bytearray()
    while chunk := _read_chunk(reader, BODY_BYTES_MAX - len(body)):
        body += chunk
    _read_headers(reader)  # trailers, which this client does not use
    return bytes(body)


def _read_chunk(reader: _ResponseReader, max_bytes: int) -> bytes:
    """Read the next chunk. Empty at the end of the body."""
    size = parse_chunk_size(reader.read_line(HEAD_BYTES_MAX))
    if size > max_bytes:
        raise malformed_response(f"the body is longer than {BODY_BYTES_MAX} bytes")
    data = reader.read_exactly(size)
    if size and reader.read_line(2):
        raise malformed_response("a chunk is longer than its size")
    return data
