"""Webhooks over HTTP: routes, secrets, refusals, and deliveries of a real server."""

from __future__ import annotations

import json
from typing import Any

import httpx
from standardwebhooks import Webhook

from quarterdeck.core.caller import Role
from tests.support.engine_marks import ON_SQLITE
from tests.support.eventually import eventually
from tests.support.http_endpoint import HttpEndpoint, http_response
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, Servers
from tests.support.zone import FreshZone, assert_problem, create_zone, json_object, read_events

WEBHOOKS = "/api/v1/webhooks"
URL = "https://hooks.invalid/quarterdeck?token=canary"
"""Its host name does not resolve."""


def role_client(zone: FreshZone, role: Role = Role.ADMIN) -> httpx.AsyncClient:
    return zone.client(zone.token(role=role))


async def create_webhook(client: httpx.AsyncClient, **fields: object) -> dict[str, Any]:
    response = await client.post(WEBHOOKS, json={"url": URL, **fields})
    assert response.status_code == 201, response.text
    assert response.headers["cache-control"] == "no-store"
    return json_object(response)


async def test_webhook_is_created_read_changed_and_deleted_with_its_secret_shown_once(zone: FreshZone) -> None:
    async with role_client(zone) as client:
        created = await create_webhook(client, description="ops")
        assert created["secret"].startswith("whsec_")
        assert (created["workspaceId"], created["types"], created["enabled"]) == (
            zone.id,
            ["task.status_changed", "alert"],
            True,
        )
        path = f"{WEBHOOKS}/{created['id']}"
        without_secret = {name: value for name, value in created.items() if name != "secret"}
        assert json_object(await client.get(path)) == without_secret
        assert json_object(await client.get(WEBHOOKS)) == {"items": [without_secret], "nextCursor": None}
        changed = json_object(await client.patch(path, json={"types": ["*", "*"], "enabled": False}))
        assert (changed["types"], changed["enabled"], changed["disabledReason"]) == (["*"], False, "by_hand")
        assert changed["description"] == "ops", "omitted fields do not change"
        rotated = await client.post(f"{path}/rotate-secret")
        assert rotated.headers["cache-control"] == "no-store"
        assert json_object(rotated)["secret"] not in (created["secret"], None)
        assert (await client.delete(path)).status_code == 204
        assert_problem(await client.get(path), 404, "webhook_not_found")
        assert_problem(await client.delete(path), 404, "webhook_not_found")
    events = await read_events(zone, subject=created["id"])
    assert [(event["type"], event["from"], event["to"]) for event in events] == [
        ("webhook.created", None, "enabled"),
        ("webhook.changed", "enabled", "disabled"),
        ("webhook.secret_rotated", "disabled", "disabled"),
        ("webhook.removed", "disabled", "removed"),
    ]
    assert "canary" not in json.dumps(events) and "whsec_" not in json.dumps(events)
    log = zone.server.log.read_text()
    assert created["secret"] not in log and "canary" not in log


async def test_idempotency_key_creates_one_webhook(zone: FreshZone) -> None:
    async with role_client(zone) as client:
        body, key = {"url": URL, "types": ["alert"]}, {"Idempotency-Key": "k"}
        first = await client.post(WEBHOOKS, json=body, headers=key)
        repeated = await client.post(WEBHOOKS, json=body, headers=key)
        assert (first.status_code, repeated.status_code) == (201, 200)
        assert repeated.json() == first.json(), "a retry after a lost response returns the secret too"
        assert repeated.headers["cache-control"] == "no-store"
        conflicting = await client.post(WEBHOOKS, json={**body, "types": ["*"]}, headers=key)
        assert_problem(conflicting, 422, "idempotency_key_conflict")
        too_long = await client.post(WEBHOOKS, json=body, headers={"Idempotency-Key": "k" * 256})
        assert_problem(too_long, 400, "invalid_idempotency_key")
        path = f"{WEBHOOKS}/{first.json()['id']}"
        await client.post(f"{path}/rotate-secret")
        later = await client.post(WEBHOOKS, json=body, headers=key)
        assert (later.status_code, later.json().get("secret")) == (200, None), (
            "the replay does not return the rotated secret"
        )
        assert len(json_object(await client.get(WEBHOOKS))["items"]) == 1
        await client.delete(path)
        assert_problem(await client.post(WEBHOOKS, json=body, headers=key), 404, "webhook_not_found")
    types = [event["type"] for event in await read_events(zone)]
    assert types.count("webhook.created") == 1


INVALID: list[tuple[dict[str, object], str]] = [
    ({"url": "http://hooks.invalid/"}, "invalid_webhook_url"),
    ({"url": "https://169.254.169.254/latest"}, "invalid_webhook_url"),
    ({"url": "https://[::1]/"}, "invalid_webhook_url"),
    ({"url": "https://user:canary@hooks.invalid/"}, "invalid_webhook_url"),
    ({"url": "x" * 2_049}, "invalid_body"),
    ({"types": []}, "invalid_body"),
    ({"types": ["task.finished"]}, "invalid_webhook_type"),
    ({"types": ["*"] * 65}, "invalid_body"),
    ({"description": "d" * 501}, "invalid_body"),
]


@ON_SQLITE
async def test_invalid_webhook_is_refused_on_create_and_on_change(zone: FreshZone) -> None:
    async with role_client(zone) as client:
        created = await create_webhook(client)
        for fields, code in INVALID:
            problem = assert_problem(await client.post(WEBHOOKS, json={"url": URL, **fields}), 400, code)
            assert problem["field"] in fields
            assert_problem(await client.patch(f"{WEBHOOKS}/{created['id']}", json=fields), 400, code)
        assert len(json_object(await client.get(WEBHOOKS))["items"]) == 1


async def test_webhook_of_another_zone_is_404_on_every_route(zone: FreshZone) -> None:
    foreign = await create_zone(zone.server)
    async with role_client(foreign) as owner, role_client(zone, Role.OWNER) as client:
        created = await create_webhook(owner)
        delivery = json_object(await owner.post(f"{WEBHOOKS}/{created['id']}/test"))
        webhook_path = f"{WEBHOOKS}/{created['id']}"
        requests = [
            ("GET", webhook_path), ("PATCH", webhook_path), ("DELETE", webhook_path),
            ("POST", f"{webhook_path}/rotate-secret"), ("POST", f"{webhook_path}/test"),
            ("GET", f"{webhook_path}/deliveries"), ("POST", f"{webhook_path}/deliveries/{delivery['id']}/replay"),
        ]  # fmt: skip
        for method, path in requests:
            body: dict[str, object] | None = {} if method == "PATCH" else None
            assert_problem(await client.request(method, path, json=body), 404, "webhook_not_found")
        assert json_object(await client.get(WEBHOOKS))["items"] == []
        own = await create_webhook(client)
        replay_path = f"{WEBHOOKS}/{own['id']}/deliveries/{delivery['id']}/replay"
        assert_problem(await client.post(replay_path), 404, "delivery_not_found")


async def test_deliveries_are_listed_newest_first_in_pages_and_by_status(zone: FreshZone) -> None:
    async with role_client(zone) as client:
        created = await create_webhook(client)
        path = f"{WEBHOOKS}/{created['id']}/deliveries"
        ids = [json_object(await client.post(f"{WEBHOOKS}/{created['id']}/test"))["id"] for _ in range(3)]
        first = await client.get(path, params={"limit": 2})
        assert [item["id"] for item in json_object(first)["items"]] == ids[:0:-1]
        assert 'rel="next"' in first.headers["link"]
        rest = json_object(await client.get(path, params={"limit": 2, "cursor": json_object(first)["nextCursor"]}))
        assert ([item["id"] for item in rest["items"]], rest["nextCursor"]) == (ids[:1], None)
        [item] = rest["items"]
        assert (item["webhookId"], item["event"], item["status"]) == (created["id"], "webhook.test", "pending")
        assert item["body"]["workspaceId"] == zone.id
        assert json_object(await client.get(path, params={"status": "failed"}))["items"] == []
        assert_problem(await client.get(path, params={"status": "lost"}), 400, "invalid_query")
        assert_problem(await client.get(path, params={"cursor": "x"}), 400, "invalid_cursor")
        await client.patch(f"{WEBHOOKS}/{created['id']}", json={"enabled": False})
        assert_problem(await client.post(f"{WEBHOOKS}/{created['id']}/test"), 409, "webhook_disabled")
        assert_problem(await client.post(f"{path}/{ids[0]}/replay"), 409, "webhook_disabled")


# -- from a real server


async def test_task_event_is_delivered_and_can_be_replayed_after_a_restart(
    launch: Launch, servers: Servers, receiver: HttpEndpoint
) -> None:
    private_launch = launch.with_environment(QD_PUSH_PRIVATE_ADDRESSES="true")
    server = await servers.start(private_launch)
    zone = await create_zone(server)
    receiver.response = http_response(b"", "500 Oh")
    async with role_client(zone) as client:
        created = await create_webhook(client, url=receiver.url)
        task = await client.post("/api/v1/agent-tasks", json={"title": "t", "taskType": "development"})
        assert task.status_code == 201, task.text
        task_id = json_object(task)["id"]
        canceled = await client.post(f"/api/v1/agent-tasks/{task_id}/cancel", json={"reason": "test"})
        assert canceled.status_code == 200, canceled.text
        request = await receiver.wait_for_request(1)
    body = Webhook(created["secret"]).verify(request.body, request.headers)
    assert (body["event"], body["taskId"], body["previousStatus"], body["newStatus"]) == (
        "task.status_changed",
        task_id,
        "PENDING",
        "ABORTED",
    )
    assert (body["workspaceId"], body["reason"]) == (zone.id, "test")
    path = f"{WEBHOOKS}/{created['id']}/deliveries"

    async def delivery(current: FreshZone) -> dict[str, Any]:
        async with role_client(current) as client:
            [item] = json_object(await client.get(path))["items"]
            assert isinstance(item, dict)
            return item

    async def has_failed_once() -> bool:
        return bool((await delivery(zone))["answerStatus"] == 500)

    await eventually(has_failed_once, "the first attempt is recorded")
    before = await delivery(zone)
    await server.stop()
    receiver.response = http_response()
    restarted = FreshZone(await servers.start(private_launch), zone.id)
    pending = await delivery(restarted)
    assert pending["nextAt"] == before["nextAt"] or pending["attempts"] > 1, "the retry time survives the restart"
    async with role_client(restarted) as client:
        response = await client.post(f"{path}/{pending['id']}/replay")
        assert response.status_code == 202, response.text

    async def is_delivered() -> bool:
        return bool((await delivery(restarted))["status"] == "delivered")

    await eventually(is_delivered, "the delivery succeeded")
    assert {received.headers["webhook-id"] for received in receiver.requests} == {pending["id"]}
    database = DirectDatabase(private_launch.database_url)
    assert created["secret"] not in json.dumps(database.execute("select * from webhook_endpoints"))
