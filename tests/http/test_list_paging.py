"""Lists over HTTP: newest first, in pages that neither miss nor repeat, by cursors that outlive their rows."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.support.runtime import DirectDatabase
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, spawn


async def ids_of_pages(client: httpx.AsyncClient, path: str, **query: str | int) -> list[list[str]]:
    """Every page of a list, by following its cursors to the end."""
    pages, cursor = [], None
    while True:
        answer = await client.get(path, params={**query, **({"cursor": cursor} if cursor else {})})
        assert answer.status_code == 200, answer.text
        pages.append([item["id"] for item in answer.json()["items"]])
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            assert "link" not in answer.headers
            return pages


def following(answer: httpx.Response) -> str:
    """Where the answer's Link header leads."""
    link = re.fullmatch(r'<([^>]+)>; rel="next"', answer.headers["link"])
    assert link
    return link[1]


async def spawn_many(zone: FreshZone, number: int, **asked: object) -> list[str]:
    """Ids of new sessions, oldest first."""
    async with zone.client() as client:
        return [(await spawn(client, zone, **asked))["id"] for _ in range(number)]


async def test_sessions_are_listed_newest_first_in_pages_that_neither_miss_nor_repeat(zone: FreshZone) -> None:
    made = await spawn_many(zone, 7)
    async with zone.client() as client:
        assert await ids_of_pages(client, zone.sessions_path) == [made[::-1]]
        assert await ids_of_pages(client, zone.sessions_path, limit=3) == [made[:3:-1], made[3:0:-1], made[:1]]
        assert await ids_of_pages(client, zone.sessions_path, limit=7) == [made[::-1]]


async def test_the_link_header_leads_to_the_next_page_with_the_same_filters(zone: FreshZone) -> None:
    made = await spawn_many(zone, 3, metadata={"of": "one"})
    async with zone.client() as client:
        first = await client.get(zone.sessions_path, params={"limit": 2, "application_id": APP, "status": "active"})
        path = following(first)
        assert path.startswith(f"{zone.sessions_path}?")
        assert {"limit=2", f"application_id={APP}", "status=active"} <= set(path.partition("?")[2].split("&"))
        second = await client.get(path)
        assert [item["id"] for item in second.json()["items"]] == made[:1]
        children = await client.get(zone.session_path(made[0], "/children"), params={"limit": 1})
        assert (children.json(), "link" in children.headers) == ({"items": [], "next_cursor": None}, False)


async def test_a_cursor_is_still_good_when_its_row_is_gone(zone: FreshZone) -> None:
    made = await spawn_many(zone, 4)
    async with zone.client() as client:
        cursor = (await client.get(zone.sessions_path, params={"limit": 2})).json()["next_cursor"]
        side = DirectDatabase(zone.server.launch.database_url)
        side.execute("delete from agent_sessions where zone_id = ? and id = ?", zone.id, made[2])
        rest = await client.get(zone.sessions_path, params={"cursor": cursor})
    assert [item["id"] for item in rest.json()["items"]] == made[1::-1]


async def test_what_is_spawned_meanwhile_does_not_disturb_the_pages_that_follow(zone: FreshZone) -> None:
    made = await spawn_many(zone, 4)
    async with zone.client() as client:
        first = await client.get(zone.sessions_path, params={"limit": 2})
        await spawn_many(zone, 2)
        rest = await client.get(following(first))
    assert [item["id"] for item in rest.json()["items"]] == made[1::-1]


async def test_filters_narrow_the_list_alone_and_together(zone: FreshZone) -> None:
    admin = zone.token("agent:lifecycle", "coordinator.admin")
    async with zone.client(admin) as client:
        root = (await spawn(client, zone))["id"]
        child = (await spawn(client, zone, parent_id=root))["id"]
        grandchild = (await spawn(client, zone, parent_id=child))["id"]
        other = (await spawn(client, zone, application_id="other"))["id"]
        ended = (await spawn(client, zone, parent_id=root, application_id="other"))["id"]
        await end(client, zone, ended)
        every = [ended, other, grandchild, child, root]
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({}, every),
            ({"status": "active"}, [other, grandchild, child, root]),
            ({"status": "terminated"}, [ended]),
            ({"status": "suspended"}, []),
            ({"application_id": "other"}, [ended, other]),
            ({"application_id": "other", "status": "active"}, [other]),
            ({"application_id": "nobody"}, []),
            ({"parent_id": root}, [ended, child]),
            ({"parent_id": root, "status": "active"}, [child]),
            ({"parent_id": root, "application_id": "other"}, [ended]),
            ({"root_id": root}, [ended, grandchild, child, root]),
            ({"root_id": root, "status": "terminated"}, [ended]),
            ({"root_id": other}, [other]),
            ({"root_id": root, "parent_id": child}, [grandchild]),
        ]
        for query, expected in cases:
            pages = await ids_of_pages(client, zone.sessions_path, limit=2, **query)
            assert [found for page in pages for found in page] == expected, query


async def test_children_are_the_direct_ones_newest_first(zone: FreshZone) -> None:
    async with zone.client() as client:
        root = (await spawn(client, zone))["id"]
        children = [(await spawn(client, zone, parent_id=root))["id"] for _ in range(3)]
        await spawn(client, zone, parent_id=children[0])
        await end(client, zone, children[2])
        path = zone.session_path(root, "/children")
        assert await ids_of_pages(client, path, limit=2) == [children[:0:-1], children[:1]]
        assert await ids_of_pages(client, path, status="active") == [children[1::-1]]
        assert await ids_of_pages(client, zone.session_path(children[1], "/children")) == [[]]
        assert_problem(await client.get(zone.session_path("no-such-session", "/children")), 404, "agent_not_found")


@pytest.mark.parametrize("limit", ["0", "501", "-1", "x", "", "1.5", "99999999999999999999", "%F0%9F%92%A9"])
async def test_a_limit_outside_1_to_500_is_refused_by_its_name(zone: FreshZone, limit: str) -> None:
    async with zone.client() as client:
        assert assert_problem(await client.get(f"{zone.sessions_path}?limit={limit}"), 400)["field"] == "limit"
        assert (await client.get(f"{zone.sessions_path}?limit=500")).status_code == 200


async def test_a_cursor_of_no_list_or_of_another_is_refused(zone: FreshZone) -> None:
    async with zone.client(zone.server.admin_token) as client:
        await create_zone(zone.server)
        foreign = json_object(await client.get("/zones", params={"limit": 1}))["next_cursor"]
        for cursor in (foreign, "x", "AAAA", "a b", "é", "%00", "=" * 4, "A" * 600, "YWdlbnRzCg"):
            refused = await client.get(zone.sessions_path, params={"cursor": cursor})
            assert assert_problem(refused, 400)["error"] in ("invalid_cursor", "invalid_query")
        refused = await client.get("/zones", params={"cursor": "x"})
        assert_problem(refused, 400, "invalid_cursor")


async def test_of_a_repeated_parameter_the_last_counts_and_unknown_ones_are_ignored(zone: FreshZone) -> None:
    made = await spawn_many(zone, 2)
    async with zone.client() as client:
        answer = await client.get(f"{zone.sessions_path}?limit=500&nonsense=1&limit=1")
    assert [item["id"] for item in answer.json()["items"]] == made[1:]


async def test_a_zone_that_does_not_exist_is_not_an_empty_list_to_whoever_may_know(zone: FreshZone) -> None:
    async with zone.server.client() as administrator:
        for path in ("/zones/no-such-zone/agents", "/zones/no-such-zone/events"):
            assert_problem(await administrator.get(path), 404, "zone_not_found")
        assert (await administrator.get(zone.sessions_path)).json()["items"] == []
