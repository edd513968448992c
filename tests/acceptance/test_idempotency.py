"""Idempotency-Key: a repeated spawn creates one session, also after a lost response."""

from __future__ import annotations

from collections import Counter

import httpx
import pytest

from tests.support.eventually import eventually
from tests.support.raw_http import RawConnection, build_request, send_all
from tests.support.rounds import ROUNDS
from tests.support.server import ServerProcess
from tests.support.zone import (
    APP,
    FreshZone,
    assert_problem,
    create_zone,
    end,
    json_object,
    lock_zone,
    read_events,
    spawn,
    wait_for_lock_waiter,
)


async def spawn_with_key(client: httpx.AsyncClient, zone: FreshZone, key: str, **fields: object) -> httpx.Response:
    return await client.post(
        zone.sessions_path, json={"application_id": APP, **fields}, headers={"idempotency-key": key}
    )


async def test_20_concurrent_spawns_with_one_key_create_one_session(zone: FreshZone) -> None:
    token = zone.token()
    for number in range(ROUNDS):
        request = build_request(
            "POST", zone.sessions_path, token, {"application_id": APP}, Idempotency_Key=f"round-{number}"
        )
        responses = await send_all(zone.server.url, [request] * 20)
        assert Counter(response.status for response in responses) == {201: 1, 200: 19}
        assert len({response.json()["id"] for response in responses}) == 1
        assert len({response.body for response in responses}) == 1, "every response has the same body"
    spawned = [event for event in await read_events(zone) if event["type"] == "session.spawn"]
    assert len(spawned) == ROUNDS


async def test_idempotency_key_is_checked_before_bounds(server: ServerProcess) -> None:
    zone = await create_zone(server, max_sessions=1)
    async with zone.client() as client:
        created = await spawn_with_key(client, zone, "k")
        assert_problem(await spawn_with_key(client, zone, "other"), 429)
        repeated = await spawn_with_key(client, zone, "k")
    assert (created.status_code, repeated.status_code) == (201, 200)
    assert created.json() == repeated.json()


async def test_same_key_with_another_body_is_a_conflict_and_changes_nothing(zone: FreshZone) -> None:
    async with zone.client() as client:
        created = await spawn_with_key(client, zone, "k", metadata={"a": 1, "b": [1, 2]})
        others: list[dict[str, object]] = [
            {},
            {"metadata": {"a": 2, "b": [1, 2]}},
            {"metadata": {"a": 1, "b": [2, 1]}},
            {"metadata": {"a": 1, "b": [1, 2]}, "ttl_seconds": 60},
            {"metadata": {"a": 1, "b": [1, 2]}, "session_sid": "other"},
        ]
        for other in others:
            assert_problem(await spawn_with_key(client, zone, "k", **other), 422, "idempotency_key_conflict")
        repeated = await spawn_with_key(client, zone, "k", metadata={"a": 1, "b": [1, 2]})
    assert (repeated.status_code, repeated.json()["id"]) == (200, created.json()["id"])
    assert len(await read_events(zone)) == 2


async def test_equivalent_json_bodies_count_as_the_same_request(zone: FreshZone) -> None:
    bodies = [
        b'{"application_id":"app","metadata":{"a":1,"b":"\xc3\xa9"}}',
        b'{"metadata": {"b": "\\u00e9", "a": 1}, "application_id": "app"}',
        b'{"application_id":"app","metadata":{"a":1,"b":"\\u00e9"},"ttl_seconds":3600,"kind":"instance"}',
        b'{"application_id":"app","metadata":{"a":1,"b":"\\u00e9"},"session_sid":"sid","nonsense":true}',
        b'{"application_id":"app","metadata":{"a":1,"b":"\\u00e9"},"idempotency_key":"k"}',
    ]
    async with zone.client() as client:
        client.headers["idempotency-key"] = "k"
        responses = [await client.post(zone.sessions_path, content=body) for body in bodies]
    assert [response.status_code for response in responses] == [201, 200, 200, 200, 200]


async def test_key_is_accepted_in_header_body_or_both_if_equal(zone: FreshZone) -> None:
    async with zone.client() as client:
        in_body = await client.post(zone.sessions_path, json={"application_id": APP, "idempotency_key": "k"})
        in_header = await spawn_with_key(client, zone, "k")
        in_both = await spawn_with_key(client, zone, "k", idempotency_key="k")
        differing = await spawn_with_key(client, zone, "k", idempotency_key="K")
    assert [in_body.status_code, in_header.status_code, in_both.status_code] == [201, 200, 200]
    assert_problem(differing, 400, "idempotency_key_mismatch")


async def test_refused_spawn_stores_no_key(server: ServerProcess) -> None:
    zone = await create_zone(server, max_sessions=1)
    async with zone.client() as client:
        first = await spawn(client, zone)
        assert_problem(await spawn_with_key(client, zone, "k"), 429)
        assert_problem(await spawn_with_key(client, zone, "k", parent_id="no-such-session"), 404)
        await end(client, zone, first["id"])
        created = await spawn_with_key(client, zone, "k", metadata={"another": "body"})
    assert created.status_code == 201


async def test_ended_session_frees_its_key(zone: FreshZone) -> None:
    async with zone.client() as client:
        first = json_object(await spawn_with_key(client, zone, "k"))
        await end(client, zone, first["id"])
        second = await spawn_with_key(client, zone, "k", metadata={"another": "body"})
        repeated = await spawn_with_key(client, zone, "k", metadata={"another": "body"})
    assert (second.status_code, repeated.status_code) == (201, 200)
    assert second.json()["id"] == repeated.json()["id"] != first["id"]


async def test_key_is_scoped_to_zone_and_application(zone: FreshZone) -> None:
    async with zone.client(zone.token("agent:lifecycle", "coordinator.admin")) as client:
        ids = [
            (await spawn_with_key(client, zone, "k", application_id=app)).json()["id"] for app in ("one", "two", "one")
        ]
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.parametrize("key", [b"", b"k" * 256, "é".encode() * 128, b"a\tb", b"\xff", b"\xc3", "\u0085".encode()])
async def test_invalid_header_key_is_refused_naming_the_header(zone: FreshZone, key: bytes) -> None:
    async with zone.client() as client:
        headers = [(b"idempotency-key", key)]
        refused = await client.post(zone.sessions_path, json={"application_id": APP}, headers=headers)
        assert assert_problem(refused, 400, "invalid_idempotency_key")["field"] == "Idempotency-Key"
    assert len(await read_events(zone)) == 1


@pytest.mark.parametrize("key", ["", "k" * 256, "a\nb", "a\x7fb", "\u0000", "\u2028"])
async def test_invalid_body_key_is_refused(zone: FreshZone, key: str) -> None:
    async with zone.client() as client:
        assert_problem(await client.post(zone.sessions_path, json={"application_id": APP, "idempotency_key": key}), 400)


@pytest.mark.parametrize(
    "key", [b"k", b"k" * 255, "é".encode() * 127, b"a b", b"'; drop table zones; --", "☃".encode()]
)
async def test_key_of_1_to_255_bytes_without_control_characters_is_accepted(zone: FreshZone, key: bytes) -> None:
    async with zone.client() as client:
        body = {"application_id": APP}
        responses = [
            await client.post(zone.sessions_path, json=body, headers=[(b"idempotency-key", key)]) for _ in range(2)
        ]
    assert [response.status_code for response in responses] == [201, 200]


# -- connections lost before the response


async def wait_for_only_session(zone: FreshZone) -> str:
    """Wait for the zone's only session and return its id."""
    ids: list[str] = []

    async def exists() -> bool:
        ids[:] = [item["id"] for item in json_object(await client.get(zone.sessions_path))["items"]]
        return bool(ids)

    async with zone.client() as client:
        await eventually(exists, "the session exists")
    assert len(ids) == 1
    return ids[0]


async def test_client_that_disconnects_before_the_response_finds_its_session_by_key(server: ServerProcess) -> None:
    for _ in range(ROUNDS):
        zone = await create_zone(server)
        request = build_request("POST", zone.sessions_path, zone.token(), {"application_id": APP}, Idempotency_Key="k")
        connection = await RawConnection.open(server.url)
        await connection.send(request)
        # Close, not reset: a reset could overtake the request.
        await connection.close()
        session_id = await wait_for_only_session(zone)
        [repeated] = await send_all(server.url, [request])
        assert (repeated.status, repeated.json()["id"]) == (200, session_id)
        assert await wait_for_only_session(zone) == session_id
        assert [event["type"] for event in await read_events(zone)] == ["zone.create", "session.spawn"]


async def test_connection_reset_before_the_commit_does_not_undo_the_spawn(postgres_server: ServerProcess) -> None:
    for _ in range(ROUNDS):
        zone = await create_zone(postgres_server)
        request = build_request("POST", zone.sessions_path, zone.token(), {"application_id": APP}, Idempotency_Key="k")
        with lock_zone(zone):
            connection = await RawConnection.open(postgres_server.url)
            await connection.send(request)
            await wait_for_lock_waiter(zone)
            connection.reset()
        session_id = await wait_for_only_session(zone)
        [repeated] = await send_all(postgres_server.url, [request])
        assert (repeated.status, repeated.json()["id"]) == (200, session_id)
