"""What is asked, what comes back, and the ways in which nothing does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


class OutboundError(Exception):
    """Nothing that can be used came back. Its text completes "it failed: …", and quotes nothing of the answer."""


class RequestBlocked(OutboundError):
    """This process does not let itself be sent there. Nobody was connected to."""

    def __init__(self, reason: str, address: str | None = None) -> None:
        super().__init__(reason)
        self.address = address
        """What was refused, if it was an address that a name gave. For whoever runs the server, and not for whoever
        named the URL: it would tell them of a network they cannot see."""


class Unreachable(OutboundError):
    """No connection, or one that broke."""


class TimedOut(OutboundError):
    """No whole answer within the time for it."""


class ResponseTooLarge(OutboundError):
    """An answer beyond the bounds. What it began with is known."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


class InvalidResponse(OutboundError):
    """An answer that is not HTTP, or ends before its end."""


@dataclass(frozen=True, slots=True)
class ResponseLimits:
    """Bytes of an answer."""

    head_bytes: int = 32 * 1024
    body_bytes: int = 256 * 1024


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """By their names in small letters."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a URL leads. Made from URLs on which no two readers differ."""

    tls: bool
    host: str
    """Without brackets."""
    port: int
    authority: str
    """As the URL spells it: what the Host header says."""
    path: str

    @classmethod
    def parse(cls, url: str) -> Target:
        # Before anything is taken apart: what the library would strip or read in its own way is not here.
        if not url.isascii() or any(c <= " " or c in "\\\x7f" for c in url):
            raise RequestBlocked("its URL is not of plain characters")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise RequestBlocked("its URL cannot be read") from None
        if parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0 or "@" in parts.netloc:
            raise RequestBlocked("its URL is none of http:// or https:// with a host and no user")
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
        """What a certificate must hold for. The dot that ends a name for resolvers is no part of it (RFC 6066)."""
        return self.host.removesuffix(".")


@dataclass(frozen=True, slots=True)
class Request:
    method: Literal["GET", "POST"]
    url: str
    headers: Sequence[tuple[str, str]] = ()
    body: bytes = b""
    requester: str = ""
    """On whose behalf: each has a share of what there is only so much of."""

    def encode(self, target: Target) -> bytes:
        """The bytes to send. Nothing of a header can become another header."""
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
            raise ValueError("a header holds the end of a line")
        return "\r\n".join([*lines, "", ""]).encode("ascii") + self.body
