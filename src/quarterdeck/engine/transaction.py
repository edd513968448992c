"""One transaction, as an operation sees it.

`read` and `write` are the store's (one round trip each time something is read; what is queued goes out with COMMIT).
`emit` tells of a transition. `now` is the database's clock, read right after the locks of the first read. When the
operation is done, the `within` listeners hear of its events, in the same transaction, until no new events arise;
then the log is appended to, and the whole is committed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from quarterdeck.core.clock import Millis
from quarterdeck.engine import event_log as log
from quarterdeck.engine.event_log import NewEvent, Witness
from quarterdeck.engine.queries import Q
from quarterdeck.store.interface import Row, Store, StoreTx
from quarterdeck.store.sql import Bound

logger = logging.getLogger("quarterdeck.engine")
T = TypeVar("T")
Afterwards = Callable[[], None]
ROUNDS_MAX = 32
"""Listeners that still cause events after this many rounds are a cycle, and a bug."""


class Tx:
    def __init__(self, port: StoreTx, waits: bool) -> None:
        self._port = port
        self._now: Millis | None = None
        self.waits = waits
        """Whether to wait for a zone's lock, or to pass over the zones that are busy."""
        self.events: list[NewEvent] = []
        self.afterwards: list[Afterwards] = []

    @property
    def now(self) -> Millis:
        if self._now is None:
            raise RuntimeError("a transaction has no time before its first read")
        return self._now

    async def read(self, *statements: Bound) -> list[list[Row]]:
        if self._now is not None:
            return await self._port.read(*statements)
        *answers, clock = await self._port.read(*statements, Q.clock())
        self._now = int(str(clock[0][0]))
        return answers

    def write(self, statement: Bound) -> None:
        self._port.write(statement)

    def emit(self, event: NewEvent) -> None:
        self.events.append(event)

    def on_commit(self, callback: Afterwards) -> None:
        """Has something done, in this process, once the transaction has surely been committed. It may be done never: a
        process can end in between. So it wakes and hands over; what must be true is written."""
        self.afterwards.append(callback)


Listener = Callable[[Tx, Sequence[NewEvent]], Awaitable[None]]


@dataclass(slots=True)
class Attempt:
    """One try at a transaction: what was decided before COMMIT was sent, in case nobody hears of the COMMIT."""

    key: int
    zones: Collection[str] = ()
    outcomes: object = None
    witness: Witness | None = None
    events: Sequence[NewEvent] = ()
    afterwards: Sequence[Afterwards] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """Runs operations in transactions. Made once, in the composition root."""

    store: Store
    within: Sequence[Listener] = field(default=())
    after_commit: Callable[[Sequence[NewEvent]], None] = lambda events: None
    """Told what was committed: wakes whoever follows the log in this process, and counts."""

    async def transact(
        self,
        operation: Callable[[Tx], Awaitable[T]],
        *,
        zones: Collection[str] = (),
        waits: bool = True,
        attempt: Attempt | None = None,
    ) -> T:
        """Runs an operation. Of zone tables it sees the rows of `zones`, and no others."""

        async def work(port: StoreTx) -> tuple[T, Tx]:
            tx = Tx(port, waits)
            outcome = await operation(tx)
            await self._tell(tx)
            witness = log.append(port, tx.events, tx.now) if tx.events else None
            if attempt:
                attempt.outcomes, attempt.witness = outcome, witness
                attempt.events, attempt.afterwards = tx.events, tx.afterwards
            return outcome, tx

        outcome, tx = await self.store.transact(work, attempt.key if attempt else None, zones)
        if tx.events or tx.afterwards:
            self._announce(tx.events, tx.afterwards)
        return outcome

    async def read(
        self, operation: Callable[[Tx], Awaitable[T]], *, zones: Collection[str] = (), for_a_writer: bool = False
    ) -> T:
        return await self.store.read(lambda port: operation(Tx(port, waits=False)), zones, for_a_writer=for_a_writer)

    async def was_committed(self, attempt: Attempt) -> bool:
        """Waits until the transaction is surely over, then looks for its witness."""
        await self.store.settled(attempt.key)
        witness = attempt.witness
        if witness is None:
            return False
        if not await self.store.read(lambda port: log.committed(port, witness), attempt.zones):
            return False
        self._announce(attempt.events, attempt.afterwards)
        return True

    def _announce(self, events: Sequence[NewEvent], afterwards: Sequence[Afterwards]) -> None:
        callbacks: list[Afterwards] = [*afterwards]
        if events:
            callbacks.append(partial(self.after_commit, events))
        for callback in callbacks:
            try:
                callback()
            except Exception:
                # What is committed is committed: whoever ran it must not be told that it failed.
                logger.exception("a listener failed after a commit")

    async def _tell(self, tx: Tx) -> None:
        told = 0
        for _ in range(ROUNDS_MAX):
            fresh = tx.events[told:]
            if not fresh or not self.within:
                return
            told = len(tx.events)
            for listener in self.within:
                await listener(tx, fresh)
        raise RuntimeError("listeners keep causing events for each other")
