"""Limits of task requests and responses, errors of single items in bulk requests, and unknown fields."""

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
    response = await client.put(f"/api/v1/agents/{name}", json={"maxConcurrentTasks": 1_000})
    assert response.status_code in (200, 201), response.text


async def create_tasks(client: httpx.AsyncClient, *tasks: Mapping[str, object]) -> list[dict[str, Any]]:
    response = await client.post(TASKS, json={"tasks": [{**TASK, **task} for task in tasks]})
    assert response.status_code == 201, response.text
    items: list[dict[str, Any]] = response.json()["items"]
    return items


async def claim(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    response = await client.post("/api/v1/agents/w/claim", json={"max": 500})
    assert response.status_code == 200, response.text
    tasks: list[dict[str, Any]] = response.json()["tasks"]
    return tasks


# -- size limits -------------------------------------------------------------------------------------------------


async def test_oversized_pages_and_claims_are_cut_and_the_rest_follows(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        for _ in range(2):
            await create_tasks(client, *({"inputContext": {"a": MEGABYTE}} for _ in range(9)))
        seen, cursor = [], None
        while True:
            page = json_object(await client.get(TASKS, params={"limit": 500, **({"cursor": cursor} if cursor else {})}))
            assert 1 <= len(page["items"]) <= 4
            seen += [item["id"] for item in page["items"]]
            cursor = page["nextCursor"]
            if cursor is None:
                break
        assert len(seen) == len(set(seen)) == 18
        first = await claim(client)
        assert len(first) == 16
        waiting = json_object(await client.get(TASKS, params={"status": "PENDING"}))["items"]
        assert len(waiting) == 2
        assert {task["id"] for task in await claim(client)} == {item["id"] for item in waiting}


@ON_SQLITE
async def test_task_list_shows_at_most_100_dependencies_and_dependents_of_each(zone: FreshZone) -> None:
    async with zone.client() as client:
        ids = [item["id"] for item in await create_tasks(client, *({} for _ in range(150)))]
        await create_tasks(client, {"id": "few"}, {"id": "hub"}, {"id": "sink", "dependsOn": ids})
        await create_tasks(
            client, *({"dependsOn": ["hub"]} for _ in range(150)), *({"dependsOn": ["few"]} for _ in range(3))
        )
        listed = {item["id"]: item for item in json_object(await client.get(TASKS, params={"limit": 500}))["items"]}
        sink, hub, few = listed["sink"], listed["hub"], listed["few"]
        assert (len(sink["dependsOn"]), sink["dependsOnCount"]) == (100, 150)
        assert (len(hub["blocks"]), hub["moreBlocks"]) == (100, True)
        assert (len(few["blocks"]), few["moreBlocks"]) == (3, False)
        assert json_object(await client.get(f"{TASKS}/sink"))["dependsOn"] == sorted(ids)
        single = json_object(await client.get(f"{TASKS}/hub"))
        assert (len(single["blocks"]), single["moreBlocks"]) == (150, False)


@ON_SQLITE
async def test_number_of_dependencies_in_a_request_is_bounded(zone: FreshZone) -> None:
    async with zone.client() as client:
        names = [f"n{number}" for number in range(10_001)]
        refused = assert_problem(await client.post(TASKS, json={**TASK, "dependsOn": names}), 400, "invalid_body")
        assert refused["field"] == "dependsOn"
        wide = {"tasks": [{**TASK, "dependsOn": names[:7_000]} for _ in range(3)]}
        refused = assert_problem(await client.post(TASKS, json=wide), 400, "invalid_body")
        assert (refused["field"], "20,000" in refused["detail"]) == ("$.tasks", True)


@ON_SQLITE
async def test_replayed_bulk_create_returns_only_the_tasks_that_fit(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        body = {"tasks": [{**TASK, "inputContext": {"a": MEGABYTE}} for _ in range(9)]}
        key = {"Idempotency-Key": "same"}
        created = json_object(await client.post(TASKS, json=body, headers=key))["items"]
        results = [
            {"id": task["id"], "attemptToken": task["attemptToken"], "outputResult": MEGABYTE}
            for task in await claim(client)
        ]
        await client.post(f"{TASKS}/complete", json={"items": results})
        replayed = json_object(await client.post(TASKS, json=body, headers=key))["items"]
        assert [item["id"] for item in replayed[:8]] == [item["id"] for item in created[:8]]
        assert (replayed[8]["error"], replayed[8]["taskId"]) == ("answer_too_large", created[8]["id"])


# -- bulk requests -----------------------------------------------------------------------------------------------


async def test_invalid_item_of_a_bulk_request_gets_its_own_error_with_its_path(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        results = await create_tasks(
            client,
            {"id": "first"},
            {"inputContext": {"a": [{"$secret": 7}]}},
            {"metadata": {"requiredCapabilities": "python"}},
            {"inputContext": {"a": "x" * (1 << 20)}},
            {"id": "first"},
            {"dependsOn": ["nothing"]},
            {"id": "last", "dependsOn": ["first"]},
        )
        assert [item.get("id") or (item["status"], item["error"], item["field"]) for item in results] == [
            "first",
            (400, "reserved_key", "$.tasks[1].inputContext.a[0]"),
            (400, "invalid_body", "$.tasks[2].metadata.requiredCapabilities"),
            (413, "field_too_large", "$.tasks[3].inputContext"),
            (400, "invalid_body", "$.tasks[4].id"),
            (400, "unknown_dependency", "$.tasks[5].dependsOn"),
            "last",
        ]
        [lease] = await claim(client)
        valid_item = {"id": lease["id"], "attemptToken": lease["attemptToken"]}
        invalid_item = {**valid_item, "id": "last", "outputResult": {"$sealed": "x"}}
        response = json_object(await client.post(f"{TASKS}/complete", json={"items": [invalid_item, valid_item]}))
        refused, completed = response["items"]
        assert (refused["error"]["status"], refused["error"]["field"]) == (400, "$.items[0].outputResult")
        assert json_object(await client.get(f"{TASKS}/{completed['id']}"))["status"] == "COMPLETED"


async def test_error_names_the_field_as_it_was_sent(zone: FreshZone) -> None:
    async with zone.client() as client:
        await register(client)
        await create_tasks(client, {})
        [lease] = await claim(client)
        body = {"checkpointData": {"a": "x" * (1 << 20)}, "attemptToken": lease["attemptToken"]}
        problem = assert_problem(
            await client.patch(f"{TASKS}/{lease['id']}/progress", json=body), 413, "field_too_large"
        )
        assert (problem["field"], "checkpointData" in problem["detail"]) == ("$.checkpointData", True)


async def test_unknown_workspace_is_the_same_404_for_every_caller(zone: FreshZone) -> None:
    headers = {"X-Workspace-ID": "nowhere"}
    async with zone.server.client() as admin, zone.client() as application:
        for client in (admin, application):
            for body in (TASK, {"tasks": [TASK, TASK]}):
                response = await client.post(TASKS, json=body, headers=headers)
                assert assert_problem(response, 404, "workspace_not_found")["detail"].count("'nowhere'") == 1
            assert_problem(await client.get(TASKS, headers=headers), 404, "workspace_not_found")
            items = {"items": [{"id": "a", "attemptToken": "t"}]}
            response = await client.post(f"{TASKS}/complete", json=items, headers=headers)
            assert_problem(response, 404, "workspace_not_found")


# -- unknown fields ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "field", "suggestion"),
    [
        ({"dependOn": ["x"]}, "dependOn", "`dependsOn`"),
        ({"task_type": "t"}, "task_type", "`taskType`"),
        ({"tasks": [{**TASK, "requiredCapabilites": []}]}, "tasks[0].requiredCapabilites", "`requiredCapabilities`"),
        ({"zzz": 1}, "zzz", "`onDependencyFailure`"),
    ],
)
@ON_SQLITE
async def test_unknown_field_is_refused_with_a_suggestion(
    zone: FreshZone, fields: dict[str, object], field: str, suggestion: str
) -> None:
    async with zone.client() as client:
        response = await client.post(TASKS, json=fields if "tasks" in fields else {**TASK, **fields})
        refused = assert_problem(response, 400, "invalid_body")
        assert (refused["field"], suggestion in refused["detail"]) == (field, True), refused
        assert json_object(await client.get(TASKS))["items"] == []


@ON_SQLITE
async def test_single_task_and_task_list_cannot_be_combined(zone: FreshZone) -> None:
    async with zone.client() as client:
        response = await client.post(TASKS, json={**TASK, "tasks": [TASK]})
        assert assert_problem(response, 400, "invalid_body")["field"] == "$.tasks"


@pytest.mark.parametrize(
    ("query", "field", "suggestion"),
    [
        ("priority>8", "priority>8", "`priority>=`"),
        ("task_type=t", "task_type", "`taskType`"),
        ("bogus=1", "bogus", "`createdAfter`"),
    ],
)
@ON_SQLITE
async def test_unknown_filter_is_refused_with_a_suggestion(
    zone: FreshZone, query: str, field: str, suggestion: str
) -> None:
    async with zone.client() as client:
        refused = assert_problem(await client.get(f"{TASKS}?{query}"), 400, "invalid_query")
        assert (refused["field"], suggestion in refused["detail"]) == (field, True), refused


@ON_SQLITE
async def test_every_workspace_route_refuses_unknown_fields_and_parameters(zone: FreshZone) -> None:
    async with zone.server.client() as client:
        rows = [row for row in await read_route_table(zone.server) if row.uses_caller_zone]
        tested = 0
        for row in rows:
            request = row.request_for(zone.id)
            if row.query:
                response = await client.request(**{**request, "params": {**request["params"], "n0thing": "1"}})
                assert assert_problem(response, 400, "invalid_query")["field"] == "n0thing", row
                tested += 1
            if row.has_body:
                response = await client.request(**{**request, "json": {**(request["json"] or {}), "n0thing": 1}})
                assert assert_problem(response, 400, "invalid_body")["field"] == "n0thing", row
                tested += 1
        assert tested >= 25


@ON_SQLITE
async def test_openapi_schemas_of_bodies_forbid_additional_properties(zone: FreshZone) -> None:
    async with zone.client() as client:
        document = json_object(await client.get("/openapi.json"))
    schemas = document["components"]["schemas"]
    bodies = [
        operation["requestBody"]["content"]["application/json"]["schema"]
        for path, methods in document["paths"].items()
        for operation in methods.values()
        if path.startswith("/api/v1/") and "requestBody" in operation
    ]
    assert len(bodies) >= 20
    names = {name for body in bodies for name in component_names(body, schemas)}
    assert names >= {"CreateItem", "CostItem", "BudgetBody"}
    for name in names:
        if "properties" in schemas[name]:
            assert schemas[name].get("additionalProperties") is False, name


def component_names(schema: object, schemas: Mapping[str, object]) -> set[str]:
    """The names of all components that a schema refers to."""
    if isinstance(schema, list):
        return {name for part in schema for name in component_names(part, schemas)}
    if not isinstance(schema, dict):
        return set()
    inner = component_names([*schema.values()], schemas)
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return inner | {name} | component_names(schemas[name], schemas)
    return inner


@ON_SQLITE
async def test_tag_with_a_comma_is_refused_because_the_filter_splits_at_commas(zone: FreshZone) -> None:
    async with zone.client() as client:
        response = await client.post(TASKS, json={**TASK, "tags": ["a", "c,d"]})
        assert assert_problem(response, 400, "invalid_body")["field"] == "tags[1]"
        await create_tasks(client, {"id": "both", "tags": ["a", "b c"]}, {"tags": ["a"]})
        found = json_object(await client.get(TASKS, params={"tags": "a,b c"}))["items"]
        assert [item["id"] for item in found] == ["both"]
