"""Who waits for work in this process.

A claim that finds nothing may wait. Its waiter stands here, in the memory of one process, by a key that says what it
waits for, as a hint for three who may have something for it:

- a batch of this process that makes something due hands it over in its own commit (the room's exchange);
- a commit anywhere wakes the lookout, which asks once, for everybody who waits, what may begin now, and has as many of
  them ask again as can be served;
- the lookout's own clock, for what waits for its moment; and the interval, should a wake be lost.

Whoever is gone when something is handed to it (its client hung up, its time ran out) has the lease given back: such an
attempt does not count.

| type     | what it stands for                                                          |
|----------|-----------------------------------------------------------------------------|
| `C`      | the claim: a frozen struct with a field `waiter`                              |
| `K`      | what one waits for: a service, a zone                                        |
| `I`      | one thing that is leased                                                     |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from quarterdeck.engine.wakeups import Wakes
from quarterdeck.store.interface import TransientError

log = logging.getLogger("quarterdeck.waiting")
GATHER_SECONDS = 0.005
"""Between two looks: what is committed meanwhile is found by the next one."""
C = TypeVar("C", bound=msgspec.Struct)
K = TypeVar("K", str, tuple[str, str])
I = TypeVar("I")  # noqa: E741 - a letter of the table above
O = TypeVar("O")  # noqa: E741 - the outcome of a claim


@dataclass(slots=True, eq=False)
class Waiter(Generic[C, K, I]):
    """One claim that waits, however often it asks meanwhile."""

    claim: C
    key: K
    given: tuple[I, ...] | None = None
    """What it was told: what it has been handed, or nothing, which means: ask again. None if it was told neither."""
    is_gone: bool = False
    """Nobody is there any more for what it may be handed."""
    _bell: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_told(self) -> None:
        await self._bell.wait()

    def tell(self, given: tuple[I, ...]) -> None:
        self.given = given
        self._bell.set()

    def take(self) -> tuple[I, ...]:
        """What it was handed, if anything; from here on that is whoever's took it."""
        given, self.given = self.given, None
        self._bell.clear()
        return given or ()


class Waiters(Generic[C, K, I]):
    def __init__(self, name_of: Callable[[I], Hashable]) -> None:
        self.name_of = name_of
        """By which two leases of the same thing are known to be that."""
        self._by_key: dict[K, dict[Waiter[C, K, I], None]] = {}
        self.unwanted: Callable[[Sequence[I]], None] = lambda given: None
        """Told of leases that nobody is there for any more."""
        self.stir = asyncio.Event()
        """Somebody waits who may have missed a wake."""
        self.closed = False
        """The server stops: nobody waits any longer."""

    def __len__(self) -> int:
        return sum(len(waiters) for waiters in self._by_key.values())

    def keys(self) -> list[K]:
        return sorted(self._by_key)

    def of(self, key: K) -> list[Waiter[C, K, I]]:
        """In the order in which they came."""
        return [*self._by_key.get(key, ())]

    def add(self, waiter: Waiter[C, K, I]) -> None:
        if waiter.given is not None:
            return
        if self.closed:
            waiter.tell(())
            return
        self._by_key.setdefault(waiter.key, {})[waiter] = None
        self.stir.set()

    def remove(self, waiter: Waiter[C, K, I]) -> None:
        """It waits no more, for whatever reason; what was handed to it and not taken is given back."""
        self._forget(waiter)
        waiter.is_gone = True
        if given := waiter.take():
            self.unwanted(given)

    def hand(self, waiter: Waiter[C, K, I], given: tuple[I, ...]) -> None:
        self._forget(waiter)
        if waiter.is_gone:
            self.unwanted(given)
            return
        # It may have been told to ask again while this was being committed. It has these all the same: given back now,
        # they would be taken from under the claim that asks again, which finds them by its id.
        if given or waiter.given is None:
            waiter.tell(given)

    def ask_again(self, key: K, number: int) -> None:
        """The first of those who wait for it."""
        for waiter in self.of(key)[:number]:
            self.ask(waiter)

    def ask(self, waiter: Waiter[C, K, I]) -> None:
        """Has this one ask again, if it waits: it, and not whoever came first, suits what there is."""
        if waiter in self._by_key.get(waiter.key, ()):
            self._forget(waiter)
            waiter.tell(())

    def close(self) -> None:
        self.closed = True
        for key in self.keys():
            self.ask_again(key, len(self._by_key[key]))

    def _forget(self, waiter: Waiter[C, K, I]) -> None:
        waiting = self._by_key.get(waiter.key, {})
        waiting.pop(waiter, None)
        if not waiting:
            self._by_key.pop(waiter.key, None)


class Lookout(Generic[C, K, I]):
    """Looks for all who wait in this process at once, when something may have become due."""

    def __init__(
        self,
        wakes: Wakes,
        waiters: Waiters[C, K, I],
        look: Callable[[Sequence[K]], Awaitable[float]],
        poll_seconds: float,
        name: str = "lookout",
    ) -> None:
        self._wakes = wakes
        self._waiters: Waiters[C, K, I] = waiters
        self._look: Callable[[Sequence[K]], Awaitable[float]] = look
        """Has those ask again who can be served; how long until the next can be."""
        self._poll_seconds = poll_seconds
        self._name = name
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._running = asyncio.get_running_loop().create_task(self._run(), name=self._name)

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
                if keys := self._waiters.keys():
                    try:
                        pause = min(pause, await self._look(keys))
                    except TransientError as error:
                        # The database is away. Whoever waits goes on waiting, and the next look may find it back.
                        log.debug("%s cannot look for those who wait: %s", self._name, error)
                    except Exception:
                        # So broad because a lookout that ended would leave everybody waiting, and nobody would know.
                        log.exception("%s could not look after those who wait for work", self._name)
                await self._until(stir, pause if keys else None)
                stir.clear()
                await asyncio.sleep(GATHER_SECONDS)
        finally:
            unsubscribe()

    @staticmethod
    async def _until(stir: asyncio.Event, seconds: float | None) -> None:
        if stir.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stir.wait()


async def leases_of(
    claimed: asyncio.Future[O], items_of: Callable[[O], tuple[I, ...]], waiters: Waiters[C, K, I]
) -> tuple[I, ...]:
    """What a claim that was submitted is given. Should whoever asked be gone before, what it is given all the same, a
    moment from now, goes back."""

    def give_back(done: asyncio.Future[O]) -> None:
        if not done.cancelled() and done.exception() is None:
            waiters.unwanted(items_of(done.result()))

    try:
        return items_of(await asyncio.shield(claimed))
    except asyncio.CancelledError:
        claimed.add_done_callback(give_back)
        raise


async def wait_for_work(
    claim: C, key: K, submit: Callable[[C], Awaitable[tuple[I, ...]]], waiters: Waiters[C, K, I], seconds: float
) -> tuple[I, ...]:
    """Asks, and asks again whenever there may be something, until something was given or the time is up."""
    deadline = asyncio.get_running_loop().time() + seconds
    waiter: Waiter[C, K, I] = Waiter(claim, key)
    try:
        while True:
            given = await submit(msgspec.structs.replace(claim, waiter=waiter))
            if waiter.given:
                # Handed over while it asked again. By the same claim_id it found the same; whatever else goes back.
                handed = waiter.take()
                kept = {waiters.name_of(item) for item in handed}
                waiters.unwanted([item for item in given if waiters.name_of(item) not in kept])
                # Of the same lease the later word: by an older one it could not be given back.
                later = {waiters.name_of(item): item for item in given}
                return tuple(later.get(waiters.name_of(item), item) for item in handed)
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
