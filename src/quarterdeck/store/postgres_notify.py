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

from quarterdeck.core.retry import Policy, backoff

log = logging.getLogger("quarterdeck.wake")
NOTIFY_INTERVAL_SECONDS = 0.02
RESPONSE_SECONDS = 7.0
"""Seconds for a NOTIFY to be answered, after which the connection is given up."""
BACKOFF = Policy(max_attempts=0, base_ms=100, cap_ms=5_000)
LISTEN = b"listen quarterdeck"
NOTIFY = b"notify quarterdeck"
CONNECTION_OPTIONS: dict[str, str | int] = {
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


class NotifyTransport:
    """Carries the wakes of one process; see `engine.wake.Carrier`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._on_wakeup: Callable[[], None] = lambda: None
        self._is_send_pending = False
        """Whether the others are still to be told of something."""
        self._activity = asyncio.Event()
        """There is something to read, or to send."""
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    def start(self, on_wakeup: Callable[[], None]) -> None:
        self._on_wakeup = on_wakeup
        self._task = asyncio.get_running_loop().create_task(self._run(), name="wakes")

    def send(self) -> None:
        # Most commits find that the others are about to be told anyway.
        if not self._is_send_pending:
            self._is_send_pending = True
            self._activity.set()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            try:
                await self._serve_connection()
            except Exception as error:
                # So broad because nobody would notice the end of this task: wakes would be late from then on, for ever.
                self._failures += 1
                # What was on its way may be lost: the others are told again as soon as they can be.
                self._is_send_pending = True
                if self._failures == 1:
                    log.warning("no wakes from or to other processes until PostgreSQL is back: %r", error)
            await asyncio.sleep(backoff(BACKOFF, attempt=self._failures, jitter=random.random()) / 1000)

    async def _serve_connection(self) -> None:
        """Until the connection is lost."""
        connection = await AsyncConnection.connect(make_conninfo(self._url, **CONNECTION_OPTIONS), autocommit=True)
        try:
            await connection.execute(LISTEN)
            if self._failures:
                log.info("wakes come and go again")
            self._failures = 0
            # Whatever was sent while nobody listened here is not sent again.
            self._on_wakeup()
            await self._send_and_receive(connection.pgconn)
        finally:
            await connection.close()

    async def _send_and_receive(self, pgconn: PGconn) -> None:
        loop = asyncio.get_running_loop()
        sent_at, is_idle = loop.time() - NOTIFY_INTERVAL_SECONDS, True
        while True:
            self._activity.clear()
            pgconn.consume_input()
            is_idle = is_idle or _is_finished(pgconn)
            if _received_wakeup(pgconn):
                self._on_wakeup()
            if self._is_send_pending and is_idle and loop.time() >= sent_at + NOTIFY_INTERVAL_SECONDS:
                self._is_send_pending, is_idle, sent_at = False, False, loop.time()
                pgconn.send_query(NOTIFY)
            # A peer without room for twenty bytes is a peer that does not answer.
            pgconn.flush()
            if is_idle:
                await self._wait(sent_at + NOTIFY_INTERVAL_SECONDS if self._is_send_pending else None, pgconn.socket)
            elif loop.time() < sent_at + RESPONSE_SECONDS:
                await self._wait(sent_at + RESPONSE_SECONDS, pgconn.socket)
            else:
                raise TimeoutError("a NOTIFY was not answered")

    async def _wait(self, deadline: float | None, descriptor: int) -> None:
        """There is something to do, or the instant has come."""
        loop = asyncio.get_running_loop()
        # Only while waiting: libpq closes the socket of a connection that is lost, and the loop must not watch a
        # descriptor that is somebody else's next.
        loop.add_reader(descriptor, self._activity.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._activity.wait()
        finally:
            loop.remove_reader(descriptor)


def _is_finished(pgconn: PGconn) -> bool:
    """Whether the statement that was sent is over. Raises if it failed: a NOTIFY fails for no reason of its own."""
    while not pgconn.is_busy():
        result = pgconn.get_result()
        if result is None:
            return True
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.OperationalError(result.get_error_message())
    return False


def _received_wakeup(pgconn: PGconn) -> bool:
    """Whether another process has sent a wake; what this one sent comes back, too."""
    received = False
    while notice := pgconn.notifies():
        received = received or notice.be_pid != pgconn.backend_pid
    return received
