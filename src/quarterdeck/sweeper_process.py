"""A daemon's life: it makes the passes that a server makes beside its answers, and answers nobody.

Any number may run on one PostgreSQL, beside any number of servers. Passes that may run anywhere find what is left to
do and end it under the zone's lock, where whoever comes second finds it done; passes that must be single hold a lease.
A daemon that is killed leaves nothing half-done: the others go on where it was, at once or when its lease has ended.

On SQLite there is none: one process owns the file, and that is the server, which sweeps by itself.
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
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.http import json_logging, server
from quarterdeck.http.json_logging import LineWriter
from quarterdeck.server_process import build_http_server, check_schema, open_issuer, print_database
from quarterdeck.settings import Settings, SettingsError
from quarterdeck.store import migrate

log = logging.getLogger("quarterdeck.sweeper_process")
SERVED_PATHS = ("/health", "/ready", "/metrics")
"""What a daemon tells, if it is given a port."""
PORT_MAX = 65_535
LOG_INTERVAL = 10.0
"""Seconds between two lines about one sweep: a busy one makes many passes."""


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What was asked of the daemon."""

    only: Collection[str] = ()
    """The sweeps to run; none named is all of them."""
    metrics_port: int | None = None
    as_json: bool = False


class SweeperProcess:
    def __init__(self, settings: Settings, options: SweepOptions) -> None:
        if migrate.sqlite_path(settings.database_url):
            raise SettingsError(
                "`qd sweep` is for PostgreSQL. The database is SQLite, which belongs to one process: its server sweeps "
                "by itself."
            )
        if options.metrics_port is not None and not 0 <= options.metrics_port <= PORT_MAX:
            raise SettingsError(f"--metrics-port is {options.metrics_port}: a port is at most {PORT_MAX}.")
        if not settings.signing_key.exists():
            # Made anew, the key would sign seals that nobody who knows the servers' key believes.
            raise SettingsError(
                f"There is no signing key at {settings.signing_key}. `qd sweep` seals the log with the key of the "
                "servers: name it with QD_SIGNING_KEY, or their data directory with --data."
            )
        self._settings = settings
        self._options = options

    def run_until_stopped(self) -> int:
        print_database(self._settings)
        check_schema(self._settings, may_migrate=False)
        return uvloop.run(self._run_until_stopped())

    def run_once(self) -> int:
        """One pass of each: what is due is done when this returns. 1 if any of them failed."""
        check_schema(self._settings, may_migrate=False)
        return uvloop.run(self._run_once())

    def print_sweeps(self) -> int:
        check_schema(self._settings, may_migrate=False)
        return uvloop.run(self._print_sweeps())

    # -- the three things it can do -------------------------------------------------------------------------------

    async def _run_until_stopped(self) -> int:
        port = self._options.metrics_port
        # First, because a port that is taken should cost nobody a connection to the database.
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
            # So that the servers hear of what is done here. Nothing else goes on by itself meanwhile: it would be cut
            # off a moment later, in the middle of something.
            app.runtime.wakeups.start()
            passes = asyncio.create_task(_run_each(app, sweeps))
            stopped = asyncio.create_task(_wait_for_signal())
            await asyncio.wait((passes, stopped), return_when=asyncio.FIRST_COMPLETED)
            for task in (passes, stopped):
                task.cancel()
            await asyncio.wait((passes, stopped))
            if passes.cancelled():
                raise SettingsError("Stopped before every sweep had made its pass.")
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
        """The whole app, whose sweeps are all that is wanted of it."""
        lines = json_logging.set_up_logging(self._settings.server.log_level)
        app = await build(self._settings, open_issuer(self._settings), self._request_lines(lines), SERVED_PATHS)
        try:
            yield app, self._selected_sweeps(app)
        finally:
            await app.stop(max(1.0, self._settings.server.shutdown_grace_ms / 1000))
            lines.flush()

    def _request_lines(self, lines: LineWriter) -> LineWriter | None:
        return lines if json_logging.LEVELS[self._settings.server.log_level] <= json_logging.LEVELS["info"] else None

    def _selected_sweeps(self, app: App) -> list[Sweep]:
        by_name = {sweep.name: sweep for sweep in app.sweeps.sweeps}
        for name in self._options.only:
            if name not in by_name:
                raise NotFound("sweep_not_found", f"There is no sweep {name!r}. There are: {', '.join(by_name)}.")
        return [sweep for sweep in by_name.values() if not self._options.only or sweep.name in self._options.only]

    def _print_started(self, sweeps: Collection[Sweep], url: str | None) -> None:
        text = f"sweeping {', '.join(map(_describe, sweeps))}"
        self._print({**_document(sweeps), "url": url}, text if url is None else f"{text}\nmetrics {url}/metrics")

    def _print(self, document: object, text: str) -> None:
        sys.stdout.write((msgspec.json.encode(document).decode() if self._options.as_json else text) + "\n")
        sys.stdout.flush()


class SweepResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of one pass of `--once`."""

    name: str
    moved: int | None = None
    error: str | None = None

    def text(self) -> str:
        return f"failed: {self.error}" if self.error else f"moved {self.moved}"


async def _run_each(app: App, sweeps: Collection[Sweep]) -> list[SweepResult]:
    results = []
    for sweep in sweeps:
        try:
            results.append(SweepResult(sweep.name, await app.sweeps.run_now(sweep.name)))
        except Exception as error:  # whatever it is, the other sweeps have their turn, and the exit code tells
            log.exception("the sweep %s failed", sweep.name)
            results.append(SweepResult(sweep.name, error=f"{type(error).__name__}: {error}"))
    return results


class SweepLogger:
    """Says in the log what sweeps have moved: a line for each that moved something, and not at every pass."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[str, int] = {}
        self._logged_at: dict[str, float] = {}

    def on_swept(self, sweep: str, changed: int) -> None:
        self._counts[sweep] = self._counts.get(sweep, 0) + changed
        if self._counts[sweep] and self._clock() - self._logged_at.get(sweep, -LOG_INTERVAL) >= LOG_INTERVAL:
            self._log(sweep)

    def on_failed(self, sweep: str) -> None:
        """The runner has said so, with the error."""

    def log_all(self) -> None:
        for sweep in [name for name, count in self._counts.items() if count]:
            self._log(sweep)

    def _log(self, sweep: str) -> None:
        log.info("the sweep %s moved %d", sweep, self._counts.pop(sweep))
        self._logged_at[sweep] = self._clock()


async def _wait_for_signal() -> None:
    """Returns at the first signal. The next one of its kind does not wait for anything."""
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
