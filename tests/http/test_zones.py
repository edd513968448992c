"""Zones and their quotas over HTTP."""

from __future__ import annotations

import pytest

from quarterdeck.domain.zones.model import CEILINGS
from tests.support.server import ServerProcess
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn

DEFAULTS = {
    "max_depth": 10,
    "max_children": 10,
    "max_tree_size": 50,
    "max_tree_spawns": 500,
    "max_concurrent": 50,
    "max_sessions": 50,
    "max_sessions_per_application": 200,
}
"""The contract's table."""


async def test_a_zone_is_made_once_and_changed_after_that(server: ServerProcess) -> None:
    async with server.client() as admin:
        made = await admin.put("/zones/harbour", json={"name": "The harbour", "quotas": {"max_depth": 3}})
        again = await admin.put("/zones/harbour", json={})
        changed = await admin.put("/zones/harbour", json={"name": "The old harbour"})
        asked = await admin.get("/zones/harbour")
    assert (made.status_code, again.status_code, changed.status_code) == (201, 200, 200)
    assert made.json() == again.json()
    zone = json_object(asked)
    assert (zone["id"], zone["name"], zone["frozen"]) == ("harbour", "The old harbour", False)
    assert zone["quotas"] == {"max_depth": 3}
    assert zone["created_at"].endswith("Z")
    assert changed.json()["updated_at"] >= made.json()["created_at"]
    events = await read_events(FreshZone(server, "harbour"))
    assert [event["type"] for event in events] == ["zone.create", "zone.change"], "what changes nothing is no event"


async def test_a_zone_without_a_body_is_named_after_its_id(server: ServerProcess) -> None:
    async with server.client() as admin:
        made = await admin.put("/zones/quay:1.b_c-D")
    assert (made.status_code, made.json()["name"]) == (201, "quay:1.b_c-D")


async def test_the_zone_default_exists_from_the_start(server: ServerProcess) -> None:
    async with server.client() as admin:
        assert (await admin.get("/zones/default")).status_code == 200


async def test_zones_are_listed_by_id_in_pages(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    async with zone.server.client() as admin:
        ids, query = [], {"limit": "1"}
        while True:
            page = json_object(await admin.get("/zones", params=query))
            ids += [item["id"] for item in page["items"]]
            if page["next_cursor"] is None:
                break
            query["cursor"] = page["next_cursor"]
    assert ids == sorted(set(ids))
    assert {"default", zone.id, other.id} <= set(ids)


async def test_a_zone_that_does_not_exist_is_not_found(server: ServerProcess) -> None:
    async with server.client() as admin:
        assert_problem(await admin.get("/zones/nowhere"), 404, "zone_not_found")
        assert_problem(await admin.get("/zones/nowhere/quotas"), 404, "zone_not_found")
        assert_problem(await admin.put("/zones/nowhere/quotas", json={"max_depth": 1}), 404, "zone_not_found")
        spawned = await admin.post("/zones/nowhere/agents", json={"application_id": APP})
        assert_problem(spawned, 404, "zone_not_found")


async def test_quotas_show_limits_overrides_ceilings_and_what_is_used(server: ServerProcess) -> None:
    plain = FreshZone(server, "plain")
    async with server.client() as admin:
        await admin.put(plain.path, json={"quotas": {"max_children": 7}})
        root = await spawn(admin, plain)
        child = await spawn(admin, plain, parent_id=root["id"])
        quotas = json_object(await admin.get("/zones/plain/quotas"))
        assert quotas["limits"] == {**DEFAULTS, "max_children": 7}
        assert quotas["overrides"] == {"max_children": 7}
        assert quotas["ceilings"] == CEILINGS
        assert quotas["used"] == {"sessions": 2, "concurrent": 1}
        await end(admin, plain, child["id"])
        assert json_object(await admin.get("/zones/plain/quotas"))["used"] == {"sessions": 1, "concurrent": 0}


async def test_setting_quotas_changes_what_is_named_and_null_takes_an_override_back(zone: FreshZone) -> None:
    async with zone.server.client() as admin:
        await admin.put(f"{zone.path}/quotas", json=dict.fromkeys(CEILINGS))
        first = json_object(await admin.put(f"{zone.path}/quotas", json={"max_depth": 0, "max_sessions": 9}))
        second = json_object(await admin.put(f"{zone.path}/quotas", json={"max_depth": None, "max_children": 4}))
    assert first["overrides"] == {"max_depth": 0, "max_sessions": 9}
    assert second["overrides"] == {"max_sessions": 9, "max_children": 4}
    assert second["limits"] == {**DEFAULTS, "max_sessions": 9, "max_children": 4}


@pytest.mark.parametrize("name", CEILINGS)
async def test_a_quota_reaches_its_ceiling_and_no_further(zone: FreshZone, name: str) -> None:
    async with zone.server.client() as admin:
        before = (await admin.get(f"{zone.path}/quotas")).json()
        wrong: list[object] = [CEILINGS[name] + 1, -1, "many", 1.5, True, [], 2**70]
        for value in wrong:
            refused = await admin.put(f"{zone.path}/quotas", json={name: value})
            body = assert_problem(refused, 400)
            assert body["error"] == "invalid_number" or body["field"] == name
            refused = await admin.put(zone.path, json={"quotas": {name: value}})
            body = assert_problem(refused, 400)
            assert body["error"] == "invalid_number" or body["field"] == f"quotas.{name}"
        assert (await admin.get(f"{zone.path}/quotas")).json() == before
        reached = await admin.put(f"{zone.path}/quotas", json={name: CEILINGS[name]})
    assert reached.json()["limits"][name] == CEILINGS[name]


async def test_an_unknown_quota_is_refused_and_nothing_of_its_request_is_set(zone: FreshZone) -> None:
    async with zone.server.client() as admin:
        before = (await admin.get(f"{zone.path}/quotas")).json()
        body = assert_problem(await admin.put(f"{zone.path}/quotas", json={"max_depth": 1, "max_fun": 9}), 400)
        assert "max_fun" in body["detail"]
        body = assert_problem(await admin.put(zone.path, json={"quotas": {"max_depth": 1, "max_fun": 9}}), 400)
        assert "max_fun" in body["detail"]
        assert (await admin.get(f"{zone.path}/quotas")).json() == before


async def test_lowered_limits_stop_nobody_who_runs_and_judge_whoever_comes(zone: FreshZone) -> None:
    async with zone.client() as client, zone.server.client() as admin:
        first, _ = await spawn(client, zone), await spawn(client, zone)
        await admin.put(f"{zone.path}/quotas", json={"max_sessions": 1})
        assert json_object(await client.get(zone.session_path(first["id"])))["status"] == "active"
        refused = await client.post(zone.sessions_path, json={"application_id": APP})
        body = assert_problem(refused, 429, "agent_zone_limit_exceeded")
        assert (body["limit"], body["used"]) == (1, 2)
        assert first["limits"]["max_sessions"] == CEILINGS["max_sessions"], "the snapshot of its own admission"


@pytest.mark.parametrize("name", ["", "n" * 201])
async def test_a_name_has_1_to_200_characters(zone: FreshZone, name: str) -> None:
    async with zone.server.client() as admin:
        assert assert_problem(await admin.put(zone.path, json={"name": name}), 400)["field"] == "name"


# -- frozen, stopped, ended


async def test_a_frozen_zone_refuses_spawns_with_423_until_it_is_thawed(zone: FreshZone) -> None:
    async with zone.client() as client, zone.server.client() as admin:
        kept = {"Idempotency-Key": "k"}
        made = await client.post(zone.sessions_path, json={"application_id": APP}, headers=kept)
        frozen = await admin.post(f"{zone.path}/freeze")
        assert (frozen.status_code, frozen.json()["frozen"]) == (200, True)
        refused = await client.post(zone.sessions_path, json={"application_id": APP})
        assert "thaws" in assert_problem(refused, 423, "zone_frozen")["frees"]
        replayed = await client.post(zone.sessions_path, json={"application_id": APP}, headers=kept)
        assert (replayed.status_code, replayed.json()) == (200, made.json())
        assert json_object(await admin.get(f"{zone.path}/quotas"))["frozen"] is True
        thawed = await admin.post(f"{zone.path}/thaw")
        assert (thawed.status_code, thawed.json()["frozen"]) == (200, False)
        await spawn(client, zone)


async def test_stopping_a_zone_answers_with_a_receipt_and_leaves_it_frozen(zone: FreshZone) -> None:
    async with zone.client() as client, zone.server.client() as admin:
        for _ in range(2):
            root = await spawn(client, zone)
            await spawn(client, zone, parent_id=root["id"])
        answer = await admin.post(f"{zone.path}/stop", params={"reason": "on fire"})
        receipt = json_object(answer)
        assert answer.status_code == 200
        assert receipt.pop("duration_ms") >= 0
        assert receipt == {
            "zone_id": zone.id,
            "session_id": None,
            "cascade_id": None,
            "reason": "on fire",
            "asked": 4,
            "stopped": 4,
            "already_stopped": 0,
            "joined": False,
            "left": [],
        }
        assert_problem(await client.post(zone.sessions_path, json={"application_id": APP}), 423, "zone_frozen")
        listed = json_object(await client.get(zone.sessions_path))["items"]
        assert {(item["status"], item["termination_reason"]) for item in listed} == {("terminated", "on fire")}
        again = json_object(await admin.post(f"{zone.path}/stop"))
        assert (again["reason"], again["stopped"]) == ("requested", 0)


async def test_ending_a_zone_answers_204_and_204_again_and_its_id_is_not_used_again(zone: FreshZone) -> None:
    async with zone.client() as client, zone.server.client() as admin:
        session = await spawn(client, zone)
        for _ in range(2):
            answer = await admin.delete(zone.path)
            assert (answer.status_code, answer.content) == (204, b"")
        with_receipt = await admin.delete(zone.path, params={"receipt": "true"})
        assert (with_receipt.status_code, with_receipt.json()["stopped"]) == (200, 0)
        assert json_object(await admin.get(zone.path))["ended_at"]
        assert json_object(await client.get(zone.session_path(session["id"])))["status"] == "terminated"
        assert_problem(await client.post(zone.sessions_path, json={"application_id": APP}), 404, "zone_not_found")
        for change in (
            await admin.put(zone.path, json={}),
            await admin.put(f"{zone.path}/quotas", json={"max_depth": 1}),
            await admin.post(f"{zone.path}/freeze"),
            await admin.post(f"{zone.path}/thaw"),
        ):
            assert_problem(change, 409, "zone_ended")


async def test_the_zone_default_can_be_stopped_and_not_ended(server: ServerProcess) -> None:
    async with server.client() as admin:
        for query in ({}, {"receipt": "true"}):
            refused = await admin.delete("/zones/default", params=query)
            assert_problem(refused, 409, "zone_is_default")
        assert json_object(await admin.get("/zones/default"))["ended_at"] is None


@pytest.mark.parametrize("verb", ["POST freeze", "POST thaw", "POST stop", "DELETE "])
async def test_only_an_administrator_freezes_thaws_stops_and_ends_and_only_what_is_there(
    zone: FreshZone, verb: str
) -> None:
    method, path = verb.split(" ")
    async with zone.client() as client, zone.server.client() as admin:
        refused = await client.request(method, f"{zone.path}/{path}".rstrip("/"))
        assert_problem(refused, 403, "missing_scope")
        nowhere = await admin.request(method, f"/zones/nowhere/{path}".rstrip("/"))
        assert_problem(nowhere, 404, "zone_not_found")
        assert json_object(await admin.get(zone.path))["frozen"] is False
