"""A zone's events as they are committed: what a stream looks like, where it begins, and what ends it."""

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


async def opened(zone: FreshZone, query: str = "", token: str | None = None, **headers: str) -> SseStream:
    path = f"{zone.path}/events{query}"
    return await SseStream.open(zone.server.url, path, token or zone.token(), **headers)


def positions(messages: list[SseMessage]) -> list[int]:
    return [int(message.id) for message in messages]


async def some_events(zone: FreshZone, count: int = 3) -> list[dict[str, Any]]:
    """So many spawns, after the event of the zone's own making."""
    async with zone.client() as client:
        for _ in range(count):
            await spawn(client, zone)
    return await read_events(zone)


async def asked_for_a_stream(zone: FreshZone, query: str = "", **headers: str) -> httpx.Response:
    """The answer where no stream is to be had."""
    async with zone.client() as client:
        sent = {"accept": "text/event-stream", **headers}
        return await client.get(f"{zone.path}/events{query}", headers=sent)


# -- what it looks like


async def test_an_event_is_sent_with_its_position_as_id_its_type_as_name_and_itself_as_data(zone: FreshZone) -> None:
    stream = await opened(zone)
    assert stream.decoder.headers["content-type"] == "text/event-stream"
    assert stream.decoder.headers["cache-control"] == "no-store"
    assert stream.decoder.headers["x-accel-buffering"] == "no"
    assert "content-length" not in stream.decoder.headers
    _, event = await some_events(zone, 1)
    message = await stream.next()
    assert (message.id, message.event) == (str(event["pos"]), "session.spawn")
    assert message.json() == event
    assert 1_000 <= (stream.decoder.retry or 0) <= 3_000
    await stream.close()


@pytest.mark.parametrize(
    "accept",
    ["application/json", "*/*", "text/*", "text/event-stream;q=0", "text/event-stream; q=0.00", "event-stream"],
)  # fmt: skip
async def test_who_does_not_ask_for_a_stream_gets_a_list(zone: FreshZone, accept: str) -> None:
    async with zone.client() as client:
        answer = await client.get(f"{zone.path}/events", headers={"accept": accept})
    assert [event["type"] for event in json_object(answer)["items"]] == ["zone.create"]


@pytest.mark.parametrize(
    "accept", ["text/event-stream", "Text/Event-Stream; charset=utf-8", "application/json;q=0.5, text/event-stream"]
)  # fmt: skip
async def test_who_names_event_streams_gets_one(zone: FreshZone, accept: str) -> None:
    stream = await opened(zone, Accept=accept)
    await stream.close()


async def test_a_head_request_is_answered_at_once_whatever_it_accepts(zone: FreshZone) -> None:
    async with zone.client() as client:
        answer = await client.head(f"{zone.path}/events", headers={"accept": "text/event-stream"})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")


async def test_the_description_says_how_a_stream_is_asked_for(server: ServerProcess) -> None:
    async with server.client("") as client:
        told = json_object(await client.get("/openapi.json"))["paths"]["/zones/{zone}/events"]["get"]
        page = (await client.get("/docs")).text
    assert "text/event-stream" in told["responses"]["200"]["content"]
    assert "Last-Event-ID" in [parameter.get("name") for parameter in told["parameters"]]
    assert "curl -N" in page
    assert "Accept: text/event-stream" in page


# -- where it begins


async def test_a_stream_begins_now_and_says_where_that_is(zone: FreshZone) -> None:
    before = await some_events(zone)
    stream = await opened(zone)
    await stream.wait_until_started()
    assert int(stream.decoder.last_id) >= before[-1]["pos"]
    *_, after = await some_events(zone, 1)
    assert positions([await stream.next()]) == [after["pos"]]
    await stream.close()


async def test_who_is_cut_before_the_first_event_can_still_go_on_from_where_it_began(zone: FreshZone) -> None:
    stream = await opened(zone)
    await stream.wait_until_started()
    stream.reset()
    _, event = await some_events(zone, 1)
    again = await opened(zone, Last_Event_ID=stream.decoder.last_id)
    assert (await again.next()).json() == event
    await again.close()


async def test_after_a_position_everything_since_is_replayed_and_then_goes_on_live(zone: FreshZone) -> None:
    created, first, second, _ = await some_events(zone)
    for query, headers in (
        (f"?after={first['pos']}", {}),
        ("", {"Last_Event_ID": str(first["pos"])}),
        (f"?after={created['pos']}", {"Last_Event_ID": str(first["pos"])}),
    ):
        stream = await opened(zone, query, **headers)
        before = await read_events(zone, after=first["pos"])
        await some_events(zone, 1)
        found = await stream.take(len(before) + 1)
        assert [message.json() for message in found] == await read_events(zone, after=first["pos"])
        assert found[0].json() == second
        await stream.close()


async def test_types_and_subject_narrow_a_stream_in_replay_and_live(zone: FreshZone) -> None:
    async with zone.client() as client:
        first = await spawn(client, zone)
        await end(client, zone, first["id"])
        spawns = await opened(zone, "?after=0&types=session.spawn")
        ends = await opened(zone, "?after=0&types=session.terminate,zone.create")
        of_first = await opened(zone, f"?after=0&subject={first['id']}")
        second = await spawn(client, zone)
        await end(client, zone, second["id"])
    created, spawned, ended, spawned_too, ended_too = await read_events(zone)
    assert [m.json() for m in await spawns.take(2)] == [spawned, spawned_too]
    assert [m.json() for m in await ends.take(3)] == [created, ended, ended_too]
    assert [m.json() for m in await of_first.take(2)] == [spawned, ended]
    for stream in (spawns, ends, of_first):
        await stream.close()


async def test_a_stream_holds_nothing_of_another_zone(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    stream = await opened(zone, "?after=0")
    async with zone.client() as client, other.client() as foreign:
        for _ in range(5):
            await spawn(foreign, other)
            await spawn(client, zone)
    assert [message.json() for message in await stream.take(6)] == await read_events(zone)
    await stream.close()


@pytest.mark.parametrize("last", ["", "-1", "+1", "1.0", "x", "0x10", str(2**63), "9" * 20, "1 2", "１"])
async def test_a_malformed_last_event_id_is_refused_by_its_name(zone: FreshZone, last: str) -> None:
    async with zone.client() as client:
        headers = [(b"accept", b"text/event-stream"), (b"last-event-id", last.encode())]
        body = assert_problem(await client.get(f"{zone.path}/events", headers=headers), 400)
    assert (body["error"], body["field"]) == ("invalid_last_event_id", "Last-Event-ID")


async def test_above_the_head_there_is_one_reset_and_the_stream_goes_on_from_the_floor(zone: FreshZone) -> None:
    events = await some_events(zone)
    stream = await opened(zone, Last_Event_ID=str(2**63 - 1))
    reset, *messages = await stream.take(1 + len(events))
    assert (reset.event, reset.id) == ("reset", "0")
    assert reset.json()["floor"] == 0
    assert reset.json()["head"] >= events[-1]["pos"]
    assert [message.json() for message in messages] == events
    await stream.close()


async def test_below_the_floor_there_is_one_reset_and_the_stream_goes_on_from_the_floor(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch)
    zone = await create_zone(server)
    events = await some_events(zone, 5)
    floor = events[2]["pos"]
    side = DirectDatabase(launch.database_url)
    side.execute("update log_head set floor = ?", floor)
    side.execute("delete from events where pos <= ?", floor)
    for begins in ({"Last_Event_ID": str(floor - 1)}, {"Last_Event_ID": "0"}):
        stream = await opened(zone, **begins)
        reset, *messages = await stream.take(4)
        assert (reset.event, reset.id) == ("reset", str(floor))
        assert reset.json() == {"floor": floor, "head": events[-1]["pos"]}
        assert [message.json() for message in messages] == events[3:]
        await stream.close()
    within = await opened(zone, Last_Event_ID=str(floor))
    assert [message.json() for message in await within.take(3)] == events[3:]
    await within.close()


# -- who may listen


async def test_a_stream_is_refused_like_any_request_before_it_begins(zone: FreshZone) -> None:
    nowhere = FreshZone(zone.server, "no-such-zone")
    assert_problem(await asked_for_a_stream(nowhere), 404, "zone_not_found")
    assert_problem(await asked_for_a_stream(zone, "?types=UPPER"), 400, "invalid_query")
    other = await create_zone(zone.server)
    for token, status, code in (
        ("", 401, "missing_token"),
        (other.token(), 403, "zone_mismatch"),
        (zone.token("other.scope"), 403, "missing_scope"),
        (zone.token(session_id="never-was"), 401, "session_ended"),
    ):
        async with zone.client(token) as client:
            answer = await client.get(f"{zone.path}/events", headers={"accept": "text/event-stream"})
        assert_problem(answer, status, code)


async def test_the_end_of_its_own_session_ends_a_stream_at_once(zone: FreshZone) -> None:
    elsewhere = await create_zone(zone.server)
    async with zone.client() as client:
        session, other = (await spawn(client, zone))["id"], (await spawn(client, zone))["id"]
        own = await opened(zone, token=zone.token(session_id=session))
        # An administrator crosses zones: its session is not of the zone it listens to.
        admin = zone.token(LIFECYCLE, COORDINATOR_ADMIN, ADMIN, session_id=session)
        across = await opened(elsewhere, token=admin)
        stays = await opened(zone, token=zone.token(session_id=other))
        await end(client, zone, session)
        for stream in (own, across):
            await stream.read_to_end()
            assert stream.decoder.comments[-1] == "over, session.terminate"
        assert (await stays.next()).event == "session.terminate"
        await stays.close()
    assert_problem(await asked_for_a_stream(zone, authorization=f"Bearer {zone.token(session_id=session)}"), 401)


@pytest.fixture
async def frequent_check_server(servers: Servers, launch: Launch) -> ServerProcess:
    """Looks at everything often."""
    often = {"QD_STREAM_RECHECK_MS": "20", "QD_STREAM_KEEP_ALIVE_MS": "20", "QD_LEEWAY_SECONDS": "0"}
    return await servers.start(launch.with_environment(**often))


@STARTED_ON_SQLITE
async def test_an_expired_token_ends_its_stream(frequent_check_server: ServerProcess) -> None:
    zone = await create_zone(frequent_check_server)
    short, long = await opened(zone, token=zone.token(ttl=1)), await opened(zone)
    await short.read_to_end()
    assert short.decoder.comments[-1] == "over, invalid_token"
    await some_events(zone, 1)
    assert (await long.next()).event == "session.spawn"
    await long.close()


async def test_a_session_that_expires_without_an_event_ends_its_stream(frequent_check_server: ServerProcess) -> None:
    zone = await create_zone(frequent_check_server)
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
    stream = await opened(zone, token=zone.token(session_id=session))
    side = DirectDatabase(frequent_check_server.launch.database_url)
    side.execute("update agent_sessions set expires_at = 1 where zone_id = ? and id = ?", zone.id, session)
    await stream.read_to_end()
    assert stream.decoder.comments[-1] == "over, session_ended"


async def test_a_revoked_key_ends_its_stream(frequent_check_server: ServerProcess) -> None:
    zone = await create_zone(frequent_check_server)
    async with frequent_check_server.client() as admin:
        made = await admin.post(f"{zone.path}/keys", json={"application_id": "app", "name": "listener"})
        assert made.status_code == 201, made.text
        key = json_object(made)
        stream = await SseStream.request(frequent_check_server.url, f"{zone.path}/events", None, X_API_Key=key["key"])
        assert stream.decoder.status == 200, stream.decoder.body
        await stream.wait_for_comment("keep-alive")
        assert (await admin.delete(f"{zone.path}/keys/{key['id']}")).status_code == 204
        await stream.read_to_end()
    assert stream.decoder.comments[-1] == "over, invalid_token"


# -- silence


@STARTED_ON_SQLITE
async def test_a_silent_stream_shows_signs_of_life_that_bear_the_position(frequent_check_server: ServerProcess) -> None:
    zone = await create_zone(frequent_check_server)
    other = await create_zone(frequent_check_server)
    stream = await opened(zone, "?subject=nobody")
    events = await some_events(zone) + await some_events(other)
    await stream.wait_for_comment("keep-alive")

    async def has_passed() -> bool:
        return await stream.read_some() > 0 and int(stream.decoder.last_id) >= events[-1]["pos"]

    await eventually(has_passed, "the signs of life passed what was not wanted")
    assert stream.take_received() == []
    await stream.close()


# -- how many


@STARTED_ON_SQLITE
async def test_beyond_the_most_streams_a_newcomer_is_told_to_come_again(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_STREAMS_MAX="2"))
    zone = await create_zone(server)
    first, second = await opened(zone), await opened(zone)
    answer = await asked_for_a_stream(zone)
    assert_problem(answer, 503, "too_many_streams")
    assert int(answer.headers["retry-after"]) > 0
    assert_problem(await asked_for_a_stream(FreshZone(server, "nowhere")), 503, "too_many_streams")
    assert len(await read_events(zone)) == 1, "a list is no stream"
    first.reset()
    await none_but(server, 1)
    assert_problem(await asked_for_a_stream(FreshZone(server, "nowhere")), 404, "zone_not_found")
    third = await opened(zone)
    for stream in (second, third):
        await stream.close()
    await none_but(server, 0)


async def none_but(server: ServerProcess, count: int) -> None:
    """Returns when so many streams are open."""

    async def counted() -> bool:
        return await streams_open(server) == count

    await eventually(counted, f"{count} streams are open")


async def streams_open(server: ServerProcess) -> int:
    async with server.client() as client:
        text = (await client.get("/metrics")).text
    [line] = [line for line in text.splitlines() if line.startswith("quarterdeck_streams_open{")]
    return int(float(line.split()[-1]))


# -- the end


@STARTED_ON_SQLITE
async def test_told_to_stop_the_server_ends_its_streams_first_and_leaves_at_once(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch.with_environment(QD_SHUTDOWN_GRACE_MS="60000"))
    zone = await create_zone(server)
    streams = [await opened(zone) for _ in range(200)]
    before = await some_events(zone, 2)
    began = asyncio.get_running_loop().time()
    server.terminate()
    for stream in streams:
        assert positions(await stream.read_to_end()) == [event["pos"] for event in before[1:]]
        assert stream.decoder.comments[-1] == "over, draining"
    assert await server.wait(limit=10) == 0
    assert asyncio.get_running_loop().time() - began < 5
    assert "Traceback" not in server.log_text
    for stream in streams:
        await stream.close()


@STARTED_ON_SQLITE
async def test_each_stream_leaves_one_line_in_the_log_when_it_is_over(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch)
    zone = await create_zone(server)
    async with open_stream(server.url, f"{zone.path}/events", zone.token(), X_Request_ID="mine"):
        assert '"mine"' not in server.log_text
    await none_but(server, 0)
    assert await server.stop() == 0
    [line] = [json.loads(line) for line in server.log_text.splitlines() if '"request_id":"mine"' in line]
    assert (line["route"], line["status"]) == ("GET /zones/{zone}/events (stream)", 200)


@STARTED_ON_SQLITE
async def test_a_stream_shares_its_connection_with_what_comes_after_it(frequent_check_server: ServerProcess) -> None:
    zone = await create_zone(frequent_check_server)
    stream = await opened(zone, token=zone.token(ttl=1))
    await stream.read_to_end()
    connection = RawConnection(stream._reader, stream._writer)
    answer = await connection.send_and_read(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n")
    assert answer.status == 200
    await connection.close()
