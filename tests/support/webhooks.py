"""A harness for webhooks: a runtime with wake-ups, the fan-out sink cycle by cycle, and the delivery worker."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

import msgspec

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import DAY
from quarterdeck.core.ids import new_id
from quarterdeck.core.webhook_signing import secret_deriver
from quarterdeck.domain.services.model import ServiceSettings
from quarterdeck.domain.webhooks.background.delivery_worker import DeliveryDeps, DeliveryWorker
from quarterdeck.domain.webhooks.background.event_fanout import SINK_NAME, FanoutWakeups, WebhookFanout
from quarterdeck.domain.webhooks.component import Webhooks
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
from quarterdeck.domain.webhooks.operations import endpoints, reads
from quarterdeck.domain.webhooks.rules.states import RetrySchedule
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.leases import Fence, Lease
from quarterdeck.engine.outbound_http import ALLOW_PRIVATE, OutboundClient
from quarterdeck.engine.sweep_passes import delete_past_retention
from quarterdeck.engine.transaction import Transaction
from tests.support.builders import ZONE, admin
from tests.support.eventually import eventually
from tests.support.runtime import DirectDatabase, RuntimeHarness, open_runtime

SECRET_DERIVER = secret_deriver(b"root of webhook test secrets....")
FAILURE_WINDOW_MS = 5 * DAY
TASK_STARTED = ("task.started", "ASSIGNED", "RUNNING")
UNREACHABLE_URL = "http://127.0.0.1:9/hook"
"""A port without a listener."""


class WebhookHarness:
    """The fan-out and the deliveries of one process, with its runtime."""

    def __init__(self, runtime: RuntimeHarness, schedule: RetrySchedule | None = None) -> None:
        self.runtime = runtime
        self.wakeups = runtime.wakeups
        parts = Webhooks(
            runtime.with_settings(
                ServiceSettings(push_private_addresses=True),
                WebhookSettings(webhook_disable_after_days=FAILURE_WINDOW_MS / DAY),
            ),
            SECRET_DERIVER,
            with_delivery=True,
            schedule=schedule,
        )
        self.lane, self.claim_lane, self.report_lane = parts.lane, parts.claim_lane, parts.report_lane
        self.fail_pending_lane, self.fanout = parts.fail_pending_lane, parts.fanout
        self.lease = Lease(runtime.cross_zone_engine, SINK_NAME, new_id(), 5_000)

    # -- endpoints

    async def create_endpoint(self, url: str, *types: str, zone_id: str = ZONE) -> Endpoint:
        command = Create(
            zone_id=zone_id,
            id=new_id(),
            caller=admin(zone_id),
            url=url,
            types=types or ("task.status_changed", "alert"),
        )
        return (await self.lane.submit(command)).endpoint

    async def set_enabled(self, endpoint: Endpoint, enabled: bool = True) -> Endpoint:
        command = Update(zone_id=endpoint.zone_id, id=endpoint.id, caller=admin(endpoint.zone_id), enabled=enabled)
        return (await self.lane.submit(command)).endpoint

    async def read_endpoint(self, endpoint: Endpoint, caller: Caller | None = None) -> Endpoint:
        filters = EndpointFilter(endpoint.zone_id, caller or admin(endpoint.zone_id), endpoint.id)
        [row] = await self.runtime.engine.read(lambda tx: reads.list_endpoints(tx, filters), zones=[endpoint.zone_id])
        return row

    # -- events

    async def emit(
        self,
        *events: tuple[str, str | None, str | None],
        zone_id: str = ZONE,
        subject: str = "t1",
        data: Mapping[str, object] | None = None,
    ) -> None:
        """Emit events of these types, old states and new states in one transaction."""
        data_json = msgspec.json.encode(data or {"taskType": "development", "agentId": "a1"}).decode()

        async def operation(tx: Transaction) -> None:
            await tx.read()
            for event_type, before, after in events:
                tx.emit(NewEvent(event_type, zone_id, subject, "tester", before, after, data_json))

        await self.runtime.engine.transact(operation, zones=[zone_id])

    # -- the sink

    def new_fanout(self, backlog_max: int = 10_000) -> WebhookFanout:
        return WebhookFanout(
            self.runtime.cross_zone_engine,
            FanoutWakeups(self.wakeups),
            self.lane.submit,
            self.wakeups.notify,
            backlog_max,
        )

    async def get_fence(self) -> Fence:
        fence = self.lease.fence() or await self.lease.acquire()
        assert fence is not None, "another process holds the lease"
        return fence

    async def run_fanout(self, fanout: WebhookFanout | None = None) -> None:
        """Run cycles until every event has its delivery rows."""
        fanout = fanout or self.fanout
        while await fanout.run_cycle(await self.get_fence()) == 0:
            pass

    # -- deliveries

    async def deliveries(self, endpoint: Endpoint, limit: int = 1_000) -> list[Delivery]:
        """Oldest first."""
        filters = DeliveryFilter(endpoint.zone_id, endpoint.id, admin(endpoint.zone_id), limit)
        rows = await self.runtime.engine.read(lambda tx: reads.list_deliveries(tx, filters), zones=[endpoint.zone_id])
        return rows[::-1]

    async def wait_until_ended(self, endpoint: Endpoint, count: int = 1) -> list[Delivery]:
        """Wait until the endpoint has `count` deliveries and none is pending. Return them."""

        async def all_ended() -> bool:
            rows = await self.deliveries(endpoint)
            return len(rows) == count and all(row.status is not DeliveryState.PENDING for row in rows)

        await eventually(all_ended, f"{count} deliveries have ended")
        return await self.deliveries(endpoint)

    async def wait_until_failed(self, endpoint: Endpoint, attempts: int = 1) -> Delivery:
        """Wait until the only delivery has failed this many attempts. Return it."""

        async def has_failed() -> bool:
            [row] = await self.deliveries(endpoint)
            return row.attempts == attempts and row.error is not None

        await eventually(has_failed, f"{attempts} attempts have failed")
        [row] = await self.deliveries(endpoint)
        return row

    async def replay(self, row: Delivery) -> None:
        command = Replay(zone_id=row.zone_id, id=row.endpoint_id, caller=admin(row.zone_id), delivery_id=row.id)
        await self.lane.submit(command)

    async def send_test(self, endpoint: Endpoint) -> Delivery:
        zone_id = endpoint.zone_id
        command = SendTest(zone_id=zone_id, id=endpoint.id, caller=admin(zone_id), delivery_id=new_id())
        delivery = (await self.lane.submit(command)).delivery
        assert delivery is not None
        return delivery

    def make_due(self, row: Delivery) -> None:
        """Make a delivery due now."""
        self.runtime.database.execute("update webhook_deliveries set next_at = 1 where id = ?", row.id)
        self.wakeups.notify()

    @contextlib.asynccontextmanager
    async def run_worker(
        self, http_client: OutboundClient | None = None, grace_seconds: float = 5.0, **overrides: int
    ) -> AsyncIterator[DeliveryWorker]:
        # No test waits for this interval: every delivery in a test follows a wake-up.
        settings = WebhookSettings(**{"webhook_poll_ms": 60_000, **overrides})
        deps = DeliveryDeps(
            self.runtime.cross_zone_engine,
            self.wakeups,
            self.claim_lane.submit,
            self.report_lane.submit,
            self.fail_pending_lane.submit,
            self.lane.submit,
            http_client or OutboundClient(ALLOW_PRIVATE),
            SECRET_DERIVER,
        )
        worker = DeliveryWorker(deps, settings, grace_seconds)
        worker.start()
        try:
            yield worker
        finally:
            await worker.stop()


@contextlib.asynccontextmanager
async def open_webhook_harness(url: str, schedule: RetrySchedule | None = None) -> AsyncIterator[WebhookHarness]:
    async with open_runtime(url) as runtime:
        await runtime.put_zone()
        harness = WebhookHarness(runtime, schedule)
        await harness.fanout.create_sink()
        yield harness


async def run_webhook_workload(runtime: RuntimeHarness) -> None:
    """Run every statement of webhooks. One endpoint keeps pending deliveries, so that the recorded statements find rows
    when they run again."""
    harness = WebhookHarness(runtime)
    await harness.fanout.create_sink()
    endpoint, other = (
        await harness.create_endpoint(UNREACHABLE_URL, "*"),
        await harness.create_endpoint(UNREACHABLE_URL),
    )
    assert await harness.fanout.is_due()
    await harness.emit(TASK_STARTED, TASK_STARTED, TASK_STARTED)
    await harness.run_fanout(harness.new_fanout(backlog_max=1))
    await harness.set_enabled(endpoint)
    await harness.emit(TASK_STARTED, TASK_STARTED, TASK_STARTED)
    await harness.run_fanout()
    for error in (None, "no"):
        claimed = await harness.claim_lane.submit(ClaimDeliveries(*endpoint.ref, 1, 1_000))
        for row in claimed.deliveries:
            assert row.next_at is not None
            command = ReportAttempt(
                zone_id=ZONE, endpoint_id=endpoint.id, id=row.id, lease_expires_at=row.next_at, attempt=1, error=error
            )
            await harness.report_lane.submit(command)
    await harness.replay((await harness.deliveries(endpoint))[0])
    await harness.send_test(endpoint)
    change = Update(zone_id=ZONE, id=endpoint.id, caller=admin(), url=f"{UNREACHABLE_URL}/new")
    await harness.lane.submit(change)
    await harness.deliveries(endpoint, 1)
    await harness.set_enabled(other, False)
    await harness.fail_pending_lane.submit(FailPending(*other.ref, 1))
    await runtime.cross_zone_engine.read(lambda tx: reads.find_pending_endpoints(tx, 10, [("missing-zone", None)]))
    await delete_past_retention(runtime.cross_zone_engine, DAY, endpoints.retention_statements)(10)


def add_webhook_rows(database: DirectDatabase, zone_id: str, count: int) -> None:
    """Insert endpoints of other zones, and many ended and pending deliveries of the existing endpoint."""
    database.execute(
        """
        insert into webhook_endpoints
        select 'zone' || n, 'w' || n, 'https://example.com/', null, '["*"]', 1, null, n % 2, null, 0, null, 'a', 1, 1,
               case when n % 10 = 0 then 9000000000000 end
        from generate_series(1, ?) n
        """,
        count,
    )
    database.execute(
        """
        insert into webhook_deliveries
        select w.id, w.zone_id, '0' || to_char(n, 'FM0000000'), n, 'task.status_changed', '{}', null,
               case when n % 4 = 0 then 'pending' when n % 100 = 1 then 'failed' else 'delivered' end, 1,
               case when n % 4 = 0 then w.id end, case when n % 4 = 0 then 9000000000000 end, 200, null, 1, 1, 1
        from generate_series(1, ?) n, webhook_endpoints w
        where w.zone_id = ?
        """,
        count,
        zone_id,
    )
