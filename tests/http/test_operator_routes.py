"""What an operator sees: health, readiness, figures, documentation, keys, request ids and logs."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

from quarterdeck import __version__
from quarterdeck.store.migrate import revisions
from tests.support.eventually import eventually
from tests.support.raw_http import RawConnection, build_request
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, spawn

SECRET = "s3cr3t-of-the-harbour"
POOL = 20
"""Connections to PostgreSQL that a server may have opened meanwhile, and keeps."""


async def test_health_and_readiness_answer_without_a_token(server: ServerProcess) -> None:
    async with server.client("") as stranger:
        assert (await stranger.get("/health")).json() == {"ok": True}
        assert (await stranger.get("/ready")).status_code == 200


async def test_the_description_names_this_version_and_the_documentation_needs_no_network(server: ServerProcess) -> None:
    async with server.client("") as stranger:
        described = (await stranger.get("/openapi.json")).json()
        page = await stranger.get("/docs")
    assert described["openapi"].startswith("3.1")
    assert described["info"]["version"] == __version__
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "/zones/{zone}/agents" in re.sub(r"<[^>]+>", "", page.text)
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page.text), "loads something from elsewhere"


async def test_a_bearer_is_told_which_release_serves_on_which_tables_and_what_time_it_is(zone: FreshZone) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    async with zone.client() as client:
        about = (await client.get("/about")).json()
    assert (about["version"], about["revision"], about["head"]) == (__version__, revisions()[-1], revisions()[-1])
    assert (about["database"], about["complaint"]) == (zone.server.launch.database_url.partition(":")[0], None)
    assert before < datetime.fromisoformat(about["now"]) < datetime.now(UTC) + timedelta(seconds=1)


async def test_the_published_keys_hold_no_private_part(server: ServerProcess) -> None:
    async with server.client("") as stranger:
        [key] = (await stranger.get("/.well-known/jwks.json")).json()["keys"]
    assert (key["kty"], key["crv"], key["alg"], key["kid"]) == ("EC", "P-256", "ES256", server.issuer.kid)
    assert "d" not in key


async def test_metrics_bear_the_seeds_names_after_traffic(server: ServerProcess) -> None:
    zone = await create_zone(server, max_sessions=1)
    async with zone.client() as client:
        session = await spawn(client, zone)
        assert (await client.post(zone.sessions_path, json={"application_id": APP})).status_code == 429
        await end(client, zone, session["id"])
        answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    for line in (
        r'subagent_quota_denials_total\{bound="max_sessions"\} \d',
        r'subagent_cascade_terminations_total\{reason="requested"\} \d',
        r"# TYPE subagent_sweeper_actions_total counter",
        r"# TYPE subagent_sweeper_cross_tenant_reads_total counter",
        r'quarterdeck_http_requests_total\{route="POST /zones/\{zone\}/agents",status="201"\} \d',
        r'quarterdeck_http_request_duration_seconds_bucket\{le="\+Inf",route="GET /zones/\{zone\}/agents"\} \d|'
        r'quarterdeck_http_request_duration_seconds_count\{route="POST /zones/\{zone\}/agents"\} \d',
        r'quarterdeck_lane_batch_size_count\{lane="spawn"\} \d',
    ):
        assert re.search(line, answer.text), line
    assert zone.id not in answer.text, "a label must not grow with the zones"
    assert session["id"] not in answer.text


async def test_refusals_and_spawns_are_counted_one_by_one(server: ServerProcess) -> None:
    def count(text: str, bound: str) -> float:
        found = re.search(rf'subagent_quota_denials_total\{{bound="{bound}"\}} (\S+)', text)
        return float(found[1]) if found else 0

    zone = await create_zone(server, max_depth=0)
    async with zone.client() as client:
        root = await spawn(client, zone)
        before = count((await client.get("/metrics")).text, "max_depth")
        for _ in range(3):
            await client.post(zone.sessions_path, json={"application_id": APP, "parent_id": root["id"]})
        assert count((await client.get("/metrics")).text, "max_depth") == before + 3


@pytest.mark.parametrize("given", ["abc", "A-b_c.d:9", "x" * 128])
async def test_a_well_formed_request_id_is_echoed(server: ServerProcess, given: str) -> None:
    async with server.client("") as client:
        client.headers["x-request-id"] = given
        for path in ("/health", "/zones", "/nowhere"):
            answer = await client.get(path)
            assert answer.headers["x-request-id"] == given
            if answer.status_code >= 400:
                assert answer.json()["request_id"] == given


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "a/b", 'a"b', "é", "<script>"])
async def test_a_malformed_request_id_is_replaced(server: ServerProcess, given: str) -> None:
    seen = set()
    async with server.client("") as client:
        for _ in range(3):
            answer = await client.get("/zones", headers=[(b"x-request-id", given.encode())])
            seen.add(answer.headers["x-request-id"])
            assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert len(seen) == 3
    assert all(re.fullmatch(r"[A-Za-z0-9_.\-:]{1,128}", one) for one in seen)


async def test_the_local_socket_serves_the_same_api(server: ServerProcess) -> None:
    record = json.loads((server.launch.data / "server.json").read_text())
    assert (record["pid"], record["url"], record["version"]) == (server.pid, server.url, __version__)
    transport = httpx.AsyncHTTPTransport(uds=record["socket"])
    headers = {"Authorization": f"Bearer {server.admin_token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://local", headers=headers) as client:
        assert (await client.get("/zones/default")).status_code == 200


# -- the log


async def test_the_log_is_json_lines_without_tokens_bodies_or_queries(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_LOG_LEVEL="debug"))
    zone = await create_zone(server)
    token = zone.token()
    async with zone.client(token) as client:
        session = await spawn(client, zone, metadata={"key": SECRET}, session_sid=SECRET)
        await client.post(zone.sessions_path, json={"application_id": APP, "ttl_seconds": SECRET})
        await client.post(zone.sessions_path, content=f'{{"{SECRET}'.encode())
        await client.get(zone.sessions_path, params={"cursor": SECRET})
        await client.delete(zone.session_path(session["id"]), params={"reason": SECRET})
        await client.post(zone.sessions_path, json={"application_id": APP}, headers={"idempotency-key": SECRET})
        await client.get("/nowhere/" + "%22%0A" * 30)
    async with zone.client(f"{token[:-6]}{SECRET}") as forger:
        await forger.get(zone.path)
    async with httpx.AsyncClient(base_url=server.url, verify=False) as basic:
        assert_problem(await basic.get(zone.path, auth=("user", SECRET)), 401, "missing_token")
    assert await server.stop() == 0
    assert SECRET not in server.log_text
    assert "eyJ" not in server.log_text, "the beginning of every token"
    assert "earer" not in server.log_text
    lines = [json.loads(line) for line in server.log_text.splitlines() if line.startswith("{")]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    requests = [line for line in lines if line["message"] == "request"]
    assert len(requests) == 10
    expected = {"time", "level", "message", "route", "path", "status", "ms", "request_id"}
    assert all(line.keys() == expected for line in requests)
    plain = [line for line in server.log_text.splitlines() if not line.startswith("{")]
    assert len(plain) == 5, f"only the words for the person who started it: {plain}"


async def test_a_quiet_level_logs_no_requests_and_what_fails_is_logged(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_LOG_LEVEL="error"))
    async with server.client() as client:
        await client.get("/zones")
    assert await server.stop() == 0
    assert '"message"' not in server.log_text


# -- connections


def open_files(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="only Linux shows what another process has open")
async def test_a_thousand_aborted_connections_leave_nothing_open(zone: FreshZone) -> None:
    token = zone.token()
    spawning = build_request("POST", zone.sessions_path, token, {"application_id": APP})
    listing = build_request("GET", zone.sessions_path, token)
    half = build_request("POST", zone.sessions_path, token, b'{"application_id":"app"}')[:-5]
    async with zone.client(token) as client:
        assert (await client.get(zone.path)).status_code == 200
        before = open_files(zone.server)
        for number in range(1_000):
            connection = await RawConnection.open(zone.server.url)
            match number % 5:
                case 0:
                    await connection.send(spawning)
                case 1:
                    await connection.send(listing * 3)
                case 2:
                    await connection.send(half)
                case 3:
                    await connection.send(listing[:20])
            connection.reset()

        async def back() -> bool:
            return open_files(zone.server) <= before + POOL

        await eventually(back, "the server had closed what its clients had left")
        assert (await client.get(zone.path)).status_code == 200
        sessions = (await client.get(zone.sessions_path, params={"limit": 500})).json()["items"]
    assert len(sessions) <= 200
