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
from quarterdeck.server_process import check_schema, open_issuer, say_database, server_of
from quarterdeck.settings import Settings, SettingsError
from quarterdeck.store import migrate

log = logging.getLogger("quarterdeck.sweeper_process")
WATCHED = ("/health", "/ready", "/metrics")
"""What a daemon tells, if it is given a port."""
PORT_MAX = 65_535
SAY_EVERY = 10.0
"""Seconds between two lines about one sweep: a busy one makes many passes."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked of the daemon."""

    only: Collection[str] = ()
    """The sweeps to run; none named is all of them."""
    metrics_port: int | None = None
    as_json: bool = False


class Sweeping:
    def __init__(self, settings: Settings, wanted: Wanted) -> None:
        if migrate.sqlite_path(settings.database_url):
            raise SettingsError(
                "`qd sweep` is for PostgreSQL. The database is SQLite, which belongs to one process: its server sweeps "
                "by itself."
            )
        if wanted.metrics_port is not None and not 0 <= wanted.metrics_port <= PORT_MAX:
            raise SettingsError(f"--metrics-port is {wanted.metrics_port}: a port is at most {PORT_MAX}.")
        if not settings.signing_key.exists():
            # Made anew, the key would sign seals that nobody who knows the servers' key believes.
            raise SettingsError(
                f"There is no signing key at {settings.signing_key}. `qd sweep` seals the log with the key of the "
                "servers: name it with QD_SIGNING_KEY, or their data directory with --data."
            )
        self._settings = settings
        self._wanted = wanted

    def until_stopped(self) -> int:
        say_database(self._settings)
        check_schema(self._settings, migrates=False)
        return uvloop.run(self._until_stopped())

    def once(self) -> int:
        """One pass of each: what is due is done when this returns. 1 if any of them failed."""
        check_schema(self._settings, migrates=False)
        return uvloop.run(self._once())

    def tell(self) -> int:
        check_schema(self._settings, migrates=False)
        return uvloop.run(self._tell())

    # -- the three things it can do -------------------------------------------------------------------------------

    async def _until_stopped(self) -> int:
        port = self._wanted.metrics_port
        # First, because a port that is taken should cost nobody a connection to the database.
        tcp = None if port is None else server.listen_tcp(self._settings.server.host, port)
        async with self._composed() as (app, sweeps):
            tally = Tally()
            app.sweeps.tell(tally)

            def begun() -> None:
                app.start([sweep.name for sweep in sweeps])
                self._say_begun(sweeps, None if tcp is None else server.url_of(tcp))

            if tcp is None:
                begun()
                await _told_to_stop()
            else:
                await server_of(self._settings, app.shell).serve([tcp], begun, app.shell.drain)
            await app.sweeps.stop()
            tally.say_all()
        return 0

    async def _once(self) -> int:
        async with self._composed() as (app, sweeps):
            # So that the servers hear of what is done here. Nothing else goes on by itself meanwhile: it would be cut
            # off a moment later, in the middle of something.
            app.keel.wakes.start()
            passes = asyncio.create_task(_one_of_each(app, sweeps))
            stopped = asyncio.create_task(_told_to_stop())
            await asyncio.wait((passes, stopped), return_when=asyncio.FIRST_COMPLETED)
            for task in (passes, stopped):
                task.cancel()
            await asyncio.wait((passes, stopped))
            if passes.cancelled():
                raise SettingsError("Stopped before every sweep had made its pass.")
            made = passes.result()
        told = [f"{one.name:{_width(sweeps)}}  {one.text()}" for one in made]
        self._show({"items": msgspec.to_builtins(made)}, "\n".join(told))
        return EXIT_FAILED if any(one.error for one in made) else 0

    async def _tell(self) -> int:
        async with self._composed() as (_, sweeps):
            told = [f"{sweep.name:{_width(sweeps)}}  every {_span(sweep.every_ms)}" for sweep in sweeps]
            self._show(_document(sweeps), "\n".join(told))
        return 0

    @asynccontextmanager
    async def _composed(self) -> AsyncIterator[tuple[App, list[Sweep]]]:
        """The whole app, whose sweeps are all that is wanted of it."""
        lines = json_logging.set_up(self._settings.server.log_level)
        app = await build(self._settings, open_issuer(self._settings), self._lines(lines), WATCHED)
        try:
            yield app, self._chosen(app)
        finally:
            await app.stop(max(1.0, self._settings.server.shutdown_grace_ms / 1000))
            lines.flush()

    def _lines(self, lines: LineWriter) -> LineWriter | None:
        return lines if json_logging.LEVELS[self._settings.server.log_level] <= json_logging.LEVELS["info"] else None

    def _chosen(self, app: App) -> list[Sweep]:
        every = {sweep.name: sweep for sweep in app.sweeps.sweeps}
        for name in self._wanted.only:
            if name not in every:
                raise NotFound("sweep_not_found", f"There is no sweep {name!r}. There are: {', '.join(every)}.")
        return [sweep for sweep in every.values() if not self._wanted.only or sweep.name in self._wanted.only]

    def _say_begun(self, sweeps: Collection[Sweep], url: str | None) -> None:
        text = f"sweeping {', '.join(map(_named, sweeps))}"
        self._show({**_document(sweeps), "url": url}, text if url is None else f"{text}\nmetrics {url}/metrics")

    def _show(self, told: object, text: str) -> None:
        sys.stdout.write((msgspec.json.encode(told).decode() if self._wanted.as_json else text) + "\n")
        sys.stdout.flush()


class Pass(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of one pass of `--once`."""

    name: str
    moved: int | None = None
    error: str | None = None

    def text(self) -> str:
        return f"failed: {self.error}" if self.error else f"moved {self.moved}"


async def _one_of_each(app: App, sweeps: Collection[Sweep]) -> list[Pass]:
    made = []
    for sweep in sweeps:
        try:
            made.append(Pass(sweep.name, await app.sweeps.run_now(sweep.name)))
        except Exception as error:  # whatever it is, the other sweeps have their turn, and the exit code tells
            log.exception("the sweep %s failed", sweep.name)
            made.append(Pass(sweep.name, error=f"{type(error).__name__}: {error}"))
    return made


class Tally:
    """Says in the log what sweeps have moved: a line for each that moved something, and not at every pass."""

    def __init__(self, ticks: Callable[[], float] = time.monotonic) -> None:
        self._ticks = ticks
        self._moved: dict[str, int] = {}
        self._said: dict[str, float] = {}

    def swept(self, sweep: str, moved: int) -> None:
        self._moved[sweep] = self._moved.get(sweep, 0) + moved
        if self._moved[sweep] and self._ticks() - self._said.get(sweep, -SAY_EVERY) >= SAY_EVERY:
            self._say(sweep)

    def failed(self, sweep: str) -> None:
        """The runner has said so, with the error."""

    def say_all(self) -> None:
        for sweep in [name for name, moved in self._moved.items() if moved]:
            self._say(sweep)

    def _say(self, sweep: str) -> None:
        log.info("the sweep %s moved %d", sweep, self._moved.pop(sweep))
        self._said[sweep] = self._ticks()


async def _told_to_stop() -> None:
    """Returns at the first signal. The next one of its kind does not wait for anything."""
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    try:
        await told.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _document(sweeps: Collection[Sweep]) -> dict[str, object]:
    return {"items": [{"name": sweep.name, "every_ms": sweep.every_ms} for sweep in sweeps]}


def _named(sweep: Sweep) -> str:
    return f"{sweep.name} every {_span(sweep.every_ms)}"


def _span(milliseconds: int) -> str:
    return f"{milliseconds} ms" if milliseconds < 1_000 else f"{milliseconds / 1000:g} s"


def _width(sweeps: Collection[Sweep]) -> int:
    return max(len(sweep.name) for sweep in sweeps)
