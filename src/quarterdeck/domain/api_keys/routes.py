"""Routes for API keys."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from quarterdeck.core import api_key
from quarterdeck.core.caller import ADMIN
from quarterdeck.core.clock import Millis
from quarterdeck.core.ids import new_id
from quarterdeck.core.paging import Listing, Page, PageFilter, PageQuery
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.api_keys import operations, rules
from quarterdeck.domain.api_keys.model import ApiKey, CreateKey, CreateKeyBody, KeyView, NewKeyView, RevokeKey
from quarterdeck.engine.transaction import Engine, Transaction

LISTING = Listing[ApiKey]("keys")


@dataclass(frozen=True, slots=True)
class KeyHandlers:
    engine: Engine
    default_scopes: Sequence[str]
    """The scopes of a key that is created without `scopes`."""
    submit_create: Callable[[CreateKey], Awaitable[ApiKey]]
    submit_revoke: Callable[[RevokeKey], Awaitable[ApiKey]]

    async def create(self, call: Call[CreateKeyBody, None]) -> Reply[NewKeyView]:
        body = call.body
        key_id = new_id()
        key_text = api_key.format_key(call.zone_id, key_id, secrets.token_bytes(api_key.SECRET_BYTES))
        key = await self.submit_create(
            CreateKey(
                id=key_id,
                zone_id=call.zone_id,
                digest=api_key.digest(key_text.encode()),
                name=body.name or body.application_id,
                application_id=body.application_id,
                scopes=rules.normalize_scopes(body.scopes or self.default_scopes),
                actor=call.caller.subject,
                session_id=body.session_id,
                ttl_seconds=body.ttl_seconds,
                bearer=call.caller.bearer,
                trace=call.trace,
            )
        )
        # No proxy may cache the response, because it contains the secret.
        return Reply(rules.new_key_view(key, key_text), 201, [("cache-control", "no-store")])

    async def list_keys(self, call: Call[None, PageQuery]) -> Reply[Page[KeyView]]:
        filters = PageFilter(**LISTING.page_fields(call))

        async def read(tx: Transaction) -> tuple[list[ApiKey], Millis]:
            return await operations.list_keys(tx, filters), tx.now

        keys, now = await self.engine.read(read, zones=call.zones)
        return LISTING.reply(call, keys, lambda key: rules.view(key, now), Page)

    async def revoke(self, call: Call[None, None]) -> Reply[None]:
        caller = call.caller
        await self.submit_revoke(RevokeKey(call.zone_id, call.params["id"], caller.subject, caller.bearer, call.trace))
        return Reply(None, 204)


def routes(handlers: KeyHandlers) -> list[Route]:
    base = "/zones/{zone}/keys"
    tags = ("keys",)
    return [
        Route(
            "POST", base, handlers.create, "Create an API key", ADMIN, status=201, tags=tags,
            errors=("invalid_scope", "zone_not_found", "zone_ended", "agent_not_found", "key_limit_exceeded"),
            description="Only this response contains the key. The request is not idempotent: if the response is lost, "
            "revoke the key and create another.",
        ),
        Route(
            "GET", base, handlers.list_keys, "List API keys, newest first", ADMIN,
            errors=("zone_not_found", "invalid_cursor"), tags=tags,
        ),
        Route(
            "DELETE", base + "/{id}", handlers.revoke, "Revoke an API key", ADMIN, status=204,
            errors=("key_not_found",), tags=tags,
            description="A repeated request also returns 204. After the response, every replica refuses new requests "
            "that use the key.",
        ),
    ]  # fmt: skip
