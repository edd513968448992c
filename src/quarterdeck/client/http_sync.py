"""Blocking HTTP/1.1 client over a unix socket, TCP or TLS.

It uses a raw socket because importing `http.client` and the `email` package takes longer than the rest of a `qd`
command. `http_parser` parses the responses and limits their sizes. Each exchange on an open connection has one
deadline. While a stream (`open_stream`) is read, the caller limits each wait.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator

from quarterdeck.client.http_parser import ResponseParser
from quarterdeck.client.http_types import (
    Address,
    Lost,
    Request,
    Response,
    TimedOut,
    connect_fault,
    encode_request,
    error_text,
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
            except (OSError, UnicodeError) as error:
                raise connect_fault(self.address, error, self.timeout_seconds) from error
        return self._socket

    def exchange(self, request: Request) -> Response:
        return self._exchange(request, may_stream=False)[1].response()

    def open_stream(self, request: Request, wait_readable: WaitReadable) -> tuple[Response, Iterator[bytes]]:
        """Send a request whose response may be a stream.

        For a stream, returns the head and an iterator over the body as it arrives, which waits with `wait_readable`.
        Any other response is read completely, and the iterator is empty.
        """
        connection, parser = self._exchange(request, may_stream=True)
        if not parser.is_stream:
            return parser.response(), iter(())
        return Response(parser.status, parser.headers, b""), self._iter_body(connection, parser, wait_readable)

    def _exchange(self, request: Request, *, may_stream: bool) -> tuple[socket.socket, ResponseParser]:
        """Send the request and read the response: all of it, or at least the head if it is a stream and may be one."""
        data = encode_request(request, self.address)
        connection, deadline = self.open(), time.monotonic() + self.timeout_seconds
        parser = ResponseParser()
        try:
            _set_socket_timeout(connection, deadline)
            connection.sendall(data)
            while not (parser.is_complete or (may_stream and parser.is_stream)):
                _set_socket_timeout(connection, deadline)
                _receive(connection, parser)
        except (OSError, Lost) as error:
            raise self._close_with_fault(error) from None
        if parser.is_complete and not parser.keep_alive:
            self.close()
        return connection, parser

    def _iter_body(
        self, connection: socket.socket, parser: ResponseParser, wait_readable: WaitReadable
    ) -> Iterator[bytes]:
        try:
            while True:
                if data := parser.take_body():
                    yield data
                if parser.is_complete:
                    return
                wait_readable(connection)
                _receive(connection, parser)
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


def _set_socket_timeout(connection: socket.socket, deadline: float) -> None:
    remaining_seconds = deadline - time.monotonic()
    if remaining_seconds <= 0:  # a time-out of 0 would make the socket non-blocking, which raises a different error
        raise TimeoutError
    connection.settimeout(remaining_seconds)


def _receive(connection: socket.socket, parser: ResponseParser) -> None:
    if data := connection.recv(_READ_SIZE):
        parser.feed(data)
    else:
        parser.feed_eof()
