"""Launchers start agents for tasks. No request can change which command they run."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.eventually import eventually
from tests.support.route_table import read_route_table
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import json_object

TASKS = "/api/v1/agent-tasks"
AGENT_SCRIPT = """
import json, os, sys, urllib.request

task = json.load(sys.stdin)
with open(sys.argv[1], "a") as log:
    log.write(json.dumps({"argv": sys.argv, "env": sorted(os.environ), "task": task}) + "\\n")

def send(method, path, body):
    headers = {"authorization": "Bearer " + os.environ["QD_TOKEN"], "content-type": "application/json"}
    url = os.environ["QD_SERVER"] + "/api/v1/agent-tasks/" + task["taskId"] + path
    return urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers, method=method))

send("PATCH", "/progress", {"progressPercent": 50, "checkpointData": {"half": True}})
send("POST", "/complete", {"outputResult": {"answer": 42}})
"""


class Agent:
    """The agent command that the configuration names."""

    def __init__(self, directory: Path) -> None:
        self.script = directory / "agent.py"
        self.script.write_text(AGENT_SCRIPT)
        self.log = directory / "agent-log"
        self.trap = directory / "trap"

    def configure(self, data: Path, extra: str = "") -> None:
        data.mkdir(parents=True, exist_ok=True)
        command = json.dumps([sys.executable, str(self.script), str(self.log)])
        text = f'[launchers.local]\nkind = "process"\ncommand = {command}\nenvironment = ["PATH"]\n{extra}'
        (data / "quarterdeck.toml").write_text(text)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []


async def start_server(servers: Servers, directory: Path, extra: str = "") -> tuple[ServerProcess, Agent]:
    agent = Agent(directory)
    launch = Launch(directory / "data", environment={"SERVER_SECRET": "s"})
    agent.configure(launch.data, extra)
    return await servers.start(launch), agent


async def create_task(client: httpx.AsyncClient, **fields: object) -> str:
    response = await client.post(TASKS, json={"title": "t", "taskType": "research", **fields})
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def wait_until_completed(client: httpx.AsyncClient, task_id: str) -> dict[str, Any]:
    task: dict[str, Any] = {}

    async def is_completed() -> bool:
        task.update(json_object(await client.get(f"{TASKS}/{task_id}")))
        return bool(task["status"] == "COMPLETED")

    await eventually(is_completed, f"{task_id} is completed")
    return task


async def test_launcher_runs_only_its_configured_command_for_any_request(servers: Servers, tmp_path: Path) -> None:
    server, agent = await start_server(servers, tmp_path)
    async with server.client() as client:
        await client.put("/api/v1/agents/a", json={"launcher": "local", "capabilities": ["python"]})
        task_id = await create_task(client, requiredCapabilities=["python"], inputContext={"password": "hunter2"})
        task = await wait_until_completed(client, task_id)
        assert (task["outputResult"], task["agentId"], task["attempt"]) == ({"answer": 42}, "a", 1)
        [line] = agent.lines()
        assert line["task"]["context"]["inputContext"] == {"password": "hunter2"}
        assert "hunter2" not in server.log_text

        for request in injected_requests(await example_requests(server), agent.trap):
            response = await client.request(**request)
            assert response.status_code < 500, (request["method"], request["url"], response.text)
        await client.put("/api/v1/agents/b", json=agent_with_payloads(agent.trap))
        last_task_id = await create_task(client, **task_with_payloads(agent.trap))
        await wait_until_completed(client, last_task_id)
    assert not agent.trap.exists(), "a payload was executed"
    allowed_variables = {"PATH", "QD_SERVER", "QD_TOKEN", "QD_URL"}
    for line in agent.lines():
        assert line["argv"] == [str(agent.script), str(agent.log)], "only the configured arguments"
        assert {*line["env"]} - {"LC_CTYPE"} <= allowed_variables, "only the configured environment"


async def test_unreachable_launcher_gateway_is_reported_by_coordinator_health(servers: Servers, tmp_path: Path) -> None:
    gateway = '[launchers.gateway]\nkind = "http"\nurl = "http://127.0.0.1:1"\n'
    server, _ = await start_server(servers, tmp_path, gateway)
    async with server.client() as client:
        health = json_object(await client.get("/health/coordinator"))
    assert (health["status"], health["gateway"]) == ("degraded", "unreachable")


LASTING_SCRIPT = """
import os, signal, sys

signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
with open(sys.argv[1], "a") as pids:
    pids.write(f"{os.getpid()}\\n")
signal.alarm(60)
while True:
    signal.pause()
"""


async def test_launched_processes_end_when_the_server_is_killed(servers: Servers, tmp_path: Path) -> None:
    agent, launch = Agent(tmp_path), Launch(tmp_path / "data")
    agent.script.write_text(LASTING_SCRIPT)
    agent.configure(launch.data, "grace_seconds = 0.1\n")
    server = await servers.start(launch)
    async with server.client() as client:
        await client.put("/api/v1/agents/a", json={"launcher": "local"})
        await create_task(client)
    pids: list[int] = []

    async def both_running() -> bool:
        pids[:] = [int(line) for line in agent.log.read_text().split()] if agent.log.exists() else []
        return len(pids) == 2

    async def none_running() -> bool:
        return not any(map(is_running, pids))

    await eventually(both_running, "the launched process and its child are running")
    assert all(map(is_running, pids))
    server.kill()
    await eventually(none_running, "both have ended")


def is_running(pid: int) -> bool:
    """Whether the process runs. A zombie does not."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


# -- payloads in every field of every route


async def example_requests(server: ServerProcess) -> list[dict[str, Any]]:
    rows = [row for row in await read_route_table(server) if not row.has_stream and row.method != "DELETE"]
    return [row.request_for("default") for row in rows]


def payloads(trap: Path) -> list[str]:
    return [f"touch {trap}", f"$(touch {trap})", f"sh -c 'touch {trap}'"]


def injected_requests(requests: list[dict[str, Any]], trap: Path) -> Iterator[dict[str, Any]]:
    for request in requests:
        body = request["json"]
        if body is None:
            continue
        injected_fields = {
            name: payloads(trap)[0]
            for name in ("command", "cmd", "argv", "args", "env", "environment", "cwd", "executable", "kind", "url")
        }
        yield {
            **request,
            "json": {**body, **injected_fields, "launchers": {"x": {"kind": "process", "command": ["touch"]}}},
        }
        for path in string_paths(body):
            for payload in payloads(trap):
                yield {**request, "json": replace_at(body, path, payload)}


def string_paths(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from string_paths(member, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from string_paths(item, (*path, number))


def replace_at(body: object, path: tuple[str | int, ...], payload: str) -> object:
    changed: Any = copy.deepcopy(body)
    parent = changed
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = payload
    return changed


def agent_with_payloads(trap: Path) -> dict[str, object]:
    """A launched agent with a payload in every text field."""
    payload = payloads(trap)[1]
    return {
        "launcher": "local",
        "name": payload,
        "model": payload,
        "description": payload,
        "capabilities": [payload],
        "labels": {payload: payload},
        "pool": payload,
    }


def task_with_payloads(trap: Path) -> dict[str, object]:
    """A task for that agent with a payload in every text field."""
    payload = payloads(trap)[1]
    return {
        "title": payload,
        "description": payload,
        "taskType": payload[:100],
        "requiredCapabilities": [payload],
        "inputContext": {"command": [payload], "env": {"LD_PRELOAD": payload}, "QD_TOKEN": payload},
        "metadata": {"launcher": payload, "command": payload},
        "tags": [payload[:100]],
    }


@pytest.mark.parametrize("launcher", ["sh", "touch /tmp/x", "local; touch x", "../local", ""])
async def test_launcher_missing_from_the_configuration_is_refused(server: ServerProcess, launcher: str) -> None:
    async with server.client() as client:
        response = await client.put("/api/v1/agents/unlaunched", json={"launcher": launcher})
        assert response.status_code == 400
