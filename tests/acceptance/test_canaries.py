"""Canary secrets: given to whoever holds the task, and found nowhere else, however they were sent in.

One long story on a real server, with Redis and an endpoint beside it: tasks are made, worked on, failed, completed and
garbled with canaries in every place where a secret may stand. Then all is searched: every answer, the log, events,
figures, what the endpoint and Redis were told, every table, and the bytes of the database file and of its log.
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
"""In a title, for everybody to read: whoever does not find this does not find a canary either."""


class Story:
    """What is done, with every answer kept that is not for a task's holder."""

    def __init__(self, zone: FreshZone, client: httpx.AsyncClient) -> None:
        self.zone = zone
        self.client = client
        self.canary = Canaries()
        self.heard: list[str] = []
        self.tasks: list[str] = []

    async def ask(self, method: str, path: str, *, status: int | None = None, **asked: Any) -> Any:
        answer = await self.client.request(method, path, **asked)
        assert answer.status_code < 500, f"{method} {path}: {answer.text}"
        assert status is None or answer.status_code == status, f"{method} {path}: {answer.text}"
        self.heard.append(f"{method} {path} {answer.headers} {answer.text}")
        return answer.json() if "json" in answer.headers.get("content-type", "") else None

    # -- sending in ----------------------------------------------------------------------------------------------

    def secrets(self, where: str) -> dict[str, object]:
        """One of each kind, at several depths."""
        canary = self.canary
        return {
            "password": canary(f"{where}.password"),
            "API-Key": canary(f"{where}.API-Key"),
            "deep": [{"er": {"clientSecret": canary(f"{where}.deep"), "max_tokens": 5}}],
            "marked": {"$secret": canary(f"{where}.marked")},
            "list": [{"$secret": canary(f"{where}.list")}],
        }

    async def create(self, name: str, **more: object) -> tuple[str, dict[str, object]]:
        said = self.secrets(name)
        body = {"title": f"{PLAIN} {name}", "taskType": "development", "inputContext": said, **more}
        made = await self.ask("POST", TASKS, status=201, json=body, headers={"Idempotency-Key": name})
        assert made["inputContext"] == {
            "password": "***", "API-Key": "***", "deep": [{"er": {"clientSecret": "***", "max_tokens": 5}}],
            "marked": "***", "list": ["***"],
        }  # fmt: skip
        again = await self.ask("POST", TASKS, status=200, json=body, headers={"Idempotency-Key": name})
        assert again["id"] == made["id"]
        self.tasks.append(made["id"])
        return made["id"], said

    async def claim(self) -> Mapping[str, Any]:
        """Answered to the holder, in the clear; so it is not kept."""
        answer = await self.client.post(f"/api/v1/agents/{AGENT}/claim", json={"max": 1, "waitMs": 10_000})
        assert answer.status_code == 200, answer.text
        [leased] = answer.json()["tasks"]
        assert isinstance(leased, dict)
        return leased

    async def send_garbage(self) -> None:
        canary = self.canary
        for where, body in {
            "title": {"title": {"$secret": canary("garbage.title")}, "taskType": "t"},
            "type": {"title": "t", "taskType": ["x"], "inputContext": {"token": canary("garbage.type")}},
            "context": {"title": "t", "taskType": "t", "inputContext": canary("garbage.context")},
            "sealed": {"title": "t", "taskType": "t", "inputContext": {"$sealed": canary("garbage.sealed")}},
            "marked": {"title": "t", "taskType": "t", "inputContext": {"$secret": {"x": canary("garbage.marked")}}},
            "priority": {"title": "t", "taskType": "t", "priority": 99, "inputContext": self.secrets("garbage.in")},
            "unknown": {"title": "t", "taskType": "t", "dependsOn": ["x"], "inputContext": self.secrets("garbage.on")},
        }.items():  # fmt: skip
            answer = await self.client.post(TASKS, json=body)
            assert answer.status_code == 400, (where, answer.text)
            self.heard.append(answer.text)
        for raw in (
            b'{"title": "t", "inputContext": {"password": "%s"' % canary("garbage.cut").encode(),
            b'{"inputContext": {"password": "%s\\u0000"}}' % canary("garbage.nul").encode(),
            b'{"inputContext": {"password": "%s\xff"}}' % canary("garbage.bytes").encode(),
            b'{"inputContext": %s"%s"' % (b'{"password":' * 70, canary("garbage.depth").encode()),
        ):
            answer = await self.client.post(TASKS, content=raw)
            assert answer.status_code == 400, answer.text
            self.heard.append(answer.text)

    # -- working -------------------------------------------------------------------------------------------------

    async def fail_one(self) -> None:
        """It quotes what it was given, in every way an agent may speak of it."""
        task_id, said = await self.create("failing", maxRetries=0)
        leased = await self.claim()
        assert leased["inputContext"] == said
        token = {"attemptToken": leased["attemptToken"]}
        quoted = f"login failed with {said['password']} and {json.dumps(said)}"
        told = {"error": quoted, "stackTrace": f"Traceback …\n{quoted}", "retryable": False, **token}
        line = {"message": quoted, "details": {"password": said["password"], "said": said}, **token}
        await self.ask("POST", f"{TASKS}/{task_id}/logs", json=line)
        failed = await self.ask("POST", f"{TASKS}/{task_id}/fail", status=200, json=told)
        assert failed["status"] == "FAILED"
        assert failed["lastError"].startswith("login failed with *** and ")

    async def complete_one(self) -> None:
        task_id, said = await self.create("completing")
        leased = await self.claim()
        token = {"attemptToken": leased["attemptToken"]}
        saved = self.secrets("progress")
        await self.ask(
            "PATCH", f"{TASKS}/{task_id}/progress", status=200,
            json={"progressPercent": 10, "currentStep": "half", "checkpointData": saved, **token},
        )  # fmt: skip
        beat = {"currentTaskId": task_id, "checkpointData": self.secrets("heartbeat"), **token}
        await self.ask("POST", f"/api/v1/agents/{AGENT}/heartbeat", status=200, json=beat)
        result = {"outputResult": {**self.secrets("result"), "echo": said}, "summary": "done", **token}
        done = await self.ask("POST", f"{TASKS}/{task_id}/complete", status=200, json=result)
        assert done["status"] == "COMPLETED"

    async def go_on_from_a_checkpoint(self) -> None:
        task_id, said = await self.create("resuming")
        first = await self.claim()
        saved = self.secrets("checkpoint")
        body = {"items": [{"id": task_id, "checkpointData": saved, "attemptToken": first["attemptToken"]}]}
        await self.ask("POST", f"{TASKS}/progress", status=200, json=body)
        # A token that is over, and one that is none: refused, with canaries in what they wanted to say.
        stale = {"outputResult": self.secrets("stale"), "attemptToken": "none"}
        await self.ask("POST", f"{TASKS}/{task_id}/complete", status=409, json=stale)
        await self.ask("POST", f"{TASKS}/{task_id}/release", status=200, json={"attemptToken": first["attemptToken"]})
        second = await self.claim()
        assert (second["inputContext"], second["checkpointData"]) == (said, saved), "in the clear, as it was saved"
        told = {"id": task_id, "error": f"no: {saved['password']}", "attemptToken": second["attemptToken"]}
        await self.ask("POST", f"{TASKS}/fail", status=200, json={"items": [told]})

    async def create_many(self) -> None:
        items = [
            {"title": f"{PLAIN} {n}", "taskType": "never", "inputContext": self.secrets(f"bulk{n}")} for n in range(3)
        ]
        made = await self.ask("POST", TASKS, status=201, json={"tasks": items})
        self.tasks += [item["id"] for item in made["items"]]

    # -- looking -------------------------------------------------------------------------------------------------

    async def read_everything(self, server: ServerProcess) -> None:
        """Every route that only reads, about everything there is to read about."""
        for row in await read_route_table(server):
            if row.method != "GET":
                continue
            named = {"agents": [AGENT], "agent-tasks": self.tasks}.get(row.resource_name or "", ["default"])
            for one in named:
                await self.ask("GET", row.path_for(self.zone.id, one), params=dict.fromkeys(row.required_query, "x"))

    def sang(self, found: bytes | str, where: str) -> list[str]:
        return [f"{canary} in {where}" for canary in self.canary.find_in(found)]


@pytest.fixture
async def endpoint() -> AsyncIterator[HttpEndpoint]:
    async with endpoints.run_endpoint() as there:
        yield there


async def begin(story: Story, endpoint: HttpEndpoint) -> None:
    await story.ask("PUT", f"/api/v1/agents/{AGENT}", json={"name": "worker", "maxConcurrentTasks": 10})
    hook = {"url": endpoint.url, "types": ["*"]}
    await story.ask("POST", "/api/v1/webhooks", status=201, json=hook)


async def test_canaries_are_given_to_the_holder_and_found_nowhere_else(
    servers: Servers, launch: Launch, redis: DirectRedis, endpoint: HttpEndpoint
) -> None:
    told = {
        "REDIS_URL": redis.url, "STREAMS_HMAC_KEY": "a key that is long enough", "QD_LOG_LEVEL": "debug",
        "QD_PUSH_PRIVATE_ADDRESSES": "true", "OUTBOX_INTERVAL_MS": "50", "QD_WEBHOOK_POLL_MS": "50",
    }  # fmt: skip
    server = await servers.start(launch.with_environment(**told))
    zone = await create_zone(server)
    async with server.client() as client:
        client.headers["X-Workspace-ID"] = zone.id
        story = Story(zone, client)
        await begin(story, endpoint)
        await story.fail_one()
        await story.complete_one()
        await story.go_on_from_a_checkpoint()
        await story.create_many()
        await story.send_garbage()
        await story.read_everything(server)

        async def all_was_told() -> bool:
            bodies = b"".join(request.body for request in endpoint.requests)
            return all(task_id.encode() in bodies for task_id in story.tasks)

        await eventually(all_was_told, "the endpoint heard of every task")
    searched: dict[str, bytes | str] = {
        "the events": str(await read_events(zone)),
        "what the endpoint was told": repr(endpoint.requests),
        "Redis": dump_redis(redis),
        **{f"the answer {answer[:60]}": answer for answer in story.heard},
        **{f"the table {name}": rows for name, rows in table_rows(launch.database_url)},
        **{f"the file {name}, while it is served": found for name, found in data_files(launch.data)},
    }
    await server.stop()
    searched |= {f"the file {name}": found for name, found in data_files(launch.data)}
    searched["the log"] = server.log_text
    assert [sung for where, found in searched.items() for sung in story.sang(found, where)] == []
    assert_it_would_have_been_found(searched, launch)


def assert_it_would_have_been_found(searched: Mapping[str, bytes | str], launch: Launch) -> None:
    """What is for everybody to read stands in all these places, and is found by the same search."""
    bird = Canaries()
    bird.values = {"title": PLAIN}
    found = {where for where, text in searched.items() if bird.find_in(text)}
    assert "the table agent_tasks" in found
    assert any(where.startswith("the answer") for where in found)
    if launch.database is None:
        assert "the file quarterdeck.db" in found


def test_a_canary_is_known_in_whatever_it_is_wrapped() -> None:
    canary = Canaries()
    value = canary("here")
    for form in encodings(value):
        assert canary.find_in(b"x" + form + b"y") == ["here"]
    assert canary.find_in(b"nothing") == []
