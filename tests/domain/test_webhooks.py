"""Webhook deliveries over real HTTP, and the lifecycle of endpoints, on both engines."""

from __future__ import annotations

import asyncio
import json
import logging

import msgspec
import pytest
from standardwebhooks import Webhook

from quarterdeck.core.clock import DAY, SECOND
from quarterdeck.core.errors import Conflict, LimitReached, NotFound
from quarterdeck.core.ids import new_id
from quarterdeck.domain.webhooks.model import (
    ENDPOINTS_MAX,
    ClaimDeliveries,
    Create,
    DeliveryState,
    Disable,
    DisableReason,
    Remove,
    ReportAttempt,
    RotateSecret,
    Update,
    WebhookSettings,
)
from quarterdeck.domain.webhooks.sweeps import sweeps
from quarterdeck.engine.outbound_http import PUBLIC_ONLY, OutboundClient
from tests.support.builders import ZONE, admin
from tests.support.eventually import eventually
from tests.support.http_endpoint import HttpEndpoint as Receiver, ReceivedRequest, http_response, run_endpoint
from tests.support.push import ScriptedResolver
from tests.support.webhooks import SECRET_DERIVER, TASK_STARTED, UNREACHABLE_URL, WebhookHarness

COMPLETED = ("task.completed", "RUNNING", "COMPLETED")
OTHER_ZONE = "other"


# -- deliveries


async def test_task_status_change_is_delivered_once_signed_and_in_the_documented_format(
    webhook_harness: WebhookHarness, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    async with webhook_harness.run_worker() as worker:
        await webhook_harness.emit(COMPLETED, subject="task-123")
        await webhook_harness.run_fanout()
        [row] = await webhook_harness.wait_until_ended(endpoint)
    [request] = receiver.requests
    secret = SECRET_DERIVER(ZONE, endpoint.id, 1)
    payload = Webhook(secret).verify(request.body, request.headers)
    assert {name: payload[name] for name in ("event", "taskId", "previousStatus", "newStatus", "workspaceId")} == {
        "event": "task.status_changed",
        "taskId": "task-123",
        "previousStatus": "RUNNING",
        "newStatus": "COMPLETED",
        "workspaceId": ZONE,
    }
    [event] = [event for event in await webhook_harness.runtime.read_log() if event.type == "task.completed"]
    assert request.headers["webhook-id"] == payload["eventId"] == row.id == event.id
    assert request.headers["content-type"] == "application/json"
    assert (row.status, row.attempts, row.answer_status, row.next_at) == (DeliveryState.DELIVERED, 1, 200, None)
    assert (dict(worker.counts), len(worker)) == ({"delivered": 1}, 0)
    texts = caplog.text + "".join(event.data for event in await webhook_harness.runtime.read_log())
    assert secret not in texts and receiver.url not in texts


async def test_both_secrets_sign_for_one_day_after_a_rotation(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    await webhook_harness.lane.submit(RotateSecret(zone_id=ZONE, id=endpoint.id, caller=admin()))
    async with webhook_harness.run_worker():
        await webhook_harness.send_test(endpoint)
        first = await receiver.wait_for_request(1)
        for number in (1, 2):
            Webhook(SECRET_DERIVER(ZONE, endpoint.id, number)).verify(first.body, first.headers)
        webhook_harness.runtime.database.execute("update webhook_endpoints set rotated_at = rotated_at - ?", DAY)
        await webhook_harness.send_test(endpoint)
        second = await receiver.wait_for_request(2)
    assert len(second.headers["webhook-signature"].split(" ")) == 1
    Webhook(SECRET_DERIVER(ZONE, endpoint.id, 2)).verify(second.body, second.headers)


async def test_retry_time_of_a_failed_delivery_survives_a_restart(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    receiver.response = http_response(b"oh", "500 Oh")
    await webhook_harness.emit(TASK_STARTED)
    await webhook_harness.run_fanout()
    async with webhook_harness.run_worker():
        row = await webhook_harness.wait_until_failed(endpoint)
    assert row.next_at is not None and row.updated_at + 5 * SECOND <= row.next_at <= row.updated_at + 5_500
    assert (row.status, row.answer_status, row.error) == (DeliveryState.PENDING, 500, "the endpoint answered 500")
    receiver.response = http_response()
    async with webhook_harness.run_worker():
        # Another process, which knows only the stored time of the retry.
        await webhook_harness.send_test(endpoint)
        await receiver.wait_for_request(2)
        assert (await webhook_harness.deliveries(endpoint))[0].next_at == row.next_at
        webhook_harness.make_due(row)
        delivered, _ = await webhook_harness.wait_until_ended(endpoint, 2)
    assert (delivered.status, delivered.attempts) == (DeliveryState.DELIVERED, 2)
    ids = [request.headers["webhook-id"] for request in receiver.requests]
    assert ids == [row.id, ids[1], row.id]
    assert (await webhook_harness.read_endpoint(endpoint)).failing_since is None


async def test_delivery_fails_after_max_attempts_and_a_replay_keeps_its_id(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    receiver.response = http_response(b"", "503 Busy", "Retry-After: 1")
    row = await webhook_harness.send_test(endpoint)
    webhook_harness.runtime.database.execute("update webhook_deliveries set attempts = 9")
    async with webhook_harness.run_worker():
        [dead] = await webhook_harness.wait_until_ended(endpoint)
        assert (dead.status, dead.attempts, dead.next_at) == (DeliveryState.FAILED, 10, None)
        receiver.response = http_response()
        await webhook_harness.replay(dead)
        await receiver.wait_for_request(2)
        [replayed] = await webhook_harness.wait_until_ended(endpoint)
    assert (replayed.id, replayed.status, replayed.attempts) == (row.id, DeliveryState.DELIVERED, 1)
    assert [request.headers["webhook-id"] for request in receiver.requests] == [row.id] * 2
    assert [event.type for event in await webhook_harness.runtime.read_log() if event.subject == endpoint.id] == [
        "webhook.created",
        "webhook.tested",
        "webhook.replayed",
    ]


async def test_retry_after_header_is_respected(webhook_harness: WebhookHarness, receiver: Receiver) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    receiver.response = http_response(b"", "429 Slowly", "Retry-After: 3600")
    await webhook_harness.send_test(endpoint)
    async with webhook_harness.run_worker():
        row = await webhook_harness.wait_until_failed(endpoint)
    assert row.next_at == row.updated_at + 3_600 * SECOND


async def test_410_disables_the_endpoint_and_fails_its_pending_deliveries(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    receiver.response = http_response(b"", "410 Gone")
    await webhook_harness.emit(TASK_STARTED)
    await webhook_harness.run_fanout()
    # A delivery that is due later, and is never sent.
    await webhook_harness.emit(COMPLETED)
    await webhook_harness.run_fanout()
    webhook_harness.runtime.database.execute(
        "update webhook_deliveries set next_at = 9000000000000 where pos = (select max(pos) from webhook_deliveries)"
    )
    async with webhook_harness.run_worker():
        first, second = await webhook_harness.wait_until_ended(endpoint, 2)
    assert (first.status, first.answer_status) == (DeliveryState.FAILED, 410)
    assert (second.status, second.attempts) == (DeliveryState.FAILED, 0)
    assert ((await webhook_harness.read_endpoint(endpoint)).disabled_reason, receiver.connections) == ("gone", 1)
    [event] = [event for event in await webhook_harness.runtime.read_log() if event.type == "webhook.disabled"]
    assert json.loads(event.data) == {"reason": "gone", "host": "127.0.0.1"}
    with pytest.raises(Conflict, match="gone"):
        await webhook_harness.replay(second)
    enabled = await webhook_harness.set_enabled(endpoint)
    assert (enabled.enabled, enabled.disabled_reason) == (1, None)
    receiver.response = http_response()
    async with webhook_harness.run_worker():
        await webhook_harness.replay(second)
        await receiver.wait_for_request(2)


async def test_endpoint_that_fails_for_five_days_is_disabled(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    receiver.response = http_response(b"", "500 Oh")
    await webhook_harness.send_test(endpoint)
    async with webhook_harness.run_worker():
        row = await webhook_harness.wait_until_failed(endpoint)
        webhook_harness.runtime.database.execute(
            "update webhook_endpoints set failing_since = failing_since - ?", 5 * DAY
        )
        webhook_harness.make_due(row)

        async def is_disabled() -> bool:
            return not (await webhook_harness.read_endpoint(endpoint)).enabled

        await eventually(is_disabled, "the endpoint is disabled")
    assert (await webhook_harness.read_endpoint(endpoint)).disabled_reason == DisableReason.FAILING


async def test_redirects_are_not_followed_and_private_addresses_are_refused(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    redirected = await webhook_harness.create_endpoint(receiver.url)
    async with run_endpoint() as other_receiver:
        receiver.response = http_response(b"", "307 Temporary Redirect", f"Location: {other_receiver.url}")
        await webhook_harness.send_test(redirected)
        async with webhook_harness.run_worker():
            row = await webhook_harness.wait_until_failed(redirected)
        assert (other_receiver.connections, row.error) == (
            0,
            "the endpoint answered 307, and redirects are not followed",
        )
        resolver = ScriptedResolver(["127.0.0.1"])
        rebound = await webhook_harness.create_endpoint(f"http://public.example:{other_receiver.port}/")
        await webhook_harness.send_test(rebound)
        async with webhook_harness.run_worker(OutboundClient(PUBLIC_ONLY, resolve=resolver)) as worker:
            row = await webhook_harness.wait_until_failed(rebound)
        assert (other_receiver.connections, row.error) == (0, "an address of its host is loopback")
        assert dict(worker.counts) == {"refused": 1}


async def test_silent_endpoint_does_not_delay_other_endpoints(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    silent = await webhook_harness.create_endpoint(receiver.url)
    receiver.may_respond.clear()
    async with (
        run_endpoint() as fast_receiver,
        webhook_harness.run_worker(grace_seconds=0, webhook_endpoint_concurrency=2),
    ):
        for _ in range(6):
            await webhook_harness.send_test(silent)
        await receiver.wait_for_request(2)
        other = await webhook_harness.create_endpoint(fast_receiver.url)
        for _ in range(5):
            await webhook_harness.send_test(other)
        rows = await webhook_harness.wait_until_ended(other, 5)
        assert {row.status for row in rows} == {DeliveryState.DELIVERED}
        assert receiver.connections == 2


async def test_late_report_of_a_replaced_attempt_does_not_change_the_endpoint(webhook_harness: WebhookHarness) -> None:
    endpoint = await webhook_harness.create_endpoint(UNREACHABLE_URL)
    await webhook_harness.emit(COMPLETED)
    await webhook_harness.run_fanout()
    claim = ClaimDeliveries(endpoint.zone_id, endpoint.id, 1, 30 * SECOND)
    [claimed] = (await webhook_harness.claim_lane.submit(claim)).deliveries
    assert claimed.next_at is not None
    late_report = ReportAttempt(
        zone_id=endpoint.zone_id,
        endpoint_id=endpoint.id,
        id=claimed.id,
        lease_expires_at=claimed.next_at - 1,
        attempt=1,
        error="no response",
    )
    result = await webhook_harness.report_lane.submit(late_report)
    assert not result.is_current
    assert (await webhook_harness.read_endpoint(endpoint)).failing_since is None
    report = msgspec.structs.replace(late_report, lease_expires_at=claimed.next_at)
    await webhook_harness.report_lane.submit(report)
    assert (await webhook_harness.read_endpoint(endpoint)).failing_since is not None


async def test_delivery_of_a_stopped_server_is_sent_again_after_its_lease_expires(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    receiver.may_respond.clear()
    row = await webhook_harness.send_test(endpoint)
    async with webhook_harness.run_worker(grace_seconds=0):
        await receiver.wait_for_request(1)
    [leased] = await webhook_harness.deliveries(endpoint)
    assert leased.next_at is not None and row.next_at is not None
    assert (leased.attempts, leased.status) == (1, DeliveryState.PENDING)
    assert leased.next_at - row.next_at >= 30 * SECOND
    receiver.may_respond.set()
    async with webhook_harness.run_worker():
        webhook_harness.make_due(row)
        [done] = await webhook_harness.wait_until_ended(endpoint)
    assert (done.attempts, done.status) == (2, DeliveryState.DELIVERED)


async def test_two_workers_send_each_delivery_once(webhook_harness: WebhookHarness, receiver: Receiver) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    async with webhook_harness.run_worker(), webhook_harness.run_worker():
        await webhook_harness.emit(*[TASK_STARTED] * 30)
        await webhook_harness.run_fanout()
        await webhook_harness.wait_until_ended(endpoint, 30)
    ids = [request.headers["webhook-id"] for request in receiver.requests]
    assert len(ids) == len(set(ids)) == 30


async def test_late_result_of_a_replayed_attempt_changes_nothing(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    has_request = asyncio.Event()

    def respond(request: ReceivedRequest) -> bytes:
        has_request.set()
        return http_response(b"", "500 Oh") if len(receiver.requests) == 1 else http_response()

    receiver.response = respond
    receiver.may_respond.clear()
    row = await webhook_harness.send_test(endpoint)
    async with webhook_harness.run_worker():
        await receiver.wait_for_request(1)
        await webhook_harness.replay(row)
        await receiver.wait_for_request(2)
        receiver.may_respond.set()
        [done] = await webhook_harness.wait_until_ended(endpoint)
    assert (done.status, done.attempts, done.error) == (DeliveryState.DELIVERED, 1, None)


# -- endpoints


async def test_removed_endpoint_is_not_found_and_its_deliveries_fail(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    receiver.may_respond.clear()
    await webhook_harness.send_test(endpoint)
    webhook_harness.runtime.database.execute("update webhook_deliveries set next_at = 9000000000000")
    await webhook_harness.lane.submit(Remove(zone_id=ZONE, id=endpoint.id, caller=admin()))
    with pytest.raises(NotFound):
        await webhook_harness.read_endpoint(endpoint)
    with pytest.raises(NotFound):
        await webhook_harness.lane.submit(Remove(zone_id=ZONE, id=endpoint.id, caller=admin()))
    async with webhook_harness.run_worker():

        async def has_ended() -> bool:
            return (
                webhook_harness.runtime.database.count("webhook_deliveries", "queue is null and status = 'failed'") == 1
            )

        await eventually(has_ended, "the pending delivery has ended")
    assert receiver.connections == 0


async def test_ended_zone_removes_its_endpoints_and_refuses_new_ones(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    await webhook_harness.runtime.put_zone(OTHER_ZONE)
    endpoint = await webhook_harness.create_endpoint(receiver.url, zone_id=OTHER_ZONE)
    await webhook_harness.runtime.stop_zone(OTHER_ZONE, ends=True)
    assert (
        webhook_harness.runtime.database.scalar("select enabled from webhook_endpoints where id = ?", endpoint.id) == 0
    )
    assert webhook_harness.runtime.database.scalar("select removed_at from webhook_endpoints where id = ?", endpoint.id)
    with pytest.raises(Conflict) as error:
        await webhook_harness.create_endpoint(receiver.url, zone_id=OTHER_ZONE)
    assert error.value.code == "zone_ended"


async def test_concurrent_creates_respect_the_endpoint_limit(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    commands = [
        Create(zone_id=ZONE, id=new_id(), caller=admin(), url=receiver.url, types=("*",))
        for _ in range(ENDPOINTS_MAX + 5)
    ]
    results = await asyncio.gather(*map(webhook_harness.lane.submit, commands), return_exceptions=True)
    refusals = [result for result in results if isinstance(result, LimitReached)]
    assert (len(refusals), refusals[0].used, refusals[0].limit) == (5, ENDPOINTS_MAX, ENDPOINTS_MAX)
    assert webhook_harness.runtime.database.count("webhook_endpoints") == ENDPOINTS_MAX


async def test_failure_of_an_old_url_does_not_disable_the_new_url(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    await webhook_harness.lane.submit(Update(zone_id=ZONE, id=endpoint.id, caller=admin(), url=f"{receiver.url}/new"))
    command = Disable(zone_id=ZONE, id=endpoint.id, reason=DisableReason.GONE, url=receiver.url)
    assert (await webhook_harness.lane.submit(command)).endpoint.enabled
    assert not (
        await webhook_harness.lane.submit(Disable(zone_id=ZONE, id=endpoint.id, reason=DisableReason.GONE))
    ).endpoint.enabled


async def test_new_url_resets_failing_since(webhook_harness: WebhookHarness, receiver: Receiver) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    webhook_harness.runtime.database.execute("update webhook_endpoints set failing_since = 1")
    command = Update(zone_id=ZONE, id=endpoint.id, caller=admin(), url=f"{receiver.url}/new")
    changed = (await webhook_harness.lane.submit(command)).endpoint
    assert (await webhook_harness.read_endpoint(endpoint)).failing_since is changed.failing_since is None


async def test_retention_deletes_ended_deliveries_and_keeps_pending_ones(
    webhook_harness: WebhookHarness, receiver: Receiver
) -> None:
    endpoint = await webhook_harness.create_endpoint(receiver.url)
    async with webhook_harness.run_worker():
        await webhook_harness.send_test(endpoint)
        await webhook_harness.wait_until_ended(endpoint)
    pending = await webhook_harness.send_test(endpoint)
    engine = webhook_harness.runtime.cross_zone_engine
    [sweep] = sweeps(engine, WebhookSettings(webhook_retention_days=1), 1_000)
    # A negative retention: every delivery is older.
    [sweep_of_all] = sweeps(engine, WebhookSettings(webhook_retention_days=-1), 1_000)

    assert await sweep.run_once(10) == 0
    assert await sweep_of_all.run_once(10) == 1
    assert [row.id for row in await webhook_harness.deliveries(endpoint)] == [pending.id]
    await webhook_harness.lane.submit(Remove(zone_id=ZONE, id=endpoint.id, caller=admin()))
    async with webhook_harness.run_worker():

        async def is_empty() -> bool:
            return webhook_harness.runtime.database.count("webhook_deliveries", "queue is not null") == 0

        await eventually(is_empty, "no delivery is pending")
    await sweep_of_all.run_once(10)
    await sweep_of_all.run_once(10)
    assert webhook_harness.runtime.database.count("webhook_endpoints") == 0
