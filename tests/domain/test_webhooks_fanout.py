"""Webhooks on both engines, from the log into rows: what each endpoint named, exactly once, within a bound."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from quarterdeck.domain.webhooks.event_fanout import WebhookFanout
from quarterdeck.domain.webhooks.model import DeliveryState, Endpoint
from quarterdeck.engine.leases import LeaseLost
from tests.support.http_endpoint import HttpEndpoint as Receiver, run_endpoint
from tests.support.webhooks import TASK_STARTED, WebhookHarness, open_webhook_harness

COMPLETED = ("task.completed", "RUNNING", "COMPLETED")
OTHER = "other"


@pytest.fixture
async def webhook_harness(engine_url: str) -> AsyncIterator[WebhookHarness]:
    async with open_webhook_harness(engine_url) as made:
        yield made


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with run_endpoint() as listening:
        yield listening


async def test_an_endpoint_hears_of_what_it_named_in_its_own_zone_and_from_its_beginning_on(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    await webhook_harness.runtime.put_zone(OTHER)
    await webhook_harness.emit(TASK_STARTED, subject="before")
    usual, every = (
        await webhook_harness.create_endpoint(receiver.url),
        await webhook_harness.create_endpoint(receiver.url, "*"),
    )
    picky = await webhook_harness.create_endpoint(receiver.url, "agent.terminated", "task.created")
    foreign = await webhook_harness.create_endpoint(receiver.url, "*", zone_id=OTHER)
    await webhook_harness.emit(
        ("task.created", None, "PENDING"), TASK_STARTED, ("task.progressed", "RUNNING", "RUNNING")
    )
    await webhook_harness.emit(("agent.terminated", "IDLE", "TERMINATED"), ("session.spawn", None, "active"))
    await webhook_harness.run_fanout()

    async def told(of: Endpoint) -> list[str]:
        return [row.type for row in await webhook_harness.deliveries(of)]

    assert await told(usual) == ["task.status_changed"]
    assert await told(picky) == ["task.created", "agent.terminated"]
    assert await told(every) == ["task.created", "task.status_changed", "task.progressed", "agent.terminated"]
    assert await told(foreign) == []


async def test_whoever_goes_on_from_an_older_position_writes_nothing_twice(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    await webhook_harness.emit(TASK_STARTED, COMPLETED)
    began = webhook_harness.runtime.database.scalar("select position from sinks where name = 'webhooks'")
    await webhook_harness.run_fanout()
    # As if the rows had been written, and the process had died before its position was.
    webhook_harness.runtime.database.execute("update sinks set position = ? where name = 'webhooks'", began)
    await webhook_harness.emit(TASK_STARTED)
    follower = webhook_harness.new_fanout()
    await webhook_harness.run_fanout(follower)
    rows = await webhook_harness.deliveries(made)
    assert len(rows) == len({row.id for row in rows}) == 3
    head = webhook_harness.runtime.database.scalar("select pos from log_head")
    assert webhook_harness.runtime.database.scalar("select position from sinks where name = 'webhooks'") == head


async def test_a_teller_whose_term_is_over_writes_neither_rows_nor_position(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    await webhook_harness.run_fanout()
    old = await webhook_harness.get_fence()
    webhook_harness.runtime.database.execute("update leases set term = term + 1 where name = 'webhooks'")
    before = webhook_harness.runtime.database.scalar("select position from sinks where name = 'webhooks'")
    await webhook_harness.emit(TASK_STARTED)
    with pytest.raises(LeaseLost):
        await webhook_harness.fanout.run_cycle(old)
    assert await webhook_harness.deliveries(made) == []
    assert webhook_harness.runtime.database.scalar("select position from sinks where name = 'webhooks'") == before


async def test_where_nobody_hears_the_sink_rests_and_later_goes_with_the_head(webhook_harness: WebhookHarness) -> None:
    await webhook_harness.run_fanout()
    await webhook_harness.emit(TASK_STARTED)
    assert not await webhook_harness.fanout.is_due()
    webhook_harness.runtime.database.execute("update sinks set updated_at = updated_at - 20000 where name = 'webhooks'")
    assert await webhook_harness.fanout.is_due()
    await webhook_harness.run_fanout()
    assert webhook_harness.fanout.position == webhook_harness.runtime.database.scalar("select pos from log_head")
    made = await webhook_harness.create_endpoint("http://127.0.0.1:9/", "*")
    assert await webhook_harness.fanout.is_due()
    await webhook_harness.emit(TASK_STARTED)
    await webhook_harness.run_fanout()
    assert [row.type for row in await webhook_harness.deliveries(made)] == ["task.status_changed"]


async def test_a_log_longer_than_one_turn_is_told_to_its_end(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    await webhook_harness.emit(*[TASK_STARTED] * 450)
    await webhook_harness.run_fanout()
    rows = await webhook_harness.deliveries(made)
    assert len(rows) == 450
    assert [row.pos for row in rows] == sorted(row.pos for row in rows)


async def test_an_event_that_nobody_can_read_is_passed_over_and_counted(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    await webhook_harness.emit(TASK_STARTED, TASK_STARTED)
    webhook_harness.runtime.database.execute(
        "update events set data = 'no json' where pos = (select min(pos) from events where type = 'task.started')"
    )
    await webhook_harness.run_fanout()
    assert len(await webhook_harness.deliveries(made)) == 1
    assert webhook_harness.fanout.missed_count == 1


async def test_an_endpoint_for_which_too_much_waits_is_disabled_and_what_waited_has_failed(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    witness = await webhook_harness.create_endpoint(receiver.url, "alert")
    teller: WebhookFanout = webhook_harness.new_fanout(backlog_max=5)
    await webhook_harness.emit(*[TASK_STARTED] * 6)
    await webhook_harness.run_fanout(teller)
    row = await webhook_harness.read_endpoint(made)
    assert (row.enabled, row.disabled_reason) == (0, "backlog_full")
    await webhook_harness.run_fanout(teller)
    async with webhook_harness.run_worker():
        rows = await webhook_harness.wait_until_ended(made, 6)
        [alarm] = await webhook_harness.wait_until_ended(witness)
    assert {(each.status, each.error) for each in rows} == {
        (DeliveryState.FAILED, "the endpoint hears of nothing any more")
    }
    told = json.loads(alarm.body)
    assert (told["event"], told["alert"], told["webhookId"]) == ("webhook.disabled", "webhook_disabled", made.id)
