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
from quarterdeck.core.retry import Policy, delay
from quarterdeck.engine.settings import EngineSettings
from quarterdeck.engine.transaction import Attempt, Engine, Tx
from quarterdeck.engine.zone_queue import ZoneQueue
from quarterdeck.store.interface import CommitUnknown, ContentError, TransientError

log = logging.getLogger("quarterdeck.lanes")
NO_CONNECTION = "08001"
"""The SQLSTATE of a connection that could not be established."""


TOO_MUCH = ("57014", "25P03")
"""A statement or a pause that took too long: the batch may be too large for one transaction, and is halved."""
_FOUND = {True: "committed", False: "not committed"}


class Busy(Enum):
    BUSY = "busy"


BUSY: Final = Busy.BUSY
"""The outcome of a command whose zone another transaction holds: nothing was decided, try again."""


class Command(Protocol):
    @property
    def zone_id(self) -> str: ...


def zones_of(commands: Sequence[Command]) -> set[str]:
    """Every zone a batch may see: where its commands act, and where their bearers' sessions are."""
    zones = {command.zone_id for command in commands}
    for command in commands:
        if bearer := getattr(command, "bearer", None):
            zones.add(bearer.zone_id)
    return zones


C = TypeVar("C", bound=Command)
R = TypeVar("R")
Outcomes = Sequence[R | Problem | Busy]
Operation = Callable[[Tx, Sequence[C]], Awaitable[Outcomes[R]]]
Run = Callable[[Sequence[C], bool, Attempt], Awaitable[Outcomes[R]]]


RETRY = Policy(max_attempts=5, base_ms=20, multiplier=3.0, cap_ms=1_000)


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a lane goes on before it gives an answer it does not like."""

    retry: Policy = RETRY
    busy_seconds: float = 0.05
    batch_seconds: float = 10.0
    """After this no new attempt is begun, however few there were: each may have waited for a silent network."""
    unknown_seconds: float = 5.0
    waiters: int = 4
    turns: int = 32
    """How often a waiter goes on with one zone before the pump looks whether it is free again."""


class Observer(Protocol):
    """Hears what lanes do; metrics are one."""

    def batch(self, lane: str, size: int, seconds: float) -> None: ...
    def refused(self, lane: str, reason: str) -> None: ...
    def retried(self, lane: str, code: str) -> None: ...


class _Waiting(Generic[C, R]):
    """One command and the future its caller awaits."""

    __slots__ = ("busy_since", "command", "future", "place", "zone_id")

    def __init__(self, command: C, future: asyncio.Future[R], place: int) -> None:
        self.command = command
        self.zone_id = command.zone_id
        self.future = future
        self.place = place
        self.busy_since: float | None = None


@dataclass(slots=True)
class Lanes:
    """Makes the lanes of a server, which share an engine and its bounds, and knows when all of them are at rest."""

    engine: Engine
    settings: EngineSettings
    observer: Observer | None = None
    patience: Patience = field(default_factory=Patience)
    turnstile: Callable[[str], Awaitable[object]] | None = None
    """Returns when a zone that others hold has been free for a moment."""
    made: list[Lane[Any, Any]] = field(default_factory=list)

    def writing(self, name: str, operation: Operation[C, R], gather_seconds: float = 0.0) -> Lane[C, R]:
        """A lane whose batches are durable transactions. What nobody is in a hurry for may gather before each: a
        transaction costs the same for one as for fifty."""

        def run(commands: Sequence[C], waits: bool, attempt: Attempt) -> Awaitable[Outcomes[R]]:
            attempt.zones = zones_of(commands)
            return self.engine.transact(
                lambda tx: _all_of(operation, tx, commands), zones=attempt.zones, waits=waits, attempt=attempt
            )

        return self._make(name, run, gather_seconds)

    def reading(self, name: str, operation: Operation[C, R]) -> Lane[C, R]:
        """A lane that gathers point reads: one statement answers everybody who waits."""

        def run(commands: Sequence[C], waits: bool, attempt: Attempt) -> Awaitable[Outcomes[R]]:
            return self.engine.read(lambda tx: _all_of(operation, tx, commands), zones=zones_of(commands))

        return self._make(name, run)

    async def drain(self) -> None:
        """Returns when every command that was let in has its answer."""
        for lane in self.made:
            await lane.drain()

    def _make(self, name: str, run: Run[C, R], gather_seconds: float = 0.0) -> Lane[C, R]:
        lane = Lane(name, self, run, gather_seconds)
        self.made.append(lane)
        return lane


async def _all_of(operation: Operation[C, R], tx: Tx, commands: Sequence[C]) -> Outcomes[R]:
    """Asked before the commit: an operation that lost an outcome would leave a caller waiting for ever."""
    outcomes = await operation(tx, commands)
    if len(outcomes) != len(commands):
        raise RuntimeError(f"{len(commands)} commands have {len(outcomes)} outcomes")
    return outcomes


class Lane(Generic[C, R]):
    def __init__(self, name: str, common: Lanes, run: Run[C, R], gather_seconds: float = 0.0) -> None:
        self.name = name
        self._run = run
        self._gather_seconds = gather_seconds
        self._engine = common.engine
        self._batch_max = common.settings.batch_max
        self._patience = common.patience
        self._turnstile = common.turnstile
        self._observer = common.observer
        self._queue: ZoneQueue[_Waiting[C, R]] = ZoneQueue(common.settings.queue_max)
        self._placed = 0
        self._pumping: asyncio.Task[None] | None = None
        self._waiters: set[asyncio.Task[None]] = set()
        self._to_wait_for: deque[str] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    def submit(self, command: C) -> asyncio.Future[R]:
        """Queues a command. The future gives its outcome, or raises the Problem that it met."""
        loop = asyncio.get_running_loop()
        self._placed += 1
        entry: _Waiting[C, R] = _Waiting(command, loop.create_future(), self._placed)
        if evicted := self._queue.put(entry):
            self._answer(evicted, self._full())
        self._wake()
        return entry.future

    async def drain(self) -> None:
        """Returns when every command that was let in has its answer."""
        await self._idle.wait()

    def __len__(self) -> int:
        return len(self._queue)

    # -- the pump: takes batches while there are any ------------------------------------------------------------

    def _wake(self) -> None:
        if self._pumping is None and self._queue.ready():
            self._idle.clear()
            self._pumping = asyncio.get_running_loop().create_task(self._pump(), name=f"lane {self.name}")

    async def _pump(self) -> None:
        try:
            while self._queue.ready():
                if self._gather_seconds:
                    await asyncio.sleep(self._gather_seconds)
                if not (batch := self._queue.take(self._batch_max)):
                    break  # somebody who waited for a zone has taken it along
                busy = await self._serve(batch, waits=False)
                if busy and not self._stand_aside(busy, alone=len(busy) == len(batch)):
                    # Nobody is free to wait for them: try again in a moment, not at once.
                    await asyncio.sleep(self._patience.busy_seconds / 5)
        finally:
            self._pumping = None
            self._rest()

    def _stand_aside(self, busy: list[_Waiting[C, R]], *, alone: bool) -> bool:
        """Busy zones stand first in the next batch; those busy for long, or with nobody beside them, are waited for,
        as far as there are waiters: a zone that is busy for a moment must not queue behind those that are stuck.
        False if there was nobody beside them and nobody to wait."""
        now = asyncio.get_running_loop().time()
        self._queue.put_back(busy)
        held = False
        for zone_id in dict.fromkeys(entry.zone_id for entry in busy):
            since = min(e.busy_since or now for e in busy if e.zone_id == zone_id)
            if alone or now - since >= self._patience.busy_seconds:
                free = self._patience.waiters - len(self._waiters) - len(self._to_wait_for)
                if free > 0:
                    self._queue.hold(zone_id)
                    self._to_wait_for.append(zone_id)
                    held = True
        for entry in busy:
            entry.busy_since = entry.busy_since or now
        for _ in range(min(len(self._to_wait_for), self._patience.waiters - len(self._waiters))):
            task = asyncio.get_running_loop().create_task(self._wait_for_zones(), name=f"lane {self.name}, waiting")
            self._waiters.add(task)
            task.add_done_callback(self._waiter_done)
        return not alone or held

    async def _wait_for_zones(self) -> None:
        while self._to_wait_for:
            zone_id = self._to_wait_for.popleft()
            try:
                await self._serve_contended(zone_id)
            finally:
                self._queue.release(zone_id)
                self._wake()
        # Not left to the callback: until that runs, a zone put aside would count on a waiter that looks no more.
        self._waiters.discard(cast("asyncio.Task[None]", asyncio.current_task()))

    async def _serve_contended(self, zone_id: str) -> None:
        """Serves a zone that others hold, too, for as long as it has commands and nobody else waits for a waiter. What
        is to be done is taken after the turnstile: what gathers before it goes into the same batch, where taken
        before, each replica would wait with half of its commands, and then again with the other half."""
        for _ in range(self._patience.turns):
            await self._pass_turnstile(zone_id)
            batch = self._queue.take_zone(zone_id, self._batch_max)
            if not batch:
                return
            self._queue.put_back(await self._serve(batch, waits=True))
            if self._to_wait_for:
                return

    async def _pass_turnstile(self, zone_id: str) -> None:
        if self._turnstile is None:
            return
        try:
            await self._turnstile(zone_id)
        except TransientError as error:
            # The batch itself will wait, or fail, and say so.
            self._retried(error.code)

    def _waiter_done(self, task: asyncio.Task[None]) -> None:
        self._waiters.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a waiter of lane %s failed", self.name, exc_info=error)
        self._rest()

    def _rest(self) -> None:
        self._wake()
        if self._pumping is None and not self._waiters:
            self._idle.set()

    # -- one batch: every command of it is answered, or comes back as busy ---------------------------------------

    async def _serve(self, batch: list[_Waiting[C, R]], *, waits: bool) -> list[_Waiting[C, R]]:
        try:
            outcomes = await self._persist(batch, waits=waits)
        except OutcomeUnknown as unknown:
            for entry in batch:
                self._answer(entry, unknown)
            return []
        except TransientError as error:
            if error.code in TOO_MUCH and len(batch) > 1:
                return await self._bisect(batch, error, waits=waits)
            for entry in batch:
                self._answer(entry, self._away())
            return []
        except Exception as error:
            # So broad because it may be anything that a command makes an operation or a database do.
            return await self._bisect(batch, error, waits=waits)
        return self._hand_out(batch, outcomes)

    async def _bisect(self, batch: list[_Waiting[C, R]], error: Exception, *, waits: bool) -> list[_Waiting[C, R]]:
        """Whatever it is, it belongs to one command: find it, answer it, and say so. Its neighbours succeed."""
        if len(batch) == 1:
            self._answer(batch[0], self._guilty(error))
            return []
        middle = len(batch) // 2
        busy = await self._serve(batch[:middle], waits=waits)
        return busy + await self._serve(batch[middle:], waits=waits)

    async def _persist(self, batch: list[_Waiting[C, R]], *, waits: bool) -> Outcomes[R]:
        """Runs a batch until its outcome is certain, or patience ends."""
        loop = asyncio.get_running_loop()
        commands = [entry.command for entry in batch]
        deadline = loop.time() + self._patience.batch_seconds
        tries = 0
        while True:
            tries += 1
            attempt = Attempt(key=random.getrandbits(62))
            began = loop.time()
            try:
                outcomes = await self._run(commands, waits, attempt)
                if self._observer:
                    self._observer.batch(self.name, len(commands), loop.time() - began)
                return outcomes
            except CommitUnknown:
                self._retried("commit_unknown")
                if await self._find_out(attempt):
                    return attempt.outcomes  # type: ignore[return-value]  # what this lane's own run has put there
                if tries >= self._patience.retry.max_attempts or loop.time() >= deadline:
                    # Certain, each time, that nothing was written: this is a database that is away.
                    raise
            except TransientError as error:
                # Whoever got no connection has waited for one already: to do so five times is no kindness to callers.
                self._retried(error.code)
                spent = tries >= self._patience.retry.max_attempts or loop.time() >= deadline
                if error.code in TOO_MUCH and len(commands) > 1:
                    raise
                if spent or error.code == NO_CONNECTION:
                    log.warning("lane %s gave up after %d tries: %s", self.name, tries, error)
                    raise
                await asyncio.sleep(delay(self._patience.retry, attempt=tries, chance=random.random()) / 1000)

    async def _find_out(self, attempt: Attempt) -> bool:
        """Whether a COMMIT nobody heard of happened. Asks until certain."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience.unknown_seconds
        tries = 0
        while True:
            tries += 1
            try:
                async with asyncio.timeout_at(deadline):
                    found = await self._engine.was_committed(attempt)
                log.warning("lane %s lost a connection during COMMIT; it was %s", self.name, _FOUND[found])
                return found
            except (TransientError, TimeoutError) as error:
                pause = delay(self._patience.retry, attempt=tries, chance=random.random()) / 1000
                if loop.time() + pause >= deadline:
                    raise OutcomeUnknown(
                        "outcome_unknown",
                        "The connection to the database was lost during COMMIT and it could not be asked again in "
                        "time. Repeat the request with the same Idempotency-Key, or look before repeating.",
                        retry_after=1,
                    ) from error
                await asyncio.sleep(pause)

    # -- answers -------------------------------------------------------------------------------------------------

    def _retried(self, code: str) -> None:
        if self._observer:
            self._observer.retried(self.name, code)

    def _hand_out(self, batch: list[_Waiting[C, R]], outcomes: Outcomes[R]) -> list[_Waiting[C, R]]:
        busy = []
        for entry, outcome in zip(batch, outcomes, strict=True):
            if outcome is BUSY:
                busy.append(entry)
            elif isinstance(outcome, Problem):
                self._answer(entry, outcome)
            elif not entry.future.done():
                entry.future.set_result(outcome)
        return busy

    def _answer(self, entry: _Waiting[C, R], problem: Problem) -> None:
        if not entry.future.done():
            entry.future.set_exception(problem)
        if self._observer:
            self._observer.refused(self.name, problem.code)

    def _guilty(self, error: Exception) -> Problem:
        if isinstance(error, Problem):
            return error
        if isinstance(error, ContentError) and error.code.startswith("22"):
            return Invalid("invalid_value", "The database cannot hold a value of this request.")
        if isinstance(error, ContentError):
            return Conflict("conflict", "This request contradicts what is stored.")
        log.error("lane %s: a command failed", self.name, exc_info=error)
        return Internal("internal_error", "This request met a defect of the server; its log has the details.")

    def _full(self) -> Problem:
        return Unavailable("queue_full", f"Too many requests wait for {self.name}; try again.", retry_after=1)

    def _away(self) -> Problem:
        return Unavailable("database_unavailable", "The database is away or too busy; try again.", retry_after=1)
