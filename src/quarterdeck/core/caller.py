"""The authenticated sender of a request, roles, and the scopes of credentials."""

from __future__ import annotations

from enum import StrEnum

import msgspec

LIFECYCLE = "agent:lifecycle"
"""The scope of the agent API. AGENT_COORDINATOR_SCOPE may give it another name on the wire."""
ADMIN = "quarterdeck.admin"
"""Access to all zones. Accepted only from the local issuer or QD_ADMIN_ISSUER."""
METRICS = "quarterdeck.metrics"
"""Read the metrics, and nothing else. A server that listens only on loopback does not require it."""
COORDINATOR_ADMIN = "coordinator.admin"
"""Act for every application of the caller's own zone."""
FLEET_EXEC = "fleet:exec"
"""Create, close and type into the panes of fleets. Accepted over the Unix socket only, which only the user who owns the
panes can open."""


class Role(StrEnum):
    """A subject's role in a workspace, which is a zone. `domain/zones/rules/roles.py` has the permissions of each."""

    OWNER = "OWNER"
    ADMIN = "ADMIN"
    MEMBER = "MEMBER"
    AGENT = "AGENT"


class Bearer(msgspec.Struct, frozen=True):
    """The session or agent that a credential acts for.

    The credential is valid only while its bearer is live. Each operation checks that in its transaction.
    """

    zone_id: str
    """The zone of the credential. An administrator may act on another zone."""
    session_id: str | None
    """A session that must exist and be live."""
    agent_id: str | None = None
    """An agent that must not have been terminated, if it is registered."""
    agent_since: int | None = None
    """As in `Caller`."""
    issued_at: int | None = None
    """As in `Caller`."""


class Caller(msgspec.Struct, frozen=True):
    """The sender of a request, as stated by a verified credential."""

    subject: str
    client_id: str
    zone_id: str
    scopes: frozenset[str]
    sid: str | None = None
    session_id: str | None = None
    """The session that the credential acts for. The credential is valid only while that session is live."""
    delegation_edge_id: str | None = None
    is_admin: bool = False
    """Has the scope ADMIN from an issuer that may grant it."""
    agent_id: str | None = None
    """The agent that the credential acts for, and the only one it may act as."""
    role: Role | None = None
    """The role claim of the issuer, for the credential's own zone. A stored role assignment takes precedence."""
    attempt: str | None = None
    """The token of the attempt that the credential was issued for. Requests need not repeat it."""
    is_local: bool = False
    """Issued by this server: a token of the local issuer, or an API key."""
    agent_since: int | None = None
    """When the agent of a token was registered, in milliseconds since 1970. None if the token does not contain it."""
    issued_at: int | None = None
    """The latest time at which a token can have been issued, in milliseconds since 1970. 0 if the token has no `iat`;
    None if the credential is not a token."""

    @property
    def bearer(self) -> Bearer | None:
        """The session or agent that this credential acts for, if it names one."""
        if self.session_id is None and self.agent_id is None:
            return None
        return Bearer(self.zone_id, self.session_id, self.agent_id, self.agent_since, self.issued_at)

    def can_act_for(self, application_id: str, action: str) -> bool:
        """Whether the caller is the application, has the scope for this action on it, or is an administrator."""
        return (
            self.client_id == application_id
            or f"coordinator.{action}:{application_id}" in self.scopes
            or COORDINATOR_ADMIN in self.scopes
            or self.is_admin
        )
