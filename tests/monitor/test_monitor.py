"""The monitor process: one per fleet. It pings idle members and members with unread messages."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from quarterdeck.client.data_dir import DataDir
from tests.cli.cli_support import RUN_TIMEOUT_SECONDS, Qd
from tests.support.eventually import eventually_sync
from tests.support.tmux import TmuxServer, needs_tmux

RUNNING = re.compile(r"monitor: running \(pid (\d+), last tick \d+s ago, tick (\d+)s\)")
BUSY_AGENT = '''\
#!{python}
"""A fake coding agent at work: its output changes all the time."""
import json, os, select, sys

path = os.path.join({log_dir!r}, f"codex.{{os.getpid()}}")
log = open(path + ".new", "a", encoding="utf-8", buffering=1)
log.write(json.dumps({{"argv": sys.argv[1:]}}) + "\\n")
os.rename(path + ".new", path)
number = 0
while True:
    number += 1
    print("at work", number, flush=True)
    if select.select([0], [], [], 0.05)[0]:
        log.write(json.dumps({{"line": sys.stdin.readline().rstrip("\\n")}}) + "\\n")
'''


class MonitorProcess:
    """A monitor process in the foreground."""

    def __init__(self, qd: Qd, *arguments: str) -> None:
        self._qd = qd
        self.process = qd.start("monitor", "start", "--tick", "1", *arguments)

    def first_line(self) -> str:
        """Empty if the process ended without output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def wait(self) -> tuple[int, str, str]:
        stdout, stderr = self.process.communicate(timeout=RUN_TIMEOUT_SECONDS)
        return self.process.returncode, stdout, stderr

    def stop(self, signal_number: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(signal_number)
        return self.wait()


@contextmanager
def kill_at_exit(*processes: MonitorProcess) -> Iterator[Sequence[MonitorProcess]]:
    """Kill the monitors that still run at the end of the block."""
    try:
        yield processes
    finally:
        for monitor_process in processes:
            if monitor_process.process.poll() is None:
                monitor_process.stop(signal.SIGKILL)


@contextmanager
def monitor(qd: Qd, *arguments: str) -> Iterator[MonitorProcess]:
    with kill_at_exit(MonitorProcess(qd, *arguments)) as [running]:
        assert RUNNING.match(running.first_line())
        yield running


def fleet(qd: Qd, **environment: str) -> Qd:
    """The same `qd` in a new fleet."""
    options = [] if environment else ["--no-pane"]
    created = qd.run_json("fleet", "create", *options, **environment)
    fleet_qd = Qd(qd.data)
    fleet_qd.environment = {**qd.environment, "QD_FLEET_ID": str(created["fleet_id"])}
    return fleet_qd


def status(qd: Qd) -> dict[str, Any]:
    found: dict[str, Any] = qd.run_json("monitor", "status")
    return found


def claim(qd: Qd, previous_pid: int) -> None:
    """Claim the fleet for this process, and report that the previous monitor has ended."""
    record = DataDir(str(qd.data)).read_record()
    assert record is not None
    fleet_id = qd.environment["QD_FLEET_ID"]
    body = {
        "pid": os.getpid(),
        "host_id": status(qd)["host_id"],
        "user_id": os.geteuid(),
        "previous_pid": previous_pid,
        "previous_is_alive": False,
    }
    headers = {
        "Authorization": f"Bearer {(qd.data / 'admin-token').read_text().strip()}",
        "X-Workspace-ID": qd.environment["QD_ZONE"],
    }
    url = f"{record.url}/api/v1/fleets/{fleet_id}/monitor/claim"
    response = httpx.post(url, json=body, headers=headers, trust_env=False)
    assert response.status_code == 200, response.text


def pings(tmux: TmuxServer, name: str) -> list[str]:
    return [line for log in tmux.read_agent_logs(name) for line in log.lines if "[ping]" in line]


# -- one monitor per fleet -----------------------------------------------------------------------------------------


def test_concurrent_starts_leave_one_monitor_also_after_a_kill(zone_qd: Qd) -> None:
    qd = fleet(zone_qd)
    fleet_id = qd.environment["QD_FLEET_ID"]
    previous_pid = 0
    for _ in range(2):
        with kill_at_exit(*(MonitorProcess(qd) for _ in range(3))) as started:
            lines = [process.first_line() for process in started]
            [winner] = [process for process, line in zip(started, lines, strict=True) if RUNNING.match(line)]
            for process in started:
                if process is not winner:
                    refused = (1, "", f"Error: monitor already running for fleet {fleet_id}\n")
                    assert process.wait() == refused
            assert status(qd)["pid"] == winner.process.pid != previous_pid
            previous_pid = winner.process.pid
            winner.stop(signal.SIGKILL)
            # Its heartbeat is still recent. On this host, its pid shows that it has ended.
            assert qd.run("monitor", "status").startswith(f"monitor: stale (pid {previous_pid}, ")


def test_clean_exit_resets_the_status_except_the_tick_interval(zone_qd: Qd) -> None:
    qd = fleet(zone_qd)
    assert qd.run("monitor", "status") == "monitor: stopped"
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        with monitor(qd) as running:
            found = RUNNING.fullmatch(qd.run("monitor", "status"))
            assert found and (int(found[1]), found[2]) == (running.process.pid, "1")
            assert running.stop(signal_number)[0] == 0
        state = status(qd)
        assert [state[name] for name in ("pid", "started_at", "last_tick_at")] == [None] * 3
        assert (state["tick_seconds"], state["is_live"]) == (1, False)


def test_monitor_exits_when_its_fleet_is_deleted(zone_qd: Qd) -> None:
    qd = fleet(zone_qd)
    fleet_id = qd.environment["QD_FLEET_ID"]
    with monitor(qd) as running:
        qd.run("fleet", "delete", fleet_id)
        code, stdout, _ = running.wait()
    assert code == 0
    assert f"fleet {fleet_id} is deleted" in stdout


def test_daemon_runs_in_its_own_session_and_reports_its_start(zone_qd: Qd) -> None:
    qd = fleet(zone_qd)
    started = qd.run_json("monitor", "start", "--daemon", "--tick", "1")
    try:
        assert os.getsid(started["pid"]) != os.getsid(0)
        assert status(qd)["pid"] == started["pid"]
        again = qd("monitor", "start", "--daemon")
        assert (again.returncode, again.stdout) == (1, "")
        assert again.stderr.startswith("Error: monitor already running for fleet ")
    finally:
        os.kill(started["pid"], signal.SIGTERM)
    eventually_sync(lambda: status(qd)["pid"] is None, "the daemon ended")
    assert Path(started["log"]).parent == qd.data
    assert Path(started["log"]).stat().st_mode & 0o077 == 0


# -- pings ---------------------------------------------------------------------------------------------------------


@needs_tmux
def test_idle_members_are_pinged_busy_ones_only_for_messages_and_shells_never(
    zone_qd: Qd, tmux_server: TmuxServer
) -> None:
    busy = tmux_server.bin / "codex"
    busy.write_text(BUSY_AGENT.format(python=sys.executable, log_dir=str(tmux_server.log_dir)))
    # The director's pane runs a shell, which would execute what is typed.
    qd = fleet(zone_qd, **tmux_server.pane_environment())
    environment = tmux_server.pane_environment()
    create = ("member", "create", "--agent-id", "1", "--description", "at work", "--coding-agent")
    quiet_id = qd.run_json(*create, "claude", "--name", "quiet", **environment)["agent_id"]
    busy_id = qd.run_json(*create, "codex", "--name", "busy", **environment)["agent_id"]
    for agent_id in (1, quiet_id, busy_id):
        qd.run("monitor", "config", "--agent-id", str(agent_id), "--interval", "1")
    qd.run("message", "send", "--agent-id", "2", "--to", "1", "--text", "for the shell")
    with monitor(qd) as running:
        eventually_sync(lambda: len(pings(tmux_server, "claude")) > 1, "the quiet member was pinged again")
        assert pings(tmux_server, "codex") == []
        qd.run("message", "send", "--agent-id", "2", "--to", str(busy_id), "--text", "read this")
        eventually_sync(lambda: pings(tmux_server, "codex") != [], "the busy member was pinged for its message")
        code, stdout, _ = running.stop()
    assert code == 0
    assert pings(tmux_server, "claude")[0] == "[ping] Check for messages: qd message poll"
    assert pings(tmux_server, "codex")[0] == "[ping] 1 unread message: qd message poll"
    assert "1 Director cannot be reached: not_the_agent" in stdout
    assert "[ping]" not in tmux_server.capture(tmux_server.pane)
    last_pings = {member["agent_id"]: member["last_ping_at"] for member in status(qd)["members"]}
    assert last_pings.pop(1) is None, "a ping that was not typed is not recorded"
    assert None not in last_pings.values()


@needs_tmux
def test_replaced_monitor_types_nothing_and_exits(zone_qd: Qd, tmux_server: TmuxServer) -> None:
    pane = tmux_server.new_pane()
    pid = tmux_server.wait_for_agent(pane)
    qd = fleet(zone_qd, **tmux_server.pane_environment(pane))
    with monitor(qd, "--policy", "seed") as running:
        eventually_sync(lambda: tmux_server.wait_for_agent_log(pid).lines != [], "the agent was pinged")
        # The next ping is due in a minute, so SIGSTOP arrives between two pings. The new interval makes it due at once.
        running.process.send_signal(signal.SIGSTOP)
        qd.run("monitor", "config", "--agent-id", "1", "--interval", "1")
        lines = tmux_server.wait_for_agent_log(pid).lines
        claim(qd, running.process.pid)
        running.process.send_signal(signal.SIGCONT)
        code, _, stderr = running.wait()
    assert (code, stderr) == (1, f"Error: this process no longer monitors fleet {qd.environment['QD_FLEET_ID']}\n")
    assert tmux_server.wait_for_agent_log(pid).lines == lines
    assert status(qd)["pid"] == os.getpid()
