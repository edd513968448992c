"""Heartbeats, shown to others: the newest of each agent, a moment after its commit.

They are many, and each is worth nothing once the next has come. So nobody waits for them to be shown: of each agent
the newest is kept until it is written, with all others that came meanwhile; of more agents than there is room for,
and while the other side is away, they are lost, and counted. What an agent's status says of its last heartbeat is put
right by comparison (`engine.mirror`); the rest ends by itself within a minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable

from quarterdeck.bus.redis.interfaces import BusUnavailable
from quarterdeck.bus.redis.key_layout import Heartbeat, KeyWriter, Ref

log = logging.getLogger("quarterdeck.beats")
AGENTS_MAX = 20_000
CHUNK_MAX = 500
GATHER_SECONDS = 0.05
UNAVAILABLE_SECONDS = 1.0


class HeartbeatMirror:
    def __init__(self, key_writer: KeyWriter) -> None:
        self.lost = 0
        self._key_writer = key_writer
        self._newest: dict[Ref, Heartbeat] = {}
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def record(self, heartbeats: Iterable[Heartbeat]) -> None:
        """After the commit. Only remembers: whoever beats is waiting."""
        for heartbeat in heartbeats:
            if heartbeat.ref in self._newest or len(self._newest) < AGENTS_MAX:
                self._newest[heartbeat.ref] = heartbeat
            else:
                self.lost += 1
        self._wakeup.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="beats")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        is_unavailable = False
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            try:
                await self.write()
            except Exception as error:
                # So broad because nobody would notice the end of this task; what was not written is counted as lost.
                is_expected = isinstance(error, BusUnavailable)
                if not is_unavailable or not is_expected:
                    log.warning("heartbeats cannot be shown: %s", error, exc_info=not is_expected)
                is_unavailable = True
                self._drop_all()
                await asyncio.sleep(UNAVAILABLE_SECONDS)
                self._drop_all()
                continue
            is_unavailable = False
            await asyncio.sleep(GATHER_SECONDS)

    async def write(self) -> None:
        """All that have come."""
        while self._newest:
            chunk = [*self._newest.values()][:CHUNK_MAX]
            await self._key_writer.write_heartbeats(chunk)
            for heartbeat in chunk:
                # A newer one may have come meanwhile.
                if self._newest.get(heartbeat.ref) is heartbeat:
                    del self._newest[heartbeat.ref]

    def _drop_all(self) -> None:
        self.lost += len(self._newest)
        self._newest.clear()
