"""The work of a sink: read the log, deliver, store rejections, advance."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import msgspec

from quarterdeck.bus.redis.interfaces import Marker, SinkEntry, WriterIdentity
from quarterdeck.core.clock import MINUTE, Millis
from quarterdeck.core.ids import new_id
from quarterdeck.core.retry import Policy, backoff, next_attempt_at
from quarterdeck.engine.event_log import POSITION_MAX, Event, LogBounds
from quarterdeck.engine.leases import Fence, LeaseLost
from quarterdeck.engine.queries import Q
from quarterdeck.engine.settings import SinkSettings
from quarterdeck.engine.sinks.model import ParkedEntry, SinkState, SinkTarget
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import StoreError, decode

log = logging.getLogger("quarterdeck.sinks")
SAVE_INTERVAL_SECONDS = 0.25
"""Minimum time between two writes of the position: on SQLite each write is an fsync that also delays requests."""
TOUCH_INTERVAL_MS = 60 * MINUTE
"""How often a sink without work records that a server is still running it."""
BACKOFF = Policy(max_attempts=0, base_ms=1_000, multiplier=2.0, cap_ms=300_000)
OrderKey = tuple[str, str]
"""(stream, subject): entries of one key are delivered in order."""
EventEntries = tuple[Event, list[SinkEntry]]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """One read of the log and of the waiting entries."""

    events: Sequence[Event]
    due_entries: Sequence[ParkedEntry]
    next_at: Millis | None
    now: Millis


@dataclass(frozen=True, slots=True)
class _DatabaseChecks:
    """Checks values that the target has stored against the database."""

    engine: Engine
    fence: Fence

    async def has_event(self, marker: Marker) -> bool:
        async def read(tx: Transaction) -> bool:
            return await tx.has_rows(Q.log_has_event(pos=marker.pos, id=marker.event_id))

        return marker.pos <= POSITION_MAX and await self.engine.read(read)

    async def holds_lease(self) -> bool:
        async def read(tx: Transaction) -> bool:
            return await tx.has_rows(Q.lease_check_term(name=self.fence.name, term=self.fence.term))

        return await self.engine.transact(read)


class Sink:
    """The sink in this process: implements `engine.leader_loop.LeaderWork`."""

    def __init__(self, engine: Engine, name: str, target: SinkTarget, settings: SinkSettings) -> None:
        self.name = name
        self.head = self.position = 0
        """The values that this process has read or written last."""
        self.oldest_at: Millis | None = None
        """The time of the oldest undelivered event."""
        self.delivered_count = self.rejected_count = self.dead_count = self.missed_count = 0
        """Counted since this process started. Missed events were deleted before they were delivered, or no entries
        could be built from them."""
        self._engine = engine
        self._target = target
        self._batch_max = settings.outbox_batch_size
        self._policy = replace(BACKOFF, max_attempts=settings.outbox_max_attempts)
        self._holder_id = new_id()
        self._identity: WriterIdentity | None = None
        """The identity for writing; None if the state of the sink must be read first."""
        self._saved_position = 0
        self._saved_at = 0.0
        self._touched_at: Millis = 0
        self._stuck: set[tuple[str, int, int]] = set()
        self._alerts: dict[tuple[str, bool], list[tuple[int, str]]] = {}
        """By stream and whether it must be delivered: position and error of entries that were rejected too often."""

    @property
    def stuck_count(self) -> int:
        """Entries that are retried forever and have used up the attempts after which other entries are dead."""
        return len(self._stuck)

    async def register(self) -> None:
        """Create the sink unless it exists. Called before serving, so that every later commit is delivered."""

        async def create(tx: Transaction) -> None:
            tx.write(Q.sink_create(name=self.name, id=new_id()))
            tx.write(Q.sink_touch(name=self.name))

        await self._engine.transact(create)

    # -- LeaderWork ---------------------------------------------------------------------------------------------

    async def is_due(self) -> bool:
        self._identity = None  # without the lease, another process may have advanced the sink
        state, now = await self._engine.read(self._read_state)
        if state is None:
            return True
        self._update_position(state.position, state.head, state.oldest_at)
        is_retry_due = state.next_at is not None and state.next_at <= now
        return state.head > state.position or is_retry_due or now - state.updated_at > TOUCH_INTERVAL_MS

    async def run_cycle(self, fence: Fence) -> float | None:
        identity = await self._take_over(fence)
        snapshot = await self._engine.read(self._read_snapshot)
        if snapshot.due_entries:
            await self._retry_due(identity, fence, snapshot)
        has_parked = await self._deliver_events(identity, fence, snapshot) if snapshot.events else False
        self._log_alerts()
        if self._is_save_due(snapshot.now):
            await self._save_position(fence, self.position, [])
        return 0 if has_parked else self._next_cycle_in(snapshot)

    async def on_stop(self, fence: Fence | None) -> None:
        try:
            if fence is not None and self._identity is not None and self.position > self._saved_position:
                await self._save_position(fence, self.position, [])
        finally:
            await self._target.writer.close()

    # -- state --------------------------------------------------------------------------------------------------

    async def _take_over(self, fence: Fence) -> WriterIdentity:
        """At the start of a term, read the state again and fence the previous holder."""
        if self._identity is not None and self._identity.term == fence.term:
            return self._identity
        state, _ = await self._engine.read(self._read_state)
        if state is None:
            log.warning("sink %s was deleted; it starts again at the head of the log", self.name)
            await self.register()
            state, _ = await self._engine.read(self._read_state)
        assert state is not None  # created above
        position = state.position
        if position < state.floor:
            log.error("events %d to %d were deleted before %s delivered them", position + 1, state.floor, self.name)
            self.missed_count += state.floor - position
            position = state.floor
        identity = WriterIdentity(state.id, fence.term, self._holder_id, _DatabaseChecks(self._engine, fence))
        await self._target.writer.fence_older_terms(identity)
        self._update_position(position, state.head, state.oldest_at)
        self._saved_position, self._saved_at = position, time.monotonic()
        self._touched_at, self._identity = state.updated_at, identity
        self._stuck.clear()
        return identity

    async def _read_state(self, tx: Transaction) -> tuple[SinkState | None, Millis]:
        return next(iter(await tx.fetch(SinkState, Q.sink_state(name=self.name))), None), tx.now

    async def _read_snapshot(self, tx: Transaction) -> _Snapshot:
        events, due_entries, waiting, bounds = await tx.read(
            Q.log_tail(after=self.position, limit=self._batch_max),
            Q.sink_entries_list_due(sink=self.name, limit=self._batch_max),
            Q.sink_entries_next_due(sink=self.name),
            Q.log_bounds(),
        )
        decoded_events = decode(events, Event)
        next_at = waiting[0][0]
        self._update_position(
            self.position, decode(bounds, LogBounds)[0].head, decoded_events[0].at if decoded_events else None
        )
        return _Snapshot(
            decoded_events, decode(due_entries, ParkedEntry), next_at if isinstance(next_at, int) else None, tx.now
        )

    def _update_position(self, position: int, head: int, oldest_at: Millis | None) -> None:
        self.position, self.head, self.oldest_at = position, head, oldest_at

    # -- delivery -----------------------------------------------------------------------------------------------

    async def _deliver_events(self, identity: WriterIdentity, fence: Fence, snapshot: _Snapshot) -> bool:
        """Deliver the events before the first one that must wait. If there are none, store the leading events, which
        must wait, instead.

        Never do both at once: after a crash, everything up to a marker counts as delivered. Return whether entries were
        stored.
        """
        pending: list[EventEntries] = [(event, self._build_entries(event)) for event in snapshot.events]
        blocked_until = await self._find_blocked(pending) if snapshot.next_at is not None else {}

        def is_blocked(item: EventEntries) -> bool:
            return any((entry.stream, entry.subject) in blocked_until for entry in item[1])

        prefix = [*takewhile(lambda item: not is_blocked(item), pending)]
        if prefix:
            parked = await self._deliver_entries(
                identity, [entry for _, entries in prefix for entry in entries], snapshot.now
            )
        else:
            prefix = [*takewhile(is_blocked, pending)]
            blocked_entries = [entry for _, entries in prefix for entry in entries]
            parked = [self._park(entry, snapshot.now, blocked_until) for entry in blocked_entries]
        position = prefix[-1][0].pos
        if parked:
            await self._save_position(fence, position, parked)
        self.position = position
        self.oldest_at = None if position >= self.head else self.oldest_at
        return bool(parked)

    def _build_entries(self, event: Event) -> list[SinkEntry]:
        try:
            return self._target.build_entries(event)
        except msgspec.MsgspecError as error:
            # No operation writes such an event, but someone may have edited the database by hand. The event must not
            # stop all later ones.
            log.error("%s cannot build entries for the event at position %d: %s", self.name, event.pos, error)
            self.missed_count += 1
            return []

    async def _find_blocked(self, pending: Sequence[EventEntries]) -> dict[OrderKey, Millis]:
        """The streams and subjects of these entries that already have waiting entries, and until when those wait."""
        order_keys = {(self.name, entry.stream, entry.subject) for _, entries in pending for entry in entries}

        async def read(tx: Transaction) -> dict[OrderKey, Millis]:
            [rows] = await tx.read(Q.sink_entries_waiting(batch=[*sorted(order_keys)]))
            return {(str(stream), str(subject)): int(str(next_at)) for stream, subject, next_at in rows}

        return await self._engine.read(read) if order_keys else {}

    async def _deliver_entries(
        self, identity: WriterIdentity, entries: Sequence[SinkEntry], now: Millis
    ) -> list[ParkedEntry]:
        """Deliver entries. Return those to store: per stream, the rejected entry and all after it."""
        if not entries:
            return []
        rejected = await self._target.writer.deliver(identity, self.position, entries)
        rejections = {rejection.entry.stream: rejection for rejection in rejected}
        blocked_until: dict[OrderKey, Millis] = {}
        parked = []
        for entry in entries:
            first_rejection = rejections.get(entry.stream)
            if first_rejection is not None and entry.pos >= first_rejection.entry.pos:
                row = self._park(
                    entry, now, blocked_until, first_rejection.error if entry is first_rejection.entry else ""
                )
                blocked_until[entry.stream, entry.subject] = row.next_at
                parked.append(row)
        self.delivered_count += len(entries) - len(parked)
        return parked

    def _park(
        self, entry: SinkEntry, now: Millis, blocked_until: Mapping[OrderKey, Millis], error: str = ""
    ) -> ParkedEntry:
        """Build the row of an entry that was rejected, or that waits for the entry before it."""
        attempts, next_at, dead_at = 0, blocked_until.get((entry.stream, entry.subject), now), None
        fields = msgspec.json.encode(entry.fields).decode()
        columns = (self.name, entry.pos, entry.index, entry.zone_id, entry.stream, entry.subject, fields)
        if error:
            attempts, (next_at, dead_at) = 1, self._schedule_retry(entry, 1, error, now)
        return ParkedEntry(*columns, attempts, next_at, dead_at, error, now)

    # -- retries ------------------------------------------------------------------------------------------------

    async def _retry_due(self, identity: WriterIdentity, fence: Fence, snapshot: _Snapshot) -> None:
        """Retry the oldest due entry of each stream and subject. If one is deferred, those behind it are, too."""
        entries = [row.to_entry() for row in snapshot.due_entries]
        errors = await self._target.writer.deliver_delayed(identity, entries)
        delivered: list[tuple[str, int, int]] = []
        deferred: list[tuple[str, int, int, int, Millis, Millis | None, str]] = []
        deferred_order_keys: list[tuple[str, str, str, Millis]] = []
        for row, entry, error in zip(snapshot.due_entries, entries, errors, strict=True):
            if error is None:
                delivered.append(row.key)
                self._stuck.discard(row.key)
                continue
            next_at, dead_at = self._schedule_retry(entry, row.attempts + 1, error, snapshot.now)
            deferred.append((*row.key, row.attempts, next_at, dead_at, error))
            deferred_order_keys.append((self.name, row.stream, row.subject, next_at))

        async def write(tx: Transaction) -> None:
            await fence.check(tx)
            if delivered:
                tx.write(Q.sink_entries_delete(batch=delivered))
            if deferred:
                tx.write(Q.sink_entries_defer(batch=deferred))
                tx.write(Q.sink_entries_defer_following(batch=deferred_order_keys))

        await self._engine.transact(write)
        self.delivered_count += len(delivered)

    def _schedule_retry(self, entry: SinkEntry, attempts: int, error: str, now: Millis) -> tuple[Millis, Millis | None]:
        """Count a rejection. Return when to retry the entry and, if it is dead, since when."""
        self.rejected_count += 1
        jitter = random.random()
        retry_at = next_attempt_at(self._policy, attempt=attempts, now=now, jitter=jitter)
        if retry_at is not None:
            return retry_at, None
        must_deliver = self._target.must_deliver(entry.stream)
        self._alerts.setdefault((entry.stream, must_deliver), []).append((entry.pos, error))
        if must_deliver:
            self._stuck.add((self.name, entry.pos, entry.index))
            return now + backoff(self._policy, attempt=attempts, jitter=jitter), None
        self.dead_count += 1
        return now, now

    def _log_alerts(self) -> None:
        """Log one line per stream, because 10,000 entries may be affected."""
        for (stream, must_deliver), rejected in self._alerts.items():
            pos, error = rejected[0]
            consequence = "rejected repeatedly and retried forever" if must_deliver else "dead"
            message = "%s: %d entries of %s are %s; first at position %d: %s"
            log.error(message, self.name, len(rejected), stream, consequence, pos, error)
        self._alerts.clear()

    # -- position -----------------------------------------------------------------------------------------------

    def _is_save_due(self, now: Millis) -> bool:
        if now - self._touched_at > TOUCH_INTERVAL_MS:
            return True
        return self.position > self._saved_position and time.monotonic() - self._saved_at >= SAVE_INTERVAL_SECONDS

    async def _save_position(self, fence: Fence, position: int, parked: Sequence[ParkedEntry]) -> None:
        async def write(tx: Transaction) -> bool:
            await fence.check(tx)
            [rows] = await tx.read(Q.sink_advance(name=self.name, id=self._sink_id(), position=position))
            self._touched_at = tx.now
            if rows and parked:
                tx.write(Q.sink_entries_insert(batch=[msgspec.structs.astuple(row) for row in parked]))
            return bool(rows)

        try:
            is_saved = await self._engine.transact(write)
        except StoreError:
            self._identity = None  # it is unknown whether the position was written
            raise
        if not is_saved:
            self._identity = None
            raise LeaseLost("lease_lost", f"Sink {self.name} was deleted, or another process advanced it.")
        self._saved_position, self._saved_at = position, time.monotonic()

    def _sink_id(self) -> str:
        assert self._identity is not None  # set by `_take_over` before anything is written
        return self._identity.sink_id

    def _next_cycle_in(self, snapshot: _Snapshot) -> float | None:
        is_partial = bool(snapshot.events) and self.position < snapshot.events[-1].pos
        if is_partial or self._batch_max in (len(snapshot.events), len(snapshot.due_entries)):
            return 0
        pauses = [] if snapshot.next_at is None else [max(0.05, (snapshot.next_at - snapshot.now) / 1000)]
        if self.position > self._saved_position:
            pauses.append(max(0.01, self._saved_at + SAVE_INTERVAL_SECONDS - time.monotonic()))
        return min(pauses, default=None)
