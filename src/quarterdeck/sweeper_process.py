"""The sweeper daemon (`qd sweep`): runs the sweeps of a server without serving requests.

Any number of daemons and servers may share one PostgreSQL database. Most sweeps may run in several processes at once:
each unit of work is done under its zone's lock, and a second process finds it done. Sweeps that must run alone hold a
lease. A killed daemon leaves no partial change: other processes continue its work at once, or when its lease expires.

SQLite has no daemon: the server owns the file and runs the sweeps itself.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import uvloop

from quarterdeck.app import App, build
from quarterdeck.core.errors import EXIT_FAILED, NotFound
from quarterdeck.engine.settings import SettingsError
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.http import json_logging, server
from quarterdeck.server_process import build_http_server, check_schema, open_issuer, print_database
from quarterdeck.settings import Settings
from quarterdeck.store import migrate

log = logging.getLogger("quarterdeck.sweeper_process")
SERVED_PATHS = ("/health", "/ready", "/metrics")
"""The paths that the daemon serves if it has a metrics port."""
PORT_MAX = 65_535
LOG_INTERVAL_SECONDS = 10.0
"""Minimum time between two log lines about one sweep: a busy sweep makes many passes."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """Command-line options of `qd sweep`."""

    only: Collection[str] = ()
    """The sweeps to run. Empty means all."""
    metrics_port: int | None = None
    as_json: bool = False


class SweeperProcess:
    def __init__(self, settings: Settings, options: SweepOptions) -> None:
        if migrate.sqlite_path(settings.database_url):
            raise SettingsError(
                "`qd sweep` needs PostgreSQL, but the database is SQLite. The server of a SQLite database runs the "
                "sweeps itself."
            )
        if options.metrics_port is not None and not 0 <= options.metrics_port <= PORT_MAX:
            raise SettingsError(f"--metrics-port is {options.metrics_port}, but must be between 0 and {PORT_MAX}.")
        if not settings.signing_key_path.exists():
            # A new key would sign seals that verification with the servers' key rejects.
            raise SettingsError(
                f"There is no signing key at {settings.signing_key_path}. `qd sweep` signs seals with the servers' "
                "key: set QD_SIGNING_KEY to its file, or --data to their data directory."
            )
        self._settings = settings
        self._options = options

    def run_until_stopped(self) -> int:
        print_database(self._settings)
        check_schema(self._settings, may_migrate=False)
        return uvloop.run(self._run_until_stopped())

    def run_once(self) -> int:
        """Run each sweep once (`SweepRunner.run_now`). Return 1 if any failed."""
        check_schema(self._settings, may_migrate=False)
        return uvloop.run(self._run_once())

    def print_sweeps(self) -> int:
        check_schema(self._settings, may_migrate=False)
        return uvloop.run(self._print_sweeps())

    # -- the three modes -------------------------------------------------------------------------------------------

    async def _run_until_stopped(self) -> int:
        port = self._options.metrics_port
        # Before the database is opened: if the port is in use, no connection is opened.
        tcp = None if port is None else server.listen_tcp(self._settings.server.host, port)
        async with self._build_app() as (app, sweeps):
            sweep_logger = SweepLogger()
            app.sweeps.add_observer(sweep_logger)

            def on_started() -> None:
                app.start([sweep.name for sweep in sweeps])
                self._print_started(sweeps, None if tcp is None else server.url_of(tcp))

            if tcp is None:
                on_started()
                await _wait_for_signal()
            else:
                await build_http_server(self._settings, app.dispatcher).serve([tcp], on_started, app.dispatcher.drain)
            await app.sweeps.stop()
            sweep_logger.log_all()
        return 0

    async def _run_once(self) -> int:
        async with self._build_app() as (app, sweeps):
            # Wake-ups notify the servers of these commits. No other background work is started: the process exits right
            # after the passes and would interrupt it.
            app.runtime.wakeups.start()
            passes = asyncio.create_task(_run_each(app, sweeps))
            stopped = asyncio.create_task(_wait_for_signal())
            await asyncio.wait((passes, stopped), return_when=asyncio.FIRST_COMPLETED)
            for task in (passes, stopped):
                task.cancel()
            await asyncio.wait((passes, stopped))
            if passes.cancelled():
                raise SettingsError("Stopped by a signal before every sweep had run.")
            results = passes.result()
        lines = [f"{result.name:{_name_width(sweeps)}}  {result.text()}" for result in results]
        self._print({"items": msgspec.to_builtins(results)}, "\n".join(lines))
        return EXIT_FAILED if any(result.error for result in results) else 0

    async def _print_sweeps(self) -> int:
        async with self._build_app() as (_, sweeps):
            lines = [
                f"{sweep.name:{_name_width(sweeps)}}  every {_format_interval(sweep.every_ms)}" for sweep in sweeps
            ]
            self._print(_document(sweeps), "\n".join(lines))
        return 0

    @asynccontextmanager
    async def _build_app(self) -> AsyncIterator[tuple[App, list[Sweep]]]:
        """Build the app and select the sweeps to run."""
        log_level = self._settings.server.log_level
        line_writer = json_logging.set_up_logging(log_level)
        request_log = json_logging.request_log(line_writer, log_level)
        app = await build(self._settings, open_issuer(self._settings), request_log, SERVED_PATHS)
        try:
            yield app, self._selected_sweeps(app)
        finally:
            await app.stop(max(1.0, self._settings.server.shutdown_grace_ms / 1000))
            line_writer.flush()

    def _selected_sweeps(self, app: App) -> list[Sweep]:
        by_name = {sweep.name: sweep for sweep in app.sweeps.sweeps}
        for name in self._options.only:
            if name not in by_name:
                raise NotFound("sweep_not_found", f"There is no sweep {name!r}. Sweeps: {', '.join(by_name)}.")
        return [sweep for sweep in by_name.values() if not self._options.only or sweep.name in self._options.only]

    def _print_started(self, sweeps: Collection[Sweep], url: str | None) -> None:
        text = f"sweeping {', '.join(map(_describe, sweeps))}"
        self._print({**_document(sweeps), "url": url}, text if url is None else f"{text}\nmetrics {url}/metrics")

    def _print(self, document: object, text: str) -> None:
        sys.stdout.write((msgspec.json.encode(document).decode() if self._options.as_json else text) + "\n")
        sys.stdout.flush()


class SweepResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one sweep, with `--once`."""

    name: str
    moved: int | None = None
    """How many rows the sweep changed. None if it failed."""
    error: str | None = None

    def text(self) -> str:
        return f"failed: {self.error}" if self.error else f"moved {self.moved}"


async def _run_each(app: App, sweeps: Collection[Sweep]) -> list[SweepResult]:
    results = []
    for sweep in sweeps:
        try:
            results.append(SweepResult(sweep.name, await app.sweeps.run_now(sweep.name)))
        except Exception as error:  # the other sweeps still run, and the exit code reports the failure
            log.exception("sweep %s failed", sweep.name)
            results.append(SweepResult(sweep.name, error=f"{type(error).__name__}: {error}"))
    return results


class SweepLogger:
    """Logs how many rows each sweep changed, at most once per `LOG_INTERVAL_SECONDS` for each sweep."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._logged_at: dict[str, float] = {}

    def on_swept(self, sweep: str, changed: int) -> None:
        self._counts[sweep] = self._counts.get(sweep, 0) + changed
        if (
            self._counts[sweep]
            and self._clock() - self._logged_at.get(sweep, -LOG_INTERVAL_SECONDS) >= LOG_INTERVAL_SECONDS
        ):
            self._log(sweep)

    def on_failed(self, sweep: str) -> None:
        """Nothing to do: the runner has logged the error."""

    def log_all(self) -> None:
        for sweep in [name for name, count in self._counts.items() if count]:
            self._log(sweep)

    def _log(self, sweep: str) -> None:
        log.info("sweep %s moved %d", sweep, self._counts.pop(sweep))
        self._logged_at[sweep] = self._clock()


async def _wait_for_signal() -> None:
    """Return at the first SIGTERM or SIGINT. The handlers are then removed, so a second signal ends the process."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stopped.set)
    try:
        await stopped.wait()
    finally:
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(signal_number)


def _document(sweeps: Collection[Sweep]) -> dict[str, object]:
    return {"items": [{"name": sweep.name, "every_ms": sweep.every_ms} for sweep in sweeps]}


def _describe(sweep: Sweep) -> str:
    return f"{sweep.name} every {_format_interval(sweep.every_ms)}"


def _format_interval(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1_000 else f"{milliseconds / 1000:g} s"


def _name_width(sweeps: Collection[Sweep]) -> int:
    return max(len(sweep.name) for sweep in sweeps)
