"""The whole route table without a server behind it, for tests that read the table instead of calling it."""

from __future__ import annotations

from typing import NoReturn, cast

from quarterdeck.core.wire import Route
from quarterdeck.domain.sessions import routes as sessions
from quarterdeck.domain.zones import routes as zones
from quarterdeck.domain.zones.model import Limits
from quarterdeck.engine.tx import Engine
from quarterdeck.http import events, system
from quarterdeck.http.metrics import Metrics
from quarterdeck.store.port import Store

NO_ENGINE = cast(Engine, None)
NO_STORE = cast(Store, None)


async def nobody(_: object) -> NoReturn:
    raise AssertionError("nobody calls the handlers of this table")


def table() -> list[Route]:
    own = system.System(NO_STORE, Metrics(), {}, "1.2.3")
    return [
        *zones.routes(zones.ZoneDesk(NO_ENGINE, Limits(), nobody, nobody, nobody)),
        *sessions.routes(sessions.SessionDesk(NO_ENGINE, nobody, nobody, nobody)),
        *events.routes(events.LogDesk(NO_ENGINE)),
        *system.routes(own, None),
    ]
