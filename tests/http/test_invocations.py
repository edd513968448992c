"""Invocations over HTTP: routes and aliases, ownership, batches, long polls, and claims of clients that disconnect."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from quarterdeck.core.caller import LIFECYCLE
from tests.support.eventually import eventually
from tests.support.server import Launch, Servers
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, spawn


async def register(client: httpx.AsyncClient, zone: FreshZone, **fields: object) -> str:
    body = {"application_id": APP, "endpoint_url": "http://worker.example/", **fields}
    created = await client.post(f"{zone.path}/agent-services", json=body)
    assert created.status_code in (200, 201), created.text
    return str(json_object(created)["id"])


async def invoke(
    client: httpx.AsyncClient, zone: FreshZone, service: str, key: str = "k", **fields: object
) -> httpx.Response:
    body = {"service_id": service, "method": "m", "idempotency_key": key, **fields}
    return await client.post(f"{zone.path}/invocations", json=body)


async def claim(client: httpx.AsyncClient, zone: FreshZone, service: str, **fields: object) -> list[dict[str, Any]]:
    response = await client.post(f"{zone.path}/services/{service}/claim", json=fields)
    assert response.status_code == 200, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


async def test_invocation_is_created_claimed_completed_and_read(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        created = await invoke(client, zone, service, params={"text": "hello"}, metadata={"purpose": "test"})
        assert created.status_code == 201
        assert (created.json()["status"], created.json()["params"]) == ("pending", {"text": "hello"})
        again = await invoke(client, zone, service, params={"text": "hello"}, metadata={"purpose": "test"})
        assert (again.status_code, again.json()["id"]) == (200, created.json()["id"])
        assert_problem(await invoke(client, zone, service, params={"text": "other"}), 422, "idempotency_key_conflict")
        [lease] = await claim(client, zone, service)
        assert (lease["id"], lease["attempt"], lease["params"]) == (created.json()["id"], 1, {"text": "hello"})
        path = f"{zone.path}/invocations/{lease['id']}"
        done = await client.post(
            f"{path}/complete",
            json={"status": "succeeded", "result": {"n": 3}, "attempt_token": lease["attempt_token"]},
        )
        assert (done.status_code, done.json()["status"]) == (200, "succeeded")
        assert (await client.get(path)).json()["result"] == {"n": 3}


async def test_idempotency_key_is_required_and_may_be_in_the_header(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        body = {"service_id": service, "method": "m"}
        path = f"{zone.path}/invocations"
        assert_problem(await client.post(path, json=body), 400, "idempotency_key_required")
        created = await client.post(path, json=body, headers={"Idempotency-Key": "in the header"})
        assert (created.status_code, created.json()["idempotency_key"]) == (201, "in the header")


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_start_cancel_and_complete_accept_post_and_patch(zone: FreshZone, method: str) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        ids = [(await invoke(client, zone, service, key)).json()["id"] for key in "ab"]
        path = f"{zone.path}/invocations"
        started = await client.request(method, f"{path}/{ids[0]}/start", json={})
        assert (started.status_code, started.json()["status"]) == (200, "running")
        done = await client.request(method, f"{path}/{ids[0]}/complete", json={"status": "succeeded"})
        assert done.json()["status"] == "succeeded", "no token needed: the same bearer started it"
        canceled = await client.request(method, f"{path}/{ids[1]}/cancel", json={"reason": "enough"})
        assert (canceled.json()["status"], canceled.json()["cancel_reason"]) == ("canceled", "enough")
        assert_problem(
            await client.request(method, f"{path}/{ids[0]}/cancel", json={}), 409, "invocation_not_cancelable"
        )
        assert_problem(await client.request(method, f"{path}/{ids[1]}/start", json={}), 409, "invocation_not_startable")


async def test_second_start_is_refused_unless_it_repeats_the_claim_id(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        path = f"{zone.path}/invocations/{(await invoke(client, zone, service)).json()['id']}/start"
        first = await client.post(path, json={"claim_id": "mine"})
        again = await client.post(path, json={"claim_id": "mine"})
        assert (first.status_code, again.json()) == (200, first.json())
        for body in ({"claim_id": "another"}, {}):
            assert_problem(await client.post(path, json=body), 409, "invocation_not_startable")


async def test_another_application_may_invoke_but_not_claim_or_complete(zone: FreshZone) -> None:
    other_token = zone.token(client_id="other-app", subject="other-app")
    async with zone.client() as client, zone.client(other_token) as other:
        service = await register(client, zone)
        invocation_id = (await invoke(other, zone, service)).json()["id"]
        path = f"{zone.path}/invocations/{invocation_id}"
        refused = await other.post(f"{zone.path}/services/{service}/claim", json={})
        assert_problem(refused, 403, "service_ownership_required")
        [lease] = await claim(client, zone, service)
        report = {"status": "succeeded", "attempt_token": lease["attempt_token"]}
        assert_problem(await other.post(f"{path}/complete", json=report), 403, "service_ownership_required")
        third_token = zone.token(client_id="third", subject="third")
        async with zone.client(third_token) as third_client:
            assert_problem(await third_client.post(f"{path}/cancel", json={}), 403, "invoker_ownership_required")
        assert (await other.post(f"{path}/cancel", json={})).status_code == 200, "the invoker may cancel"


async def test_source_session_must_belong_to_the_invoker(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        session = await spawn(client, zone)
        other_token = zone.token(client_id="other-app", subject="other-app")
        async with zone.client(other_token) as other:
            refused = await invoke(other, zone, service, source_session_id=session["id"])
        assert_problem(refused, 403, "invoker_ownership_required")
        assert_problem(await invoke(client, zone, service, source_session_id="no-such"), 404, "agent_session_not_found")
        assert_problem(await invoke(client, zone, "no-such"), 404, "agent_service_not_found")


async def test_invocation_by_a_session_token_is_canceled_with_the_session(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        session = await spawn(client, zone)
        async with zone.client(zone.token(session_id=session["id"])) as own:
            invocation = json_object(await invoke(own, zone, service))
        assert invocation["source_session_id"] == session["id"]
        await end(client, zone, session["id"])
        after = json_object(await client.get(f"{zone.path}/invocations/{invocation['id']}"))
        assert (after["status"], after["cancel_reason"]) == ("canceled", "session_ended")


async def test_heartbeat_extends_the_lease_and_reports_cancellation(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        await invoke(client, zone, service)
        [lease] = await claim(client, zone, service)
        path = f"{zone.path}/invocations/{lease['id']}"
        token = {"attempt_token": lease["attempt_token"]}
        heartbeat = json_object(await client.post(f"{path}/heartbeat", json=token))
        assert heartbeat["cancel"] is False
        assert heartbeat["lease_expires_at"] >= lease["lease_expires_at"]
        await client.post(f"{path}/cancel", json={})
        assert json_object(await client.post(f"{path}/heartbeat", json=token))["cancel"] is True
        assert_problem(await client.post(f"{path}/heartbeat", json={}), 409, "attempt_token_required")


async def test_batch_reports_return_a_result_for_each_item(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        for key in "abc":
            await invoke(client, zone, service, key)
        leases = await claim(client, zone, service, max=3)
        items = [{"id": item["id"], "attempt_token": item["attempt_token"]} for item in leases]
        heartbeats = json_object(await client.post(f"{zone.path}/invocations/heartbeat", json={"items": items}))
        assert [item["cancel"] for item in heartbeats["items"]] == [False] * 3
        reports = [
            {**items[0], "status": "succeeded", "result": 1},
            {**items[1], "status": "succeeded", "attempt_token": "old"},
            {**items[2], "status": "failed", "error": "no", "retryable": False},
        ]
        done = json_object(await client.post(f"{zone.path}/invocations/complete", json={"items": reports}))["items"]
        assert (done[0]["status"], done[2]["status"]) == ("succeeded", "failed")
        assert (done[1]["error"]["error"], done[1]["error"]["status"]) == ("stale_attempt", 409)
        released = json_object(await client.post(f"{zone.path}/invocations/release", json={"items": items[1:2]}))
        assert released["items"][0]["status"] == "pending"
        [again] = await claim(client, zone, service)
        assert (again["id"], again["attempt"]) == (items[1]["id"], 1)


async def test_invocation_list_is_newest_first_and_filtered(zone: FreshZone) -> None:
    async with zone.client() as client:
        one, two = (await register(client, zone), await register(client, zone, endpoint_url="http://w.example/2"))
        created = [
            (await invoke(client, zone, service, f"k{n}")).json()["id"] for n, service in enumerate((one, two, one))
        ]
        await claim(client, zone, one)

        async def ids(**query: str) -> list[str]:
            response = await client.get(f"{zone.path}/invocations", params=query)
            return [item["id"] for item in json_object(response)["items"]]

        assert await ids() == created[::-1]
        assert await ids(service_id=two) == [created[1]]
        assert await ids(status="running") == [created[0]]
        first = json_object(await client.get(f"{zone.path}/invocations", params={"limit": 2}))
        assert await ids(limit="2", cursor=first["next_cursor"]) == [created[0]]


async def test_waiting_claim_starts_the_invocation_in_the_commit_that_creates_it(zone: FreshZone) -> None:
    async with zone.client() as client, zone.client() as worker:
        service = await register(client, zone)
        waiting = asyncio.create_task(claim(worker, zone, service, wait_ms=20_000))
        await wait_for_claims(zone, 1)
        invocation_id = (await invoke(client, zone, service)).json()["id"]
        [lease] = await waiting
        assert lease["id"] == invocation_id
        events = json_object(await client.get(f"{zone.path}/events", params={"subject": invocation_id}))["items"]
        assert [(item["type"], item["at"]) for item in events] == [
            ("invocation.created", events[0]["at"]),
            ("invocation.started", events[0]["at"]),
        ]


async def wait_for_claims(zone: FreshZone, number: int) -> None:
    async def has_count() -> bool:
        async with zone.server.client() as admin:
            text = (await admin.get("/metrics")).text
        lines = [line for line in text.splitlines() if line.startswith("quarterdeck_claims_waiting{")]
        # One line for invocations, one for tasks.
        return bool(lines) and sum(float(line.split()[-1]) for line in lines) == number

    await eventually(has_count, f"{number} claims are waiting")


async def disconnect_while_waiting(zone: FreshZone, service: str, token: str) -> None:
    """Starts a long poll for work and disconnects."""
    host, port = zone.server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"wait_ms": 30_000}).encode()
    writer.write(
        f"POST {zone.path}/services/{service}/claim HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    await wait_for_claims(zone, 1)
    writer.close()
    await writer.wait_closed()
    del reader


async def test_worker_that_disconnects_while_waiting_uses_no_attempt(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        await disconnect_while_waiting(zone, service, zone.token())
        await invoke(client, zone, service)

        async def is_first_attempt() -> bool:
            items = await claim(client, zone, service)
            return bool(items) and items[0]["attempt"] == 1

        await eventually(is_first_attempt, "the invocation is claimed as its first attempt")


async def test_sigterm_answers_waiting_claims_at_once(launch: Launch, servers: Servers) -> None:
    server = await servers.start(launch)
    zone = await create_zone(server)
    async with zone.client() as client:
        service = await register(client, zone)
        waiting = asyncio.create_task(claim(client, zone, service, wait_ms=60_000))
        await wait_for_claims(zone, 1)
        server.terminate()
        assert await waiting == []


async def test_token_of_an_ended_session_claims_nothing(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        session = await spawn(client, zone)
        async with zone.client(zone.token(LIFECYCLE, session_id=session["id"])) as own:
            waiting = asyncio.create_task(own.post(f"{zone.path}/services/{service}/claim", json={"wait_ms": 20_000}))
            await wait_for_claims(zone, 1)
            await end(client, zone, session["id"])
            await invoke(client, zone, service)
            assert_problem(await waiting, 401, "session_ended")


async def test_explain_gives_the_reason_for_the_state(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        invocation_id = (await invoke(client, zone, service)).json()["id"]
        path = f"{zone.path}/invocations/{invocation_id}/explain"
        assert "waiting for a worker" in json_object(await client.get(path))["why"][0]
        [lease] = await claim(client, zone, service)
        explanation = json_object(await client.get(path))
        assert "Attempt 1 was claimed" in explanation["why"][0]
        assert lease["attempt_token"] not in json.dumps(explanation)
