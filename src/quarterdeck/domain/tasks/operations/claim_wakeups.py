"""Wakes waiting claims when tasks are ready, when their agent has ended or is draining, or is about to become stale.

One check serves all waiting claims of the process.
"""

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
"""Minimum time between two checks of the agents of waiting claims. Agents rarely end, and checking 1,000 of them after
every commit would be expensive. The value is half of the shortest stale threshold."""


class ClaimWakeups:
    def __init__(self, engine: Engine, polls: ClaimPolls, poll_seconds: float) -> None:
        self._engine = engine
        self._polls = polls
        self._poll_seconds = poll_seconds
        self._agents_checked_at = float("-inf")

    async def __call__(self, zones: Sequence[str]) -> float:
        """Wake one claim for each class with ready tasks. If it cannot take them all, the next check wakes another.

        Returns the seconds until the next check.
        """
        next_check_seconds = await self._wake_for_agents(zones)
        ready_classes = await self._engine.read(lambda tx: _load_ready_classes(tx, zones), zones=set(zones))
        now = time.monotonic()
        for (zone_id, _), task_class in ready_classes.items():
            for poll in self._polls.waiting(zone_id):
                if accepts(poll.request, task_class, now):
                    self._polls.retry(poll)
                    self._polls.wakeup.set()
                    break
                if poll.request.not_before:
                    next_check_seconds = min(next_check_seconds, max(0.01, poll.request.not_before - now))
        return next_check_seconds

    async def _wake_for_agents(self, zones: Sequence[str]) -> float:
        """Wake claims whose agent has ended or is draining, so that they return at once instead of at their timeout.

        Also wake claims whose agent is about to become stale: the repeated claim counts as contact, so no agent becomes
        stale while it is waiting for work. Returns the seconds until the next check.
        """
        now = time.monotonic()
        if now < self._agents_checked_at + AGENT_CHECK_SECONDS:
            return min(self._poll_seconds, self._agents_checked_at + AGENT_CHECK_SECONDS - now)
        refs = {(zone_id, poll.request.agent_id) for zone_id in zones for poll in self._polls.waiting(zone_id)}
        ms_until_due = await self._engine.read(lambda tx: agents.load_ms_until_contact(tx, refs), zones=set(zones))
        self._agents_checked_at = now
        agents_due = {ref for ref, ms in ms_until_due.items() if ms == 0}
        for zone_id in {zone_id for zone_id, _ in agents_due}:
            for poll in self._polls.waiting(zone_id):
                if (zone_id, poll.request.agent_id) in agents_due:
                    self._polls.retry(poll)
        soonest_ms = min((ms for ms in ms_until_due.values() if ms), default=None)
        return self._poll_seconds if soonest_ms is None else min(self._poll_seconds, soonest_ms / 1000)


async def _load_ready_classes(tx: Transaction, zones: Sequence[str]) -> dict[ClassRef, TaskClass]:
    [rows] = await tx.read(Q.task_classes_ready(batch=[(zone_id,) for zone_id in zones]))
    return decode_classes(rows)[0]
