"""Webhooks on both engines, from rows to an endpoint by way of real HTTP; and endpoints, how they come and go."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest
from standardwebhooks import Webhook

from quarterdeck.core.clock import DAY, SECOND
from quarterdeck.core.errors import Conflict, LimitReached, NotFound
from quarterdeck.core.ids import new_id
from quarterdeck.domain.webhooks import operations as webhooks
from quarterdeck.domain.webhooks.model import (
    ENDPOINTS_MAX,
    Create,
    DeliveryState,
    Disable,
    DisableReason,
    Remove,
    RotateSecret,
    Update,
)
from quarterdeck.engine.outbound_http import PUBLIC_ONLY, OutboundClient
from tests.support.builders import ZONE, admin
from tests.support.eventually import eventually
from tests.support.http_endpoint import HttpEndpoint as Receiver, ReceivedRequest, http_response, run_endpoint
from tests.support.push import ScriptedResolver
from tests.support.webhooks import SECRET_DERIVER, TASK_STARTED, WebhookHarness, open_webhook_harness

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


# -- to the endpoint


async def test_a_change_of_a_tasks_status_arrives_in_the_published_form_signed_and_once(
    webhook_harness: WebhookHarness, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = await webhook_harness.create_endpoint(receiver.url)
    async with webhook_harness.run_worker() as deliverer:
        await webhook_harness.emit(COMPLETED, subject="task-123")
        await webhook_harness.run_fanout()
        [row] = await webhook_harness.wait_until_ended(made)
    [request] = receiver.requests
    secret = SECRET_DERIVER(ZONE, made.id, 1)
    told = Webhook(secret).verify(request.body, request.headers)
    assert {name: told[name] for name in ("event", "taskId", "previousStatus", "newStatus", "workspaceId")} == {
        "event": "task.status_changed",
        "taskId": "task-123",
        "previousStatus": "RUNNING",
        "newStatus": "COMPLETED",
        "workspaceId": ZONE,
    }
    [event] = [event for event in await webhook_harness.runtime.read_log() if event.type == "task.completed"]
    assert request.headers["webhook-id"] == told["eventId"] == row.id == event.id
    assert request.headers["content-type"] == "application/json"
    assert (row.status, row.attempts, row.answer_status, row.next_at) == (DeliveryState.DELIVERED, 1, 200, None)
    assert (dict(deliverer.counts), len(deliverer)) == ({"delivered": 1}, 0)
    everything = caplog.text + "".join(event.data for event in await webhook_harness.runtime.read_log())
    assert secret not in everything and receiver.url not in everything


async def test_after_a_rotation_both_secrets_sign_for_a_day_and_then_only_the_new_one(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    await webhook_harness.lane.submit(RotateSecret(zone_id=ZONE, id=made.id, caller=admin()))
    async with webhook_harness.run_worker():
        await webhook_harness.send_test(made)
        first = await receiver.wait_for_request(1)
        for number in (1, 2):
            Webhook(SECRET_DERIVER(ZONE, made.id, number)).verify(first.body, first.headers)
        webhook_harness.runtime.database.execute("update webhook_endpoints set rotated_at = rotated_at - ?", DAY)
        await webhook_harness.send_test(made)
        second = await receiver.wait_for_request(2)
    assert len(second.headers["webhook-signature"].split(" ")) == 1
    Webhook(SECRET_DERIVER(ZONE, made.id, 2)).verify(second.body, second.headers)


async def test_a_failure_is_tried_again_at_a_moment_that_outlives_the_deliverer(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    receiver.response = http_response(b"oh", "500 Oh")
    await webhook_harness.emit(TASK_STARTED)
    await webhook_harness.run_fanout()
    async with webhook_harness.run_worker():
        row = await webhook_harness.wait_until_failed(made)
    assert row.next_at is not None and row.updated_at + 5 * SECOND <= row.next_at <= row.updated_at + 5_500
    assert (row.status, row.answer_status, row.error) == (DeliveryState.PENDING, 500, "it answered 500")
    receiver.response = http_response()
    async with webhook_harness.run_worker():
        # Another process, to which the moment is all there is.
        await webhook_harness.send_test(made)
        await receiver.wait_for_request(2)
        assert (await webhook_harness.deliveries(made))[0].next_at == row.next_at
        webhook_harness.make_due(row)
        delivered, _ = await webhook_harness.wait_until_ended(made, 2)
    assert (delivered.status, delivered.attempts) == (DeliveryState.DELIVERED, 2)
    ids = [request.headers["webhook-id"] for request in receiver.requests]
    assert ids == [row.id, ids[1], row.id]
    assert (await webhook_harness.read_endpoint(made)).failing_since is None


async def test_what_failed_as_often_as_it_may_has_failed_and_is_sent_again_by_hand_with_the_same_id(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    receiver.response = http_response(b"", "503 Busy", "Retry-After: 1")
    row = await webhook_harness.send_test(made)
    webhook_harness.runtime.database.execute("update webhook_deliveries set attempts = 9")
    async with webhook_harness.run_worker():
        [dead] = await webhook_harness.wait_until_ended(made)
        assert (dead.status, dead.attempts, dead.next_at) == (DeliveryState.FAILED, 10, None)
        receiver.response = http_response()
        await webhook_harness.replay(dead)
        await receiver.wait_for_request(2)
        [again] = await webhook_harness.wait_until_ended(made)
    assert (again.id, again.status, again.attempts) == (row.id, DeliveryState.DELIVERED, 1)
    assert [request.headers["webhook-id"] for request in receiver.requests] == [row.id] * 2
    assert [event.type for event in await webhook_harness.runtime.read_log() if event.subject == made.id] == [
        "webhook.created",
        "webhook.tested",
        "webhook.replayed",
    ]


async def test_a_pause_that_an_endpoint_asks_for_is_kept_within_a_bound(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    receiver.response = http_response(b"", "429 Slowly", "Retry-After: 3600")
    await webhook_harness.send_test(made)
    async with webhook_harness.run_worker():
        row = await webhook_harness.wait_until_failed(made)
    assert row.next_at == row.updated_at + 3_600 * SECOND


async def test_410_disables_an_endpoint_and_what_waited_for_it_has_failed(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    receiver.response = http_response(b"", "410 Gone")
    await webhook_harness.emit(TASK_STARTED)
    await webhook_harness.run_fanout()
    # One that waits for later, and is never asked for again.
    await webhook_harness.emit(COMPLETED)
    await webhook_harness.run_fanout()
    webhook_harness.runtime.database.execute(
        "update webhook_deliveries set next_at = 9000000000000 where pos = (select max(pos) from webhook_deliveries)"
    )
    async with webhook_harness.run_worker():
        first, second = await webhook_harness.wait_until_ended(made, 2)
    assert (first.status, first.answer_status) == (DeliveryState.FAILED, 410)
    assert (second.status, second.attempts) == (DeliveryState.FAILED, 0)
    assert ((await webhook_harness.read_endpoint(made)).disabled_reason, receiver.connections) == ("gone", 1)
    [event] = [event for event in await webhook_harness.runtime.read_log() if event.type == "webhook.disabled"]
    assert json.loads(event.data) == {"reason": "gone", "host": "127.0.0.1"}
    with pytest.raises(Conflict, match="gone"):
        await webhook_harness.replay(second)
    enabled = await webhook_harness.set_enabled(made)
    assert (enabled.enabled, enabled.disabled_reason) == (1, None)
    receiver.response = http_response()
    async with webhook_harness.run_worker():
        await webhook_harness.replay(second)
        await receiver.wait_for_request(2)


async def test_an_endpoint_that_fails_for_days_is_disabled_and_one_that_recovers_is_not(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    receiver.response = http_response(b"", "500 Oh")
    await webhook_harness.send_test(made)
    async with webhook_harness.run_worker():
        row = await webhook_harness.wait_until_failed(made)
        webhook_harness.runtime.database.execute(
            "update webhook_endpoints set failing_since = failing_since - ?", 5 * DAY
        )
        webhook_harness.make_due(row)

        async def is_disabled() -> bool:
            return not (await webhook_harness.read_endpoint(made)).enabled

        await eventually(is_disabled, "the endpoint is disabled")
    assert (await webhook_harness.read_endpoint(made)).disabled_reason == DisableReason.FAILING


async def test_a_redirect_is_not_followed_and_an_address_that_must_not_be_called_is_not(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    moved = await webhook_harness.create_endpoint(receiver.url)
    async with run_endpoint() as elsewhere:
        receiver.response = http_response(b"", "307 Elsewhere", f"Location: {elsewhere.url}")
        await webhook_harness.send_test(moved)
        async with webhook_harness.run_worker():
            row = await webhook_harness.wait_until_failed(moved)
        assert (elsewhere.connections, row.error) == (0, "it answered 307, and redirects are not followed")
        names = ScriptedResolver(["127.0.0.1"])
        rebound = await webhook_harness.create_endpoint(f"http://public.example:{elsewhere.port}/")
        await webhook_harness.send_test(rebound)
        async with webhook_harness.run_worker(OutboundClient(PUBLIC_ONLY, resolve=names)) as deliverer:
            row = await webhook_harness.wait_until_failed(rebound)
        assert (elsewhere.connections, row.error) == (0, "an address of its host is loopback")
        assert dict(deliverer.counts) == {"refused": 1}


async def test_an_endpoint_that_stays_silent_keeps_nobody_else_waiting(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    silent_one = await webhook_harness.create_endpoint(receiver.url)
    receiver.may_respond.clear()
    async with run_endpoint() as quick, webhook_harness.run_worker(grace_seconds=0, webhook_endpoint_concurrency=2):
        for _ in range(6):
            await webhook_harness.send_test(silent_one)
        await receiver.wait_for_request(2)
        other = await webhook_harness.create_endpoint(quick.url)
        for _ in range(5):
            await webhook_harness.send_test(other)
        rows = await webhook_harness.wait_until_ended(other, 5)
        assert {row.status for row in rows} == {DeliveryState.DELIVERED}
        assert receiver.connections == 2


async def test_what_a_server_was_sending_when_it_ended_is_sent_by_another_when_its_lease_is_over(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    receiver.may_respond.clear()
    row = await webhook_harness.send_test(made)
    async with webhook_harness.run_worker(grace_seconds=0):
        await receiver.wait_for_request(1)
    [leased] = await webhook_harness.deliveries(made)
    assert leased.next_at is not None and row.next_at is not None
    assert (leased.attempts, leased.status) == (1, DeliveryState.PENDING)
    assert leased.next_at - row.next_at >= 30 * SECOND
    receiver.may_respond.set()
    async with webhook_harness.run_worker():
        webhook_harness.make_due(row)
        [done] = await webhook_harness.wait_until_ended(made)
    assert (done.attempts, done.status) == (2, DeliveryState.DELIVERED)


async def test_two_servers_send_each_delivery_once(webhook_harness: WebhookHarness, receiver: Receiver) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    async with webhook_harness.run_worker(), webhook_harness.run_worker():
        await webhook_harness.emit(*[TASK_STARTED] * 30)
        await webhook_harness.run_fanout()
        await webhook_harness.wait_until_ended(made, 30)
    ids = [request.headers["webhook-id"] for request in receiver.requests]
    assert len(ids) == len(set(ids)) == 30


async def test_a_report_of_an_attempt_that_was_replayed_meanwhile_changes_nothing(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    first_came = asyncio.Event()

    def answer(request: ReceivedRequest) -> bytes:
        first_came.set()
        return http_response(b"", "500 Oh") if len(receiver.requests) == 1 else http_response()

    receiver.response = answer
    receiver.may_respond.clear()
    row = await webhook_harness.send_test(made)
    async with webhook_harness.run_worker():
        await receiver.wait_for_request(1)
        await webhook_harness.replay(row)
        await receiver.wait_for_request(2)
        receiver.may_respond.set()
        [done] = await webhook_harness.wait_until_ended(made)
    assert (done.status, done.attempts, done.error) == (DeliveryState.DELIVERED, 1, None)


# -- endpoints


async def test_removing_an_endpoint_ends_its_deliveries_and_leaves_nothing_to_be_found(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    receiver.may_respond.clear()
    await webhook_harness.send_test(made)
    webhook_harness.runtime.database.execute("update webhook_deliveries set next_at = 9000000000000")
    await webhook_harness.lane.submit(Remove(zone_id=ZONE, id=made.id, caller=admin()))
    with pytest.raises(NotFound):
        await webhook_harness.read_endpoint(made)
    with pytest.raises(NotFound):
        await webhook_harness.lane.submit(Remove(zone_id=ZONE, id=made.id, caller=admin()))
    async with webhook_harness.run_worker():

        async def has_ended() -> bool:
            return (
                webhook_harness.runtime.database.count("webhook_deliveries", "queue is null and status = 'failed'") == 1
            )

        await eventually(has_ended, "what waited has ended")
    assert receiver.connections == 0


async def test_a_zone_that_ends_takes_its_endpoints_with_it_and_takes_no_new_ones(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    await webhook_harness.runtime.put_zone(OTHER)
    made = await webhook_harness.create_endpoint(receiver.url, zone_id=OTHER)
    await webhook_harness.runtime.stop_zone(OTHER, ends=True)
    assert webhook_harness.runtime.database.scalar("select enabled from webhook_endpoints where id = ?", made.id) == 0
    assert webhook_harness.runtime.database.scalar("select removed_at from webhook_endpoints where id = ?", made.id)
    with pytest.raises(Conflict) as refused:
        await webhook_harness.create_endpoint(receiver.url, zone_id=OTHER)
    assert refused.value.code == "zone_ended"


async def test_a_zone_has_only_so_many_endpoints_however_many_ask_at_once(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    asks = [
        Create(zone_id=ZONE, id=new_id(), caller=admin(), url=receiver.url, types=("*",))
        for _ in range(ENDPOINTS_MAX + 5)
    ]
    done = await asyncio.gather(*map(webhook_harness.lane.submit, asks), return_exceptions=True)
    refused = [one for one in done if isinstance(one, LimitReached)]
    assert (len(refused), refused[0].used, refused[0].limit) == (5, ENDPOINTS_MAX, ENDPOINTS_MAX)
    assert webhook_harness.runtime.database.count("webhook_endpoints") == ENDPOINTS_MAX


async def test_what_was_met_at_an_older_address_does_not_disable_the_new_one(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    await webhook_harness.lane.submit(Update(zone_id=ZONE, id=made.id, caller=admin(), url=f"{receiver.url}/new"))
    ask = Disable(zone_id=ZONE, id=made.id, reason=DisableReason.GONE, url=receiver.url)
    assert (await webhook_harness.lane.submit(ask)).endpoint.enabled
    assert not (
        await webhook_harness.lane.submit(Disable(zone_id=ZONE, id=made.id, reason=DisableReason.GONE))
    ).endpoint.enabled


async def test_another_address_forgets_that_the_old_one_failed(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    webhook_harness.runtime.database.execute("update webhook_endpoints set failing_since = 1")
    ask = Update(zone_id=ZONE, id=made.id, caller=admin(), url=f"{receiver.url}/new")
    changed = (await webhook_harness.lane.submit(ask)).endpoint
    assert (await webhook_harness.read_endpoint(made)).failing_since is changed.failing_since is None


async def test_what_is_over_is_forgotten_in_its_time_and_what_waits_is_not(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    made = await webhook_harness.create_endpoint(receiver.url)
    async with webhook_harness.run_worker():
        await webhook_harness.send_test(made)
        await webhook_harness.wait_until_ended(made)
    waits = await webhook_harness.send_test(made)
    forget = webhook_harness.runtime.cross_zone_engine.transact

    assert await forget(lambda tx: webhooks.delete_expired(tx, DAY, 10)) == 0
    # A window that ends tomorrow: everything is older.
    assert await forget(lambda tx: webhooks.delete_expired(tx, -DAY, 10)) == 1
    assert [row.id for row in await webhook_harness.deliveries(made)] == [waits.id]
    await webhook_harness.lane.submit(Remove(zone_id=ZONE, id=made.id, caller=admin()))
    async with webhook_harness.run_worker():

        async def is_over() -> bool:
            return webhook_harness.runtime.database.count("webhook_deliveries", "queue is not null") == 0

        await eventually(is_over, "nothing waits")
    await forget(lambda tx: webhooks.delete_expired(tx, -DAY, 10))
    await forget(lambda tx: webhooks.delete_expired(tx, -DAY, 10))
    assert webhook_harness.runtime.database.count("webhook_endpoints") == 0
