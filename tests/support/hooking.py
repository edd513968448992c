"""Webhooks as tests write them: a keel whose commits wake, the sink turn by turn, and the deliverer of a process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import DAY
from quarterdeck.core.ids import new_id
from quarterdeck.core.webhook_signing import secret_deriver
from quarterdeck.domain.webhooks import operations as webhooks
from quarterdeck.domain.webhooks.delivery_worker import DeliveryDeps, DeliveryWorker
from quarterdeck.domain.webhooks.event_fanout import SINK_NAME, FanoutWakeups, WebhookFanout
from quarterdeck.domain.webhooks.model import (
    ClaimDeliveries,
    Create,
    Delivery,
    DeliveryFilter,
    DeliveryState,
    Endpoint,
    EndpointFilter,
    FailPending,
    Replay,
    ReportAttempt,
    SendTest,
    Update,
    WebhookSettings,
)
from quarterdeck.domain.webhooks.rules import EndpointPolicy
from quarterdeck.domain.webhooks.rules.states import FailurePolicy, RetrySchedule
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.leases import Fence, Lease
from quarterdeck.engine.outbound_http import ALLOW_PRIVATE, OutboundClient
from quarterdeck.engine.transaction import Transaction
from quarterdeck.engine.wakeups import Wakeups
from tests.support.asking import ZONE, admin
from tests.support.eventually import eventually
from tests.support.keel import Keel, Rigging, Side, keel_on

SECRETS = secret_deriver(b"another root that tests know of.")
FAILING_MS = 5 * DAY
STARTED = ("task.started", "ASSIGNED", "RUNNING")
NOBODY = "http://127.0.0.1:9/hook"
"""Where nobody listens."""


class Hooks:
    """One process's share of the house, with what tells and delivers in it."""

    def __init__(self, keel: Keel, wakes: Wakeups, schedule: RetrySchedule | None = None) -> None:
        self.keel = keel
        self.wakes = wakes
        self.lane = keel.lanes.add_write_lane(
            "webhook", webhooks.EndpointUpdater(EndpointPolicy(FAILING_MS, private_allowed=True)).run
        )
        self.takes = keel.lanes.add_write_lane("webhook-take", webhooks.claim_deliveries)
        self.settles = keel.lanes.add_write_lane("webhook-settle", webhooks.fail_pending_deliveries)
        self.schedule = schedule or RetrySchedule()
        self.reports = keel.lanes.add_write_lane("webhook-report", self._reporter().report)
        self.teller = self.another_teller()
        self.lease = Lease(keel.everywhere, SINK_NAME, new_id(), 5_000)

    def _reporter(self) -> webhooks.AttemptReporter:
        return webhooks.AttemptReporter(FailurePolicy(self.schedule, FAILING_MS))

    # -- endpoints

    async def endpoint(self, url: str, *types: str, zone_id: str = ZONE) -> Endpoint:
        ask = Create(
            zone_id=zone_id,
            id=new_id(),
            caller=admin(zone_id),
            url=url,
            types=types or ("task.status_changed", "alert"),
        )
        return (await self.lane.submit(ask)).endpoint

    async def enable(self, endpoint: Endpoint, enabled: bool = True) -> Endpoint:
        ask = Update(zone_id=endpoint.zone_id, id=endpoint.id, caller=admin(endpoint.zone_id), enabled=enabled)
        return (await self.lane.submit(ask)).endpoint

    async def now(self, endpoint: Endpoint, caller: Caller | None = None) -> Endpoint:
        wanted = EndpointFilter(endpoint.zone_id, caller or admin(endpoint.zone_id), endpoint.id)
        [row] = await self.keel.engine.read(lambda tx: webhooks.list_endpoints(tx, wanted), zones=[endpoint.zone_id])
        return row

    # -- what happens

    async def happen(
        self,
        *kinds: tuple[str, str | None, str | None],
        zone_id: str = ZONE,
        subject: str = "t1",
        data: Mapping[str, object] | None = None,
    ) -> None:
        """Events of these types, from and to, in one transaction."""
        text = msgspec.json.encode(data or {"taskType": "development", "agentId": "a1"}).decode()

        async def operation(tx: Transaction) -> None:
            await tx.read()
            for kind, before, after in kinds:
                tx.emit(NewEvent(kind, zone_id, subject, "tester", before, after, text))

        await self.keel.engine.transact(operation, zones=[zone_id])

    # -- the sink

    def another_teller(self, backlog_max: int = 10_000) -> WebhookFanout:
        return WebhookFanout(
            self.keel.everywhere, FanoutWakeups(self.wakes), self.lane.submit, self.wakes.notify, backlog_max
        )

    async def fence(self) -> Fence:
        fence = self.lease.fence() or await self.lease.acquire()
        assert fence is not None, "somebody else holds the lease"
        return fence

    async def tell(self, teller: WebhookFanout | None = None) -> None:
        """Until everything there is has become rows."""
        teller = teller or self.teller
        while await teller.run_cycle(await self.fence()) == 0:
            pass

    # -- deliveries

    async def deliveries(self, endpoint: Endpoint, limit: int = 1_000) -> list[Delivery]:
        """Oldest first."""
        wanted = DeliveryFilter(endpoint.zone_id, endpoint.id, admin(endpoint.zone_id), limit)
        rows = await self.keel.engine.read(lambda tx: webhooks.list_deliveries(tx, wanted), zones=[endpoint.zone_id])
        return rows[::-1]

    async def settled(self, endpoint: Endpoint, number: int = 1) -> list[Delivery]:
        """Its deliveries, once there are so many and none of them waits."""

        async def are_over() -> bool:
            rows = await self.deliveries(endpoint)
            return len(rows) == number and all(row.status is not DeliveryState.PENDING for row in rows)

        await eventually(are_over, f"{number} deliveries are over")
        return await self.deliveries(endpoint)

    async def failed_once(self, endpoint: Endpoint, attempts: int = 1) -> Delivery:
        """Its one delivery, once it waits after so many attempts."""

        async def waits() -> bool:
            [row] = await self.deliveries(endpoint)
            return row.attempts == attempts and row.error is not None

        await eventually(waits, f"{attempts} attempts have failed")
        [row] = await self.deliveries(endpoint)
        return row

    async def replay(self, row: Delivery) -> None:
        ask = Replay(zone_id=row.zone_id, id=row.endpoint_id, caller=admin(row.zone_id), delivery_id=row.id)
        await self.lane.submit(ask)

    async def trial(self, endpoint: Endpoint) -> Delivery:
        zone_id = endpoint.zone_id
        ask = SendTest(zone_id=zone_id, id=endpoint.id, caller=admin(zone_id), delivery_id=new_id())
        delivery = (await self.lane.submit(ask)).delivery
        assert delivery is not None
        return delivery

    def due(self, row: Delivery) -> None:
        """Lets the moment have come for which a delivery waits."""
        self.keel.side.run("update webhook_deliveries set next_at = 1 where id = ?", row.id)
        self.wakes.notify()

    @contextlib.asynccontextmanager
    async def delivering(
        self, outward: OutboundClient | None = None, grace_seconds: float = 5.0, **told: int
    ) -> AsyncIterator[DeliveryWorker]:
        # An interval that no test waits for: what is sent in one was woken for.
        settings = WebhookSettings(**{"webhook_poll_ms": 60_000, **told})
        means = DeliveryDeps(
            self.keel.everywhere,
            self.wakes,
            self.takes.submit,
            self.reports.submit,
            self.settles.submit,
            self.lane.submit,
            outward or OutboundClient(ALLOW_PRIVATE),
            SECRETS,
        )
        deliverer = DeliveryWorker(means, settings, grace_seconds)
        deliverer.start()
        try:
            yield deliverer
        finally:
            await deliverer.stop()


@contextlib.asynccontextmanager
async def hooks_on(url: str, schedule: RetrySchedule | None = None) -> AsyncIterator[Hooks]:
    wakes = Wakeups()
    rigged = replace(Rigging(), after_commit=lambda events: wakes.notify())
    async with keel_on(url, rigged) as keel:
        await keel.zone()
        made = Hooks(keel, wakes, schedule)
        await made.teller.create_sink()
        yield made


async def a_day_of_webhooks(keel: Keel) -> None:
    """Everything that is said to the database for webhooks. One endpoint is left with what waits, so that what was
    recorded has something to do when it is run again."""
    hooks = Hooks(keel, Wakeups())
    await hooks.teller.create_sink()
    made, other = await hooks.endpoint(NOBODY, "*"), await hooks.endpoint(NOBODY)
    assert await hooks.teller.is_due()
    await hooks.happen(STARTED, STARTED, STARTED)
    await hooks.tell(hooks.another_teller(backlog_max=1))
    await hooks.enable(made)
    await hooks.happen(STARTED, STARTED, STARTED)
    await hooks.tell()
    for error in (None, "no"):
        taken = await hooks.takes.submit(ClaimDeliveries(*made.ref, 1, 1_000))
        for row in taken.deliveries:
            assert row.next_at is not None
            ask = ReportAttempt(
                zone_id=ZONE, endpoint_id=made.id, id=row.id, lease_expires_at=row.next_at, attempt=1, error=error
            )
            await hooks.reports.submit(ask)
    await hooks.replay((await hooks.deliveries(made))[0])
    await hooks.trial(made)
    change = Update(zone_id=ZONE, id=made.id, caller=admin(), url=f"{NOBODY}/new")
    await hooks.lane.submit(change)
    await hooks.deliveries(made, 1)
    await hooks.enable(other, False)
    await hooks.settles.submit(FailPending(*other.ref, 1))
    await keel.everywhere.read(lambda tx: webhooks.find_pending_endpoints(tx, 10, [("nowhere", None)]))
    await keel.everywhere.transact(lambda tx: webhooks.delete_expired(tx, DAY, 10))


def grow_webhooks(side: Side, zone_id: str, many: int) -> None:
    """Endpoints of other zones, a long history of the one that is there, and much that waits for it."""
    side.run(
        """
        insert into webhook_endpoints
        select 'zone' || n, 'w' || n, 'https://example.com/', null, '["*"]', 1, null, n % 2, null, 0, null, 'a', 1, 1,
               case when n % 10 = 0 then 9000000000000 end
        from generate_series(1, ?) n
        """,
        many,
    )
    side.run(
        """
        insert into webhook_deliveries
        select w.id, w.zone_id, '0' || to_char(n, 'FM0000000'), n, 'task.status_changed', '{}', null,
               case when n % 4 = 0 then 'pending' when n % 100 = 1 then 'failed' else 'delivered' end, 1,
               case when n % 4 = 0 then w.id end, case when n % 4 = 0 then 9000000000000 end, 200, null, 1, 1, 1
        from generate_series(1, ?) n, webhook_endpoints w
        where w.zone_id = ?
        """,
        many,
        zone_id,
    )
