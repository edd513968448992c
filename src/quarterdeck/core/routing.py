"""The types with which a component declares its routes: `Route`, `Call` and `Reply`.

A component's `routes.py` returns a list of `Route`. The dispatcher authenticates the caller, checks the scope and the
zone, decodes and validates the body and the query with msgspec, calls `handler(call)`, and encodes the response.
OpenAPI is generated from the same list.

A handler names its types once, in its signature. `Route` reads them from there:

    async def spawn(self, call: Call[SpawnBody, None]) -> Reply[SessionView]: ...
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from types import UnionType
from typing import Annotated, Any, Generic, TypedDict, TypeVar, Union, get_args, get_origin, get_type_hints

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


# Covariant, so that a function that needs neither body nor query takes any call: `Call[object, object]`.
Body = TypeVar("Body", covariant=True)
Query = TypeVar("Query", covariant=True)
Response = TypeVar("Response", covariant=True)


class CallerFields(TypedDict):
    """The fields that every command of a caller has."""

    zone_id: str
    caller: Caller
    trace: str | None


class Call(msgspec.Struct, Generic[Body, Query], frozen=True):
    """One request, decoded, validated and authorized."""

    caller: Caller
    params: Mapping[str, str]
    body: Body
    query: Query
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

    @property
    def zones(self) -> set[str]:
        """The zones that row-level security admits for a read: that of the request and that of the caller's session."""
        return {self.params["zone"], self.caller.zone_id}

    @property
    def caller_fields(self) -> CallerFields:
        """The zone, the caller and the trace of a command: `Cancel(**call.caller_fields, …)`."""
        return {"zone_id": self.params["zone"], "caller": self.caller, "trace": self.trace}

    def next_link(self, cursor: str | None) -> list[tuple[str, str]]:
        """The `Link` header of a list that has a next page."""
        if cursor is None:
            return []
        path, _, query = self.url.partition("?")
        params = [part for part in query.split("&") if part and not part.startswith("cursor=")]
        return [("link", f'<{path}?{"&".join([*params, "cursor=" + cursor])}>; rel="next"')]


AnyCall = Call[object, object]
"""A call for functions that use neither its body nor its query."""


class Reply(msgspec.Struct, Generic[Response], frozen=True):
    """A response with a status, headers or no body. A handler that returns anything else sends it with status 200."""

    body: Response
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    on_undelivered: Callable[[], None] | None = None
    """Called if the client certainly did not receive the response."""


# Any: each handler has its own types, and one table holds them all.
Handler = Callable[[Call[Any, Any]], Awaitable[object]]


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
    body: type[msgspec.Struct] | None = field(init=False)
    query: type[msgspec.Struct] | None = field(init=False)
    response: object = field(init=False)
    """The type of the response body, for OpenAPI. None if the body has no schema."""

    def __post_init__(self) -> None:
        body, query, response = _handler_types(self)
        if body is not None and self.method == "GET":
            raise TypeError(f"{self.method} {self.path}: a GET request has no body, but the handler takes {body}.")
        # The dataclass is frozen for its users.
        for name, value in (("body", body), ("query", query), ("response", response)):
            object.__setattr__(self, name, value)

    @property
    def is_in_caller_zone(self) -> bool:
        return self.path.startswith(CALLER_ZONE_PREFIX)


def _handler_types(route: Route) -> tuple[Any, Any, object]:
    """Read the types of body, query and response from the annotations of the handler. Costs about 0.05 ms."""
    handler = route.handler
    hints = get_type_hints(handler) if hasattr(handler, "__annotations__") else {}
    response = hints.pop("return", None)
    calls = [get_args(hint) for hint in hints.values() if get_origin(hint) is Call]
    if response is None or len(calls) != 1:
        raise TypeError(
            f"{route.method} {route.path}: annotate the handler {getattr(handler, '__qualname__', handler)} as "
            "`(call: Call[Body, Query]) -> Response`, with None for no body or no query."
        )
    # A handler that ignores the body or the query names None or object.
    body, query = (part if _is_struct(part) else None for part in calls[0])
    return body, query, _response_type(response)


def _response_type(returned: object) -> object:
    """The structs that a handler returns. Streams, raw bodies and None have no schema."""
    if get_origin(returned) is Reply:
        [returned] = get_args(returned)
    members = get_args(returned) if get_origin(returned) in (UnionType, Union) else (returned,)
    structs = [member for member in members if _is_struct(member)]
    return reduce(or_, structs) if structs else None


def _is_struct(value_type: object) -> bool:
    origin = get_origin(value_type) or value_type
    return isinstance(origin, type) and issubclass(origin, msgspec.Struct)
