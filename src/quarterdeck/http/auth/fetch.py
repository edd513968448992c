"""One bounded GET, for documents of an issuer.

asyncio's streams and not urllib in a thread, because the time limit must hold for the whole exchange: a
thread cannot be called back from a server that sends one byte a second. httptools, which uvicorn uses too,
parses the answer.
"""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

import httptools

MAX_ANSWER = 256 * 1024
_CHUNK = 64 * 1024
_PORTS = {"http": 80, "https": 443}


class FetchFailed(Exception):
    """Nothing that can be used came back. Its text is for the log, and quotes nothing of the answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes


def check_url(name: str, url: str) -> None:
    """Refuse, at the start and with a sentence, a configured address that could never be asked."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"{name} is not a URL.") from None
    if parts.scheme not in _PORTS or not parts.hostname or port == 0:
        raise ValueError(f"{name} must be an http:// or https:// URL.")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{name} must not hold a user name, a query or a fragment.")
    if not url.isascii() or any(character <= " " or character == "\x7f" for character in url):
        raise ValueError(f"{name} must be written in plain ASCII without spaces.")


class Fetcher:
    """Asks one URL once: within a time limit, up to a size, following nothing."""

    def __init__(self, timeout: float, limit: int = MAX_ANSWER) -> None:
        self._timeout = timeout
        self._limit = limit
        self._tls: ssl.SSLContext | None = None

    async def __call__(self, url: str) -> Answer:
        parts = urlsplit(url)
        try:
            async with asyncio.timeout(self._timeout):
                return await self._exchange(parts)
        except TimeoutError:
            raise FetchFailed(f"no answer within {self._timeout:g} s") from None
        except ssl.SSLCertVerificationError:
            raise FetchFailed("the certificate does not hold") from None
        except (OSError, UnicodeError) as failure:
            raise FetchFailed(f"cannot be reached ({type(failure).__name__})") from None
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            raise FetchFailed("the answer is not HTTP") from None

    async def _exchange(self, parts: SplitResult) -> Answer:
        host, port = str(parts.hostname), parts.port or _PORTS[parts.scheme]
        reader, writer = await asyncio.open_connection(host, port, ssl=self._context(parts.scheme))
        try:
            writer.write(_request(parts))
            return await self._read(reader)
        finally:
            # Not a polite close: a TLS peer that never answers one would keep the socket for half a minute.
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader) -> Answer:
        collected = _Collected()
        parser = httptools.HttpResponseParser(collected)
        received = 0
        # The end of the connection also ends an answer. One that was cut short is no whole JSON document.
        while not collected.complete and (data := await reader.read(_CHUNK)):
            received += len(data)
            if received > self._limit:
                raise FetchFailed(f"the answer is larger than {self._limit} bytes")
            parser.feed_data(data)
        return Answer(parser.get_status_code(), bytes(collected.body))

    def _context(self, scheme: str) -> ssl.SSLContext | None:
        if scheme == "http":
            return None
        if self._tls is None:
            # On first use, and kept: loading the machine's certificates takes tens of milliseconds.
            self._tls = ssl.create_default_context()
        return self._tls


class _Collected:
    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


def _request(parts: SplitResult) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return (
        f"GET {target} HTTP/1.1\r\n"
        f"Host: {parts.netloc}\r\n"
        "Accept: application/json\r\n"
        "Accept-Encoding: identity\r\n"
        "User-Agent: quarterdeck\r\n"
        "Connection: close\r\n\r\n"
    ).encode("ascii")
