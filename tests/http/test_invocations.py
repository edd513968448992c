"""Invocations over HTTP: the wire, the aliases, and what becomes of work whose claimer is gone."""

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


async def register(client: httpx.AsyncClient, zone: FreshZone, **said: object) -> str:
    body = {"application_id": APP, "endpoint_url": "http://worker.example/", **said}
    made = await client.post(f"{zone.path}/agent-services", json=body)
    assert made.status_code in (200, 201), made.text
    return str(json_object(made)["id"])


async def call(
    client: httpx.AsyncClient, zone: FreshZone, service: str, key: str = "k", **said: object
) -> httpx.Response:
    body = {"service_id": service, "method": "m", "idempotency_key": key, **said}
    return await client.post(f"{zone.path}/invocations", json=body)


async def claim(client: httpx.AsyncClient, zone: FreshZone, service: str, **said: object) -> list[dict[str, Any]]:
    answer = await client.post(f"{zone.path}/services/{service}/claim", json=said)
    assert answer.status_code == 200, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def test_a_call_is_made_claimed_completed_and_its_result_is_read(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        made = await call(client, zone, service, params={"text": "hello"}, metadata={"why": "test"})
        assert made.status_code == 201
        assert (made.json()["status"], made.json()["params"]) == ("pending", {"text": "hello"})
        again = await call(client, zone, service, params={"text": "hello"}, metadata={"why": "test"})
        assert (again.status_code, again.json()["id"]) == (200, made.json()["id"])
        assert_problem(await call(client, zone, service, params={"text": "other"}), 422, "idempotency_key_conflict")
        [lease] = await claim(client, zone, service)
        assert (lease["id"], lease["attempt"], lease["params"]) == (made.json()["id"], 1, {"text": "hello"})
        path = f"{zone.path}/invocations/{lease['id']}"
        done = await client.post(
            f"{path}/complete",
            json={"status": "succeeded", "result": {"n": 3}, "attempt_token": lease["attempt_token"]},
        )
        assert (done.status_code, done.json()["status"]) == (200, "succeeded")
        assert (await client.get(path)).json()["result"] == {"n": 3}


async def test_the_key_may_stand_in_the_header_and_must_stand_somewhere(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        body = {"service_id": service, "method": "m"}
        path = f"{zone.path}/invocations"
        assert_problem(await client.post(path, json=body), 400, "idempotency_key_required")
        made = await client.post(path, json=body, headers={"Idempotency-Key": "in the header"})
        assert (made.status_code, made.json()["idempotency_key"]) == (201, "in the header")


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_start_cancel_and_complete_are_spelt_with_either_method(zone: FreshZone, method: str) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        ids = [(await call(client, zone, service, key)).json()["id"] for key in "ab"]
        path = f"{zone.path}/invocations"
        started = await client.request(method, f"{path}/{ids[0]}/start", json={})
        assert (started.status_code, started.json()["status"]) == (200, "running")
        done = await client.request(method, f"{path}/{ids[0]}/complete", json={"status": "succeeded"})
        assert done.json()["status"] == "succeeded", "without a token: the same bearer began it by start"
        canceled = await client.request(method, f"{path}/{ids[1]}/cancel", json={"reason": "enough"})
        assert (canceled.json()["status"], canceled.json()["cancel_reason"]) == ("canceled", "enough")
        assert_problem(
            await client.request(method, f"{path}/{ids[0]}/cancel", json={}), 409, "invocation_not_cancelable"
        )
        assert_problem(await client.request(method, f"{path}/{ids[1]}/start", json={}), 409, "invocation_not_startable")


async def test_of_two_who_start_the_same_one_is_refused_and_a_start_is_repeated_with_its_id(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        path = f"{zone.path}/invocations/{(await call(client, zone, service)).json()['id']}/start"
        first = await client.post(path, json={"claim_id": "mine"})
        again = await client.post(path, json={"claim_id": "mine"})
        assert (first.status_code, again.json()) == (200, first.json())
        for body in ({"claim_id": "another"}, {}):
            assert_problem(await client.post(path, json=body), 409, "invocation_not_startable")


async def test_another_application_may_call_and_may_neither_claim_nor_report_nor_cancel(zone: FreshZone) -> None:
    stranger = zone.token(client_id="stranger", subject="stranger")
    async with zone.client() as client, zone.client(stranger) as other:
        service = await register(client, zone)
        called = (await call(other, zone, service)).json()["id"]
        path = f"{zone.path}/invocations/{called}"
        claiming = await other.post(f"{zone.path}/services/{service}/claim", json={})
        assert_problem(claiming, 403, "service_ownership_required")
        [lease] = await claim(client, zone, service)
        report = {"status": "succeeded", "attempt_token": lease["attempt_token"]}
        assert_problem(await other.post(f"{path}/complete", json=report), 403, "service_ownership_required")
        third = zone.token(client_id="third", subject="third")
        async with zone.client(third) as nobody:
            assert_problem(await nobody.post(f"{path}/cancel", json={}), 403, "invoker_ownership_required")
        assert (await other.post(f"{path}/cancel", json={})).status_code == 200, "it called, it may cancel"


async def test_a_session_that_is_not_its_own_cannot_be_invoked_from(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        session = await spawn(client, zone)
        stranger = zone.token(client_id="stranger", subject="stranger")
        async with zone.client(stranger) as other:
            refused = await call(other, zone, service, source_session_id=session["id"])
        assert_problem(refused, 403, "invoker_ownership_required")
        assert_problem(await call(client, zone, service, source_session_id="no-such"), 404, "agent_session_not_found")
        assert_problem(await call(client, zone, "no-such"), 404, "agent_service_not_found")


async def test_a_call_by_a_sessions_own_token_belongs_to_that_session_and_ends_with_it(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        session = await spawn(client, zone)
        async with zone.client(zone.token(session_id=session["id"])) as own:
            called = json_object(await call(own, zone, service))
        assert called["source_session_id"] == session["id"]
        await end(client, zone, session["id"])
        after = json_object(await client.get(f"{zone.path}/invocations/{called['id']}"))
        assert (after["status"], after["cancel_reason"]) == ("canceled", "session_ended")


async def test_a_heartbeat_prolongs_the_lease_and_says_when_to_stop(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        await call(client, zone, service)
        [lease] = await claim(client, zone, service)
        path = f"{zone.path}/invocations/{lease['id']}"
        token = {"attempt_token": lease["attempt_token"]}
        beat = json_object(await client.post(f"{path}/heartbeat", json=token))
        assert beat["cancel"] is False
        assert beat["lease_expires_at"] >= lease["lease_expires_at"]
        await client.post(f"{path}/cancel", json={})
        assert json_object(await client.post(f"{path}/heartbeat", json=token))["cancel"] is True
        assert_problem(await client.post(f"{path}/heartbeat", json={}), 409, "attempt_token_required")


async def test_many_are_reported_at_once_and_each_has_its_own_outcome(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        for key in "abc":
            await call(client, zone, service, key)
        leases = await claim(client, zone, service, max=3)
        items = [{"id": each["id"], "attempt_token": each["attempt_token"]} for each in leases]
        beaten = json_object(await client.post(f"{zone.path}/invocations/heartbeat", json={"items": items}))
        assert [each["cancel"] for each in beaten["items"]] == [False] * 3
        reports = [
            {**items[0], "status": "succeeded", "result": 1},
            {**items[1], "status": "succeeded", "attempt_token": "old"},
            {**items[2], "status": "failed", "error": "no", "retryable": False},
        ]
        done = json_object(await client.post(f"{zone.path}/invocations/complete", json={"items": reports}))["items"]
        assert (done[0]["status"], done[2]["status"]) == ("succeeded", "failed")
        assert (done[1]["error"]["error"], done[1]["error"]["status"]) == ("stale_attempt", 409)
        back = json_object(await client.post(f"{zone.path}/invocations/release", json={"items": items[1:2]}))
        assert back["items"][0]["status"] == "pending"
        [again] = await claim(client, zone, service)
        assert (again["id"], again["attempt"]) == (items[1]["id"], 1)


async def test_lists_are_newest_first_and_filtered(zone: FreshZone) -> None:
    async with zone.client() as client:
        one, two = (await register(client, zone), await register(client, zone, endpoint_url="http://w.example/2"))
        made = [(await call(client, zone, service, f"k{n}")).json()["id"] for n, service in enumerate((one, two, one))]
        await claim(client, zone, one)

        async def ids(**query: str) -> list[str]:
            answer = await client.get(f"{zone.path}/invocations", params=query)
            return [each["id"] for each in json_object(answer)["items"]]

        assert await ids() == made[::-1]
        assert await ids(service_id=two) == [made[1]]
        assert await ids(status="running") == [made[0]]
        first = json_object(await client.get(f"{zone.path}/invocations", params={"limit": 2}))
        assert await ids(limit="2", cursor=first["next_cursor"]) == [made[0]]


async def test_a_claim_waits_for_work_and_is_answered_by_the_commit_that_makes_it(zone: FreshZone) -> None:
    async with zone.client() as client, zone.client() as worker:
        service = await register(client, zone)
        waiting = asyncio.create_task(claim(worker, zone, service, wait_ms=20_000))
        await waits(zone, 1)
        called = (await call(client, zone, service)).json()["id"]
        [lease] = await waiting
        assert lease["id"] == called
        events = json_object(await client.get(f"{zone.path}/events", params={"subject": called}))["items"]
        assert [(each["type"], each["at"]) for each in events] == [
            ("invocation.created", events[0]["at"]),
            ("invocation.started", events[0]["at"]),
        ]


async def waits(zone: FreshZone, number: int) -> None:
    async def so_many() -> bool:
        async with zone.server.client() as admin:
            text = (await admin.get("/metrics")).text
        found = [line for line in text.splitlines() if line.startswith("quarterdeck_claims_waiting{")]
        # Of calls and of tasks, each by itself.
        return bool(found) and sum(float(line.split()[-1]) for line in found) == number

    await eventually(so_many, f"{number} claims wait")


async def hang_up_while_waiting(zone: FreshZone, service: str, token: str) -> None:
    """Begins to wait for work, and goes away without a word."""
    host, port = zone.server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"wait_ms": 30_000}).encode()
    writer.write(
        f"POST {zone.path}/services/{service}/claim HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
        f"content-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    await writer.drain()
    await waits(zone, 1)
    writer.close()
    await writer.wait_closed()
    del reader


async def test_a_worker_that_hangs_up_while_it_waits_costs_no_attempt(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        await hang_up_while_waiting(zone, service, zone.token())
        await call(client, zone, service)

        async def comes_back() -> bool:
            items = await claim(client, zone, service)
            return bool(items) and items[0]["attempt"] == 1

        await eventually(comes_back, "the work is given to somebody who is there, as its first attempt")


async def test_when_the_server_is_told_to_stop_whoever_waits_is_answered_at_once(
    launch: Launch, servers: Servers
) -> None:
    server = await servers.start(launch)
    zone = await create_zone(server)
    async with zone.client() as client:
        service = await register(client, zone)
        waiting = asyncio.create_task(claim(client, zone, service, wait_ms=60_000))
        await waits(zone, 1)
        server.terminate()
        assert await waiting == []


async def test_an_ended_sessions_token_claims_nothing(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        session = await spawn(client, zone)
        async with zone.client(zone.token(LIFECYCLE, session_id=session["id"])) as own:
            waiting = asyncio.create_task(own.post(f"{zone.path}/services/{service}/claim", json={"wait_ms": 20_000}))
            await waits(zone, 1)
            await end(client, zone, session["id"])
            await call(client, zone, service)
            assert_problem(await waiting, 401, "session_ended")


async def test_explain_says_what_it_waits_for(zone: FreshZone) -> None:
    async with zone.client() as client:
        service = await register(client, zone)
        called = (await call(client, zone, service)).json()["id"]
        path = f"{zone.path}/invocations/{called}/explain"
        assert "waits for a worker" in json_object(await client.get(path))["why"][0]
        [lease] = await claim(client, zone, service)
        told = json_object(await client.get(path))
        assert "attempt 1 was claimed" in told["why"][0]
        assert lease["attempt_token"] not in json.dumps(told)
