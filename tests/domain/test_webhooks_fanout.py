"""Webhook fan-out from the event log to delivery rows, on both engines: filtered, exactly once, bounded."""

from __future__ import annotations

import json

import pytest

from quarterdeck.domain.webhooks.background.event_fanout import WebhookFanout
from quarterdeck.domain.webhooks.model import DeliveryState, Endpoint
from quarterdeck.engine.leases import LeaseLost
from tests.support.http_endpoint import HttpEndpoint as Receiver
from tests.support.webhooks import TASK_STARTED, WebhookHarness

COMPLETED = ("task.completed", "RUNNING", "COMPLETED")
OTHER_ZONE = "other"


async def test_endpoint_gets_its_event_types_of_its_zone_from_its_creation_on(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    await webhook_harness.runtime.put_zone(OTHER_ZONE)
    await webhook_harness.emit(TASK_STARTED, subject="before")
    default, all_types = (
        await webhook_harness.create_endpoint(receiver.url),
        await webhook_harness.create_endpoint(receiver.url, "*"),
    )
    two_types = await webhook_harness.create_endpoint(receiver.url, "agent.terminated", "task.created")
    foreign = await webhook_harness.create_endpoint(receiver.url, "*", zone_id=OTHER_ZONE)
    await webhook_harness.emit(
        ("task.created", None, "PENDING"), TASK_STARTED, ("task.progressed", "RUNNING", "RUNNING")
    )
    await webhook_harness.emit(("agent.terminated", "IDLE", "TERMINATED"), ("session.spawn", None, "active"))
    await webhook_harness.run_fanout()

    async def delivered_types(endpoint: Endpoint) -> list[str]:
        return [row.type for row in await webhook_harness.deliveries(endpoint)]

    assert await delivered_types(default) == ["task.status_changed"]
    assert await delivered_types(two_types) == ["task.created", "agent.terminated"]
    assert await delivered_types(all_types) == [
        "task.created",
        "task.status_changed",
        "task.progressed",
        "agent.terminated",
    ]
    assert await delivered_types(foreign) == []


async def test_fanout_from_an_older_position_writes_no_delivery_twice(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    await webhook_harness.emit(TASK_STARTED, COMPLETED)
    position = webhook_harness.runtime.database.scalar("select position from sinks where name = 'webhooks'")
    await webhook_harness.run_fanout()
    # As if the process died after it wrote the rows and before it stored its position.
    webhook_harness.runtime.database.execute("update sinks set position = ? where name = 'webhooks'", position)
    await webhook_harness.emit(TASK_STARTED)
    second_fanout = webhook_harness.new_fanout()
    await webhook_harness.run_fanout(second_fanout)
    rows = await webhook_harness.deliveries(endpoint)
    assert len(rows) == len({row.id for row in rows}) == 3
    head = webhook_harness.runtime.database.scalar("select pos from log_head")
    assert webhook_harness.runtime.database.scalar("select position from sinks where name = 'webhooks'") == head


async def test_fanout_with_an_ended_term_writes_neither_rows_nor_position(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    await webhook_harness.run_fanout()
    old_fence = await webhook_harness.get_fence()
    webhook_harness.runtime.database.execute("update leases set term = term + 1 where name = 'webhooks'")
    before = webhook_harness.runtime.database.scalar("select position from sinks where name = 'webhooks'")
    await webhook_harness.emit(TASK_STARTED)
    with pytest.raises(LeaseLost):
        await webhook_harness.fanout.run_cycle(old_fence)
    assert await webhook_harness.deliveries(endpoint) == []
    assert webhook_harness.runtime.database.scalar("select position from sinks where name = 'webhooks'") == before


async def test_fanout_without_endpoints_pauses_and_later_skips_to_the_log_head(webhook_harness: WebhookHarness) -> None:
    await webhook_harness.run_fanout()
    await webhook_harness.emit(TASK_STARTED)
    assert not await webhook_harness.fanout.is_due()
    webhook_harness.runtime.database.execute("update sinks set updated_at = updated_at - 20000 where name = 'webhooks'")
    assert await webhook_harness.fanout.is_due()
    await webhook_harness.run_fanout()
    assert webhook_harness.fanout.position == webhook_harness.runtime.database.scalar("select pos from log_head")
    endpoint = await webhook_harness.create_endpoint("http://127.0.0.1:9/", "*")
    assert await webhook_harness.fanout.is_due()
    await webhook_harness.emit(TASK_STARTED)
    await webhook_harness.run_fanout()
    assert [row.type for row in await webhook_harness.deliveries(endpoint)] == ["task.status_changed"]


async def test_log_longer_than_one_cycle_is_fanned_out_completely(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    await webhook_harness.emit(*[TASK_STARTED] * 450)
    await webhook_harness.run_fanout()
    rows = await webhook_harness.deliveries(endpoint)
    assert len(rows) == 450
    assert [row.pos for row in rows] == sorted(row.pos for row in rows)


async def test_undecodable_event_is_skipped_and_counted(webhook_harness: WebhookHarness, receiver: Receiver) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    await webhook_harness.emit(TASK_STARTED, TASK_STARTED)
    webhook_harness.runtime.database.execute(
        "update events set data = 'no json' where pos = (select min(pos) from events where type = 'task.started')"
    )
    await webhook_harness.run_fanout()
    assert len(await webhook_harness.deliveries(endpoint)) == 1
    assert webhook_harness.fanout.missed_count == 1


async def test_full_backlog_disables_the_endpoint_and_fails_its_deliveries(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    alert_endpoint = await webhook_harness.create_endpoint(receiver.url, "alert")
    fanout: WebhookFanout = webhook_harness.new_fanout(backlog_max=5)
    await webhook_harness.emit(*[TASK_STARTED] * 6)
    await webhook_harness.run_fanout(fanout)
    row = await webhook_harness.read_endpoint(endpoint)
    assert (row.enabled, row.disabled_reason) == (0, "backlog_full")
    await webhook_harness.run_fanout(fanout)
    async with webhook_harness.run_worker():
        rows = await webhook_harness.wait_until_ended(endpoint, 6)
        [alert] = await webhook_harness.wait_until_ended(alert_endpoint)
    assert {(delivery.status, delivery.error) for delivery in rows} == {
        (DeliveryState.FAILED, "the webhook is disabled or removed")
    }
    payload = json.loads(alert.body)
    assert (payload["event"], payload["alert"], payload["webhookId"]) == (
        "webhook.disabled",
        "webhook_disabled",
        endpoint.id,
    )
