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

from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.store.interface import TransientError

log = logging.getLogger("quarterdeck.waiting")
GATHER_SECONDS = 0.005
"""Between two looks: what is committed meanwhile is found by the next one."""
C = TypeVar("C", bound=msgspec.Struct)
K = TypeVar("K", str, tuple[str, str])
I = TypeVar("I")  # noqa: E741 - a letter of the table above
O = TypeVar("O")  # noqa: E741 - the outcome of a claim


@dataclass(slots=True, eq=False)
class LongPoll(Generic[C, K, I]):
    """One claim that waits, however often it asks meanwhile."""

    claim: C
    key: K
    delivered: tuple[I, ...] | None = None
    """What it was told: what it has been handed, or nothing, which means: ask again. None if it was told neither."""
    is_closed: bool = False
    """Nobody is there any more for what it may be handed."""
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        await self._ready.wait()

    def finish(self, delivered: tuple[I, ...]) -> None:
        self.delivered = delivered
        self._ready.set()

    def take_delivered(self) -> tuple[I, ...]:
        """What it was handed, if anything; from here on that is whoever's took it."""
        delivered, self.delivered = self.delivered, None
        self._ready.clear()
        return delivered or ()


class LongPolls(Generic[C, K, I]):
    def __init__(self, item_key: Callable[[I], Hashable]) -> None:
        self.item_key = item_key
        """By which two leases of the same thing are known to be that."""
        self._by_key: dict[K, dict[LongPoll[C, K, I], None]] = {}
        self.on_undelivered: Callable[[Sequence[I]], None] = lambda items: None
        """Told of leases that nobody is there for any more."""
        self.wakeup = asyncio.Event()
        """Somebody waits who may have missed a wake."""
        self.is_closed = False
        """The server stops: nobody waits any longer."""

    def __len__(self) -> int:
        return sum(len(polls) for polls in self._by_key.values())

    def keys(self) -> list[K]:
        return sorted(self._by_key)

    def waiting(self, key: K) -> list[LongPoll[C, K, I]]:
        """In the order in which they came."""
        return [*self._by_key.get(key, ())]

    def add(self, poll: LongPoll[C, K, I]) -> None:
        if poll.delivered is not None:
            return
        if self.is_closed:
            poll.finish(())
            return
        self._by_key.setdefault(poll.key, {})[poll] = None
        self.wakeup.set()

    def remove(self, poll: LongPoll[C, K, I]) -> None:
        """It waits no more, for whatever reason; what was handed to it and not taken is given back."""
        self._discard(poll)
        poll.is_closed = True
        if undelivered := poll.take_delivered():
            self.on_undelivered(undelivered)

    def deliver(self, poll: LongPoll[C, K, I], items: tuple[I, ...]) -> None:
        self._discard(poll)
        if poll.is_closed:
            self.on_undelivered(items)
            return
        # It may have been told to ask again while this was being committed. It has these all the same: given back now,
        # they would be taken from under the claim that asks again, which finds them by its id.
        if items or poll.delivered is None:
            poll.finish(items)

    def retry_first(self, key: K, count: int) -> None:
        """The first of those who wait for it."""
        for poll in self.waiting(key)[:count]:
            self.retry(poll)

    def retry(self, poll: LongPoll[C, K, I]) -> None:
        """Has this one ask again, if it waits: it, and not whoever came first, suits what there is."""
        if poll in self._by_key.get(poll.key, ()):
            self._discard(poll)
            poll.finish(())

    def close(self) -> None:
        self.is_closed = True
        for key in self.keys():
            self.retry_first(key, len(self._by_key[key]))

    def _discard(self, poll: LongPoll[C, K, I]) -> None:
        polls = self._by_key.get(poll.key, {})
        polls.pop(poll, None)
        if not polls:
            self._by_key.pop(poll.key, None)


class Watcher(Generic[C, K, I]):
    """Looks for all who wait in this process at once, when something may have become due."""

    def __init__(
        self,
        wakeups: Wakeups,
        polls: LongPolls[C, K, I],
        check: Callable[[Sequence[K]], Awaitable[float]],
        poll_seconds: float,
        name: str = "lookout",
    ) -> None:
        self._wakeups = wakeups
        self._polls: LongPolls[C, K, I] = polls
        self._check: Callable[[Sequence[K]], Awaitable[float]] = check
        """Has those ask again who can be served; how long until the next can be."""
        self._poll_seconds = poll_seconds
        self._name = name
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        wakeup = self._polls.wakeup
        unsubscribe = self._wakeups.subscribe(wakeup.set)
        try:
            while True:
                pause = self._poll_seconds
                if keys := self._polls.keys():
                    try:
                        pause = min(pause, await self._check(keys))
                    except TransientError as error:
                        # The database is away. Whoever waits goes on waiting, and the next look may find it back.
                        log.debug("%s cannot look for those who wait: %s", self._name, error)
                    except Exception:
                        # So broad because a lookout that ended would leave everybody waiting, and nobody would know.
                        log.exception("%s could not look after those who wait for work", self._name)
                await self._wait(wakeup, pause if keys else None)
                wakeup.clear()
                await asyncio.sleep(GATHER_SECONDS)
        finally:
            unsubscribe()

    @staticmethod
    async def _wait(wakeup: asyncio.Event, seconds: float | None) -> None:
        if wakeup.is_set():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wakeup.wait()


async def claimed_items(
    claim_future: asyncio.Future[O], get_items: Callable[[O], tuple[I, ...]], polls: LongPolls[C, K, I]
) -> tuple[I, ...]:
    """What a claim that was submitted is given. Should whoever asked be gone before, what it is given all the same, a
    moment from now, goes back."""

    def return_items(done: asyncio.Future[O]) -> None:
        if not done.cancelled() and done.exception() is None:
            polls.on_undelivered(get_items(done.result()))

    try:
        return get_items(await asyncio.shield(claim_future))
    except asyncio.CancelledError:
        claim_future.add_done_callback(return_items)
        raise


async def wait_for_work(
    claim: C, key: K, submit: Callable[[C], Awaitable[tuple[I, ...]]], polls: LongPolls[C, K, I], timeout_seconds: float
) -> tuple[I, ...]:
    """Asks, and asks again whenever there may be something, until something was given or the time is up."""
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    poll: LongPoll[C, K, I] = LongPoll(claim, key)
    try:
        while True:
            items = await submit(msgspec.structs.replace(claim, waiter=poll))
            if poll.delivered:
                # Handed over while it asked again. By the same claim_id it found the same; whatever else goes back.
                delivered = poll.take_delivered()
                delivered_keys = {polls.item_key(item) for item in delivered}
                polls.on_undelivered([item for item in items if polls.item_key(item) not in delivered_keys])
                # Of the same lease the later word: by an older one it could not be given back.
                newest = {polls.item_key(item): item for item in items}
                return tuple(newest.get(polls.item_key(item), item) for item in delivered)
            if items:
                return items
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await poll.wait()
            if items := poll.take_delivered():
                return items
            if polls.is_closed or asyncio.get_running_loop().time() >= deadline:
                return ()
    finally:
        polls.remove(poll)
