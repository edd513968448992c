"""What an operator sees: health, readiness, metrics, documentation, JWKS, request ids and logs."""

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

SECRET = "s3cr3t-canary-value"
POOL = 20
"""Connections to PostgreSQL that the server may open during the test and keep."""


async def test_health_and_ready_need_no_token(server: ServerProcess) -> None:
    async with server.client("") as anonymous:
        assert (await anonymous.get("/health")).json() == {"ok": True}
        assert (await anonymous.get("/ready")).status_code == 200


async def test_openapi_has_this_version_and_docs_load_nothing_external(server: ServerProcess) -> None:
    async with server.client("") as anonymous:
        document = (await anonymous.get("/openapi.json")).json()
        page = await anonymous.get("/docs")
    assert document["openapi"].startswith("3.1")
    assert document["info"]["version"] == __version__
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "/zones/{zone}/agents" in re.sub(r"<[^>]+>", "", page.text)
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page.text), "loads an external resource"


async def test_about_reports_version_schema_revision_and_database_time(zone: FreshZone) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    async with zone.client() as client:
        about = (await client.get("/about")).json()
    assert (about["version"], about["revision"], about["head"]) == (__version__, revisions()[-1], revisions()[-1])
    assert (about["database"], about["complaint"]) == (zone.server.launch.database_url.partition(":")[0], None)
    assert before < datetime.fromisoformat(about["now"]) < datetime.now(UTC) + timedelta(seconds=1)


async def test_jwks_has_no_private_key(server: ServerProcess) -> None:
    async with server.client("") as anonymous:
        [key] = (await anonymous.get("/.well-known/jwks.json")).json()["keys"]
    assert (key["kty"], key["crv"], key["alg"], key["kid"]) == ("EC", "P-256", "ES256", server.issuer.kid)
    assert "d" not in key


async def test_metrics_after_traffic_have_the_documented_names_and_no_ids(server: ServerProcess) -> None:
    zone = await create_zone(server, max_sessions=1)
    async with zone.client() as client:
        session = await spawn(client, zone)
        assert (await client.post(zone.sessions_path, json={"application_id": APP})).status_code == 429
        await end(client, zone, session["id"])
        response = await client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
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
        assert re.search(line, response.text), line
    assert zone.id not in response.text, "labels must not grow with the number of zones"
    assert session["id"] not in response.text


async def test_every_quota_denial_is_counted(server: ServerProcess) -> None:
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


@pytest.mark.parametrize("request_id", ["abc", "A-b_c.d:9", "x" * 128])
async def test_valid_request_id_is_echoed(server: ServerProcess, request_id: str) -> None:
    async with server.client("") as client:
        client.headers["x-request-id"] = request_id
        for path in ("/health", "/zones", "/nowhere"):
            response = await client.get(path)
            assert response.headers["x-request-id"] == request_id
            if response.status_code >= 400:
                assert response.json()["request_id"] == request_id


@pytest.mark.parametrize("request_id", ["", "a b", "x" * 129, "a/b", 'a"b', "é", "<script>"])
async def test_malformed_request_id_is_replaced(server: ServerProcess, request_id: str) -> None:
    replacements = set()
    async with server.client("") as client:
        for _ in range(3):
            response = await client.get("/zones", headers=[(b"x-request-id", request_id.encode())])
            replacements.add(response.headers["x-request-id"])
            assert response.json()["request_id"] == response.headers["x-request-id"]
    assert len(replacements) == 3
    assert all(re.fullmatch(r"[A-Za-z0-9_.\-:]{1,128}", replacement) for replacement in replacements)


async def test_unix_socket_serves_the_same_api(server: ServerProcess) -> None:
    record = json.loads((server.launch.data / "server.json").read_text())
    assert (record["pid"], record["url"], record["version"]) == (server.pid, server.url, __version__)
    transport = httpx.AsyncHTTPTransport(uds=record["socket"])
    headers = {"Authorization": f"Bearer {server.admin_token}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://local", headers=headers) as client:
        assert (await client.get("/zones/default")).status_code == 200


# -- the log


async def test_log_is_json_lines_without_tokens_bodies_or_queries(servers: Servers, launch: Launch) -> None:
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
    assert "eyJ" not in server.log_text, "the prefix of every JWT"
    assert "earer" not in server.log_text
    lines = [json.loads(line) for line in server.log_text.splitlines() if line.startswith("{")]
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    requests = [line for line in lines if line["message"] == "request"]
    assert len(requests) == 10
    expected = {"time", "level", "message", "route", "path", "status", "ms", "request_id"}
    assert all(line.keys() == expected for line in requests)
    plain_lines = [line for line in server.log_text.splitlines() if not line.startswith("{")]
    assert len(plain_lines) == 5, f"only the start-up messages are plain text: {plain_lines}"


async def test_log_level_error_logs_no_requests(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_LOG_LEVEL="error"))
    async with server.client() as client:
        await client.get("/zones")
    assert await server.stop() == 0
    assert '"message"' not in server.log_text


# -- connections


def open_files(server: ServerProcess) -> int:
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc to count the open files of another process")
async def test_aborted_connections_leave_no_open_files(zone: FreshZone) -> None:
    token = zone.token()
    spawn_request = build_request("POST", zone.sessions_path, token, {"application_id": APP})
    list_request = build_request("GET", zone.sessions_path, token)
    partial_request = build_request("POST", zone.sessions_path, token, b'{"application_id":"app"}')[:-5]
    async with zone.client(token) as client:
        assert (await client.get(zone.path)).status_code == 200
        before = open_files(zone.server)
        for number in range(1_000):
            connection = await RawConnection.open(zone.server.url)
            match number % 5:
                case 0:
                    await connection.send(spawn_request)
                case 1:
                    await connection.send(list_request * 3)
                case 2:
                    await connection.send(partial_request)
                case 3:
                    await connection.send(list_request[:20])
            connection.reset()

        async def files_are_closed() -> bool:
            return open_files(zone.server) <= before + POOL

        await eventually(files_are_closed, "the server has closed the aborted connections")
        assert (await client.get(zone.path)).status_code == 200
        sessions = (await client.get(zone.sessions_path, params={"limit": 500})).json()["items"]
    assert len(sessions) <= 200
