"""The server process: lock, schema check, sockets, serving, shutdown. A data directory has at most one server."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from quarterdeck import __version__
from quarterdeck.app import build
from quarterdeck.client import data_dir
from quarterdeck.core.clock import DAY, iso, system_now
from quarterdeck.engine.settings import SettingsError
from quarterdeck.engine.sweeps import Sweep, SweepRunner
from quarterdeck.http import json_logging, server
from quarterdeck.http.auth import AuthSettings, LocalIssuer
from quarterdeck.http.connection import Connections
from quarterdeck.http.dispatcher import Dispatcher
from quarterdeck.http.stream_limits import StreamSettings
from quarterdeck.settings import Settings, environment, mask
from quarterdeck.store import migrate

LOCK_TRIES = 5


class ServerProcess:
    def __init__(self, settings: Settings, *, migrate: bool, ready_fd: int | None) -> None:
        self._settings = settings
        self._migrate = migrate
        self._ready_fd = ready_fd

    def run_until_stopped(self) -> int:
        """Serve until a signal arrives. Raises SettingsError, before anything is served, if a setting is invalid."""
        if not self._settings.server.sweeps and migrate.sqlite_path(self._settings.database_url):
            raise SettingsError(
                f"`sweeps` is false (from {self._settings.values['sweeps'].source}), but the database is SQLite, "
                "which only one process can use. Remove the setting, or use PostgreSQL."
            )
        self._settings.data.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = take_lock(self._settings.data / "server.lock")
        try:
            print_database(self._settings)
            # Before the upgrade: a start that fails because of the key must leave the database as it is.
            issuer = open_issuer(self._settings)
            check_schema(self._settings, may_migrate=self._migrate)
            uvloop.run(self._run(issuer))
        finally:
            os.close(lock)
        return 0

    async def _run(self, issuer: LocalIssuer) -> None:
        server_settings = self._settings.server
        line_writer = json_logging.set_up_logging(server_settings.log_level)
        request_log = json_logging.request_log(line_writer, server_settings.log_level)
        # Before the database is opened: if the address is in use, no connection is opened.
        tcp = server.listen_tcp(server_settings.host, server_settings.port)
        local_url = server.local_url_of(tcp)
        app = await build(self._settings, issuer, request_log, url=local_url)
        token_renewal = SweepRunner([self._token_renewal(issuer)])
        await token_renewal.run_now("admin-token")
        socket_file = socket_path(self._settings.data)
        unix_socket = server.listen_unix(socket_file)
        url = server.url_of(tcp)
        http_server = build_http_server(self._settings, app.dispatcher)
        app.start(None if server_settings.sweeps else ())
        token_renewal.start()
        # Objects created at startup exist as long as the process, so exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 20, 50)
        try:
            await http_server.serve(
                [tcp, unix_socket], lambda: self._announce_ready(url, str(socket_file)), app.dispatcher.drain
            )
        finally:
            await token_renewal.stop()
            await app.stop(max(1.0, server_settings.shutdown_grace_ms / 1000))
            socket_file.unlink(missing_ok=True)
            line_writer.flush()

    def _token_renewal(self, issuer: LocalIssuer) -> Sweep:
        scope = self._settings.section(AuthSettings).lifecycle_scope

        async def renew(batch: int) -> int:
            issuer.write_admin_token(self._settings.data / "admin-token", lifecycle_scope=scope)
            return 0

        return Sweep("admin-token", DAY, 1, renew)

    def _announce_ready(self, url: str, socket: str) -> None:
        kind = "sqlite" if migrate.sqlite_path(self._settings.database_url) else "postgresql"
        record = data_dir.ServerRecord(os.getpid(), url, socket, kind, __version__, iso(system_now()))
        _replace_file(self._settings.data / "server.json", msgspec.json.encode(record._asdict()))
        sys.stdout.write(f"ready {url}\n")
        sys.stdout.flush()
        print_line(f"documentation {url}/docs")
        print_line(f"token         {self._settings.data / 'admin-token'} (or: qd token)")
        print_line("try           qd session spawn --app demo")
        if self._ready_fd is not None:
            # The process that was waiting for this line may have exited. The server runs without it.
            with contextlib.suppress(BrokenPipeError):
                os.write(self._ready_fd, f"ready {url}\n".encode())
            os.close(self._ready_fd)


# -- shared by the server and the sweeper daemon ---------------------------------------------------------------------


def print_database(settings: Settings) -> None:
    source = settings.values["database_url"].source
    origin = "the data directory" if source == "default" else source
    print_line(f"database {mask(settings.database_url)} (from {origin})")


def check_schema(settings: Settings, *, may_migrate: bool) -> None:
    """Return if the schema has this release's revision. Upgrade it first if that is allowed, otherwise raise."""
    url = settings.database_url
    current = migrate.current_revision(url)
    mismatch = migrate.schema_mismatch(current)
    if mismatch is None:
        return
    is_known = current is None or current in migrate.revisions()
    if is_known and (may_migrate or migrate.sqlite_path(url)):
        # In a separate process: the modules of a migration would use a third of a server's memory budget. The URL is
        # passed in the environment, because other users can read the arguments of a process. The shared variables are
        # ignored there (`--only-own-variables`), because this process has already chosen the database.
        command = [sys.executable, "-P", "-m", "quarterdeck", "db", "upgrade", "--only-own-variables"]
        result = subprocess.run(  # noqa: S603 - our own interpreter and arguments
            [*command, f"--data={settings.data}", "--lock-is-held"],
            check=False,
            stdout=subprocess.DEVNULL,
            env={**environment(), "QD_DATABASE_URL": url},
        )
        if result.returncode == 0:
            return
        raise SettingsError("The database upgrade failed. See the lines above for the reason.")
    raise SettingsError(mismatch)


def build_http_server(settings: Settings, dispatcher: Dispatcher) -> server.Server:
    """Build the HTTP server for a dispatcher. `serve` runs it on sockets until a signal arrives."""
    server_settings = settings.server
    stall_seconds = settings.section(StreamSettings).stream_stall_ms / 1000
    connections = Connections(server_settings.request_timeout_ms / 1000, server_settings.connections_max, stall_seconds)
    return server.Server(dispatcher.handle, connections, max(1.0, server_settings.shutdown_grace_ms / 1000))


def open_issuer(settings: Settings) -> LocalIssuer:
    return LocalIssuer.open(settings.signing_key_path)


def socket_path(data: Path) -> Path:
    return Path(data_dir.socket_path(data_dir.DataDir(str(data)), environment()))


def take_lock(path: Path) -> int:
    """Lock a data directory. The lock is held until the descriptor is closed or the process exits."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            # A check for a running server holds a shared lock for an instant, so try again.
            time.sleep(0.02)
    os.close(descriptor)
    raise SettingsError(f"Another server is running on {path.parent}. `qd status` shows its URL, `qd stop` stops it.")


def _replace_file(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.replace(path)


def print_line(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
