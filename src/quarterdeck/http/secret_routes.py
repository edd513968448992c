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
from quarterdeck.engine.secrets.rotation import Place, Rotation

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


class Rotated(msgspec.Struct, frozen=True):
    resealed: Annotated[int, Meta(description="values that are under the key that seals now")]
    unopened: Annotated[int, Meta(description="values that did not open, and stay as they are")]
    moved: Annotated[int, Meta(description="rows that were written meanwhile: another round looks at them")]
    looked: Annotated[int, Meta(description="rows that this step has looked at")]
    next_cursor: Annotated[str | None, Meta(description="where the next step goes on; null at the end")]


class Forgotten(msgspec.Struct, frozen=True):
    id: str


@dataclass(frozen=True, slots=True)
class SecretDesk:
    rotation: Rotation
    check_bearer: Callable[[Caller], Awaitable[None]]

    async def status(self, call: Call) -> SecretStatus:
        await self.check_bearer(call.caller)
        query = call.query
        assert isinstance(query, StatusQuery)
        step = await self.rotation.look(self._place(query.cursor))
        ring = self.rotation.safe.ring
        needed = await self.rotation.everywhere.read(key_check.names)
        return SecretStatus(ring.sealing_id, [*ring.ids], needed, dict(step.counts), step.looked, _cursor(step.next))

    async def rotate(self, call: Call) -> Rotated:
        await self.check_bearer(call.caller)
        body = call.body
        assert isinstance(body, RotateBody)
        step = await self.rotation.rotate(self._place(body.cursor))
        return Rotated(step.resealed, step.unopened, step.moved, step.looked, _cursor(step.next))

    async def forget(self, call: Call) -> Forgotten:
        await self.check_bearer(call.caller)
        key_id = call.params["id"]
        if key_id == self.rotation.safe.ring.sealing_id:
            raise Conflict("secret_key_seals", f"{key_id!r} is the key that this server seals with.")
        if not await self.rotation.engine.transact(lambda tx: key_check.forget(tx, key_id)):
            raise NotFound("secret_key_not_found", f"No server needs a key of the name {key_id!r}.")
        return Forgotten(key_id)

    def _place(self, cursor: str | None) -> Place | None:
        if cursor is None:
            return None
        told = paging.decode(LISTING, cursor).split(" ")
        place = Place(*told) if len(told) == len(Place._fields) else None
        if place is None or not self.rotation.is_place(place):
            raise Invalid("invalid_cursor", "This cursor was not given out by this route.", field="cursor")
        return place


def _cursor(place: Place | None) -> str | None:
    # Neither a table nor a path id holds a space.
    return None if place is None else paging.encode(LISTING, " ".join(place))


def routes(desk: SecretDesk) -> list[Route]:
    tags = ("secrets",)
    return [
        Route(
            "GET", "/secrets", desk.status, "Count what is sealed, by key", ADMIN, query=StatusQuery,
            answer=SecretStatus, refusals=("invalid_cursor",), tags=tags,
            description="A step at a time: add up the counts until `next_cursor` is null.",
        ),
        Route(
            "POST", "/secrets/rotate", desk.rotate, "Seal anew what older keys have sealed", ADMIN, body=RotateBody,
            answer=Rotated, refusals=("invalid_cursor",), tags=tags,
            description="A step at a time, until `next_cursor` is null. A step may be repeated.",
        ),
        Route(
            "DELETE", "/secrets/keys/{id}", desk.forget, "Let servers start without a key", ADMIN, answer=Forgotten,
            refusals=("secret_key_not_found", "secret_key_seals"), tags=tags,
            description="What is sealed with it all the same is shown as `***` by a server that lacks it.",
        ),
    ]  # fmt: skip
