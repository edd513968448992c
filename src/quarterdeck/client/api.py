"""A server one can call: an address, a token, JSON in and out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from quarterdeck.client.http_sync import Connection, WaitReadable
from quarterdeck.client.http_types import Address, Lost, Request, Response
from quarterdeck.client.problems import problem_from_response
from quarterdeck.core.errors import Unauthenticated

Document = dict[str, object]
Query = Mapping[str, str | int | bool | None]

WORK_PLANE_PREFIX = "/api/v1/"
"""The routes of the work plane, which name their zone in a header."""
_UNESCAPED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:")


class ApiResponse(NamedTuple):
    status: int
    document: Document
    """Empty where the answer had no content."""


class ApiClient:
    def __init__(self, address: Address, token: str | None, timeout: float, trace: str | None = None) -> None:
        self.address = address
        self.connection = Connection(address, timeout)
        self.token = token
        """A bearer token or an API key: no JWT begins as a key does."""
        self.trace = trace
        self.zone: str | None = None
        """Where it acts on the routes whose path names no zone; None leaves it to the token."""

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
        """One authorised call; `key` is its idempotency key. What the server refuses is raised as a
        `Problem`."""
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
        """One exchange as it is: public routes need no token, and an answer of any status is an answer."""
        all_headers = {"Accept": "application/json", "User-Agent": "qd", **(headers or {})}
        if self.trace is not None:
            all_headers["Traceparent"] = self.trace
        if self.zone is not None and target.startswith(WORK_PLANE_PREFIX):
            all_headers["X-Workspace-ID"] = self.zone
        data = None
        if body is not None:
            all_headers["Content-Type"] = "application/json"
            data = json.dumps(body, separators=(",", ":")).encode()
        return self.connection.exchange(Request(method, target, all_headers, data))

    def stream(
        self, path: str, query: Query, headers: Mapping[str, str], wait_readable: WaitReadable
    ) -> Iterator[bytes]:
        """An authorised call whose answer has no end, in the pieces in which it comes."""
        all_headers = {"Accept": "text/event-stream", "User-Agent": "qd", **self._auth_headers(), **headers}
        response, chunks = self.connection.open_stream(
            Request("GET", with_query(path, query), all_headers), wait_readable
        )
        if response.status >= 300:
            raise problem_from_response(response)
        if not response.headers.get("content-type", "").startswith("text/event-stream"):
            raise Lost("garbled_answer", "The server's answer is no stream: is this a Quarterdeck server?")
        return chunks

    def _auth_headers(self) -> dict[str, str]:
        if self.token is None:
            raise Unauthenticated(
                "missing_token", f"There is no token for {self.address}: give one with --token or QD_TOKEN."
            )
        is_key = self.token.startswith("qd_")
        return {"X-API-Key": self.token} if is_key else {"Authorization": f"Bearer {self.token}"}

    def pages(self, path: str, query: Query) -> Iterator[Document]:
        """Every page of a list, following its cursor."""
        page_query = dict(query)
        while True:
            page = self.get(path, page_query)
            yield page
            cursor = next_cursor(page)
            if not isinstance(cursor, str) or cursor == page_query.get("cursor"):
                return
            page_query["cursor"] = cursor


def next_cursor(page: Document) -> object:
    """Where the next page begins. Each plane spells it in its own way, and no page has both."""
    return page.get("nextCursor", page.get("next_cursor"))


def build_path(*segments: str) -> str:
    """`/zones/z/agents/a`, each segment escaped: an id can never reach into another route."""
    return "".join(f"/{_escape(segment)}" for segment in segments)


def with_query(path: str, query: Query | None) -> str:
    """Leaves out what is None; True is `true`."""
    params = {name: value for name, value in (query or {}).items() if value is not None and value is not False}
    if not params:
        return path
    pairs = (f"{name}={_escape('true' if value is True else str(value))}" for name, value in params.items())
    return f"{path}?{'&'.join(pairs)}"


def _escape(text: str) -> str:
    # `.` and `..` alone are rewritten by some proxies, even though each character is a plain one.
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
        raise Lost("garbled_answer", "The server's answer is not a JSON object: is this a Quarterdeck server?")
    return document


def page_items(page: Document, name: str = "items") -> list[Document]:
    """The items of a list, as far as they are what a list should hold."""
    items = page.get(name)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
