"""Launchers with real processes and an HTTP gateway on loopback, and the outcome of their attempts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from quarterdeck.domain.coordination.background.launchers.model import LaunchRequest
from quarterdeck.domain.coordination.model import HttpLauncherConfig, LauncherConfig, ProcessLauncherConfig
from quarterdeck.domain.tasks.model.commands import Cancel, Create, Pause
from quarterdeck.domain.tasks.model.rows import State
from quarterdeck.domain.tasks.routes.request_commands import encrypt_field
from tests.support.builders import ZONE, admin
from tests.support.coordinator import CoordinatorHarness, start_coordinator
from tests.support.eventually import eventually
from tests.support.http_endpoint import HttpEndpoint, json_response, run_endpoint
from tests.support.runtime import RuntimeHarness, open_runtime
from tests.support.structs import build_struct

CANARY = "canary-of-the-input"


@pytest.fixture
async def runtime(sqlite_url: str) -> AsyncIterator[RuntimeHarness]:
    async with open_runtime(sqlite_url) as runtime:
        await runtime.put_zone()
        yield runtime


HOLD = "signal.alarm(60)\nsignal.pause()"
"""Waits for a signal, for at most 60 seconds."""


def script(text: str, **fields: object) -> ProcessLauncherConfig:
    command = (sys.executable, "-c", f"import os, sys, json, signal\n{text}")
    return build_struct(ProcessLauncherConfig, command=command, **fields)


async def start_task(harness: CoordinatorHarness, task_id: str = "t", **fields: object) -> None:
    """Register an agent of launcher `local`, create a task with a secret for it, and run the coordinator."""
    await harness.agent_harness.register("a", launcher="local", max_concurrent_tasks=4)
    await harness.task_harness.submit_create(create_command_with_secret(harness, task_id, **fields))
    await harness.run_until_idle()


def create_command_with_secret(harness: CoordinatorHarness, task_id: str, **fields: object) -> Create:
    command = harness.task_harness.create_command(task_id, **fields)
    text = encrypt_field(harness.cipher, ZONE, task_id, "input_context", {"password": CANARY, "x": 1})
    return msgspec.structs.replace(command, content=msgspec.structs.replace(command.content, input_context=text))


async def wait_for_state(harness: CoordinatorHarness, state: State, task_id: str = "t") -> None:
    async def is_in_state() -> bool:
        return (await harness.read_task(task_id)).status is state

    await eventually(is_in_state, f"{task_id} is {state}")


async def read_when_written(path: Path) -> str:
    async def is_written() -> bool:
        return read_text(path).endswith("\n")

    await eventually(is_written, f"{path.name} is written")
    return read_text(path)


def read_text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def wait_until_exited(pid: int) -> None:
    async def has_exited() -> bool:
        return not is_alive(pid)

    await eventually(has_exited, f"the process {pid} has ended")


# -- processes


async def test_process_gets_its_task_and_only_allowed_environment_variables(
    runtime: RuntimeHarness, tmp_path: Path
) -> None:
    report_file = tmp_path / "report"
    expression = "{'env': dict(os.environ), 'task': json.load(sys.stdin), 'cwd': os.getcwd(), 'group': os.getpgrp()}"
    local = script(
        f"report = {expression}\nopen({str(report_file)!r}, 'w').write(json.dumps(report) + '\\n')\n{HOLD}",
        environment=("PATH", "ALLOWED", "QD_SECRET_KEYS", "MISSING"),
        cwd=str(tmp_path),
    )
    environment = {"PATH": "/bin", "ALLOWED": "yes", "OTHER": "no", "QD_SECRET_KEYS": "k", "DATABASE_URL": "d"}
    harness = CoordinatorHarness(runtime, {"local": local}, environment, "http://127.0.0.1:4000")
    harness.launcher.start()
    try:
        await start_task(harness)
        report = json.loads(await read_when_written(report_file))
        row = await harness.read_task("t")
        token = f"token of a for {row.attempt_token}"
        url = "http://127.0.0.1:4000"
        assert {name: value for name, value in report["env"].items() if name != "LC_CTYPE"} == {
            "PATH": "/bin", "ALLOWED": "yes", "QD_TOKEN": token, "QD_SERVER": url, "QD_URL": url
        }  # fmt: skip
        assert report["cwd"] == str(tmp_path)
        assert report["group"] != os.getpgrp()
        assert report["task"]["context"] == {
            "taskTitle": "title",
            "taskDescription": None,
            "inputContext": {"password": CANARY, "x": 1},
            "checkpointData": {},
        }
        assert report["task"]["attemptToken"] == row.attempt_token
        assert (row.status, row.agent_id) == (State.RUNNING, "a")
        assert row.session_key is not None
        assert row.session_key.startswith("process:")
        assert harness.launcher.spawned_count == 1
    finally:
        await harness.launcher.stop()


async def test_process_exit_without_completion_fails_the_task_with_masked_output(runtime: RuntimeHarness) -> None:
    local = script("task = json.load(sys.stdin)\nprint('x' * 50_000)\nprint('crashed:', task)\nsys.exit(3)")
    async with start_coordinator(runtime, {"local": local}) as harness:
        await start_task(harness, retry_backoff_seconds=300)
        await wait_for_state(harness, State.FAILED)
        stored = await harness.task_harness.read("t")
        assert stored.content.last_error == "The process ended with exit code 3 before it completed the task."
        assert (stored.task.final, stored.task.retry_count) == (0, 1)
        [[output]] = runtime.database.execute("select stack_trace from task_log_lines where task_id = 't'")
        assert isinstance(output, str)
        assert "crashed:" in output
        assert CANARY not in output
        assert (stored.task.attempt_token or "?") not in output
        assert len(output) < 9_000
        assert harness.task_harness.read_held() == 0


@pytest.mark.parametrize("verb", ["cancel", "pause"])
async def test_process_of_an_ended_attempt_is_killed_with_its_children(
    runtime: RuntimeHarness, tmp_path: Path, verb: str
) -> None:
    pids = tmp_path / "pids"
    ignore_sigterm = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    write_pids = f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child}}\\n')"
    text = f"child = os.fork()\nif child: {write_pids}\n{HOLD}"
    async with start_coordinator(runtime, {"local": script(ignore_sigterm + text, grace_seconds=0.1)}) as harness:
        await start_task(harness)
        started = [int(pid) for pid in (await read_when_written(pids)).split()]
        cancel = Cancel(zone_id=ZONE, caller=admin(), id="t", reason="obsolete")
        await harness.task_harness.submit(cancel if verb == "cancel" else Pause(zone_id=ZONE, caller=admin(), id="t"))
        harness.wakeups.notify()
        for pid in started:
            await wait_until_exited(pid)
        row = await harness.read_task("t")
        assert row.status is (State.ABORTED if verb == "cancel" else State.PAUSED), "the process reported nothing more"


async def test_stopping_the_server_ends_its_processes_and_releases_their_attempts(
    runtime: RuntimeHarness, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    async with start_coordinator(
        runtime, {"local": script(f"open({str(pid_file)!r}, 'w').write(f'{{os.getpid()}}\\n')\n{HOLD}")}
    ) as harness:
        await start_task(harness)
        pid = int(await read_when_written(pid_file))
    assert not is_alive(pid)
    row = await harness.read_task("t")
    assert (row.status, row.attempt, row.retry_count) == (State.PENDING, 0, 0), "the attempt is not counted"


async def test_command_that_cannot_be_started_fails_the_attempt(runtime: RuntimeHarness) -> None:
    missing = ProcessLauncherConfig(command=("missing-command",))
    async with start_coordinator(runtime, {"local": missing}) as harness:
        await start_task(harness, max_retries=0)
        await wait_for_state(harness, State.FAILED)
        stored = await harness.task_harness.read("t")
        assert stored.content.last_error is not None
        assert "cannot be started" in stored.content.last_error
        assert stored.task.final == 1
        assert harness.launcher.failed_count == 1


async def test_running_process_sends_heartbeats_for_its_agent(runtime: RuntimeHarness, tmp_path: Path) -> None:
    async with start_coordinator(runtime, {"local": script(HOLD)}) as harness:
        await harness.agent_harness.register("a", launcher="local", heartbeat_interval_seconds=1)
        await harness.task_harness.create("t")
        await harness.run_until_idle()
        await wait_for_state(harness, State.RUNNING)
        runtime.database.execute("update agent_pulses set last_seen_at = 1")

        async def is_refreshed() -> bool:
            return runtime.database.count("agent_pulses", "last_seen_at > 1") == 1

        await eventually(is_refreshed, "a heartbeat of the agent")


async def test_launcher_does_not_exceed_max_concurrent_processes(runtime: RuntimeHarness) -> None:
    async with start_coordinator(runtime, {"local": script(HOLD, max_concurrent=2)}) as harness:
        await harness.agent_harness.register("a", launcher="local", max_concurrent_tasks=10)
        await harness.task_harness.create_many(
            [harness.task_harness.create_command(f"t{number}") for number in range(5)]
        )
        await harness.run_until_idle()
        assert runtime.database.count("agent_tasks", "agent_id = 'a'") == 2
        assert len(harness.launcher) == 2


async def test_launcher_with_task_types_gets_only_those_types(runtime: RuntimeHarness) -> None:
    async with start_coordinator(runtime, {"local": script(HOLD, task_types=("research",))}) as harness:
        await harness.agent_harness.register("a", launcher="local", max_concurrent_tasks=10)
        await harness.task_harness.create("t", task_type="review")
        assert await harness.coordinator.is_due() is not True, "no task matches the launcher's types"
        await harness.task_harness.create("u", task_type="research")
        await harness.run_until_idle()
        assert [(await harness.read_task(name)).agent_id for name in ("t", "u")] == [None, "a"]


async def test_launch_after_its_timeout_does_not_run_the_task(runtime: RuntimeHarness, tmp_path: Path) -> None:
    """The server was paused between the commit and the launch."""
    marker = tmp_path / "mark"
    local = script(f"if sys.stdin.read(): open({str(marker)!r}, 'w').write('x')")
    async with start_coordinator(runtime, {"local": local}) as harness:
        await harness.agent_harness.register("a", launcher="local")
        await harness.task_harness.create("t", retry_backoff_seconds=300)
        start_launch = harness.launcher.start_launch
        delayed: list[LaunchRequest] = []
        harness.launcher.start_launch = delayed.append  # type: ignore[method-assign,assignment]  # the pause
        await harness.run_until_idle()
        harness.expire_columns("t", "timeout_at")
        await harness.run_until_idle()
        assert (await harness.read_task("t")).reason == "launch_lost"
        start_launch(delayed[0])

        async def has_ended() -> bool:
            return len(harness.launcher) == 0

        await eventually(has_ended, "the late launch has ended")
        assert not marker.exists()
        assert (await harness.read_task("t")).reason == "launch_lost"


# -- a gateway


@pytest.fixture
async def gateway() -> AsyncIterator[HttpEndpoint]:
    async with run_endpoint() as endpoint:
        yield endpoint


def http_launchers(gateway: HttpEndpoint, **fields: object) -> dict[str, LauncherConfig]:
    url = f"http://127.0.0.1:{gateway.port}/"
    return {"local": build_struct(HttpLauncherConfig, url=url, **fields)}


async def test_gateway_request_has_the_spawn_format_and_its_session_key_is_stored(
    runtime: RuntimeHarness, gateway: HttpEndpoint
) -> None:
    gateway.response = json_response(b'{"session": {"sessionKey": "s-1"}}')
    launchers = http_launchers(gateway, headers={"Authorization": "GATEWAY_TOKEN"})
    harness = CoordinatorHarness(runtime, launchers, {"GATEWAY_TOKEN": "Bearer g"})
    try:
        await start_task(harness)
        request = await gateway.wait_for_request()
        assert request.path == "/api/agents/spawn"
        assert request.headers["authorization"] == "Bearer g"
        body = json.loads(request.body)
        await wait_for_state(harness, State.RUNNING)
        row = await harness.read_task("t")
        assert row.session_key == "s-1"
        assert {name: body[name] for name in ("workspaceId", "agentId", "taskId", "label", "attemptToken")} == {
            "workspaceId": ZONE,
            "agentId": "a",
            "taskId": "t",
            "label": "task:t:title",
            "attemptToken": row.attempt_token,
        }
        assert body["context"]["inputContext"]["password"] == CANARY, "the gateway is on this machine"
        assert (await harness.task_harness.complete(row)).status is State.COMPLETED
    finally:
        await harness.launcher.stop()


@pytest.mark.parametrize("response", [b"", json_response(b"{}"), json_response(b"{}", "503 Service Unavailable")])
async def test_gateway_reply_without_a_session_fails_the_attempt(
    runtime: RuntimeHarness, gateway: HttpEndpoint, response: bytes
) -> None:
    gateway.response = response
    harness = CoordinatorHarness(runtime, http_launchers(gateway))
    try:
        await start_task(harness, retry_backoff_seconds=300)
        await wait_for_state(harness, State.FAILED)
        row = await harness.read_task("t")
        assert (row.retry_count, row.final, harness.task_harness.read_held()) == (1, 0, 0)
    finally:
        await harness.launcher.stop()


async def test_agent_without_a_launcher_is_assigned_no_task(runtime: RuntimeHarness) -> None:
    async with start_coordinator(runtime, {"local": script(HOLD)}) as harness:
        await harness.task_harness.register_agent("a")
        await harness.task_harness.create("t")
        await harness.run_until_idle()
        assert (await harness.read_task("t")).status is State.PENDING, (
            "an agent without a launcher claims its tasks itself"
        )
