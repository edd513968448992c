"""One HTTP/1.1 exchange after another over a unix socket, TCP or TLS.

Written on a raw socket because `http.client` and what it imports (the `email` package) cost more than the
whole rest of a `qd` command. It speaks what a client needs: Content-Length, chunked and read-to-the-end
answers, one deadline per exchange, and bounds on everything that the other side decides the size of. An answer
without an end (`begin`) has a deadline for each of its pieces.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from quarterdeck.core.errors import EXIT_TIMEOUT, Fault, Invalid

HEAD_MAX = 64 * 1024
BODY_MAX = 64 * 1024 * 1024
_READ = 64 * 1024
BODILESS = frozenset({204, 304})


Readable = Callable[[socket.socket], None]
"""Returns when there is something to read; raises TimeoutError when there was nothing for too long."""


class Unreachable(Fault):
    """No connection came about, so nothing was sent: asking again is safe."""

    status = 502
    title = "Server unreachable"


class Lost(Fault):
    """The request went out and no whole answer came back: the server may have done it."""

    status = 502
    title = "Answer lost"


class TimedOut(Fault):
    """No answer within the time allowed: the server may have done it, or may do it yet."""

    status = 504
    exit_code = EXIT_TIMEOUT
    title = "Timed out"


class Address(NamedTuple):
    """Where a server listens. For `unix` the host is the socket's path."""

    scheme: str
    host: str
    port: int = 0
    prefix: str = ""

    def __str__(self) -> str:
        if self.scheme == "unix":
            return f"unix:{self.host}"
        return f"{self.scheme}://{self.authority}{self.prefix}"

    @property
    def authority(self) -> str:
        if self.scheme == "unix":
            return "localhost"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class Request(NamedTuple):
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes | None = None


class Answer(NamedTuple):
    """A whole answer. Header names are in lower case; of a repeated header the values are joined by
    commas."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def parse_address(url: str) -> Address:
    """`http://host[:port][/prefix]`, `https://…` or `unix:/path/of.sock`."""
    if url.startswith("unix:"):
        return Address("unix", url.removeprefix("unix:").removeprefix("//"))
    from urllib.parse import urlsplit  # costs 5 ms, and only those who give a URL need it

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as wrong:
        raise Invalid("invalid_url", f"{url!r} is not a server's URL: {wrong}.", field="url") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise Invalid("invalid_url", f"{url!r} is not a server's URL: http://HOST:PORT is.", field="url")
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    return Address(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))


class Connection:
    """A connection that is opened on the first exchange and kept while both sides keep it."""

    def __init__(self, address: Address, timeout: float) -> None:
        self.address = address
        self.timeout = timeout
        self._socket: socket.socket | None = None

    def open(self) -> socket.socket:
        """The connected socket; raises `Unreachable` where nobody listens."""
        if self._socket is None:
            try:
                self._socket = _connect(self.address, self.timeout)
            except TimeoutError:
                raise TimedOut(
                    "connect_timeout", f"{self.address} did not accept a connection within {self.timeout:g} s."
                ) from None
            except (OSError, UnicodeError) as wrong:
                raise Unreachable(
                    "server_unreachable", f"No server answers at {self.address}: {reason_of(wrong)}."
                ) from wrong
        return self._socket

    def exchange(self, request: Request) -> Answer:
        data = encode(request, self.address)
        reader = _Reader(self.open(), time.monotonic() + self.timeout)
        try:
            reader.send(data)
            answer, keep = _read_answer(reader)
        except (OSError, Lost) as wrong:
            raise self._broken(wrong) from None
        if not keep:
            self.close()
        return answer

    def begin(self, request: Request, readable: Readable) -> tuple[Answer, Iterator[bytes]]:
        """An exchange whose answer may have no end: its head, and its body in the pieces in which it comes, waited for
        by `readable`. An answer that is no stream is whole, and has no pieces."""
        data = encode(request, self.address)
        reader = _Reader(self.open(), time.monotonic() + self.timeout)
        try:
            reader.send(data)
            status, headers, _ = _read_head(reader)
            if status == 200 and headers.get("transfer-encoding", "").lower() == "chunked":
                return Answer(status, headers, b""), self._pieces(reader, readable)
            body, _ = _read_body(reader, status, headers)
            return Answer(status, headers, body), iter(())
        except (OSError, Lost) as wrong:
            raise self._broken(wrong) from None

    def _pieces(self, reader: _Reader, readable: Readable) -> Iterator[bytes]:
        reader.readable = readable
        try:
            while piece := _read_chunk(reader, BODY_MAX):
                yield piece
        except TimeoutError:
            raise TimedOut("stream_silent", f"{self.address} has been silent for too long.") from None
        except (OSError, Lost) as wrong:
            raise self._broken(wrong) from None
        finally:
            self.close()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _broken(self, wrong: OSError | Lost) -> Fault:
        """Whatever breaks an exchange ends the connection."""
        self.close()
        if isinstance(wrong, Lost):
            return wrong
        if isinstance(wrong, TimeoutError):
            return TimedOut("answer_timeout", f"{self.address} did not answer within {self.timeout:g} s.")
        return Lost("answer_lost", f"The connection to {self.address} broke: {reason_of(wrong)}.")


def _connect(address: Address, timeout: float) -> socket.socket:
    if address.scheme == "unix":
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            connection.connect(address.host)
        except BaseException:  # an interrupt too: nobody else knows of it yet, who could close it
            connection.close()
            raise
        return connection
    connection = socket.create_connection((address.host, address.port), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if address.scheme == "http":
        return connection
    import ssl  # 15 ms, paid by those who speak TLS

    try:
        return ssl.create_default_context().wrap_socket(connection, server_hostname=address.host)
    except BaseException:  # an interrupt too: nobody else knows of it yet, who could close it
        connection.close()
        raise


def reason_of(wrong: Exception) -> str:
    """What an exception has to say, for the end of a sentence."""
    return getattr(wrong, "strerror", None) or str(wrong) or type(wrong).__name__


def encode(request: Request, address: Address) -> bytes:
    """A request as it stands on the wire."""
    lines = [f"{request.method} {address.prefix}{request.target} HTTP/1.1", f"Host: {address.authority}"]
    for name, value in request.headers.items():
        # A line break in a token or a key would let its author write headers of their own.
        if not value.isprintable():
            raise Invalid("invalid_header", f"The {name} holds a control character.", field=name)
        lines.append(f"{name}: {value}")
    if request.body is not None:
        lines.append(f"Content-Length: {len(request.body)}")
    head = "\r\n".join(lines) + "\r\n\r\n"
    return head.encode("utf-8", "surrogateescape") + (request.body or b"")


class _Reader:
    """Bytes of one answer, read under one deadline."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._socket = connection
        self._deadline = deadline
        self._buffer = bytearray()
        self.readable: Readable | None = None
        """Waits instead of the deadline, once it is there."""

    def send(self, data: bytes) -> None:
        self._arm()
        self._socket.sendall(data)

    def line(self, most: int) -> bytes:
        """Up to and without the next line break."""
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > most:
                break
            self._fill()
        if end < 0 or end > most:
            raise garbled("a line is longer than the bound")
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line.removesuffix(b"\r")

    def exactly(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def to_end(self) -> bytes:
        while self._receive():
            if len(self._buffer) > BODY_MAX:
                raise garbled("the body is longer than the bound")
        return bytes(self._buffer)

    @property
    def is_drained(self) -> bool:
        return not self._buffer

    def _fill(self) -> None:
        if not self._receive():
            raise Lost("answer_lost", "The server closed the connection before its answer was whole.")

    def _receive(self) -> int:
        if self.readable is not None:
            self.readable(self._socket)
        else:
            self._arm()
        data = self._socket.recv(_READ)
        self._buffer += data
        return len(data)

    def _arm(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:  # 0 would mean "do not block" to the socket, and that is another error
            raise TimeoutError
        self._socket.settimeout(left)


def _read_answer(reader: _Reader) -> tuple[Answer, bool]:
    """The next final answer, and whether the connection may serve another exchange."""
    status, headers, version = _read_head(reader)
    while 100 <= status < 200:
        status, headers, version = _read_head(reader)
    body, framed = _read_body(reader, status, headers)
    keep = framed and reader.is_drained and version != b"HTTP/1.0"
    return Answer(status, headers, body), keep and headers.get("connection", "").lower() != "close"


def _read_head(reader: _Reader) -> tuple[int, dict[str, str], bytes]:
    version, _, rest = reader.line(HEAD_MAX).partition(b" ")
    code = rest[:3]
    if not version.startswith(b"HTTP/1.") or not code.isdigit() or len(code) != 3:
        raise garbled("it does not speak HTTP/1.1")
    return int(code), _read_headers(reader), version


def _read_headers(reader: _Reader) -> dict[str, str]:
    headers: dict[str, str] = {}
    left = HEAD_MAX
    while line := reader.line(left):
        left -= len(line) + 1
        if left <= 0:
            raise garbled("the head is longer than the bound")
        name, colon, value = line.decode("latin-1").partition(":")
        if not colon:
            raise garbled("a header has no colon")
        key, value = name.lower(), value.strip()
        headers[key] = f"{headers[key]}, {value}" if key in headers else value
    return headers


def _read_body(reader: _Reader, status: int, headers: Mapping[str, str]) -> tuple[bytes, bool]:
    """The body, and whether its end was framed (if not, it ends with the connection)."""
    if status in BODILESS:
        return b"", True
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"].lower() != "chunked":
            raise garbled("its transfer encoding is unknown")
        return _read_chunks(reader), True
    if "content-length" in headers:
        length = headers["content-length"]
        if not (length.isascii() and length.isdigit()):
            raise garbled("its Content-Length is not a number")
        if len(length) > 12 or int(length) > BODY_MAX:
            raise garbled("the body is longer than the bound")
        return reader.exactly(int(length)), True
    return reader.to_end(), False


def _read_chunks(reader: _Reader) -> bytes:
    body = bytearray()
    while piece := _read_chunk(reader, BODY_MAX - len(body)):
        body += piece
    _read_headers(reader)  # trailers: nothing in them that this client wants to know
    return bytes(body)


def _read_chunk(reader: _Reader, most: int) -> bytes:
    """The next chunk; empty at the end of the body."""
    size = chunk_size(reader.line(HEAD_MAX))
    if size > most:
        raise garbled("the body is longer than the bound")
    data = reader.exactly(size)
    if size and reader.line(2):
        raise garbled("a chunk is longer than it says")
    return data


def chunk_size(line: bytes) -> int:
    text = line.partition(b";")[0].strip()
    # int() would also take "-1", "+1" and "1_0".
    if not 0 < len(text) <= 8 or text.strip(b"0123456789abcdefABCDEF"):
        raise garbled("a chunk has no size")
    return int(text, 16)


def garbled(what: str) -> Lost:
    return Lost("garbled_answer", f"The answer cannot be read: {what}.")
