"""A server with launchers: what it starts works on its tasks by itself, and no request makes it start anything else."""

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
AGENT = """
import json, os, sys, urllib.request

task = json.load(sys.stdin)
with open(sys.argv[1], "a") as heard:
    heard.write(json.dumps({"argv": sys.argv, "env": sorted(os.environ), "task": task}) + "\\n")

def say(method, path, body):
    headers = {"authorization": "Bearer " + os.environ["QD_TOKEN"], "content-type": "application/json"}
    url = os.environ["QD_SERVER"] + "/api/v1/agent-tasks/" + task["taskId"] + path
    return urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers, method=method))

say("PATCH", "/progress", {"progressPercent": 50, "checkpointData": {"half": True}})
say("POST", "/complete", {"outputResult": {"answer": 42}})
"""


class Agent:
    """The one command that the configuration names."""

    def __init__(self, directory: Path) -> None:
        self.script = directory / "agent.py"
        self.script.write_text(AGENT)
        self.heard = directory / "heard"
        self.mark = directory / "mark"

    def configure(self, data: Path, more: str = "") -> None:
        data.mkdir(parents=True, exist_ok=True)
        command = json.dumps([sys.executable, str(self.script), str(self.heard)])
        text = f'[launchers.local]\nkind = "process"\ncommand = {command}\nenvironment = ["PATH"]\n{more}'
        (data / "quarterdeck.toml").write_text(text)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.heard.read_text().splitlines()] if self.heard.exists() else []


async def started(servers: Servers, directory: Path, more: str = "") -> tuple[ServerProcess, Agent]:
    agent = Agent(directory)
    launch = Launch(directory / "data", environment={"SECRET_OF_THE_SERVER": "s"})
    agent.configure(launch.data, more)
    return await servers.start(launch), agent


async def make(client: httpx.AsyncClient, **said: object) -> str:
    answer = await client.post(TASKS, json={"title": "t", "taskType": "research", **said})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


async def until_done(client: httpx.AsyncClient, task_id: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    async def is_done() -> bool:
        seen.update(json_object(await client.get(f"{TASKS}/{task_id}")))
        return bool(seen["status"] == "COMPLETED")

    await eventually(is_done, f"{task_id} is completed")
    return seen


async def test_a_task_is_launched_worked_on_and_completed_and_no_request_makes_the_server_run_anything_else(
    servers: Servers, tmp_path: Path
) -> None:
    server, agent = await started(servers, tmp_path)
    async with server.client() as client:
        await client.put("/api/v1/agents/a", json={"launcher": "local", "capabilities": ["python"]})
        task_id = await make(client, requiredCapabilities=["python"], inputContext={"password": "hunter2"})
        done = await until_done(client, task_id)
        assert (done["outputResult"], done["agentId"], done["attempt"]) == ({"answer": 42}, "a", 1)
        [line] = agent.lines()
        assert line["task"]["context"]["inputContext"] == {"password": "hunter2"}
        assert "hunter2" not in server.log_text

        for asked in commands(await requests(server), agent.mark):
            answer = await client.request(**asked)
            assert answer.status_code < 500, (asked["method"], asked["url"], answer.text)
        await client.put("/api/v1/agents/b", json=worded(agent.mark))
        last = await make(client, **told(agent.mark))
        await until_done(client, last)
    assert not agent.mark.exists(), "a word of a request was run"
    allowed = {"PATH", "QD_SERVER", "QD_TOKEN", "QD_URL"}
    for line in agent.lines():
        assert line["argv"] == [str(agent.script), str(agent.heard)], "arguments are the configuration's"
        assert {*line["env"]} - {"LC_CTYPE"} <= allowed, "and so is what is seen of the environment"


async def test_a_gateway_of_any_launcher_that_does_not_answer_is_said_to_be_away(
    servers: Servers, tmp_path: Path
) -> None:
    hole = '[launchers.hole]\nkind = "http"\nurl = "http://127.0.0.1:1"\n'
    server, _ = await started(servers, tmp_path, hole)
    async with server.client() as client:
        told = json_object(await client.get("/health/coordinator"))
    assert (told["status"], told["gateway"]) == ("degraded", "unreachable")


LASTING = """
import os, signal, sys

signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
with open(sys.argv[1], "a") as pids:
    pids.write(f"{os.getpid()}\\n")
signal.alarm(60)
while True:
    signal.pause()
"""


async def test_what_a_server_has_launched_does_not_outlive_it_when_it_is_killed(
    servers: Servers, tmp_path: Path
) -> None:
    agent, launch = Agent(tmp_path), Launch(tmp_path / "data")
    agent.script.write_text(LASTING)
    agent.configure(launch.data, "grace_seconds = 0.1\n")
    server = await servers.start(launch)
    async with server.client() as client:
        await client.put("/api/v1/agents/a", json={"launcher": "local"})
        await make(client)
    seen: list[int] = []

    async def both_run() -> bool:
        seen[:] = [int(line) for line in agent.heard.read_text().split()] if agent.heard.exists() else []
        return len(seen) == 2

    async def none_runs() -> bool:
        return not any(map(runs, seen))

    await eventually(both_run, "what was launched runs, and so does its child")
    assert all(map(runs, seen))
    server.kill()
    await eventually(none_runs, "both have ended")


def runs(pid: int) -> bool:
    """Whether a process does anything: whoever has ended may wait for somebody to take note of it."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        os.kill(pid, 0)
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


# -- every field of every route, with a command in it


async def requests(server: ServerProcess) -> list[dict[str, Any]]:
    rows = [row for row in await read_route_table(server) if not row.has_stream and row.method != "DELETE"]
    return [row.request_for("default") for row in rows]


def payloads(mark: Path) -> list[str]:
    return [f"touch {mark}", f"$(touch {mark})", f"sh -c 'touch {mark}'"]


def commands(asked: list[dict[str, Any]], mark: Path) -> Iterator[dict[str, Any]]:
    for request in asked:
        body = request["json"]
        if body is None:
            continue
        hidden = {
            name: payloads(mark)[0]
            for name in ("command", "cmd", "argv", "args", "env", "environment", "cwd", "executable", "kind", "url")
        }
        yield {**request, "json": {**body, **hidden, "launchers": {"x": {"kind": "process", "command": ["touch"]}}}}
        for path in strings_in(body):
            for payload in payloads(mark):
                yield {**request, "json": replaced(body, path, payload)}


def strings_in(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from strings_in(member, (*path, name))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from strings_in(item, (*path, number))


def replaced(body: object, path: tuple[str | int, ...], payload: str) -> object:
    changed: Any = copy.deepcopy(body)
    at = changed
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = payload
    return changed


def worded(mark: Path) -> dict[str, object]:
    """An agent that is launched, all of whose words are commands."""
    word = payloads(mark)[1]
    return {
        "launcher": "local",
        "name": word,
        "model": word,
        "description": word,
        "capabilities": [word],
        "labels": {word: word},
        "pool": word,
    }


def told(mark: Path) -> dict[str, object]:
    """A task for it, likewise."""
    word = payloads(mark)[1]
    return {
        "title": word,
        "description": word,
        "taskType": word[:100],
        "requiredCapabilities": [word],
        "inputContext": {"command": [word], "env": {"LD_PRELOAD": word}, "QD_TOKEN": word},
        "metadata": {"launcher": word, "command": word},
        "tags": [word[:100]],
    }


@pytest.mark.parametrize("launcher", ["sh", "touch /tmp/x", "local; touch x", "../local", ""])
async def test_a_launcher_that_the_configuration_does_not_name_cannot_be_chosen(
    server: ServerProcess, launcher: str
) -> None:
    async with server.client() as client:
        answer = await client.put("/api/v1/agents/unlaunched", json={"launcher": launcher})
        assert answer.status_code == 400
