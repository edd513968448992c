"""Who may be given something of what has become ready elsewhere: asked once for all who wait in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence

from quarterdeck.domain.tasks.operations.exchange import TaskWaiters, wants
from quarterdeck.domain.tasks.operations.loading import kinds_of
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.domain.tasks.rules.known import ClassRef, Kind
from quarterdeck.engine.tx import Engine, Tx


class Look:
    def __init__(self, engine: Engine, waiters: TaskWaiters, poll_seconds: float) -> None:
        self._engine = engine
        self._waiters = waiters
        self._poll_seconds = poll_seconds

    async def __call__(self, zones: Sequence[str]) -> float:
        """Has one ask again for each class of which something may begin: it takes what it can, and the next look finds
        whether there is more. How long until somebody may ask who was put off."""
        ready = await self._engine.read(lambda tx: _ready(tx, zones), zones=set(zones))
        now, pause = time.monotonic(), self._poll_seconds
        for (zone_id, _), kind in ready.items():
            for waiter in self._waiters.of(zone_id):
                if wants(waiter.claim, kind, now):
                    self._waiters.ask(waiter)
                    self._waiters.stir.set()
                    break
                pause = (
                    min(pause, max(0.01, waiter.claim.not_before - now)) if waiter.claim.not_before else pause
                )
        return pause


async def _ready(tx: Tx, zones: Sequence[str]) -> dict[ClassRef, Kind]:
    [rows] = await tx.read(Q.tasks_classes_ready(batch=[(zone_id,) for zone_id in zones]))
    return kinds_of(rows)[0]
