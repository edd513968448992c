"""On what an embedded server stands, and its life: from the lock of its directory to the last answer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from quarterdeck.app import App, build
from quarterdeck.core.clock import Millis, system_now
from quarterdeck.embedded.transport import Inward
from quarterdeck.http.auth import AuthSettings, LocalIssuer
from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.transport import Options
from quarterdeck.server_process import check_schema, open_issuer, take_lock
from quarterdeck.settings import Settings, load

POSTGRES = ("postgresql://", "postgres://")
SQLITE = "sqlite:///"
GRACE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Told:
    """What an embedded server is told."""

    database: str | os.PathLike[str] | None = None
    """A data directory; a file that ends in `.db`; a PostgreSQL URL. None: a directory that is gone afterwards."""
    data: str | os.PathLike[str] | None = None
    """Where the keys of a server on PostgreSQL lie, so that it finds again what it has sealed."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """By their names: `{"task_backoff_max_seconds": "60"}`. The environment does not count here."""
    clock: Callable[[], Millis] = system_now
    """SQLite's; PostgreSQL has its own."""


class Embedded:
    """A server inside this program, from `async with` to its end; what that gives is a client of it."""

    def __init__(self, told: Told, zone: str = "default", options: Options | None = None) -> None:
        self._told = told
        self._zone = zone
        self._options = options or Options()
        self._leaving = contextlib.AsyncExitStack()
        self._app: App | None = None
        self._issuer: LocalIssuer | None = None
        self._scope = ""

    @property
    def app(self) -> App:
        if self._app is None:
            raise RuntimeError("the server inside this program does not run")
        return self._app

    def client(self, token: str | None = None, zone: str | None = None) -> Quarterdeck:
        """A client that acts as the local administrator, or as whoever bears this token."""
        tokens = self._mint if token is None else lambda: token
        return Quarterdeck(Inward(self.app.shell, tokens, self._options), zone or self._zone)

    async def __aenter__(self) -> Quarterdeck:
        async with contextlib.AsyncExitStack() as stack:
            await self._open(stack)
            client = self.client()
            stack.push_async_callback(client.close)
            self._leaving = stack.pop_all()
            return client

    async def __aexit__(
        self, kind: type[BaseException] | None, wrong: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leaving.aclose()

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        settings = self._settings(stack)
        lock = take_lock(settings.data / "server.lock")
        stack.callback(os.close, lock)
        await asyncio.to_thread(check_schema, settings, migrates=True)
        self._issuer = open_issuer(settings)
        self._scope = settings.section(AuthSettings).lifecycle_scope
        self._app = app = await build(settings, self._issuer, None)
        stack.push_async_callback(self._stop, app)
        self._start(app)

    def _start(self, app: App) -> None:
        app.start()

    async def _stop(self, app: App) -> None:
        app.shell.drain()
        await app.stop(GRACE_SECONDS)
        self._app = None

    def _settings(self, stack: contextlib.AsyncExitStack) -> Settings:
        told = self._told
        where = None if told.database is None else os.fspath(told.database)
        flags = dict(told.settings)
        if where is not None and where.startswith(POSTGRES):
            flags["database_url"] = where
            where = None if told.data is None else os.fspath(told.data)
        elif where is not None and where.removeprefix(SQLITE).endswith(".db"):
            file = Path(where.removeprefix(SQLITE)).absolute()
            flags["database_url"] = f"{SQLITE}{file}"
            where = str(file.parent)
        if where is None:
            where = stack.enter_context(tempfile.TemporaryDirectory(prefix="quarterdeck-"))
        data = Path(where).absolute()
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = load(data, flags, {}, shared=False)
        return Settings(found.data, found.found, told.clock)

    def _mint(self) -> str:
        assert self._issuer is not None
        return self._issuer.mint_admin(self._scope)
