"""The whole route table without a server behind it, for tests that read the table instead of calling it."""

from __future__ import annotations

from typing import NoReturn, cast

from quarterdeck.core.routing import Route
from quarterdeck.domain.api_keys import routes as keys
from quarterdeck.domain.delegations import routes as delegations
from quarterdeck.domain.services import routes as services
from quarterdeck.domain.sessions import operations, routes as sessions
from quarterdeck.domain.zones import routes as zones
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.transaction import Engine
from quarterdeck.http import event_routes, system_routes
from quarterdeck.http.event_stream import EventStreams
from quarterdeck.http.metrics import Metrics
from quarterdeck.store.interface import Store

NO_ENGINE = cast(Engine, None)
NO_STORE = cast(Store, None)
NO_STREAMS = cast(EventStreams, None)
FINISHER = cast(operations.CascadeRunner, None)
EXPLAINER = operations.Explainer(operations.Spawner(Limits()))


async def nobody(*_: object) -> NoReturn:
    raise AssertionError("nobody calls the handlers of this table")


def no_secrets(zone_id: str, service_id: str, number: int) -> NoReturn:
    raise AssertionError("nobody calls the handlers of this table")


def table() -> list[Route]:
    own = system_routes.SystemHandlers(NO_STORE, Metrics(), {}, "1.2.3", nobody)
    return [
        *zones.routes(zones.ZoneHandlers(NO_ENGINE, Limits(), nobody, nobody, nobody, nobody)),
        *sessions.routes(sessions.SessionHandlers(NO_ENGINE, nobody, nobody, nobody, FINISHER, EXPLAINER)),
        *event_routes.routes(event_routes.EventHandlers(NO_ENGINE, NO_STREAMS)),
        *services.routes(services.ServiceHandlers(NO_ENGINE, no_secrets, nobody, nobody, nobody, nobody, nobody)),
        *delegations.routes(delegations.DelegationHandlers(NO_ENGINE, nobody, nobody, nobody, nobody)),
        *keys.routes(keys.KeyHandlers(NO_ENGINE, ("agent:lifecycle",), nobody, nobody)),
        *system_routes.routes(own, None),
    ]
