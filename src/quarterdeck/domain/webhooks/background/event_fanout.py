"""The sink `webhooks`: turns log events into deliveries. One process at a time runs it (`engine.leader_loop`).

    the log, of zones with enabled endpoints ─► payloads ─► deliveries and the position, in one commit

The sink has a row in the table of sinks, so it is listed with the others, and event retention waits for it. While no
endpoint is enabled, it reads no events, and its position follows the head of the log every few seconds.

How it fails. The position is written with the deliveries, under the fence. Without deliveries, it is written at most a
few times a second. A process that continues from an older position finds nothing to write, or only deliveries that
already exist. An event that cannot be decoded (no operation writes one) is counted, logged and skipped.
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
from quarterdeck.core.ids import Ref, new_id
from quarterdeck.domain.webhooks.model import Delivery, Disable, DisableReason, Endpoint, EndpointResult, WebhookCommand
from quarterdeck.domain.webhooks.queries import Q
from quarterdeck.domain.webhooks.rules import states
from quarterdeck.domain.webhooks.rules.endpoints import decode_types
from quarterdeck.domain.webhooks.rules.payloads import Payload, build_payload
from quarterdeck.engine.event_log import Event, NewEvent
from quarterdeck.engine.leases import Fence, LeaseLost
from quarterdeck.engine.queries import Q as ENGINE
from quarterdeck.engine.sinks import SinkState
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.store.interface import StoreError, decode
from quarterdeck.store.sql import chunks

log = logging.getLogger("quarterdeck.webhooks")
SINK_NAME = "webhooks"
EVENTS_MAX = 200
"""Maximum events per cycle. Each becomes up to `ENDPOINTS_MAX` deliveries."""
POSITIONS_MAX = 20_000
"""Maximum log positions per cycle."""
SAVE_INTERVAL_SECONDS = 0.25
IDLE_SAVE_INTERVAL_MS = 2 * SECOND
"""How often the position follows the head while no endpoint is enabled."""
TOUCH_INTERVAL_MS = 60 * MINUTE
BACKLOG_CHECK_DELIVERIES = 1_000
"""Deliveries to one endpoint between two counts of its backlog."""
GAP_SECONDS = 0.02
"""Minimum time between two reads of the log: most commits do not concern this sink."""


@dataclass(frozen=True, slots=True)
class _LogPage:
    """One read of the log, with the enabled endpoints of its zones."""

    floor: int
    head: int
    has_endpoints: bool
    events: Sequence[Event]
    endpoints: Sequence[Endpoint]
    now: Millis


class FanoutWakeups:
    """Filters the wake-ups of this sink.

    Every commit of every server sends a wake-up. While no endpoint is enabled, all of them are ignored; the interval of
    the leader loop finds an endpoint that another server has created.
    """

    def __init__(self, wakeups: Wakeups) -> None:
        self.wakeups = Wakeups()
        """The wake-ups for the sink's leader loop."""
        self.has_endpoints = True
        wakeups.subscribe(self._on_wakeup)

    def on_commit(self, events: Sequence[NewEvent]) -> None:
        """Called with the events that this process has committed."""
        if not self.has_endpoints and any(event.type.startswith("webhook.") for event in events):
            self.has_endpoints = True
            self.wakeups.notify()

    def _on_wakeup(self) -> None:
        if self.has_endpoints:
            self.wakeups.notify()


class WebhookFanout:
    """The sink in one process: a `LeaderWork` of `engine.leader_loop`."""

    def __init__(
        self,
        cross_zone_engine: Engine,
        wakeups: FanoutWakeups,
        submit: Callable[[WebhookCommand], Awaitable[EndpointResult]],
        wake_workers: Callable[[], None],
        backlog_max: int,
    ) -> None:
        self.name = SINK_NAME
        self.position = self.head = 0
        """As last read or written by this process."""
        self.delivery_count = self.missed_count = 0
        self._engine = cross_zone_engine
        self._wakeups = wakeups
        self._submit = submit
        self._wake_workers = wake_workers
        """Wakes the delivery workers of all servers."""
        self._backlog_max = backlog_max
        self._sink_id = ""
        self._term: int | None = None
        """The lease term in which the position was read; None if it must be read again."""
        self._saved_position = 0
        self._saved_at = -math.inf
        self._since_backlog_check: Counter[Ref] = Counter()

    async def create_sink(self) -> None:
        """Called before the server accepts requests, so that no later event is missed."""

        async def create(tx: Transaction) -> None:
            tx.write(ENGINE.sink_create(name=self.name, id=new_id()))
            tx.write(ENGINE.sink_touch(name=self.name))

        await self._engine.transact(create)

    # -- leader work --------------------------------------------------------------------------------------------

    async def is_due(self) -> bool:
        self._term = None
        state, has_endpoints, now = await self._engine.read(self._read_state)
        self._wakeups.has_endpoints = has_endpoints
        if state is None:
            return True
        self.position, self.head = state.position, state.head
        if now - state.updated_at > TOUCH_INTERVAL_MS:
            return True
        return state.head > state.position and (has_endpoints or now - state.updated_at > IDLE_SAVE_INTERVAL_MS)

    async def run_cycle(self, fence: Fence) -> float | None:
        await self._load_position(fence)
        page = await self._engine.read(self._read_page)
        self.head, self._wakeups.has_endpoints = page.head, page.has_endpoints
        if self.position < page.floor:
            log.error("events %d to %d were deleted before sink %s read them", self.position + 1, page.floor, self.name)
            self.missed_count += page.floor - self.position
            self.position = page.floor
            return 0
        covered = self._covered_position(page)
        rows = self._build_deliveries(page)
        if rows or self._should_save(covered, page.has_endpoints):
            await self._persist(fence, covered, rows)
        self.position = covered
        if rows:
            self._wake_workers()
            await self._check_backlogs(rows)
        if covered < page.head:
            return 0
        return SAVE_INTERVAL_SECONDS if covered > self._saved_position and page.has_endpoints else None

    async def on_stop(self, fence: Fence | None) -> None:
        if fence is not None and self._term == fence.term and self.position > self._saved_position:
            await self._persist(fence, self.position, [])

    # -- position and page --------------------------------------------------------------------------------------

    async def _load_position(self, fence: Fence) -> None:
        if self._term == fence.term:
            return
        state, _, _ = await self._engine.read(self._read_state)
        if state is None:
            log.warning("sink %s was deleted; it starts again at the head of the log", self.name)
            await self.create_sink()
            state, _, _ = await self._engine.read(self._read_state)
        assert state is not None  # just created
        self._sink_id, self._term = state.id, fence.term
        self.position = self._saved_position = state.position
        self._saved_at = -math.inf

    async def _read_state(self, tx: Transaction) -> tuple[SinkState | None, bool, Millis]:
        rows, endpoint_rows = await tx.read(ENGINE.sink_state(name=self.name), Q.webhooks_any_enabled())
        return next(iter(decode(rows, SinkState)), None), bool(endpoint_rows), tx.now

    async def _read_page(self, tx: Transaction) -> _LogPage:
        [rows] = await tx.read(
            Q.webhook_events_page(after=self.position, upto=self.position + POSITIONS_MAX, limit=EVENTS_MAX)
        )
        floor, head, has_endpoints, *_ = rows[0]
        # A page without events still has one row, with the bounds of the log and nulls.
        events = decode([row[3:] for row in rows if row[3] is not None], Event)
        endpoints: list[Endpoint] = []
        if events:
            zones = [(zone_id,) for zone_id in sorted({event.zone_id for event in events})]
            endpoints = await tx.fetch(Endpoint, Q.webhooks_enabled_in_zones(batch=zones))
        return _LogPage(int(str(floor)), int(str(head)), bool(has_endpoints), events, endpoints, tx.now)

    def _covered_position(self, page: _LogPage) -> int:
        """The position up to which all events are handled after this cycle."""
        if not page.has_endpoints:
            return max(page.head, self.position)
        if len(page.events) == EVENTS_MAX:
            return page.events[-1].pos
        return max(self.position, min(page.head, self.position + POSITIONS_MAX))

    # -- deliveries ---------------------------------------------------------------------------------------------

    def _build_deliveries(self, page: _LogPage) -> list[Delivery]:
        endpoints_by_zone: dict[str, list[tuple[Endpoint, frozenset[str]]]] = {}
        for endpoint in page.endpoints:
            endpoints_by_zone.setdefault(endpoint.zone_id, []).append((endpoint, frozenset(decode_types(endpoint))))
        deliveries = []
        for event in page.events:
            payload = self._build_payload(event)
            if payload is None:
                continue
            source = (event.id, event.pos, event.trace)
            deliveries += [
                states.new_delivery(endpoint, payload, source, page.now)
                for endpoint, types in endpoints_by_zone.get(event.zone_id, ())
                if endpoint.position < event.pos and not types.isdisjoint(payload.types)
            ]
        return deliveries

    def _build_payload(self, event: Event) -> Payload | None:
        try:
            return build_payload(event)
        except msgspec.MsgspecError as error:
            # Someone may have edited the database by hand. The event must not block the events after it.
            log.error(
                "sink %s skipped the event at position %d, which cannot be decoded: %s", self.name, event.pos, error
            )
            self.missed_count += 1
            return None

    # -- persist ------------------------------------------------------------------------------------------------

    def _should_save(self, covered: int, has_endpoints: bool) -> bool:
        elapsed = time.monotonic() - self._saved_at
        if covered <= self._saved_position:
            # Save only to update `updated_at`, which shows that the sink is running.
            return elapsed > TOUCH_INTERVAL_MS / SECOND
        return elapsed >= (SAVE_INTERVAL_SECONDS if has_endpoints else IDLE_SAVE_INTERVAL_MS / SECOND)

    async def _persist(self, fence: Fence, position: int, rows: Sequence[Delivery]) -> None:
        async def write(tx: Transaction) -> bool:
            await fence.check(tx)
            [advanced] = await tx.read(ENGINE.sink_advance(name=self.name, id=self._sink_id, position=position))
            if advanced:
                for piece in chunks([msgspec.structs.astuple(row) for row in rows]):
                    tx.write(Q.webhook_deliveries_insert(batch=piece))
            return bool(advanced)

        try:
            advanced = await self._engine.transact(write)
        except StoreError:
            self._term = None  # it is unknown whether the transaction committed
            raise
        if not advanced:
            self._term = None
            raise LeaseLost("lease_lost", f"Sink {self.name} was deleted, or another process advanced it.")
        self.delivery_count += len(rows)
        self._saved_position, self._saved_at = position, time.monotonic()

    async def _check_backlogs(self, rows: Sequence[Delivery]) -> None:
        """Disable endpoints whose backlog exceeds the limit: otherwise a slow endpoint would fill the database.

        A backlog is counted only every `BACKLOG_CHECK_DELIVERIES` deliveries, so it may exceed the limit by about that
        number.
        """
        for row in rows:
            self._since_backlog_check[row.zone_id, row.endpoint_id] += 1
        check_every = min(BACKLOG_CHECK_DELIVERIES, self._backlog_max)
        for ref in [ref for ref, count in self._since_backlog_check.items() if count >= check_every]:
            del self._since_backlog_check[ref]
            if await self._count_pending(ref[1]) > self._backlog_max:
                await self._disable(ref)

    async def _count_pending(self, endpoint_id: str) -> int:
        async def read(tx: Transaction) -> int:
            [[[count]]] = await tx.read(
                Q.webhook_deliveries_count_pending(queue=endpoint_id, limit=self._backlog_max + 1)
            )
            return int(str(count))

        return await self._engine.read(read)

    async def _disable(self, ref: Ref) -> None:
        zone_id, endpoint_id = ref
        try:
            await self._submit(Disable(zone_id=zone_id, id=endpoint_id, reason=DisableReason.BACKLOG_FULL))
        except Problem as problem:
            # The endpoint has been removed, or the database is unreachable and the next count tries again.
            log.info("webhook %s was not disabled: %r", endpoint_id, problem)
