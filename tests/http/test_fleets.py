"""Over HTTP: fleets, their members, what these say to each other, and who watches over them."""

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
ONE = f"{FLEETS}/1"
DIRECTOR, ADMINISTRATOR, ALICE, BOB = 1, 2, 3, 4


def owner(zone: FreshZone) -> httpx.AsyncClient:
    return zone.client(zone.token(role=Role.OWNER))


async def crew(client: httpx.AsyncClient) -> None:
    """Fleet 1: the director, the administrator, Alice and Bob."""
    made = await client.post(FLEETS, json={"label": "review"})
    assert made.status_code == 201, made.text
    for name in ("alice", "bob"):
        answer = await client.post(f"{ONE}/members", json={"name": name, "description": "reads"})
        assert answer.status_code == 201, answer.text


async def said(client: httpx.AsyncClient, sender: int, to: int | str, text: str = "hello") -> dict[str, Any]:
    asked = {"from_agent_id": sender, "to_agent_id": to, "text": text}
    answer = await client.post(f"{ONE}/messages", json=asked)
    assert answer.status_code == 201, answer.text
    return json_object(answer)


async def inbox(client: httpx.AsyncClient, agent: int, **query: object) -> list[dict[str, Any]]:
    answer = await client.get(f"{ONE}/members/{agent}/inbox", params={**query})  # type: ignore[dict-item]  # httpx spells them
    assert answer.status_code == 200, answer.text
    found = answer.json()["messages"]
    assert isinstance(found, list)
    return found


def why(answer: httpx.Response, status: int, error: str) -> str:
    """The sentence of a refusal, word for word: agents read it."""
    assert (answer.status_code, answer.json()["error"]) == (status, error), answer.text
    return str(answer.json()["detail"])


# -- fleets and members ------------------------------------------------------------------------------------------


async def test_a_fleet_begins_with_a_director_and_an_administrator_and_a_key_makes_it_once(zone: FreshZone) -> None:
    async with owner(zone) as client:
        keyed = {"Idempotency-Key": "k"}
        made = await client.post(FLEETS, json={"label": "review"}, headers=keyed)
        assert made.status_code == 201, made.text
        fleet = made.json()
        assert (fleet["fleet_id"], fleet["director"]["agent_id"], fleet["administrator_agent_id"]) == (1, 1, 2)
        assert fleet["director"]["registered_at"] == fleet["created_at"]
        assert (fleet["director"]["placement"], fleet["members"]) == (None, 2)
        again = await client.post(FLEETS, json={"label": "review"}, headers=keyed)
        assert (again.status_code, again.json()) == (200, fleet)
        assert_problem(await client.post(FLEETS, json={"label": "x"}, headers=keyed), 422)
        assert (await client.post(FLEETS, json={})).json()["fleet_id"] == 2
        assert (await client.get(ONE)).json() == fleet
        first = await client.get(FLEETS, params={"limit": 1})
        assert [each["fleet_id"] for each in first.json()["fleets"]] == [2]
        rest = await client.get(FLEETS, params={"limit": 1, "cursor": first.json()["next_cursor"]})
        assert rest.json() == {"fleets": [fleet], "next_cursor": None}


async def test_a_deleted_fleet_keeps_its_messages_and_takes_nothing_new(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await crew(client)
        sent = await said(client, DIRECTOR, ALICE)
        deleted = {"fleet_id": 1, "deregistered_count": 4, "panes_closed": 0, "panes_left": 0}
        assert (await client.delete(ONE)).json() == deleted
        assert (await client.delete(ONE)).json() == {**deleted, "deregistered_count": 0}
        refused = await client.post(f"{ONE}/members", json={"name": "x", "description": ""})
        assert why(refused, 409, "fleet_deleted") == "fleet 1 is deleted"
        assert (await client.get(FLEETS)).json()["fleets"] == []
        [fleet] = (await client.get(FLEETS, params={"deleted": True})).json()["fleets"]
        assert (fleet["deleted_at"] is not None, fleet["members"], fleet["administrator_agent_id"]) == (True, 0, 2)
        assert (await client.get(f"{ONE}/messages/{sent['id']}")).json()["from_agent_name"] == "Director"
        assert (await client.post(FLEETS, json={})).json()["fleet_id"] == 2


async def test_members_are_agents_of_the_registry_and_leave_it_with_the_fleet(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await crew(client)
        members = (await client.get(f"{ONE}/members", params={"activity": True})).json()["members"]
        assert [(each["agent_id"], each["kind"], each["unread"]) for each in members] == [
            (DIRECTOR, "user", 0),
            (ADMINISTRATOR, "builtin-administrator", 0),
            (ALICE, "user", 0),
            (BOB, "user", 0),
        ]
        assert (await client.get("/api/v1/agents/fleet-1-3")).status_code == 200
        for graceful in (True, False):
            ended = await client.post("/api/v1/agents/fleet-1-3/terminate", json={"graceful": graceful})
            assert "qd member delete" in why(ended, 409, "agent_in_fleet")
        assert (await client.get("/api/v1/agents/fleet-1-3")).json()["status"] == "IDLE"
        left = await client.delete(f"{ONE}/members/{ALICE}")
        assert left.json() == {"agent_id": ALICE, "fleet_id": 1, "name": "alice", "pane_id": None, "pane": None}
        assert (await client.get(f"{ONE}/members/{ALICE}")).json()["status"] == "deregistered"
        registered = (await client.get("/api/v1/agents/fleet-1-3")).json()
        assert registered["status"] in ("TERMINATED", "terminated")
        listed = await client.get(f"{ONE}/members", params={"status": "all", "limit": 3})
        assert [each["agent_id"] for each in listed.json()["members"]] == [1, 2, 3]
        rest = await client.get(f"{ONE}/members", params={"status": "all", "cursor": listed.json()["next_cursor"]})
        assert [each["agent_id"] for each in rest.json()["members"]] == [4]
        for agent, error in ((ADMINISTRATOR, "administrator_protected"), (DIRECTOR, "director_protected")):
            why(await client.delete(f"{ONE}/members/{agent}"), 409, error)
        large = {"name": "x", "description": "", "skills": [{"x": "x" * 9_000}]}
        refused = await client.post(f"{ONE}/members", json=large)
        assert assert_problem(refused, 400, "invalid_body")["field"] == "skills"
        again = await client.delete(f"{ONE}/members/{ALICE}")
        assert why(again, 404, "fleet_member_not_found") == "agent 3 is not a member of fleet 1."


@pytest.mark.parametrize("number", ["0", "01", "-1", "1.5", "x", "1" * 17])
async def test_what_is_no_number_names_no_fleet(zone: FreshZone, number: str) -> None:
    async with owner(zone) as client:
        refused = assert_problem(await client.get(f"{FLEETS}/{number}"), 400, "invalid_path")
        assert refused["field"] == "fleet"


async def test_what_belongs_to_a_pane_is_heard_over_the_socket_alone(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await crew(client)
        asked = {"name": "x", "description": ""}
        why(await client.post(f"{ONE}/members", json={**asked, "director_id": DIRECTOR}), 403, "missing_scope")
        why(await client.post(f"{ONE}/members", json={**asked, "prompt": "go"}), 400, "invalid_body")
    async with zone.client(zone.token(LIFECYCLE, FLEET_EXEC, role=Role.OWNER)) as client:
        pane = {"socket": "/nowhere", "pane_id": "%0"}
        for path, body in (
            (FLEETS, {"pane": pane}),
            (f"{ONE}/members", {**asked, "director_id": DIRECTOR, "pane": pane}),
            (f"{ONE}/members/{ALICE}/send-input", {"text": "x"}),
            (f"{ONE}/members/{ALICE}/exec", {"text": "x"}),
            (f"{ONE}/members/{ALICE}/ping", None),
        ):
            why(await client.post(path, json=body), 403, "local_socket_only")
        why(await client.get(f"{ONE}/members/{ALICE}/capture"), 403, "local_socket_only")


# -- messages ----------------------------------------------------------------------------------------------------


async def test_a_message_is_acknowledged_by_its_recipient_or_canceled_by_its_sender_and_once(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await crew(client)
        row = await said(client, DIRECTOR, ALICE, "look at this")
        assert row == {
            "task_id": 1, "id": 1, "context_id": ALICE, "from_agent_id": DIRECTOR, "from_agent_name": "Director",
            "to_agent_id": ALICE, "to_agent_name": "alice", "type": "unicast", "status_state": "input_required",
            "status_timestamp": row["created_at"], "created_at": row["created_at"], "origin_task_id": None,
            "text": "look at this", "notified_at": None, "notice": None,
        }  # fmt: skip
        one = f"{ONE}/messages/1"
        refused = await client.post(f"{one}/ack", json={"agent_id": BOB})
        assert why(refused, 403, "not_the_recipient") == "Only the recipient can ACK a task"
        refused = await client.post(f"{one}/cancel", json={"agent_id": ALICE})
        assert why(refused, 403, "not_the_sender") == "Only the sender can cancel a task"
        acked = await client.post(f"{one}/ack", json={"agent_id": ALICE})
        assert (acked.status_code, acked.json()["status_state"]) == (200, "completed")
        again = await client.post(f"{one}/ack", json={"agent_id": ALICE})
        assert why(again, 409, "message_state_conflict") == "Cannot ACK task in state completed"
        await said(client, ALICE, BOB)
        canceled = await client.post(f"{ONE}/messages/2/cancel", json={"agent_id": ALICE})
        assert canceled.json()["status_state"] == "canceled"
        types = [event["type"] for event in await read_events(zone) if event["type"].startswith("message.")]
        assert types == ["message.sent", "message.acknowledged", "message.sent", "message.canceled"]


async def test_nobody_is_reached_who_is_not_there(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await crew(client)
        assert (await client.post(FLEETS, json={})).json()["fleet_id"] == 2
        for to, status, error, sentence in (
            (77, 404, "destination_not_found", "Destination agent not found: 77"),
            (5, 404, "destination_not_found", "Destination agent not found: 5"),
            (ADMINISTRATOR, 409, "administrator_protected", "Administrator cannot receive messages"),
        ):
            asked = {"from_agent_id": ALICE, "to_agent_id": to, "text": "hello"}
            assert why(await client.post(f"{ONE}/messages", json=asked), status, error) == sentence
        await said(client, ADMINISTRATOR, ALICE)
        assert (await client.get(f"{ONE}/messages/1")).status_code == 200
        why(await client.get(f"{FLEETS}/2/messages/1"), 404, "message_not_found")
        why(await client.post(f"{FLEETS}/2/messages/1/ack", json={"agent_id": 5}), 404, "message_not_found")
        why(await client.get(f"{FLEETS}/2/members/{ALICE}/inbox"), 404, "fleet_member_not_found")


async def test_the_token_of_a_pane_speaks_as_its_own_member_alone(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await crew(client)
        for number in (1, 2):
            await said(client, DIRECTOR, ALICE if number == 1 else BOB)
        made = await client.post("/api/v1/agents/fleet-1-3/token", json={"ttlSeconds": 600})
        assert made.status_code == 201, made.text
        async with zone.client(made.json()["token"]) as pane:
            asked = {"from_agent_id": BOB, "to_agent_id": DIRECTOR, "text": "not me"}
            why(await pane.post(f"{ONE}/messages", json=asked), 403, "not_oneself")
            why(await pane.post(f"{ONE}/messages", json={**asked, "to_agent_id": "*"}), 403, "not_oneself")
            why(await pane.post(f"{ONE}/messages/2/ack", json={"agent_id": BOB}), 403, "not_oneself")
            why(await pane.post(f"{ONE}/messages/1/cancel", json={"agent_id": DIRECTOR}), 403, "not_oneself")
            assert len(await inbox(pane, BOB)) == 1
            # To a member, other fleets are not there.
            other = (await client.post(FLEETS, json={})).json()["fleet_id"]
            for path in ("", "/members", "/messages", "/timeline", "/monitor"):
                why(await pane.get(f"{FLEETS}/{other}{path}"), 404, "fleet_not_found")
            assert [each["fleet_id"] for each in (await pane.get(FLEETS)).json()["fleets"]] == [1]
            assert (await pane.post(f"{ONE}/messages/1/ack", json={"agent_id": ALICE})).status_code == 200
            await said(pane, ALICE, DIRECTOR)
            why(await pane.delete(ONE), 403, "forbidden_role")
            await client.delete(f"{ONE}/members/{ALICE}")
            assert_problem(await pane.get(ONE), 401, "agent_ended")


async def test_a_message_is_sent_once_under_one_key(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await crew(client)
        for to, number in ((ALICE, 1), ("*", 2)):
            asked = {"from_agent_id": DIRECTOR, "to_agent_id": to, "text": "hello"}
            keyed = {"Idempotency-Key": f"k{number}"}
            first, second = [await client.post(f"{ONE}/messages", json=asked, headers=keyed) for _ in range(2)]
            assert (first.status_code, second.status_code) == (201, 200)
            # Meanwhile there may be a receipt.
            both = [{**answer.json(), "notice": None} for answer in (first, second)]
            assert both[0] == both[1]
        assert first.json()["recipients"] == 2
        assert len((await client.get(f"{ONE}/messages")).json()["messages"]) == 4


async def test_an_inbox_is_read_in_both_orders_page_by_page_and_by_status(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await crew(client)
        for _ in range(5):
            await said(client, DIRECTOR, ALICE)
        await client.post(f"{ONE}/messages/2/ack", json={"agent_id": ALICE})
        unread = {"status": "input_required"}
        assert [each["id"] for each in await inbox(client, ALICE, **unread)] == [5, 4, 3, 1]
        assert [each["id"] for each in await inbox(client, ALICE, order="asc", after=1, **unread)] == [3, 4, 5]
        assert [each["id"] for each in await inbox(client, ALICE, status="completed")] == [2]
        assert {each["id"] for each in await inbox(client, ALICE)} == {1, 2, 3, 4, 5}
        assert await inbox(client, BOB) == []
        for path in (f"{ONE}/members/{ALICE}/inbox", f"{ONE}/members/{DIRECTOR}/sent", f"{ONE}/messages"):
            for order in ("asc", "desc"):
                assert sorted(await pages(client, path, order)) == [1, 2, 3, 4, 5], (path, order)
        assert await pages(client, f"{ONE}/messages", "asc") == [1, 2, 3, 4, 5]


@ON_SQLITE
async def test_a_page_of_long_messages_is_cut_and_goes_on(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await crew(client)
        await asyncio.gather(*(said(client, DIRECTOR, ALICE, "x" * 100_000) for _ in range(65)))
        for path, noun in ((f"{ONE}/members/{ALICE}/inbox", "messages"), (f"{ONE}/timeline", "items")):
            page = (await client.get(path, params={"limit": 100})).json()
            assert len(page[noun]) == 64, path
            rest = (await client.get(path, params={"cursor": page["next_cursor"]})).json()
            assert {each["id"] for each in (*page[noun], *rest[noun])} == {*range(1, 66)}
            assert rest["next_cursor"] is None


async def pages(client: httpx.AsyncClient, path: str, order: str) -> list[int]:
    found: list[int] = []
    query = {"order": order, "limit": "2"}
    while True:
        page = (await client.get(path, params=query)).json()
        found += [each["id"] for each in page["messages"]]
        if page["next_cursor"] is None:
            return found
        query["cursor"] = page["next_cursor"]


async def polls_wait(client: httpx.AsyncClient, number: int) -> bool:
    return f'quarterdeck_polls_waiting{{name="messages"}} {number}' in (await client.get("/metrics")).text


async def test_a_poll_that_waits_is_answered_by_the_next_message(zone: FreshZone) -> None:
    async with owner(zone) as client, owner(zone) as other:
        await crew(client)
        await said(client, DIRECTOR, ALICE)
        query = {"status": "input_required", "wait_ms": 30_000, "after": 1}
        poll = asyncio.create_task(inbox(other, ALICE, **query))
        await eventually(lambda: polls_wait(client, 1), "the poll waited")
        await said(client, DIRECTOR, BOB)
        assert not poll.done()
        await said(client, DIRECTOR, ALICE)
        assert [each["id"] for each in await poll] == [3]
        assert await inbox(client, ALICE, **{**query, "after": 3, "wait_ms": 20}) == []
        refused = await client.get(f"{ONE}/members/{ALICE}/inbox", params={"wait_ms": 10})
        assert assert_problem(refused, 400, "invalid_query")["field"] == "wait_ms"


async def test_whoever_leaves_or_is_in_a_deleted_fleet_polls_no_more_and_its_history_stays(zone: FreshZone) -> None:
    query: dict[str, str | int] = {"status": "input_required", "wait_ms": 30_000, "after": 2}
    gone = "agent 3 is not a member of fleet 1."
    async with owner(zone) as client, owner(zone) as other:
        await crew(client)
        for to in (ALICE, BOB):
            await said(client, DIRECTOR, to)
        boxes = [f"{ONE}/members/{agent}/inbox" for agent in (ALICE, BOB)]
        alice, bob = [asyncio.create_task(other.get(box, params=query)) for box in boxes]
        await eventually(lambda: polls_wait(client, 2), "both polls waited")
        await client.delete(f"{ONE}/members/{ALICE}")
        assert why(await alice, 404, "fleet_member_not_found") == gone
        assert not bob.done()
        for wait_ms in (0, 30_000):
            asked = await client.get(boxes[0], params={**query, "after": 0, "wait_ms": wait_ms})
            assert why(asked, 404, "fleet_member_not_found") == gone
        await client.delete(ONE)
        assert why(await bob, 409, "fleet_deleted") == "fleet 1 is deleted"
        for agent, box in zip((ALICE, BOB), boxes, strict=True):
            why(await client.get(box, params=query), 409, "fleet_deleted")
            assert len(await inbox(client, agent, status="input_required")) == 1


# -- the timeline ------------------------------------------------------------------------------------------------


async def test_a_broadcast_is_one_entry_with_all_its_recipients(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await crew(client)
        assert (await client.get(f"{ONE}/timeline")).json() == {"items": [], "next_cursor": None}
        await said(client, DIRECTOR, ALICE, "first")
        asked = {"from_agent_id": ALICE, "to_agent_id": "*", "text": "to all", "wait_ms": 10_000}
        sent = (await client.post(f"{ONE}/messages", json=asked)).json()
        assert (sent["recipients"], sent["summary"]["text"]) == (2, "Broadcast sent to 2 recipients")
        assert sent["delivered"] == 0, "nobody has a pane"
        assert (sent["summary"]["to_agent_id"], sent["summary"]["origin_task_id"]) == (0, 2)
        await said(client, BOB, ALICE, "last")
        acked = (await client.post(f"{ONE}/messages/4/ack", json={"agent_id": BOB})).json()
        await client.delete(f"{ONE}/members/{BOB}")
        page = (await client.get(f"{ONE}/timeline", params={"limit": 2})).json()
        assert [(entry["id"], entry["kind"], entry["text"]) for entry in page["items"]] == [
            (5, "unicast", "last"),
            (2, "broadcast", "to all"),
        ]
        assert page["items"][0]["from_agent_name"] == "bob"
        assert [
            (each["task_id"], each["agent_name"], each["status_state"], each["acknowledged_at"])
            for each in page["items"][1]["recipients"]
        ] == [(3, "Director", "input_required", None), (4, "bob", "completed", acked["status_timestamp"])]
        rest = await client.get(f"{ONE}/timeline", params={"cursor": page["next_cursor"]})
        assert [entry["id"] for entry in rest.json()["items"]] == [1]
        assert rest.json()["next_cursor"] is None


async def test_the_live_timeline_shows_a_broadcast_and_then_that_it_was_acknowledged(zone: FreshZone) -> None:
    live, token = f"{ONE}/timeline/live", zone.token(role=Role.OWNER)
    async with owner(zone) as client:
        await crew(client)
        await client.post(FLEETS, json={})
        async with open_stream(zone.server.url, live, token) as stream:
            await stream.wait_until_started()
            elsewhere = {"from_agent_id": 6, "to_agent_id": 5, "text": "of another fleet"}
            assert (await client.post(f"{FLEETS}/2/messages", json=elsewhere)).status_code == 201
            await said(client, DIRECTOR, "*", "to all")
            first = await stream.next()
            entry = first.json()
            assert (first.event, entry["kind"], entry["text"]) == ("entry", "broadcast", "to all")
            assert [each["status_state"] for each in entry["recipients"]] == ["input_required"] * 2
            await client.post(f"{ONE}/messages/3/ack", json={"agent_id": ALICE})
            second = await stream.next()
            assert (second.event, int(second.id) > int(first.id)) == ("moved", True)
            moved = second.json()
            assert moved.keys() == {"id", "recipients"}, "the text is known, and so are the others"
            assert [(each["agent_id"], each["status_state"]) for each in moved["recipients"]] == [(ALICE, "completed")]
            assert moved["id"] == entry["id"]
        await said(client, BOB, ALICE, "meanwhile")
        async with open_stream(zone.server.url, live, token, **{"Last-Event-ID": second.id}) as stream:
            assert (await stream.next()).json()["text"] == "meanwhile"
        assert (await client.head(live)).status_code == 200


# -- the monitor -------------------------------------------------------------------------------------------------


async def test_one_process_watches_over_a_fleet_until_it_lets_go(zone: FreshZone) -> None:
    async with owner(zone) as client:
        await crew(client)
        monitor, own = f"{ONE}/monitor", {"pid": 10, "host_id": "h"}
        before = (await client.get(monitor)).json()
        assert (before["pid"], before["is_recent"], before["members"]) == (None, False, [])
        claim = {**own, "user_id": 0, "tick_seconds": 7}
        assert (await client.post(f"{monitor}/claim", json=claim)).json()["pid"] == 10
        refused = await client.post(f"{monitor}/claim", json={**claim, "pid": 11})
        assert why(refused, 409, "monitor_running") == "monitor already running for fleet 1"
        beaten = await client.post(f"{monitor}/beat", json={**own, "pinged": [ALICE]})
        assert (beaten.status_code, beaten.json()["is_recent"]) == (200, True)
        why(await client.post(f"{monitor}/beat", json={**own, "pid": 11}), 409, "not_the_monitor")
        released = (await client.post(f"{monitor}/release", json=own)).json()
        assert (released["pid"], released["last_tick_at"], released["tick_seconds"]) == (None, None, 7)
        why(await client.get(f"{ONE}/members/{ALICE}/monitor"), 409, "no_placement")
        why(await client.patch(f"{ONE}/members/{ALICE}/monitor", json={"enabled": False}), 409, "no_placement")
