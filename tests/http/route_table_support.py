"""The full route table without a server, for tests that read the table and call no handler."""

from __future__ import annotations

from typing import Any, NoReturn, cast

from quarterdeck.core.routing import AnyCall, Call, Handler, Route
from quarterdeck.domain.api_keys import routes as keys
from quarterdeck.domain.delegations import routes as delegations
from quarterdeck.domain.services import routes as services
from quarterdeck.domain.sessions import routes as sessions
from quarterdeck.domain.sessions.operations.explain import Explainer
from quarterdeck.domain.sessions.operations.spawn import Spawner
from quarterdeck.domain.sessions.operations.terminate import CascadeRunner
from quarterdeck.domain.zones import routes as zones
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.transaction import Engine
from quarterdeck.http import event_routes, system_routes
from quarterdeck.http.event_stream import EventStreams
from quarterdeck.http.metrics import Metrics
from quarterdeck.store.interface import Store

NO_ENGINE = cast(Engine, None)
NO_STORE = cast(Store, None)
NO_EVENT_STREAMS = cast(EventStreams, None)
NO_CASCADE_RUNNER = cast(CascadeRunner, None)
EXPLAINER = Explainer(Spawner(Limits()))


async def unreachable_handler(*_: object) -> NoReturn:
    raise AssertionError("the handlers of this table are never called")


def build_handler(body: object = None, query: object = None, response: object = None) -> Handler:
    """A handler with these types in its signature."""

    async def handler(call: AnyCall) -> NoReturn:
        await unreachable_handler()

    handler.__annotations__ = {"call": cast(Any, Call)[body, query], "return": response}
    return handler


def no_secrets(zone_id: str, service_id: str, number: int) -> NoReturn:
    raise AssertionError("the handlers of this table are never called")


def build_routes() -> list[Route]:
    system_handlers = system_routes.SystemHandlers(NO_STORE, Metrics(), {}, "1.2.3", unreachable_handler)
    return [
        *zones.routes(
            zones.ZoneHandlers(
                NO_ENGINE, Limits(), unreachable_handler, unreachable_handler, unreachable_handler, unreachable_handler
            )
        ),
        *sessions.routes(
            sessions.SessionHandlers(
                NO_ENGINE, unreachable_handler, unreachable_handler, unreachable_handler, NO_CASCADE_RUNNER, EXPLAINER
            )
        ),
        *event_routes.routes(event_routes.EventHandlers(NO_ENGINE, NO_EVENT_STREAMS)),
        *services.routes(
            services.ServiceHandlers(
                NO_ENGINE,
                no_secrets,
                unreachable_handler,
                unreachable_handler,
                unreachable_handler,
                unreachable_handler,
                unreachable_handler,
            )
        ),
        *delegations.routes(
            delegations.DelegationHandlers(
                NO_ENGINE, unreachable_handler, unreachable_handler, unreachable_handler, unreachable_handler
            )
        ),
        *keys.routes(keys.KeyHandlers(NO_ENGINE, ("agent:lifecycle",), unreachable_handler, unreachable_handler)),
        *system_routes.routes(system_handlers, None),
    ]
