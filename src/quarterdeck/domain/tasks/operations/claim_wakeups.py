"""Who may be given something of what has become ready elsewhere, who will be given nothing any more, and whose agent is
to be heard of again: asked once for all who wait in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence

from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.tasks.operations.batch import ClaimPolls, accepts
from quarterdeck.domain.tasks.operations.load import decode_classes
from quarterdeck.domain.tasks.queries import Q
from quarterdeck.domain.tasks.rules.batch_input import ClassRef, TaskClass
from quarterdeck.engine.transaction import Engine, Transaction

AGENT_CHECK_SECONDS = 0.5
"""Between two looks at the agents of those who wait: they may be a thousand, commits many, and an end is rare. Half of
the shortest time after which the silence of an agent may count."""


class ClaimWakeups:
    def __init__(self, engine: Engine, polls: ClaimPolls, poll_seconds: float) -> None:
        self._engine = engine
        self._polls = polls
        self._poll_seconds = poll_seconds
        self._agents_checked_at = float("-inf")
        """When it was last asked how the agents stand."""

    async def __call__(self, zones: Sequence[str]) -> float:
        """Has one ask again for each class of which something may begin: it takes what it can, and the next look finds
        whether there is more. How long until somebody may ask who was put off."""
        pause = await self._wake_for_agents(zones)
        ready = await self._engine.read(lambda tx: _ready_classes(tx, zones), zones=set(zones))
        now = time.monotonic()
        for (zone_id, _), task_class in ready.items():
            for poll in self._polls.waiting(zone_id):
                if accepts(poll.claim, task_class, now):
                    self._polls.retry(poll)
                    self._polls.wakeup.set()
                    break
                pause = min(pause, max(0.01, poll.claim.not_before - now)) if poll.claim.not_before else pause
        return pause

    async def _wake_for_agents(self, zones: Sequence[str]) -> float:
        """Has those ask again whose agent was ended, here or elsewhere, or is about to: they are told so at once, and
        not when their time is up. And those whose agent was not heard of for long: a claim is a sign of life, so that
        no agent is lost while it waits for work. How long until the next look."""
        now = time.monotonic()
        if now < self._agents_checked_at + AGENT_CHECK_SECONDS:
            return min(self._poll_seconds, self._agents_checked_at + AGENT_CHECK_SECONDS - now)
        refs = {(zone_id, poll.claim.agent_id) for zone_id in zones for poll in self._polls.waiting(zone_id)}
        due_in_ms = await self._engine.read(lambda tx: agents.load_contact_deadlines(tx, refs), zones=set(zones))
        self._agents_checked_at = now
        silent = {ref for ref, ms in due_in_ms.items() if ms == 0}
        for zone_id in {zone_id for zone_id, _ in silent}:
            for poll in self._polls.waiting(zone_id):
                if (zone_id, poll.claim.agent_id) in silent:
                    self._polls.retry(poll)
        soonest = min((ms for ms in due_in_ms.values() if ms), default=None)
        return self._poll_seconds if soonest is None else min(self._poll_seconds, soonest / 1000)


async def _ready_classes(tx: Transaction, zones: Sequence[str]) -> dict[ClassRef, TaskClass]:
    [rows] = await tx.read(Q.task_classes_ready(batch=[(zone_id,) for zone_id in zones]))
    return decode_classes(rows)[0]
