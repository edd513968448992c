"""Admin routes for sinks: show their positions and their pending and failed entries, and requeue failed entries.

These routes need the scope `quarterdeck.admin`, because a sink delivers the events of all zones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.caller import ADMIN, Caller
from quarterdeck.core.errors import Invalid
from quarterdeck.core.routing import Call, Route
from quarterdeck.engine.leader_loop import LeaderLoop
from quarterdeck.engine.sinks import admin
from quarterdeck.engine.sinks.admin import SinkDetail, SinkView
from quarterdeck.engine.transaction import Engine, Transaction

REQUEUE_DESCRIPTION = "Delivers failed entries again with new attempts: the entries of one event, or all of them."


class SinkList(msgspec.Struct, frozen=True):
    items: list[SinkView]


class RequeueBody(msgspec.Struct, frozen=True):
    pos: (
        Annotated[int, Meta(ge=1, le=2**63 - 1, description="position of the event whose failed entries are requeued")]
        | None
    ) = None
    all: Annotated[bool, Meta(description="requeue all failed entries")] = False


class RequeueResult(msgspec.Struct, frozen=True):
    requeued: Annotated[int, Meta(description="number of requeued entries")]


@dataclass(frozen=True, slots=True)
class SinkHandlers:
    cross_zone_engine: Engine
    leader_loops: Mapping[str, LeaderLoop]
    """The leader loops of the sinks in this server's configuration, by sink name."""
    check_bearer: Callable[[Caller], Awaitable[None]]
    wake_sinks: Callable[[], None]
    """Wakes the leader loops of sinks in this process and in others."""

    async def list_sinks(self, call: Call[None, None]) -> SinkList:
        await self.check_bearer(call.caller)

        async def read(tx: Transaction) -> list[SinkView]:
            return [await self._sink_view(tx, name) for name in await admin.list_names(tx)]

        return SinkList(await self.cross_zone_engine.read(read))

    async def get_sink(self, call: Call[None, None]) -> SinkDetail:
        await self.check_bearer(call.caller)
        name = call.params["id"]

        async def read(tx: Transaction) -> SinkDetail:
            view = msgspec.structs.asdict(await self._sink_view(tx, name))
            return SinkDetail(**view, entries=await admin.load_entries(tx, name))

        return await self.cross_zone_engine.read(read)

    async def requeue(self, call: Call[RequeueBody, None]) -> RequeueResult:
        await self.check_bearer(call.caller)
        body = call.body
        if (body.pos is None) != body.all:
            raise Invalid("invalid_body", "Send either `pos` or `all`: true.", field="pos")
        name = call.params["id"]
        count = await self.cross_zone_engine.transact(lambda tx: admin.requeue(tx, name, body.pos))
        self.wake_sinks()
        return RequeueResult(count)

    async def _sink_view(self, tx: Transaction, name: str) -> SinkView:
        view = await admin.load_view(tx, name)
        leader_loop = self.leader_loops.get(name)
        if leader_loop is None:
            return view
        return msgspec.structs.replace(view, is_configured=True, error=leader_loop.error)


def routes(handlers: SinkHandlers) -> list[Route]:
    tags = ("sinks",)
    missing = ("sink_not_found",)
    return [
        Route("GET", "/sinks", handlers.list_sinks, "List sinks", ADMIN, tags=tags),
        Route(
            "GET", "/sinks/{id}", handlers.get_sink, "Show a sink with its pending and failed entries", ADMIN,
            errors=missing, tags=tags,
        ),
        Route(
            "POST", "/sinks/{id}/requeue", handlers.requeue, "Requeue failed entries", ADMIN, errors=missing, tags=tags,
            description=REQUEUE_DESCRIPTION,
        ),
    ]  # fmt: skip
