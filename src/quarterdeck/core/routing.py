"""The types with which a component declares its routes: `Route`, `Call` and `Reply`.

A component's `routes.py` returns a list of `Route`. The dispatcher authenticates the caller, checks the scope and the
zone, decodes and validates the body and the query with msgspec, calls `handler(call)`, and encodes the response.
OpenAPI is generated from the same list.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import Caller

# In Python `$` also matches before a final line feed, hence the `(?!\n)`. Clients that read the pattern in OpenAPI may
# use other regex engines, which need the `$`.
PathId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.\-:]{1,128}$(?!\n)", description="letters, digits and _ . - :")]
"""An id in a path, a body or a query."""
CALLER_ZONE_PREFIX = "/api/v1/"
"""The prefix of paths without a zone. Their routes act in the caller's zone, or in the zone that `X-Workspace-ID`
names."""


class Call(msgspec.Struct):
    """One request, decoded, validated and authorized."""

    caller: Caller
    params: Mapping[str, str]
    body: object = None
    query: object = None
    idempotency_key: str | None = None
    trace: str | None = None
    request_id: str = ""
    url: str = ""
    """Path and query as sent, for links to the next page. Empty if the route has no query."""
    wants_stream: bool = False
    """The request is a GET, and its Accept header names server-sent events."""
    last_event_id: str | None = None
    """The `Last-Event-ID` header: the last event that a reconnecting client received."""
    is_unix_socket: bool = False
    """The request came over the server's Unix socket, which only the server's user can open."""

    @property
    def zone_id(self) -> str:
        return self.params["zone"]

    def next_link(self, cursor: str | None) -> list[tuple[str, str]]:
        """The `Link` header of a list that has a next page."""
        if cursor is None:
            return []
        path, _, query = self.url.partition("?")
        params = [part for part in query.split("&") if part and not part.startswith("cursor=")]
        return [("link", f'<{path}?{"&".join([*params, "cursor=" + cursor])}>; rel="next"')]


class Reply(msgspec.Struct):
    """A response with a status, headers or no body. A handler that returns anything else sends it with status 200."""

    body: object = None
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    on_undelivered: Callable[[], None] | None = None
    """Called if the client certainly did not receive the response."""


Handler = Callable[[Call], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Route:
    """One row of a component's route table."""

    method: str
    path: str
    """`/zones/{zone}/agents/{id}`: a segment is literal or one parameter. `http.router` defines which parameters are
    names or numbers; all others are path ids."""
    handler: Handler
    summary: str
    scope: str | None
    """The required scope. None: the route is public."""
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    response: object = None
    """The type of the response body, for OpenAPI."""
    stream_event: object = None
    """The type of each event, for OpenAPI, if the route can also return server-sent events."""
    status: int = 200
    is_long_poll: bool = False
    """Whether the handler may wait. It is canceled when the client disconnects."""
    description: str = ""
    errors: tuple[str, ...] = ()
    """The error codes of this route, in addition to those of every route."""
    tags: tuple[str, ...] = field(default=())
    returns_existing: bool = False
    """Whether a POST without an idempotency key returns 200 and the existing object if there is one. For OpenAPI."""
    permission: str | None = None
    """The permission that the caller's role must have (`domain/zones/rules/roles.py`). Every route in a workspace has
    one. The operation checks it; this field is for the documentation and for a test that compares the two."""
    body_bytes_max: int | None = None
    """The maximum size of the body in bytes. None: the server's limit."""

    @property
    def is_in_caller_zone(self) -> bool:
        return self.path.startswith(CALLER_ZONE_PREFIX)
