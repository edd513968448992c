"""Who sends a request: the verified caller, its role, and the scopes that credentials carry."""

from __future__ import annotations

from enum import StrEnum

import msgspec

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

    def can_act_for(self, application_id: str, permission: str) -> bool:
        """Ownership: the application itself, one who was given that power over it, or the zone's
        administrator."""
        return (
            self.client_id == application_id
            or f"coordinator.{permission}:{application_id}" in self.scopes
            or COORDINATOR_ADMIN in self.scopes
            or self.is_admin
        )
