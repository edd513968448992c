"""Admin routes for the keys that encrypt secrets: count values by key, re-encrypt them, remove an old key.

These routes need the scope `quarterdeck.admin`, because all zones share the keys. No route returns a secret or a key.
"""

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
Cursor = Annotated[str, Meta(max_length=512, description="`next_cursor` of the previous response")]


class StatusQuery(msgspec.Struct, frozen=True):
    cursor: Cursor | None = None


class RotateBody(msgspec.Struct, frozen=True):
    cursor: Cursor | None = None


class SecretStatus(msgspec.Struct, frozen=True):
    sealing: Annotated[str, Meta(description="the id of the key that encrypts new values")]
    ring: Annotated[list[str], Meta(description="the ids of the keys that this server has")]
    needed: Annotated[list[str], Meta(description="the ids of the keys that every server needs to start")]
    counts: Annotated[dict[str, int], Meta(description="encrypted values found in this step, by the id of their key")]
    looked: Annotated[int, Meta(description="rows read in this step")]
    next_cursor: Annotated[str | None, Meta(description="`cursor` for the next step; null after the last step")]


class RotateResult(msgspec.Struct, frozen=True):
    resealed: Annotated[int, Meta(description="values that were encrypted again with the current key")]
    unopened: Annotated[int, Meta(description="values that could not be decrypted and are unchanged")]
    moved: Annotated[int, Meta(description="rows skipped because they changed meanwhile: run the rotation again")]
    looked: Annotated[int, Meta(description="rows read in this step")]
    next_cursor: Annotated[str | None, Meta(description="`cursor` for the next step; null after the last step")]


class RemovedSecretKey(msgspec.Struct, frozen=True):
    id: str


@dataclass(frozen=True, slots=True)
class SecretHandlers:
    rotation: SecretRotation
    check_bearer: Callable[[Caller], Awaitable[None]]

    async def status(self, call: Call[None, StatusQuery]) -> SecretStatus:
        await self.check_bearer(call.caller)
        step = await self.rotation.count(self._decode_cursor(call.query.cursor))
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

    async def rotate(self, call: Call[RotateBody, None]) -> RotateResult:
        await self.check_bearer(call.caller)
        step = await self.rotation.rotate(self._decode_cursor(call.body.cursor))
        return RotateResult(
            step.reencrypted, step.undecryptable, step.changed_meanwhile, step.rows_scanned, _encode_cursor(step.next)
        )

    async def remove_key(self, call: Call[None, None]) -> RemovedSecretKey:
        await self.check_bearer(call.caller)
        key_id = call.params["id"]
        if key_id == self.rotation.cipher.keyring.encryption_key_id:
            detail = f"Key {key_id!r} cannot be removed: this server encrypts with it."
            raise Conflict("secret_key_seals", detail)
        if not await self.rotation.engine.transact(lambda tx: key_check.delete_check(tx, key_id)):
            raise NotFound("secret_key_not_found", f"Key {key_id!r} is not in the list of needed keys.")
        return RemovedSecretKey(key_id)

    def _decode_cursor(self, cursor: str | None) -> RotationPosition | None:
        if cursor is None:
            return None
        parts = paging.decode(LISTING, cursor).split(" ")
        position = RotationPosition(*parts) if len(parts) == len(RotationPosition._fields) else None
        if position is None or not self.rotation.is_valid_position(position):
            raise Invalid("invalid_cursor", "`cursor` was not returned by this route.", field="cursor")
        return position


def _encode_cursor(position: RotationPosition | None) -> str | None:
    # Neither a table name nor a path id contains a space.
    return None if position is None else paging.encode(LISTING, " ".join(position))


def routes(handlers: SecretHandlers) -> list[Route]:
    tags = ("secrets",)
    return [
        Route(
            "GET", "/secrets", handlers.status, "Count encrypted values by key", ADMIN, errors=("invalid_cursor",),
            tags=tags,
            description="One step per request: repeat with `next_cursor` until it is null, and add up the counts.",
        ),
        Route(
            "POST", "/secrets/rotate", handlers.rotate, "Re-encrypt values that use older keys", ADMIN,
            errors=("invalid_cursor",), tags=tags,
            description="One step per request: repeat with `next_cursor` until it is null. Repeating a step is safe.",
        ),
        Route(
            "DELETE", "/secrets/keys/{id}", handlers.remove_key, "Remove a key from the list of needed keys", ADMIN,
            errors=("secret_key_not_found", "secret_key_seals"), tags=tags,
            description="Servers then start without this key. A server without the key shows values that are still "
            "encrypted with it as `***`.",
        ),
    ]  # fmt: skip
