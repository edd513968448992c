"""Who waits for work in this process.

A claim that finds nothing may wait. Its waiter stands here, in the memory of one process, as a hint for three who may
have something for it:

- a batch of this process that makes something due hands it over in its own commit (`exchange`);
- a commit anywhere wakes the lookout, which asks once, for everybody who waits, what may begin now, and has as many of
  them ask again as can be served;
- the lookout's own clock, for what waits for its backoff; and the interval, should a wake be lost.

Whoever is gone when something is handed to it (its client hung up, its time ran out) has the lease given back: such an
attempt does not count.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.domain.invocations.model import Claim, Invocation
from quarterdeck.domain.invocations.queries import Q
from quarterdeck.domain.invocations.rules.board import ServiceKey
from quarterdeck.engine.tx import Engine, Tx
from quarterdeck.engine.wake import Wakes
from quarterdeck.store.port import TransientError

log = logging.getLogger("quarterdeck.invocations")
GATHER_SECONDS = 0.005
"""Between two looks: what is committed meanwhile is found by the next one."""
Given = tuple[Invocation, ...]


@dataclass(slots=True, eq=False)
class Waiter:
    """One claim that waits, however often it asks meanwhile."""

    claim: Claim
    given: Given | None = None
    """What it was told: what it has been handed, or nothing, which means: ask again. None if it was told neither."""
    is_gone: bool = False
    """Nobody is there any more for what it may be handed."""
    _bell: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_told(self) -> None:
        await self._bell.wait()

    def tell(self, given: Given) -> None:
        self.given = given
        self._bell.set()

    def take(self) -> Given:
        """What it was handed, if anything; from here on that is whoever's took it."""
        given, self.given = self.given, None
        self._bell.clear()
        return given or ()


class Waiters:
    def __init__(self) -> None:
        self._by_service: dict[ServiceKey, dict[Waiter, None]] = {}
        self.unwanted: Callable[[Sequence[Invocation]], None] = lambda given: None
        """Told of leases that nobody is there for any more."""
        self.stir = asyncio.Event()
        """Somebody waits who may have missed a wake."""
        self.closed = False
        """The server stops: nobody waits any longer."""

    def __len__(self) -> int:
        return sum(len(waiters) for waiters in self._by_service.values())

    def refs(self) -> list[ServiceKey]:
        return sorted(self._by_service)

    def of(self, service: ServiceKey) -> list[Waiter]:
        """In the order in which they came."""
        return [*self._by_service.get(service, ())]

    def add(self, waiter: Waiter) -> None:
        if waiter.given is not None:
            return
        if self.closed:
            waiter.tell(())
            return
        self._by_service.setdefault(_service(waiter), {})[waiter] = None
        self.stir.set()

    def remove(self, waiter: Waiter) -> None:
        """It waits no more, for whatever reason; what was handed to it and not taken is given back."""
        self._forget(waiter)
        waiter.is_gone = True
        if given := waiter.take():
            self.unwanted(given)

    def hand(self, waiter: Waiter, given: Given) -> None:
        self._forget(waiter)
        if waiter.is_gone:
            self.unwanted(given)
            return
        # It may have been told to ask again while this was being committed. It has these all the same: given back now,
        # they would be taken from under the claim that asks again, which finds them by its id.
        if given or waiter.given is None:
            waiter.tell(given)

    def ask_again(self, service: ServiceKey, number: int) -> None:
        for waiter in self.of(service)[:number]:
            self._forget(waiter)
            waiter.tell(())

    def close(self) -> None:
        self.closed = True
        for service in self.refs():
            self.ask_again(service, len(self._by_service[service]))

    def _forget(self, waiter: Waiter) -> None:
        service = _service(waiter)
        waiting = self._by_service.get(service, {})
        waiting.pop(waiter, None)
        if not waiting:
            self._by_service.pop(service, None)


def _service(waiter: Waiter) -> ServiceKey:
    return waiter.claim.zone_id, waiter.claim.service_id


@dataclass(slots=True)
class Ready:
    """When the next of a service may begin, by the database's clock."""

    service: ServiceKey
    at: Millis | None
    now: Millis
    is_registered: bool = True


async def ready(tx: Tx, services: Iterable[ServiceKey]) -> list[Ready]:
    [rows] = await tx.read(Q.invocations_ready(batch=[*services]))
    return [
        Ready((str(zone), str(name)), None if at is None else int(str(at)), int(str(now)), there is not None)
        for zone, name, at, there, now in rows
    ]


class Lookout:
    """Looks for all who wait in this process at once, when something may have become due."""

    def __init__(self, engine: Engine, wakes: Wakes, waiters: Waiters, poll_seconds: float) -> None:
        self._engine = engine
        self._wakes = wakes
        self._waiters = waiters
        self._poll_seconds = poll_seconds
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run(), name="lookout")

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _run(self) -> None:
        stir = self._waiters.stir
        unsubscribe = self._wakes.subscribe(stir.set)
        try:
            while True:
                pause = self._poll_seconds
                if refs := self._waiters.refs():
                    try:
                        pause = min(pause, await self._look(refs))
                    except TransientError as error:
                        # The database is away. Whoever waits goes on waiting, and the next look may find it back.
                        log.debug("cannot look for those who wait: %s", error)
                    except Exception:
                        # So broad because a lookout that ended would leave everybody waiting, and nobody would know.
                        log.exception("those who wait for work could not be looked after")
                await self._until(stir, pause if refs else None)
                stir.clear()
                await asyncio.sleep(GATHER_SECONDS)
        finally:
            unsubscribe()

    async def _look(self, refs: Sequence[ServiceKey]) -> float:
        """Has those ask again who can be served; how long until the next can be."""
        found = await self._engine.read(lambda tx: ready(tx, refs), zones={zone_id for zone_id, _ in refs})
        pause = self._poll_seconds
        for each in found:
            if not each.is_registered:
                # Nothing will ever come: all ask again, and are told so.
                self._waiters.ask_again(each.service, len(self._waiters))
            if each.at is None:
                continue
            if each.at <= each.now:
                # One asks, and takes what it can; it is the next look that finds whether there is more.
                self._waiters.ask_again(each.service, 1)
                self._waiters.stir.set()
            else:
                pause = min(pause, (each.at - each.now) / 1000)
        return pause

    @staticmethod
    async def _until(stir: asyncio.Event, seconds: float | None) -> None:
        if stir.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stir.wait()


async def wait_for_work(
    claim: Claim, submit: Callable[[Claim], Awaitable[Given]], waiters: Waiters, seconds: float
) -> Given:
    """Asks, and asks again whenever there may be something, until something was given or the time is up."""
    deadline = asyncio.get_running_loop().time() + seconds
    waiter = Waiter(claim)
    try:
        while True:
            given = await submit(msgspec.structs.replace(claim, waiter=waiter))
            if waiter.given:
                # Handed over while it asked again. By the same claim_id it found the same; whatever else goes back.
                handed = waiter.take()
                kept = {row.id for row in handed}
                waiters.unwanted([row for row in given if row.id not in kept])
                # Of the same lease the later word: by an older one it could not be given back.
                later = {row.id: row for row in given}
                return tuple(later.get(row.id, row) for row in handed)
            if given:
                return given
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await waiter.until_told()
            if given := waiter.take():
                return given
            if waiters.closed or asyncio.get_running_loop().time() >= deadline:
                return ()
    finally:
        waiters.remove(waiter)
