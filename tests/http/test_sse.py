"""The event stream of a zone: its format, where it starts, what ends it, and how many may be open."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from quarterdeck.core.caller import ADMIN, COORDINATOR_ADMIN, LIFECYCLE
from tests.support.engine_marks import STARTED_ON_SQLITE
from tests.support.eventually import eventually
from tests.support.raw_http import RawConnection
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.sse import SseMessage, SseStream, open_stream
from tests.support.zone import FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn


async def open_events(zone: FreshZone, query: str = "", token: str | None = None, **headers: str) -> SseStream:
    path = f"{zone.path}/events{query}"
    return await SseStream.open(zone.server.url, path, token or zone.token(), **headers)


def positions(messages: list[SseMessage]) -> list[int]:
    return [int(message.id) for message in messages]


async def create_events(zone: FreshZone, count: int = 3) -> list[dict[str, Any]]:
    """Spawns this many sessions and returns all events of the zone; the first is the creation of the zone."""
    async with zone.client() as client:
        for _ in range(count):
            await spawn(client, zone)
    return await read_events(zone)


async def request_stream(zone: FreshZone, query: str = "", **headers: str) -> httpx.Response:
    """The response to a stream request that is refused."""
    async with zone.client() as client:
        all_headers = {"accept": "text/event-stream", **headers}
        return await client.get(f"{zone.path}/events{query}", headers=all_headers)


# -- format


async def test_message_has_the_position_as_id_the_type_as_name_and_the_event_as_data(zone: FreshZone) -> None:
    stream = await open_events(zone)
    assert stream.decoder.headers["content-type"] == "text/event-stream"
    assert stream.decoder.headers["cache-control"] == "no-store"
    assert stream.decoder.headers["x-accel-buffering"] == "no"
    assert "content-length" not in stream.decoder.headers
    _, event = await create_events(zone, 1)
    message = await stream.next()
    assert (message.id, message.event) == (str(event["pos"]), "session.spawn")
    assert message.json() == event
    assert 1_000 <= (stream.decoder.retry or 0) <= 3_000
    await stream.close()


@pytest.mark.parametrize(
    "accept",
    ["application/json", "*/*", "text/*", "text/event-stream;q=0", "text/event-stream; q=0.00", "event-stream"],
)  # fmt: skip
async def test_accept_without_event_stream_returns_a_list(zone: FreshZone, accept: str) -> None:
    async with zone.client() as client:
        response = await client.get(f"{zone.path}/events", headers={"accept": accept})
    assert [event["type"] for event in json_object(response)["items"]] == ["zone.create"]


@pytest.mark.parametrize(
    "accept", ["text/event-stream", "Text/Event-Stream; charset=utf-8", "application/json;q=0.5, text/event-stream"]
)  # fmt: skip
async def test_accept_with_event_stream_opens_a_stream(zone: FreshZone, accept: str) -> None:
    stream = await open_events(zone, Accept=accept)
    await stream.close()


async def test_head_request_does_not_open_a_stream(zone: FreshZone) -> None:
    async with zone.client() as client:
        response = await client.head(f"{zone.path}/events", headers={"accept": "text/event-stream"})
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")


async def test_openapi_and_docs_describe_the_stream(server: ServerProcess) -> None:
    async with server.client("") as client:
        operation = json_object(await client.get("/openapi.json"))["paths"]["/zones/{zone}/events"]["get"]
        page = (await client.get("/docs")).text
    assert "text/event-stream" in operation["responses"]["200"]["content"]
    assert "Last-Event-ID" in [parameter.get("name") for parameter in operation["parameters"]]
    assert "curl -N" in page
    assert "Accept: text/event-stream" in page


# -- start position


async def test_stream_starts_at_the_head_and_reports_that_position(zone: FreshZone) -> None:
    before = await create_events(zone)
    stream = await open_events(zone)
    await stream.wait_until_started()
    assert int(stream.decoder.last_id) >= before[-1]["pos"]
    *_, after = await create_events(zone, 1)
    assert positions([await stream.next()]) == [after["pos"]]
    await stream.close()


async def test_stream_cut_before_its_first_event_can_be_resumed(zone: FreshZone) -> None:
    stream = await open_events(zone)
    await stream.wait_until_started()
    stream.reset()
    _, event = await create_events(zone, 1)
    resumed = await open_events(zone, Last_Event_ID=stream.decoder.last_id)
    assert (await resumed.next()).json() == event
    await resumed.close()


async def test_stream_replays_events_after_a_position_and_then_follows_live(zone: FreshZone) -> None:
    created, first, second, _ = await create_events(zone)
    for query, headers in (
        (f"?after={first['pos']}", {}),
        ("", {"Last_Event_ID": str(first["pos"])}),
        (f"?after={created['pos']}", {"Last_Event_ID": str(first["pos"])}),
    ):
        stream = await open_events(zone, query, **headers)
        before = await read_events(zone, after=first["pos"])
        await create_events(zone, 1)
        messages = await stream.take(len(before) + 1)
        assert [message.json() for message in messages] == await read_events(zone, after=first["pos"])
        assert messages[0].json() == second
        await stream.close()


async def test_types_and_subject_filter_replayed_and_live_events(zone: FreshZone) -> None:
    async with zone.client() as client:
        first = await spawn(client, zone)
        await end(client, zone, first["id"])
        spawns = await open_events(zone, "?after=0&types=session.spawn")
        ends = await open_events(zone, "?after=0&types=session.terminate,zone.create")
        of_first = await open_events(zone, f"?after=0&subject={first['id']}")
        second = await spawn(client, zone)
        await end(client, zone, second["id"])
    created, spawned, ended, spawned_second, ended_second = await read_events(zone)
    assert [m.json() for m in await spawns.take(2)] == [spawned, spawned_second]
    assert [m.json() for m in await ends.take(3)] == [created, ended, ended_second]
    assert [m.json() for m in await of_first.take(2)] == [spawned, ended]
    for stream in (spawns, ends, of_first):
        await stream.close()


async def test_stream_has_no_events_of_another_zone(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    stream = await open_events(zone, "?after=0")
    async with zone.client() as client, other.client() as foreign:
        for _ in range(5):
            await spawn(foreign, other)
            await spawn(client, zone)
    assert [message.json() for message in await stream.take(6)] == await read_events(zone)
    await stream.close()


@pytest.mark.parametrize("value", ["", "-1", "+1", "1.0", "x", "0x10", str(2**63), "9" * 20, "1 2", "１"])
async def test_malformed_last_event_id_is_400_with_the_header_name(zone: FreshZone, value: str) -> None:
    async with zone.client() as client:
        headers = [(b"accept", b"text/event-stream"), (b"last-event-id", value.encode())]
        problem = assert_problem(await client.get(f"{zone.path}/events", headers=headers), 400)
    assert (problem["error"], problem["field"]) == ("invalid_last_event_id", "Last-Event-ID")


async def test_position_above_the_head_resets_the_stream_to_the_floor(zone: FreshZone) -> None:
    events = await create_events(zone)
    stream = await open_events(zone, Last_Event_ID=str(2**63 - 1))
    reset, *messages = await stream.take(1 + len(events))
    assert (reset.event, reset.id) == ("reset", "0")
    assert reset.json()["floor"] == 0
    assert reset.json()["head"] >= events[-1]["pos"]
    assert [message.json() for message in messages] == events
    await stream.close()


async def test_position_below_the_floor_resets_the_stream_to_the_floor(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch)
    zone = await create_zone(server)
    events = await create_events(zone, 5)
    floor = events[2]["pos"]
    database = DirectDatabase(launch.database_url)
    database.execute("update log_head set floor = ?", floor)
    database.execute("delete from events where pos <= ?", floor)
    for last_event_id in ({"Last_Event_ID": str(floor - 1)}, {"Last_Event_ID": "0"}):
        stream = await open_events(zone, **last_event_id)
        reset, *messages = await stream.take(4)
        assert (reset.event, reset.id) == ("reset", str(floor))
        assert reset.json() == {"floor": floor, "head": events[-1]["pos"]}
        assert [message.json() for message in messages] == events[3:]
        await stream.close()
    at_floor = await open_events(zone, Last_Event_ID=str(floor))
    assert [message.json() for message in await at_floor.take(3)] == events[3:]
    await at_floor.close()


# -- authorization


async def test_stream_request_is_refused_like_any_other_request(zone: FreshZone) -> None:
    unknown = FreshZone(zone.server, "no-such-zone")
    assert_problem(await request_stream(unknown), 404, "zone_not_found")
    assert_problem(await request_stream(zone, "?types=UPPER"), 400, "invalid_query")
    other = await create_zone(zone.server)
    for token, status, code in (
        ("", 401, "missing_token"),
        (other.token(), 403, "zone_mismatch"),
        (zone.token("other.scope"), 403, "missing_scope"),
        (zone.token(session_id="no-such-session"), 401, "session_ended"),
    ):
        async with zone.client(token) as client:
            response = await client.get(f"{zone.path}/events", headers={"accept": "text/event-stream"})
        assert_problem(response, status, code)


async def test_stream_ends_when_its_session_is_terminated(zone: FreshZone) -> None:
    other_zone = await create_zone(zone.server)
    async with zone.client() as client:
        session, other = (await spawn(client, zone))["id"], (await spawn(client, zone))["id"]
        own = await open_events(zone, token=zone.token(session_id=session))
        # An administrator can read every zone, so its session may be in another zone than the stream.
        admin = zone.token(LIFECYCLE, COORDINATOR_ADMIN, ADMIN, session_id=session)
        cross_zone = await open_events(other_zone, token=admin)
        unaffected = await open_events(zone, token=zone.token(session_id=other))
        await end(client, zone, session)
        for stream in (own, cross_zone):
            await stream.read_to_end()
            assert stream.decoder.comments[-1] == "over, session.terminate"
        assert (await unaffected.next()).event == "session.terminate"
        await unaffected.close()
    assert_problem(await request_stream(zone, authorization=f"Bearer {zone.token(session_id=session)}"), 401)


@pytest.fixture
async def frequent_check_server(servers: Servers, launch: Launch) -> ServerProcess:
    """A server that checks credentials and sends keep-alives every 20 ms."""
    environment = {"QD_STREAM_RECHECK_MS": "20", "QD_STREAM_KEEP_ALIVE_MS": "20", "QD_LEEWAY_SECONDS": "0"}
    return await servers.start(launch.with_environment(**environment))


@STARTED_ON_SQLITE
async def test_stream_ends_when_its_token_expires(frequent_check_server: ServerProcess) -> None:
    zone = await create_zone(frequent_check_server)
    short, long = await open_events(zone, token=zone.token(ttl=1)), await open_events(zone)
    await short.read_to_end()
    assert short.decoder.comments[-1] == "over, invalid_token"
    await create_events(zone, 1)
    assert (await long.next()).event == "session.spawn"
    await long.close()


async def test_stream_ends_when_its_session_expires_without_an_event(frequent_check_server: ServerProcess) -> None:
    zone = await create_zone(frequent_check_server)
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
    stream = await open_events(zone, token=zone.token(session_id=session))
    database = DirectDatabase(frequent_check_server.launch.database_url)
    database.execute("update agent_sessions set expires_at = 1 where zone_id = ? and id = ?", zone.id, session)
    await stream.read_to_end()
    assert stream.decoder.comments[-1] == "over, session_ended"


async def test_stream_ends_when_its_api_key_is_revoked(frequent_check_server: ServerProcess) -> None:
    zone = await create_zone(frequent_check_server)
    async with frequent_check_server.client() as admin:
        created = await admin.post(f"{zone.path}/keys", json={"application_id": "app", "name": "listener"})
        assert created.status_code == 201, created.text
        key = json_object(created)
        stream = await SseStream.request(frequent_check_server.url, f"{zone.path}/events", None, X_API_Key=key["key"])
        assert stream.decoder.status == 200, stream.decoder.body
        await stream.wait_for_comment("keep-alive")
        assert (await admin.delete(f"{zone.path}/keys/{key['id']}")).status_code == 204
        await stream.read_to_end()
    assert stream.decoder.comments[-1] == "over, invalid_token"


# -- keep-alive


@STARTED_ON_SQLITE
async def test_keep_alives_of_an_idle_stream_advance_its_position(frequent_check_server: ServerProcess) -> None:
    zone = await create_zone(frequent_check_server)
    other = await create_zone(frequent_check_server)
    stream = await open_events(zone, "?subject=no-such-subject")
    events = await create_events(zone) + await create_events(other)
    await stream.wait_for_comment("keep-alive")

    async def is_past_events() -> bool:
        return await stream.read_some() > 0 and int(stream.decoder.last_id) >= events[-1]["pos"]

    await eventually(is_past_events, "the keep-alives passed the filtered events")
    assert stream.take_received() == []
    await stream.close()


# -- stream limit


@STARTED_ON_SQLITE
async def test_stream_beyond_the_limit_is_503_with_retry_after(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_STREAMS_MAX="2"))
    zone = await create_zone(server)
    first, second = await open_events(zone), await open_events(zone)
    response = await request_stream(zone)
    assert_problem(response, 503, "too_many_streams")
    assert int(response.headers["retry-after"]) > 0
    assert_problem(await request_stream(FreshZone(server, "nowhere")), 503, "too_many_streams")
    assert len(await read_events(zone)) == 1, "a list does not count as a stream"
    first.reset()
    await wait_for_streams(server, 1)
    assert_problem(await request_stream(FreshZone(server, "nowhere")), 404, "zone_not_found")
    third = await open_events(zone)
    for stream in (second, third):
        await stream.close()
    await wait_for_streams(server, 0)


async def wait_for_streams(server: ServerProcess, count: int) -> None:
    """Returns when this many streams are open."""

    async def has_count() -> bool:
        return await count_streams(server) == count

    await eventually(has_count, f"{count} streams are open")


async def count_streams(server: ServerProcess) -> int:
    async with server.client() as client:
        text = (await client.get("/metrics")).text
    [line] = [line for line in text.splitlines() if line.startswith("quarterdeck_streams_open{")]
    return int(float(line.split()[-1]))


# -- shutdown, log and connection


@STARTED_ON_SQLITE
async def test_sigterm_ends_all_streams_and_the_server_exits_at_once(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_SHUTDOWN_GRACE_MS="60000"))
    zone = await create_zone(server)
    streams = [await open_events(zone) for _ in range(200)]
    before = await create_events(zone, 2)
    # The server may drain before it sends pending events: each stream reads both first.
    for stream in streams:
        assert positions(await stream.take(2)) == [event["pos"] for event in before[1:]]
    started = asyncio.get_running_loop().time()
    server.terminate()
    for stream in streams:
        assert await stream.read_to_end() == []
        assert stream.decoder.comments[-1] == "over, draining"
    assert await server.wait(limit=10) == 0
    assert asyncio.get_running_loop().time() - started < 5
    assert "Traceback" not in server.log_text
    for stream in streams:
        await stream.close()


@STARTED_ON_SQLITE
async def test_each_stream_logs_one_line_when_it_ends(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch)
    zone = await create_zone(server)
    async with open_stream(server.url, f"{zone.path}/events", zone.token(), X_Request_ID="mine"):
        assert '"mine"' not in server.log_text
    await wait_for_streams(server, 0)
    assert await server.stop() == 0
    [line] = [json.loads(line) for line in server.log_text.splitlines() if '"request_id":"mine"' in line]
    assert (line["route"], line["status"]) == ("GET /zones/{zone}/events (stream)", 200)


@STARTED_ON_SQLITE
async def test_connection_is_reusable_after_its_stream_ends(frequent_check_server: ServerProcess) -> None:
    zone = await create_zone(frequent_check_server)
    stream = await open_events(zone, token=zone.token(ttl=1))
    await stream.read_to_end()
    connection = RawConnection(stream._reader, stream._writer)
    response = await connection.send_and_read(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n")
    assert response.status == 200
    await connection.close()
