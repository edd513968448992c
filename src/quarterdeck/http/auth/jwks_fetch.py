"""Fetches a JWKS document with one bounded GET.

The operator configures the URL, so it may point into a private network, unlike URLs that come from clients. All other
rules of `engine.outbound_http` apply.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from quarterdeck.engine.outbound_http import ALLOW_ALL, OutboundClient, OutboundError, Request, Response, ResponseLimits
from quarterdeck.engine.outbound_http.types import DEFAULT_PORTS

__all__ = ["FetchError", "JwksFetcher", "Response", "check_url"]
MAX_RESPONSE_BYTES = 256 * 1024


class FetchError(Exception):
    """The fetch failed. The message is for the log and contains nothing from the response."""


def check_url(name: str, url: str) -> None:
    """Raise ValueError, at start-up, for a configured URL that can never be fetched."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"{name} is not a URL.") from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0:
        raise ValueError(f"{name} must be an http:// or https:// URL.")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{name} must not contain a user name, a query or a fragment.")
    if not url.isascii() or any(character <= " " or character in "\\\x7f" for character in url):
        raise ValueError(f"{name} must be ASCII without spaces.")


class JwksFetcher:
    """Sends one GET with a time-out and a size limit. Follows no redirects."""

    def __init__(self, timeout_seconds: float, max_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self._timeout_seconds = timeout_seconds
        self._http_client = OutboundClient(ALLOW_ALL, ResponseLimits(body_bytes=max_bytes))

    async def __call__(self, url: str) -> Response:
        request = Request("GET", url, [("Accept", "application/json")])
        try:
            return await self._http_client.send(request, self._timeout_seconds)
        except OutboundError as error:
            raise FetchError(str(error)) from None
