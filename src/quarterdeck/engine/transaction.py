"""One transaction, as an operation sees it.

`read` and `write` are the store's: each read is one round trip, and queued writes are sent with COMMIT. `emit` records
a transition as an event. `now` is the database's clock, read right after the locks of the first read. After the
operation, the transaction listeners get its events, in the same transaction, until they emit no more. Then the events
are appended to the log, and everything is committed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.engine import event_log
from quarterdeck.engine.event_log import CommitProof, NewEvent
from quarterdeck.engine.queries import Q
from quarterdeck.store.interface import Row, Store, StoreTransaction, decode
from quarterdeck.store.sql import BoundStatement

log = logging.getLogger("quarterdeck.engine")
T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
CommitCallback = Callable[[], None]
LISTENER_ROUNDS_MAX = 32
"""Listeners that still emit events after this many rounds form a cycle, which is a bug."""


class Transaction:
    def __init__(self, store_tx: StoreTransaction, wait_for_locks: bool) -> None:
        self._store_tx = store_tx
        self._now: Millis | None = None
        self.wait_for_locks = wait_for_locks
        """Whether to wait for a zone's lock, or to skip zones that are locked."""
        self.events: list[NewEvent] = []
        self.commit_callbacks: list[CommitCallback] = []

    @property
    def now(self) -> Millis:
        if self._now is None:
            raise RuntimeError("Transaction.now is not set before the first read")
        return self._now

    async def read(self, *statements: BoundStatement) -> list[list[Row]]:
        if self._now is not None:
            return await self._store_tx.read(*statements)
        *results, clock_rows = await self._store_tx.read(*statements, Q.clock())
        self._now = int(str(clock_rows[0][0]))
        return results

    async def read_some(self, *statements: BoundStatement | None) -> list[list[Row]]:
        """Like `read`, without the statements that are None. They have no rows."""
        results = iter(await self.read(*(statement for statement in statements if statement is not None)))
        return [[] if statement is None else next(results) for statement in statements]

    async def fetch(self, row_type: type[S], statement: BoundStatement) -> list[S]:
        """Read the rows of one statement as structs."""
        [rows] = await self.read(statement)
        return decode(rows, row_type)

    async def has_rows(self, statement: BoundStatement) -> bool:
        [rows] = await self.read(statement)
        return bool(rows)

    def write(self, statement: BoundStatement) -> None:
        self._store_tx.write(statement)

    def emit(self, event: NewEvent) -> None:
        self.events.append(event)

    def on_commit(self, callback: CommitCallback) -> None:
        """Call a function in this process after the commit.

        The function may never be called, since the process can end in between. So use it only to wake readers and to
        deliver results; anything durable must be written in the transaction.
        """
        self.commit_callbacks.append(callback)


TransactionListener = Callable[[Transaction, Sequence[NewEvent]], Awaitable[None]]


@dataclass(slots=True)
class TransactionAttempt:
    """One attempt at a transaction. It stores what was decided before COMMIT is sent, in case the response is lost."""

    key: int
    zones: Collection[str] = ()
    outcomes: object = None
    proof: CommitProof | None = None
    events: Sequence[NewEvent] = ()
    commit_callbacks: Sequence[CommitCallback] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """Runs operations in transactions. `runtime` creates one engine that is confined to zones and one for all zones."""

    store: Store
    transaction_listeners: Sequence[TransactionListener] = field(default=())
    after_commit: Callable[[Sequence[NewEvent]], None] = lambda events: None
    """Called with the committed events. Wakes readers of the log and calls the commit listeners."""

    async def transact(
        self,
        operation: Callable[[Transaction], Awaitable[T]],
        *,
        zones: Collection[str] = (),
        wait_for_locks: bool = True,
        attempt: TransactionAttempt | None = None,
    ) -> T:
        """Run an operation. In tables with a zone it sees only the rows of `zones`."""

        async def work(store_tx: StoreTransaction) -> tuple[T, Transaction]:
            tx = Transaction(store_tx, wait_for_locks)
            outcome = await operation(tx)
            await self._notify_listeners(tx)
            proof = event_log.append(store_tx, tx.events, tx.now) if tx.events else None
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
        """Wait until the transaction has ended, then look for its proof in the log. If found, run its callbacks."""
        await self.store.wait_until_ended(attempt.key)
        proof = attempt.proof
        if proof is None:
            return False
        if not await self.store.read(lambda store_tx: event_log.is_committed(store_tx, proof), attempt.zones):
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
                # The transaction is committed, so its caller must not get an error.
                log.exception("a callback failed after a commit")

    async def _notify_listeners(self, tx: Transaction) -> None:
        notified_count = 0
        for _ in range(LISTENER_ROUNDS_MAX):
            new_events = tx.events[notified_count:]
            if not new_events or not self.transaction_listeners:
                return
            notified_count = len(tx.events)
            for listener in self.transaction_listeners:
                await listener(tx, new_events)
        raise RuntimeError("transaction listeners keep emitting events for each other")
