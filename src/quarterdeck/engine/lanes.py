"""Lanes: group commit.

A lane belongs to one kind of operation. Callers hand it one command each and await one outcome each. While one batch
commits, commands gather; what has gathered is the next batch. There are no timers: an idle lane commits at once.

    submit ─► ZoneQueue ─► _pump: take a batch ─► _serve ─► each caller's future
                                                    │
              ContentError, a bug in the rules ─────┤ bisect until the guilty command stands alone
              TransientError ───────────────────────┤ again, with jitter, bounded; then 503
              it took too long ─────────────────────┤ halved, as above
              CommitUnknown ────────────────────────┤ ask until certain; then hand out, or again
              BUSY for a zone ──────────────────────┘ first in the next batch; after 50 ms, wait for its lock aside

One busy zone must not stall the others: operations pass over zones whose lock another transaction holds and answer
`BUSY` for their commands. Those are tried again with the next batch; when a zone has been busy for long, or nothing
else is there to do, a waiter takes the zone's commands out of the lane's way and waits for the lock on a connection
of its own.
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
"""A statement or a pause that took too long: the batch may be too large for one transaction, and is halved."""
_COMMIT_RESULTS = {True: "committed", False: "not committed"}


class Busy(Enum):
    BUSY = "busy"


BUSY: Final = Busy.BUSY
"""The outcome of a command whose zone another transaction holds: nothing was decided, try again."""


class LaneCommand(Protocol):
    @property
    def zone_id(self) -> str: ...


def zones_of(commands: Sequence[LaneCommand]) -> set[str]:
    """Every zone a batch may see: where its commands act, and where their bearers' sessions are."""
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


RETRY = Policy(max_attempts=5, base_ms=20, multiplier=3.0, cap_ms=1_000)


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How long a lane goes on before it gives an answer it does not like."""

    retry: Policy = RETRY
    busy_seconds: float = 0.05
    batch_seconds: float = 10.0
    """After this no new attempt is begun, however few there were: each may have waited for a silent network."""
    unknown_seconds: float = 5.0
    waiters_max: int = 4
    zone_batches_max: int = 32
    """How often a waiter goes on with one zone before the pump looks whether it is free again."""


class LaneObserver(Protocol):
    """Hears what lanes do; metrics are one."""

    def on_batch(self, lane: str, size: int, seconds: float) -> None: ...
    def on_refused(self, lane: str, reason: str) -> None: ...
    def on_retried(self, lane: str, code: str) -> None: ...


class _QueuedCommand(Generic[C, R]):
    """One command and the future its caller awaits."""

    __slots__ = ("busy_since", "command", "future", "position", "zone_id")

    def __init__(self, command: C, future: asyncio.Future[R], place: int) -> None:
        self.command = command
        self.zone_id = command.zone_id
        self.future = future
        self.position = place
        self.busy_since: float | None = None


@dataclass(slots=True)
class Lanes:
    """Makes the lanes of a server, which share an engine and its bounds, and knows when all of them are at rest."""

    engine: Engine
    settings: EngineSettings
    observer: LaneObserver | None = None
    limits: LaneLimits = field(default_factory=LaneLimits)
    wait_for_zone: Callable[[str], Awaitable[object]] | None = None
    """Returns when a zone that others hold has been free for a moment."""
    lanes: list[Lane[Any, Any]] = field(default_factory=list)

    def add_write_lane(self, name: str, operation: Operation[C, R], gather_seconds: float = 0.0) -> Lane[C, R]:
        """A lane whose batches are durable transactions. What nobody is in a hurry for may gather before each: a
        transaction costs the same for one as for fifty."""

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
        """A lane that gathers point reads: one statement answers everybody who waits."""

        def run_batch(
            commands: Sequence[C], wait_for_locks: bool, attempt: TransactionAttempt
        ) -> Awaitable[Outcomes[R]]:
            return self.engine.read(lambda tx: _run_operation(operation, tx, commands), zones=zones_of(commands))

        return self._add(name, run_batch)

    async def drain(self) -> None:
        """Returns when every command that was let in has its answer."""
        for lane in self.lanes:
            await lane.drain()

    def _add(self, name: str, run_batch: RunBatch[C, R], gather_seconds: float = 0.0) -> Lane[C, R]:
        lane = Lane(name, self, run_batch, gather_seconds)
        self.lanes.append(lane)
        return lane


async def _run_operation(operation: Operation[C, R], tx: Transaction, commands: Sequence[C]) -> Outcomes[R]:
    """Asked before the commit: an operation that lost an outcome would leave a caller waiting for ever."""
    outcomes = await operation(tx, commands)
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
        self._wait_for_zone = lanes.wait_for_zone
        self._observer = lanes.observer
        self._queue: ZoneQueue[_QueuedCommand[C, R]] = ZoneQueue(lanes.settings.queue_max)
        self._last_place = 0
        self._pump_task: asyncio.Task[None] | None = None
        self._waiters: set[asyncio.Task[None]] = set()
        self._contended_zones: deque[str] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, command: C) -> asyncio.Future[R]:
        """Queues a command. The future gives its outcome, or raises the Problem that it met."""
        loop = asyncio.get_running_loop()
        self._last_place += 1
        entry: _QueuedCommand[C, R] = _QueuedCommand(command, loop.create_future(), self._last_place)
        if evicted := self._queue.put(entry):
            self._reject(evicted, self._queue_full())
        self._start_pump()
        return entry.future

    async def drain(self) -> None:
        """Returns when every command that was let in has its answer."""
        await self._idle.wait()

    def __len__(self) -> int:
        return len(self._queue)

    # -- the pump: takes batches while there are any ------------------------------------------------------------

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
                    break  # somebody who waited for a zone has taken it along
                busy = await self._process(batch, wait_for_locks=False)
                if busy and not self._set_aside_busy(busy, is_whole_batch=len(busy) == len(batch)):
                    # Nobody is free to wait for them: try again in a moment, not at once.
                    await asyncio.sleep(self._limits.busy_seconds / 5)
        finally:
            self._pump_task = None
            self._update_idle()

    def _set_aside_busy(self, busy: list[_QueuedCommand[C, R]], *, is_whole_batch: bool) -> bool:
        """Busy zones stand first in the next batch; those busy for long, or with nobody beside them, are waited for,
        as far as there are waiters: a zone that is busy for a moment must not queue behind those that are stuck.
        False if there was nobody beside them and nobody to wait."""
        now = asyncio.get_running_loop().time()
        self._queue.put_back(busy)
        has_waiter = False
        for zone_id in dict.fromkeys(entry.zone_id for entry in busy):
            since = min(e.busy_since or now for e in busy if e.zone_id == zone_id)
            if is_whole_batch or now - since >= self._limits.busy_seconds:
                free = self._limits.waiters_max - len(self._waiters) - len(self._contended_zones)
                if free > 0:
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
        # Not left to the callback: until that runs, a zone put aside would count on a waiter that looks no more.
        self._waiters.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _serve_contended_zone(self, zone_id: str) -> None:
        """Serves a zone that others hold, too, for as long as it has commands and nobody else waits for a waiter. What
        is to be done is taken after the turnstile: what gathers before it goes into the same batch, where taken
        before, each replica would wait with half of its commands, and then again with the other half."""
        for _ in range(self._limits.zone_batches_max):
            await self._try_wait_for_zone(zone_id)
            batch = self._queue.take_zone(zone_id, self._batch_max)
            if not batch:
                return
            self._queue.put_back(await self._process(batch, wait_for_locks=True))
            if self._contended_zones:
                return

    async def _try_wait_for_zone(self, zone_id: str) -> None:
        if self._wait_for_zone is None:
            return
        try:
            await self._wait_for_zone(zone_id)
        except TransientError as error:
            # The batch itself will wait, or fail, and say so.
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

    # -- one batch: every command of it is answered, or comes back as busy ---------------------------------------

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
            # So broad because it may be anything that a command makes an operation or a database do.
            return await self._bisect(batch, error, wait_for_locks=wait_for_locks)
        return self._resolve(batch, outcomes)

    async def _bisect(
        self, batch: list[_QueuedCommand[C, R]], error: Exception, *, wait_for_locks: bool
    ) -> list[_QueuedCommand[C, R]]:
        """Whatever it is, it belongs to one command: find it, answer it, and say so. Its neighbours succeed."""
        if len(batch) == 1:
            self._reject(batch[0], self._to_problem(error))
            return []
        middle = len(batch) // 2
        busy = await self._process(batch[:middle], wait_for_locks=wait_for_locks)
        return busy + await self._process(batch[middle:], wait_for_locks=wait_for_locks)

    async def _execute(self, batch: list[_QueuedCommand[C, R]], *, wait_for_locks: bool) -> Outcomes[R]:
        """Runs a batch until its outcome is certain, or patience ends."""
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
                    return attempt.outcomes  # type: ignore[return-value]  # what this lane's own run has put there
                if attempts >= self._limits.retry.max_attempts or loop.time() >= deadline:
                    # Certain, each time, that nothing was written: this is a database that is away.
                    raise
            except TransientError as error:
                # Whoever got no connection has waited for one already: to do so five times is no kindness to callers.
                self._report_retry(error.code)
                is_exhausted = attempts >= self._limits.retry.max_attempts or loop.time() >= deadline
                if error.code in TIMEOUT_CODES and len(commands) > 1:
                    raise
                if is_exhausted or error.code == CONNECTION_FAILED:
                    log.warning("lane %s gave up after %d tries: %s", self.name, attempts, error)
                    raise
                await asyncio.sleep(backoff(self._limits.retry, attempt=attempts, jitter=random.random()) / 1000)

    async def _find_commit_outcome(self, attempt: TransactionAttempt) -> bool:
        """Whether a COMMIT nobody heard of happened. Asks until certain."""
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
                        "The connection to the database was lost during COMMIT and it could not be asked again in "
                        "time. Repeat the request with the same Idempotency-Key, or look before repeating.",
                        retry_after=1,
                    ) from error
                await asyncio.sleep(pause)

    # -- answers -------------------------------------------------------------------------------------------------

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
            return Invalid("invalid_value", "The database cannot hold a value of this request.")
        if isinstance(error, ContentError):
            return Conflict("conflict", "This request contradicts what is stored.")
        log.error("lane %s: a command failed", self.name, exc_info=error)
        return Internal("internal_error", "This request met a defect of the server; its log has the details.")

    def _queue_full(self) -> Problem:
        return Unavailable("queue_full", f"Too many requests wait for {self.name}; try again.", retry_after=1)

    def _database_unavailable(self) -> Problem:
        return Unavailable("database_unavailable", "The database is away or too busy; try again.", retry_after=1)
