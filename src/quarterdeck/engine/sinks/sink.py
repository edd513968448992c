"""The work of a sink: read the log, deliver, write down what was refused, move on."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import msgspec

from quarterdeck.bus.redis.interfaces import Entry, Hold, Marker
from quarterdeck.core.clock import MINUTE, Millis
from quarterdeck.core.ids import new_id
from quarterdeck.core.retry import Policy, decide, delay
from quarterdeck.engine import event_log as journal
from quarterdeck.engine.event_log import Bounds, Event
from quarterdeck.engine.leases import Fence, LeaseLost
from quarterdeck.engine.queries import Q
from quarterdeck.engine.settings import SinkSettings
from quarterdeck.engine.sinks.model import Channel, Parked, State
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.store.interface import StoreError, decode

log = logging.getLogger("quarterdeck.sinks")
NOTE_SECONDS = 0.25
"""Between two writes of the position: on SQLite each is an fsync that those who are at work wait for, too."""
ATTEND_MS = 60 * MINUTE
"""How often a sink that has nothing to tell says that it is still run."""
BACKOFF = Policy(max_attempts=0, base_ms=1_000, multiplier=2.0, cap_ms=300_000)
Order = tuple[str, str]
"""(stream, subject): what is told in order."""
Told = tuple[Event, list[Entry]]
Batch = list[tuple[object, ...]]


@dataclass(frozen=True, slots=True)
class _Seen:
    """One look at the log and at what waits."""

    events: Sequence[Event]
    late: Sequence[Parked]
    next_at: Millis | None
    now: Millis


@dataclass(frozen=True, slots=True)
class _Judge:
    """Whether what the other side claims is so, by the database."""

    engine: Engine
    fence: Fence

    async def has(self, marker: Marker) -> bool:
        async def read(tx: Tx) -> bool:
            [found] = await tx.read(Q.log_has(pos=marker.pos, id=marker.event_id))
            return bool(found)

        return marker.pos <= journal.LAST and await self.engine.read(read)

    async def holds(self) -> bool:
        async def read(tx: Tx) -> bool:
            [found] = await tx.read(Q.lease_fence(name=self.fence.name, term=self.fence.term))
            return bool(found)

        return await self.engine.transact(read)


class Sink:
    """One process's share of a sink: an `engine.duties.Work`."""

    def __init__(self, engine: Engine, name: str, channel: Channel, settings: SinkSettings) -> None:
        self.name = name
        self.head = self.position = 0
        """As this process has last seen them, or made them."""
        self.oldest_at: Millis | None = None
        """The time of what has waited longest to be told."""
        self.delivered = self.refused = self.died = self.missed = 0
        self._engine = engine
        self._channel = channel
        self._batch = settings.outbox_batch_size
        self._policy = replace(BACKOFF, max_attempts=settings.outbox_max_attempts)
        self._own = new_id()
        self._hold: Hold | None = None
        """In whose name this process delivers; None if it has to find out where the sink stands."""
        self._written = 0
        self._written_at = 0.0
        self._attended: Millis = 0
        self._stuck: set[tuple[str, int, int]] = set()
        self._alerts: dict[tuple[str, bool], list[tuple[int, str]]] = {}
        """By stream, and whether it may be given up: the position and the error of what was refused too often."""

    @property
    def stuck(self) -> int:
        """Entries that may not be given up, and have been refused as often as others are before they are given up."""
        return len(self._stuck)

    async def begin(self) -> None:
        """Before anything is served: whatever is committed from here on is told, now or later."""

        async def create(tx: Tx) -> None:
            tx.write(Q.sink_create(name=self.name, id=new_id()))
            tx.write(Q.sink_attend(name=self.name))

        await self._engine.transact(create)

    # -- what a duty asks for -----------------------------------------------------------------------------------

    async def is_due(self) -> bool:
        self._hold = None  # without a lease nothing is known: another may have moved on
        state, now = await self._engine.read(self._state)
        if state is None:
            return True
        self._saw(state.position, state.head, state.oldest_at)
        is_late = state.next_at is not None and state.next_at <= now
        return state.head > state.position or is_late or now - state.updated_at > ATTEND_MS

    async def turn(self, fence: Fence) -> float | None:
        hold = await self._held(fence)
        seen = await self._engine.read(self._look)
        if seen.late:
            await self._retry(hold, fence, seen)
        has_parked = await self._tell(hold, fence, seen) if seen.events else False
        self._alert()
        if self._is_time_to_write(seen.now):
            await self._write(fence, self.position, [])
        return 0 if has_parked else self._again(seen)

    async def rest(self, fence: Fence | None) -> None:
        try:
            if fence is not None and self._hold is not None and self.position > self._written:
                await self._write(fence, self.position, [])
        finally:
            await self._channel.outlet.close()

    # -- where it stands ----------------------------------------------------------------------------------------

    async def _held(self, fence: Fence) -> Hold:
        """With a new term everything is read anew, and whoever held it before is shut out."""
        if self._hold is not None and self._hold.term == fence.term:
            return self._hold
        state, _ = await self._engine.read(self._state)
        if state is None:
            log.warning("the sink %s had been forgotten, and begins anew at the head of the log", self.name)
            await self.begin()
            state, _ = await self._engine.read(self._state)
        assert state is not None  # made a moment ago
        position = state.position
        if position < state.floor:
            log.error("events %d to %d went before %s had told them", position + 1, state.floor, self.name)
            self.missed += state.floor - position
            position = state.floor
        hold = Hold(state.id, fence.term, self._own, _Judge(self._engine, fence))
        await self._channel.outlet.take_over(hold)
        self._saw(position, state.head, state.oldest_at)
        self._written, self._written_at = position, time.monotonic()
        self._attended, self._hold = state.updated_at, hold
        self._stuck.clear()
        return hold

    async def _state(self, tx: Tx) -> tuple[State | None, Millis]:
        [rows] = await tx.read(Q.sink_state(name=self.name))
        return next(iter(decode(rows, State)), None), tx.now

    async def _look(self, tx: Tx) -> _Seen:
        events, late, waiting, bounds = await tx.read(
            Q.log_tail(after=self.position, limit=self._batch),
            Q.sink_due(sink=self.name, limit=self._batch),
            Q.sink_next(sink=self.name),
            Q.log_bounds(),
        )
        found = decode(events, Event)
        next_at = waiting[0][0]
        self._saw(self.position, decode(bounds, Bounds)[0].head, found[0].at if found else None)
        return _Seen(found, decode(late, Parked), next_at if isinstance(next_at, int) else None, tx.now)

    def _saw(self, position: int, head: int, oldest_at: Millis | None) -> None:
        self.position, self.head, self.oldest_at = position, head, oldest_at

    # -- telling ------------------------------------------------------------------------------------------------

    async def _tell(self, hold: Hold, fence: Fence, seen: _Seen) -> bool:
        """The next events, up to the first that has to wait; or those that do, which are written down instead. Never
        both at once: whoever goes on after a crash believes that what lies behind a marker was delivered. Whether
        something was written down."""
        told: list[Told] = [(event, self._entries_of(event)) for event in seen.events]
        waiting = await self._waiting(told) if seen.next_at is not None else {}

        def waits(each: Told) -> bool:
            return any((entry.stream, entry.subject) in waiting for entry in each[1])

        ready = [*takewhile(lambda each: not waits(each), told)]
        if ready:
            parked = await self._deliver(hold, [entry for _, entries in ready for entry in entries], seen.now)
        else:
            ready = [*takewhile(waits, told)]
            behind = [entry for _, entries in ready for entry in entries]
            parked = [self._parked(entry, seen.now, waiting) for entry in behind]
        upto = ready[-1][0].pos
        if parked:
            await self._write(fence, upto, parked)
        self.position = upto
        self.oldest_at = None if upto >= self.head else self.oldest_at
        return bool(parked)

    def _entries_of(self, event: Event) -> list[Entry]:
        try:
            return self._channel.entries_of(event)
        except msgspec.MsgspecError as error:
            # No operation writes such an event; a hand in the database may, and must not stop all that comes after it.
            log.error("%s cannot tell what happened at position %d: %s", self.name, event.pos, error)
            self.missed += 1
            return []

    async def _waiting(self, told: Sequence[Told]) -> dict[Order, Millis]:
        """For what of this something waits already, and until when."""
        orders = {(self.name, entry.stream, entry.subject) for _, entries in told for entry in entries}

        async def read(tx: Tx) -> dict[Order, Millis]:
            [rows] = await tx.read(Q.sink_waiting(batch=[*sorted(orders)]))
            return {(str(stream), str(subject)): int(str(next_at)) for stream, subject, next_at in rows}

        return await self._engine.read(read) if orders else {}

    async def _deliver(self, hold: Hold, entries: Sequence[Entry], now: Millis) -> list[Parked]:
        """What of it has to be written down: on each stream what was refused, and the rest of that stream's."""
        if not entries:
            return []
        rejected = await self._channel.outlet.deliver(hold, self.position, entries)
        first = {each.entry.stream: each for each in rejected}
        waiting: dict[Order, Millis] = {}
        parked = []
        for entry in entries:
            refusal = first.get(entry.stream)
            if refusal is not None and entry.pos >= refusal.entry.pos:
                row = self._parked(entry, now, waiting, refusal.error if entry is refusal.entry else "")
                waiting[entry.stream, entry.subject] = row.next_at
                parked.append(row)
        self.delivered += len(entries) - len(parked)
        return parked

    def _parked(self, entry: Entry, now: Millis, waiting: Mapping[Order, Millis], error: str = "") -> Parked:
        """The row of an entry: refused, or due as soon as what waits before it."""
        attempts, next_at, dead_at = 0, waiting.get((entry.stream, entry.subject), now), None
        fields = msgspec.json.encode(entry.fields).decode()
        named = (self.name, entry.pos, entry.number, entry.zone_id, entry.stream, entry.subject, fields)
        if error:
            attempts, (next_at, dead_at) = 1, self._refused(entry, 1, error, now)
        return Parked(*named, attempts, next_at, dead_at, error, now)

    # -- telling late -------------------------------------------------------------------------------------------

    async def _retry(self, hold: Hold, fence: Fence, seen: _Seen) -> None:
        """Tries again what is due, the oldest of each subject. What waits behind one that is put off waits with it."""
        entries = [row.told() for row in seen.late]
        answers = await self._channel.outlet.deliver_late(hold, entries)
        gone: Batch = []
        put_off: Batch = []
        behind: Batch = []
        for row, entry, error in zip(seen.late, entries, answers, strict=True):
            if error is None:
                gone.append(row.key)
                self._stuck.discard(row.key)
                continue
            next_at, dead_at = self._refused(entry, row.attempts + 1, error, seen.now)
            put_off.append((*row.key, row.attempts, next_at, dead_at, error))
            behind.append((self.name, row.stream, row.subject, next_at))

        async def write(tx: Tx) -> None:
            await fence.check(tx)
            if gone:
                tx.write(Q.sink_unpark(batch=gone))
            if put_off:
                tx.write(Q.sink_put_off(batch=put_off))
                tx.write(Q.sink_put_off_behind(batch=behind))

        await self._engine.transact(write)
        self.delivered += len(gone)

    def _refused(self, entry: Entry, tries: int, error: str, now: Millis) -> tuple[Millis, Millis | None]:
        """When it is tried again, and when it was given up."""
        self.refused += 1
        chance = random.random()
        due = decide(self._policy, attempt=tries, now=now, chance=chance)
        if due is not None:
            return due, None
        never = self._channel.never_gives_up(entry.stream)
        self._alerts.setdefault((entry.stream, never), []).append((entry.pos, error))
        if never:
            self._stuck.add((self.name, entry.pos, entry.number))
            return now + delay(self._policy, attempt=tries, chance=chance), None
        self.died += 1
        return now, now

    def _alert(self) -> None:
        """A line for each stream, however many of its entries are concerned: ten thousand may be."""
        for (stream, never), refused in self._alerts.items():
            pos, error = refused[0]
            what = "refused time and again, and never given up" if never else "given up"
            said = "%s: %d entries of %s are %s; the first of position %d: %s"
            log.error(said, self.name, len(refused), stream, what, pos, error)
        self._alerts.clear()

    # -- moving on ----------------------------------------------------------------------------------------------

    def _is_time_to_write(self, now: Millis) -> bool:
        if now - self._attended > ATTEND_MS:
            return True
        return self.position > self._written and time.monotonic() - self._written_at >= NOTE_SECONDS

    async def _write(self, fence: Fence, position: int, parked: Sequence[Parked]) -> None:
        async def write(tx: Tx) -> bool:
            await fence.check(tx)
            [moved] = await tx.read(Q.sink_advance(name=self.name, id=self._named(), position=position))
            self._attended = tx.now
            if moved and parked:
                tx.write(Q.sink_park(batch=[msgspec.structs.astuple(row) for row in parked]))
            return bool(moved)

        try:
            moved = await self._engine.transact(write)
        except StoreError:
            self._hold = None  # nobody here knows whether it was written
            raise
        if not moved:
            self._hold = None
            raise LeaseLost("lease_lost", f"The sink {self.name} was forgotten, or moved on by another.")
        self._written, self._written_at = position, time.monotonic()

    def _named(self) -> str:
        assert self._hold is not None  # whoever writes has found out before where it stands
        return self._hold.sink_id

    def _again(self, seen: _Seen) -> float | None:
        was_cut = bool(seen.events) and self.position < seen.events[-1].pos
        if was_cut or self._batch in (len(seen.events), len(seen.late)):
            return 0
        due = [] if seen.next_at is None else [max(0.05, (seen.next_at - seen.now) / 1000)]
        if self.position > self._written:
            due.append(max(0.01, self._written_at + NOTE_SECONDS - time.monotonic()))
        return min(due, default=None)
