"""Wake-ups between processes through PostgreSQL's NOTIFY.

One separate connection sends and listens. Lanes do not send NOTIFY in their own transactions: a COMMIT with a NOTIFY
takes a cluster-wide lock, so the commits of all lanes would queue behind each other. At most one NOTIFY is sent per
`NOTIFY_INTERVAL_SECONDS`; it covers all wake-ups in that interval, since a wake-up has no content. A lost connection is
reopened with a backoff. Receivers also poll at an interval, so without the connection they only react later.
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

log = logging.getLogger("quarterdeck.wakeups")
NOTIFY_INTERVAL_SECONDS = 0.02
RESPONSE_TIMEOUT_SECONDS = 7.0
"""The connection is closed if a NOTIFY gets no response for this long."""
BACKOFF = Policy(max_attempts=0, base_ms=100, cap_ms=5_000)
LISTEN = b"listen quarterdeck"
NOTIFY = b"notify quarterdeck"
CONNECTION_OPTIONS: dict[str, str | int] = {
    "application_name": "quarterdeck-wake",
    "connect_timeout": 5,
    # Without these, a connection to a peer that disappeared would never be closed.
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    # Only a writable node accepts a NOTIFY.
    "target_session_attrs": "read-write",
}


class NotifyTransport:
    """The wake-up transport of one process; see `engine.wakeups.WakeupTransport`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._on_wakeup: Callable[[], None] = lambda: None
        self._is_send_pending = False
        """Whether a wake-up is still to be sent."""
        self._activity = asyncio.Event()
        """Set when there may be something to read or to send."""
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    def start(self, on_wakeup: Callable[[], None]) -> None:
        self._on_wakeup = on_wakeup
        self._task = asyncio.get_running_loop().create_task(self._run(), name="wakeups")

    def send(self) -> None:
        # Most commits find a wake-up already pending.
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
                # Broad, because the end of this task would go unnoticed: all later wake-ups would be late.
                self._failures += 1
                # A wake-up that was being sent may be lost: send again after the reconnect.
                self._is_send_pending = True
                if self._failures == 1:
                    log.warning("no wake-ups from or to other processes until PostgreSQL is back: %r", error)
            await asyncio.sleep(backoff(BACKOFF, attempt=self._failures, jitter=random.random()) / 1000)

    async def _serve_connection(self) -> None:
        """Open a connection and use it until it is lost, then raise."""
        connection = await AsyncConnection.connect(make_conninfo(self._url, **CONNECTION_OPTIONS), autocommit=True)
        try:
            await connection.execute(LISTEN)
            if self._failures:
                log.info("wake-ups between processes work again")
            self._failures = 0
            # Wake-ups that were sent while this process was not listening are lost.
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
            # If the 20 bytes cannot be written now, the peer is not responding, and the timeout below applies.
            pgconn.flush()
            if is_idle:
                await self._wait(sent_at + NOTIFY_INTERVAL_SECONDS if self._is_send_pending else None, pgconn.socket)
            elif loop.time() < sent_at + RESPONSE_TIMEOUT_SECONDS:
                await self._wait(sent_at + RESPONSE_TIMEOUT_SECONDS, pgconn.socket)
            else:
                raise TimeoutError("no response to a NOTIFY")

    async def _wait(self, deadline: float | None, descriptor: int) -> None:
        """Wait until there is something to do or the deadline has passed."""
        loop = asyncio.get_running_loop()
        # The reader is registered only while waiting: libpq closes the socket of a lost connection, and the descriptor
        # may then be reused.
        loop.add_reader(descriptor, self._activity.set)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._activity.wait()
        finally:
            loop.remove_reader(descriptor)


def _is_finished(pgconn: PGconn) -> bool:
    """Whether the NOTIFY has finished. Raises `OperationalError` if it failed."""
    while not pgconn.is_busy():
        result = pgconn.get_result()
        if result is None:
            return True
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.OperationalError(result.get_error_message())
    return False


def _received_wakeup(pgconn: PGconn) -> bool:
    """Whether another process sent a wake-up. PostgreSQL also delivers this process's own notifications."""
    is_from_other = False
    while notification := pgconn.notifies():
        is_from_other = is_from_other or notification.be_pid != pgconn.backend_pid
    return is_from_other
