"""The sink `webhooks`: from the log into rows of deliveries. One process at a time runs it (`engine.duties`).

    the log, of zones in which somebody hears ─► messages ─► deliveries, and the position, in one commit

It stands in the table of sinks like any other: shown with them, and events wait for it before they are removed. Where
nobody hears of anything it reads no events and moves with the head of the log, every few seconds.

How it fails. The position is written with the rows, under the fence; where there are none it is written a few times a
second at most, and whoever goes on from an older one finds nothing to write, or what is there already. An event that
cannot be read (no operation writes one) is counted, said, and passed over.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from quarterdeck.core.clock import MINUTE, SECOND, Millis
from quarterdeck.core.errors import Problem
from quarterdeck.core.ids import new_id
from quarterdeck.domain.webhooks.model import Changed, Command, Delivery, Disable, Endpoint, Ref, Why
from quarterdeck.domain.webhooks.queries import Q
from quarterdeck.domain.webhooks.rules import states
from quarterdeck.domain.webhooks.rules.endpoints import types_of
from quarterdeck.domain.webhooks.rules.payloads import Message, message_of
from quarterdeck.engine.event_log import Event, NewEvent
from quarterdeck.engine.leases import Fence, LeaseLost
from quarterdeck.engine.queries import Q as ENGINE
from quarterdeck.engine.sinks import State
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.engine.wakeups import Wakes
from quarterdeck.store.interface import StoreError, decode
from quarterdeck.store.sql import pieces

log = logging.getLogger("quarterdeck.webhooks")
NAME = "webhooks"
EVENTS_MAX = 200
"""Events of one turn; each may be told to as many endpoints as a zone may have."""
SPAN = 20_000
"""Positions that one turn looks through."""
NOTE_SECONDS = 0.25
IDLE_MS = 2 * SECOND
"""How often the position follows the head where nobody hears."""
ATTEND_MS = 60 * MINUTE
COUNTED_EVERY = 1_000
"""Deliveries to one endpoint between two counts of how many wait for it."""
GAP_SECONDS = 0.02
"""Between two looks: most commits have nothing to do with this."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """One look at the log, and at who hears of it."""

    floor: int
    head: int
    hears: bool
    events: Sequence[Event]
    endpoints: Sequence[Endpoint]
    now: Millis


class Ears:
    """Which commits this sink is woken for. Every commit of every server wakes, and where nobody hears of anything none
    is worth a look; the interval finds an endpoint that another server has made."""

    def __init__(self, wakes: Wakes) -> None:
        self.wakes = Wakes()
        """What the sink's duty is woken by."""
        self.hears = True
        wakes.subscribe(self._woken)

    def committed(self, events: Sequence[NewEvent]) -> None:
        """Told what this process has committed."""
        if not self.hears and any(event.type.startswith("webhook.") for event in events):
            self.hears = True
            self.wakes.committed()

    def _woken(self) -> None:
        if self.hears:
            self.wakes.committed()


class Teller:
    """One process's share of the sink: an `engine.duties.Work`."""

    def __init__(
        self,
        everywhere: Engine,
        ears: Ears,
        submit: Callable[[Command], Awaitable[Changed]],
        written: Callable[[], None],
        backlog_max: int,
    ) -> None:
        self.name = NAME
        self.position = self.head = 0
        """As this process has last seen them, or made them."""
        self.told = self.missed = 0
        self._engine = everywhere
        self._ears = ears
        self._submit = submit
        self._written = written
        """Has deliverers look, here and elsewhere."""
        self._backlog_max = backlog_max
        self._id = ""
        self._term: int | None = None
        """The term in which the position was read; None: it has to be read."""
        self._noted = 0
        self._noted_at = -math.inf
        self._uncounted: Counter[Ref] = Counter()

    async def begin(self) -> None:
        """Before anything is served: whatever is committed from here on is told, now or later."""

        async def create(tx: Tx) -> None:
            tx.write(ENGINE.sink_create(name=self.name, id=new_id()))
            tx.write(ENGINE.sink_attend(name=self.name))

        await self._engine.transact(create)

    # -- what a duty asks for -----------------------------------------------------------------------------------

    async def is_due(self) -> bool:
        self._term = None
        state, hears, now = await self._engine.read(self._state)
        self._ears.hears = hears
        if state is None:
            return True
        self.position, self.head = state.position, state.head
        if now - state.updated_at > ATTEND_MS:
            return True
        return state.head > state.position and (hears or now - state.updated_at > IDLE_MS)

    async def turn(self, fence: Fence) -> float | None:
        await self._hold(fence)
        seen = await self._engine.read(self._look)
        self.head, self._ears.hears = seen.head, seen.hears
        if self.position < seen.floor:
            log.error("events %d to %d went before %s had told them", self.position + 1, seen.floor, self.name)
            self.missed += seen.floor - self.position
            self.position = seen.floor
            return 0
        covers = self._covers(seen)
        rows = self._deliveries(seen)
        if rows or self._is_time_to_note(covers, seen.hears):
            await self._write(fence, covers, rows)
        self.position = covers
        if rows:
            self._written()
            await self._count(rows)
        if covers < seen.head:
            return 0
        return NOTE_SECONDS if covers > self._noted and seen.hears else None

    async def rest(self, fence: Fence | None) -> None:
        if fence is not None and self._term == fence.term and self.position > self._noted:
            await self._write(fence, self.position, [])

    # -- where it stands ----------------------------------------------------------------------------------------

    async def _hold(self, fence: Fence) -> None:
        if self._term == fence.term:
            return
        state, _, _ = await self._engine.read(self._state)
        if state is None:
            log.warning("the sink %s had been forgotten, and begins anew at the head of the log", self.name)
            await self.begin()
            state, _, _ = await self._engine.read(self._state)
        assert state is not None  # made a moment ago
        self._id, self._term = state.id, fence.term
        self.position = self._noted = state.position
        self._noted_at = -math.inf

    async def _state(self, tx: Tx) -> tuple[State | None, bool, Millis]:
        rows, hears = await tx.read(ENGINE.sink_state(name=self.name), Q.webhooks_any())
        return next(iter(decode(rows, State)), None), bool(hears), tx.now

    async def _look(self, tx: Tx) -> _Seen:
        [rows] = await tx.read(Q.webhook_tail(after=self.position, upto=self.position + SPAN, limit=EVENTS_MAX))
        floor, head, hears, *_ = rows[0]
        # A page without events is one row all the same: of the log's bounds, and of nothing beside them.
        found = decode([row[3:] for row in rows if row[3] is not None], Event)
        endpoints: list[Endpoint] = []
        if found:
            zones: list[tuple[object, ...]] = [(zone_id,) for zone_id in sorted({e.zone_id for e in found})]
            [hearing] = await tx.read(Q.webhooks_hearing(batch=zones))
            endpoints = decode(hearing, Endpoint)
        return _Seen(int(str(floor)), int(str(head)), bool(hears), found, endpoints, tx.now)

    def _covers(self, seen: _Seen) -> int:
        """Up to where nothing is left to be told after this turn."""
        if not seen.hears:
            return max(seen.head, self.position)
        if len(seen.events) == EVENTS_MAX:
            return seen.events[-1].pos
        return max(self.position, min(seen.head, self.position + SPAN))

    # -- telling ------------------------------------------------------------------------------------------------

    def _deliveries(self, seen: _Seen) -> list[Delivery]:
        hearing: dict[str, list[tuple[Endpoint, frozenset[str]]]] = {}
        for endpoint in seen.endpoints:
            hearing.setdefault(endpoint.zone_id, []).append((endpoint, frozenset(types_of(endpoint))))
        rows = []
        for event in seen.events:
            message = self._message(event)
            if message is None:
                continue
            source = (event.id, event.pos, event.trace)
            rows += [
                states.made(endpoint, message, source, seen.now)
                for endpoint, words in hearing.get(event.zone_id, ())
                if endpoint.position < event.pos and not words.isdisjoint(message.words)
            ]
        return rows

    def _message(self, event: Event) -> Message | None:
        try:
            return message_of(event)
        except msgspec.MsgspecError as error:
            # No operation writes such an event; a hand in the database may, and must not stop all that comes after it.
            log.error("%s cannot tell what happened at position %d: %s", self.name, event.pos, error)
            self.missed += 1
            return None

    # -- moving on ----------------------------------------------------------------------------------------------

    def _is_time_to_note(self, covers: int, hears: bool) -> bool:
        since = time.monotonic() - self._noted_at
        if covers <= self._noted:
            # Nothing to note, but that somebody runs it.
            return since > ATTEND_MS / SECOND
        return since >= (NOTE_SECONDS if hears else IDLE_MS / SECOND)

    async def _write(self, fence: Fence, position: int, rows: Sequence[Delivery]) -> None:
        async def write(tx: Tx) -> bool:
            await fence.check(tx)
            [moved] = await tx.read(ENGINE.sink_advance(name=self.name, id=self._id, position=position))
            if moved:
                for piece in pieces([msgspec.structs.astuple(row) for row in rows]):
                    tx.write(Q.webhook_deliveries_insert(batch=piece))
            return bool(moved)

        try:
            moved = await self._engine.transact(write)
        except StoreError:
            self._term = None  # nobody here knows whether it was written
            raise
        if not moved:
            self._term = None
            raise LeaseLost("lease_lost", f"The sink {self.name} was forgotten, or moved on by another.")
        self.told += len(rows)
        self._noted, self._noted_at = position, time.monotonic()

    async def _count(self, rows: Sequence[Delivery]) -> None:
        """An endpoint that takes less than happens would fill the database: beyond its bound it hears of nothing more.
        Counted once in a while, so the bound is exceeded by about as many as that."""
        for row in rows:
            self._uncounted[row.zone_id, row.endpoint_id] += 1
        often = min(COUNTED_EVERY, self._backlog_max)
        for ref in [ref for ref, number in self._uncounted.items() if number >= often]:
            del self._uncounted[ref]
            if await self._waiting(ref[1]) > self._backlog_max:
                await self._disable(ref)

    async def _waiting(self, endpoint_id: str) -> int:
        async def read(tx: Tx) -> int:
            [[[number]]] = await tx.read(Q.webhook_backlog(queue=endpoint_id, limit=self._backlog_max + 1))
            return int(str(number))

        return await self._engine.read(read)

    async def _disable(self, ref: Ref) -> None:
        zone_id, endpoint_id = ref
        try:
            await self._submit(Disable(zone_id=zone_id, id=endpoint_id, why=Why.OVERFULL))
        except Problem as problem:
            # It was removed meanwhile; or the database is away, and the next count finds it again.
            log.info("the endpoint %s was not disabled: %r", endpoint_id, problem)
