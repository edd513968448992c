"""Bad input on every route: a 4xx that names the mistake, never a 5xx, and nothing written."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from quarterdeck.domain.zones.model import DEFAULT_ZONE
from tests.support.engine_marks import ON_SQLITE
from tests.support.raw_http import RawConnection, build_request
from tests.support.route_table import RouteRow, read_route_table
from tests.support.runtime import DirectDatabase
from tests.support.server import ServerProcess
from tests.support.zone import APP, FreshZone, assert_problem, read_events, spawn

KIB = 1024
BIG = 300 * KIB


def nested(levels: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * levels + closing * levels


MALFORMED = {
    "an opening brace": b"{",
    "two values": b"{} {}",
    "a trailing comma": b'{"application_id":"app",}',
    "single quotes": b"{'application_id':'app'}",
    "a bare word": b"hello",
    "NaN": b'{"application_id":"app","metadata":{"x":NaN}}',
    "a comment": b'{"application_id":"app"} // hi',
    "an unfinished string": b'{"application_id":"ap',
    "an unfinished escape": b'{"application_id":"\\u12',
    "a NUL byte": b"\x00",
    "a NUL byte in a string": b'{"application_id":"a\x00b"}',
    "a raw line feed in a string": b'{"application_id":"a\nb"}',
    "an escaped NUL": b'{"application_id":"app","name":"\\u0000","metadata":{"x":"\\u0000"}}',
    "an escaped NUL in a name": b'{"application_id":"app","metadata":{"\\u0000":1},"quotas":{"\\u0000":1}}',
    "a lone high surrogate": b'{"application_id":"app","metadata":{"x":"\\ud83d"},"name":"\\ud83d"}',
    "a lone low surrogate": b'{"application_id":"app","metadata":{"x":"\\udca9"},"name":"\\udca9"}',
    "surrogates in the wrong order": b'{"application_id":"app","name":"\\udca9\\ud83d","metadata":["\\udca9\\ud83d"]}',
    "a surrogate in UTF-8": b'{"application_id":"app","metadata":{"x":"\xed\xa0\xbd"},"name":"\xed\xa0\xbd"}',
    "bytes that are not UTF-8": b'{"application_id":"app","metadata":{"x":"\xff\xfe"},"name":"\xff"}',
    "overlong UTF-8": b'{"application_id":"app","metadata":{"x":"\xc0\x80"},"name":"\xc0\x80"}',
    "UTF-16": '{"application_id":"app"}'.encode("utf-16"),
    "a byte order mark": b'\xef\xbb\xbf{"application_id":"app"}',
    "gzip": bytes.fromhex("1f8b08000000000002ffab5602000000ffff"),
    "an integer beyond 64 bits": b'{"application_id":"app","metadata":{"x":%d},"quotas":{"max_depth":%d}}'
    % (2**63, 2**64),
    "an integer of 5,000 digits": b'{"application_id":"app","metadata":{"x":%s},"quotas":{"max_depth":%s}}'
    % (b"9" * 5000, b"9" * 5000),
    "a number beyond a float": b'{"application_id":"app","metadata":{"x":1e999},"quotas":{"max_depth":1e999},'
    b'"ttl_seconds":1e999,"reason":1e999,"cursor":1e999,"attempt_token":1e999,"claim_id":1e999,"max":1e999,'
    b'"name":1e999,"ttlSeconds":1e999,"attemptToken":1e999,"description":1e999,"workspaceId":1e999}',
    "65 levels": b'{"application_id":"app","metadata":{"x":%s}}' % nested(63),
    "1,000 levels": nested(1_000),
    "100,000 levels": nested(100_000),
    "100,000 levels of objects without an end": b'{"a":' * 50_000,
    "65 levels after many shallow ones": b'{"application_id":"app","metadata":{"x":[%s,%s]}}'
    % (b",".join([nested(61)] * 100), nested(62)),
    "an array": b"[]",
    "null": b"null",
    "a number": b"17",
    "a string": b'"application_id"',
}  # fmt: skip


ENGINE_DEPENDENT = (
    "an escaped NUL", "an escaped NUL in a name", "a lone high surrogate", "a lone low surrogate",
    "surrogates in the wrong order", "a surrogate in UTF-8", "bytes that are not UTF-8", "overlong UTF-8",
    "an integer beyond 64 bits", "an integer of 5,000 digits", "a number beyond a float", "65 levels",
)  # fmt: skip
"""Bodies that one engine could store and the other not. They are tried on both engines, the others on SQLite only."""


@asynccontextmanager
async def assert_nothing_written(server: ServerProcess, zone_id: str = DEFAULT_ZONE) -> AsyncIterator[None]:
    """The block must leave the row counts and events unchanged."""
    before = count_rows(server, zone_id)
    yield
    assert count_rows(server, zone_id) == before


def count_rows(server: ServerProcess, zone_id: str) -> dict[str, int]:
    database = DirectDatabase(server.launch.database_url)
    counts = {table: database.count(table) for table in ("zones", "agent_sessions", "idempotency_keys")}
    # Without events of the server itself: a sweep may still process rows of an earlier test.
    events = database.execute(
        "select type || ' by ' || actor, count(*) from events where actor <> 'server' and zone_id in (?, ?) group by 1",
        zone_id,
        DEFAULT_ZONE,
    )
    return {**counts, **{str(type_and_actor): int(str(count)) for type_and_actor, count in events}}


async def routes_with_body(server: ServerProcess) -> list[RouteRow]:
    rows = [row for row in await read_route_table(server) if row.has_body]
    assert len(rows) >= 3
    return rows


@pytest.mark.parametrize(
    ("server", "body"),
    [
        pytest.param(engine, body, id=f"{engine}-{name}")
        for engine in ("sqlite", "postgresql")
        for name, body in MALFORMED.items()
        if engine == "sqlite" or name in ENGINE_DEPENDENT
    ],
    indirect=["server"],
)
async def test_malformed_body_is_400_on_every_route_with_a_body(zone: FreshZone, body: bytes) -> None:
    async with zone.server.client() as client, assert_nothing_written(zone.server, zone.id):
        for row in await routes_with_body(zone.server):
            response = await client.request(row.method, row.path_for(zone.id), content=body)
            assert_problem(response, 400)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("application_id", None), ("application_id", 7), ("application_id", ""), ("application_id", "a b"),
        ("application_id", "a/b"), ("application_id", "é"), ("application_id", "app\n"), ("application_id", "a" * 129),
        ("session_sid", ""), ("session_sid", "s" * 257), ("session_sid", 1),
        ("parent_id", ""), ("parent_id", []), ("parent_id", "x\n"), ("parent_id", "../x"),
        ("kind", "robot"), ("kind", ""), ("kind", None),
        ("capabilities", "search"), ("capabilities", [""]), ("capabilities", ["c" * 257]), ("capabilities", [1]),
        ("capabilities", ["x"] * 257), ("capabilities", None), ("capabilities", {}),
        ("ttl_seconds", 0), ("ttl_seconds", 86_401), ("ttl_seconds", -1), ("ttl_seconds", "60"), ("ttl_seconds", 1.5),
        ("ttl_seconds", True), ("ttl_seconds", None),
        ("metadata", []), ("metadata", "x"), ("metadata", None), ("metadata", 1),
        ("idempotency_key", 1), ("idempotency_key", {}),
    ],
)  # fmt: skip
@ON_SQLITE
async def test_refused_spawn_names_the_invalid_field(zone: FreshZone, field: str, value: Any) -> None:
    async with zone.server.client() as client, assert_nothing_written(zone.server, zone.id):
        body = {"application_id": APP, field: value}
        refused = assert_problem(await client.post(zone.sessions_path, json=body), 400)
    assert refused["field"].split("[")[0] == field


@ON_SQLITE
async def test_missing_field_is_named_in_the_detail(zone: FreshZone) -> None:
    async with zone.server.client() as client:
        for content in (b"", b" \n", b"{}"):
            refused = assert_problem(await client.post(zone.sessions_path, content=content), 400)
            assert "application_id" in refused["detail"]


async def test_64_levels_of_nesting_are_stored_and_returned(zone: FreshZone) -> None:
    deep = json.loads(nested(62))
    async with zone.client() as client:
        session = await spawn(client, zone, metadata={"x": deep})
        assert (await client.get(zone.session_path(session["id"]))).json()["metadata"] == {"x": deep}


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "chunked"])
@ON_SQLITE
async def test_body_over_the_limit_is_413_on_every_route_with_a_body(zone: FreshZone, declared: bool) -> None:
    async def chunks(content: bytes) -> AsyncIterator[bytes]:
        size = max(8 * KIB, len(content) // 64)
        for start in range(0, len(content), size):
            yield content[start : start + size]

    async with zone.server.client() as client, assert_nothing_written(zone.server, zone.id):
        for row in await routes_with_body(zone.server):
            content = b'{"application_id":"app","metadata":{"x":"%s"}}' % (b"x" * row.body_max)
            sent = content if declared else chunks(content)
            response = await client.request(row.method, row.path_for(zone.id), content=sent)
            assert assert_problem(response, 413, "body_too_large")["limit"] == row.body_max
        assert (await client.get(zone.path)).status_code == 200, "the connection stays usable"


async def test_route_with_a_larger_limit_reads_up_to_exactly_that_limit(zone: FreshZone) -> None:
    [row] = [row for row in await routes_with_body(zone.server) if row.path.endswith("{id}/progress")]
    assert row.body_max > 256 * KIB
    async with zone.client() as client:
        for size, status in ((row.body_max, 400), (row.body_max + 1, 413)):
            # The body is read completely and then refused as invalid JSON.
            response = await client.request(row.method, row.path_for(zone.id), content=b"x" * size)
            assert response.status_code == status


async def test_body_of_256_kib_is_accepted_and_one_byte_more_is_413(zone: FreshZone) -> None:
    empty = len(json.dumps({"application_id": APP, "metadata": {"x": ""}}))
    async with zone.client() as client:
        for size, status in ((256 * KIB, 201), (256 * KIB + 1, 413)):
            body = {"application_id": APP, "metadata": {"x": "x" * (size - empty)}}
            response = await client.post(zone.sessions_path, content=json.dumps(body))
            assert response.status_code == status
            assert len(response.request.content) == size


@ON_SQLITE
async def test_body_is_ignored_on_every_route_without_a_body(zone: FreshZone) -> None:
    async with zone.server.client() as client, assert_nothing_written(zone.server, zone.id):
        for row in await read_route_table(zone.server):
            if row.has_body:
                continue
            # Routes that write are called for an unknown zone: only the status matters here.
            path = row.path_for(zone.id if row.method == "GET" else "no-such-zone")
            without_body = await client.request(row.method, path)
            with_body = await client.request(row.method, path, content=b"\xff" * BIG)
            assert (with_body.status_code, with_body.status_code < 500) == (without_body.status_code, True), row


@pytest.mark.parametrize(
    "query",
    ["{p}=%00", "{p}=%ff", "{p}=%ED%A0%80", "{p}=%C0%80", "x=%00", "x=%ff", "%00=1", "{p}=" + "9" * 9_000,
     "&".join(["a=1"] * 101), "x" * 9_000],
    ids=["a NUL", "not UTF-8", "a surrogate", "overlong", "a NUL in an unknown parameter",
         "an unknown parameter not UTF-8", "a NUL in a name", "9 KB", "101 parameters", "a name of 9 KB"],
)  # fmt: skip
@ON_SQLITE
async def test_malformed_query_is_400_on_every_route_with_a_query(zone: FreshZone, query: str) -> None:
    async with zone.server.client() as client, assert_nothing_written(zone.server, zone.id):
        rows = [row for row in await read_route_table(zone.server) if row.query]
        assert len(rows) >= 4
        for row in rows:
            for parameter in row.query if "{p}" in query else row.query[:1]:
                url = f"{row.path_for(zone.id)}?{query.format(p=parameter)}"
                assert_problem(await client.request(row.method, url), 400)


@ON_SQLITE
async def test_every_query_parameter_refuses_invalid_values(zone: FreshZone) -> None:
    invalid_values = {
        "limit": ["", "0", "-1", "0x10", "one", "1%20", "99999999999999999999"],
        "after": ["", "-1", "x", str(2**63)],
        "cursor": ["!", "YQ", "../..", "x" * 600],
        "status": ["", "asleep", "ACTIVE"],
        "application_id": ["", " ", "a/b", "a%0A"],
        "parent_id": ["", "%20", "a%0A"],
        "root_id": ["", "%20", "a%0A"],
        "subject": ["", "a/b", "a%0A"],
        "types": ["", ",", "a,,b", "A"],
        "health": ["", "dead", "HEALTHY"],
        "service_id": ["", "%20", "a%0A"],
        "source_session_id": ["", "%20", "a%0A"],
        "target_session_id": ["", "%20", "a%0A"],
        "reason": ["", "x" * 257],
        "receipt": ["", "maybe", "2"],
        "source": ["", "a/b", "a%0A"],
        "target": ["", "a/b", "a%0A"],
        "keep_sessions": ["", "maybe", "2"],
        "priority": ["", "0", "11", "x"],
        "priority>": ["", "0", "11", "x"],
        "tags": ["", "x" * 2_001],
        "taskType": ["", "x" * 101],
        "agentId": ["", "a/b", "a%0A"],
        "createdAfter": ["", "x", "2026-02-30T00:00:00Z"],
        "capability": ["", "x" * 101],
        "coordinatorEnabled": ["", "maybe", "2"],
        "workspace": ["", "a/b", "a%0A"],
        "order": ["", "up", "ASC"],
        "waitMs": ["", "-1", "x", "60001"],
        "level": ["", "LOUD"],
        "event": ["", "x" * 101],
        "depth": ["", "0", "101", "x"],
        "groupBy": ["", "moon"],
        "since": ["", "x", "2026-02-30"],
        "until": ["", "x", "2026-02-30"],
        "key": ["", "x" * 129],
        "scope": ["", "zone"],
        "period": ["", "year"],
        "deleted": ["", "maybe", "2"],
        "keep_panes": ["", "maybe", "2"],
        "force": ["", "maybe", "2"],
        "activity": ["", "maybe", "2"],
        "ansi": ["", "maybe", "2"],
        "lines": ["", "0", "10001", "x"],
        "wait_ms": ["", "-1", "x", "300001"],
    }
    async with zone.server.client() as client:
        session_id = (await spawn(client, zone))["id"]
        events = await read_events(zone)
        for row in await read_route_table(zone.server):
            for parameter in row.query:
                for value in invalid_values[parameter]:
                    response = await client.request(
                        row.method, f"{row.path_for(zone.id, session_id)}?{parameter}={value}"
                    )
                    assert response.status_code == 400, (row, parameter, value)
                    assert assert_problem(response, 400)["field"] == parameter, (row, parameter, value)
        assert await read_events(zone) == events


@pytest.mark.parametrize("content_type", ["text/plain", "application/xml", "application/json; charset=latin-1", ""])
@ON_SQLITE
async def test_body_is_parsed_as_json_for_any_content_type(zone: FreshZone, content_type: str) -> None:
    async with zone.client() as client:
        headers = {"content-type": content_type}
        response = await client.post(zone.sessions_path, content=b'{"application_id":"app"}', headers=headers)
    assert response.status_code == 201


async def test_refused_input_writes_no_event(zone: FreshZone) -> None:
    async with zone.client() as client:
        for _ in range(5):
            assert_problem(await client.post(zone.sessions_path, content=b"{"), 400)
    assert [event["type"] for event in await read_events(zone)] == ["zone.create"]


NOT_HTTP = {
    "TLS bytes": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n",
    "an unknown version": b"GET /health HTTP/9.9\r\nHost: x\r\n\r\n",
    "a header without a colon": b"GET /health HTTP/1.1\r\nHost x\r\n\r\n",
    "a NUL in a header": b"GET /health HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
    "a control character in a key": b"POST /zones HTTP/1.1\r\nHost: x\r\nIdempotency-Key: a\x01b\r\n\r\n",
    "a path that is not ASCII": b"GET /zones/\xff HTTP/1.1\r\nHost: x\r\n\r\n",
    "a length that is not a number": b"POST /zones HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "two lengths": b"POST /zones HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a length and chunks": b"POST /zones HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an unknown method": b"FETCH /health HTTP/1.1\r\nHost: x\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("data", NOT_HTTP.values(), ids=NOT_HTTP.keys())
@ON_SQLITE
async def test_invalid_http_is_refused_with_problem_json(server: ServerProcess, data: bytes) -> None:
    connection = await RawConnection.open(server.url)
    async with assert_nothing_written(server):
        response = await connection.send_and_read(data)
        assert response.status == 400
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["detail"].endswith(".")
        assert response.json()["error"] == "invalid_http"
        assert response.json()["request_id"] == response.headers["x-request-id"] != ""
        assert await connection.is_closed_by_server()
    await connection.close()


async def test_pipelined_requests_are_answered_in_order(zone: FreshZone) -> None:
    connection = await RawConnection.open(zone.server.url)
    token = zone.token()
    bad, good = build_request("POST", zone.sessions_path, token, b"{"), build_request("GET", zone.path, token)
    await connection.send(bad + good + bad + good)
    assert [(await connection.read_response()).status for _ in range(4)] == [400, 200, 400, 200]
    await connection.close()


async def test_upgrade_is_ignored_and_the_request_is_answered(server: ServerProcess) -> None:
    async with httpx.AsyncClient(base_url=server.url, verify=False) as client:
        headers = {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-version": "13"}
        assert (await client.get("/health", headers=headers)).status_code == 200
