"""Requests, responses, limits and errors for outbound calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


class OutboundError(Exception):
    """There is no usable response. The text completes "it failed: …" and quotes nothing from the response."""


class RequestBlocked(OutboundError):
    """The SSRF guard refuses the URL. No connection was opened."""

    def __init__(self, reason: str, address: str | None = None) -> None:
        super().__init__(reason)
        self.address = address
        """The blocked address, if a name resolved to it. For the operator only: it would reveal the network to the
        client that named the URL."""


class Unreachable(OutboundError):
    """The connection could not be opened, or it was lost."""


class TimedOut(OutboundError):
    """No complete response arrived in time."""


class ResponseTooLarge(OutboundError):
    """A response beyond the limits. Its status may be known."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class InvalidResponse(OutboundError):
    """A response that is incomplete or not HTTP."""


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """Maximum sizes of the parts of a response."""

    head_bytes: int = 32 * 1024
    body_bytes: int = 256 * 1024


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name."""


@dataclass(frozen=True, slots=True)
class Target:
    """The parts of a URL. Accepts only URLs that all parsers interpret in the same way."""

    uses_tls: bool
    host: str
    """Without brackets."""
    port: int
    authority: str
    """As written in the URL: the value of the Host header."""
    path: str

    @classmethod
    def parse(cls, url: str) -> Target:
        # Checked before parsing: excludes everything that urlsplit would strip or interpret in its own way.
        if not url.isascii() or any(c <= " " or c in "\\\x7f" for c in url):
            raise RequestBlocked("its URL contains characters that are not allowed")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise RequestBlocked("its URL cannot be parsed") from None
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0 or "@" in parts.netloc:
            raise RequestBlocked("its URL must be http:// or https:// with a host and without a user")
        query = f"?{parts.query}" if parts.query else ""
        return cls(
            parts.scheme == "https",
            parts.hostname,
            port or DEFAULT_PORTS[parts.scheme],
            parts.netloc,
            (parts.path or "/") + query,
        )

    @property
    def server_name(self) -> str:
        """The name that the certificate must be valid for: without the final dot of a host name (RFC 6066)."""
        return self.host.removesuffix(".")


@dataclass(frozen=True, slots=True)
class Request:
    method: Literal["GET", "POST"]
    url: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    requester: str = ""
    """The party that the request is sent for. Each requester has a share of limited resources."""

    def encode(self, target: Target) -> bytes:
        """The bytes to send. No header value can inject another header."""
        headers = [
            ("Host", target.authority),
            ("User-Agent", "quarterdeck"),
            ("Accept-Encoding", "identity"),
            ("Connection", "close"),
            *self.headers,
        ]
        if self.method == "POST":
            headers.append(("Content-Length", str(len(self.body))))
        lines = [f"{self.method} {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
        if any(character in line for line in lines for character in "\r\n\0"):
            raise ValueError("a header contains a line break or NUL")
        return "\r\n".join([*lines, "", ""]).encode("ascii") + self.body
