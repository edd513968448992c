"""How coordination fares, and what it needs: asked by anybody, so asked of others only now and then.

Each of the others is asked in the background, by one at a time, and not again before a few seconds are over. Whoever
asks waits a moment for the first word about it, and never for more: one that does not answer is away. So no number of
questions makes this server ask others more often, and none of them hangs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core.clock import iso_or_none
from quarterdeck.domain.coordination.metrics import Figures
from quarterdeck.domain.coordination.model import CoordinatorHealth, CycleView
from quarterdeck.engine.leader_loop import Duty

log = logging.getLogger("quarterdeck.coordinator")
FRESH_SECONDS = 5.0
PATIENCE_SECONDS = 1.0
NOT_CONFIGURED = "not_configured"
Ask = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Words:
    """How it is said."""

    there: str
    away: str


CONNECTED = Words("connected", "disconnected")
REACHABLE = Words("reachable", "unreachable")


class Check:
    """Whether one of the others is there: it is if asking raises nothing, within its time."""

    def __init__(self, ask: Ask, words: Words) -> None:
        self._ask = ask
        self._words = words
        self._asked_at: float | None = None
        self._asking: asyncio.Task[None] | None = None
        self._is_there = False

    async def said(self) -> str:
        now = asyncio.get_running_loop().time()
        if self._asking is None and (self._asked_at is None or now - self._asked_at >= FRESH_SECONDS):
            self._asked_at = now
            self._asking = asyncio.create_task(self._find_out(), name="health")
            self._asking.add_done_callback(self._found_out)
        if self._asking is not None:
            done, _ = await asyncio.wait({self._asking}, timeout=PATIENCE_SECONDS)
            self._is_there = self._is_there and bool(done)
        return self._words.there if self._is_there else self._words.away

    async def _find_out(self) -> None:
        try:
            await self._ask()
            self._is_there = True
        except Exception as error:
            # So broad because whatever is wrong with it, it is not there; what it was is in the log.
            log.debug("a check of health failed: %r", error)
            self._is_there = False

    def _found_out(self, task: asyncio.Task[None]) -> None:
        self._asking = None

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})


class CoordinationHealth:
    def __init__(
        self, duty: Duty, figures: Figures, database: Check, valkey: Check | None, gateway: Check | None
    ) -> None:
        self._duty = duty
        self._figures = figures
        self._database = database
        self._valkey = valkey
        self._gateway = gateway

    @property
    def is_active(self) -> bool:
        """Whether this process looks after tasks and agents, or would as soon as nobody else does."""
        return self._duty.is_running and self._duty.error is None

    async def view(self) -> CoordinatorHealth:
        database, valkey, gateway = await asyncio.gather(
            self._database.said(), _said(self._valkey), _said(self._gateway)
        )
        is_well = self.is_active and database == CONNECTED.there
        others = {CONNECTED.there, REACHABLE.there, NOT_CONFIGURED}
        status = "unhealthy" if not is_well else "healthy" if {valkey, gateway} <= others else "degraded"
        cycle = CycleView(self.is_active, iso_or_none(self._figures.last_cycle), self._figures.cycles)
        return CoordinatorHealth(status, cycle, database, valkey, gateway)

    def start(self) -> None:
        """Asks nobody before it is asked."""

    async def stop(self) -> None:
        for check in (self._database, self._valkey, self._gateway):
            if check is not None:
                await check.close()


async def _said(check: Check | None) -> str:
    return NOT_CONFIGURED if check is None else await check.said()
