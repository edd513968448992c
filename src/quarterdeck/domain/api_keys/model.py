"""Commands, rows and views of API keys. Only `NewKeyView` contains the secret."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import Bearer
from quarterdeck.core.clock import Millis
from quarterdeck.core.routing import PathId

KEYS_MAX = 1_000
"""Maximum live keys in one zone."""
SCOPES_MAX = 32
TTL_SECONDS_MAX = 3_650 * 86_400
"""Ten years. For longer, create a key that does not expire."""
# The scope-token of RFC 6749. In Python, `$` also matches before a final line feed, hence the lookahead.
Scope = Annotated[str, Meta(pattern=r"^[!#-\[\]-~]{1,128}$(?!\n)", description="one word without spaces")]


# -- commands ----------------------------------------------------------------------------------------------------


class CreateKeyBody(msgspec.Struct, frozen=True):
    application_id: Annotated[PathId, Meta(description="application that the key acts for")]
    name: (
        Annotated[str, Meta(min_length=1, max_length=200, description="display name; default: the application's id")]
        | None
    ) = None
    scopes: (
        Annotated[list[Scope], Meta(min_length=1, max_length=SCOPES_MAX, description="default: the lifecycle scope")]
        | None
    ) = None
    session_id: (
        Annotated[PathId, Meta(description="live session in the zone; the key is valid only while it is live")] | None
    ) = None
    ttl_seconds: (
        Annotated[int, Meta(ge=1, le=TTL_SECONDS_MAX, description="default: the key does not expire")] | None
    ) = None


class CreateKey(msgspec.Struct, frozen=True):
    """Create a key. Contains only the digest, not the secret."""

    id: str
    zone_id: str
    digest: str
    name: str
    application_id: str
    scopes: str
    """Separated by spaces, like the scope claim of a token."""
    actor: str
    session_id: str | None = None
    ttl_seconds: int | None = None
    bearer: Bearer | None = None
    trace: str | None = None


class RevokeKey(msgspec.Struct, frozen=True):
    zone_id: str
    id: str
    actor: str
    bearer: Bearer | None = None
    trace: str | None = None


# -- rows --------------------------------------------------------------------------------------------------------


class ApiKey(msgspec.Struct, frozen=True, array_like=True):
    """A row of `api_keys` without its digest, in the order of the `columns` line of `queries.sql`."""

    zone_id: str
    id: str
    name: str
    application_id: str
    scopes: str
    session_id: str | None
    created_by: str
    created_at: Millis
    expires_at: Millis | None
    revoked_at: Millis | None


# -- views -------------------------------------------------------------------------------------------------------


class KeyView(msgspec.Struct, frozen=True):
    id: str
    zone_id: str
    name: str
    application_id: str
    scopes: list[str]
    session_id: str | None
    status: Annotated[str, Meta(description="live, revoked or expired")]
    created_by: str
    created_at: str
    expires_at: str | None
    revoked_at: str | None


class NewKeyView(KeyView, frozen=True):
    """The only response that contains the secret."""

    key: Annotated[str, Meta(description="the key, shown only in this response; send it as X-API-Key")]
