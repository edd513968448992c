"""Outgoing: how a process finds what is to be sent to somebody's endpoint, and how much of it it sends at once.

    a commit, a pause that is over, an interval ─► look ─► take ─► one errand for each of what was taken
                                                     │        │
              those for whom something is due, but   │        └ up to the slots that were kept for it
              not those that have all their slots ───┘

Every process has its own, and none of them is special: what is due is found by all, and given to one of them by the
lane it is taken through. Nothing is remembered here but who has which slots.

How it fails. What cannot be taken is left alone for an interval; while the database is away nothing is begun. Whoever
takes its time holds slots of its own, and nobody else's. A stopping process takes nothing new, waits for what is under
way as long as it may, and leaves the rest to the time that each attempt has.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.fair_slots import Ref, ShareLimits, Shares
from quarterdeck.engine.background import Errands
from quarterdeck.engine.wakeups import Wakes
from quarterdeck.store.interface import StoreError

log = logging.getLogger("quarterdeck.outgoing")
LOOK_MAX = 100
"""Of those for whom something is due, one look finds so many at most."""
GAP_SECONDS = 0.005
QUIET_GAP_SECONDS = 0.05
"""Between two looks at least, however often it is woken: after one that found something, and after one that found
nothing. Every commit of every server wakes, and most have nothing to do with this."""
SHARE, QUIET_SHARE = 0.2, 0.05
"""Of the time, for looking: with ten thousand endpoints to look through, a look is no trifle."""
FAILED_GAP_SECONDS = 0.5
"""After one that failed."""
Full = Sequence[tuple[str, str | None]]
"""Whom a look passes over: without a name, all of a zone."""


@dataclass(frozen=True, slots=True)
class Terms:
    what: str
    """What is sent, as it is said in the log: `pushes`."""
    limits: ShareLimits
    at_once: int
    """How much is taken for one in one piece."""
    poll_seconds: float
    grace_seconds: float
    """For what is under way when the process stops."""


@dataclass(frozen=True, slots=True)
class Found:
    """Somebody for whom something waits."""

    ref: Ref
    in_ms: Millis
    """Until it is due."""
    take: Callable[[Ref, int], Awaitable[int]]
    """Takes up to so many, and has each sent; how many these were."""


class Outgoing(ABC):
    def __init__(self, wakes: Wakes, terms: Terms) -> None:
        self._wakes = wakes
        self._terms = terms
        self._shares = Shares(terms.limits)
        self._aside: dict[Ref, float] = {}
        """For whom nothing could be taken, and until when nobody tries again."""
        self._stir = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._errands = Errands(log)
        self._drained_at: float | None = None
        self.counts: Counter[str] = Counter()
        """Attempts, by what came of them."""

    @abstractmethod
    async def _find(self, full: Full) -> list[Found]:
        """For whom something waits, up to LOOK_MAX of them, the earliest; without those that are `full`."""

    def __len__(self) -> int:
        """Attempts under way."""
        return len(self._shares)

    @property
    def drains(self) -> bool:
        return self._drained_at is not None

    def start(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._run(), name=self._terms.what)

    def drain(self) -> None:
        """Takes nothing new from here on."""
        if self._drained_at is None:
            self._drained_at = asyncio.get_running_loop().time()

    async def stop(self) -> None:
        """Returns when what was under way has come to its end, or has had its time."""
        self.drain()
        assert self._drained_at is not None
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        left = self._drained_at + self._terms.grace_seconds - asyncio.get_running_loop().time()
        if cut := await self._errands.end(left):
            log.warning("%d %s were cut; they are tried again when their time is over", cut, self._terms.what)

    # -- looking -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        unsubscribe = self._wakes.subscribe(self._stir.set)
        loop = asyncio.get_running_loop()
        try:
            while not self.drains:
                began = loop.time()
                self._stir.clear()
                pause, gap = await self._looked()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stir.wait()
                await asyncio.sleep(max(0.0, began + gap - loop.time()))
        finally:
            unsubscribe()

    async def _looked(self) -> tuple[float, float]:
        """How long to rest, and how long at least."""
        try:
            return await self._look()
        except StoreError as error:
            log.debug("cannot look for %s: %s", self._terms.what, error)
        except Exception:  # nobody would notice the end of this task: nothing would be sent any more
            log.exception("looking for %s failed", self._terms.what)
        return FAILED_GAP_SECONDS, FAILED_GAP_SECONDS

    async def _look(self) -> tuple[float, float]:
        poll_seconds = self._terms.poll_seconds
        if self._shares.is_full():
            # Whoever gives a slot back stirs.
            return poll_seconds, GAP_SECONDS
        began = asyncio.get_running_loop().time()
        found = await self._find(self._passed_over(began))
        took = asyncio.get_running_loop().time() - began
        due = [each for each in found if each.in_ms <= 0]
        for each in due:
            self._turn_to(each)
        if len(due) == LOOK_MAX:
            self._stir.set()
        pause = min([poll_seconds, *(each.in_ms / 1000 for each in found if each.in_ms > 0)])
        gap, share = (GAP_SECONDS, SHARE) if due else (QUIET_GAP_SECONDS, QUIET_SHARE)
        return pause, min(max(min(gap, pause), took / share), poll_seconds)

    def _passed_over(self, now: float) -> Full:
        self._aside = {ref: until for ref, until in self._aside.items() if until > now}
        zones: list[tuple[str, str | None]] = [(zone_id, None) for zone_id in self._shares.full_zones()]
        return [*zones, *self._shares.full(), *self._aside]

    # -- taking --------------------------------------------------------------------------------------------------

    def _turn_to(self, found: Found) -> None:
        """The slots are kept before anything is waited for, so that the next look leaves it alone."""
        if number := min(self._shares.free(found.ref), self._terms.at_once):
            self._shares.take(found.ref, number)
            self._errands.begin(self._take(found, number), f"{self._terms.what} of {found.ref[1]}")

    async def _take(self, found: Found, number: int) -> None:
        kept = 0
        try:
            kept = await found.take(found.ref, number)
        except Problem as problem:
            # It has gone, is not to be called any more, or the database is away: it may be otherwise in a while.
            log.debug("%s of %s cannot be taken: %r", self._terms.what, found.ref[1], problem)
            self._aside[found.ref] = asyncio.get_running_loop().time() + self._terms.poll_seconds
        finally:
            self._shares.give(found.ref, number - kept)
            if kept == number:
                self._stir.set()

    def _send(self, ref: Ref, work: Coroutine[object, object, None], name: str) -> None:
        """Begins with one of what was taken. Its slot is free again when that has ended."""

        def ended(_: asyncio.Task[None]) -> None:
            self._shares.give(ref, 1)
            self._stir.set()

        self._errands.begin(work, name).add_done_callback(ended)
