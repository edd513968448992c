"""Writes the latest heartbeat of each agent to Redis, shortly after its commit.

There are many heartbeats, and each is obsolete once the next arrives. So requests do not wait for the write: the mirror
keeps the latest heartbeat of each agent and writes those of many agents together. Heartbeats of more than `AGENTS_MAX`
agents, and those that arrive while Redis is not reachable, are dropped and counted. The last heartbeat in an agent's
status key is repaired by comparison (`engine.mirrors.keys`); the heartbeat keys expire within a minute.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from quarterdeck.bus.redis.interfaces import BusUnavailable
from quarterdeck.bus.redis.key_layout import Heartbeat, KeyWriter
from quarterdeck.core.ids import Ref
from quarterdeck.engine.background import BackgroundLoop

log = logging.getLogger("quarterdeck.heartbeats")
AGENTS_MAX = 20_000
CHUNK_MAX = 500
GATHER_SECONDS = 0.05
UNAVAILABLE_PAUSE_SECONDS = 1.0


class HeartbeatMirror(BackgroundLoop):
    def __init__(self, key_writer: KeyWriter) -> None:
        super().__init__("heartbeats")
        self.lost_count = 0
        self._key_writer = key_writer
        self._newest: dict[Ref, Heartbeat] = {}
        self._wakeup = asyncio.Event()

    def record(self, heartbeats: Iterable[Heartbeat]) -> None:
        """Called after the commit. Does not write yet, because the sender is waiting for its response."""
        for heartbeat in heartbeats:
            if heartbeat.ref in self._newest or len(self._newest) < AGENTS_MAX:
                self._newest[heartbeat.ref] = heartbeat
            else:
                self.lost_count += 1
        self._wakeup.set()

    async def _run(self) -> None:
        is_unavailable = False
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            try:
                await self.write()
            except Exception as error:
                # Broad, because the end of this task would go unnoticed. Unwritten heartbeats count as lost.
                is_expected = isinstance(error, BusUnavailable)
                if not is_unavailable or not is_expected:
                    log.warning("cannot write heartbeats to Redis: %s", error, exc_info=not is_expected)
                is_unavailable = True
                self._drop_all()
                await asyncio.sleep(UNAVAILABLE_PAUSE_SECONDS)
                self._drop_all()
                continue
            is_unavailable = False
            await asyncio.sleep(GATHER_SECONDS)

    async def write(self) -> None:
        """Write all stored heartbeats."""
        while self._newest:
            chunk = [*self._newest.values()][:CHUNK_MAX]
            await self._key_writer.write_heartbeats(chunk)
            for heartbeat in chunk:
                # A newer heartbeat may have arrived during the write.
                if self._newest.get(heartbeat.ref) is heartbeat:
                    del self._newest[heartbeat.ref]

    def _drop_all(self) -> None:
        self.lost_count += len(self._newest)
        self._newest.clear()
