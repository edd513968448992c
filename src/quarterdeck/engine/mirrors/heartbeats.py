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

from quarterdeck.bus.redis.interfaces import Away
from quarterdeck.bus.redis.key_layout import KeyBoard, Pulse, Ref

log = logging.getLogger("quarterdeck.beats")
AGENTS_MAX = 20_000
WRITTEN_AT_ONCE = 500
GATHER_SECONDS = 0.05
AWAY_SECONDS = 1.0


class BeatWriter:
    def __init__(self, board: KeyBoard) -> None:
        self.lost = 0
        self._board = board
        self._newest: dict[Ref, Pulse] = {}
        self._woken = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def heard(self, pulses: Iterable[Pulse]) -> None:
        """After the commit. Only remembers: whoever beats is waiting."""
        for pulse in pulses:
            if pulse.ref in self._newest or len(self._newest) < AGENTS_MAX:
                self._newest[pulse.ref] = pulse
            else:
                self.lost += 1
        self._woken.set()

    def start(self) -> None:
        self._running = asyncio.create_task(self._run(), name="beats")

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _run(self) -> None:
        is_away = False
        while True:
            await self._woken.wait()
            self._woken.clear()
            try:
                await self.write()
            except Exception as error:
                # So broad because nobody would notice the end of this task; what was not written is counted as lost.
                expected = isinstance(error, Away)
                if not is_away or not expected:
                    log.warning("heartbeats cannot be shown: %s", error, exc_info=not expected)
                is_away = True
                self._lose()
                await asyncio.sleep(AWAY_SECONDS)
                self._lose()
                continue
            is_away = False
            await asyncio.sleep(GATHER_SECONDS)

    async def write(self) -> None:
        """All that have come."""
        while self._newest:
            some = [*self._newest.values()][:WRITTEN_AT_ONCE]
            await self._board.beat(some)
            for pulse in some:
                # A newer one may have come meanwhile.
                if self._newest.get(pulse.ref) is pulse:
                    del self._newest[pulse.ref]

    def _lose(self) -> None:
        self.lost += len(self._newest)
        self._newest.clear()
