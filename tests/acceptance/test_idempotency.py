"""Idempotency-Key: a spawn that is repeated makes one session, whatever was lost on the way."""

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


async def keyed(client: httpx.AsyncClient, zone: FreshZone, key: str, **asked: object) -> httpx.Response:
    return await client.post(
        zone.sessions_path, json={"application_id": APP, **asked}, headers={"idempotency-key": key}
    )


async def test_of_20_concurrent_spawns_with_one_key_one_makes_and_nineteen_are_shown_it(zone: FreshZone) -> None:
    token = zone.token()
    for number in range(ROUNDS):
        asked = build_request(
            "POST", zone.sessions_path, token, {"application_id": APP}, Idempotency_Key=f"round-{number}"
        )
        answers = await send_all(zone.server.url, [asked] * 20)
        assert Counter(answer.status for answer in answers) == {201: 1, 200: 19}
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert len({answer.body for answer in answers}) == 1, "the same session, word for word"
    spawned = [event for event in await read_events(zone) if event["type"] == "session.spawn"]
    assert len(spawned) == ROUNDS


async def test_a_replay_is_decided_before_every_bound(server: ServerProcess) -> None:
    zone = await create_zone(server, max_sessions=1)
    async with zone.client() as client:
        made = await keyed(client, zone, "k")
        assert_problem(await keyed(client, zone, "other"), 429)
        again = await keyed(client, zone, "k")
    assert (made.status_code, again.status_code) == (201, 200)
    assert made.json() == again.json()


async def test_the_same_key_with_another_body_is_a_conflict_that_changes_nothing(zone: FreshZone) -> None:
    async with zone.client() as client:
        made = await keyed(client, zone, "k", metadata={"a": 1, "b": [1, 2]})
        others: list[dict[str, object]] = [
            {},
            {"metadata": {"a": 2, "b": [1, 2]}},
            {"metadata": {"a": 1, "b": [2, 1]}},
            {"metadata": {"a": 1, "b": [1, 2]}, "ttl_seconds": 60},
            {"metadata": {"a": 1, "b": [1, 2]}, "session_sid": "another"},
        ]
        for other in others:
            assert_problem(await keyed(client, zone, "k", **other), 422, "idempotency_key_conflict")
        again = await keyed(client, zone, "k", metadata={"a": 1, "b": [1, 2]})
    assert (again.status_code, again.json()["id"]) == (200, made.json()["id"])
    assert len(await read_events(zone)) == 2


async def test_a_body_is_the_same_however_it_is_spelt(zone: FreshZone) -> None:
    spelt = [
        b'{"application_id":"app","metadata":{"a":1,"b":"\xc3\xa9"}}',
        b'{"metadata": {"b": "\\u00e9", "a": 1}, "application_id": "app"}',
        b'{"application_id":"app","metadata":{"a":1,"b":"\\u00e9"},"ttl_seconds":3600,"kind":"instance"}',
        b'{"application_id":"app","metadata":{"a":1,"b":"\\u00e9"},"session_sid":"sid","nonsense":true}',
        b'{"application_id":"app","metadata":{"a":1,"b":"\\u00e9"},"idempotency_key":"k"}',
    ]
    async with zone.client() as client:
        client.headers["idempotency-key"] = "k"
        answers = [await client.post(zone.sessions_path, content=body) for body in spelt]
    assert [answer.status_code for answer in answers] == [201, 200, 200, 200, 200]


async def test_the_key_may_stand_in_the_header_the_body_or_both_alike(zone: FreshZone) -> None:
    async with zone.client() as client:
        in_body = await client.post(zone.sessions_path, json={"application_id": APP, "idempotency_key": "k"})
        in_header = await keyed(client, zone, "k")
        in_both = await keyed(client, zone, "k", idempotency_key="k")
        differing = await keyed(client, zone, "k", idempotency_key="K")
    assert [in_body.status_code, in_header.status_code, in_both.status_code] == [201, 200, 200]
    assert_problem(differing, 400, "idempotency_key_mismatch")


async def test_a_refusal_binds_no_key(server: ServerProcess) -> None:
    zone = await create_zone(server, max_sessions=1)
    async with zone.client() as client:
        first = await spawn(client, zone)
        assert_problem(await keyed(client, zone, "k"), 429)
        assert_problem(await keyed(client, zone, "k", parent_id="no-such-session"), 404)
        await end(client, zone, first["id"])
        made = await keyed(client, zone, "k", metadata={"another": "body"})
    assert made.status_code == 201


async def test_a_session_that_has_ended_frees_its_key(zone: FreshZone) -> None:
    async with zone.client() as client:
        first = json_object(await keyed(client, zone, "k"))
        await end(client, zone, first["id"])
        second = await keyed(client, zone, "k", metadata={"another": "body"})
        again = await keyed(client, zone, "k", metadata={"another": "body"})
    assert (second.status_code, again.status_code) == (201, 200)
    assert second.json()["id"] == again.json()["id"] != first["id"]


async def test_a_keys_scope_is_its_zone_and_its_application(zone: FreshZone) -> None:
    async with zone.client(zone.token("agent:lifecycle", "coordinator.admin")) as client:
        ids = [(await keyed(client, zone, "k", application_id=app)).json()["id"] for app in ("one", "two", "one")]
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.parametrize("key", [b"", b"k" * 256, "é".encode() * 128, b"a\tb", b"\xff", b"\xc3", "\u0085".encode()])
async def test_a_key_that_is_none_is_refused_by_its_name(zone: FreshZone, key: bytes) -> None:
    async with zone.client() as client:
        headers = [(b"idempotency-key", key)]
        refused = await client.post(zone.sessions_path, json={"application_id": APP}, headers=headers)
        assert assert_problem(refused, 400, "invalid_idempotency_key")["field"] == "Idempotency-Key"
    assert len(await read_events(zone)) == 1


@pytest.mark.parametrize("key", ["", "k" * 256, "a\nb", "a\x7fb", "\u0000", "\u2028"])
async def test_a_key_in_the_body_obeys_the_same_rules(zone: FreshZone, key: str) -> None:
    async with zone.client() as client:
        assert_problem(await client.post(zone.sessions_path, json={"application_id": APP, "idempotency_key": key}), 400)


@pytest.mark.parametrize(
    "key", [b"k", b"k" * 255, "é".encode() * 127, b"a b", b"'; drop table zones; --", "☃".encode()]
)
async def test_a_key_of_1_to_255_bytes_without_control_characters_is_good(zone: FreshZone, key: bytes) -> None:
    async with zone.client() as client:
        asked = {"application_id": APP}
        answers = [
            await client.post(zone.sessions_path, json=asked, headers=[(b"idempotency-key", key)]) for _ in range(2)
        ]
    assert [answer.status_code for answer in answers] == [201, 200]


# -- the connection cut between commit and answer


async def one_session(zone: FreshZone) -> str:
    """The id of the zone's only session, once there is one."""
    found: list[str] = []

    async def is_there() -> bool:
        found[:] = [item["id"] for item in json_object(await client.get(zone.sessions_path))["items"]]
        return bool(found)

    async with zone.client() as client:
        await eventually(is_there, "the session was there")
    assert len(found) == 1
    return found[0]


async def test_a_client_that_left_before_its_answer_finds_its_session_by_its_key(server: ServerProcess) -> None:
    for _ in range(ROUNDS):
        zone = await create_zone(server)
        asked = build_request("POST", zone.sessions_path, zone.token(), {"application_id": APP}, Idempotency_Key="k")
        connection = await RawConnection.open(server.url)
        await connection.send(asked)
        # Closed, not reset: a reset could overtake the request itself.
        await connection.close()
        made = await one_session(zone)
        [again] = await send_all(server.url, [asked])
        assert (again.status, again.json()["id"]) == (200, made)
        assert await one_session(zone) == made
        assert [event["type"] for event in await read_events(zone)] == ["zone.create", "session.spawn"]


async def test_a_connection_cut_before_the_commit_does_not_undo_it(postgres_server: ServerProcess) -> None:
    for _ in range(ROUNDS):
        zone = await create_zone(postgres_server)
        asked = build_request("POST", zone.sessions_path, zone.token(), {"application_id": APP}, Idempotency_Key="k")
        with lock_zone(zone):
            connection = await RawConnection.open(postgres_server.url)
            await connection.send(asked)
            await wait_for_lock_waiter(zone)
            connection.reset()
        made = await one_session(zone)
        [again] = await send_all(postgres_server.url, [asked])
        assert (again.status, again.json()["id"]) == (200, made)
