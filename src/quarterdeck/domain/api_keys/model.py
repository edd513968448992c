"""What is asked for, what is stored, and what is shown of keys: three different types, one of which has the secret."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import Bearer
from quarterdeck.core.clock import Millis
from quarterdeck.core.routing import PathId

KEYS_MAX = 1_000
"""Live keys in one zone."""
SCOPES_MAX = 32
TTL_MAX = 3_650 * 86_400
"""Seconds: ten years. One who wants a key for longer wants one that does not expire."""
# RFC 6749's scope-token. In Python `$` also stands before a line feed at the end.
Scope = Annotated[str, Meta(pattern=r"^[!#-\[\]-~]{1,128}$(?!\n)", description="one word without spaces")]


# -- asked for ---------------------------------------------------------------------------------------------------


class CreateKeyBody(msgspec.Struct, frozen=True):
    application_id: Annotated[PathId, Meta(description="the application it speaks for")]
    name: (
        Annotated[str, Meta(min_length=1, max_length=200, description="for people; default: the application's id")]
        | None
    ) = None
    scopes: (
        Annotated[
            list[Scope], Meta(min_length=1, max_length=SCOPES_MAX, description="default: the scope of the agent plane")
        ]
        | None
    ) = None
    session_id: (
        Annotated[PathId, Meta(description="a live session of the zone; the key is good while it lives")] | None
    ) = None
    ttl_seconds: Annotated[int, Meta(ge=1, le=TTL_MAX, description="default: it does not expire")] | None = None


class CreateKey(msgspec.Struct, frozen=True):
    """A key on its way through the lane. The secret has been left behind: only its digest goes on."""

    id: str
    zone_id: str
    digest: str
    name: str
    application_id: str
    scopes: str
    """Separated by spaces, as in a token."""
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


class KeyFilter(msgspec.Struct, frozen=True):
    """Which keys of a zone are wanted, newest first."""

    zone_id: str
    limit: int
    before: str | None = None
    bearer: Bearer | None = None


# -- stored ------------------------------------------------------------------------------------------------------


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


# -- shown -------------------------------------------------------------------------------------------------------


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
    """The one answer that holds the secret."""

    key: Annotated[str, Meta(description="the key itself, shown this once: send it as X-API-Key")]


class KeyList(msgspec.Struct, frozen=True):
    items: list[KeyView]
    next_cursor: str | None


class ListKeysQuery(msgspec.Struct, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=500)] = 100
    cursor: str | None = None
