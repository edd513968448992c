"""Fleets over HTTP: fleets, members, messages, the timeline and the monitor."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from quarterdeck.core.caller import FLEET_EXEC, LIFECYCLE, Role
from tests.support.engine_marks import ON_SQLITE
from tests.support.eventually import eventually
from tests.support.sse import open_stream
from tests.support.zone import FreshZone, assert_problem, json_object, read_events

FLEETS = "/api/v1/fleets"
FLEET_1 = f"{FLEETS}/1"
DIRECTOR, ADMINISTRATOR, ALICE, BOB = 1, 2, 3, 4


def owner(zone: FreshZone) -> httpx.AsyncClient:
    return zone.client(zone.token(role=Role.OWNER))


async def create_fleet(client: httpx.AsyncClient) -> None:
    """Creates fleet 1: the director, the administrator, Alice and Bob."""
    created = await client.post(FLEETS, json={"label": "review"})
    assert created.status_code == 201, created.text
    for name in ("alice", "bob"):
        response = await client.post(f"{FLEET_1}/members", json={"name": name, "description": "reads"})
        assert response.status_code == 201, response.text


async def send_message(client: httpx.AsyncClient, sender: int, to: int | str, text: str = "hello") -> dict[str, Any]:
    body = {"from_agent_id": sender, "to_agent_id": to, "text": text}
    response = await client.post(f"{FLEET_1}/messages", json=body)
    assert response.status_code == 201, response.text
    return json_object(response)


async def read_inbox(client: httpx.AsyncClient, agent: int, **query: object) -> list[dict[str, Any]]:
    response = await client.get(f"{FLEET_1}/members/{agent}/inbox", params={**query})  # type: ignore[dict-item]  # httpx converts them to text
    assert response.status_code == 200, response.text
    messages = response.json()["messages"]
    assert isinstance(messages, list)
    return messages


def assert_refused(response: httpx.Response, status: int, error: str) -> str:
    """Returns the detail of the refusal. Agents read it, so the tests compare it verbatim."""
    assert (response.status_code, response.json()["error"]) == (status, error), response.text
    return str(response.json()["detail"])


# -- fleets and members ------------------------------------------------------------------------------------------


async def test_new_fleet_has_two_members_and_an_idempotency_key_creates_it_once(zone: FreshZone) -> None:
    async with owner(zone) as client:
        headers = {"Idempotency-Key": "k"}
        created = await client.post(FLEETS, json={"label": "review"}, headers=headers)
        assert created.status_code == 201, created.text
        fleet = created.json()
        assert (fleet["fleet_id"], fleet["director"]["agent_id"], fleet["administrator_agent_id"]) == (1, 1, 2)
        assert fleet["director"]["registered_at"] == fleet["created_at"]
        assert (fleet["director"]["placement"], fleet["members"]) == (None, 2)
        again = await client.post(FLEETS, json={"label": "review"}, headers=headers)
        assert (again.status_code, again.json()) == (200, fleet)
        assert_problem(await client.post(FLEETS, json={"label": "x"}, headers=headers), 422)
        assert (await client.post(FLEETS, json={})).json()["fleet_id"] == 2
        assert (await client.get(FLEET_1)).json() == fleet
        first = await client.get(FLEETS, params={"limit": 1})
        assert [item["fleet_id"] for item in first.json()["fleets"]] == [2]
        rest = await client.get(FLEETS, params={"limit": 1, "cursor": first.json()["next_cursor"]})
        assert rest.json() == {"fleets": [fleet], "next_cursor": None}


async def test_deleted_fleet_keeps_its_messages_and_refuses_new_members(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await create_fleet(client)
        sent = await send_message(client, DIRECTOR, ALICE)
        deleted = {"fleet_id": 1, "deregistered_count": 4, "panes_closed": 0, "panes_left": 0}
        assert (await client.delete(FLEET_1)).json() == deleted
        assert (await client.delete(FLEET_1)).json() == {**deleted, "deregistered_count": 0}
        refused = await client.post(f"{FLEET_1}/members", json={"name": "x", "description": ""})
        assert assert_refused(refused, 409, "fleet_deleted") == "fleet 1 is deleted"
        assert (await client.get(FLEETS)).json()["fleets"] == []
        [fleet] = (await client.get(FLEETS, params={"deleted": True})).json()["fleets"]
        assert (fleet["deleted_at"] is not None, fleet["members"], fleet["administrator_agent_id"]) == (True, 0, 2)
        assert (await client.get(f"{FLEET_1}/messages/{sent['id']}")).json()["from_agent_name"] == "Director"
        assert (await client.post(FLEETS, json={})).json()["fleet_id"] == 2


async def test_members_are_registered_agents_and_are_ended_through_the_fleet(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await create_fleet(client)
        members = (await client.get(f"{FLEET_1}/members", params={"activity": True})).json()["members"]
        assert [(item["agent_id"], item["kind"], item["unread"]) for item in members] == [
            (DIRECTOR, "user", 0),
            (ADMINISTRATOR, "builtin-administrator", 0),
            (ALICE, "user", 0),
            (BOB, "user", 0),
        ]
        assert (await client.get("/api/v1/agents/fleet-1-3")).status_code == 200
        for graceful in (True, False):
            termination = await client.post("/api/v1/agents/fleet-1-3/terminate", json={"graceful": graceful})
            assert "qd member delete" in assert_refused(termination, 409, "agent_in_fleet")
        assert (await client.get("/api/v1/agents/fleet-1-3")).json()["status"] == "IDLE"
        deleted = await client.delete(f"{FLEET_1}/members/{ALICE}")
        assert deleted.json() == {"agent_id": ALICE, "fleet_id": 1, "name": "alice", "pane_id": None, "pane": None}
        assert (await client.get(f"{FLEET_1}/members/{ALICE}")).json()["status"] == "deregistered"
        registered = (await client.get("/api/v1/agents/fleet-1-3")).json()
        assert registered["status"] in ("TERMINATED", "terminated")
        listed = await client.get(f"{FLEET_1}/members", params={"status": "all", "limit": 3})
        assert [item["agent_id"] for item in listed.json()["members"]] == [1, 2, 3]
        rest = await client.get(f"{FLEET_1}/members", params={"status": "all", "cursor": listed.json()["next_cursor"]})
        assert [item["agent_id"] for item in rest.json()["members"]] == [4]
        for agent, error in ((ADMINISTRATOR, "administrator_protected"), (DIRECTOR, "director_protected")):
            assert_refused(await client.delete(f"{FLEET_1}/members/{agent}"), 409, error)
        large = {"name": "x", "description": "", "skills": [{"x": "x" * 9_000}]}
        refused = await client.post(f"{FLEET_1}/members", json=large)
        assert assert_problem(refused, 400, "invalid_body")["field"] == "skills"
        again = await client.delete(f"{FLEET_1}/members/{ALICE}")
        assert assert_refused(again, 404, "fleet_member_not_found") == "agent 3 is not a member of fleet 1."


@pytest.mark.parametrize("number", ["0", "01", "-1", "1.5", "x", "1" * 17])
async def test_malformed_fleet_number_is_refused(zone: FreshZone, number: str) -> None:
    async with owner(zone) as client:
        refused = assert_problem(await client.get(f"{FLEETS}/{number}"), 400, "invalid_path")
        assert refused["field"] == "fleet"


async def test_pane_requests_are_accepted_on_the_local_socket_only(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await create_fleet(client)
        member = {"name": "x", "description": ""}
        assert_refused(
            await client.post(f"{FLEET_1}/members", json={**member, "director_id": DIRECTOR}), 403, "missing_scope"
        )
        wrong_key = {"idempotency-key": "x" * 1_000}
        refused = await client.post(f"{FLEET_1}/members", json={**member, "director_id": DIRECTOR}, headers=wrong_key)
        assert_refused(refused, 403, "missing_scope")
        assert_refused(await client.post(f"{FLEET_1}/members", json={**member, "prompt": "go"}), 400, "invalid_body")
    async with zone.client(zone.token(LIFECYCLE, FLEET_EXEC, role=Role.OWNER)) as client:
        pane = {"socket": "/nowhere", "pane_id": "%0"}
        for path, body in (
            (FLEETS, {"pane": pane}),
            (f"{FLEET_1}/members", {**member, "director_id": DIRECTOR, "pane": pane}),
            (f"{FLEET_1}/members/{ALICE}/send-input", {"text": "x"}),
            (f"{FLEET_1}/members/{ALICE}/exec", {"text": "x"}),
            (f"{FLEET_1}/members/{ALICE}/ping", None),
        ):
            assert_refused(await client.post(path, json=body), 403, "local_socket_only")
        assert_refused(await client.get(f"{FLEET_1}/members/{ALICE}/capture"), 403, "local_socket_only")


# -- messages ----------------------------------------------------------------------------------------------------


async def test_message_is_acknowledged_by_its_recipient_or_canceled_by_its_sender(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await create_fleet(client)
        row = await send_message(client, DIRECTOR, ALICE, "look at this")
        assert row == {
            "task_id": 1, "id": 1, "context_id": ALICE, "from_agent_id": DIRECTOR, "from_agent_name": "Director",
            "to_agent_id": ALICE, "to_agent_name": "alice", "type": "unicast", "status_state": "input_required",
            "status_timestamp": row["created_at"], "created_at": row["created_at"], "origin_task_id": None,
            "text": "look at this", "notified_at": None, "notice": None,
        }  # fmt: skip
        message_path = f"{FLEET_1}/messages/1"
        refused = await client.post(f"{message_path}/ack", json={"agent_id": BOB})
        assert assert_refused(refused, 403, "not_the_recipient") == "Only the recipient can ACK a task"
        refused = await client.post(f"{message_path}/cancel", json={"agent_id": ALICE})
        assert assert_refused(refused, 403, "not_the_sender") == "Only the sender can cancel a task"
        acked = await client.post(f"{message_path}/ack", json={"agent_id": ALICE})
        assert (acked.status_code, acked.json()["status_state"]) == (200, "completed")
        again = await client.post(f"{message_path}/ack", json={"agent_id": ALICE})
        assert assert_refused(again, 409, "message_state_conflict") == "Cannot ACK task in state completed"
        await send_message(client, ALICE, BOB)
        canceled = await client.post(f"{FLEET_1}/messages/2/cancel", json={"agent_id": ALICE})
        assert canceled.json()["status_state"] == "canceled"
        types = [event["type"] for event in await read_events(zone) if event["type"].startswith("message.")]
        assert types == ["message.sent", "message.acknowledged", "message.sent", "message.canceled"]


async def test_recipients_and_messages_outside_the_fleet_are_not_found(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await create_fleet(client)
        assert (await client.post(FLEETS, json={})).json()["fleet_id"] == 2
        for to, status, error, detail in (
            (77, 404, "destination_not_found", "Destination agent not found: 77"),
            (5, 404, "destination_not_found", "Destination agent not found: 5"),
            (ADMINISTRATOR, 409, "administrator_protected", "Administrator cannot receive messages"),
        ):
            body = {"from_agent_id": ALICE, "to_agent_id": to, "text": "hello"}
            assert assert_refused(await client.post(f"{FLEET_1}/messages", json=body), status, error) == detail
        await send_message(client, ADMINISTRATOR, ALICE)
        assert (await client.get(f"{FLEET_1}/messages/1")).status_code == 200
        assert_refused(await client.get(f"{FLEETS}/2/messages/1"), 404, "message_not_found")
        assert_refused(await client.post(f"{FLEETS}/2/messages/1/ack", json={"agent_id": 5}), 404, "message_not_found")
        assert_refused(await client.get(f"{FLEETS}/2/members/{ALICE}/inbox"), 404, "fleet_member_not_found")


async def test_member_token_acts_for_its_own_member_only(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await create_fleet(client)
        for number in (1, 2):
            await send_message(client, DIRECTOR, ALICE if number == 1 else BOB)
        created = await client.post("/api/v1/agents/fleet-1-3/token", json={"ttlSeconds": 600})
        assert created.status_code == 201, created.text
        async with zone.client(created.json()["token"]) as pane:
            body = {"from_agent_id": BOB, "to_agent_id": DIRECTOR, "text": "not me"}
            assert_refused(await pane.post(f"{FLEET_1}/messages", json=body), 403, "not_oneself")
            assert_refused(
                await pane.post(f"{FLEET_1}/messages", json={**body, "to_agent_id": "*"}), 403, "not_oneself"
            )
            assert_refused(await pane.post(f"{FLEET_1}/messages/2/ack", json={"agent_id": BOB}), 403, "not_oneself")
            assert_refused(
                await pane.post(f"{FLEET_1}/messages/1/cancel", json={"agent_id": DIRECTOR}), 403, "not_oneself"
            )
            assert len(await read_inbox(pane, BOB)) == 1
            # A member does not see other fleets.
            other = (await client.post(FLEETS, json={})).json()["fleet_id"]
            for path in ("", "/members", "/messages", "/timeline", "/monitor"):
                assert_refused(await pane.get(f"{FLEETS}/{other}{path}"), 404, "fleet_not_found")
            assert [item["fleet_id"] for item in (await pane.get(FLEETS)).json()["fleets"]] == [1]
            assert (await pane.post(f"{FLEET_1}/messages/1/ack", json={"agent_id": ALICE})).status_code == 200
            await send_message(pane, ALICE, DIRECTOR)
            assert_refused(await pane.delete(FLEET_1), 403, "forbidden_role")
            await client.delete(f"{FLEET_1}/members/{ALICE}")
            assert_problem(await pane.get(FLEET_1), 401, "agent_ended")


async def test_idempotency_key_sends_a_message_once(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await create_fleet(client)
        for to, number in ((ALICE, 1), ("*", 2)):
            body = {"from_agent_id": DIRECTOR, "to_agent_id": to, "text": "hello"}
            headers = {"Idempotency-Key": f"k{number}"}
            first, second = [await client.post(f"{FLEET_1}/messages", json=body, headers=headers) for _ in range(2)]
            assert (first.status_code, second.status_code) == (201, 200)
            # The notice may have been delivered between the two requests.
            bodies = [{**response.json(), "notice": None} for response in (first, second)]
            assert bodies[0] == bodies[1]
        assert first.json()["recipients"] == 2
        assert len((await client.get(f"{FLEET_1}/messages")).json()["messages"]) == 4


async def test_inbox_is_paged_in_both_orders_and_filtered_by_status(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await create_fleet(client)
        for _ in range(5):
            await send_message(client, DIRECTOR, ALICE)
        await client.post(f"{FLEET_1}/messages/2/ack", json={"agent_id": ALICE})
        unread = {"status": "input_required"}
        assert [item["id"] for item in await read_inbox(client, ALICE, **unread)] == [5, 4, 3, 1]
        assert [item["id"] for item in await read_inbox(client, ALICE, order="asc", after=1, **unread)] == [3, 4, 5]
        assert [item["id"] for item in await read_inbox(client, ALICE, status="completed")] == [2]
        assert {item["id"] for item in await read_inbox(client, ALICE)} == {1, 2, 3, 4, 5}
        assert await read_inbox(client, BOB) == []
        for path in (f"{FLEET_1}/members/{ALICE}/inbox", f"{FLEET_1}/members/{DIRECTOR}/sent", f"{FLEET_1}/messages"):
            for order in ("asc", "desc"):
                assert sorted(await read_message_ids(client, path, order)) == [1, 2, 3, 4, 5], (path, order)
        assert await read_message_ids(client, f"{FLEET_1}/messages", "asc") == [1, 2, 3, 4, 5]


@ON_SQLITE
async def test_page_of_long_messages_is_cut_and_has_a_cursor(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await create_fleet(client)
        await asyncio.gather(*(send_message(client, DIRECTOR, ALICE, "x" * 100_000) for _ in range(65)))
        for path, noun in ((f"{FLEET_1}/members/{ALICE}/inbox", "messages"), (f"{FLEET_1}/timeline", "items")):
            page = (await client.get(path, params={"limit": 100})).json()
            assert len(page[noun]) == 64, path
            rest = (await client.get(path, params={"cursor": page["next_cursor"]})).json()
            assert {item["id"] for item in (*page[noun], *rest[noun])} == {*range(1, 66)}
            assert rest["next_cursor"] is None


async def read_message_ids(client: httpx.AsyncClient, path: str, order: str) -> list[int]:
    ids: list[int] = []
    query = {"order": order, "limit": "2"}
    while True:
        page = (await client.get(path, params=query)).json()
        ids += [item["id"] for item in page["messages"]]
        if page["next_cursor"] is None:
            return ids
        query["cursor"] = page["next_cursor"]


async def has_waiting_polls(client: httpx.AsyncClient, number: int) -> bool:
    return f'quarterdeck_polls_waiting{{name="messages"}} {number}' in (await client.get("/metrics")).text


async def test_waiting_poll_returns_the_next_message(zone: FreshZone) -> None:
    async with owner(zone) as client, owner(zone) as other:
        await create_fleet(client)
        await send_message(client, DIRECTOR, ALICE)
        query = {"status": "input_required", "wait_ms": 30_000, "after": 1}
        poll = asyncio.create_task(read_inbox(other, ALICE, **query))
        await eventually(lambda: has_waiting_polls(client, 1), "the poll is waiting")
        await send_message(client, DIRECTOR, BOB)
        assert not poll.done()
        await send_message(client, DIRECTOR, ALICE)
        assert [item["id"] for item in await poll] == [3]
        assert await read_inbox(client, ALICE, **{**query, "after": 3, "wait_ms": 20}) == []
        refused = await client.get(f"{FLEET_1}/members/{ALICE}/inbox", params={"wait_ms": 10})
        assert assert_problem(refused, 400, "invalid_query")["field"] == "wait_ms"


async def test_deleting_member_or_fleet_ends_polls_and_keeps_the_history(zone: FreshZone) -> None:
    query: dict[str, str | int] = {"status": "input_required", "wait_ms": 30_000, "after": 2}
    not_a_member = "agent 3 is not a member of fleet 1."
    async with owner(zone) as client, owner(zone) as other:
        await create_fleet(client)
        for to in (ALICE, BOB):
            await send_message(client, DIRECTOR, to)
        inboxes = [f"{FLEET_1}/members/{agent}/inbox" for agent in (ALICE, BOB)]
        alice, bob = [asyncio.create_task(other.get(path, params=query)) for path in inboxes]
        await eventually(lambda: has_waiting_polls(client, 2), "both polls are waiting")
        await client.delete(f"{FLEET_1}/members/{ALICE}")
        assert assert_refused(await alice, 404, "fleet_member_not_found") == not_a_member
        assert not bob.done()
        for wait_ms in (0, 30_000):
            refused = await client.get(inboxes[0], params={**query, "after": 0, "wait_ms": wait_ms})
            assert assert_refused(refused, 404, "fleet_member_not_found") == not_a_member
        await client.delete(FLEET_1)
        assert assert_refused(await bob, 409, "fleet_deleted") == "fleet 1 is deleted"
        for agent, path in zip((ALICE, BOB), inboxes, strict=True):
            assert_refused(await client.get(path, params=query), 409, "fleet_deleted")
            assert len(await read_inbox(client, agent, status="input_required")) == 1


# -- timeline ----------------------------------------------------------------------------------------------------


async def test_broadcast_is_one_timeline_entry_with_all_recipients(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await create_fleet(client)
        assert (await client.get(f"{FLEET_1}/timeline")).json() == {"items": [], "next_cursor": None}
        await send_message(client, DIRECTOR, ALICE, "first")
        body = {"from_agent_id": ALICE, "to_agent_id": "*", "text": "to all", "wait_ms": 10_000}
        sent = (await client.post(f"{FLEET_1}/messages", json=body)).json()
        assert (sent["recipients"], sent["summary"]["text"]) == (2, "Broadcast sent to 2 recipients")
        assert sent["delivered"] == 0, "no member has a pane"
        assert (sent["summary"]["to_agent_id"], sent["summary"]["origin_task_id"]) == (0, 2)
        await send_message(client, BOB, ALICE, "last")
        acked = (await client.post(f"{FLEET_1}/messages/4/ack", json={"agent_id": BOB})).json()
        await client.delete(f"{FLEET_1}/members/{BOB}")
        page = (await client.get(f"{FLEET_1}/timeline", params={"limit": 2})).json()
        assert [(entry["id"], entry["kind"], entry["text"]) for entry in page["items"]] == [
            (5, "unicast", "last"),
            (2, "broadcast", "to all"),
        ]
        assert page["items"][0]["from_agent_name"] == "bob"
        assert [
            (item["task_id"], item["agent_name"], item["status_state"], item["acknowledged_at"])
            for item in page["items"][1]["recipients"]
        ] == [(3, "Director", "input_required", None), (4, "bob", "completed", acked["status_timestamp"])]
        rest = await client.get(f"{FLEET_1}/timeline", params={"cursor": page["next_cursor"]})
        assert [entry["id"] for entry in rest.json()["items"]] == [1]
        assert rest.json()["next_cursor"] is None


async def test_live_timeline_sends_a_broadcast_and_its_acknowledgement(zone: FreshZone) -> None:
    live, token = f"{FLEET_1}/timeline/live", zone.token(role=Role.OWNER)
    async with owner(zone) as client:
        await create_fleet(client)
        await client.post(FLEETS, json={})
        async with open_stream(zone.server.url, live, token) as stream:
            await stream.wait_until_started()
            other_message = {"from_agent_id": 6, "to_agent_id": 5, "text": "of another fleet"}
            assert (await client.post(f"{FLEETS}/2/messages", json=other_message)).status_code == 201
            await send_message(client, DIRECTOR, "*", "to all")
            first = await stream.next()
            entry = first.json()
            assert (first.event, entry["kind"], entry["text"]) == ("entry", "broadcast", "to all")
            assert [item["status_state"] for item in entry["recipients"]] == ["input_required"] * 2
            await client.post(f"{FLEET_1}/messages/3/ack", json={"agent_id": ALICE})
            second = await stream.next()
            assert (second.event, int(second.id) > int(first.id)) == ("moved", True)
            moved = second.json()
            assert moved.keys() == {"id", "recipients"}, "the text and the other recipients are not sent again"
            assert [(item["agent_id"], item["status_state"]) for item in moved["recipients"]] == [(ALICE, "completed")]
            assert moved["id"] == entry["id"]
        await send_message(client, BOB, ALICE, "meanwhile")
        async with open_stream(zone.server.url, live, token, **{"Last-Event-ID": second.id}) as stream:
            assert (await stream.next()).json()["text"] == "meanwhile"
        assert (await client.head(live)).status_code == 200


# -- monitor -----------------------------------------------------------------------------------------------------


async def test_one_process_monitors_a_fleet_until_it_releases_the_claim(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await create_fleet(client)
        monitor, process = f"{FLEET_1}/monitor", {"pid": 10, "host_id": "h"}
        before = (await client.get(monitor)).json()
        assert (before["pid"], before["is_recent"], before["members"]) == (None, False, [])
        claim = {**process, "user_id": 0, "tick_seconds": 7}
        assert (await client.post(f"{monitor}/claim", json=claim)).json()["pid"] == 10
        refused = await client.post(f"{monitor}/claim", json={**claim, "pid": 11})
        assert assert_refused(refused, 409, "monitor_running") == "monitor already running for fleet 1"
        heartbeat = await client.post(f"{monitor}/beat", json={**process, "pinged": [ALICE]})
        assert (heartbeat.status_code, heartbeat.json()["is_recent"]) == (200, True)
        assert_refused(await client.post(f"{monitor}/beat", json={**process, "pid": 11}), 409, "not_the_monitor")
        released = (await client.post(f"{monitor}/release", json=process)).json()
        assert (released["pid"], released["last_tick_at"], released["tick_seconds"]) == (None, None, 7)
        assert_refused(await client.get(f"{FLEET_1}/members/{ALICE}/monitor"), 409, "no_placement")
        assert_refused(
            await client.patch(f"{FLEET_1}/members/{ALICE}/monitor", json={"enabled": False}), 409, "no_placement"
        )
