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
from quarterdeck.engine.event_log import CommitProof, NewEvent
from quarterdeck.engine.queries import Q
from quarterdeck.store.interface import Row, Store, StoreTransaction
from quarterdeck.store.sql import BoundStatement

logger = logging.getLogger("quarterdeck.engine")
T = TypeVar("T")
CommitCallback = Callable[[], None]
LISTENER_ROUNDS_MAX = 32
"""Listeners that still cause events after this many rounds are a cycle, and a bug."""


class Transaction:
    def __init__(self, store_tx: StoreTransaction, wait_for_locks: bool) -> None:
        self._store_tx = store_tx
        self._now: Millis | None = None
        self.wait_for_locks = wait_for_locks
        """Whether to wait for a zone's lock, or to pass over the zones that are busy."""
        self.events: list[NewEvent] = []
        self.commit_callbacks: list[CommitCallback] = []

    @property
    def now(self) -> Millis:
        if self._now is None:
            raise RuntimeError("a transaction has no time before its first read")
        return self._now

    async def read(self, *statements: BoundStatement) -> list[list[Row]]:
        if self._now is not None:
            return await self._store_tx.read(*statements)
        *results, clock_rows = await self._store_tx.read(*statements, Q.clock())
        self._now = int(str(clock_rows[0][0]))
        return results

    def write(self, statement: BoundStatement) -> None:
        self._store_tx.write(statement)

    def emit(self, event: NewEvent) -> None:
        self.events.append(event)

    def on_commit(self, callback: CommitCallback) -> None:
        """Has something done, in this process, once the transaction has surely been committed. It may be done never: a
        process can end in between. So it wakes and hands over; what must be true is written."""
        self.commit_callbacks.append(callback)


TransactionListener = Callable[[Transaction, Sequence[NewEvent]], Awaitable[None]]


@dataclass(slots=True)
class TransactionAttempt:
    """One try at a transaction: what was decided before COMMIT was sent, in case nobody hears of the COMMIT."""

    key: int
    zones: Collection[str] = ()
    outcomes: object = None
    proof: CommitProof | None = None
    events: Sequence[NewEvent] = ()
    commit_callbacks: Sequence[CommitCallback] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """Runs operations in transactions. Made once, in the composition root."""

    store: Store
    transaction_listeners: Sequence[TransactionListener] = field(default=())
    after_commit: Callable[[Sequence[NewEvent]], None] = lambda events: None
    """Told what was committed: wakes whoever follows the log in this process, and counts."""

    async def transact(
        self,
        operation: Callable[[Transaction], Awaitable[T]],
        *,
        zones: Collection[str] = (),
        wait_for_locks: bool = True,
        attempt: TransactionAttempt | None = None,
    ) -> T:
        """Runs an operation. Of zone tables it sees the rows of `zones`, and no others."""

        async def work(store_tx: StoreTransaction) -> tuple[T, Transaction]:
            tx = Transaction(store_tx, wait_for_locks)
            outcome = await operation(tx)
            await self._notify_listeners(tx)
            proof = log.append(store_tx, tx.events, tx.now) if tx.events else None
            if attempt:
                attempt.outcomes, attempt.proof = outcome, proof
                attempt.events, attempt.commit_callbacks = tx.events, tx.commit_callbacks
            return outcome, tx

        outcome, tx = await self.store.transact(work, attempt.key if attempt else None, zones)
        if tx.events or tx.commit_callbacks:
            self._run_callbacks(tx.events, tx.commit_callbacks)
        return outcome

    async def read(
        self, operation: Callable[[Transaction], Awaitable[T]], *, zones: Collection[str] = (), for_writer: bool = False
    ) -> T:
        return await self.store.read(
            lambda store_tx: operation(Transaction(store_tx, wait_for_locks=False)), zones, for_writer=for_writer
        )

    async def was_committed(self, attempt: TransactionAttempt) -> bool:
        """Waits until the transaction is surely over, then looks for its witness."""
        await self.store.wait_until_ended(attempt.key)
        proof = attempt.proof
        if proof is None:
            return False
        if not await self.store.read(lambda store_tx: log.is_committed(store_tx, proof), attempt.zones):
            return False
        self._run_callbacks(attempt.events, attempt.commit_callbacks)
        return True

    def _run_callbacks(self, events: Sequence[NewEvent], commit_callbacks: Sequence[CommitCallback]) -> None:
        callbacks: list[CommitCallback] = [*commit_callbacks]
        if events:
            callbacks.append(partial(self.after_commit, events))
        for callback in callbacks:
            try:
                callback()
            except Exception:
                # What is committed is committed: whoever ran it must not be told that it failed.
                logger.exception("a listener failed after a commit")

    async def _notify_listeners(self, tx: Transaction) -> None:
        notified = 0
        for _ in range(LISTENER_ROUNDS_MAX):
            new_events = tx.events[notified:]
            if not new_events or not self.transaction_listeners:
                return
            notified = len(tx.events)
            for listener in self.transaction_listeners:
                await listener(tx, new_events)
        raise RuntimeError("listeners keep causing events for each other")
