"""The monitor: one for a fleet, and it reminds those who do not see their messages, and nobody who is at work."""

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
BUSY = '''\
#!{python}
"""Stands in for a coding agent that is at work: what it shows changes all the time."""
import json, os, select, sys

path = os.path.join({heard!r}, f"codex.{{os.getpid()}}")
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


class Running:
    """A monitor in the foreground."""

    def __init__(self, qd: Qd, *words: str) -> None:
        self._qd = qd
        self.process = qd.start("monitor", "start", "--tick", "1", *words)

    def first_line(self) -> str:
        """Empty if it ended without a word."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def ended(self) -> tuple[int, str, str]:
        stdout, stderr = self.process.communicate(timeout=RUN_TIMEOUT_SECONDS)
        return self.process.returncode, stdout, stderr

    def stop(self, by: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        self.process.send_signal(by)
        return self.ended()


@contextmanager
def ended_afterwards(*started: Running) -> Iterator[Sequence[Running]]:
    """Whatever happens, none of them is left behind."""
    try:
        yield started
    finally:
        for each in started:
            if each.process.poll() is None:
                each.stop(signal.SIGKILL)


@contextmanager
def monitor(qd: Qd, *words: str) -> Iterator[Running]:
    with ended_afterwards(Running(qd, *words)) as [running]:
        assert RUNNING.match(running.first_line())
        yield running


def fleet(qd: Qd, **environment: str) -> Qd:
    """The same `qd` in a fleet of its own."""
    words = [] if environment else ["--no-pane"]
    made = qd.run_json("fleet", "create", *words, **environment)
    within = Qd(qd.data)
    within.environment = {**qd.environment, "QD_FLEET_ID": str(made["fleet_id"])}
    return within


def status(qd: Qd) -> dict[str, Any]:
    found: dict[str, Any] = qd.run_json("monitor", "status")
    return found


def claim(qd: Qd, previous_pid: int) -> None:
    """Another process, which is this one, says that the one before has ended."""
    record = DataDir(str(qd.data)).read_record()
    assert record is not None
    number = qd.environment["QD_FLEET_ID"]
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
    url = f"{record.url}/api/v1/fleets/{number}/monitor/claim"
    answer = httpx.post(url, json=body, headers=headers, trust_env=False)
    assert answer.status_code == 200, answer.text


def pings(tmux: TmuxServer, name: str) -> list[str]:
    return [line for heard in tmux.read_agent_logs(name) for line in heard.lines if "[ping]" in line]


# -- one for a fleet -----------------------------------------------------------------------------------------------


def test_of_those_who_start_at_once_one_wins_also_after_one_that_was_killed(zone_qd: Qd) -> None:
    qd = fleet(zone_qd)
    number = qd.environment["QD_FLEET_ID"]
    before = 0
    for _ in range(2):
        with ended_afterwards(*(Running(qd) for _ in range(3))) as started:
            lines = [each.first_line() for each in started]
            [winner] = [each for each, line in zip(started, lines, strict=True) if RUNNING.match(line)]
            for each in started:
                if each is not winner:
                    refused = (1, "", f"Error: monitor already running for fleet {number}\n")
                    assert each.ended() == refused
            assert status(qd)["pid"] == winner.process.pid != before
            before = winner.process.pid
            winner.stop(signal.SIGKILL)
            # Its heartbeat is young still: that it has ended is known by its pid, on this host.
            assert qd.run("monitor", "status").startswith(f"monitor: stale (pid {before}, ")


def test_a_clean_end_leaves_nothing_but_how_often_it_ticked(zone_qd: Qd) -> None:
    qd = fleet(zone_qd)
    assert qd.run("monitor", "status") == "monitor: stopped"
    for by in (signal.SIGTERM, signal.SIGINT):
        with monitor(qd) as running:
            found = RUNNING.fullmatch(qd.run("monitor", "status"))
            assert found and (int(found[1]), found[2]) == (running.process.pid, "1")
            assert running.stop(by)[0] == 0
        told = status(qd)
        assert [told[name] for name in ("pid", "started_at", "last_tick_at")] == [None] * 3
        assert (told["tick_seconds"], told["is_live"]) == (1, False)


def test_it_ends_with_its_fleet(zone_qd: Qd) -> None:
    qd = fleet(zone_qd)
    number = qd.environment["QD_FLEET_ID"]
    with monitor(qd) as running:
        qd.run("fleet", "delete", number)
        code, stdout, _ = running.ended()
    assert code == 0
    assert f"fleet {number} is deleted" in stdout


def test_as_a_daemon_it_outlives_its_terminal_and_tells_how_it_began(zone_qd: Qd) -> None:
    qd = fleet(zone_qd)
    told = qd.run_json("monitor", "start", "--daemon", "--tick", "1")
    try:
        assert os.getsid(told["pid"]) != os.getsid(0)
        assert status(qd)["pid"] == told["pid"]
        again = qd("monitor", "start", "--daemon")
        assert (again.returncode, again.stdout) == (1, "")
        assert again.stderr.startswith("Error: monitor already running for fleet ")
    finally:
        os.kill(told["pid"], signal.SIGTERM)
    eventually_sync(lambda: status(qd)["pid"] is None, "the daemon had ended")
    assert Path(told["log"]).parent == qd.data
    assert Path(told["log"]).stat().st_mode & 0o077 == 0


# -- whom it pings -------------------------------------------------------------------------------------------------


@needs_tmux
def test_who_is_quiet_is_pinged_who_is_at_work_only_for_messages_and_a_shell_never(
    zone_qd: Qd, tmux_server: TmuxServer
) -> None:
    busy = tmux_server.bin / "codex"
    busy.write_text(BUSY.format(python=sys.executable, heard=str(tmux_server.log_dir)))
    # The director's pane is a shell's: what is typed there would be executed.
    qd = fleet(zone_qd, **tmux_server.pane_environment())
    inside = tmux_server.pane_environment()
    create = ("member", "create", "--agent-id", "1", "--description", "at work", "--coding-agent")
    quiet_id = qd.run_json(*create, "claude", "--name", "quiet", **inside)["agent_id"]
    busy_id = qd.run_json(*create, "codex", "--name", "busy", **inside)["agent_id"]
    for agent_id in (1, quiet_id, busy_id):
        qd.run("monitor", "config", "--agent-id", str(agent_id), "--interval", "1")
    qd.run("message", "send", "--agent-id", "2", "--to", "1", "--text", "for the shell")
    with monitor(qd) as running:
        eventually_sync(lambda: len(pings(tmux_server, "claude")) > 1, "the quiet one was pinged again")
        assert pings(tmux_server, "codex") == []
        qd.run("message", "send", "--agent-id", "2", "--to", str(busy_id), "--text", "read this")
        eventually_sync(lambda: pings(tmux_server, "codex") != [], "the busy one was pinged for its message")
        code, stdout, _ = running.stop()
    assert code == 0
    assert pings(tmux_server, "claude")[0] == "[ping] Look for messages: qd message poll"
    assert pings(tmux_server, "codex")[0] == "[ping] 1 unread message: qd message poll"
    assert "1 Director cannot be reached: not_the_agent" in stdout
    assert "[ping]" not in tmux_server.capture(tmux_server.pane)
    last = {member["agent_id"]: member["last_ping_at"] for member in status(qd)["members"]}
    assert last.pop(1) is None, "what did not land is not said to have landed"
    assert None not in last.values()


@needs_tmux
def test_who_has_lost_its_fleet_types_nothing_more(zone_qd: Qd, tmux_server: TmuxServer) -> None:
    pane = tmux_server.new_pane()
    pid = tmux_server.wait_for_agent(pane)
    qd = fleet(zone_qd, **tmux_server.pane_environment(pane))
    with monitor(qd, "--policy", "seed") as running:
        eventually_sync(lambda: tmux_server.wait_for_agent_log(pid).lines != [], "it was pinged")
        # Not due again for a minute, so that it is stopped between two ticks; and due at once when it goes on.
        running.process.send_signal(signal.SIGSTOP)
        qd.run("monitor", "config", "--agent-id", "1", "--interval", "1")
        lines = tmux_server.wait_for_agent_log(pid).lines
        claim(qd, running.process.pid)
        running.process.send_signal(signal.SIGCONT)
        code, _, stderr = running.ended()
    assert (code, stderr) == (
        1,
        f"Error: this process does not monitor fleet {qd.environment['QD_FLEET_ID']} any more\n",
    )
    assert tmux_server.wait_for_agent_log(pid).lines == lines
    assert status(qd)["pid"] == os.getpid()
