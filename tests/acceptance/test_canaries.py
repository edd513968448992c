"""Secrets of a task are returned to its holder only.

One scenario on a real server with Redis and a webhook endpoint: tasks are created, claimed, failed, completed and sent
with invalid bodies. Every field that may contain a secret contains a canary. The test then searches every response, the
server log, events, metrics, webhook requests, Redis, every table, and the bytes of the database file and its WAL.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from tests.support import http_endpoint as endpoints
from tests.support.canaries import Canaries, data_files, dump_redis, encodings, table_rows
from tests.support.eventually import eventually
from tests.support.http_endpoint import HttpEndpoint
from tests.support.redis import DirectRedis
from tests.support.route_table import read_route_table
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import FreshZone, create_zone, read_events

TASKS = "/api/v1/agent-tasks"
AGENT = "worker-1"
PLAIN = "parakeet"
"""Part of every title, which is not secret. A search that misses it would miss a canary too."""


class Scenario:
    """Runs the requests and keeps every response except those to the task's holder."""

    def __init__(self, zone: FreshZone, client: httpx.AsyncClient) -> None:
        self.zone = zone
        self.client = client
        self.canary = Canaries()
        self.responses: list[str] = []
        self.tasks: list[str] = []

    async def request(self, method: str, path: str, *, status: int | None = None, **options: Any) -> Any:
        response = await self.client.request(method, path, **options)
        assert response.status_code < 500, f"{method} {path}: {response.text}"
        assert status is None or response.status_code == status, f"{method} {path}: {response.text}"
        self.responses.append(f"{method} {path} {response.headers} {response.text}")
        return response.json() if "json" in response.headers.get("content-type", "") else None

    # -- creating ------------------------------------------------------------------------------------------------

    def secrets(self, place: str) -> dict[str, object]:
        """Secrets of every kind, at several depths."""
        canary = self.canary
        return {
            "password": canary(f"{place}.password"),
            "API-Key": canary(f"{place}.API-Key"),
            "deep": [{"er": {"clientSecret": canary(f"{place}.deep"), "max_tokens": 5}}],
            "marked": {"$secret": canary(f"{place}.marked")},
            "list": [{"$secret": canary(f"{place}.list")}],
        }

    async def create(self, name: str, **more: object) -> tuple[str, dict[str, object]]:
        secrets = self.secrets(name)
        body = {"title": f"{PLAIN} {name}", "taskType": "development", "inputContext": secrets, **more}
        created = await self.request("POST", TASKS, status=201, json=body, headers={"Idempotency-Key": name})
        assert created["inputContext"] == {
            "password": "***", "API-Key": "***", "deep": [{"er": {"clientSecret": "***", "max_tokens": 5}}],
            "marked": "***", "list": ["***"],
        }  # fmt: skip
        repeated = await self.request("POST", TASKS, status=200, json=body, headers={"Idempotency-Key": name})
        assert repeated["id"] == created["id"]
        self.tasks.append(created["id"])
        return created["id"], secrets

    async def claim(self) -> Mapping[str, Any]:
        """Claim one task. The holder gets secrets in plain text, so the response is not kept."""
        response = await self.client.post(f"/api/v1/agents/{AGENT}/claim", json={"max": 1, "waitMs": 10_000})
        assert response.status_code == 200, response.text
        [leased] = response.json()["tasks"]
        assert isinstance(leased, dict)
        return leased

    async def send_garbage(self) -> None:
        canary = self.canary
        for place, body in {
            "title": {"title": {"$secret": canary("garbage.title")}, "taskType": "t"},
            "type": {"title": "t", "taskType": ["x"], "inputContext": {"token": canary("garbage.type")}},
            "context": {"title": "t", "taskType": "t", "inputContext": canary("garbage.context")},
            "sealed": {"title": "t", "taskType": "t", "inputContext": {"$sealed": canary("garbage.sealed")}},
            "marked": {"title": "t", "taskType": "t", "inputContext": {"$secret": {"x": canary("garbage.marked")}}},
            "priority": {"title": "t", "taskType": "t", "priority": 99, "inputContext": self.secrets("garbage.in")},
            "unknown": {"title": "t", "taskType": "t", "dependsOn": ["x"], "inputContext": self.secrets("garbage.on")},
        }.items():  # fmt: skip
            response = await self.client.post(TASKS, json=body)
            assert response.status_code == 400, (place, response.text)
            self.responses.append(response.text)
        for raw in (
            b'{"title": "t", "inputContext": {"password": "%s"' % canary("garbage.cut").encode(),
            b'{"inputContext": {"password": "%s\\u0000"}}' % canary("garbage.nul").encode(),
            b'{"inputContext": {"password": "%s\xff"}}' % canary("garbage.bytes").encode(),
            b'{"inputContext": %s"%s"' % (b'{"password":' * 70, canary("garbage.depth").encode()),
        ):
            response = await self.client.post(TASKS, content=raw)
            assert response.status_code == 400, response.text
            self.responses.append(response.text)

    # -- working -------------------------------------------------------------------------------------------------

    async def fail_one(self) -> None:
        """Fail a task with its secrets in the error, the stack trace and a log line."""
        task_id, secrets = await self.create("failing", maxRetries=0)
        leased = await self.claim()
        assert leased["inputContext"] == secrets
        token = {"attemptToken": leased["attemptToken"]}
        quoted = f"login failed with {secrets['password']} and {json.dumps(secrets)}"
        report = {"error": quoted, "stackTrace": f"Traceback …\n{quoted}", "retryable": False, **token}
        line = {"message": quoted, "details": {"password": secrets["password"], "context": secrets}, **token}
        await self.request("POST", f"{TASKS}/{task_id}/logs", json=line)
        failed = await self.request("POST", f"{TASKS}/{task_id}/fail", status=200, json=report)
        assert failed["status"] == "FAILED"
        assert failed["lastError"].startswith("login failed with *** and ")

    async def complete_one(self) -> None:
        task_id, secrets = await self.create("completing")
        leased = await self.claim()
        token = {"attemptToken": leased["attemptToken"]}
        saved = self.secrets("progress")
        await self.request(
            "PATCH", f"{TASKS}/{task_id}/progress", status=200,
            json={"progressPercent": 10, "currentStep": "half", "checkpointData": saved, **token},
        )  # fmt: skip
        beat = {"currentTaskId": task_id, "checkpointData": self.secrets("heartbeat"), **token}
        await self.request("POST", f"/api/v1/agents/{AGENT}/heartbeat", status=200, json=beat)
        result = {"outputResult": {**self.secrets("result"), "echo": secrets}, "summary": "done", **token}
        done = await self.request("POST", f"{TASKS}/{task_id}/complete", status=200, json=result)
        assert done["status"] == "COMPLETED"

    async def resume_from_a_checkpoint(self) -> None:
        task_id, secrets = await self.create("resuming")
        first = await self.claim()
        saved = self.secrets("checkpoint")
        body = {"items": [{"id": task_id, "checkpointData": saved, "attemptToken": first["attemptToken"]}]}
        await self.request("POST", f"{TASKS}/progress", status=200, json=body)
        # A report with an invalid attempt token is refused. It contains canaries too.
        stale = {"outputResult": self.secrets("stale"), "attemptToken": "none"}
        await self.request("POST", f"{TASKS}/{task_id}/complete", status=409, json=stale)
        await self.request(
            "POST", f"{TASKS}/{task_id}/release", status=200, json={"attemptToken": first["attemptToken"]}
        )
        second = await self.claim()
        assert (second["inputContext"], second["checkpointData"]) == (secrets, saved), "in plain text, as it was saved"
        report = {"id": task_id, "error": f"no: {saved['password']}", "attemptToken": second["attemptToken"]}
        await self.request("POST", f"{TASKS}/fail", status=200, json={"items": [report]})

    async def create_many(self) -> None:
        items = [
            {"title": f"{PLAIN} {n}", "taskType": "never", "inputContext": self.secrets(f"bulk{n}")} for n in range(3)
        ]
        created = await self.request("POST", TASKS, status=201, json={"tasks": items})
        self.tasks += [item["id"] for item in created["items"]]

    # -- reading -------------------------------------------------------------------------------------------------

    async def read_everything(self, server: ServerProcess) -> None:
        """Send GET to every read route, for every object of the scenario."""
        for row in await read_route_table(server):
            if row.method != "GET":
                continue
            ids = {"agents": [AGENT], "agent-tasks": self.tasks}.get(row.resource_name or "", ["default"])
            for object_id in ids:
                await self.request(
                    "GET", row.path_for(self.zone.id, object_id), params=dict.fromkeys(row.required_query, "x")
                )

    def leaks_in(self, content: bytes | str, place: str) -> list[str]:
        return [f"{canary} in {place}" for canary in self.canary.find_in(content)]


@pytest.fixture
async def endpoint() -> AsyncIterator[HttpEndpoint]:
    async with endpoints.run_endpoint() as endpoint:
        yield endpoint


async def register_agent_and_webhook(scenario: Scenario, endpoint: HttpEndpoint) -> None:
    await scenario.request("PUT", f"/api/v1/agents/{AGENT}", json={"name": "worker", "maxConcurrentTasks": 10})
    hook = {"url": endpoint.url, "types": ["*"]}
    await scenario.request("POST", "/api/v1/webhooks", status=201, json=hook)


async def test_secrets_are_returned_to_the_task_holder_and_appear_nowhere_else(
    servers: Servers, launch: Launch, redis: DirectRedis, endpoint: HttpEndpoint
) -> None:
    settings = {
        "REDIS_URL": redis.url, "STREAMS_HMAC_KEY": "a key that is long enough", "QD_LOG_LEVEL": "debug",
        "QD_PUSH_PRIVATE_ADDRESSES": "true", "OUTBOX_INTERVAL_MS": "50", "QD_WEBHOOK_POLL_MS": "50",
    }  # fmt: skip
    server = await servers.start(launch.with_environment(**settings))
    zone = await create_zone(server)
    async with server.client() as client:
        client.headers["X-Workspace-ID"] = zone.id
        scenario = Scenario(zone, client)
        await register_agent_and_webhook(scenario, endpoint)
        await scenario.fail_one()
        await scenario.complete_one()
        await scenario.resume_from_a_checkpoint()
        await scenario.create_many()
        await scenario.send_garbage()
        await scenario.read_everything(server)

        async def all_tasks_were_delivered() -> bool:
            bodies = b"".join(request.body for request in endpoint.requests)
            return all(task_id.encode() in bodies for task_id in scenario.tasks)

        await eventually(all_tasks_were_delivered, "the endpoint received every task")
    searched: dict[str, bytes | str] = {
        "events": str(await read_events(zone)),
        "webhook requests": repr(endpoint.requests),
        "Redis": dump_redis(redis),
        **{f"response {response[:60]}": response for response in scenario.responses},
        **{f"table {name}": rows for name, rows in table_rows(launch.database_url)},
        **{f"file {name}, while the server runs": content for name, content in data_files(launch.data)},
    }
    await server.stop()
    searched |= {f"file {name}": content for name, content in data_files(launch.data)}
    searched["server log"] = server.log_text
    assert [leak for place, content in searched.items() for leak in scenario.leaks_in(content, place)] == []
    assert_search_finds_the_title(searched, launch)


def assert_search_finds_the_title(searched: Mapping[str, bytes | str], launch: Launch) -> None:
    """Assert that the same search finds the title, which is not secret, in these places."""
    title_canary = Canaries()
    title_canary.values = {"title": PLAIN}
    places_found = {place for place, content in searched.items() if title_canary.find_in(content)}
    assert "table agent_tasks" in places_found
    assert any(place.startswith("response") for place in places_found)
    if launch.database is None:
        assert "file quarterdeck.db" in places_found


def test_canary_search_finds_every_encoding() -> None:
    canary = Canaries()
    value = canary("place-1")
    for encoded in encodings(value):
        assert canary.find_in(b"x" + encoded + b"y") == ["place-1"]
    assert canary.find_in(b"nothing") == []
