"""Long polls: claims that wait in this process for work.

A claim that finds nothing may wait. Its long poll is kept in the memory of this process, under a key that identifies
what it is waiting for. Three things end the wait:

- a batch of this process creates work and assigns it to the poll in the same transaction (the component's
  `BatchRunner`);
- a commit in any process wakes the watcher, which reads what is ready, once for all polls, and lets as many of them
  claim again as can be served;
- the watcher's timer fires, for work that becomes due at a known time, or its interval ends, in case a wake-up is lost.

If a poll has ended when work is delivered to it (the client disconnected, the timeout passed), the items are given
back, and the attempt does not count.

| type     | meaning                                                                     |
|----------|-----------------------------------------------------------------------------|
| `C`      | the claim, with a field `waiter`, or the read of an inbox or a log          |
| `K`      | what a poll is waiting for: a service, a zone, an inbox                     |
| `I`      | one claimed item, such as an attempt                                        |
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from quarterdeck.engine.background import BackgroundLoop, wait_at_most
from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.store.interface import TransientError

log = logging.getLogger("quarterdeck.long_poll")
GATHER_SECONDS = 0.005
"""The pause between two checks. The next check covers all commits in between."""
C = TypeVar("C", bound=msgspec.Struct)
K = TypeVar("K", str, tuple[str, str])
I = TypeVar("I")  # noqa: E741 - as in the table above
O = TypeVar("O")  # noqa: E741 - the outcome of a claim


@dataclass(slots=True, eq=False)
class LongPoll(Generic[C, K, I]):
    """One waiting claim, however often it is submitted again."""

    request: C
    """The claim, or the read of an inbox or a log."""
    key: K
    delivered: tuple[I, ...] | None = None
    """The delivered items. Empty if the poll must claim again. None if nothing was delivered yet."""
    is_closed: bool = False
    """The client is no longer waiting."""
    _ready: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait(self) -> None:
        await self._ready.wait()

    def finish(self, delivered: tuple[I, ...]) -> None:
        self.delivered = delivered
        self._ready.set()

    def take_delivered(self) -> tuple[I, ...]:
        """Take the delivered items, if any. The caller owns them from now on."""
        delivered, self.delivered = self.delivered, None
        self._ready.clear()
        return delivered or ()


class LongPolls(Generic[C, K, I]):
    def __init__(self, item_key: Callable[[I], Hashable]) -> None:
        self.item_key = item_key
        """Returns the identity of an item, which is the same for all versions of the item."""
        self._by_key: dict[K, dict[LongPoll[C, K, I], None]] = {}
        self.on_undelivered: Callable[[Sequence[I]], None] = lambda items: None
        """Called with items to give back, because their client is no longer waiting."""
        self.wakeup = asyncio.Event()
        """Set when a poll is added: it may have missed a wake-up."""
        self.is_closed = False
        """The server is stopping, so claims no longer wait."""

    def __len__(self) -> int:
        return sum(len(polls) for polls in self._by_key.values())

    def keys(self) -> list[K]:
        return sorted(self._by_key)

    def waiting(self, key: K) -> list[LongPoll[C, K, I]]:
        """The polls with this key, in order of arrival."""
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
        """Stop waiting. Items that were delivered and not taken are given back."""
        self._discard(poll)
        poll.is_closed = True
        if undelivered := poll.take_delivered():
            self.on_undelivered(undelivered)

    def deliver(self, poll: LongPoll[C, K, I], items: tuple[I, ...]) -> None:
        self._discard(poll)
        if poll.is_closed:
            self.on_undelivered(items)
            return
        # The poll may have been signaled to claim again during this commit. It still gets these items: if they were
        # given back now, the repeated claim, which finds them by its id, would lose them.
        if items or poll.delivered is None:
            poll.finish(items)

    def retry_first(self, key: K, count: int) -> None:
        """Let the first `count` polls with this key claim again."""
        for poll in self.waiting(key)[:count]:
            self.retry(poll)

    def retry(self, poll: LongPoll[C, K, I]) -> None:
        """Let this poll claim again if it is still waiting. For work that this poll can claim and the first cannot."""
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


class Watcher(BackgroundLoop, Generic[C, K, I]):
    """Checks for all long polls of this process at once, when something may have become ready."""

    def __init__(
        self,
        wakeups: Wakeups,
        polls: LongPolls[C, K, I],
        check: Callable[[Sequence[K]], Awaitable[float]],
        poll_seconds: float,
        name: str = "watcher",
    ) -> None:
        super().__init__(name)
        self._wakeups = wakeups
        self._polls: LongPolls[C, K, I] = polls
        self._check: Callable[[Sequence[K]], Awaitable[float]] = check
        """Lets the polls that can be served claim again. Returns the seconds until the next one can be served."""
        self._poll_seconds = poll_seconds

    async def _run(self) -> None:
        wakeup = self._polls.wakeup
        with self._wakeups.subscribed(wakeup.set):
            while True:
                pause = self._poll_seconds
                if keys := self._polls.keys():
                    try:
                        pause = min(pause, await self._check(keys))
                    except TransientError as error:
                        # The database is not reachable. Polls keep waiting until a later check succeeds.
                        log.debug("%s: cannot check for work: %s", self.name, error)
                    except Exception:
                        # Broad, because the end of this task would go unnoticed: all polls would wait in vain.
                        log.exception("%s: check for work failed", self.name)
                if not wakeup.is_set():
                    await wait_at_most(pause if keys else None, wakeup.wait())
                wakeup.clear()
                await asyncio.sleep(GATHER_SECONDS)


async def wait_for_claim(
    claim_future: asyncio.Future[O], get_items: Callable[[O], tuple[I, ...]], polls: LongPolls[C, K, I]
) -> tuple[I, ...]:
    """Return the items of a submitted claim. If the caller is canceled before they arrive, they are given back."""

    def give_back(done: asyncio.Future[O]) -> None:
        if not done.cancelled() and done.exception() is None:
            polls.on_undelivered(get_items(done.result()))

    try:
        return get_items(await asyncio.shield(claim_future))
    except asyncio.CancelledError:
        claim_future.add_done_callback(give_back)
        raise


async def wait_for_work(
    claim: C, key: K, submit: Callable[[C], Awaitable[tuple[I, ...]]], polls: LongPolls[C, K, I], timeout_seconds: float
) -> tuple[I, ...]:
    """Claim, and claim again whenever there may be work, until items arrive or the timeout passes."""
    poll: LongPoll[C, K, I] = LongPoll(claim, key)
    return await wait_for_items(
        poll, lambda: submit(msgspec.structs.replace(claim, waiter=poll)), polls, timeout_seconds
    )


async def wait_for_items(
    poll: LongPoll[C, K, I],
    fetch: Callable[[], Awaitable[tuple[I, ...]]],
    polls: LongPolls[C, K, I],
    timeout_seconds: float,
) -> tuple[I, ...]:
    """Fetch, and fetch again whenever there may be items. A fetch that finds none adds the poll to `polls`."""
    deadline = asyncio.get_running_loop().time() + timeout_seconds
    try:
        while True:
            items = await fetch()
            if poll.delivered:
                # Items arrived while the poll was claiming again. With the same claim_id, the claim finds the same
                # items; give back any others.
                delivered = poll.take_delivered()
                delivered_keys = {polls.item_key(item) for item in delivered}
                polls.on_undelivered([item for item in items if polls.item_key(item) not in delivered_keys])
                # If there are two versions of an item, use the later one: the earlier one could not be given back.
                newest = {polls.item_key(item): item for item in items}
                return tuple(newest.get(polls.item_key(item), item) for item in delivered)
            if items or poll.is_closed:
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
