"""API keys over HTTP: made, listed, revoked; and what a request is told that comes with one, with two, or with a bad
one."""

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

ONE_SENTENCE = "The API key is malformed, unknown, revoked or expired."
KEY = re.compile(r"qd_([\w.:-]+)\.([0-9a-f-]{36})\.([0-9a-f]{64})")


async def make(zone: FreshZone, **asked: object) -> dict[str, Any]:
    async with zone.server.client() as admin:
        answer = await admin.post(f"{zone.path}/keys", json={"application_id": APP, **asked})
    assert answer.status_code == 201, answer.text
    return json_object(answer)


async def revoke(zone: FreshZone, key_id: str) -> httpx.Response:
    async with zone.server.client() as admin:
        return await admin.delete(f"{zone.path}/keys/{key_id}")


@asynccontextmanager
async def bearing(zone: FreshZone, key: str) -> AsyncIterator[httpx.AsyncClient]:
    async with zone.server.client("") as client:
        client.headers["X-API-Key"] = key
        yield client


async def listed(zone: FreshZone) -> list[dict[str, Any]]:
    async with zone.server.client() as admin:
        items: list[dict[str, Any]] = (await admin.get(f"{zone.path}/keys")).json()["items"]
    return items


# -- made, listed, revoked ---------------------------------------------------------------------------------------


async def test_a_key_is_shown_once_and_nowhere_else(zone: FreshZone) -> None:
    made = await make(zone, name="for the nightly job", scopes=["a", "b"], ttl_seconds=60)
    found = KEY.fullmatch(made["key"])
    assert found is not None
    assert (found[1], found[2]) == (zone.id, made["id"])
    [item] = await listed(zone)
    assert item == {name: value for name, value in made.items() if name != "key"}
    assert (item["name"], item["scopes"], item["status"]) == ("for the nightly job", ["a", "b"], "live")
    assert (item["created_by"], item["application_id"], item["session_id"]) == ("local", APP, None)
    assert found[3] not in str(await read_events(zone))
    [stored] = DirectDatabase(zone.server.launch.database_url).execute(
        "select * from api_keys where id = ?", made["id"]
    )
    assert found[3] not in str(stored)


async def test_the_answer_that_holds_a_secret_is_for_nobody_in_between(zone: FreshZone) -> None:
    async with zone.server.client() as admin:
        made = await admin.post(f"{zone.path}/keys", json={"application_id": APP})
    assert made.headers["cache-control"] == "no-store"


async def test_two_keys_have_nothing_in_common_that_could_be_guessed_from_one(zone: FreshZone) -> None:
    secrets = [KEY.fullmatch((await make(zone))["key"]) for _ in range(5)]
    assert len({found[3] for found in secrets if found}) == 5


async def test_a_key_without_a_word_about_it_may_do_what_the_agent_plane_needs(zone: FreshZone) -> None:
    made = await make(zone)
    assert (made["name"], made["scopes"], made["expires_at"]) == (APP, [LIFECYCLE], None)
    async with bearing(zone, made["key"]) as client:
        session = await spawn(client, zone)
    assert session["session_sid"] == f"key:{made['id']}"
    [told] = await read_events(zone, subject=session["id"])
    assert told["actor"] == f"key:{made['id']}"


async def test_keys_are_listed_newest_first_page_by_page(zone: FreshZone) -> None:
    made = [(await make(zone))["id"] for _ in range(3)]
    async with zone.server.client() as admin:
        first = await admin.get(f"{zone.path}/keys", params={"limit": 2})
        rest = await admin.get(first.headers["link"].partition(">")[0].strip("<"))
        other = await admin.get("/zones", params={"limit": 1})
        cursor = other.json()["next_cursor"]
        assert_problem(await admin.get(f"{zone.path}/keys?cursor={cursor}"), 400, "invalid_cursor")
        assert_problem(await admin.get("/zones/no-such-zone/keys"), 404, "zone_not_found")
    ids = [item["id"] for page in (first, rest) for item in page.json()["items"]]
    assert ids == made[::-1]
    assert rest.json()["next_cursor"] is None


async def test_revoking_answers_204_and_again_204_and_404_for_what_was_never_there(zone: FreshZone) -> None:
    made = await make(zone)
    for _ in range(2):
        assert (await revoke(zone, made["id"])).status_code == 204
    assert_problem(await revoke(zone, "no-such-key"), 404, "key_not_found")
    [item] = await listed(zone)
    assert item["status"] == "revoked"
    told = [event["type"] for event in await read_events(zone, subject=made["id"])]
    assert told == ["key.create", "key.revoke"]


@pytest.mark.parametrize(
    ("asked", "field"),
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
async def test_a_malformed_wish_is_400_with_its_field_and_makes_nothing(
    zone: FreshZone, asked: dict[str, object], field: str
) -> None:
    async with zone.server.client() as admin:
        answer = await admin.post(f"{zone.path}/keys", json={"application_id": APP, **asked})
        missing = await admin.post(f"{zone.path}/keys", json={})
    assert assert_problem(answer, 400)["field"] == field
    assert_problem(missing, 400, "invalid_body")
    assert await listed(zone) == []


async def test_no_key_is_made_in_a_zone_that_is_not_there_or_has_ended(zone: FreshZone) -> None:
    async with zone.server.client() as admin:
        nowhere = await admin.post("/zones/no-such-zone/keys", json={"application_id": APP})
        assert_problem(nowhere, 404, "zone_not_found")
        assert (await admin.delete(zone.path)).status_code == 204
        over = await admin.post(f"{zone.path}/keys", json={"application_id": APP})
        assert_problem(over, 409, "zone_ended")


# -- coming with one ---------------------------------------------------------------------------------------------


async def test_a_key_is_good_on_the_routes_its_scopes_are_for_and_403_on_the_others(zone: FreshZone) -> None:
    made = await make(zone, scopes=[LIFECYCLE, "coordinator.admin"])
    async with bearing(zone, made["key"]) as client:
        session = (await spawn(client, zone))["id"]
        for row in await read_route_table(zone.server):
            asked = row.request_for(zone.id, "absent" if row.method == "DELETE" else session)
            answer = await client.request(**asked)
            if row.scope == ADMIN:
                assert_problem(answer, 403, "missing_scope")
            else:
                assert answer.status_code in (200, 201, 204, 404, 409), (str(row), answer.text)


@pytest.mark.parametrize("scopes", [["agent"], ["agent:lifecycles"], ["quarterdeck.metrics"]])
async def test_a_key_without_the_routes_scope_is_403_on_every_route(zone: FreshZone, scopes: Sequence[str]) -> None:
    made = await make(zone, scopes=scopes)
    async with bearing(zone, made["key"]) as client:
        for row in await read_route_table(zone.server):
            if row.scope is not None:
                answer = await client.request(row.method, row.path_for(zone.id), content=b"{")
                assert_problem(answer, 403, "missing_scope")


async def test_a_key_is_for_its_own_zone_alone(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    made = await make(zone, scopes=[LIFECYCLE, "coordinator.admin"])
    async with bearing(zone, made["key"]) as client:
        assert_problem(await client.get(other.path), 403, "zone_mismatch")
        assert_problem(await client.get("/zones/default"), 403, "zone_mismatch")


async def test_the_name_of_a_zone_may_hold_dots_and_its_keys_work_all_the_same(zone: FreshZone) -> None:
    dotted = FreshZone(zone.server, f"{zone.id}.eu-1.{'0' * 36}.{'f' * 64}"[:128])
    async with zone.server.client() as admin:
        assert (await admin.put(dotted.path, json={})).status_code == 201
    made = await make(dotted)
    async with bearing(dotted, made["key"]) as client:
        assert (await client.get(dotted.path)).status_code == 200
        assert_problem(await client.get(zone.path), 403, "zone_mismatch")


async def test_a_scope_that_crosses_zones_crosses_none_should_it_stand_in_the_database(zone: FreshZone) -> None:
    made = await make(zone)
    DirectDatabase(zone.server.launch.database_url).execute(
        "update api_keys set scopes = ? where id = ?", f"{LIFECYCLE} {ADMIN}", made["id"]
    )
    async with bearing(zone, made["key"]) as client:
        assert_problem(await client.get("/zones"), 403, "missing_scope")
        assert_problem(await client.get("/zones/default"), 403, "zone_mismatch")
        assert (await client.get(zone.path)).status_code == 200


# -- coming with a bad one ---------------------------------------------------------------------------------------


async def test_every_key_that_opens_nothing_is_refused_in_the_same_words_on_every_route(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    good, revoked, expired, theirs = [await make(each) for each in (zone, zone, zone, other)]
    await revoke(zone, revoked["id"])
    side = DirectDatabase(zone.server.launch.database_url)
    side.execute("update api_keys set expires_at = 1 where id = ?", expired["id"])
    secret = good["key"].rpartition(".")[2]
    bad = {
        "revoked": revoked["key"],
        "expired": expired["key"],
        "another's secret": good["key"].replace(secret, theirs["key"].rpartition(".")[2]),
        "one digit off": good["key"][:-1] + ("0" if good["key"][-1] != "0" else "1"),
        "another zone": good["key"].replace(f"qd_{zone.id}.", f"qd_{other.id}."),
        "no such zone": good["key"].replace(f"qd_{zone.id}.", "qd_no-such-zone."),
        "no such id": good["key"].replace(good["id"], "0" * 36),
        "cut short": good["key"][:-1],
        "longer": good["key"] + "0",
        "upper case": good["key"].upper(),
        "no key at all": "let-me-in",
        "a token": zone.token(),
        "spaces": f"{good['key']} x",
        "two in one": f"{good['key']}, {good['key']}",
        "huge": "qd_" + "z" * 30_000,
        "a huge secret": good["key"] + "0" * 30_000,
        "sql": f"qd_{zone.id}' or '1'='1.{good['id']}.{secret}",
    }
    # Each of them on some routes, and each route with those that somebody must look for before they are refused.
    rows = [row for row in await read_route_table(zone.server) if row.scope]
    for name, key in bad.items():
        async with bearing(zone, key) as client:
            for row in rows if name in ("revoked", "one digit off") else rows[::20]:
                answer = await client.request(row.method, row.path_for(zone.id), content=b"{")
                assert assert_problem(answer, 401, "invalid_token")["detail"] == ONE_SENTENCE, name
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert key[:20] not in answer.text or len(key) < 20
    async with bearing(zone, good["key"]) as client:
        assert (await client.get(zone.path)).status_code == 200


async def raw(zone: FreshZone, *lines: bytes) -> tuple[int, str]:
    """Asks for the zone with exactly these header lines."""
    connection = await RawConnection.open(zone.server.url)
    head = [f"GET {zone.path} HTTP/1.1".encode(), b"Host: x", *lines, b"", b""]
    answer = await connection.send_and_read(b"\r\n".join(head))
    await connection.close()
    return answer.status, str(answer.json().get("error"))


async def test_two_credentials_are_refused_whichever_comes_first_and_however_good_they_are(zone: FreshZone) -> None:
    key, other = [(await make(zone))["key"].encode() for _ in range(2)]
    token = zone.token().encode()
    by_key, by_token = b"X-API-Key: " + key, b"Authorization: Bearer " + token
    assert await raw(zone, by_key) == (200, "None")
    assert await raw(zone, by_token) == (200, "None")
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
        assert await raw(zone, *pair) == (401, "invalid_token"), pair


async def test_an_empty_header_is_no_credential(zone: FreshZone) -> None:
    key = (await make(zone))["key"].encode()
    assert await raw(zone, b"X-API-Key:") == (401, "missing_token")
    assert await raw(zone, b"X-API-Key:", b"Authorization: Bearer " + zone.token().encode()) == (200, "None")
    assert await raw(zone, b"Authorization:", b"X-API-Key: " + key) == (200, "None")


@pytest.mark.parametrize(
    "junk", [b"\xff\xfe\x80", "qd_ż.ż.ż".encode(), b"\xc0\x80", b"qd_z\xa0.x.y", b"%00", b"\x01\x02"]
)
async def test_bytes_that_are_no_text_are_a_bad_key_like_any_other(zone: FreshZone, junk: bytes) -> None:
    status, error = await raw(zone, b"X-API-Key: " + junk)
    assert (status, error) in ((401, "invalid_token"), (400, "invalid_http"))
    key = (await make(zone))["key"].encode()
    status, error = await raw(zone, b"X-API-Key: " + key + junk)
    assert (status, error) in ((401, "invalid_token"), (400, "invalid_http"))


async def test_the_refusals_come_in_the_contracts_order_for_keys_too(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    weak = (await make(zone, scopes=["x"]))["key"]
    strong = (await make(zone))["key"]
    expected = [("", "missing_token"), ("qd_x", "invalid_token"), (weak, "missing_scope"), (strong, "zone_mismatch")]
    for key, error in expected:
        async with bearing(other, key) as client:
            assert_problem(await client.get(other.path), 401 if "token" in error else 403, error)


# -- from the commit on ------------------------------------------------------------------------------------------


async def test_a_key_is_refused_from_the_answer_to_its_revocation_on(zone: FreshZone) -> None:
    made = await make(zone)
    async with bearing(zone, made["key"]) as client:
        for _ in range(5):
            assert (await client.get(zone.path)).status_code == 200
        await revoke(zone, made["id"])
        answers = await asyncio.gather(*(client.get(zone.path) for _ in range(20)))
    for answer in answers:
        assert_problem(answer, 401, "invalid_token")


async def test_a_key_of_a_session_is_good_while_that_session_lives(zone: FreshZone) -> None:
    async with zone.client() as owner:
        session = (await spawn(owner, zone))["id"]
        made = await make(zone, session_id=session)
        assert made["session_id"] == session
        async with bearing(zone, made["key"]) as client:
            child = await spawn(client, zone, parent_id=session)
            await end(owner, zone, session)
            assert_problem(await client.get(zone.sessions_path), 401, "session_ended")
            assert_problem(await client.post(zone.sessions_path, json={"application_id": APP}), 401, "session_ended")
        assert json_object(await owner.get(zone.session_path(child["id"])))["status"] == "terminated"


async def over(stream: httpx.Response) -> str:
    """The last word of a stream: why it ended."""
    async with asyncio.timeout(20):
        lines = [line async for line in stream.aiter_lines() if line]
    return lines[-1]


async def test_a_stream_that_a_key_opened_ends_when_the_key_is_revoked_or_its_session_ends(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch.with_environment(QD_STREAM_RECHECK_MS="50"))
    zone = await create_zone(server)
    follow = ("GET", f"{zone.path}/events")
    accept = {"accept": "text/event-stream"}
    async with zone.client() as owner:
        session = (await spawn(owner, zone))["id"]
        plain, bound = await make(zone), await make(zone, session_id=session)
        async with bearing(zone, plain["key"]) as client, client.stream(*follow, headers=accept) as stream:
            assert stream.status_code == 200
            await revoke(zone, plain["id"])
            assert await over(stream) == ": over, invalid_token"
        async with bearing(zone, bound["key"]) as client, client.stream(*follow, headers=accept) as stream:
            assert stream.status_code == 200
            await end(owner, zone, session)
            assert "over" in await over(stream)


async def test_neither_a_key_nor_any_header_is_in_the_log(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_LOG_LEVEL="debug"))
    zone = await create_zone(server)
    made = await make(zone, name="secretive")
    async with bearing(zone, made["key"]) as client:
        await client.get(zone.path)
        await client.get(f"{zone.path}/nowhere")
        await client.post(zone.sessions_path, content=b"{")
    async with bearing(zone, made["key"][:-1]) as client:
        await client.get(zone.path)
    await server.stop()
    secret = made["key"].rpartition(".")[2]
    assert '"message":"request"' in server.log_text
    assert secret[:16] not in server.log_text
    assert f"qd_{zone.id}" not in server.log_text
    assert zone.token()[:16] not in server.log_text


async def test_a_server_that_calls_the_agent_planes_scope_otherwise_makes_keys_for_that(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch.with_environment(AGENT_COORDINATOR_SCOPE="fleet:run"))
    zone = await create_zone(server)
    made = await make(zone)
    assert made["scopes"] == ["fleet:run"]
    async with bearing(zone, made["key"]) as client:
        assert (await client.get(zone.path)).status_code == 200


async def test_beyond_loopback_the_figures_are_for_whoever_holds_their_scope_and_ends_with_its_session(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch.with_environment(QD_HOST="0.0.0.0"))
    server.url = server.url.replace("0.0.0.0", "127.0.0.1")
    zone = await create_zone(server)
    async with zone.client() as owner:
        session = (await spawn(owner, zone))["id"]
        plain = await make(zone, scopes=["quarterdeck.metrics"])
        bound = await make(zone, scopes=["quarterdeck.metrics"], session_id=session)
        token = zone.token("quarterdeck.metrics", session_id=session)
        async with bearing(zone, bound["key"]) as client:
            assert (await client.get("/metrics")).status_code == 200
            await end(owner, zone, session)
            assert_problem(await client.get("/metrics"), 401, "session_ended")
        async with zone.client(token) as client:
            assert_problem(await client.get("/metrics"), 401, "session_ended")
        async with bearing(zone, plain["key"]) as client:
            assert (await client.get("/metrics")).status_code == 200
