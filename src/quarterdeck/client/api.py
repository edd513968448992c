"""Authenticated JSON calls to a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from quarterdeck.client.http_sync import Connection, WaitReadable
from quarterdeck.client.http_types import Address, Lost, Request, Response
from quarterdeck.client.problems import problem_from_response, require_event_stream
from quarterdeck.core.errors import Unauthenticated

Document = dict[str, object]
Query = Mapping[str, str | int | bool | None]

ZONE_HEADER_PREFIX = "/api/v1/"
"""Routes whose path starts with this take the zone from the `X-Workspace-ID` header, not from the path."""
_UNESCAPED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:")


class ApiResponse(NamedTuple):
    status: int
    document: Document
    """Empty if the response has no body."""


class ApiClient:
    def __init__(self, address: Address, token: str | None, timeout_seconds: float, trace: str | None = None) -> None:
        self.address = address
        self.connection = Connection(address, timeout_seconds)
        self.token = token
        """A bearer token or an API key."""
        self.trace = trace
        self.zone: str | None = None
        """The zone for routes whose path does not contain one. If None, the server uses the token's zone."""

    def get(self, path: str, query: Query | None = None) -> Document:
        return self.call("GET", path, query=query).document

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Query | None = None,
        body: Document | None = None,
        key: str | None = None,
    ) -> ApiResponse:
        """Make one authenticated call. `key` is the idempotency key.

        Raises a `Problem` if the status is 300 or more.
        """
        headers = self._auth_headers()
        if key is not None:
            headers["Idempotency-Key"] = key
        response = self.send(method, with_query(path, query), headers, body)
        if response.status >= 300:
            raise problem_from_response(response)
        return ApiResponse(response.status, _decode(response))

    def send(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: Document | None = None
    ) -> Response:
        """Send a request with these headers. Adds no token, and returns the response whatever its status."""
        all_headers = {"Accept": "application/json", "User-Agent": "qd", **(headers or {})}
        if self.trace is not None:
            all_headers["Traceparent"] = self.trace
        if self.zone is not None and target.startswith(ZONE_HEADER_PREFIX):
            all_headers["X-Workspace-ID"] = self.zone
        data = None
        if body is not None:
            all_headers["Content-Type"] = "application/json"
            data = json.dumps(body, separators=(",", ":")).encode()
        return self.connection.exchange(Request(method, target, all_headers, data))

    def stream(
        self, path: str, query: Query, headers: Mapping[str, str], wait_readable: WaitReadable
    ) -> Iterator[bytes]:
        """Open an event stream. Returns an iterator that yields the chunks of the body as they arrive."""
        all_headers = {"Accept": "text/event-stream", "User-Agent": "qd", **self._auth_headers(), **headers}
        response, chunks = self.connection.open_stream(
            Request("GET", with_query(path, query), all_headers), wait_readable
        )
        try:
            require_event_stream(response)
        except Lost:
            # The rest of the body may be unread, and the next response must not begin with it.
            self.connection.close()
            raise
        return chunks

    def _auth_headers(self) -> dict[str, str]:
        if self.token is None:
            raise Unauthenticated("missing_token", f"No token for {self.address}. Set one with --token or QD_TOKEN.")
        return auth_header(self.token)

    def pages(self, path: str, query: Query) -> Iterator[Document]:
        """Yield every page of a list."""
        page_query = dict(query)
        while True:
            page = self.get(path, page_query)
            yield page
            cursor = next_cursor(page)
            if not isinstance(cursor, str) or cursor == page_query.get("cursor"):
                return
            page_query["cursor"] = cursor


def auth_header(token: str) -> dict[str, str]:
    """The header for a bearer token or an API key. API keys start with `qd_`, which no JWT does."""
    return {"X-API-Key": token} if token.startswith("qd_") else {"Authorization": f"Bearer {token}"}


def next_cursor(page: Document) -> object:
    """The cursor for the next page. Some routes name the field `nextCursor`, others `next_cursor`."""
    return page.get("nextCursor", page.get("next_cursor"))


def build_path(*segments: str) -> str:
    """Build a path such as `/zones/z/agents/a`. Escapes segments, so that an id cannot change the route."""
    return "".join(f"/{_escape(segment)}" for segment in segments)


def with_query(path: str, query: Query | None) -> str:
    """Append the query. Parameters that are None or False are left out, and True becomes `true`."""
    params = {name: value for name, value in (query or {}).items() if value is not None and value is not False}
    if not params:
        return path
    pairs = (f"{name}={_escape('true' if value is True else str(value))}" for name, value in params.items())
    return f"{path}?{'&'.join(pairs)}"


def _escape(text: str) -> str:
    # A dot normally needs no escaping, but some proxies resolve the segments `.` and `..`.
    if text in (".", ".."):
        return text.replace(".", "%2E")
    data = text.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if byte in _UNESCAPED else f"%{byte:02X}" for byte in data)


def _decode(response: Response) -> Document:
    if not response.body:
        return {}
    try:
        document: object = json.loads(response.body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Lost("garbled_answer", "The response is not a JSON object. Is this a Quarterdeck server?")
    return document


def page_items(page: Document, field: str = "items") -> list[Document]:
    """The objects in a list field of a page. Items that are not JSON objects are left out."""
    items = page.get(field)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
