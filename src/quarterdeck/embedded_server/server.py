"""The embedded server: takes the lock of its data directory, starts, creates clients, stops."""

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
from quarterdeck.embedded_server.transport import InProcessTransport
from quarterdeck.http.auth import AuthSettings, LocalIssuer
from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.transport import Options
from quarterdeck.server_process import check_schema, open_issuer, take_lock
from quarterdeck.settings import Settings, load_settings

POSTGRES_PREFIXES = ("postgresql://", "postgres://")
SQLITE_PREFIX = "sqlite:///"
GRACE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class EmbeddedConfig:
    """Configuration of an embedded server."""

    database: str | os.PathLike[str] | None = None
    """A data directory, a file that ends in `.db`, or a PostgreSQL URL. None: a temporary directory."""
    data: str | os.PathLike[str] | None = None
    """The directory for the keys of a server on PostgreSQL. Keep it: encrypted values need the same keys later."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings by name, such as `{"task_backoff_max_seconds": "60"}`. Environment variables are ignored."""
    clock: Callable[[], Millis] = system_now
    """The clock on SQLite. PostgreSQL uses the database's clock."""


class Embedded:
    """A server in this process. `async with` starts it, returns a client, and stops it at the end of the block."""

    def __init__(self, config: EmbeddedConfig, zone: str = "default", options: Options | None = None) -> None:
        self._config = config
        self._zone = zone
        self._options = options or Options()
        self._exit_stack = contextlib.AsyncExitStack()
        self._app: App | None = None
        self._issuer: LocalIssuer | None = None
        self._admin_scope = ""

    @property
    def app(self) -> App:
        if self._app is None:
            raise RuntimeError("the embedded server is not running")
        return self._app

    def client(self, token: str | None = None, zone: str | None = None) -> Quarterdeck:
        """Create a client with this token. Without a token it acts as the local administrator."""
        get_token = self._mint_token if token is None else lambda: token
        return Quarterdeck(InProcessTransport(self.app.dispatcher, get_token, self._options), zone or self._zone)

    async def __aenter__(self) -> Quarterdeck:
        async with contextlib.AsyncExitStack() as stack:
            await self._open(stack)
            client = self.client()
            stack.push_async_callback(client.close)
            self._exit_stack = stack.pop_all()
            return client

    async def __aexit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._exit_stack.aclose()

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        settings = self._load_settings(stack)
        lock = take_lock(settings.data / "server.lock")
        stack.callback(os.close, lock)
        # Before the upgrade: a start that fails because of the key must leave the database as it is.
        self._issuer = open_issuer(settings)
        await asyncio.to_thread(check_schema, settings, may_migrate=True)
        self._admin_scope = settings.section(AuthSettings).lifecycle_scope
        self._app = app = await build(settings, self._issuer, None)
        stack.push_async_callback(self._stop, app)
        self._start(app)

    def _start(self, app: App) -> None:
        app.start()

    async def _stop(self, app: App) -> None:
        app.dispatcher.drain()
        await app.stop(GRACE_SECONDS)
        self._app = None

    def _load_settings(self, stack: contextlib.AsyncExitStack) -> Settings:
        config = self._config
        database = None if config.database is None else os.fspath(config.database)
        flags = dict(config.settings)
        data_path = database
        if database is not None and database.startswith(POSTGRES_PREFIXES):
            flags["database_url"] = database
            data_path = None if config.data is None else os.fspath(config.data)
        elif database is not None and database.removeprefix(SQLITE_PREFIX).endswith(".db"):
            file = Path(database.removeprefix(SQLITE_PREFIX)).absolute()
            flags["database_url"] = f"{SQLITE_PREFIX}{file}"
            data_path = str(file.parent)
        if data_path is None:
            data_path = stack.enter_context(tempfile.TemporaryDirectory(prefix="quarterdeck-"))
        data = Path(data_path).absolute()
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        loaded = load_settings(data, flags, {}, use_shared_variables=False)
        return Settings(loaded.data, loaded.values, config.clock)

    def _mint_token(self) -> str:
        assert self._issuer is not None
        return self._issuer.mint_admin_token(self._admin_scope)
