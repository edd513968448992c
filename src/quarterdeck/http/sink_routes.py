"""Sinks as routes: where they stand, what waits, what was given up, and to have that tried again. For administrators of
the whole server: a sink tells of every zone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import ADMIN, Caller
from quarterdeck.core.errors import Invalid
from quarterdeck.core.routing import Call, Route
from quarterdeck.engine.leader_loop import Duty
from quarterdeck.engine.sinks import admin
from quarterdeck.engine.sinks.admin import SinkDetail, SinkView
from quarterdeck.engine.transaction import Engine, Tx

ABOUT = "What was given up is tried again as if it were new: that of one position, or all of it."


class SinkList(msgspec.Struct, frozen=True):
    items: list[SinkView]


class RequeueBody(msgspec.Struct, frozen=True):
    pos: Annotated[int, Meta(ge=1, le=2**63 - 1, description="of the event whose entries are meant")] | None = None
    all: Annotated[bool, Meta(description="everything that was given up")] = False


class Requeued(msgspec.Struct, frozen=True):
    requeued: Annotated[int, Meta(description="entries that are tried again")]


@dataclass(frozen=True, slots=True)
class SinkDesk:
    everywhere: Engine
    duties: Mapping[str, Duty]
    """By name: the sinks that this server is told of."""
    check_bearer: Callable[[Caller], Awaitable[None]]
    wake: Callable[[], None]
    """Has those who run sinks look, here and elsewhere."""

    async def list_sinks(self, call: Call) -> SinkList:
        await self.check_bearer(call.caller)

        async def read(tx: Tx) -> list[SinkView]:
            return [await self._view(tx, name) for name in await admin.names(tx)]

        return SinkList(await self.everywhere.read(read))

    async def get_sink(self, call: Call) -> SinkDetail:
        await self.check_bearer(call.caller)
        name = call.params["id"]

        async def read(tx: Tx) -> SinkDetail:
            shown = msgspec.structs.asdict(await self._view(tx, name))
            return SinkDetail(**shown, entries=await admin.entries(tx, name))

        return await self.everywhere.read(read)

    async def requeue(self, call: Call) -> Requeued:
        await self.check_bearer(call.caller)
        body = call.body
        assert isinstance(body, RequeueBody)
        if (body.pos is None) != body.all:
            raise Invalid("invalid_body", "Say which: `pos`, or `all`: true.", field="pos")
        name = call.params["id"]
        count = await self.everywhere.transact(lambda tx: admin.requeue(tx, name, body.pos))
        self.wake()
        return Requeued(count)

    async def _view(self, tx: Tx, name: str) -> SinkView:
        seen = await admin.view(tx, name)
        duty = self.duties.get(name)
        if duty is None:
            return seen
        return msgspec.structs.replace(seen, is_configured=True, error=duty.error)


def routes(desk: SinkDesk) -> list[Route]:
    tags = ("sinks",)
    missing = ("sink_not_found",)
    return [
        Route("GET", "/sinks", desk.list_sinks, "List sinks", ADMIN, answer=SinkList, tags=tags),
        Route(
            "GET", "/sinks/{id}", desk.get_sink, "Show a sink and what of it waits or was given up", ADMIN,
            answer=SinkDetail, refusals=missing, tags=tags,
        ),
        Route(
            "POST", "/sinks/{id}/requeue", desk.requeue, "Try again what was given up", ADMIN, body=RequeueBody,
            answer=Requeued, refusals=missing, tags=tags, description=ABOUT,
        ),
    ]  # fmt: skip
