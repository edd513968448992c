"""Wakes between processes, by PostgreSQL's NOTIFY.

One connection of its own, which sends and listens. Never a lane's: a NOTIFY inside a transaction has its commit take a
lock that is one for the whole cluster, and the commits of all lanes would queue up behind each other. At most one is
sent in EVERY seconds; what is to be sent meanwhile is that one, since a wake carries nothing. A connection that is lost
is made again, with growing pauses; whoever is woken looks at an interval too, so meanwhile wakes are late and no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable

import psycopg
from psycopg import AsyncConnection, pq
from psycopg.conninfo import make_conninfo
from psycopg.pq.abc import PGconn

from quarterdeck.core.retry import Policy, delay

log = logging.getLogger("quarterdeck.wake")
EVERY = 0.02
PATIENCE = 7.0
"""Seconds for a NOTIFY to be answered, after which the connection is given up."""
BACKOFF = Policy(max_attempts=0, base_ms=100, cap_ms=5_000)
LISTEN = b"listen quarterdeck"
NOTIFY = b"notify quarterdeck"
CONNECTING: dict[str, str | int] = {
    "application_name": "quarterdeck-wake",
    "connect_timeout": 5,
    # A peer that vanished would otherwise be listened to for ever.
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    # Only a node that can be written to takes a NOTIFY.
    "target_session_attrs": "read-write",
}


class Notifier:
    """Carries the wakes of one process; see `engine.wake.Carrier`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._heard: Callable[[], None] = lambda: None
        self._owed = False
        """Whether the others are still to be told of something."""
        self._stir = asyncio.Event()
        """There is something to read, or to send."""
        self._failures = 0
        self._running: asyncio.Task[None] | None = None

    def start(self, heard: Callable[[], None]) -> None:
        self._heard = heard
        self._running = asyncio.get_running_loop().create_task(self._run(), name="wakes")

    def send(self) -> None:
        # Most commits find that the others are about to be told anyway.
        if not self._owed:
            self._owed = True
            self._stir.set()

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _run(self) -> None:
        while True:
            try:
                await self._connected()
            except Exception as error:
                # So broad because nobody would notice the end of this task: wakes would be late from then on, for ever.
                self._failures += 1
                # What was on its way may be lost: the others are told again as soon as they can be.
                self._owed = True
                if self._failures == 1:
                    log.warning("no wakes from or to other processes until PostgreSQL is back: %r", error)
            await asyncio.sleep(delay(BACKOFF, attempt=self._failures, chance=random.random()) / 1000)

    async def _connected(self) -> None:
        """Until the connection is lost."""
        connection = await AsyncConnection.connect(make_conninfo(self._url, **CONNECTING), autocommit=True)
        try:
            await connection.execute(LISTEN)
            if self._failures:
                log.info("wakes come and go again")
            self._failures = 0
            # Whatever was sent while nobody listened here is not sent again.
            self._heard()
            await self._carry(connection.pgconn)
        finally:
            await connection.close()

    async def _carry(self, pgconn: PGconn) -> None:
        loop = asyncio.get_running_loop()
        sent_at, answered = loop.time() - EVERY, True
        while True:
            self._stir.clear()
            pgconn.consume_input()
            answered = answered or _answered(pgconn)
            if _told(pgconn):
                self._heard()
            if self._owed and answered and loop.time() >= sent_at + EVERY:
                self._owed, answered, sent_at = False, False, loop.time()
                pgconn.send_query(NOTIFY)
            # A peer without room for twenty bytes is a peer that does not answer.
            pgconn.flush()
            if answered:
                await self._until(sent_at + EVERY if self._owed else None, pgconn.socket)
            elif loop.time() < sent_at + PATIENCE:
                await self._until(sent_at + PATIENCE, pgconn.socket)
            else:
                raise TimeoutError("a NOTIFY was not answered")

    async def _until(self, instant: float | None, descriptor: int) -> None:
        """There is something to do, or the instant has come."""
        loop = asyncio.get_running_loop()
        # Only while waiting: libpq closes the socket of a connection that is lost, and the loop must not watch a
        # descriptor that is somebody else's next.
        loop.add_reader(descriptor, self._stir.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(instant):
                    await self._stir.wait()
        finally:
            loop.remove_reader(descriptor)


def _answered(pgconn: PGconn) -> bool:
    """Whether the statement that was sent is over. Raises if it failed: a NOTIFY fails for no reason of its own."""
    while not pgconn.is_busy():
        result = pgconn.get_result()
        if result is None:
            return True
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.OperationalError(result.get_error_message())
    return False


def _told(pgconn: PGconn) -> bool:
    """Whether another process has sent a wake; what this one sent comes back, too."""
    heard = False
    while notice := pgconn.notifies():
        heard = heard or notice.be_pid != pgconn.backend_pid
    return heard
