"""A server one can call: an address, a token, JSON in and out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from quarterdeck.client.http_sync import Connection, Readable
from quarterdeck.client.http_types import Address, Answer, Lost, Request
from quarterdeck.client.problems import from_answer
from quarterdeck.core.errors import Unauthenticated

Document = dict[str, object]
Query = Mapping[str, str | int | bool | None]

WORK = "/api/v1/"
"""The routes of the work plane, which name their zone in a header."""
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~:")


class Reply(NamedTuple):
    status: int
    document: Document
    """Empty where the answer had no content."""


class Server:
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
    ) -> Reply:
        """One authorised call; `key` is its idempotency key. What the server refuses is raised as a
        `Problem`."""
        headers = self._credential()
        if key is not None:
            headers["Idempotency-Key"] = key
        answer = self.ask(method, with_query(path, query), headers, body)
        if answer.status >= 300:
            raise from_answer(answer)
        return Reply(answer.status, _decode(answer))

    def ask(
        self, method: str, target: str, headers: Mapping[str, str] | None = None, body: Document | None = None
    ) -> Answer:
        """One exchange as it is: public routes need no token, and an answer of any status is an answer."""
        sent = {"Accept": "application/json", "User-Agent": "qd", **(headers or {})}
        if self.trace is not None:
            sent["Traceparent"] = self.trace
        if self.zone is not None and target.startswith(WORK):
            sent["X-Workspace-ID"] = self.zone
        data = None
        if body is not None:
            sent["Content-Type"] = "application/json"
            data = json.dumps(body, separators=(",", ":")).encode()
        return self.connection.exchange(Request(method, target, sent, data))

    def stream(self, path: str, query: Query, headers: Mapping[str, str], readable: Readable) -> Iterator[bytes]:
        """An authorised call whose answer has no end, in the pieces in which it comes."""
        sent = {"Accept": "text/event-stream", "User-Agent": "qd", **self._credential(), **headers}
        answer, pieces = self.connection.begin(Request("GET", with_query(path, query), sent), readable)
        if answer.status >= 300:
            raise from_answer(answer)
        if not answer.headers.get("content-type", "").startswith("text/event-stream"):
            raise Lost("garbled_answer", "The server's answer is no stream: is this a Quarterdeck server?")
        return pieces

    def _credential(self) -> dict[str, str]:
        if self.token is None:
            raise Unauthenticated(
                "missing_token", f"There is no token for {self.address}: give one with --token or QD_TOKEN."
            )
        is_key = self.token.startswith("qd_")
        return {"X-API-Key": self.token} if is_key else {"Authorization": f"Bearer {self.token}"}

    def pages(self, path: str, query: Query) -> Iterator[Document]:
        """Every page of a list, following its cursor."""
        asked = dict(query)
        while True:
            page = self.get(path, asked)
            yield page
            cursor = cursor_of(page)
            if not isinstance(cursor, str) or cursor == asked.get("cursor"):
                return
            asked["cursor"] = cursor


def cursor_of(page: Document) -> object:
    """Where the next page begins. Each plane spells it in its own way, and no page has both."""
    return page.get("nextCursor", page.get("next_cursor"))


def path_of(*segments: str) -> str:
    """`/zones/z/agents/a`, each segment escaped: an id can never reach into another route."""
    return "".join(f"/{_escape(segment)}" for segment in segments)


def with_query(path: str, query: Query | None) -> str:
    """Leaves out what is None; True is `true`."""
    told = {name: value for name, value in (query or {}).items() if value is not None and value is not False}
    if not told:
        return path
    pairs = (f"{name}={_escape('true' if value is True else str(value))}" for name, value in told.items())
    return f"{path}?{'&'.join(pairs)}"


def _escape(text: str) -> str:
    # `.` and `..` alone are rewritten by some proxies, even though each character is a plain one.
    if text in (".", ".."):
        return text.replace(".", "%2E")
    data = text.encode("utf-8", "surrogateescape")
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in data)


def _decode(answer: Answer) -> Document:
    if not answer.body:
        return {}
    try:
        document: object = json.loads(answer.body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Lost("garbled_answer", "The server's answer is not a JSON object: is this a Quarterdeck server?")
    return document


def items_of(page: Document, name: str = "items") -> list[Document]:
    """The items of a list, as far as they are what a list should hold."""
    items = page.get(name)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
