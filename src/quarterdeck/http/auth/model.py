"""The plain data of this package: what is configured, and what a token of the local issuer shall say."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import LIFECYCLE, Role


class AuthSettings(msgspec.Struct, frozen=True):
    """How to tell callers apart. Read from the environment by `settings.py` alone."""

    issuer_url: str | None = None
    """ISSUER_URL: the external issuer's name, both iss and aud. None: the local issuer is the only one."""
    sts_url: str | None = None
    """STS_URL: where the external issuer's keys are fetched instead. Means nothing without ISSUER_URL."""
    admin_issuer: str | None = None
    """QD_ADMIN_ISSUER: the issuer beside the local one whose quarterdeck.admin is honoured."""
    lifecycle_scope: str = LIFECYCLE
    """AGENT_COORDINATOR_SCOPE: what tokens call the scope of the agent plane."""
    leeway_seconds: Annotated[int, Meta(ge=0, le=300)] = 5
    """How far the issuer's clock and ours may differ."""
    token_cache_max: Annotated[int, Meta(ge=0, le=10_000_000)] = 10_000
    jwks_cache_max: Annotated[int, Meta(ge=1, le=100_000)] = 256
    """JWKS_CACHE_MAX: how many key sets (issuer and zone) are kept."""
    jwks_fresh_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 600
    jwks_stale_seconds: Annotated[float, Meta(ge=0, le=86_400)] = 3600
    """For how long fetched keys may be used while the issuer cannot be reached."""
    jwks_refetch_seconds: Annotated[float, Meta(ge=0, le=3_600)] = 10
    """One URL is asked at most once in this time, whatever the reason."""
    jwks_timeout_seconds: Annotated[float, Meta(gt=0, le=60)] = 3


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """What a token of the local issuer shall say of its bearer."""

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
    """The token of the attempt it is made for."""
    agent_since: int | None = None
    """The registration of the agent it is made for: when that was, in milliseconds."""
