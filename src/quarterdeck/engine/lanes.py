"""Lanes: group commit.

Each kind of operation has a lane. Callers submit one command each and await one outcome each. Commands that arrive
while a batch commits are queued and form the next batch. An idle lane starts a batch at once, unless it has a
`gather_seconds`.

    submit ─► ZoneQueue ─► _pump: take a batch ─► _process ─► each caller's future
                                                    │
              ContentError, a bug in the rules ─────┤ bisect until the failing command is alone
              TransientError ───────────────────────┤ retry with jitter, bounded; then 503
              a timeout ────────────────────────────┤ bisect, as above
              CommitUnknown ────────────────────────┤ look up until certain; then return the outcomes, or retry
              BUSY for a zone ──────────────────────┘ first in the next batch; after 50 ms, wait for its lock separately

One busy zone must not block the others: operations skip zones whose lock another transaction holds and return `BUSY`
for the commands of those zones, which are retried with the next batch. If a zone stays busy, or if there is nothing
else to do, a waiter takes the zone's commands out of the lane and waits for the lock on a separate connection.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from quarterdeck.core.errors import Conflict, Internal, Invalid, OutcomeUnknown, Problem, Unavailable
from quarterdeck.core.retry import Policy, backoff
from quarterdeck.engine.settings import EngineSettings
from quarterdeck.engine.transaction import Engine, Transaction, TransactionAttempt
from quarterdeck.engine.zone_queue import ZoneQueue
from quarterdeck.store.interface import CommitUnknown, ContentError, TransientError

log = logging.getLogger("quarterdeck.lanes")
CONNECTION_FAILED = "08001"
"""The SQLSTATE of a connection that could not be established."""
TIMEOUT_CODES = ("57014", "25P03")
"""A statement timed out, or the transaction was idle for too long: the batch may be too large, and is halved."""
_COMMIT_RESULTS = {True: "committed", False: "not committed"}


class Busy(Enum):
    BUSY = "busy"


BUSY: Final = Busy.BUSY
"""The outcome of a command whose zone another transaction has locked. Nothing was decided; the command is retried."""


class LaneCommand(Protocol):
    @property
    def zone_id(self) -> str: ...


def zones_of(commands: Sequence[LaneCommand]) -> set[str]:
    """All zones that a batch may see: those of its commands, and those of their bearers."""
    zones = {command.zone_id for command in commands}
    for command in commands:
        if bearer := getattr(command, "bearer", None):
            zones.add(bearer.zone_id)
    return zones


C = TypeVar("C", bound=LaneCommand)
R = TypeVar("R")
Outcomes = Sequence[R | Problem | Busy]
Operation = Callable[[Transaction, Sequence[C]], Awaitable[Outcomes[R]]]
RunBatch = Callable[[Sequence[C], bool, TransactionAttempt], Awaitable[Outcomes[R]]]


def require_result(outcome: R | Problem | Busy) -> R:
    """The result of a command that another operation runs in its own transaction, whose zones are not busy."""
    if isinstance(outcome, Problem):
        raise outcome
    if isinstance(outcome, Busy):
        raise RuntimeError("the zone is busy, although it is locked or only read here")
    return outcome


RETRY = Policy(max_attempts=5, base_ms=20, multiplier=3.0, cap_ms=1_000)


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How long a lane keeps trying before it returns an error."""

    retry: Policy = RETRY
    busy_seconds: float = 0.05
    """How long a zone may be busy before a waiter serves it."""
    batch_seconds: float = 10.0
    """No new attempt starts after this, however few there were: each may have waited for an unresponsive network."""
    unknown_seconds: float = 5.0
    """How long to look up the outcome of a COMMIT whose response was lost."""
    waiters_max: int = 4
    zone_batches_max: int = 32
    """How many batches a waiter runs for one zone before the pump checks whether the zone's lock is free again."""


class LaneObserver(Protocol):
    """Gets a call for each batch, refusal and retry. `Metrics` implements it."""

    def on_batch(self, lane: str, size: int, seconds: float) -> None: ...
    def on_refused(self, lane: str, reason: str) -> None: ...
    def on_retried(self, lane: str, code: str) -> None: ...


class _QueuedCommand(Generic[C, R]):
    """One command and the future that its caller awaits."""

    __slots__ = ("busy_since", "command", "future", "position", "zone_id")

    def __init__(self, command: C, future: asyncio.Future[R], position: int) -> None:
        self.command = command
        self.zone_id = command.zone_id
        self.future = future
        self.position = position
        self.busy_since: float | None = None


@dataclass(slots=True)
class Lanes:
    """Creates the lanes of a server, which share an engine and limits. `drain` waits until all are idle."""

    engine: Engine
    settings: EngineSettings
    observer: LaneObserver | None = None
    limits: LaneLimits = field(default_factory=LaneLimits)
    wait_for_zone: Callable[[str], Awaitable[object]] | None = None
    """Waits until the lock of a zone is free. Returns without holding it. Set by the zones component."""
    lanes: list[Lane[Any, Any]] = field(default_factory=list)

    def add_write_lane(self, name: str, operation: Operation[C, R], gather_seconds: float = 0.0) -> Lane[C, R]:
        """A lane whose batches are durable transactions. `gather_seconds` delays each batch, for commands that are not
        urgent: a transaction costs the same for one command as for fifty."""

        def run_batch(
            commands: Sequence[C], wait_for_locks: bool, attempt: TransactionAttempt
        ) -> Awaitable[Outcomes[R]]:
            attempt.zones = zones_of(commands)
            return self.engine.transact(
                lambda tx: _run_operation(operation, tx, commands),
                zones=attempt.zones,
                wait_for_locks=wait_for_locks,
                attempt=attempt,
            )

        return self._add(name, run_batch, gather_seconds)

    def add_read_lane(self, name: str, operation: Operation[C, R]) -> Lane[C, R]:
        """A lane that batches point reads: one statement serves all waiting callers."""

        def run_batch(
            commands: Sequence[C], wait_for_locks: bool, attempt: TransactionAttempt
        ) -> Awaitable[Outcomes[R]]:
            return self.engine.read(lambda tx: _run_operation(operation, tx, commands), zones=zones_of(commands))

        return self._add(name, run_batch)

    async def drain(self) -> None:
        """Return when every accepted command has its outcome."""
        for lane in self.lanes:
            await lane.drain()

    def _add(self, name: str, run_batch: RunBatch[C, R], gather_seconds: float = 0.0) -> Lane[C, R]:
        lane = Lane(name, self, run_batch, gather_seconds)
        self.lanes.append(lane)
        return lane


async def _run_operation(operation: Operation[C, R], tx: Transaction, commands: Sequence[C]) -> Outcomes[R]:
    outcomes = await operation(tx, commands)
    # Checked before the commit: a command without an outcome would leave its caller waiting forever.
    if len(outcomes) != len(commands):
        raise RuntimeError(f"{len(commands)} commands have {len(outcomes)} outcomes")
    return outcomes


class Lane(Generic[C, R]):
    def __init__(self, name: str, lanes: Lanes, run_batch: RunBatch[C, R], gather_seconds: float = 0.0) -> None:
        self.name = name
        self._run_batch = run_batch
        self._gather_seconds = gather_seconds
        self._engine = lanes.engine
        self._batch_max = lanes.settings.batch_max
        self._limits = lanes.limits
        self._lanes = lanes
        self._observer = lanes.observer
        self._queue: ZoneQueue[_QueuedCommand[C, R]] = ZoneQueue(lanes.settings.queue_max)
        self._last_position = 0
        self._pump_task: asyncio.Task[None] | None = None
        self._waiters: set[asyncio.Task[None]] = set()
        self._contended_zones: deque[str] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, command: C) -> asyncio.Future[R]:
        """Queue a command. The future returns its outcome or raises its Problem."""
        loop = asyncio.get_running_loop()
        self._last_position += 1
        entry: _QueuedCommand[C, R] = _QueuedCommand(command, loop.create_future(), self._last_position)
        if evicted := self._queue.put(entry):
            self._reject(evicted, self._queue_full())
        self._start_pump()
        return entry.future

    async def drain(self) -> None:
        """Return when every accepted command has its outcome."""
        await self._idle.wait()

    def __len__(self) -> int:
        return len(self._queue)

    # -- the pump: runs batches while there are commands --------------------------------------------------------

    def _start_pump(self) -> None:
        if self._pump_task is None and self._queue.has_ready():
            self._idle.clear()
            self._pump_task = asyncio.get_running_loop().create_task(self._pump(), name=f"lane {self.name}")

    async def _pump(self) -> None:
        try:
            while self._queue.has_ready():
                if self._gather_seconds:
                    await asyncio.sleep(self._gather_seconds)
                if not (batch := self._queue.take(self._batch_max)):
                    break  # a waiter of a contended zone has taken the commands
                busy = await self._process(batch, wait_for_locks=False)
                if busy and not self._set_aside_busy(busy, is_whole_batch=len(busy) == len(batch)):
                    # No waiter is free: retry after a pause, not at once.
                    await asyncio.sleep(self._limits.busy_seconds / 5)
        finally:
            self._pump_task = None
            self._update_idle()

    def _set_aside_busy(self, busy: list[_QueuedCommand[C, R]], *, is_whole_batch: bool) -> bool:
        """Put the commands of busy zones first in the next batch. A zone that has been busy for `busy_seconds`, or any
        zone if the whole batch was busy, gets a waiter if one is free. Otherwise it stays in the lane: a zone that is
        busy for a moment must not queue behind zones that are stuck. Return False if the whole batch was busy and no
        waiter was free."""
        now = asyncio.get_running_loop().time()
        self._queue.put_back(busy)
        has_waiter = False
        for zone_id in dict.fromkeys(entry.zone_id for entry in busy):
            since = min(e.busy_since or now for e in busy if e.zone_id == zone_id)
            if is_whole_batch or now - since >= self._limits.busy_seconds:
                free_waiters = self._limits.waiters_max - len(self._waiters) - len(self._contended_zones)
                if free_waiters > 0:
                    self._queue.pause_zone(zone_id)
                    self._contended_zones.append(zone_id)
                    has_waiter = True
        for entry in busy:
            entry.busy_since = entry.busy_since or now
        for _ in range(min(len(self._contended_zones), self._limits.waiters_max - len(self._waiters))):
            task = asyncio.get_running_loop().create_task(
                self._serve_contended_zones(), name=f"lane {self.name}, waiting"
            )
            self._waiters.add(task)
            task.add_done_callback(self._on_waiter_done)
        return not is_whole_batch or has_waiter

    async def _serve_contended_zones(self) -> None:
        while self._contended_zones:
            zone_id = self._contended_zones.popleft()
            try:
                await self._serve_contended_zone(zone_id)
            finally:
                self._queue.resume_zone(zone_id)
                self._start_pump()
        # Not left to the callback: until it runs, this waiter would count against `waiters_max` and serve no zone.
        self._waiters.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _serve_contended_zone(self, zone_id: str) -> None:
        """Serve a zone whose lock other transactions hold, while it has commands and no other zone needs the waiter.

        Commands are taken after the wait, so that commands that arrive during the wait join the same batch. If they
        were taken before it, each replica would wait with half of its commands, and then again with the other half.
        """
        for _ in range(self._limits.zone_batches_max):
            await self._try_wait_for_zone(zone_id)
            batch = self._queue.take_zone(zone_id, self._batch_max)
            if not batch:
                return
            self._queue.put_back(await self._process(batch, wait_for_locks=True))
            if self._contended_zones:
                return

    async def _try_wait_for_zone(self, zone_id: str) -> None:
        wait_for_zone = self._lanes.wait_for_zone
        if wait_for_zone is None:
            return
        try:
            await wait_for_zone(zone_id)
        except TransientError as error:
            # Not fatal: the batch then waits for the lock itself, or fails and reports the error.
            self._report_retry(error.code)

    def _on_waiter_done(self, task: asyncio.Task[None]) -> None:
        self._waiters.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a waiter of lane %s failed", self.name, exc_info=error)
        self._update_idle()

    def _update_idle(self) -> None:
        self._start_pump()
        if self._pump_task is None and not self._waiters:
            self._idle.set()

    # -- one batch: every command gets an outcome, or is returned as busy ----------------------------------------

    async def _process(self, batch: list[_QueuedCommand[C, R]], *, wait_for_locks: bool) -> list[_QueuedCommand[C, R]]:
        try:
            outcomes = await self._execute(batch, wait_for_locks=wait_for_locks)
        except OutcomeUnknown as unknown:
            for entry in batch:
                self._reject(entry, unknown)
            return []
        except TransientError as error:
            if error.code in TIMEOUT_CODES and len(batch) > 1:
                return await self._bisect(batch, error, wait_for_locks=wait_for_locks)
            for entry in batch:
                self._reject(entry, self._database_unavailable())
            return []
        except Exception as error:
            # Broad, because a command may make an operation or the database raise anything.
            return await self._bisect(batch, error, wait_for_locks=wait_for_locks)
        return self._resolve(batch, outcomes)

    async def _bisect(
        self, batch: list[_QueuedCommand[C, R]], error: Exception, *, wait_for_locks: bool
    ) -> list[_QueuedCommand[C, R]]:
        """Find the command that causes the error and reject it. The other commands of the batch succeed."""
        if len(batch) == 1:
            self._reject(batch[0], self._to_problem(error))
            return []
        middle = len(batch) // 2
        busy = await self._process(batch[:middle], wait_for_locks=wait_for_locks)
        return busy + await self._process(batch[middle:], wait_for_locks=wait_for_locks)

    async def _execute(self, batch: list[_QueuedCommand[C, R]], *, wait_for_locks: bool) -> Outcomes[R]:
        """Run a batch until its outcome is certain, or retries are exhausted."""
        loop = asyncio.get_running_loop()
        commands = [entry.command for entry in batch]
        deadline = loop.time() + self._limits.batch_seconds
        attempts = 0
        while True:
            attempts += 1
            attempt = TransactionAttempt(key=random.getrandbits(62))
            started_at = loop.time()
            try:
                outcomes = await self._run_batch(commands, wait_for_locks, attempt)
                if self._observer:
                    self._observer.on_batch(self.name, len(commands), loop.time() - started_at)
                return outcomes
            except CommitUnknown:
                self._report_retry("commit_unknown")
                if await self._find_commit_outcome(attempt):
                    return attempt.outcomes  # type: ignore[return-value]  # stored there by this lane's own run
                if attempts >= self._limits.retry.max_attempts or loop.time() >= deadline:
                    # It is certain that no attempt was committed, so the callers get an ordinary 503.
                    raise
            except TransientError as error:
                self._report_retry(error.code)
                is_exhausted = attempts >= self._limits.retry.max_attempts or loop.time() >= deadline
                if error.code in TIMEOUT_CODES and len(commands) > 1:
                    raise
                # Without a connection, the attempt has already waited for one. Do not make callers wait five times.
                if is_exhausted or error.code == CONNECTION_FAILED:
                    log.warning("lane %s gave up after %d attempts: %s", self.name, attempts, error)
                    raise
                await asyncio.sleep(backoff(self._limits.retry, attempt=attempts, jitter=random.random()) / 1000)

    async def _find_commit_outcome(self, attempt: TransactionAttempt) -> bool:
        """Whether a COMMIT with a lost response took effect. Retries until that is certain."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.unknown_seconds
        attempts = 0
        while True:
            attempts += 1
            try:
                async with asyncio.timeout_at(deadline):
                    is_committed = await self._engine.was_committed(attempt)
                log.warning(
                    "lane %s lost a connection during COMMIT; it was %s", self.name, _COMMIT_RESULTS[is_committed]
                )
                return is_committed
            except (TransientError, TimeoutError) as error:
                pause = backoff(self._limits.retry, attempt=attempts, jitter=random.random()) / 1000
                if loop.time() + pause >= deadline:
                    raise OutcomeUnknown(
                        "outcome_unknown",
                        "The connection to the database was lost during COMMIT, and the outcome could not be read in "
                        "time. Retry with the same Idempotency-Key, or check the state before you retry.",
                        retry_after=1,
                    ) from error
                await asyncio.sleep(pause)

    # -- outcomes ------------------------------------------------------------------------------------------------

    def _report_retry(self, code: str) -> None:
        if self._observer:
            self._observer.on_retried(self.name, code)

    def _resolve(self, batch: list[_QueuedCommand[C, R]], outcomes: Outcomes[R]) -> list[_QueuedCommand[C, R]]:
        busy = []
        for entry, outcome in zip(batch, outcomes, strict=True):
            if outcome is BUSY:
                busy.append(entry)
            elif isinstance(outcome, Problem):
                self._reject(entry, outcome)
            elif not entry.future.done():
                entry.future.set_result(outcome)
        return busy

    def _reject(self, entry: _QueuedCommand[C, R], problem: Problem) -> None:
        if not entry.future.done():
            entry.future.set_exception(problem)
        if self._observer:
            self._observer.on_refused(self.name, problem.code)

    def _to_problem(self, error: Exception) -> Problem:
        if isinstance(error, Problem):
            return error
        if isinstance(error, ContentError) and error.code.startswith("22"):
            return Invalid(
                "invalid_value", "The database rejected a value: a number is out of range or text is not valid UTF-8."
            )
        if isinstance(error, ContentError):
            return Conflict("conflict", "This request conflicts with stored data.")
        log.error("lane %s: a command failed", self.name, exc_info=error)
        return Internal("internal_error", "Internal error. The server log has the details.")

    def _queue_full(self) -> Problem:
        return Unavailable("queue_full", f"Too many requests are queued for {self.name}. Retry later.", retry_after=1)

    def _database_unavailable(self) -> Problem:
        return Unavailable(
            "database_unavailable", "The database is unreachable or too busy. Retry later.", retry_after=1
        )
