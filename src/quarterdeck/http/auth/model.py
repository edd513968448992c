"""The data types of this package: its settings, and the contents of a token from the local issuer."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import LIFECYCLE, Role


class AuthSettings(msgspec.Struct, frozen=True):
    """Authentication settings. Only `settings.py` reads them from the environment."""

    issuer_url: (
        Annotated[str, Meta(description="name of the external issuer (iss and aud); if unset, none is trusted")] | None
    ) = None
    sts_url: (
        Annotated[str, Meta(description="where to fetch the keys of the external issuer, if not from its name")] | None
    ) = None
    admin_issuer: (
        Annotated[
            str, Meta(description="issuer, besides the local one, whose tokens may have the scope `quarterdeck.admin`")
        ]
        | None
    ) = None
    lifecycle_scope: Annotated[str, Meta(description="name that tokens use for the scope of agents and clients")] = (
        LIFECYCLE
    )
    leeway_seconds: Annotated[
        int, Meta(ge=0, le=300, description="maximum difference between the clocks of an issuer and of this server")
    ] = 5
    token_cache_max: Annotated[int, Meta(ge=0, le=10_000_000, description="maximum cached tokens")] = 10_000
    jwks_cache_max: Annotated[
        int, Meta(ge=1, le=100_000, description="maximum cached key sets (one per issuer and zone)")
    ] = 256
    jwks_fresh_seconds: Annotated[
        float, Meta(ge=0, le=86_400, description="how long fetched keys are used before they are fetched again")
    ] = 600
    jwks_stale_seconds: Annotated[
        float, Meta(ge=0, le=86_400, description="how long fetched keys are used while the issuer cannot be reached")
    ] = 3600
    jwks_refetch_seconds: Annotated[
        float, Meta(ge=0, le=3_600, description="minimum time between two fetches of one URL, whatever the reason")
    ] = 10
    jwks_timeout_seconds: Annotated[float, Meta(gt=0, le=60, description="timeout of one fetch of keys")] = 3


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
