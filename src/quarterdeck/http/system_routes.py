"""Routes that belong to no component: health, readiness, metrics, API description, JWKS, and `/about`."""

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
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.http.dispatcher import RawBody
from quarterdeck.http.metrics import CONTENT_TYPE, Metrics
from quarterdeck.store import migrate
from quarterdeck.store.interface import Store, TransientError

DOCS_HEADERS = (
    ("content-security-policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:"),
    ("x-content-type-options", "nosniff"),
)
CheckBearer = Callable[[Caller], Awaitable[None]]
"""Refuses a caller whose session has ended or whose agent was terminated."""


class ServerHealth(msgspec.Struct, frozen=True):
    ok: bool = True


class SystemHandlers:
    def __init__(self, store: Store, metrics: Metrics, jwks: object, version: str, check_bearer: CheckBearer) -> None:
        self._store = store
        self._metrics = metrics
        self._jwks = jwks
        self._version = version
        self._check_bearer = check_bearer
        self._route_table: Sequence[Route] = ()
        self._is_draining: Callable[[], bool] = lambda: False

    def set_routes(self, route_table: Sequence[Route], is_draining: Callable[[], bool]) -> None:
        """Set the routes to describe. Called after construction, because they include the routes of these handlers."""
        self._route_table = route_table
        self._is_draining = is_draining

    async def health(self, call: Call[None, None]) -> ServerHealth:
        return ServerHealth()

    async def ready(self, call: Call[None, None]) -> ServerHealth:
        if self._is_draining():
            raise Unavailable("draining", "The server is shutting down.", retry_after=1)
        try:
            await self._store.ping()
        except TransientError as error:
            raise Unavailable("database_unavailable", "The database is unavailable.", retry_after=1) from error
        return ServerHealth()

    async def metrics(self, call: Call[None, None]) -> RawBody:
        # Unless the server listens on loopback, this route needs a credential, and the session it names must be live.
        await self._check_bearer(call.caller)
        return RawBody(self._metrics.render(), CONTENT_TYPE)

    async def jwks(self, call: Call[None, None]) -> object:
        return self._jwks

    async def openapi(self, call: Call[None, None]) -> object:
        return self._openapi_document

    async def docs(self, call: Call[None, None]) -> Reply[RawBody]:
        return Reply(RawBody(self._docs_page, "text/html; charset=utf-8"), 200, DOCS_HEADERS)

    @cached_property
    def _openapi_document(self) -> dict[str, object]:
        from quarterdeck.http import openapi  # slow to import, and rarely needed

        return openapi.describe(self._route_table, self._version)

    @cached_property
    def _docs_page(self) -> bytes:
        from quarterdeck.http import docs

        return docs.render(self._openapi_document)


def routes(handlers: SystemHandlers, metrics_scope: str | None) -> list[Route]:
    tags = ("server",)
    return [
        Route("GET", "/health", handlers.health, "Check that the process responds", None, tags=tags),
        Route(
            "GET", "/ready", handlers.ready, "Check that the server accepts work", None, tags=tags,
            errors=("draining", "database_unavailable"),
        ),
        Route("GET", "/metrics", handlers.metrics, "Metrics in Prometheus format", metrics_scope, tags=tags),
        Route("GET", "/openapi.json", handlers.openapi, "The OpenAPI document of this API", None, tags=tags),
        Route("GET", "/docs", handlers.docs, "The documentation of this API as HTML", None, tags=tags),
        Route("GET", "/.well-known/jwks.json", handlers.jwks, "The public keys of the local issuer", None, tags=tags),
    ]  # fmt: skip


class ServerInfo(msgspec.Struct, frozen=True):
    version: str
    database: Literal["sqlite", "postgresql"]
    revision: str
    """The schema revision of the database."""
    head: str
    """The schema revision of this release."""
    complaint: str | None
    """Why the schema does not match this release, and how to fix it. Null if it matches."""
    now: str
    """The database's time. Sessions, leases and deadlines expire by it, not by the server's clock."""


@dataclass(frozen=True, slots=True)
class ServerInfoHandlers:
    engine: Engine
    check_bearer: CheckBearer
    version: str
    database: Literal["sqlite", "postgresql"]

    async def about(self, call: Call[None, None]) -> ServerInfo:
        await self.check_bearer(call.caller)

        async def read(tx: Transaction) -> ServerInfo:
            [[row]] = await tx.read(Q.schema_get_revision())
            revision = str(row[0])
            complaint = migrate.schema_mismatch(revision)
            return ServerInfo(self.version, self.database, revision, migrate.revisions()[-1], complaint, iso(tx.now))

        return await self.engine.read(read)


def about_routes(handlers: ServerInfoHandlers) -> list[Route]:
    return [
        Route(
            "GET", "/about", handlers.about, "Show the release, the schema revision and the database time", LIFECYCLE,
            tags=("server",),
        ),
    ]  # fmt: skip
