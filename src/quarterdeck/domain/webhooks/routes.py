"""The route table of webhooks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec import UNSET

from quarterdeck.core import idempotency, paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.ids import new_id
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.core.webhook_signing import Secrets
from quarterdeck.domain.webhooks import operations, rules
from quarterdeck.domain.webhooks.model import (
    Change,
    ChangeBody,
    Changed,
    Command,
    Create,
    CreateBody,
    DeliveriesQuery,
    DeliveryFilter,
    DeliveryList,
    DeliveryView,
    Endpoint,
    EndpointFilter,
    EndpointList,
    EndpointView,
    Remove,
    Replay,
    Rotate,
    Trial,
)
from quarterdeck.domain.webhooks.rules.views import delivery_view, endpoint_view
from quarterdeck.engine.transaction import Engine

LISTING = "webhook-deliveries"
READ, CHANGE = "webhooks.read", "webhooks.change"


@dataclass(frozen=True, slots=True)
class WebhookDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    secrets: Secrets
    submit: Callable[[Command], Awaitable[Changed]]

    async def create(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, CreateBody)
        key = idempotency.one_key(call.idempotency_key, None)
        ask = Create(
            zone_id=call.zone,
            id=new_id(),
            caller=call.caller,
            trace=call.trace,
            url=body.url,
            types=rules.asked_types(body.types),
            description=body.description,
            key=key,
            digest="" if key is None else idempotency.digest(body),
        )
        done = await self.submit(ask)
        return self._with_secret(done, 200 if done.is_known else 201)

    async def list_all(self, call: Call) -> EndpointList:
        return EndpointList([endpoint_view(row) for row in await self._endpoints(call, None)])

    async def show(self, call: Call) -> EndpointView:
        [row] = await self._endpoints(call, call.params["id"])
        return endpoint_view(row)

    async def change(self, call: Call) -> EndpointView:
        body = call.body
        assert isinstance(body, ChangeBody)
        ask = Change(
            zone_id=call.zone,
            id=call.params["id"],
            caller=call.caller,
            trace=call.trace,
            url=body.url,
            description=body.description,
            types=UNSET if body.types is UNSET else rules.asked_types(body.types),
            enabled=body.enabled,
        )
        return endpoint_view((await self.submit(ask)).endpoint)

    async def rotate(self, call: Call) -> Reply:
        ask = Rotate(zone_id=call.zone, id=call.params["id"], caller=call.caller, trace=call.trace)
        return self._with_secret(await self.submit(ask), 200)

    async def remove(self, call: Call) -> Reply:
        await self.submit(Remove(zone_id=call.zone, id=call.params["id"], caller=call.caller, trace=call.trace))
        return Reply(None, 204)

    async def test(self, call: Call) -> Reply:
        ask = Trial(zone_id=call.zone, id=call.params["id"], caller=call.caller, trace=call.trace, delivery_id=new_id())
        return _queued(await self.submit(ask))

    async def replay(self, call: Call) -> Reply:
        ask = Replay(
            zone_id=call.zone,
            id=call.params["id"],
            caller=call.caller,
            trace=call.trace,
            delivery_id=call.params["delivery"],
        )
        return _queued(await self.submit(ask))

    async def list_deliveries(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, DeliveriesQuery)
        before = paging.decode(LISTING, query.cursor) if query.cursor else None
        wanted = DeliveryFilter(call.zone, call.params["id"], call.caller, query.limit + 1, before, query.status)
        rows = await self.engine.read(lambda tx: operations.deliveries(tx, wanted), zones=_zones(call))
        shown, last = paging.clip([row.id for row in rows], query.limit)
        cursor = paging.encode(LISTING, last) if last else None
        body = DeliveryList([delivery_view(row) for row in rows[:shown]], cursor)
        return Reply(body, 200, call.link_to_next(cursor))

    async def _endpoints(self, call: Call, endpoint_id: str | None) -> list[Endpoint]:
        wanted = EndpointFilter(call.zone, call.caller, endpoint_id)
        return await self.engine.read(lambda tx: operations.endpoints(tx, wanted), zones=_zones(call))

    def _with_secret(self, done: Changed, status: int) -> Reply:
        row = done.endpoint
        secret = self.secrets(*row.ref, row.secret_number) if done.shows_secret else UNSET
        # Nobody between the two ends may keep the one answer that holds a secret.
        return Reply(endpoint_view(row, secret), status, [("cache-control", "no-store")])


def _zones(call: Call) -> set[str]:
    """Behind the wall: the zone that is looked at, and the zone of the caller's own session."""
    return {call.zone, call.caller.zone_id}


def _queued(done: Changed) -> Reply:
    assert done.delivery is not None  # what was asked for is one
    return Reply(delivery_view(done.delivery), 202)


CREATING = (
    "The answer holds the secret that deliveries are signed with (Standard Webhooks), this once; if it was lost, "
    "rotate it, or repeat the request with its Idempotency-Key. It hears of what happens from now on."
)
CHANGING = (
    "What is said replaces what was there. A disabled webhook is enabled again by `enabled: true`, and then hears of "
    "what happens from then on; what had waited when it was disabled has failed, and can be replayed."
)
ROTATING = "The answer holds the new secret, this once. For a day the one before it still signs, beside it."
REPLAYING = (
    "The same delivery, with the same `webhook-id`, as if it were new: one that has failed, one that was delivered, or "
    "one that waits for its next attempt."
)


def routes(desk: WebhookDesk) -> list[Route]:
    base, one = "/api/v1/webhooks", "/api/v1/webhooks/{id}"
    tags, missing = ("webhooks",), ("webhook_not_found",)
    bad = ("invalid_webhook_url", "invalid_webhook_type")
    ended = (*missing, "zone_ended")
    return [
        Route(
            "POST", base, desk.create, "Have an endpoint told what happens", LIFECYCLE, body=CreateBody,
            answer=EndpointView, status=201, tags=tags, description=CREATING, power=CHANGE,
            refusals=(*bad, "zone_ended", "webhook_limit_exceeded", "idempotency_key_conflict"),
        ),
        Route(
            "GET", base, desk.list_all, "List webhooks, newest first", LIFECYCLE, answer=EndpointList, tags=tags,
            power=READ,
        ),
        Route(
            "GET", one, desk.show, "Show a webhook", LIFECYCLE, answer=EndpointView, tags=tags, refusals=missing,
            power=READ,
        ),
        Route(
            "PATCH", one, desk.change, "Change a webhook", LIFECYCLE, body=ChangeBody, answer=EndpointView, tags=tags,
            refusals=(*ended, *bad), description=CHANGING, power=CHANGE,
        ),
        Route(
            "DELETE", one, desk.remove, "Remove a webhook", LIFECYCLE, status=204, tags=tags, refusals=ended,
            power=CHANGE, description="What still waits for it is not sent any more.",
        ),
        Route(
            "POST", f"{one}/rotate-secret", desk.rotate, "Sign with another secret", LIFECYCLE, answer=EndpointView,
            tags=tags, refusals=ended, description=ROTATING, power=CHANGE,
        ),
        Route(
            "POST", f"{one}/test", desk.test, "Send a webhook.test", LIFECYCLE, answer=DeliveryView, status=202,
            tags=tags, refusals=(*ended, "webhook_disabled"), power=CHANGE,
        ),
        Route(
            "GET", f"{one}/deliveries", desk.list_deliveries, "List what was sent, newest first", LIFECYCLE,
            query=DeliveriesQuery, answer=DeliveryList, tags=tags, refusals=(*missing, "invalid_cursor"), power=READ,
        ),
        Route(
            "POST", one + "/deliveries/{delivery}/replay", desk.replay, "Send a delivery again", LIFECYCLE,
            answer=DeliveryView, status=202, tags=tags, description=REPLAYING, power=CHANGE,
            refusals=(*ended, "delivery_not_found", "webhook_disabled"),
        ),
    ]  # fmt: skip
