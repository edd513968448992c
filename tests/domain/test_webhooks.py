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
from tests.support.asking import ZONE, admin
from tests.support.endpoint import Endpoint as Receiver, Received, endpoint, http_answer
from tests.support.eventually import eventually
from tests.support.hooking import SECRETS, STARTED, Hooks, hooks_on
from tests.support.pushing import Names

COMPLETED = ("task.completed", "RUNNING", "COMPLETED")
OTHER = "other"


@pytest.fixture
async def hooks(engine_url: str) -> AsyncIterator[Hooks]:
    async with hooks_on(engine_url) as made:
        yield made


@pytest.fixture
async def there() -> AsyncIterator[Receiver]:
    async with endpoint() as listening:
        yield listening


# -- to the endpoint


async def test_a_change_of_a_tasks_status_arrives_in_the_published_form_signed_and_once(
    hooks: Hooks, there: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    made = await hooks.endpoint(there.url)
    async with hooks.delivering() as deliverer:
        await hooks.happen(COMPLETED, subject="task-123")
        await hooks.tell()
        [row] = await hooks.settled(made)
    [request] = there.requests
    secret = SECRETS(ZONE, made.id, 1)
    told = Webhook(secret).verify(request.body, request.headers)
    assert {name: told[name] for name in ("event", "taskId", "previousStatus", "newStatus", "workspaceId")} == {
        "event": "task.status_changed",
        "taskId": "task-123",
        "previousStatus": "RUNNING",
        "newStatus": "COMPLETED",
        "workspaceId": ZONE,
    }
    [event] = [event for event in await hooks.keel.log() if event.type == "task.completed"]
    assert request.headers["webhook-id"] == told["eventId"] == row.id == event.id
    assert request.headers["content-type"] == "application/json"
    assert (row.status, row.attempts, row.answer_status, row.next_at) == (DeliveryState.DELIVERED, 1, 200, None)
    assert (dict(deliverer.counts), len(deliverer)) == ({"delivered": 1}, 0)
    everything = caplog.text + "".join(event.data for event in await hooks.keel.log())
    assert secret not in everything and there.url not in everything


async def test_after_a_rotation_both_secrets_sign_for_a_day_and_then_only_the_new_one(
    hooks: Hooks, there: Receiver
) -> None:
    made = await hooks.endpoint(there.url)
    await hooks.lane.submit(RotateSecret(zone_id=ZONE, id=made.id, caller=admin()))
    async with hooks.delivering():
        await hooks.trial(made)
        first = await there.received(1)
        for number in (1, 2):
            Webhook(SECRETS(ZONE, made.id, number)).verify(first.body, first.headers)
        hooks.keel.side.run("update webhook_endpoints set rotated_at = rotated_at - ?", DAY)
        await hooks.trial(made)
        second = await there.received(2)
    assert len(second.headers["webhook-signature"].split(" ")) == 1
    Webhook(SECRETS(ZONE, made.id, 2)).verify(second.body, second.headers)


async def test_a_failure_is_tried_again_at_a_moment_that_outlives_the_deliverer(hooks: Hooks, there: Receiver) -> None:
    made = await hooks.endpoint(there.url)
    there.answer = http_answer(b"oh", "500 Oh")
    await hooks.happen(STARTED)
    await hooks.tell()
    async with hooks.delivering():
        row = await hooks.failed_once(made)
    assert row.next_at is not None and row.updated_at + 5 * SECOND <= row.next_at <= row.updated_at + 5_500
    assert (row.status, row.answer_status, row.error) == (DeliveryState.PENDING, 500, "it answered 500")
    there.answer = http_answer()
    async with hooks.delivering():
        # Another process, to which the moment is all there is.
        await hooks.trial(made)
        await there.received(2)
        assert (await hooks.deliveries(made))[0].next_at == row.next_at
        hooks.due(row)
        delivered, _ = await hooks.settled(made, 2)
    assert (delivered.status, delivered.attempts) == (DeliveryState.DELIVERED, 2)
    ids = [request.headers["webhook-id"] for request in there.requests]
    assert ids == [row.id, ids[1], row.id]
    assert (await hooks.now(made)).failing_since is None


async def test_what_failed_as_often_as_it_may_has_failed_and_is_sent_again_by_hand_with_the_same_id(
    hooks: Hooks, there: Receiver
) -> None:
    made = await hooks.endpoint(there.url)
    there.answer = http_answer(b"", "503 Busy", "Retry-After: 1")
    row = await hooks.trial(made)
    hooks.keel.side.run("update webhook_deliveries set attempts = 9")
    async with hooks.delivering():
        [dead] = await hooks.settled(made)
        assert (dead.status, dead.attempts, dead.next_at) == (DeliveryState.FAILED, 10, None)
        there.answer = http_answer()
        await hooks.replay(dead)
        await there.received(2)
        [again] = await hooks.settled(made)
    assert (again.id, again.status, again.attempts) == (row.id, DeliveryState.DELIVERED, 1)
    assert [request.headers["webhook-id"] for request in there.requests] == [row.id] * 2
    assert [event.type for event in await hooks.keel.log() if event.subject == made.id] == [
        "webhook.created",
        "webhook.tested",
        "webhook.replayed",
    ]


async def test_a_pause_that_an_endpoint_asks_for_is_kept_within_a_bound(hooks: Hooks, there: Receiver) -> None:
    made = await hooks.endpoint(there.url)
    there.answer = http_answer(b"", "429 Slowly", "Retry-After: 3600")
    await hooks.trial(made)
    async with hooks.delivering():
        row = await hooks.failed_once(made)
    assert row.next_at == row.updated_at + 3_600 * SECOND


async def test_410_disables_an_endpoint_and_what_waited_for_it_has_failed(hooks: Hooks, there: Receiver) -> None:
    made = await hooks.endpoint(there.url)
    there.answer = http_answer(b"", "410 Gone")
    await hooks.happen(STARTED)
    await hooks.tell()
    # One that waits for later, and is never asked for again.
    await hooks.happen(COMPLETED)
    await hooks.tell()
    hooks.keel.side.run(
        "update webhook_deliveries set next_at = 9000000000000 where pos = (select max(pos) from webhook_deliveries)"
    )
    async with hooks.delivering():
        first, second = await hooks.settled(made, 2)
    assert (first.status, first.answer_status) == (DeliveryState.FAILED, 410)
    assert (second.status, second.attempts) == (DeliveryState.FAILED, 0)
    assert ((await hooks.now(made)).disabled_reason, there.connections) == ("gone", 1)
    [event] = [event for event in await hooks.keel.log() if event.type == "webhook.disabled"]
    assert json.loads(event.data) == {"reason": "gone", "host": "127.0.0.1"}
    with pytest.raises(Conflict, match="gone"):
        await hooks.replay(second)
    enabled = await hooks.enable(made)
    assert (enabled.enabled, enabled.disabled_reason) == (1, None)
    there.answer = http_answer()
    async with hooks.delivering():
        await hooks.replay(second)
        await there.received(2)


async def test_an_endpoint_that_fails_for_days_is_disabled_and_one_that_recovers_is_not(
    hooks: Hooks, there: Receiver
) -> None:
    made = await hooks.endpoint(there.url)
    there.answer = http_answer(b"", "500 Oh")
    await hooks.trial(made)
    async with hooks.delivering():
        row = await hooks.failed_once(made)
        hooks.keel.side.run("update webhook_endpoints set failing_since = failing_since - ?", 5 * DAY)
        hooks.due(row)

        async def is_disabled() -> bool:
            return not (await hooks.now(made)).enabled

        await eventually(is_disabled, "the endpoint is disabled")
    assert (await hooks.now(made)).disabled_reason == DisableReason.FAILING


async def test_a_redirect_is_not_followed_and_an_address_that_must_not_be_called_is_not(
    hooks: Hooks, there: Receiver
) -> None:
    moved = await hooks.endpoint(there.url)
    async with endpoint() as elsewhere:
        there.answer = http_answer(b"", "307 Elsewhere", f"Location: {elsewhere.url}")
        await hooks.trial(moved)
        async with hooks.delivering():
            row = await hooks.failed_once(moved)
        assert (elsewhere.connections, row.error) == (0, "it answered 307, and redirects are not followed")
        names = Names(["127.0.0.1"])
        rebound = await hooks.endpoint(f"http://public.example:{elsewhere.port}/")
        await hooks.trial(rebound)
        async with hooks.delivering(OutboundClient(PUBLIC_ONLY, resolve=names)) as deliverer:
            row = await hooks.failed_once(rebound)
        assert (elsewhere.connections, row.error) == (0, "an address of its host is loopback")
        assert dict(deliverer.counts) == {"refused": 1}


async def test_an_endpoint_that_stays_silent_keeps_nobody_else_waiting(hooks: Hooks, there: Receiver) -> None:
    silent_one = await hooks.endpoint(there.url)
    there.open.clear()
    async with endpoint() as quick, hooks.delivering(grace_seconds=0, webhook_endpoint_concurrency=2):
        for _ in range(6):
            await hooks.trial(silent_one)
        await there.received(2)
        other = await hooks.endpoint(quick.url)
        for _ in range(5):
            await hooks.trial(other)
        rows = await hooks.settled(other, 5)
        assert {row.status for row in rows} == {DeliveryState.DELIVERED}
        assert there.connections == 2


async def test_what_a_server_was_sending_when_it_ended_is_sent_by_another_when_its_lease_is_over(
    hooks: Hooks, there: Receiver
) -> None:
    made = await hooks.endpoint(there.url)
    there.open.clear()
    row = await hooks.trial(made)
    async with hooks.delivering(grace_seconds=0):
        await there.received(1)
    [leased] = await hooks.deliveries(made)
    assert leased.next_at is not None and row.next_at is not None
    assert (leased.attempts, leased.status) == (1, DeliveryState.PENDING)
    assert leased.next_at - row.next_at >= 30 * SECOND
    there.open.set()
    async with hooks.delivering():
        hooks.due(row)
        [done] = await hooks.settled(made)
    assert (done.attempts, done.status) == (2, DeliveryState.DELIVERED)


async def test_two_servers_send_each_delivery_once(hooks: Hooks, there: Receiver) -> None:
    made = await hooks.endpoint(there.url)
    async with hooks.delivering(), hooks.delivering():
        await hooks.happen(*[STARTED] * 30)
        await hooks.tell()
        await hooks.settled(made, 30)
    ids = [request.headers["webhook-id"] for request in there.requests]
    assert len(ids) == len(set(ids)) == 30


async def test_a_report_of_an_attempt_that_was_replayed_meanwhile_changes_nothing(
    hooks: Hooks, there: Receiver
) -> None:
    made = await hooks.endpoint(there.url)
    first_came = asyncio.Event()

    def answer(request: Received) -> bytes:
        first_came.set()
        return http_answer(b"", "500 Oh") if len(there.requests) == 1 else http_answer()

    there.answer = answer
    there.open.clear()
    row = await hooks.trial(made)
    async with hooks.delivering():
        await there.received(1)
        await hooks.replay(row)
        await there.received(2)
        there.open.set()
        [done] = await hooks.settled(made)
    assert (done.status, done.attempts, done.error) == (DeliveryState.DELIVERED, 1, None)


# -- endpoints


async def test_removing_an_endpoint_ends_its_deliveries_and_leaves_nothing_to_be_found(
    hooks: Hooks, there: Receiver
) -> None:
    made = await hooks.endpoint(there.url)
    there.open.clear()
    await hooks.trial(made)
    hooks.keel.side.run("update webhook_deliveries set next_at = 9000000000000")
    await hooks.lane.submit(Remove(zone_id=ZONE, id=made.id, caller=admin()))
    with pytest.raises(NotFound):
        await hooks.now(made)
    with pytest.raises(NotFound):
        await hooks.lane.submit(Remove(zone_id=ZONE, id=made.id, caller=admin()))
    async with hooks.delivering():

        async def has_ended() -> bool:
            return hooks.keel.side.count("webhook_deliveries", "queue is null and status = 'failed'") == 1

        await eventually(has_ended, "what waited has ended")
    assert there.connections == 0


async def test_a_zone_that_ends_takes_its_endpoints_with_it_and_takes_no_new_ones(
    hooks: Hooks, there: Receiver
) -> None:
    await hooks.keel.zone(OTHER)
    made = await hooks.endpoint(there.url, zone_id=OTHER)
    await hooks.keel.stop(OTHER, ends=True)
    assert hooks.keel.side.one("select enabled from webhook_endpoints where id = ?", made.id) == 0
    assert hooks.keel.side.one("select removed_at from webhook_endpoints where id = ?", made.id)
    with pytest.raises(Conflict) as refused:
        await hooks.endpoint(there.url, zone_id=OTHER)
    assert refused.value.code == "zone_ended"


async def test_a_zone_has_only_so_many_endpoints_however_many_ask_at_once(hooks: Hooks, there: Receiver) -> None:
    asks = [
        Create(zone_id=ZONE, id=new_id(), caller=admin(), url=there.url, types=("*",)) for _ in range(ENDPOINTS_MAX + 5)
    ]
    done = await asyncio.gather(*map(hooks.lane.submit, asks), return_exceptions=True)
    refused = [one for one in done if isinstance(one, LimitReached)]
    assert (len(refused), refused[0].used, refused[0].limit) == (5, ENDPOINTS_MAX, ENDPOINTS_MAX)
    assert hooks.keel.side.count("webhook_endpoints") == ENDPOINTS_MAX


async def test_what_was_met_at_an_older_address_does_not_disable_the_new_one(hooks: Hooks, there: Receiver) -> None:
    made = await hooks.endpoint(there.url)
    await hooks.lane.submit(Update(zone_id=ZONE, id=made.id, caller=admin(), url=f"{there.url}/new"))
    ask = Disable(zone_id=ZONE, id=made.id, reason=DisableReason.GONE, url=there.url)
    assert (await hooks.lane.submit(ask)).endpoint.enabled
    assert not (await hooks.lane.submit(Disable(zone_id=ZONE, id=made.id, reason=DisableReason.GONE))).endpoint.enabled


async def test_another_address_forgets_that_the_old_one_failed(hooks: Hooks, there: Receiver) -> None:
    made = await hooks.endpoint(there.url)
    hooks.keel.side.run("update webhook_endpoints set failing_since = 1")
    ask = Update(zone_id=ZONE, id=made.id, caller=admin(), url=f"{there.url}/new")
    changed = (await hooks.lane.submit(ask)).endpoint
    assert (await hooks.now(made)).failing_since is changed.failing_since is None


async def test_what_is_over_is_forgotten_in_its_time_and_what_waits_is_not(hooks: Hooks, there: Receiver) -> None:
    made = await hooks.endpoint(there.url)
    async with hooks.delivering():
        await hooks.trial(made)
        await hooks.settled(made)
    waits = await hooks.trial(made)
    forget = hooks.keel.everywhere.transact

    assert await forget(lambda tx: webhooks.delete_expired(tx, DAY, 10)) == 0
    # A window that ends tomorrow: everything is older.
    assert await forget(lambda tx: webhooks.delete_expired(tx, -DAY, 10)) == 1
    assert [row.id for row in await hooks.deliveries(made)] == [waits.id]
    await hooks.lane.submit(Remove(zone_id=ZONE, id=made.id, caller=admin()))
    async with hooks.delivering():

        async def is_over() -> bool:
            return hooks.keel.side.count("webhook_deliveries", "queue is not null") == 0

        await eventually(is_over, "nothing waits")
    await forget(lambda tx: webhooks.delete_expired(tx, -DAY, 10))
    await forget(lambda tx: webhooks.delete_expired(tx, -DAY, 10))
    assert hooks.keel.side.count("webhook_endpoints") == 0
