"""Keys of secrets as routes: what is sealed with which, sealing it anew, and that a key is needed no more. For
administrators of the whole server: keys are for all zones. No route tells a secret, or a key."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core import paging
from quarterdeck.core.caller import ADMIN, Caller
from quarterdeck.core.errors import Conflict, Invalid, NotFound
from quarterdeck.core.routing import Call, Route
from quarterdeck.engine.secrets import key_check
from quarterdeck.engine.secrets.rotation import RotationPosition, SecretRotation

LISTING = "secrets"
Cursor = Annotated[str, Meta(max_length=512, description="`next_cursor` of the step before")]


class StatusQuery(msgspec.Struct, frozen=True):
    cursor: Cursor | None = None


class RotateBody(msgspec.Struct, frozen=True):
    cursor: Cursor | None = None


class SecretStatus(msgspec.Struct, frozen=True):
    sealing: Annotated[str, Meta(description="the id of the key that seals")]
    ring: Annotated[list[str], Meta(description="the ids of the keys that this server has")]
    needed: Annotated[list[str], Meta(description="the ids of the keys that no server starts without")]
    counts: Annotated[dict[str, int], Meta(description="sealed values of this step, by the id of their key")]
    looked: Annotated[int, Meta(description="rows that this step has looked at")]
    next_cursor: Annotated[str | None, Meta(description="where the next step goes on; null at the end")]


class RotateResult(msgspec.Struct, frozen=True):
    resealed: Annotated[int, Meta(description="values that are under the key that seals now")]
    unopened: Annotated[int, Meta(description="values that did not open, and stay as they are")]
    moved: Annotated[int, Meta(description="rows that were written meanwhile: another round looks at them")]
    looked: Annotated[int, Meta(description="rows that this step has looked at")]
    next_cursor: Annotated[str | None, Meta(description="where the next step goes on; null at the end")]


class RemovedSecretKey(msgspec.Struct, frozen=True):
    id: str


@dataclass(frozen=True, slots=True)
class SecretHandlers:
    rotation: SecretRotation
    check_bearer: Callable[[Caller], Awaitable[None]]

    async def status(self, call: Call) -> SecretStatus:
        await self.check_bearer(call.caller)
        query = call.query
        assert isinstance(query, StatusQuery)
        step = await self.rotation.count(self._decode_cursor(query.cursor))
        keyring = self.rotation.cipher.keyring
        needed = await self.rotation.cross_zone_engine.read(key_check.list_key_ids)
        return SecretStatus(
            keyring.encryption_key_id,
            [*keyring.key_ids],
            needed,
            dict(step.counts),
            step.rows_scanned,
            _encode_cursor(step.next),
        )

    async def rotate(self, call: Call) -> RotateResult:
        await self.check_bearer(call.caller)
        body = call.body
        assert isinstance(body, RotateBody)
        step = await self.rotation.rotate(self._decode_cursor(body.cursor))
        return RotateResult(
            step.reencrypted, step.undecryptable, step.changed_meanwhile, step.rows_scanned, _encode_cursor(step.next)
        )

    async def remove_key(self, call: Call) -> RemovedSecretKey:
        await self.check_bearer(call.caller)
        key_id = call.params["id"]
        if key_id == self.rotation.cipher.keyring.encryption_key_id:
            raise Conflict("secret_key_seals", f"{key_id!r} is the key that this server seals with.")
        if not await self.rotation.engine.transact(lambda tx: key_check.delete_key(tx, key_id)):
            raise NotFound("secret_key_not_found", f"No server needs a key of the name {key_id!r}.")
        return RemovedSecretKey(key_id)

    def _decode_cursor(self, cursor: str | None) -> RotationPosition | None:
        if cursor is None:
            return None
        parts = paging.decode(LISTING, cursor).split(" ")
        position = RotationPosition(*parts) if len(parts) == len(RotationPosition._fields) else None
        if position is None or not self.rotation.is_valid_position(position):
            raise Invalid("invalid_cursor", "This cursor was not given out by this route.", field="cursor")
        return position


def _encode_cursor(position: RotationPosition | None) -> str | None:
    # Neither a table nor a path id holds a space.
    return None if position is None else paging.encode(LISTING, " ".join(position))


def routes(handlers: SecretHandlers) -> list[Route]:
    tags = ("secrets",)
    return [
        Route(
            "GET", "/secrets", handlers.status, "Count what is sealed, by key", ADMIN, query=StatusQuery,
            response=SecretStatus, errors=("invalid_cursor",), tags=tags,
            description="A step at a time: add up the counts until `next_cursor` is null.",
        ),
        Route(
            "POST", "/secrets/rotate", handlers.rotate, "Seal anew what older keys have sealed", ADMIN, body=RotateBody,
            response=RotateResult, errors=("invalid_cursor",), tags=tags,
            description="A step at a time, until `next_cursor` is null. A step may be repeated.",
        ),
        Route(
            "DELETE", "/secrets/keys/{id}", handlers.remove_key, "Let servers start without a key", ADMIN, response=RemovedSecretKey,
            errors=("secret_key_not_found", "secret_key_seals"), tags=tags,
            description="What is sealed with it all the same is shown as `***` by a server that lacks it.",
        ),
    ]  # fmt: skip
