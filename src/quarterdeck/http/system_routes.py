"""The routes that belong to no room: how the server is, what it serves, and its keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec

from quarterdeck.core.caller import LIFECYCLE, Caller
from quarterdeck.core.clock import iso
from quarterdeck.core.errors import Unavailable
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.engine.queries import Q
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.http.dispatcher import Page
from quarterdeck.http.metrics import CONTENT_TYPE, Metrics
from quarterdeck.store import migrate
from quarterdeck.store.interface import Store, TransientError

PAGE_HEADERS = (
    ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:"),
    ("x-content-type-options", "nosniff"),
)
CheckBearer = Callable[[Caller], Awaitable[None]]
"""Refuses a caller whose session has ended."""


class Health(msgspec.Struct, frozen=True):
    ok: bool = True


class System:
    """Handlers for everything but the rooms."""

    def __init__(self, store: Store, metrics: Metrics, jwks: object, version: str, check_bearer: CheckBearer) -> None:
        self._store = store
        self._metrics = metrics
        self._jwks = jwks
        self._version = version
        self._check_bearer = check_bearer
        self._table: Sequence[Route] = ()
        self._is_draining: Callable[[], bool] = lambda: False

    def serves(self, table: Sequence[Route], is_draining: Callable[[], bool]) -> None:
        """Told afterwards, because the table it describes has its own routes in it."""
        self._table = table
        self._is_draining = is_draining

    async def health(self, call: Call) -> Health:
        return Health()

    async def ready(self, call: Call) -> Health:
        if self._is_draining():
            raise Unavailable("draining", "The server is shutting down.", retry_after=1)
        try:
            await self._store.ping()
        except TransientError as error:
            raise Unavailable("database_unavailable", "The database is away.", retry_after=1) from error
        return Health()

    async def metrics(self, call: Call) -> Page:
        # Beyond loopback the figures need a credential, and one that speaks for a session ends with it.
        await self._check_bearer(call.caller)
        return Page(self._metrics.render(), CONTENT_TYPE)

    async def jwks(self, call: Call) -> object:
        return self._jwks

    async def openapi(self, call: Call) -> object:
        return self._description

    async def docs(self, call: Call) -> Reply:
        return Reply(Page(self._page, "text/html; charset=utf-8"), 200, PAGE_HEADERS)

    @cached_property
    def _description(self) -> dict[str, object]:
        from quarterdeck.http import openapi  # worth loading when somebody asks

        return openapi.describe(self._table, self._version)

    @cached_property
    def _page(self) -> bytes:
        from quarterdeck.http import docs

        return docs.render(self._description)


def routes(system: System, metrics_scope: str | None) -> list[Route]:
    tags = ("server",)
    return [
        Route("GET", "/health", system.health, "Whether the process answers", None, answer=Health, tags=tags),
        Route(
            "GET", "/ready", system.ready, "Whether the server can do work", None, answer=Health, tags=tags,
            refusals=("draining", "database_unavailable"),
        ),
        Route("GET", "/metrics", system.metrics, "Figures for Prometheus", metrics_scope, tags=tags),
        Route("GET", "/openapi.json", system.openapi, "This API, described", None, tags=tags),
        Route("GET", "/docs", system.docs, "This API, for people", None, tags=tags),
        Route("GET", "/.well-known/jwks.json", system.jwks, "The local issuer's public keys", None, tags=tags),
    ]  # fmt: skip


class About(msgspec.Struct, frozen=True):
    version: str
    database: Literal["sqlite", "postgresql"]
    revision: str
    """Of the tables."""
    head: str
    """The revision that this release brings them to."""
    complaint: str | None
    """What is wrong with the tables, and what mends it."""
    now: str
    """By the database's clock, which is the one that decides."""


@dataclass(frozen=True, slots=True)
class AboutDesk:
    engine: Engine
    check_bearer: CheckBearer
    version: str
    database: Literal["sqlite", "postgresql"]

    async def about(self, call: Call) -> About:
        await self.check_bearer(call.caller)

        async def read(tx: Tx) -> About:
            [[row]] = await tx.read(Q.schema_served())
            revision = str(row[0])
            wrong = migrate.complaint(revision)
            return About(self.version, self.database, revision, migrate.revisions()[-1], wrong, iso(tx.now))

        return await self.engine.read(read)


def about_routes(desk: AboutDesk) -> list[Route]:
    return [
        Route(
            "GET", "/about", desk.about, "What serves here, on which tables, and its clock", LIFECYCLE,
            answer=About, tags=("server",),
        ),
    ]  # fmt: skip
