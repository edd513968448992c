"""The data types of this package: its settings, and the contents of a token from the local issuer."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import LIFECYCLE, Role


class AuthSettings(msgspec.Struct, frozen=True):
    """Authentication settings. Only `settings.py` reads them from the environment."""

    issuer_url: str | None = None
    """ISSUER_URL: the external issuer's name (iss and aud). If None, only the other two issuers are trusted."""
    sts_url: str | None = None
    """STS_URL: where to fetch the external issuer's keys, if not from ISSUER_URL. Ignored without ISSUER_URL."""
    admin_issuer: str | None = None
    """QD_ADMIN_ISSUER: the issuer, besides the local one, that may grant quarterdeck.admin."""
    lifecycle_scope: str = LIFECYCLE
    """AGENT_COORDINATOR_SCOPE: the name that tokens use for the scope of agents and clients."""
    leeway_seconds: Annotated[int, Meta(ge=0, le=300)] = 5
    """How far the issuer's clock and this server's clock may differ."""
    token_cache_max: Annotated[int, Meta(ge=0, le=10_000_000)] = 10_000
    jwks_cache_max: Annotated[int, Meta(ge=1, le=100_000)] = 256
    """JWKS_CACHE_MAX: how many key sets (one per issuer and zone) are cached."""
    jwks_fresh_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 600
    jwks_stale_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 3600
    """How long fetched keys may be used while the issuer cannot be reached."""
    jwks_refetch_seconds: Annotated[float, Meta(ge=0, le=3_600)] = 10
    """The minimum time between two fetches of one URL, whatever the reason."""
    jwks_timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 3


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a token from the local issuer."""

    zone_id: str
    client_id: str
    subject: str
    scopes: tuple[str, ...] = ()
    sid: str | None = None
    session_id: str | None = None
    agent_id: str | None = None
    delegation_edge_id: str | None = None
    role: Role | None = None
    attempt: str | None = None
    """The attempt token, if the token is issued for one attempt."""
    agent_since: int | None = None
    """When the agent was registered, in milliseconds. Identifies the registration that the token was issued for."""
