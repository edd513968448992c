"""A zone's event log over HTTP: oldest first, after a position."""

from __future__ import annotations

import pytest

from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_every_transition_is_one_event_in_order(zone: FreshZone) -> None:
    async with zone.client() as client:
        root = await spawn(client, zone)
        child = await spawn(client, zone, parent_id=root["id"])
        await end(client, zone, root["id"])
        await end(client, zone, root["id"])
    created, *events = await read_events(zone)
    assert (created["type"], created["subject"]) == ("zone.create", zone.id)
    assert [(event["type"], event["subject"], event["from"], event["to"]) for event in events] == [
        ("session.spawn", root["id"], None, "active"),
        ("session.spawn", child["id"], None, "active"),
        ("session.terminate", child["id"], "active", "terminated"),
        ("session.terminate", root["id"], "active", "terminated"),
    ]
    assert all(event.keys() == set(FIELDS) for event in events)
    assert {event["zone_id"] for event in events} == {zone.id}
    assert {event["actor"] for event in events} == {"app"}
    assert [event["pos"] for event in events] == sorted({event["pos"] for event in events})
    assert len({event["id"] for event in events}) == 4
    assert events[0]["at"] == root["spawned_at"]
    assert events[2]["data"]["cause"] == root["id"]
    assert events[1]["data"]["parent_id"] == root["id"]


FIELDS = ("pos", "id", "zone_id", "type", "subject", "actor", "from", "to", "data", "trace", "at")


async def test_pages_continue_by_position_and_the_last_has_no_next_after(zone: FreshZone) -> None:
    async with zone.client() as client:
        for _ in range(4):
            await spawn(client, zone)
        path, after, positions = f"{zone.path}/events", 0, []
        for expected in (2, 2, 1):
            page = json_object(await client.get(path, params={"after": after, "limit": 2}))
            positions += [item["pos"] for item in page["items"]]
            assert len(page["items"]) == expected
            after = page["next_after"]
        assert after is None
        assert positions == [event["pos"] for event in await read_events(zone)]
        beyond = json_object(await client.get(path, params={"after": 2**63 - 1}))
        assert beyond == {"items": [], "next_after": None}


async def test_events_are_filtered_by_types_and_subject(zone: FreshZone) -> None:
    async with zone.client() as client:
        first, second = await spawn(client, zone), await spawn(client, zone)
        await end(client, zone, first["id"])
    all_events = await read_events(zone)
    spawns = await read_events(zone, types="session.spawn")
    assert [event["subject"] for event in spawns] == [first["id"], second["id"]]
    two_types = await read_events(zone, types="session.terminate,zone.create")
    assert [event["type"] for event in two_types] == ["zone.create", "session.terminate"]
    assert await read_events(zone, types="no.such_type") == []
    assert await read_events(zone, subject=first["id"]) == [all_events[1], all_events[3]]
    assert await read_events(zone, subject=first["id"], types="session.terminate") == [all_events[3]]


async def test_event_log_has_no_events_of_another_zone(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    async with other.client() as client:
        foreign = await spawn(client, other)
    assert {event["zone_id"] for event in await read_events(zone)} == {zone.id}
    assert await read_events(zone, subject=foreign["id"]) == []


async def test_traceparent_is_stored_with_the_events_it_caused(zone: FreshZone) -> None:
    async with zone.client() as client:
        client.headers["traceparent"] = TRACE
        session = await spawn(client, zone)
        await end(client, zone, session["id"])
        del client.headers["traceparent"]
        plain = await spawn(client, zone)
    assert [event["trace"] for event in await read_events(zone, subject=session["id"])] == [TRACE, TRACE]
    assert [event["trace"] for event in await read_events(zone, subject=plain["id"])] == [None]


@pytest.mark.parametrize(
    "trace", [b"not a traceparent", b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01", b"\xff\xfe", TRACE.encode() * 4, b""]
)
async def test_malformed_traceparent_is_ignored(zone: FreshZone, trace: bytes) -> None:
    async with zone.client() as client:
        response = await client.post(
            zone.sessions_path, json={"application_id": APP}, headers=[(b"traceparent", trace)]
        )
        session = json_object(response)
    assert [event["trace"] for event in await read_events(zone, subject=session["id"])] == [None]


@pytest.mark.parametrize(
    "query",
    ["after=-1", "after=x", f"after={2**63}", "limit=0", "limit=1001", "types=", "types=,", "types=Upper",
     "types=session.spawn%0A", "subject=", "subject=a%20b", "subject=a%0A"],
)  # fmt: skip
async def test_malformed_event_query_is_refused_with_its_field(zone: FreshZone, query: str) -> None:
    async with zone.client() as client:
        body = assert_problem(await client.get(f"{zone.path}/events?{query}"), 400)
    assert body["field"] == query.partition("=")[0]
