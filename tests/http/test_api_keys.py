"""API keys over HTTP: creation, lists, revocation, and requests with one credential, two, or an invalid one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from quarterdeck.core.caller import ADMIN, LIFECYCLE
from tests.support.raw_http import RawConnection
from tests.support.route_table import read_route_table
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, Servers
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn

INVALID_KEY_DETAIL = "The API key is malformed, unknown, revoked or expired."
KEY_PATTERN = re.compile(r"qd_([\w.:-]+)\.([0-9a-f-]{36})\.([0-9a-f]{64})")


async def create_key(zone: FreshZone, **fields: object) -> dict[str, Any]:
    async with zone.server.client() as admin:
        response = await admin.post(f"{zone.path}/keys", json={"application_id": APP, **fields})
    assert response.status_code == 201, response.text
    return json_object(response)


async def revoke(zone: FreshZone, key_id: str) -> httpx.Response:
    async with zone.server.client() as admin:
        return await admin.delete(f"{zone.path}/keys/{key_id}")


@asynccontextmanager
async def key_client(zone: FreshZone, key: str) -> AsyncIterator[httpx.AsyncClient]:
    async with zone.server.client("") as client:
        client.headers["X-API-Key"] = key
        yield client


async def list_keys(zone: FreshZone) -> list[dict[str, Any]]:
    async with zone.server.client() as admin:
        items: list[dict[str, Any]] = (await admin.get(f"{zone.path}/keys")).json()["items"]
    return items


# -- create, list, revoke ----------------------------------------------------------------------------------------


async def test_key_secret_is_returned_once_and_never_stored(zone: FreshZone) -> None:
    created = await create_key(zone, name="nightly job", scopes=["a", "b"], ttl_seconds=60)
    match = KEY_PATTERN.fullmatch(created["key"])
    assert match is not None
    assert (match[1], match[2]) == (zone.id, created["id"])
    [item] = await list_keys(zone)
    assert item == {name: value for name, value in created.items() if name != "key"}
    assert (item["name"], item["scopes"], item["status"]) == ("nightly job", ["a", "b"], "live")
    assert (item["created_by"], item["application_id"], item["session_id"]) == ("local", APP, None)
    assert match[3] not in str(await read_events(zone))
    [stored] = DirectDatabase(zone.server.launch.database_url).execute(
        "select * from api_keys where id = ?", created["id"]
    )
    assert match[3] not in str(stored)


async def test_response_with_a_key_is_not_cacheable(zone: FreshZone) -> None:
    async with zone.server.client() as admin:
        created = await admin.post(f"{zone.path}/keys", json={"application_id": APP})
    assert created.headers["cache-control"] == "no-store"


async def test_every_key_has_its_own_secret(zone: FreshZone) -> None:
    matches = [KEY_PATTERN.fullmatch((await create_key(zone))["key"]) for _ in range(5)]
    assert len({match[3] for match in matches if match}) == 5


async def test_key_without_scopes_gets_the_lifecycle_scope(zone: FreshZone) -> None:
    created = await create_key(zone)
    assert (created["name"], created["scopes"], created["expires_at"]) == (APP, [LIFECYCLE], None)
    async with key_client(zone, created["key"]) as client:
        session = await spawn(client, zone)
    assert session["session_sid"] == f"key:{created['id']}"
    [event] = await read_events(zone, subject=session["id"])
    assert event["actor"] == f"key:{created['id']}"


async def test_keys_are_listed_newest_first_in_pages(zone: FreshZone) -> None:
    created = [(await create_key(zone))["id"] for _ in range(3)]
    async with zone.server.client() as admin:
        first = await admin.get(f"{zone.path}/keys", params={"limit": 2})
        rest = await admin.get(first.headers["link"].partition(">")[0].strip("<"))
        other = await admin.get("/zones", params={"limit": 1})
        cursor = other.json()["next_cursor"]
        assert_problem(await admin.get(f"{zone.path}/keys?cursor={cursor}"), 400, "invalid_cursor")
        assert_problem(await admin.get("/zones/no-such-zone/keys"), 404, "zone_not_found")
    ids = [item["id"] for page in (first, rest) for item in page.json()["items"]]
    assert ids == created[::-1]
    assert rest.json()["next_cursor"] is None


async def test_revoke_is_idempotent_and_404_for_an_unknown_key(zone: FreshZone) -> None:
    created = await create_key(zone)
    for _ in range(2):
        assert (await revoke(zone, created["id"])).status_code == 204
    assert_problem(await revoke(zone, "no-such-key"), 404, "key_not_found")
    [item] = await list_keys(zone)
    assert item["status"] == "revoked"
    types = [event["type"] for event in await read_events(zone, subject=created["id"])]
    assert types == ["key.create", "key.revoke"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"scopes": [ADMIN]}, "scopes"),
        ({"scopes": [LIFECYCLE, ADMIN]}, "scopes"),
        ({"scopes": [f"{LIFECYCLE} {ADMIN}"]}, "scopes[0]"),
        ({"scopes": []}, "scopes"),
        ({"scopes": "agent:lifecycle"}, "scopes"),
        ({"scopes": ["a"] * 33}, "scopes"),
        ({"scopes": [""]}, "scopes[0]"),
        ({"name": ""}, "name"),
        ({"name": "n" * 201}, "name"),
        ({"name": 7}, "name"),
        ({"application_id": "a b"}, "application_id"),
        ({"application_id": None}, "application_id"),
        ({"session_id": "../x"}, "session_id"),
        ({"ttl_seconds": 0}, "ttl_seconds"),
        ({"ttl_seconds": -1}, "ttl_seconds"),
        ({"ttl_seconds": 10**12}, "ttl_seconds"),
        ({"ttl_seconds": "1h"}, "ttl_seconds"),
    ],
)
async def test_malformed_key_request_returns_400_with_its_field_and_creates_nothing(
    zone: FreshZone, fields: dict[str, object], field: str
) -> None:
    async with zone.server.client() as admin:
        response = await admin.post(f"{zone.path}/keys", json={"application_id": APP, **fields})
        missing = await admin.post(f"{zone.path}/keys", json={})
    assert assert_problem(response, 400)["field"] == field
    assert_problem(missing, 400, "invalid_body")
    assert await list_keys(zone) == []


async def test_no_key_is_created_in_an_unknown_or_ended_zone(zone: FreshZone) -> None:
    async with zone.server.client() as admin:
        unknown = await admin.post("/zones/no-such-zone/keys", json={"application_id": APP})
        assert_problem(unknown, 404, "zone_not_found")
        assert (await admin.delete(zone.path)).status_code == 204
        ended = await admin.post(f"{zone.path}/keys", json={"application_id": APP})
        assert_problem(ended, 409, "zone_ended")


# -- requests with a key -----------------------------------------------------------------------------------------


async def test_key_is_accepted_only_on_routes_of_its_scopes(zone: FreshZone) -> None:
    created = await create_key(zone, scopes=[LIFECYCLE, "coordinator.admin"])
    async with key_client(zone, created["key"]) as client:
        session = (await spawn(client, zone))["id"]
        for row in await read_route_table(zone.server):
            request = row.request_for(zone.id, "absent" if row.method == "DELETE" else session)
            response = await client.request(**request)
            if row.scope == ADMIN:
                assert_problem(response, 403, "missing_scope")
            else:
                assert response.status_code in (200, 201, 204, 404, 409), (str(row), response.text)


@pytest.mark.parametrize("scopes", [["agent"], ["agent:lifecycles"], ["quarterdeck.metrics"]])
async def test_key_without_the_required_scope_is_403_on_every_route(zone: FreshZone, scopes: Sequence[str]) -> None:
    created = await create_key(zone, scopes=scopes)
    async with key_client(zone, created["key"]) as client:
        for row in await read_route_table(zone.server):
            if row.scope is not None:
                response = await client.request(row.method, row.path_for(zone.id), content=b"{")
                assert_problem(response, 403, "missing_scope")


async def test_key_is_refused_in_another_zone(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    created = await create_key(zone, scopes=[LIFECYCLE, "coordinator.admin"])
    async with key_client(zone, created["key"]) as client:
        assert_problem(await client.get(other.path), 403, "zone_mismatch")
        assert_problem(await client.get("/zones/default"), 403, "zone_mismatch")


async def test_keys_of_a_zone_with_dots_in_its_id_work(zone: FreshZone) -> None:
    dotted = FreshZone(zone.server, f"{zone.id}.eu-1.{'0' * 36}.{'f' * 64}"[:128])
    async with zone.server.client() as admin:
        assert (await admin.put(dotted.path, json={})).status_code == 201
    created = await create_key(dotted)
    async with key_client(dotted, created["key"]) as client:
        assert (await client.get(dotted.path)).status_code == 200
        assert_problem(await client.get(zone.path), 403, "zone_mismatch")


async def test_admin_scope_in_a_stored_key_is_ignored(zone: FreshZone) -> None:
    created = await create_key(zone)
    DirectDatabase(zone.server.launch.database_url).execute(
        "update api_keys set scopes = ? where id = ?", f"{LIFECYCLE} {ADMIN}", created["id"]
    )
    async with key_client(zone, created["key"]) as client:
        assert_problem(await client.get("/zones"), 403, "missing_scope")
        assert_problem(await client.get("/zones/default"), 403, "zone_mismatch")
        assert (await client.get(zone.path)).status_code == 200


# -- requests with an invalid key --------------------------------------------------------------------------------


async def test_every_invalid_key_gets_the_same_401_on_every_route(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    valid, revoked, expired, foreign = [await create_key(each) for each in (zone, zone, zone, other)]
    await revoke(zone, revoked["id"])
    database = DirectDatabase(zone.server.launch.database_url)
    database.execute("update api_keys set expires_at = 1 where id = ?", expired["id"])
    secret = valid["key"].rpartition(".")[2]
    invalid = {
        "revoked": revoked["key"],
        "expired": expired["key"],
        "secret of another key": valid["key"].replace(secret, foreign["key"].rpartition(".")[2]),
        "one digit off": valid["key"][:-1] + ("0" if valid["key"][-1] != "0" else "1"),
        "another zone": valid["key"].replace(f"qd_{zone.id}.", f"qd_{other.id}."),
        "no such zone": valid["key"].replace(f"qd_{zone.id}.", "qd_no-such-zone."),
        "no such id": valid["key"].replace(valid["id"], "0" * 36),
        "cut short": valid["key"][:-1],
        "longer": valid["key"] + "0",
        "upper case": valid["key"].upper(),
        "not a key": "let-me-in",
        "a token": zone.token(),
        "trailing text": f"{valid['key']} x",
        "two keys in one header": f"{valid['key']}, {valid['key']}",
        "huge": "qd_" + "z" * 30_000,
        "a huge secret": valid["key"] + "0" * 30_000,
        "sql": f"qd_{zone.id}' or '1'='1.{valid['id']}.{secret}",
    }
    # Every invalid key is tried on some routes. Two keys that the server must look up are tried on every route.
    rows = [row for row in await read_route_table(zone.server) if row.scope]
    for name, key in invalid.items():
        async with key_client(zone, key) as client:
            for row in rows if name in ("revoked", "one digit off") else rows[::20]:
                response = await client.request(row.method, row.path_for(zone.id), content=b"{")
                assert assert_problem(response, 401, "invalid_token")["detail"] == INVALID_KEY_DETAIL, name
                assert response.headers["www-authenticate"].startswith("Bearer")
                assert key[:20] not in response.text or len(key) < 20
    async with key_client(zone, valid["key"]) as client:
        assert (await client.get(zone.path)).status_code == 200


async def get_zone_with_headers(zone: FreshZone, *lines: bytes) -> tuple[int, str]:
    """Requests the zone with exactly these header lines. Returns the status and the error code."""
    connection = await RawConnection.open(zone.server.url)
    head = [f"GET {zone.path} HTTP/1.1".encode(), b"Host: x", *lines, b"", b""]
    response = await connection.send_and_read(b"\r\n".join(head))
    await connection.close()
    return response.status, str(response.json().get("error"))


async def test_two_credentials_in_one_request_are_refused_in_any_order(zone: FreshZone) -> None:
    key, other = [(await create_key(zone))["key"].encode() for _ in range(2)]
    token = zone.token().encode()
    by_key, by_token = b"X-API-Key: " + key, b"Authorization: Bearer " + token
    assert await get_zone_with_headers(zone, by_key) == (200, "None")
    assert await get_zone_with_headers(zone, by_token) == (200, "None")
    pairs = [
        (by_key, by_token),
        (by_token, by_key),
        (by_key, by_key),
        (by_key, b"x-api-key: " + other),
        (by_token, by_token),
        (b"Authorization: Basic YTpi", by_key),
        (b"X-API-Key: x", by_token),
        (b"X-Api-Key: ", by_key),
    ]
    for pair in pairs:
        assert await get_zone_with_headers(zone, *pair) == (401, "invalid_token"), pair


async def test_empty_credential_header_is_ignored(zone: FreshZone) -> None:
    key = (await create_key(zone))["key"].encode()
    assert await get_zone_with_headers(zone, b"X-API-Key:") == (401, "missing_token")
    assert await get_zone_with_headers(zone, b"X-API-Key:", b"Authorization: Bearer " + zone.token().encode()) == (
        200,
        "None",
    )
    assert await get_zone_with_headers(zone, b"Authorization:", b"X-API-Key: " + key) == (200, "None")


@pytest.mark.parametrize(
    "junk", [b"\xff\xfe\x80", "qd_ż.ż.ż".encode(), b"\xc0\x80", b"qd_z\xa0.x.y", b"%00", b"\x01\x02"]
)
async def test_key_with_non_text_bytes_is_refused(zone: FreshZone, junk: bytes) -> None:
    status, error = await get_zone_with_headers(zone, b"X-API-Key: " + junk)
    assert (status, error) in ((401, "invalid_token"), (400, "invalid_http"))
    key = (await create_key(zone))["key"].encode()
    status, error = await get_zone_with_headers(zone, b"X-API-Key: " + key + junk)
    assert (status, error) in ((401, "invalid_token"), (400, "invalid_http"))


async def test_key_is_checked_for_validity_then_scope_then_zone(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    unscoped = (await create_key(zone, scopes=["x"]))["key"]
    scoped = (await create_key(zone))["key"]
    expected = [
        ("", "missing_token"),
        ("qd_x", "invalid_token"),
        (unscoped, "missing_scope"),
        (scoped, "zone_mismatch"),
    ]
    for key, error in expected:
        async with key_client(other, key) as client:
            assert_problem(await client.get(other.path), 401 if "token" in error else 403, error)


# -- revocation and ended sessions -------------------------------------------------------------------------------


async def test_key_is_refused_as_soon_as_its_revocation_returns(zone: FreshZone) -> None:
    created = await create_key(zone)
    async with key_client(zone, created["key"]) as client:
        for _ in range(5):
            assert (await client.get(zone.path)).status_code == 200
        await revoke(zone, created["id"])
        responses = await asyncio.gather(*(client.get(zone.path) for _ in range(20)))
    for response in responses:
        assert_problem(response, 401, "invalid_token")


async def test_session_key_is_valid_only_while_the_session_is_live(zone: FreshZone) -> None:
    async with zone.client() as owner:
        session = (await spawn(owner, zone))["id"]
        created = await create_key(zone, session_id=session)
        assert created["session_id"] == session
        async with key_client(zone, created["key"]) as client:
            child = await spawn(client, zone, parent_id=session)
            await end(owner, zone, session)
            assert_problem(await client.get(zone.sessions_path), 401, "session_ended")
            assert_problem(await client.post(zone.sessions_path, json={"application_id": APP}), 401, "session_ended")
        assert json_object(await owner.get(zone.session_path(child["id"])))["status"] == "terminated"


async def read_last_line(stream: httpx.Response) -> str:
    """Reads a stream to its end. The last line is the reason for the end."""
    async with asyncio.timeout(20):
        lines = [line async for line in stream.aiter_lines() if line]
    return lines[-1]


async def test_stream_ends_when_its_key_is_revoked_or_its_session_ends(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_STREAM_RECHECK_MS="50"))
    zone = await create_zone(server)
    follow = ("GET", f"{zone.path}/events")
    accept = {"accept": "text/event-stream"}
    async with zone.client() as owner:
        session = (await spawn(owner, zone))["id"]
        plain, bound = await create_key(zone), await create_key(zone, session_id=session)
        async with key_client(zone, plain["key"]) as client, client.stream(*follow, headers=accept) as stream:
            assert stream.status_code == 200
            await revoke(zone, plain["id"])
            assert await read_last_line(stream) == ": over, invalid_token"
        async with key_client(zone, bound["key"]) as client, client.stream(*follow, headers=accept) as stream:
            assert stream.status_code == 200
            await end(owner, zone, session)
            assert "over" in await read_last_line(stream)


async def test_server_log_contains_no_key_or_token(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_LOG_LEVEL="debug"))
    zone = await create_zone(server)
    created = await create_key(zone, name="secretive")
    async with key_client(zone, created["key"]) as client:
        await client.get(zone.path)
        await client.get(f"{zone.path}/nowhere")
        await client.post(zone.sessions_path, content=b"{")
    async with key_client(zone, created["key"][:-1]) as client:
        await client.get(zone.path)
    await server.stop()
    secret = created["key"].rpartition(".")[2]
    assert '"message":"request"' in server.log_text
    assert secret[:16] not in server.log_text
    assert f"qd_{zone.id}" not in server.log_text
    assert zone.token()[:16] not in server.log_text


async def test_default_key_scope_follows_agent_coordinator_scope(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(AGENT_COORDINATOR_SCOPE="fleet:run"))
    zone = await create_zone(server)
    created = await create_key(zone)
    assert created["scopes"] == ["fleet:run"]
    async with key_client(zone, created["key"]) as client:
        assert (await client.get(zone.path)).status_code == 200


async def test_metrics_beyond_loopback_need_their_scope_and_a_live_session(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_HOST="0.0.0.0"))
    server.url = server.url.replace("0.0.0.0", "127.0.0.1")
    zone = await create_zone(server)
    async with zone.client() as owner:
        session = (await spawn(owner, zone))["id"]
        plain = await create_key(zone, scopes=["quarterdeck.metrics"])
        bound = await create_key(zone, scopes=["quarterdeck.metrics"], session_id=session)
        token = zone.token("quarterdeck.metrics", session_id=session)
        async with key_client(zone, bound["key"]) as client:
            assert (await client.get("/metrics")).status_code == 200
            await end(owner, zone, session)
            assert_problem(await client.get("/metrics"), 401, "session_ended")
        async with zone.client(token) as client:
            assert_problem(await client.get("/metrics"), 401, "session_ended")
        async with key_client(zone, plain["key"]) as client:
            assert (await client.get("/metrics")).status_code == 200
