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
"""The documented defaults."""


async def test_put_creates_a_zone_once_and_changes_it_after_that(server: ServerProcess) -> None:
    async with server.client() as admin:
        created = await admin.put("/zones/new-zone", json={"name": "New zone", "quotas": {"max_depth": 3}})
        repeated = await admin.put("/zones/new-zone", json={})
        changed = await admin.put("/zones/new-zone", json={"name": "Renamed zone"})
        read = await admin.get("/zones/new-zone")
    assert (created.status_code, repeated.status_code, changed.status_code) == (201, 200, 200)
    assert created.json() == repeated.json()
    zone = json_object(read)
    assert (zone["id"], zone["name"], zone["frozen"]) == ("new-zone", "Renamed zone", False)
    assert zone["quotas"] == {"max_depth": 3}
    assert zone["created_at"].endswith("Z")
    assert changed.json()["updated_at"] >= created.json()["created_at"]
    events = await read_events(FreshZone(server, "new-zone"))
    assert [event["type"] for event in events] == ["zone.create", "zone.change"], (
        "a request that changes nothing writes no event"
    )


async def test_zone_without_a_body_is_named_after_its_id(server: ServerProcess) -> None:
    async with server.client() as admin:
        created = await admin.put("/zones/other:1.b_c-D")
    assert (created.status_code, created.json()["name"]) == (201, "other:1.b_c-D")


async def test_default_zone_exists_from_the_start(server: ServerProcess) -> None:
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


async def test_unknown_zone_is_404(server: ServerProcess) -> None:
    async with server.client() as admin:
        assert_problem(await admin.get("/zones/nowhere"), 404, "zone_not_found")
        assert_problem(await admin.get("/zones/nowhere/quotas"), 404, "zone_not_found")
        assert_problem(await admin.put("/zones/nowhere/quotas", json={"max_depth": 1}), 404, "zone_not_found")
        spawned = await admin.post("/zones/nowhere/agents", json={"application_id": APP})
        assert_problem(spawned, 404, "zone_not_found")


async def test_quotas_show_limits_overrides_ceilings_and_usage(server: ServerProcess) -> None:
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


async def test_put_quotas_changes_the_named_limits_and_null_removes_an_override(zone: FreshZone) -> None:
    async with zone.server.client() as admin:
        await admin.put(f"{zone.path}/quotas", json=dict.fromkeys(CEILINGS))
        first = json_object(await admin.put(f"{zone.path}/quotas", json={"max_depth": 0, "max_sessions": 9}))
        second = json_object(await admin.put(f"{zone.path}/quotas", json={"max_depth": None, "max_children": 4}))
    assert first["overrides"] == {"max_depth": 0, "max_sessions": 9}
    assert second["overrides"] == {"max_sessions": 9, "max_children": 4}
    assert second["limits"] == {**DEFAULTS, "max_sessions": 9, "max_children": 4}


@pytest.mark.parametrize("name", CEILINGS)
async def test_quota_can_be_raised_to_its_ceiling_and_no_further(zone: FreshZone, name: str) -> None:
    async with zone.server.client() as admin:
        before = (await admin.get(f"{zone.path}/quotas")).json()
        invalid_values: list[object] = [CEILINGS[name] + 1, -1, "many", 1.5, True, [], 2**70]
        for value in invalid_values:
            refused = await admin.put(f"{zone.path}/quotas", json={name: value})
            problem = assert_problem(refused, 400)
            assert problem["error"] == "invalid_number" or problem["field"] == name
            refused = await admin.put(zone.path, json={"quotas": {name: value}})
            problem = assert_problem(refused, 400)
            assert problem["error"] == "invalid_number" or problem["field"] == f"quotas.{name}"
        assert (await admin.get(f"{zone.path}/quotas")).json() == before
        accepted = await admin.put(f"{zone.path}/quotas", json={name: CEILINGS[name]})
    assert accepted.json()["limits"][name] == CEILINGS[name]


async def test_request_with_an_unknown_quota_is_refused_as_a_whole(zone: FreshZone) -> None:
    async with zone.server.client() as admin:
        before = (await admin.get(f"{zone.path}/quotas")).json()
        problem = assert_problem(await admin.put(f"{zone.path}/quotas", json={"max_depth": 1, "max_fun": 9}), 400)
        assert "max_fun" in problem["detail"]
        problem = assert_problem(await admin.put(zone.path, json={"quotas": {"max_depth": 1, "max_fun": 9}}), 400)
        assert "max_fun" in problem["detail"]
        assert (await admin.get(f"{zone.path}/quotas")).json() == before


async def test_lowered_limit_keeps_live_sessions_and_refuses_new_ones(zone: FreshZone) -> None:
    async with zone.client() as client, zone.server.client() as admin:
        first, _ = await spawn(client, zone), await spawn(client, zone)
        await admin.put(f"{zone.path}/quotas", json={"max_sessions": 1})
        assert json_object(await client.get(zone.session_path(first["id"])))["status"] == "active"
        refused = await client.post(zone.sessions_path, json={"application_id": APP})
        problem = assert_problem(refused, 429, "agent_zone_limit_exceeded")
        assert (problem["limit"], problem["used"]) == (1, 2)
        assert first["limits"]["max_sessions"] == CEILINGS["max_sessions"], "the limits at the time of the spawn"


@pytest.mark.parametrize("name", ["", "n" * 201])
async def test_zone_name_has_1_to_200_characters(zone: FreshZone, name: str) -> None:
    async with zone.server.client() as admin:
        assert assert_problem(await admin.put(zone.path, json={"name": name}), 400)["field"] == "name"


# -- freeze, stop, end


async def test_frozen_zone_refuses_spawns_with_423_until_it_is_thawed(zone: FreshZone) -> None:
    async with zone.client() as client, zone.server.client() as admin:
        key_header = {"Idempotency-Key": "k"}
        created = await client.post(zone.sessions_path, json={"application_id": APP}, headers=key_header)
        frozen = await admin.post(f"{zone.path}/freeze")
        assert (frozen.status_code, frozen.json()["frozen"]) == (200, True)
        refused = await client.post(zone.sessions_path, json={"application_id": APP})
        assert "thaws" in assert_problem(refused, 423, "zone_frozen")["frees"]
        replayed = await client.post(zone.sessions_path, json={"application_id": APP}, headers=key_header)
        assert (replayed.status_code, replayed.json()) == (200, created.json())
        assert json_object(await admin.get(f"{zone.path}/quotas"))["frozen"] is True
        thawed = await admin.post(f"{zone.path}/thaw")
        assert (thawed.status_code, thawed.json()["frozen"]) == (200, False)
        await spawn(client, zone)


async def test_stopping_a_zone_returns_a_receipt_and_leaves_it_frozen(zone: FreshZone) -> None:
    async with zone.client() as client, zone.server.client() as admin:
        for _ in range(2):
            root = await spawn(client, zone)
            await spawn(client, zone, parent_id=root["id"])
        response = await admin.post(f"{zone.path}/stop", params={"reason": "on fire"})
        receipt = json_object(response)
        assert response.status_code == 200
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


async def test_ending_a_zone_is_idempotent_and_its_id_cannot_be_reused(zone: FreshZone) -> None:
    async with zone.client() as client, zone.server.client() as admin:
        session = await spawn(client, zone)
        for _ in range(2):
            response = await admin.delete(zone.path)
            assert (response.status_code, response.content) == (204, b"")
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


async def test_default_zone_cannot_be_ended(server: ServerProcess) -> None:
    async with server.client() as admin:
        for query in ({}, {"receipt": "true"}):
            refused = await admin.delete("/zones/default", params=query)
            assert_problem(refused, 409, "zone_is_default")
        assert json_object(await admin.get("/zones/default"))["ended_at"] is None


@pytest.mark.parametrize("verb", ["POST freeze", "POST thaw", "POST stop", "DELETE "])
async def test_only_an_administrator_can_freeze_thaw_stop_or_end_a_zone(zone: FreshZone, verb: str) -> None:
    method, path = verb.split(" ")
    async with zone.client() as client, zone.server.client() as admin:
        refused = await client.request(method, f"{zone.path}/{path}".rstrip("/"))
        assert_problem(refused, 403, "missing_scope")
        unknown = await admin.request(method, f"/zones/nowhere/{path}".rstrip("/"))
        assert_problem(unknown, 404, "zone_not_found")
        assert json_object(await admin.get(zone.path))["frozen"] is False
