"""Sessions over HTTP: what a spawn answers, how sessions are shown, and how they end."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

import httpx
import pytest

from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn

INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
FIELDS = {
    "id", "agent_session_id", "zone_id", "application_id", "parent_id", "root_id", "session_sid", "status", "depth",
    "capabilities", "metadata", "ttl_seconds", "spawned_at", "expires_at", "suspended_at", "terminated_at",
    "created_at", "updated_at", "limits",
}  # fmt: skip
"""The contract's list."""
LIMITS = {
    "max_depth", "max_children", "max_tree_size", "max_tree_spawns", "max_concurrent", "max_sessions",
    "max_sessions_per_application",
}  # fmt: skip


def instant(text: str) -> datetime:
    assert INSTANT.fullmatch(text), text
    return datetime.fromisoformat(text)


async def test_a_spawn_answers_201_with_every_field_of_the_contract(zone: FreshZone) -> None:
    async with zone.client() as client:
        answer = await client.post(
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
    assert answer.status_code == 201
    assert answer.headers["content-type"] == "application/json"
    session = json_object(answer)
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
    life = instant(session["expires_at"]) - instant(session["spawned_at"])
    assert life.total_seconds() == session["ttl_seconds"] == 90


async def test_what_a_spawn_leaves_out_has_the_contracts_defaults(zone: FreshZone) -> None:
    async with zone.client() as client:
        session = await spawn(client, zone, field_nobody_knows={"is": "ignored"})
    assert session["session_sid"] == "sid", "the token's"
    assert session["ttl_seconds"] == 3600
    assert (session["capabilities"], session["metadata"], session["kind"]) == ([], {}, "instance")


async def test_a_spawn_without_a_session_sid_needs_a_token_with_a_sid(zone: FreshZone) -> None:
    async with zone.client(zone.token(sid="")) as client:
        refused = await client.post(zone.sessions_path, json={"application_id": APP})
        assert_problem(refused, 400, "session_sid_required")
        await spawn(client, zone, session_sid="given")


async def test_a_child_knows_its_root_and_does_not_outlive_its_parent(zone: FreshZone) -> None:
    async with zone.client() as client:
        root = await spawn(client, zone, ttl_seconds=60)
        child = await spawn(client, zone, parent_id=root["id"], ttl_seconds=86_400)
        grandchild = await spawn(client, zone, parent_id=child["id"], ttl_seconds=30)
    assert (child["parent_id"], child["root_id"], child["depth"]) == (root["id"], root["id"], 1)
    assert (grandchild["parent_id"], grandchild["root_id"], grandchild["depth"]) == (child["id"], root["id"], 2)
    assert child["expires_at"] == root["expires_at"]
    assert instant(grandchild["expires_at"]) < instant(root["expires_at"])


async def test_an_absent_or_ended_parent_is_not_found(zone: FreshZone) -> None:
    async with zone.client() as client:
        ended = await spawn(client, zone)
        await end(client, zone, ended["id"])
        for parent in (ended["id"], "no-such-session"):
            refused = await client.post(zone.sessions_path, json={"application_id": APP, "parent_id": parent})
            assert_problem(refused, 404, "parent_not_found")


async def test_a_session_is_shown_as_it_was_spawned(zone: FreshZone) -> None:
    async with zone.client() as client:
        session = await spawn(client, zone, metadata={"a": 1})
        answer = await client.get(zone.session_path(session["id"]))
        assert (answer.status_code, answer.json()) == (200, session)
        assert_problem(await client.get(zone.session_path("no-such-session")), 404, "agent_not_found")


async def test_a_head_request_answers_as_get_does_without_a_body(zone: FreshZone) -> None:
    async with zone.client() as client:
        session = await spawn(client, zone)
        path = zone.session_path(session["id"])
        asked, looked = await client.get(path), await client.head(path)
    assert (looked.status_code, looked.content) == (200, b"")
    assert looked.headers["content-length"] == str(len(asked.content))


async def test_ending_a_session_answers_204_and_204_again_and_takes_its_subtree_along(zone: FreshZone) -> None:
    async with zone.client() as client:
        root = await spawn(client, zone)
        child = await spawn(client, zone, parent_id=root["id"])
        grandchild = await spawn(client, zone, parent_id=child["id"])
        other = await spawn(client, zone, parent_id=root["id"])
        for _ in range(2):
            answer = await client.delete(zone.session_path(child["id"]), params={"reason": "done with it"})
            assert (answer.status_code, answer.content) == (204, b"")
            assert "content-type" not in answer.headers
        for ended in (child, grandchild):
            now = json_object(await client.get(zone.session_path(ended["id"])))
            assert now["status"] == "terminated"
            assert now["termination_reason"] == "done with it"
            assert instant(now["terminated_at"]) >= instant(now["spawned_at"])
        for alive in (root, other):
            assert json_object(await client.get(zone.session_path(alive["id"])))["status"] == "active"
    ends = [event["subject"] for event in await read_events(zone, types="session.terminate")]
    assert ends == [grandchild["id"], child["id"]], "children before parents, each once"


async def test_ending_what_never_was_is_not_found(zone: FreshZone) -> None:
    async with zone.client() as client:
        assert_problem(await client.delete(zone.session_path("no-such-session")), 404, "agent_not_found")
        assert_problem(
            await client.delete(zone.session_path("no-such-session"), params={"receipt": "true"}),
            404,
            "agent_not_found",
        )


async def test_a_receipt_says_what_was_asked_stopped_and_already_stopped(zone: FreshZone) -> None:
    async with zone.client() as client:
        root = await spawn(client, zone)
        first = await spawn(client, zone, parent_id=root["id"])
        await spawn(client, zone, parent_id=root["id"])
        await end(client, zone, first["id"])
        answer = await client.delete(zone.session_path(root["id"]), params={"receipt": "true", "reason": "over"})
        again = await client.delete(zone.session_path(root["id"]), params={"receipt": "true"})
    assert answer.status_code == 200
    receipt = json_object(answer)
    assert receipt.pop("duration_ms") >= 0
    expected = {
        "zone_id": zone.id,
        "session_id": root["id"],
        "cascade_id": None,
        "reason": "over",
        "asked": 3,
        "stopped": 2,
        "already_stopped": 1,
        "joined": False,
        "left": [],
    }
    assert receipt == expected
    assert (again.json()["stopped"], again.json()["already_stopped"]) == (0, 3)


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_suspending_and_resuming_say_how_many_fell_asleep_and_woke(zone: FreshZone, method: str) -> None:
    async with zone.client() as client:
        root = await spawn(client, zone)
        child = await spawn(client, zone, parent_id=root["id"])

        async def ask(session: dict[str, Any], verb: str) -> httpx.Response:
            return await client.request(method, zone.session_path(session["id"], f"/{verb}"))

        assert json_object(await ask(root, "suspend")) == {"suspended": 2}
        assert json_object(await ask(child, "suspend")) == {"suspended": 0}
        asleep = json_object(await client.get(zone.session_path(child["id"])))
        assert asleep["status"] == "suspended"
        assert instant(asleep["suspended_at"]) >= instant(asleep["spawned_at"])
        refused = await client.post(zone.sessions_path, json={"application_id": APP, "parent_id": root["id"]})
        assert_problem(refused, 404, "parent_not_found")
        assert json_object(await ask(child, "resume")) == {"resumed": 0}
        held = assert_problem(await ask(child, "resume"), 409, "agent_not_found_or_not_suspended")
        assert held["held_by"] == root["id"]
        assert json_object(await ask(root, "resume")) == {"resumed": 2}
        assert json_object(await client.get(zone.session_path(child["id"])))["suspended_at"] is None
        await end(client, zone, root["id"])
        assert_problem(await ask(root, "suspend"), 409, "agent_not_found_or_not_active")
        assert_problem(await ask(root, "resume"), 409, "agent_not_found_or_not_suspended")
        for verb in ("suspend", "resume"):
            assert_problem(await ask({"id": "no-such-session"}, verb), 404, "agent_not_found")


@pytest.mark.parametrize("reason", ["", "x" * 257])
async def test_a_reason_has_1_to_256_characters(zone: FreshZone, reason: str) -> None:
    async with zone.client() as client:
        session = await spawn(client, zone)
        refused = await client.delete(zone.session_path(session["id"]), params={"reason": reason})
        assert assert_problem(refused, 400)["field"] == "reason"
        assert json_object(await client.get(zone.session_path(session["id"])))["status"] == "active"
        kept = await client.delete(zone.session_path(session["id"]), params={"reason": "é" * 256})
        assert kept.status_code == 204


async def test_a_tree_shows_the_whole_subtree_parents_before_children(zone: FreshZone) -> None:
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
async def test_every_bound_refuses_with_its_own_code_and_explains_itself(
    zone: FreshZone, limit: str, error: str, parent: bool, frees: str
) -> None:
    # One session may be there; the root of a tree is one session of it, and has no child above it.
    room = 1 if limit in ("max_sessions", "max_sessions_per_application", "max_tree_size", "max_tree_spawns") else 0
    narrow = await create_zone(zone.server, **{limit: room})
    async with narrow.client() as client:
        root = await spawn(client, narrow)
        asked: dict[str, Any] = {"application_id": APP, **({"parent_id": root["id"]} if parent else {})}
        answer = await client.post(narrow.sessions_path, json=asked)
    refusal = assert_problem(answer, 429, error)
    assert (refusal["bound"], refusal["limit"], refusal["used"]) == (limit, room, room)
    assert frees in refusal["frees"]
    waiting_helps = limit not in ("max_depth", "max_tree_spawns")
    assert ("retry-after" in answer.headers) == waiting_helps
