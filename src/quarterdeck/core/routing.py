"""What a room says about its routes, so that one shell can serve all rooms.

A room's `routes.py` returns a list of `Route`. The shell decodes and validates the body and the query with
msgspec, authenticates, checks scope and zone, calls `handler(call)`, and encodes the answer. The same table
yields OpenAPI.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import Caller

# In Python `$` also stands before a line feed at the end; readers of the pattern elsewhere need the `$`.
PathId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.\-:]{1,128}$(?!\n)", description="letters, digits and _ . - :")]
"""An id as it stands in a path, a body or a query."""
CALLER_ZONE_PREFIX = "/api/v1/"
"""How the paths begin that name no zone: they act in the caller's, or in the one that `X-Workspace-ID` names."""


class Call(msgspec.Struct):
    """One request, decoded, validated and authorised."""

    caller: Caller
    params: Mapping[str, str]
    body: object = None
    query: object = None
    idempotency_key: str | None = None
    trace: str | None = None
    request_id: str = ""
    url: str = ""
    """Path and query as they were sent, for links to the next page."""
    wants_stream: bool = False
    """Whether the client asked for server-sent events, where the route has them."""
    last_event_id: str | None = None
    """Where a client that comes again says it was."""
    is_unix_socket: bool = False
    """Whether it came over the server's unix socket, which nobody but its own user can open."""

    @property
    def zone_id(self) -> str:
        return self.params["zone"]

    def next_link(self, cursor: str | None) -> list[tuple[str, str]]:
        """The `Link` header of a list that goes on."""
        if cursor is None:
            return []
        path, _, query = self.url.partition("?")
        params = [part for part in query.split("&") if part and not part.startswith("cursor=")]
        return [("link", f'<{path}?{"&".join([*params, "cursor=" + cursor])}>; rel="next"')]


class Reply(msgspec.Struct):
    """An answer that is more than 200 and a body. `body` None sends no content."""

    body: object = None
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    on_undelivered: Callable[[], None] | None = None
    """Called if the client is gone before the answer could be sent, by a route that `waits`."""


Handler = Callable[[Call], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Route:
    """One row of a room's table."""

    method: str
    path: str
    """`/zones/{zone}/agents/{id}`: a segment is literal or one parameter. Parameters are path ids, but for `{subject}`,
    which is a name as tokens have it."""
    handler: Handler
    summary: str
    scope: str | None
    """The scope a bearer must hold; None means public, and a test lists all that are."""
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    response: object = None
    """The type of the answer's body, for OpenAPI."""
    stream_event: object = None
    """The type of each event, for OpenAPI, where the route answers with server-sent events to whoever asks for them."""
    status: int = 200
    is_long_poll: bool = False
    """It may take its time to answer, and stops when the client goes away."""
    description: str = ""
    errors: tuple[str, ...] = ()
    """The codes a caller should be ready for, beyond those every route has."""
    tags: tuple[str, ...] = field(default=())
    returns_existing: bool = False
    """Whether a POST that makes something answers 200, without any key, where it is there already."""
    permission: str | None = None
    """What the caller's role must allow, by the table in the rules of zones: every route in a workspace says it. The
    operation asks; this says it to the documentation, and to the test that holds one against the other."""
    body_bytes_max: int | None = None
    """Bytes its body may have; None: as many as every body."""

    @property
    def is_in_caller_zone(self) -> bool:
        return self.path.startswith(CALLER_ZONE_PREFIX)
