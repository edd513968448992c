"""Launching for real: processes of this machine and a gateway on loopback, and what becomes of their attempts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from quarterdeck.domain.coordination.launchers.model import LaunchRequest
from quarterdeck.domain.coordination.model import HttpLauncherConfig, LauncherConfig, ProcessLauncherConfig
from quarterdeck.domain.tasks.model.commands import Cancel, Create, Pause
from quarterdeck.domain.tasks.model.rows import State
from quarterdeck.domain.tasks.request_commands import encrypt_field
from tests.support.builders import ZONE, admin
from tests.support.coordinator import CoordinatorHarness, start_coordinator
from tests.support.eventually import eventually
from tests.support.http_endpoint import HttpEndpoint, json_response, run_endpoint
from tests.support.runtime import RuntimeHarness, open_runtime
from tests.support.structs import build_struct

CANARY = "canary-of-the-input"


@pytest.fixture
async def runtime(sqlite_url: str) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(sqlite_url) as laid:
        await laid.put_zone()
        yield laid


HOLD = "signal.alarm(60)\nsignal.pause()"
"""Until a signal ends it; and not for ever, should nobody send one."""


def script(text: str, **said: object) -> ProcessLauncherConfig:
    command = (sys.executable, "-c", f"import os, sys, json, signal\n{text}")
    return build_struct(ProcessLauncherConfig, command=command, **said)


async def began(here: CoordinatorHarness, task_id: str = "t", **asked: object) -> None:
    """An agent that `local` starts, and a task for it that holds a secret."""
    await here.agent_harness.register("a", launcher="local", max_concurrent_tasks=4)
    await here.task_harness.submit_create(secretive(here, task_id, **asked))
    await here.run_until_idle()


def secretive(here: CoordinatorHarness, task_id: str, **asked: object) -> Create:
    ask = here.task_harness.create_command(task_id, **asked)
    text = encrypt_field(here.cipher, ZONE, task_id, "input_context", {"password": CANARY, "x": 1})
    return msgspec.structs.replace(ask, content=msgspec.structs.replace(ask.content, input_context=text))


async def until(here: CoordinatorHarness, state: State, task_id: str = "t") -> None:
    async def there() -> bool:
        return (await here.read_task(task_id)).status is state

    await eventually(there, f"{task_id} is {state}")


async def until_written(path: Path) -> str:
    async def there() -> bool:
        return written(path).endswith("\n")

    await eventually(there, f"{path.name} is written")
    return written(path)


def written(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def until_gone(pid: int) -> None:
    async def gone() -> bool:
        return not is_alive(pid)

    await eventually(gone, f"the process {pid} has ended")


# -- processes


async def test_a_process_is_told_its_task_and_sees_nothing_of_the_server_but_what_is_allowed(
    runtime: RuntimeHarness, tmp_path: Path
) -> None:
    heard = tmp_path / "heard"
    told = "{'env': dict(os.environ), 'task': json.load(sys.stdin), 'cwd': os.getcwd(), 'group': os.getpgrp()}"
    local = script(
        f"said = {told}\nopen({str(heard)!r}, 'w').write(json.dumps(said) + '\\n')\n{HOLD}",
        environment=("PATH", "SEEN", "QD_SECRET_KEYS", "MISSING"),
        cwd=str(tmp_path),
    )
    own = {"PATH": "/bin", "SEEN": "yes", "UNSEEN": "no", "QD_SECRET_KEYS": "k", "DATABASE_URL": "d"}
    here = CoordinatorHarness(runtime, {"local": local}, own, "http://127.0.0.1:4000")
    here.launcher.start()
    try:
        await began(here)
        said = json.loads(await until_written(heard))
        row = await here.read_task("t")
        token = f"token of a for {row.attempt_token}"
        place = "http://127.0.0.1:4000"
        assert {name: value for name, value in said["env"].items() if name != "LC_CTYPE"} == {
            "PATH": "/bin", "SEEN": "yes", "QD_TOKEN": token, "QD_SERVER": place, "QD_URL": place
        }  # fmt: skip
        assert said["cwd"] == str(tmp_path)
        assert said["group"] != os.getpgrp()
        assert said["task"]["context"] == {
            "taskTitle": "title",
            "taskDescription": None,
            "inputContext": {"password": CANARY, "x": 1},
            "checkpointData": {},
        }
        assert said["task"]["attemptToken"] == row.attempt_token
        assert (row.status, row.agent_id) == (State.RUNNING, "a")
        assert row.session_key is not None
        assert row.session_key.startswith("process:")
        assert here.launcher.spawned == 1
    finally:
        await here.launcher.stop()


async def test_a_process_that_ends_without_completing_has_failed_with_its_last_words_and_no_secret(
    runtime: RuntimeHarness,
) -> None:
    local = script("task = json.load(sys.stdin)\nprint('x' * 50_000)\nprint('it broke:', task)\nsys.exit(3)")
    async with start_coordinator(runtime, {"local": local}) as here:
        await began(here, retry_backoff_seconds=300)
        await until(here, State.FAILED)
        whole = await here.task_harness.read("t")
        assert whole.content.last_error == "The process ended with exit code 3 and had not completed its task."
        assert (whole.task.final, whole.task.retry_count) == (0, 1)
        [[words]] = runtime.database.execute("select stack_trace from task_log_lines where task_id = 't'")
        assert isinstance(words, str)
        assert "it broke:" in words
        assert CANARY not in words
        assert (whole.task.attempt_token or "?") not in words
        assert len(words) < 9_000
        assert here.task_harness.read_held() == 0


@pytest.mark.parametrize("how", ["cancel", "pause"])
async def test_a_process_whose_attempt_is_over_is_ended_with_all_it_has_started(
    runtime: RuntimeHarness, tmp_path: Path, how: str
) -> None:
    pids = tmp_path / "pids"
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    says = f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child}}\\n')"
    text = f"child = os.fork()\nif child: {says}\n{HOLD}"
    async with start_coordinator(runtime, {"local": script(deaf + text, grace_seconds=0.1)}) as here:
        await began(here)
        started = [int(pid) for pid in (await until_written(pids)).split()]
        ask = Cancel(zone_id=ZONE, caller=admin(), id="t", reason="no more")
        await here.task_harness.submit(ask if how == "cancel" else Pause(zone_id=ZONE, caller=admin(), id="t"))
        here.wakeups.notify()
        for pid in started:
            await until_gone(pid)
        row = await here.read_task("t")
        assert row.status is (State.ABORTED if how == "cancel" else State.PAUSED), "and nothing more is said of it"


async def test_a_server_that_stops_ends_its_processes_and_gives_their_attempts_back(
    runtime: RuntimeHarness, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    async with start_coordinator(
        runtime, {"local": script(f"open({str(pid)!r}, 'w').write(f'{{os.getpid()}}\\n')\n{HOLD}")}
    ) as here:
        await began(here)
        number = int(await until_written(pid))
    assert not is_alive(number)
    row = await here.read_task("t")
    assert (row.status, row.attempt, row.retry_count) == (State.PENDING, 0, 0), "the attempt does not count"


async def test_what_cannot_be_started_has_failed_and_is_tried_again(runtime: RuntimeHarness) -> None:
    missing = ProcessLauncherConfig(command=("no such command on any machine",))
    async with start_coordinator(runtime, {"local": missing}) as here:
        await began(here, max_retries=0)
        await until(here, State.FAILED)
        whole = await here.task_harness.read("t")
        assert whole.content.last_error is not None
        assert "cannot be started" in whole.content.last_error
        assert whole.task.final == 1
        assert here.launcher.failed == 1


async def test_a_process_beats_for_its_agent(runtime: RuntimeHarness, tmp_path: Path) -> None:
    async with start_coordinator(runtime, {"local": script(HOLD)}) as here:
        await here.agent_harness.register("a", launcher="local", heartbeat_interval_seconds=1)
        await here.task_harness.create("t")
        await here.run_until_idle()
        await until(here, State.RUNNING)
        runtime.database.execute("update agent_pulses set last_seen_at = 1")

        async def heard() -> bool:
            return runtime.database.count("agent_pulses", "last_seen_at > 1") == 1

        await eventually(heard, "the agent is heard of")


async def test_no_more_processes_run_at_once_than_the_launcher_allows(runtime: RuntimeHarness) -> None:
    async with start_coordinator(runtime, {"local": script(HOLD, max_concurrent=2)}) as here:
        await here.agent_harness.register("a", launcher="local", max_concurrent_tasks=10)
        await here.task_harness.create_many([here.task_harness.create_command(f"t{number}") for number in range(5)])
        await here.run_until_idle()
        assert runtime.database.count("agent_tasks", "agent_id = 'a'") == 2
        assert len(here.launcher) == 2


async def test_an_agent_whose_launcher_is_for_certain_types_is_given_no_others(runtime: RuntimeHarness) -> None:
    async with start_coordinator(runtime, {"local": script(HOLD, task_types=("research",))}) as here:
        await here.agent_harness.register("a", launcher="local", max_concurrent_tasks=10)
        await here.task_harness.create("t", task_type="review")
        assert await here.coordinator.is_due() is not True, "there is nothing that it could be launched for"
        await here.task_harness.create("u", task_type="research")
        await here.run_until_idle()
        assert [(await here.read_task(name)).agent_id for name in ("t", "u")] == [None, "a"]


async def test_a_launch_that_comes_too_late_starts_nothing(runtime: RuntimeHarness, tmp_path: Path) -> None:
    """As of a server that stood still between the commit and the launch."""
    mark = tmp_path / "mark"
    local = script(f"if sys.stdin.read(): open({str(mark)!r}, 'w').write('x')")
    async with start_coordinator(runtime, {"local": local}) as here:
        await here.agent_harness.register("a", launcher="local")
        await here.task_harness.create("t", retry_backoff_seconds=300)
        begin = here.launcher.start_launch
        held: list[LaunchRequest] = []
        here.launcher.start_launch = held.append  # type: ignore[method-assign,assignment]  # stands still here
        await here.run_until_idle()
        here.expire_columns("t", "timeout_at")
        await here.run_until_idle()
        assert (await here.read_task("t")).reason == "launch_lost"
        begin(held[0])

        async def is_over() -> bool:
            return len(here.launcher) == 0

        await eventually(is_over, "the late launch is over")
        assert not mark.exists()
        assert (await here.read_task("t")).reason == "launch_lost"


# -- a gateway


@pytest.fixture
async def gateway() -> AsyncIterator[HttpEndpoint]:
    async with run_endpoint() as made:
        yield made


def http(gateway: HttpEndpoint, **said: object) -> dict[str, LauncherConfig]:
    url = f"http://127.0.0.1:{gateway.port}/"
    return {"local": build_struct(HttpLauncherConfig, url=url, **said)}


async def test_a_gateway_is_asked_as_in_the_seed_and_its_session_is_kept(
    runtime: RuntimeHarness, gateway: HttpEndpoint
) -> None:
    gateway.response = json_response(b'{"session": {"sessionKey": "s-1"}}')
    launchers = http(gateway, headers={"Authorization": "GATEWAY_TOKEN"})
    here = CoordinatorHarness(runtime, launchers, {"GATEWAY_TOKEN": "Bearer g"})
    try:
        await began(here)
        asked = await gateway.wait_for_request()
        assert asked.path == "/api/agents/spawn"
        assert asked.headers["authorization"] == "Bearer g"
        body = json.loads(asked.body)
        await until(here, State.RUNNING)
        row = await here.read_task("t")
        assert row.session_key == "s-1"
        assert {name: body[name] for name in ("workspaceId", "agentId", "taskId", "label", "attemptToken")} == {
            "workspaceId": ZONE,
            "agentId": "a",
            "taskId": "t",
            "label": "task:t:title",
            "attemptToken": row.attempt_token,
        }
        assert body["context"]["inputContext"]["password"] == CANARY, "it does not leave the machine"
        assert (await here.task_harness.complete(row)).status is State.COMPLETED
    finally:
        await here.launcher.stop()


@pytest.mark.parametrize("answer", [b"", json_response(b"{}"), json_response(b"{}", "503 Service Unavailable")])
async def test_a_gateway_that_starts_no_session_has_failed_the_attempt(
    runtime: RuntimeHarness, gateway: HttpEndpoint, answer: bytes
) -> None:
    gateway.response = answer
    here = CoordinatorHarness(runtime, http(gateway))
    try:
        await began(here, retry_backoff_seconds=300)
        await until(here, State.FAILED)
        row = await here.read_task("t")
        assert (row.retry_count, row.final, here.task_harness.read_held()) == (1, 0, 0)
    finally:
        await here.launcher.stop()


async def test_an_agent_without_a_launcher_is_assigned_nothing(runtime: RuntimeHarness) -> None:
    async with start_coordinator(runtime, {"local": script(HOLD)}) as here:
        await here.task_harness.register_agent("a")
        await here.task_harness.create("t")
        await here.run_until_idle()
        assert (await here.read_task("t")).status is State.PENDING, "it asks for work itself"
