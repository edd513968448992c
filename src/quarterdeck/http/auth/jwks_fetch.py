"""One bounded GET, for documents of an issuer.

Whoever runs the server has named the URL, so it may lead into a private network: where others may not send this server,
its own configuration may. Everything else that `engine.outward` promises holds here, too.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from quarterdeck.engine.outbound_http import OWN, Answer, Bounds, Outward, OutwardError, Request
from quarterdeck.engine.outbound_http.types import PORTS

__all__ = ["Answer", "FetchFailed", "Fetcher", "check_url"]
MAX_ANSWER = 256 * 1024


class FetchFailed(Exception):
    """Nothing that can be used came back. Its text is for the log, and quotes nothing of the answer."""


def check_url(name: str, url: str) -> None:
    """Refuse, at the start and with a sentence, a configured address that could never be asked."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError(f"{name} is not a URL.") from None
    if parts.scheme not in PORTS or not parts.hostname or port == 0:
        raise ValueError(f"{name} must be an http:// or https:// URL.")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"{name} must not hold a user name, a query or a fragment.")
    if not url.isascii() or any(character <= " " or character in "\\\x7f" for character in url):
        raise ValueError(f"{name} must be written in plain ASCII without spaces.")


class Fetcher:
    """Asks one URL once: within a time limit, up to a size, following nothing."""

    def __init__(self, timeout: float, limit: int = MAX_ANSWER) -> None:
        self._timeout = timeout
        self._outward = Outward(OWN, Bounds(body=limit))

    async def __call__(self, url: str) -> Answer:
        request = Request("GET", url, [("Accept", "application/json")])
        try:
            return await self._outward.ask(request, self._timeout)
        except OutwardError as failure:
            raise FetchFailed(str(failure)) from None
