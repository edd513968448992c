"""What a room says about its routes, so that one shell can serve all rooms.

A room's `routes.py` returns a list of `Route`. The shell decodes and validates the body and the query with
msgspec, authenticates, checks scope and zone, calls `handler(call)`, and encodes the answer. The same table
yields OpenAPI.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

# In Python `$` also stands before a line feed at the end; readers of the pattern elsewhere need the `$`.
PathId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.\-:]{1,128}$(?!\n)", description="letters, digits and _ . - :")]
"""An id as it stands in a path, a body or a query."""
LIFECYCLE = "agent:lifecycle"
"""The scope of the agent plane. AGENT_COORDINATOR_SCOPE may give it another name on the wire."""
ADMIN = "quarterdeck.admin"
"""Crosses zones; honoured only from the local issuer or QD_ADMIN_ISSUER."""
METRICS = "quarterdeck.metrics"
"""May read the figures of a server that listens beyond loopback, and nothing else."""
COORDINATOR_ADMIN = "coordinator.admin"
"""May act for every application of its own zone."""
FLEET_EXEC = "fleet:exec"
"""May type into the panes of fleets, over the unix socket: whoever can open it is the user whose panes they are."""
IN_CALLERS_ZONE = "/api/v1/"
"""How the paths begin that name no zone: they act in the caller's, or in the one that `X-Workspace-ID` names."""


class Role(StrEnum):
    """What a bearer is in a workspace, which is a zone. What each may do is one table, in the rules of zones."""

    OWNER = "OWNER"
    ADMIN = "ADMIN"
    MEMBER = "MEMBER"
    AGENT = "AGENT"


class Bearer(msgspec.Struct, frozen=True):
    """Whom a credential speaks for. It is good only while they live, which the operation's transaction finds out."""

    zone_id: str
    """The zone of the credential, which is not always the zone that is acted on: an administrator crosses zones."""
    session_id: str | None
    """Must be live."""
    agent_id: str | None = None
    """Must not be known to have ended."""


class Caller(msgspec.Struct, frozen=True):
    """Who is asking, as far as a verified credential says. Never built from anything else."""

    subject: str
    client_id: str
    zone_id: str
    scopes: frozenset[str]
    sid: str | None = None
    session_id: str | None = None
    """The session the credential speaks for: it is good only while that session lives."""
    delegation_edge_id: str | None = None
    is_admin: bool = False
    """Holds ADMIN from an issuer that may grant it."""
    agent_id: str | None = None
    """The agent the credential speaks for, and the only one it acts as."""
    role: Role | None = None
    """What its issuer says it is in its own zone. A member's row says it better."""
    attempt: str | None = None
    """The token of the attempt the credential was made for, which need not be said again then."""
    is_local: bool = False
    """The credential is of this server's own making: a token of the local issuer, or an API key."""
    agent_since: int | None = None
    """Milliseconds: the registration of its agent that the credential was made for, as far as whoever made it knew."""
    issued_at: int | None = None
    """Milliseconds: the last moment at which it may have been made, with all that clocks may differ by; 0 where its
    issuer does not say. None: it is no token."""

    @property
    def bearer(self) -> Bearer | None:
        """Whom this credential speaks for, if it names anybody."""
        if self.session_id is None and self.agent_id is None:
            return None
        return Bearer(self.zone_id, self.session_id, self.agent_id)

    def may_act_for(self, application_id: str, power: str) -> bool:
        """Ownership: the application itself, one who was given that power over it, or the zone's
        administrator."""
        return (
            self.client_id == application_id
            or f"coordinator.{power}:{application_id}" in self.scopes
            or COORDINATOR_ADMIN in self.scopes
            or self.is_admin
        )


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
    is_on_socket: bool = False
    """Whether it came over the server's unix socket, which nobody but its own user can open."""

    @property
    def zone(self) -> str:
        return self.params["zone"]

    def link_to_next(self, cursor: str | None) -> list[tuple[str, str]]:
        """The `Link` header of a list that goes on."""
        if cursor is None:
            return []
        path, _, query = self.url.partition("?")
        kept = [part for part in query.split("&") if part and not part.startswith("cursor=")]
        return [("link", f'<{path}?{"&".join([*kept, "cursor=" + cursor])}>; rel="next"')]


class Reply(msgspec.Struct):
    """An answer that is more than 200 and a body. `body` None sends no content."""

    body: object = None
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()
    unsent: Callable[[], None] | None = None
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
    answer: object = None
    """The type of the answer's body, for OpenAPI."""
    streams: object = None
    """The type of each event, for OpenAPI, where the route answers with server-sent events to whoever asks for them."""
    status: int = 200
    waits: bool = False
    """It may take its time to answer, and stops when the client goes away."""
    description: str = ""
    refusals: tuple[str, ...] = ()
    """The codes a caller should be ready for, beyond those every route has."""
    tags: tuple[str, ...] = field(default=())
    may_be_known: bool = False
    """Whether a POST that makes something answers 200, without any key, where it is there already."""
    power: str | None = None
    """What the caller's role must allow, by the table in the rules of zones: every route in a workspace says it. The
    operation asks; this says it to the documentation, and to the test that holds one against the other."""
    body_max: int | None = None
    """Bytes its body may have; None: as many as every body."""

    @property
    def in_callers_zone(self) -> bool:
        return self.path.startswith(IN_CALLERS_ZONE)
