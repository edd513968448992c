"""What one request may take and one answer may hold; and that a fault is named, and costs nobody else anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from tests.support.engine_marks import ON_SQLITE
from tests.support.route_table import read_route_table
from tests.support.zone import FreshZone, assert_problem, json_object

TASKS = "/api/v1/agent-tasks"
TASK = {"title": "work", "taskType": "t"}
MEGABYTE = "x" * 1_000_000


async def register(client: httpx.AsyncClient, name: str = "w") -> None:
    answer = await client.put(f"/api/v1/agents/{name}", json={"maxConcurrentTasks": 1_000})
    assert answer.status_code in (200, 201), answer.text


async def many(client: httpx.AsyncClient, *tasks: Mapping[str, object]) -> list[dict[str, Any]]:
    answer = await client.post(TASKS, json={"tasks": [{**TASK, **task} for task in tasks]})
    assert answer.status_code == 201, answer.text
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


async def claimed(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    answer = await client.post("/api/v1/agents/w/claim", json={"max": 500})
    assert answer.status_code == 200, answer.text
    tasks: list[dict[str, Any]] = answer.json()["tasks"]
    return tasks


# -- how much ----------------------------------------------------------------------------------------------------


async def test_a_page_and_a_claim_end_where_they_would_be_too_large_and_the_rest_follows(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        for _ in range(2):
            await many(client, *({"inputContext": {"a": MEGABYTE}} for _ in range(9)))
        seen, cursor = [], None
        while True:
            page = json_object(await client.get(TASKS, params={"limit": 500, **({"cursor": cursor} if cursor else {})}))
            assert 1 <= len(page["items"]) <= 4
            seen += [item["id"] for item in page["items"]]
            cursor = page["nextCursor"]
            if cursor is None:
                break
        assert len(seen) == len(set(seen)) == 18
        first = await claimed(client)
        assert len(first) == 16
        waiting = json_object(await client.get(TASKS, params={"status": "PENDING"}))["items"]
        assert len(waiting) == 2
        assert {task["id"] for task in await claimed(client)} == {item["id"] for item in waiting}


@ON_SQLITE
async def test_of_what_a_task_is_tied_to_a_list_shows_so_much_of_each_and_says_how_much_there_is(
    zone: FreshZone,
) -> None:
    async with zone.client() as client:
        ids = [item["id"] for item in await many(client, *({} for _ in range(150)))]
        await many(client, {"id": "few"}, {"id": "hub"}, {"id": "sink", "dependsOn": ids})
        await many(client, *({"dependsOn": ["hub"]} for _ in range(150)), *({"dependsOn": ["few"]} for _ in range(3)))
        listed = {item["id"]: item for item in json_object(await client.get(TASKS, params={"limit": 500}))["items"]}
        sink, hub, few = listed["sink"], listed["hub"], listed["few"]
        assert (len(sink["dependsOn"]), sink["dependsOnCount"]) == (100, 150)
        assert (len(hub["blocks"]), hub["moreBlocks"]) == (100, True)
        assert (len(few["blocks"]), few["moreBlocks"]) == (3, False)
        assert json_object(await client.get(f"{TASKS}/sink"))["dependsOn"] == sorted(ids)
        alone = json_object(await client.get(f"{TASKS}/hub"))
        assert (len(alone["blocks"]), alone["moreBlocks"]) == (150, False)


@ON_SQLITE
async def test_what_the_tasks_of_a_request_depend_on_is_bounded(zone: FreshZone) -> None:
    async with zone.client() as client:
        names = [f"n{number}" for number in range(10_001)]
        refused = assert_problem(await client.post(TASKS, json={**TASK, "dependsOn": names}), 400, "invalid_body")
        assert refused["field"] == "dependsOn"
        wide = {"tasks": [{**TASK, "dependsOn": names[:7_000]} for _ in range(3)]}
        refused = assert_problem(await client.post(TASKS, json=wide), 400, "invalid_body")
        assert (refused["field"], "20,000" in refused["detail"]) == ("$.tasks", True)


@ON_SQLITE
async def test_what_was_made_before_is_shown_again_as_far_as_the_answer_has_room(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        asked = {"tasks": [{**TASK, "inputContext": {"a": MEGABYTE}} for _ in range(9)]}
        key = {"Idempotency-Key": "same"}
        made = json_object(await client.post(TASKS, json=asked, headers=key))["items"]
        words = [
            {"id": task["id"], "attemptToken": task["attemptToken"], "outputResult": MEGABYTE}
            for task in await claimed(client)
        ]
        await client.post(f"{TASKS}/complete", json={"items": words})
        again = json_object(await client.post(TASKS, json=asked, headers=key))["items"]
        assert [item["id"] for item in again[:8]] == [item["id"] for item in made[:8]]
        assert (again[8]["error"], again[8]["taskId"]) == ("answer_too_large", made[8]["id"])


# -- one of many -------------------------------------------------------------------------------------------------


async def test_what_is_wrong_with_one_of_many_is_its_own_outcome_and_names_it(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        made = await many(
            client,
            {"id": "first"},
            {"inputContext": {"a": [{"$secret": 7}]}},
            {"metadata": {"requiredCapabilities": "python"}},
            {"inputContext": {"a": "x" * (1 << 20)}},
            {"id": "first"},
            {"dependsOn": ["nothing"]},
            {"id": "last", "dependsOn": ["first"]},
        )
        assert [item.get("id") or (item["status"], item["error"], item["field"]) for item in made] == [
            "first",
            (400, "reserved_key", "$.tasks[1].inputContext.a[0]"),
            (400, "invalid_body", "$.tasks[2].metadata.requiredCapabilities"),
            (413, "field_too_large", "$.tasks[3].inputContext"),
            (400, "invalid_body", "$.tasks[4].id"),
            (400, "unknown_dependency", "$.tasks[5].dependsOn"),
            "last",
        ]
        [lease] = await claimed(client)
        word = {"id": lease["id"], "attemptToken": lease["attemptToken"]}
        sealed = {**word, "id": "last", "outputResult": {"$sealed": "x"}}
        answer = json_object(await client.post(f"{TASKS}/complete", json={"items": [sealed, word]}))
        bad, good = answer["items"]
        assert (bad["error"]["status"], bad["error"]["field"]) == (400, "$.items[0].outputResult")
        assert json_object(await client.get(f"{TASKS}/{good['id']}"))["status"] == "COMPLETED"


async def test_a_fault_names_the_field_as_it_was_sent(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        await many(client, {})
        [lease] = await claimed(client)
        said = {"checkpointData": {"a": "x" * (1 << 20)}, "attemptToken": lease["attemptToken"]}
        large = assert_problem(await client.patch(f"{TASKS}/{lease['id']}/progress", json=said), 413, "field_too_large")
        assert (large["field"], "checkpointData" in large["detail"]) == ("$.checkpointData", True)


async def test_for_a_workspace_that_is_not_there_everybody_is_told_the_same(zone: FreshZone) -> None:
    nowhere = {"X-Workspace-ID": "nowhere"}
    async with zone.server.client() as root, zone.client() as stranger:
        for client in (root, stranger):
            for body in (TASK, {"tasks": [TASK, TASK]}):
                answer = await client.post(TASKS, json=body, headers=nowhere)
                assert assert_problem(answer, 404, "workspace_not_found")["detail"].count("'nowhere'") == 1
            assert_problem(await client.get(TASKS, headers=nowhere), 404, "workspace_not_found")
            items = {"items": [{"id": "a", "attemptToken": "t"}]}
            answer = await client.post(f"{TASKS}/complete", json=items, headers=nowhere)
            assert_problem(answer, 404, "workspace_not_found")


# -- misspelt ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "field", "meant"),
    [
        ({"dependOn": ["x"]}, "dependOn", "`dependsOn`"),
        ({"task_type": "t"}, "task_type", "`taskType`"),
        ({"tasks": [{**TASK, "requiredCapabilites": []}]}, "tasks[0].requiredCapabilites", "`requiredCapabilities`"),
        ({"zzz": 1}, "zzz", "`onDependencyFailure`"),
    ],
)
@ON_SQLITE
async def test_a_field_that_is_not_known_is_refused_with_what_may_be_meant(
    zone: FreshZone, said: dict[str, object], field: str, meant: str
) -> None:
    async with zone.client() as client:
        answer = await client.post(TASKS, json=said if "tasks" in said else {**TASK, **said})
        refused = assert_problem(answer, 400, "invalid_body")
        assert (refused["field"], meant in refused["detail"]) == (field, True), refused
        assert json_object(await client.get(TASKS))["items"] == []


@ON_SQLITE
async def test_one_task_and_many_are_not_said_at_once(zone: FreshZone) -> None:
    async with zone.client() as client:
        answer = await client.post(TASKS, json={**TASK, "tasks": [TASK]})
        assert assert_problem(answer, 400, "invalid_body")["field"] == "$.tasks"


@pytest.mark.parametrize(
    ("query", "field", "meant"),
    [
        ("priority>8", "priority>8", "`priority>=`"),
        ("task_type=t", "task_type", "`taskType`"),
        ("bogus=1", "bogus", "`createdAfter`"),
    ],
)
@ON_SQLITE
async def test_a_filter_that_is_not_known_is_refused_with_what_may_be_meant(
    zone: FreshZone, query: str, field: str, meant: str
) -> None:
    async with zone.client() as client:
        refused = assert_problem(await client.get(f"{TASKS}?{query}"), 400, "invalid_query")
        assert (refused["field"], meant in refused["detail"]) == (field, True), refused


@ON_SQLITE
async def test_every_route_of_the_work_plane_refuses_what_it_does_not_know(zone: FreshZone) -> None:
    async with zone.server.client() as client:
        rows = [row for row in await read_route_table(zone.server) if row.uses_caller_zone]
        asked = 0
        for row in rows:
            plain = row.request_for(zone.id)
            if row.query:
                answer = await client.request(**{**plain, "params": {**plain["params"], "n0thing": "1"}})
                assert assert_problem(answer, 400, "invalid_query")["field"] == "n0thing", row
                asked += 1
            if row.has_body:
                answer = await client.request(**{**plain, "json": {**(plain["json"] or {}), "n0thing": 1}})
                assert assert_problem(answer, 400, "invalid_body")["field"] == "n0thing", row
                asked += 1
        assert asked >= 25


@ON_SQLITE
async def test_the_description_says_that_there_are_no_other_fields(zone: FreshZone) -> None:
    async with zone.client() as client:
        described = json_object(await client.get("/openapi.json"))
    schemas = described["components"]["schemas"]
    bodies = [
        told["requestBody"]["content"]["application/json"]["schema"]
        for path, methods in described["paths"].items()
        for told in methods.values()
        if path.startswith("/api/v1/") and "requestBody" in told
    ]
    assert len(bodies) >= 20
    names = {name for body in bodies for name in named_in(body, schemas)}
    assert names >= {"CreateItem", "CostItem", "BudgetBody"}
    for name in names:
        if "properties" in schemas[name]:
            assert schemas[name].get("additionalProperties") is False, name


def named_in(schema: object, schemas: Mapping[str, object]) -> set[str]:
    """The components that a schema is made of."""
    if isinstance(schema, list):
        return {name for each in schema for name in named_in(each, schemas)}
    if not isinstance(schema, dict):
        return set()
    inner = named_in([*schema.values()], schemas)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return inner | {name} | named_in(schemas[name], schemas)
    return inner


@ON_SQLITE
async def test_a_tag_has_no_comma_since_by_commas_they_are_asked_for(zone: FreshZone) -> None:
    async with zone.client() as client:
        answer = await client.post(TASKS, json={**TASK, "tags": ["a", "c,d"]})
        assert assert_problem(answer, 400, "invalid_body")["field"] == "tags[1]"
        await many(client, {"id": "both", "tags": ["a", "b c"]}, {"tags": ["a"]})
        found = json_object(await client.get(TASKS, params={"tags": "a,b c"}))["items"]
        assert [item["id"] for item in found] == ["both"]
