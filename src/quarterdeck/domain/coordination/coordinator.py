"""The coordinator's turns: look once, act on what was seen, say when the next look is due.

Everything it sees it finds by indexes across zones, so many of each at a time. What was found is acted upon, and then
looked for once more, until nothing is found. What is found again and again does not move, and is left alone a while.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from quarterdeck.core.clock import Millis, system_now
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import Look, Standing, ToLookAt
from quarterdeck.domain.coordination import dependency_cycles
from quarterdeck.domain.coordination.assignment import Assigning, Openings, sorted_out
from quarterdeck.domain.coordination.dependency_cycles import Waiting
from quarterdeck.domain.coordination.launchers import Launching
from quarterdeck.domain.coordination.metrics import Figures
from quarterdeck.domain.coordination.model import CoordinationSettings
from quarterdeck.domain.coordination.rules import recovery
from quarterdeck.domain.coordination.rules.recovery import Seen
from quarterdeck.domain.tasks.model.commands import Command, Cut, Outcome
from quarterdeck.domain.tasks.operations import coordinator_queries
from quarterdeck.domain.tasks.operations.coordinator_queries import Unsettled
from quarterdeck.domain.tasks.operations.strategies import Ranked, RankStep
from quarterdeck.engine.leases import Fence
from quarterdeck.engine.transaction import Engine, Tx

log = logging.getLogger("quarterdeck.coordinator")
LIMIT = 500
"""Of each that one turn finds."""
LOOK_LIMIT = 100
"""Agents, each of which may hold many tasks that go back with it."""
AGAIN_SECONDS, AGAIN_MAX, STUCK_SECONDS = 0.05, 100, 5.0
"""Between turns that find the same; after so many of them it does not move: what has ten thousand that depend on it
takes ten turns, and looks the same in each."""
FIGURES_SECONDS = 10.0
COUNTED_MAX = 100_000
Shown = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Means:
    """What it acts through."""

    everywhere: Engine
    submit: Callable[[Command], Awaitable[Outcome]]
    look: Callable[[Look], Awaitable[Standing]]
    rank: Callable[[RankStep], Awaitable[Ranked]]
    took: Callable[[float], None]
    """Told how many seconds a turn took."""


@dataclass(frozen=True, slots=True)
class View:
    """What a look has found."""

    tasks: Unsettled
    silent: list[ToLookAt]
    next_look_ms: Millis | None
    openings: Openings
    is_check_due: bool

    @property
    def seen(self) -> Seen:
        return _seen(self.tasks)

    @property
    def asks_for_something(self) -> bool:
        return self.has_found or bool(self.openings.places) or self.is_check_due

    @property
    def has_found(self) -> bool:
        return bool(len(self.seen) or self.silent or self.tasks.unranked)

    @property
    def seconds(self) -> list[float]:
        """Until moments that are known."""
        return [ms / 1000 for ms in (self.tasks.next_ms, self.next_look_ms) if ms is not None]


class Coordinator:
    """What the duty consists of (`engine.duties.Work`)."""

    def __init__(self, means: Means, launching: Launching, settings: CoordinationSettings, figures: Figures) -> None:
        self._means = means
        self._assigning = Assigning(means.everywhere, means.submit, launching)
        self._figures = figures
        self._check_seconds = settings.coordinator_cycle_check_ms / 1000
        self._term: int | None = None
        self._checked_at: float | None = None
        """When cycles were last looked for in all zones."""
        self._walked_to = dependency_cycles.BEGINNING
        self._counted_at: float | None = None
        self._last: tuple[Seen, Sequence[ToLookAt]] | None = None
        self._repeated = 0

    async def is_due(self) -> bool | float:
        view = await self._view()
        self._note()
        if view.asks_for_something:
            return True
        return min(view.seconds, default=False)

    async def turn(self, fence: Fence) -> float | None:
        """Health, assignments, dependencies, recovery."""
        began = time.perf_counter()
        if fence.term != self._term:
            # Whoever was here before may have left in the middle of it.
            self._term, self._checked_at = fence.term, None
        view, shown = await self._view(), (fence.name, fence.term)
        await self._look_at(view.silent)
        moved = await self._assigning.assign(view.openings, shown) if view.openings.places else 0
        await self.act(view.seen, shown)
        await self._rank(view.tasks.unranked, shown)
        if view.is_check_due:
            moved += await self._check_cycles(shown)
        self._note()
        self._means.took(time.perf_counter() - began)
        return self._rest(view, moved)

    async def rest(self, fence: Fence | None) -> None:
        """It leaves nothing behind: what it has not done stands in rows."""

    def _rest(self, view: View, moved: int) -> float | None:
        found = (view.seen, view.silent)
        self._repeated = self._repeated + 1 if view.has_found and found == self._last else 0
        self._last = found
        if self._repeated >= AGAIN_MAX:
            log.warning("what the coordinator finds does not move: %s", found)
            return STUCK_SECONDS
        if moved or view.has_found:
            return AGAIN_SECONDS if self._repeated else 0.0
        put_off = self._assigning.seconds()
        return min([*view.seconds, *([] if put_off is None else [put_off])], default=None)

    # -- looking -------------------------------------------------------------------------------------------------

    async def _view(self) -> View:
        return await self._means.everywhere.read(self._look)

    async def _look(self, tx: Tx) -> View:
        now = time.monotonic()
        tasks = await coordinator_queries.unsettled(tx, LIMIT)
        silent = await agents.to_look_at(tx, LOOK_LIMIT)
        next_look_ms = await agents.next_look(tx)
        openings = await self._assigning.openings(tx)
        is_time = self._checked_at is None or now - self._checked_at >= self._check_seconds
        is_check_due = is_time and await coordinator_queries.anything_waits(tx)
        if self._counted_at is None or now - self._counted_at >= FIGURES_SECONDS:
            self._counted_at = now
            self._figures.stale_agents = await agents.stale_count(tx)
            self._figures.tasks_pending = await coordinator_queries.pending(tx, COUNTED_MAX)
        return View(tasks, silent, next_look_ms, openings, is_check_due)

    def _note(self) -> None:
        self._figures.cycles += 1
        self._figures.last_cycle = system_now()

    # -- acting --------------------------------------------------------------------------------------------------

    async def _look_at(self, silent: Sequence[ToLookAt]) -> None:
        asks = [Look(zone_id=each.zone_id, agent_id=each.id) for each in silent]
        sorted_out(await asyncio.gather(*map(self._means.look, asks), return_exceptions=True))

    async def act(self, seen: Seen, fence: Shown | None) -> None:
        await self._submit(recovery.steps(seen, fence, random.random))

    async def _rank(self, zones: Sequence[str], fence: Shown) -> None:
        asks = [RankStep(zone_id=zone_id, fence=fence) for zone_id in zones]
        sorted_out(await asyncio.gather(*map(self._means.rank, asks), return_exceptions=True))

    async def _check_cycles(self, fence: Shown | None) -> int:
        """Fails the tasks that wait for each other; how many did."""
        waiting = await dependency_cycles.walk(self._means.everywhere, self._walked_to)
        self._checked_at, self._walked_to = time.monotonic(), waiting.stopped_at
        return await self._cut(waiting, fence)

    async def _cut(self, waiting: Waiting, fence: Shown | None) -> int:
        """Weighed in a thread: a hundred thousand take their time."""
        cuts = await asyncio.to_thread(_cuts, waiting, fence)
        if cuts:
            log.error("tasks wait for each other: %s", sorted({cut.cycle for cut in cuts})[:10])
        await self._submit(cuts)
        return len(cuts)

    async def _submit(self, asks: Sequence[Command]) -> None:
        sorted_out(await asyncio.gather(*map(self._means.submit, asks), return_exceptions=True))

    # -- by hand -------------------------------------------------------------------------------------------------

    async def recover(self, zone_id: str | None) -> tuple[Seen, int, int]:
        """One look for whoever asks, in one zone or everywhere: what was found of tasks, how many agents were looked
        at, and how many tasks stood in cycles. Without a term: each command looks at its row again, and does nothing
        that it would not do for the coordinator. Asked for in one zone, it puts off nothing that is due in others."""
        seen, silent = await self._means.everywhere.read(partial(_lost, zone_id=zone_id))
        await self._look_at(silent)
        await self.act(seen, None)
        if zone_id is None:
            return seen, len(silent), await self._check_cycles(None)
        waiting = await dependency_cycles.walk_of_zone(self._means.everywhere, zone_id)
        return seen, len(silent), await self._cut(waiting, None)


async def _lost(tx: Tx, zone_id: str | None) -> tuple[Seen, list[ToLookAt]]:
    tasks = await coordinator_queries.unsettled(tx, LIMIT, zone_id)
    return _seen(tasks), await agents.to_look_at(tx, LOOK_LIMIT, zone_id)


def _seen(found: Unsettled) -> Seen:
    return Seen(found.timed_out, found.overdue, found.due, found.spreading)


def _cuts(waiting: Waiting, fence: Shown | None) -> list[Cut]:
    return [
        cut for zone_id, depends_on in waiting.depends_on.items() for cut in recovery.cuts(zone_id, depends_on, fence)
    ]
