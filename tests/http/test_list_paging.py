"""Lists over HTTP: newest first, in pages without gaps or repeats, with cursors that outlive their rows."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from tests.support.runtime import DirectDatabase
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, spawn


async def read_pages(client: httpx.AsyncClient, path: str, **query: str | int) -> list[list[str]]:
    """The ids of every page of a list."""
    pages, cursor = [], None
    while True:
        response = await client.get(path, params={**query, **({"cursor": cursor} if cursor else {})})
        assert response.status_code == 200, response.text
        pages.append([item["id"] for item in response.json()["items"]])
        cursor = response.json()["next_cursor"]
        if cursor is None:
            assert "link" not in response.headers
            return pages


def next_link(response: httpx.Response) -> str:
    """The target of the Link header."""
    link = re.fullmatch(r'<([^>]+)>; rel="next"', response.headers["link"])
    assert link
    return link[1]


async def spawn_many(zone: FreshZone, number: int, **fields: object) -> list[str]:
    """Ids of new sessions, oldest first."""
    async with zone.client() as client:
        return [(await spawn(client, zone, **fields))["id"] for _ in range(number)]


async def test_sessions_are_paged_newest_first_without_gaps_or_repeats(zone: FreshZone) -> None:
    created = await spawn_many(zone, 7)
    async with zone.client() as client:
        assert await read_pages(client, zone.sessions_path) == [created[::-1]]
        assert await read_pages(client, zone.sessions_path, limit=3) == [created[:3:-1], created[3:0:-1], created[:1]]
        assert await read_pages(client, zone.sessions_path, limit=7) == [created[::-1]]


async def test_link_header_keeps_the_filters(zone: FreshZone) -> None:
    created = await spawn_many(zone, 3, metadata={"of": "one"})
    async with zone.client() as client:
        first = await client.get(zone.sessions_path, params={"limit": 2, "application_id": APP, "status": "active"})
        path = next_link(first)
        assert path.startswith(f"{zone.sessions_path}?")
        assert {"limit=2", f"application_id={APP}", "status=active"} <= set(path.partition("?")[2].split("&"))
        second = await client.get(path)
        assert [item["id"] for item in second.json()["items"]] == created[:1]
        children = await client.get(zone.session_path(created[0], "/children"), params={"limit": 1})
        assert (children.json(), "link" in children.headers) == ({"items": [], "next_cursor": None}, False)


async def test_cursor_stays_valid_after_its_row_is_deleted(zone: FreshZone) -> None:
    created = await spawn_many(zone, 4)
    async with zone.client() as client:
        cursor = (await client.get(zone.sessions_path, params={"limit": 2})).json()["next_cursor"]
        database = DirectDatabase(zone.server.launch.database_url)
        database.execute("delete from agent_sessions where zone_id = ? and id = ?", zone.id, created[2])
        rest = await client.get(zone.sessions_path, params={"cursor": cursor})
    assert [item["id"] for item in rest.json()["items"]] == created[1::-1]


async def test_new_sessions_do_not_change_later_pages(zone: FreshZone) -> None:
    created = await spawn_many(zone, 4)
    async with zone.client() as client:
        first = await client.get(zone.sessions_path, params={"limit": 2})
        await spawn_many(zone, 2)
        rest = await client.get(next_link(first))
    assert [item["id"] for item in rest.json()["items"]] == created[1::-1]


async def test_filters_apply_alone_and_combined(zone: FreshZone) -> None:
    admin = zone.token("agent:lifecycle", "coordinator.admin")
    async with zone.client(admin) as client:
        root = (await spawn(client, zone))["id"]
        child = (await spawn(client, zone, parent_id=root))["id"]
        grandchild = (await spawn(client, zone, parent_id=child))["id"]
        other = (await spawn(client, zone, application_id="other"))["id"]
        ended = (await spawn(client, zone, parent_id=root, application_id="other"))["id"]
        await end(client, zone, ended)
        all_ids = [ended, other, grandchild, child, root]
        cases: list[tuple[dict[str, Any], list[str]]] = [
            ({}, all_ids),
            ({"status": "active"}, [other, grandchild, child, root]),
            ({"status": "terminated"}, [ended]),
            ({"status": "suspended"}, []),
            ({"application_id": "other"}, [ended, other]),
            ({"application_id": "other", "status": "active"}, [other]),
            ({"application_id": "no-such-app"}, []),
            ({"parent_id": root}, [ended, child]),
            ({"parent_id": root, "status": "active"}, [child]),
            ({"parent_id": root, "application_id": "other"}, [ended]),
            ({"root_id": root}, [ended, grandchild, child, root]),
            ({"root_id": root, "status": "terminated"}, [ended]),
            ({"root_id": other}, [other]),
            ({"root_id": root, "parent_id": child}, [grandchild]),
        ]
        for query, expected in cases:
            pages = await read_pages(client, zone.sessions_path, limit=2, **query)
            assert [found for page in pages for found in page] == expected, query


async def test_children_are_direct_children_newest_first(zone: FreshZone) -> None:
    async with zone.client() as client:
        root = (await spawn(client, zone))["id"]
        children = [(await spawn(client, zone, parent_id=root))["id"] for _ in range(3)]
        await spawn(client, zone, parent_id=children[0])
        await end(client, zone, children[2])
        path = zone.session_path(root, "/children")
        assert await read_pages(client, path, limit=2) == [children[:0:-1], children[:1]]
        assert await read_pages(client, path, status="active") == [children[1::-1]]
        assert await read_pages(client, zone.session_path(children[1], "/children")) == [[]]
        assert_problem(await client.get(zone.session_path("no-such-session", "/children")), 404, "agent_not_found")


@pytest.mark.parametrize("limit", ["0", "501", "-1", "x", "", "1.5", "99999999999999999999", "%F0%9F%92%A9"])
async def test_limit_outside_1_to_500_is_refused_with_its_field(zone: FreshZone, limit: str) -> None:
    async with zone.client() as client:
        assert assert_problem(await client.get(f"{zone.sessions_path}?limit={limit}"), 400)["field"] == "limit"
        assert (await client.get(f"{zone.sessions_path}?limit=500")).status_code == 200


async def test_invalid_or_foreign_cursor_is_refused(zone: FreshZone) -> None:
    async with zone.client(zone.server.admin_token) as client:
        await create_zone(zone.server)
        foreign = json_object(await client.get("/zones", params={"limit": 1}))["next_cursor"]
        for cursor in (foreign, "x", "AAAA", "a b", "é", "%00", "=" * 4, "A" * 600, "YWdlbnRzCg"):
            refused = await client.get(zone.sessions_path, params={"cursor": cursor})
            assert assert_problem(refused, 400)["error"] in ("invalid_cursor", "invalid_query")
        refused = await client.get("/zones", params={"cursor": "x"})
        assert_problem(refused, 400, "invalid_cursor")


async def test_last_repeated_parameter_counts_and_unknown_ones_are_ignored(zone: FreshZone) -> None:
    created = await spawn_many(zone, 2)
    async with zone.client() as client:
        response = await client.get(f"{zone.sessions_path}?limit=500&unknown=1&limit=1")
    assert [item["id"] for item in response.json()["items"]] == created[1:]


async def test_lists_of_an_unknown_zone_are_404_for_an_admin(zone: FreshZone) -> None:
    async with zone.server.client() as admin:
        for path in ("/zones/no-such-zone/agents", "/zones/no-such-zone/events"):
            assert_problem(await admin.get(path), 404, "zone_not_found")
        assert (await admin.get(zone.sessions_path)).json()["items"] == []
