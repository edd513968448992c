"""Routes read the types of body, query and response from the signatures of their handlers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from quarterdeck.core.caller import Caller
from quarterdeck.core.command import Command
from quarterdeck.core.paging import Page
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.http.dispatcher import RawBody
from quarterdeck.http.stream_limits import Stream


class ThingBody(msgspec.Struct):
    name: str


class ThingQuery(msgspec.Struct):
    all: bool = False


class ThingView(msgspec.Struct):
    id: str


class OtherView(msgspec.Struct):
    id: str


class ThingHandlers:
    async def create(self, call: Call[ThingBody, ThingQuery]) -> Reply[ThingView]:
        raise NotImplementedError

    async def show(self, call: Call[None, None]) -> ThingView:
        raise NotImplementedError

    async def show_any(self, call: AnyCall) -> ThingView | OtherView:
        raise NotImplementedError

    async def list_things(self, call: Call[None, ThingQuery]) -> Reply[Page[ThingView]]:
        raise NotImplementedError

    async def remove(self, call: Call[None, None]) -> Reply[None]:
        raise NotImplementedError

    async def remove_with_receipt(self, call: Call[None, ThingQuery]) -> Reply[ThingView | None]:
        raise NotImplementedError

    async def follow(self, call: Call[None, None]) -> ThingView | Stream:
        raise NotImplementedError

    async def render(self, call: Call[None, None]) -> Reply[RawBody]:
        raise NotImplementedError


THINGS = ThingHandlers()


def _route(handler: Callable[..., Any], method: str = "POST") -> Route:
    return Route(method, "/things", handler, "", None)


@pytest.mark.parametrize(
    ("handler", "body", "query", "response"),
    [
        (THINGS.create, ThingBody, ThingQuery, ThingView),
        (THINGS.show, None, None, ThingView),
        (THINGS.show_any, None, None, ThingView | OtherView),
        (THINGS.list_things, None, ThingQuery, Page[ThingView]),
        (THINGS.remove, None, None, None),
        (THINGS.remove_with_receipt, None, ThingQuery, ThingView),
        (THINGS.follow, None, None, ThingView),
        (THINGS.render, None, None, None),
    ],
)
def test_route_takes_its_types_from_the_signature_of_its_handler(
    handler: Callable[..., Any], body: object, query: object, response: object
) -> None:
    route = _route(handler)
    assert (route.body, route.query, route.response) == (body, query, response)


async def _without_annotations(call):  # type: ignore[no-untyped-def]  # missing on purpose
    raise NotImplementedError


async def _without_arguments_of_call(call: Call) -> ThingView:  # type: ignore[type-arg]  # missing on purpose
    raise NotImplementedError


async def _without_response(call: Call[None, None]):  # type: ignore[no-untyped-def]  # missing on purpose
    raise NotImplementedError


async def _without_call() -> ThingView:
    raise NotImplementedError


@pytest.mark.parametrize(
    "handler",
    [_without_annotations, _without_arguments_of_call, _without_response, _without_call, partial(THINGS.show)],
)
def test_handler_without_annotations_is_refused_at_start(handler: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"^POST /things: annotate the handler .* as `\(call: Call\[Body, Query\]\)"):
        _route(handler)


def test_get_route_with_a_body_is_refused_at_start() -> None:
    with pytest.raises(TypeError, match=r"^GET /things: a GET request has no body, but the handler takes .*ThingBody"):
        _route(THINGS.create, "GET")


def test_call_gives_commands_their_zone_caller_and_trace() -> None:
    caller = Caller("alice", "app", "home", frozenset())
    call = Call(caller, {"zone": "other"}, None, None, trace="t")
    assert Command(**call.caller_fields) == Command(zone_id="other", caller=caller, trace="t")
    assert call.zones == {"other", "home"}
