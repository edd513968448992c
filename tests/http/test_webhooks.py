"""Webhooks over HTTP: who may name them, what is shown once, what is refused, and what arrives from a real server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from standardwebhooks import Webhook

from quarterdeck.core.caller import Role
from tests.support.engine_marks import ON_SQLITE
from tests.support.eventually import eventually
from tests.support.http_endpoint import HttpEndpoint, http_response, run_endpoint
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, Servers
from tests.support.zone import FreshZone, assert_problem, create_zone, json_object, read_events

WEBHOOKS = "/api/v1/webhooks"
URL = "https://hooks.invalid/quarterdeck?token=canary"
"""Of a name that no resolver knows."""


def ruler(zone: FreshZone, role: Role = Role.ADMIN) -> httpx.AsyncClient:
    return zone.client(zone.token(role=role))


async def add(client: httpx.AsyncClient, **asked: object) -> dict[str, Any]:
    answer = await client.post(WEBHOOKS, json={"url": URL, **asked})
    assert answer.status_code == 201, answer.text
    assert answer.headers["cache-control"] == "no-store"
    return json_object(answer)


async def test_a_webhook_is_made_shown_changed_and_removed_and_its_secret_is_shown_once(zone: FreshZone) -> None:
    async with ruler(zone) as client:
        made = await add(client, description="ops")
        assert made["secret"].startswith("whsec_")
        assert (made["workspaceId"], made["types"], made["enabled"]) == (
            zone.id,
            ["task.status_changed", "alert"],
            True,
        )
        one = f"{WEBHOOKS}/{made['id']}"
        plain = {name: value for name, value in made.items() if name != "secret"}
        assert json_object(await client.get(one)) == plain
        assert json_object(await client.get(WEBHOOKS)) == {"items": [plain], "nextCursor": None}
        changed = json_object(await client.patch(one, json={"types": ["*", "*"], "enabled": False}))
        assert (changed["types"], changed["enabled"], changed["disabledReason"]) == (["*"], False, "by_hand")
        assert changed["description"] == "ops", "what is not said stays"
        rotated = await client.post(f"{one}/rotate-secret")
        assert rotated.headers["cache-control"] == "no-store"
        assert json_object(rotated)["secret"] not in (made["secret"], None)
        assert (await client.delete(one)).status_code == 204
        assert_problem(await client.get(one), 404, "webhook_not_found")
        assert_problem(await client.delete(one), 404, "webhook_not_found")
    told = await read_events(zone, subject=made["id"])
    assert [(event["type"], event["from"], event["to"]) for event in told] == [
        ("webhook.created", None, "enabled"),
        ("webhook.changed", "enabled", "disabled"),
        ("webhook.secret_rotated", "disabled", "disabled"),
        ("webhook.removed", "disabled", "removed"),
    ]
    assert "canary" not in json.dumps(told) and "whsec_" not in json.dumps(told)
    log = zone.server.log.read_text()
    assert made["secret"] not in log and "canary" not in log


async def test_a_webhook_that_is_made_with_a_key_is_made_once(zone: FreshZone) -> None:
    async with ruler(zone) as client:
        asked, key = {"url": URL, "types": ["alert"]}, {"Idempotency-Key": "k"}
        first = await client.post(WEBHOOKS, json=asked, headers=key)
        again = await client.post(WEBHOOKS, json=asked, headers=key)
        assert (first.status_code, again.status_code) == (201, 200)
        assert again.json() == first.json(), "whose answer was lost has the secret all the same"
        assert again.headers["cache-control"] == "no-store"
        other = await client.post(WEBHOOKS, json={**asked, "types": ["*"]}, headers=key)
        assert_problem(other, 422, "idempotency_key_conflict")
        bad = await client.post(WEBHOOKS, json=asked, headers={"Idempotency-Key": "k" * 256})
        assert_problem(bad, 400, "invalid_idempotency_key")
        one = f"{WEBHOOKS}/{first.json()['id']}"
        await client.post(f"{one}/rotate-secret")
        later = await client.post(WEBHOOKS, json=asked, headers=key)
        assert (later.status_code, later.json().get("secret")) == (200, None), "another secret was not asked for"
        assert len(json_object(await client.get(WEBHOOKS))["items"]) == 1
        await client.delete(one)
        assert_problem(await client.post(WEBHOOKS, json=asked, headers=key), 404, "webhook_not_found")
    told = [event["type"] for event in await read_events(zone)]
    assert told.count("webhook.created") == 1


REFUSED: list[tuple[dict[str, object], str]] = [
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
async def test_what_cannot_be_is_refused_by_its_name_when_made_and_when_changed(zone: FreshZone) -> None:
    async with ruler(zone) as client:
        made = await add(client)
        for asked, code in REFUSED:
            refused = assert_problem(await client.post(WEBHOOKS, json={"url": URL, **asked}), 400, code)
            assert refused["field"] in asked
            assert_problem(await client.patch(f"{WEBHOOKS}/{made['id']}", json=asked), 400, code)
        assert len(json_object(await client.get(WEBHOOKS))["items"]) == 1


async def test_a_webhook_of_another_zone_is_not_there_on_any_route(zone: FreshZone) -> None:
    foreign = await create_zone(zone.server)
    async with ruler(foreign) as owner, ruler(zone, Role.OWNER) as client:
        made = await add(owner)
        sent = json_object(await owner.post(f"{WEBHOOKS}/{made['id']}/test"))
        one = f"{WEBHOOKS}/{made['id']}"
        asks = [
            ("GET", one), ("PATCH", one), ("DELETE", one), ("POST", f"{one}/rotate-secret"), ("POST", f"{one}/test"),
            ("GET", f"{one}/deliveries"), ("POST", f"{one}/deliveries/{sent['id']}/replay"),
        ]  # fmt: skip
        for method, path in asks:
            body: dict[str, object] | None = {} if method == "PATCH" else None
            assert_problem(await client.request(method, path, json=body), 404, "webhook_not_found")
        assert json_object(await client.get(WEBHOOKS))["items"] == []
        own = await add(client)
        crossed = f"{WEBHOOKS}/{own['id']}/deliveries/{sent['id']}/replay"
        assert_problem(await client.post(crossed), 404, "delivery_not_found")


async def test_deliveries_are_listed_newest_first_in_pages_and_by_status(zone: FreshZone) -> None:
    async with ruler(zone) as client:
        made = await add(client)
        path = f"{WEBHOOKS}/{made['id']}/deliveries"
        ids = [json_object(await client.post(f"{WEBHOOKS}/{made['id']}/test"))["id"] for _ in range(3)]
        first = await client.get(path, params={"limit": 2})
        assert [item["id"] for item in json_object(first)["items"]] == ids[:0:-1]
        assert 'rel="next"' in first.headers["link"]
        rest = json_object(await client.get(path, params={"limit": 2, "cursor": json_object(first)["nextCursor"]}))
        assert ([item["id"] for item in rest["items"]], rest["nextCursor"]) == (ids[:1], None)
        [item] = rest["items"]
        assert (item["webhookId"], item["event"], item["status"]) == (made["id"], "webhook.test", "pending")
        assert item["body"]["workspaceId"] == zone.id
        assert json_object(await client.get(path, params={"status": "failed"}))["items"] == []
        assert_problem(await client.get(path, params={"status": "lost"}), 400, "invalid_query")
        assert_problem(await client.get(path, params={"cursor": "x"}), 400, "invalid_cursor")
        await client.patch(f"{WEBHOOKS}/{made['id']}", json={"enabled": False})
        assert_problem(await client.post(f"{WEBHOOKS}/{made['id']}/test"), 409, "webhook_disabled")
        assert_problem(await client.post(f"{path}/{ids[0]}/replay"), 409, "webhook_disabled")


# -- from a real server


@pytest.fixture
async def receiver() -> AsyncIterator[HttpEndpoint]:
    async with run_endpoint() as listening:
        yield listening


async def test_what_happens_to_a_task_reaches_an_endpoint_of_the_zone_and_is_replayed_after_a_restart(
    launch: Launch, servers: Servers, receiver: HttpEndpoint
) -> None:
    told = launch.with_environment(QD_PUSH_PRIVATE_ADDRESSES="true")
    server = await servers.start(told)
    zone = await create_zone(server)
    receiver.response = http_response(b"", "500 Oh")
    async with ruler(zone) as client:
        made = await add(client, url=receiver.url)
        task = await client.post("/api/v1/agent-tasks", json={"title": "t", "taskType": "development"})
        assert task.status_code == 201, task.text
        task_id = json_object(task)["id"]
        done = await client.post(f"/api/v1/agent-tasks/{task_id}/cancel", json={"reason": "enough"})
        assert done.status_code == 200, done.text
        request = await receiver.wait_for_request(1)
    body = Webhook(made["secret"]).verify(request.body, request.headers)
    assert (body["event"], body["taskId"], body["previousStatus"], body["newStatus"]) == (
        "task.status_changed",
        task_id,
        "PENDING",
        "ABORTED",
    )
    assert (body["workspaceId"], body["reason"]) == (zone.id, "enough")
    path = f"{WEBHOOKS}/{made['id']}/deliveries"

    async def delivery(on: FreshZone) -> dict[str, Any]:
        async with ruler(on) as client:
            [item] = json_object(await client.get(path))["items"]
            assert isinstance(item, dict)
            return item

    async def has_failed_once() -> bool:
        return bool((await delivery(zone))["answerStatus"] == 500)

    await eventually(has_failed_once, "the first attempt was reported")
    before = await delivery(zone)
    await server.stop()
    receiver.response = http_response()
    again = FreshZone(await servers.start(told), zone.id)
    kept = await delivery(again)
    assert kept["nextAt"] == before["nextAt"] or kept["attempts"] > 1, "the pause outlives the server"
    async with ruler(again) as client:
        answer = await client.post(f"{path}/{kept['id']}/replay")
        assert answer.status_code == 202, answer.text

    async def is_delivered() -> bool:
        return bool((await delivery(again))["status"] == "delivered")

    await eventually(is_delivered, "it was delivered")
    assert {one.headers["webhook-id"] for one in receiver.requests} == {kept["id"]}
    side = DirectDatabase(told.database_url)
    assert made["secret"] not in json.dumps(side.execute("select * from webhook_endpoints"))
