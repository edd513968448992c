"""One bounded GET, for documents of an issuer.

Whoever runs the server has named the URL, so it may lead into a private network: where others may not send this server,
its own configuration may. Everything else that `engine.outward` promises holds here, too.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from quarterdeck.engine.outbound_http import ALLOW_ALL, OutboundClient, OutboundError, Request, Response, ResponseLimits
from quarterdeck.engine.outbound_http.types import DEFAULT_PORTS

__all__ = ["FetchError", "JwksFetcher", "Response", "check_url"]
MAX_RESPONSE_BYTES = 256 * 1024


class FetchError(Exception):
    """Nothing that can be used came back. Its text is for the log, and quotes nothing of the answer."""


def check_url(name: str, url: str) -> None:
    """Refuse, at the start and with a sentence, a configured address that could never be asked."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"{name} is not a URL.") from None
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or port == 0:
        raise ValueError(f"{name} must be an http:// or https:// URL.")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{name} must not hold a user name, a query or a fragment.")
    if not url.isascii() or any(character <= " " or character in "\\\x7f" for character in url):
        raise ValueError(f"{name} must be written in plain ASCII without spaces.")


class JwksFetcher:
    """Asks one URL once: within a time limit, up to a size, following nothing."""

    def __init__(self, timeout: float, max_bytes: int = MAX_RESPONSE_BYTES) -> None:
        self._timeout = timeout
        self._http_client = OutboundClient(ALLOW_ALL, ResponseLimits(body_bytes=max_bytes))

    async def __call__(self, url: str) -> Response:
        request = Request("GET", url, [("Accept", "application/json")])
        try:
            return await self._http_client.send(request, self._timeout)
        except OutboundError as error:
            raise FetchError(str(error)) from None
