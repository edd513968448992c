"""Who may be given something of what has become ready elsewhere, who will be given nothing any more, and whose agent is
to be heard of again: asked once for all who wait in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence

from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.tasks.operations.batch import TaskWaiters, wants
from quarterdeck.domain.tasks.operations.load import kinds_of
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.domain.tasks.rules.batch_input import ClassRef, Kind
from quarterdeck.engine.transaction import Engine, Tx

AGENTS_SECONDS = 0.5
"""Between two looks at the agents of those who wait: they may be a thousand, commits many, and an end is rare. Half of
the shortest time after which the silence of an agent may count."""


class Look:
    def __init__(self, engine: Engine, waiters: TaskWaiters, poll_seconds: float) -> None:
        self._engine = engine
        self._waiters = waiters
        self._poll_seconds = poll_seconds
        self._agents_at = float("-inf")
        """When it was last asked how the agents stand."""

    async def __call__(self, zones: Sequence[str]) -> float:
        """Has one ask again for each class of which something may begin: it takes what it can, and the next look finds
        whether there is more. How long until somebody may ask who was put off."""
        pause = await self._look_at_agents(zones)
        ready = await self._engine.read(lambda tx: _ready(tx, zones), zones=set(zones))
        now = time.monotonic()
        for (zone_id, _), kind in ready.items():
            for waiter in self._waiters.of(zone_id):
                if wants(waiter.claim, kind, now):
                    self._waiters.ask(waiter)
                    self._waiters.stir.set()
                    break
                pause = min(pause, max(0.01, waiter.claim.not_before - now)) if waiter.claim.not_before else pause
        return pause

    async def _look_at_agents(self, zones: Sequence[str]) -> float:
        """Has those ask again whose agent was ended, here or elsewhere, or is about to: they are told so at once, and
        not when their time is up. And those whose agent was not heard of for long: a claim is a sign of life, so that
        no agent is lost while it waits for work. How long until the next look."""
        now = time.monotonic()
        if now < self._agents_at + AGENTS_SECONDS:
            return min(self._poll_seconds, self._agents_at + AGENTS_SECONDS - now)
        refs = {(zone_id, waiter.claim.agent_id) for zone_id in zones for waiter in self._waiters.of(zone_id)}
        within = await self._engine.read(lambda tx: agents.waiting(tx, refs), zones=set(zones))
        self._agents_at = now
        silent = {ref for ref, ms in within.items() if ms == 0}
        for zone_id in {zone_id for zone_id, _ in silent}:
            for waiter in self._waiters.of(zone_id):
                if (zone_id, waiter.claim.agent_id) in silent:
                    self._waiters.ask(waiter)
        soonest = min((ms for ms in within.values() if ms), default=None)
        return self._poll_seconds if soonest is None else min(self._poll_seconds, soonest / 1000)


async def _ready(tx: Tx, zones: Sequence[str]) -> dict[ClassRef, Kind]:
    [rows] = await tx.read(Q.tasks_classes_ready(batch=[(zone_id,) for zone_id in zones]))
    return kinds_of(rows)[0]
