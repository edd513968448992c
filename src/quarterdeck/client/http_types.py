"""Requests, responses, addresses and errors for both HTTP clients, and the encoding of requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from quarterdeck.core.errors import EXIT_TIMEOUT, Fault, Invalid


class Unreachable(Fault, status=502, title="Server unreachable"):
    """No connection was made and nothing was sent, so a retry is safe."""


class Lost(Fault, status=502, title="Response lost"):
    """The request was sent and no complete, valid response came back. The server may have processed the request."""


class TimedOut(Fault, status=504, title="Timed out", exit_code=EXIT_TIMEOUT):
    """A call or a server start took too long. If a request was sent, the server may have processed it, or may still do
    so."""


class Address(NamedTuple):
    """Where a server listens. For scheme `unix`, `host` is the path of the socket."""

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


class Response(NamedTuple):
    """An HTTP response. Header names are in lower case. The values of a repeated header are joined with commas.

    The body is complete, except for a stream: its body is empty here and is read in chunks.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


def parse_address(url: str) -> Address:
    """Parse `http://host[:port][/prefix]`, `https://…` or `unix:/path/to.sock`."""
    if url.startswith("unix:"):
        return Address("unix", url.removeprefix("unix:").removeprefix("//"))
    from urllib.parse import urlsplit  # takes 5 ms, so it is imported only when needed

    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Invalid("invalid_url", f"{url!r} is not a valid server URL: {error}.", field="url") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise Invalid("invalid_url", f"{url!r} is not a valid server URL. Use http://HOST:PORT.", field="url")
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    return Address(parts.scheme, parts.hostname, port, parts.path.rstrip("/"))


def error_text(error: Exception) -> str:
    """The exception's message, without its errno."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def connect_fault(address: Address, error: Exception, timeout_seconds: float) -> Fault:
    """The fault for a connection that could not be opened. Nothing was sent."""
    if isinstance(error, TimeoutError):
        return TimedOut("connect_timeout", f"{address} did not accept a connection within {timeout_seconds:g} s.")
    return Unreachable("server_unreachable", f"Cannot connect to {address}: {error_text(error)}.")


def encode_request(request: Request, address: Address) -> bytes:
    """Encode a request as HTTP/1.1. Raises `Invalid` if a header value contains a character that is not printable."""
    lines = [f"{request.method} {address.prefix}{request.target} HTTP/1.1", f"Host: {address.authority}"]
    for name, value in request.headers.items():
        # A line break in a token or a key could inject headers.
        if not value.isprintable():
            raise Invalid("invalid_header", f"The header {name} contains a nonprintable character.", field=name)
        lines.append(f"{name}: {value}")
    if request.body is not None:
        lines.append(f"Content-Length: {len(request.body)}")
    head = "\r\n".join(lines) + "\r\n\r\n"
    return head.encode("utf-8", "surrogateescape") + (request.body or b"")
