"""Sessions over HTTP: spawn, read, suspend, resume and terminate."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import httpx
import pytest

from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn

TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
FIELDS = {
    "id", "agent_session_id", "zone_id", "application_id", "parent_id", "root_id", "session_sid", "status", "depth",
    "capabilities", "metadata", "ttl_seconds", "spawned_at", "expires_at", "suspended_at", "terminated_at",
    "created_at", "updated_at", "limits",
}  # fmt: skip
"""The documented fields of a session."""
LIMITS = {
    "max_depth", "max_children", "max_tree_size", "max_tree_spawns", "max_concurrent", "max_sessions",
    "max_sessions_per_application",
}  # fmt: skip


def parse_timestamp(text: str) -> datetime:
    assert TIMESTAMP.fullmatch(text), text
    return datetime.fromisoformat(text)


async def test_spawn_is_201_with_every_documented_field(zone: FreshZone) -> None:
    async with zone.client() as client:
        response = await client.post(
            zone.sessions_path,
            json={
                "application_id": APP,
                "session_sid": "run-7",
                "kind": "service",
                "capabilities": ["search", "écrire"],
                "ttl_seconds": 90,
                "metadata": {"deep": {"er": [1, 2.5, None, True, "☃"]}},
            },
        )
    assert response.status_code == 201
    assert response.headers["content-type"] == "application/json"
    session = json_object(response)
    assert session.keys() >= FIELDS
    assert session["id"] == session["agent_session_id"] == session["root_id"]
    assert (session["zone_id"], session["application_id"], session["session_sid"]) == (zone.id, APP, "run-7")
    assert (session["parent_id"], session["depth"], session["status"]) == (None, 0, "active")
    assert (session["suspended_at"], session["terminated_at"]) == (None, None)
    assert session["kind"] == "service"
    assert session["capabilities"] == ["search", "écrire"]
    assert session["metadata"] == {"deep": {"er": [1, 2.5, None, True, "☃"]}}
    assert session["limits"].keys() == LIMITS
    assert session["spawned_at"] == session["created_at"] == session["updated_at"]
    lifetime = parse_timestamp(session["expires_at"]) - parse_timestamp(session["spawned_at"])
    assert lifetime.total_seconds() == session["ttl_seconds"] == 90


async def test_omitted_spawn_fields_have_the_documented_defaults(zone: FreshZone) -> None:
    async with zone.client() as client:
        session = await spawn(client, zone, unknown_field={"is": "ignored"})
    assert session["session_sid"] == "sid", "taken from the token"
    assert session["ttl_seconds"] == 3600
    assert (session["capabilities"], session["metadata"], session["kind"]) == ([], {}, "instance")


async def test_spawn_without_session_sid_needs_a_token_with_sid(zone: FreshZone) -> None:
    async with zone.client(zone.token(sid="")) as client:
        refused = await client.post(zone.sessions_path, json={"application_id": APP})
        assert_problem(refused, 400, "session_sid_required")
        await spawn(client, zone, session_sid="sid-1")


async def test_child_has_its_root_id_and_expires_no_later_than_its_parent(zone: FreshZone) -> None:
    async with zone.client() as client:
        root = await spawn(client, zone, ttl_seconds=60)
        child = await spawn(client, zone, parent_id=root["id"], ttl_seconds=86_400)
        grandchild = await spawn(client, zone, parent_id=child["id"], ttl_seconds=30)
    assert (child["parent_id"], child["root_id"], child["depth"]) == (root["id"], root["id"], 1)
    assert (grandchild["parent_id"], grandchild["root_id"], grandchild["depth"]) == (child["id"], root["id"], 2)
    assert child["expires_at"] == root["expires_at"]
    assert parse_timestamp(grandchild["expires_at"]) < parse_timestamp(root["expires_at"])


async def test_missing_or_ended_parent_is_404(zone: FreshZone) -> None:
    async with zone.client() as client:
        ended = await spawn(client, zone)
        await end(client, zone, ended["id"])
        for parent in (ended["id"], "no-such-session"):
            refused = await client.post(zone.sessions_path, json={"application_id": APP, "parent_id": parent})
            assert_problem(refused, 404, "parent_not_found")


async def test_session_reads_as_it_was_spawned(zone: FreshZone) -> None:
    async with zone.client() as client:
        session = await spawn(client, zone, metadata={"a": 1})
        response = await client.get(zone.session_path(session["id"]))
        assert (response.status_code, response.json()) == (200, session)
        assert_problem(await client.get(zone.session_path("no-such-session")), 404, "agent_not_found")


async def test_head_responds_like_get_without_a_body(zone: FreshZone) -> None:
    async with zone.client() as client:
        session = await spawn(client, zone)
        path = zone.session_path(session["id"])
        get_response, head_response = await client.get(path), await client.head(path)
    assert (head_response.status_code, head_response.content) == (200, b"")
    assert head_response.headers["content-length"] == str(len(get_response.content))


async def test_deleting_a_session_is_idempotent_and_terminates_its_subtree(zone: FreshZone) -> None:
    async with zone.client() as client:
        root = await spawn(client, zone)
        child = await spawn(client, zone, parent_id=root["id"])
        grandchild = await spawn(client, zone, parent_id=child["id"])
        other = await spawn(client, zone, parent_id=root["id"])
        for _ in range(2):
            response = await client.delete(zone.session_path(child["id"]), params={"reason": "done with it"})
            assert (response.status_code, response.content) == (204, b"")
            assert "content-type" not in response.headers
        for ended in (child, grandchild):
            session = json_object(await client.get(zone.session_path(ended["id"])))
            assert session["status"] == "terminated"
            assert session["termination_reason"] == "done with it"
            assert parse_timestamp(session["terminated_at"]) >= parse_timestamp(session["spawned_at"])
        for live in (root, other):
            assert json_object(await client.get(zone.session_path(live["id"])))["status"] == "active"
    ends = [event["subject"] for event in await read_events(zone, types="session.terminate")]
    assert ends == [grandchild["id"], child["id"]], "children before parents, each once"


async def test_deleting_an_unknown_session_is_404(zone: FreshZone) -> None:
    async with zone.client() as client:
        assert_problem(await client.delete(zone.session_path("no-such-session")), 404, "agent_not_found")
        assert_problem(
            await client.delete(zone.session_path("no-such-session"), params={"receipt": "true"}),
            404,
            "agent_not_found",
        )


async def test_receipt_counts_requested_stopped_and_already_stopped_sessions(zone: FreshZone) -> None:
    async with zone.client() as client:
        root = await spawn(client, zone)
        first = await spawn(client, zone, parent_id=root["id"])
        await spawn(client, zone, parent_id=root["id"])
        await end(client, zone, first["id"])
        response = await client.delete(zone.session_path(root["id"]), params={"receipt": "true", "reason": "finished"})
        again = await client.delete(zone.session_path(root["id"]), params={"receipt": "true"})
    assert response.status_code == 200
    receipt = json_object(response)
    assert receipt.pop("duration_ms") >= 0
    expected = {
        "zone_id": zone.id,
        "session_id": root["id"],
        "cascade_id": None,
        "reason": "finished",
        "asked": 3,
        "stopped": 2,
        "already_stopped": 1,
        "joined": False,
        "left": [],
    }
    assert receipt == expected
    assert (again.json()["stopped"], again.json()["already_stopped"]) == (0, 3)


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_suspend_and_resume_report_the_number_of_changed_sessions(zone: FreshZone, method: str) -> None:
    async with zone.client() as client:
        root = await spawn(client, zone)
        child = await spawn(client, zone, parent_id=root["id"])

        async def send(session: dict[str, Any], verb: str) -> httpx.Response:
            return await client.request(method, zone.session_path(session["id"], f"/{verb}"))

        assert json_object(await send(root, "suspend")) == {"suspended": 2}
        assert json_object(await send(child, "suspend")) == {"suspended": 0}
        suspended = json_object(await client.get(zone.session_path(child["id"])))
        assert suspended["status"] == "suspended"
        assert parse_timestamp(suspended["suspended_at"]) >= parse_timestamp(suspended["spawned_at"])
        refused = await client.post(zone.sessions_path, json={"application_id": APP, "parent_id": root["id"]})
        assert_problem(refused, 404, "parent_not_found")
        assert json_object(await send(child, "resume")) == {"resumed": 0}
        problem = assert_problem(await send(child, "resume"), 409, "agent_not_found_or_not_suspended")
        assert problem["held_by"] == root["id"]
        assert json_object(await send(root, "resume")) == {"resumed": 2}
        assert json_object(await client.get(zone.session_path(child["id"])))["suspended_at"] is None
        await end(client, zone, root["id"])
        assert_problem(await send(root, "suspend"), 409, "agent_not_found_or_not_active")
        assert_problem(await send(root, "resume"), 409, "agent_not_found_or_not_suspended")
        for verb in ("suspend", "resume"):
            assert_problem(await send({"id": "no-such-session"}, verb), 404, "agent_not_found")


@pytest.mark.parametrize("reason", ["", "x" * 257])
async def test_termination_reason_has_1_to_256_characters(zone: FreshZone, reason: str) -> None:
    async with zone.client() as client:
        session = await spawn(client, zone)
        refused = await client.delete(zone.session_path(session["id"]), params={"reason": reason})
        assert assert_problem(refused, 400)["field"] == "reason"
        assert json_object(await client.get(zone.session_path(session["id"])))["status"] == "active"
        accepted = await client.delete(zone.session_path(session["id"]), params={"reason": "é" * 256})
        assert accepted.status_code == 204


async def test_tree_lists_the_subtree_with_parents_before_children(zone: FreshZone) -> None:
    async with zone.client() as client:
        root = await spawn(client, zone)
        ids = [root["id"]]
        for _ in range(2):
            child = await spawn(client, zone, parent_id=root["id"])
            ids += [child["id"], (await spawn(client, zone, parent_id=child["id"]))["id"]]
        await spawn(client, zone)
        await end(client, zone, ids[-1])
        tree = json_object(await client.get(zone.session_path(root["id"], "/tree")))
        branch = json_object(await client.get(zone.session_path(ids[1], "/tree")))
        assert_problem(await client.get(zone.session_path("no-such-session", "/tree")), 404, "agent_not_found")
    assert tree["root"] == root["id"]
    found = {item["id"]: item for item in tree["items"]}
    assert found.keys() == set(ids)
    assert len(tree["items"]) == 5
    assert found[ids[-1]]["status"] == "terminated"
    seen: set[str] = set()
    for item in tree["items"]:
        assert item["id"] == root["id"] or item["parent_id"] in seen
        seen.add(item["id"])
    assert [item["id"] for item in branch["items"]] == ids[1:3]


@pytest.mark.parametrize(
    ("limit", "error", "parent", "frees"),
    [
        ("max_sessions", "agent_zone_limit_exceeded", False, "a session of the zone ends"),
        ("max_sessions_per_application", "agent_limit_exceeded", False, "a session of the application ends"),
        ("max_children", "agent_children_limit_exceeded", True, "a child of the parent ends"),
        ("max_depth", "agent_depth_limit_exceeded", True, "nearer to the root"),
        ("max_tree_size", "agent_tree_limit_exceeded", True, "a session of the tree ends"),
        ("max_tree_spawns", "agent_tree_spawns_exceeded", True, "start a new one"),
        ("max_concurrent", "agent_concurrency_limit_exceeded", True, "a child session of the zone ends"),
    ],
)
async def test_every_bound_refuses_with_its_own_code_and_explanation(
    zone: FreshZone, limit: str, error: str, parent: bool, frees: str
) -> None:
    # The four bounds named here count the root, so one session must fit. The others count only what is below a root.
    quota = 1 if limit in ("max_sessions", "max_sessions_per_application", "max_tree_size", "max_tree_spawns") else 0
    narrow = await create_zone(zone.server, **{limit: quota})
    async with narrow.client() as client:
        root = await spawn(client, narrow)
        body: dict[str, Any] = {"application_id": APP, **({"parent_id": root["id"]} if parent else {})}
        response = await client.post(narrow.sessions_path, json=body)
    refusal = assert_problem(response, 429, error)
    assert (refusal["bound"], refusal["limit"], refusal["used"]) == (limit, quota, quota)
    assert frees in refusal["frees"]
    waiting_helps = limit not in ("max_depth", "max_tree_spawns")
    assert ("retry-after" in response.headers) == waiting_helps
