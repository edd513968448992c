"""`qd doctor`: every problem is printed with the command that fixes it."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from quarterdeck import __version__
from quarterdeck.tmux.host import this_host
from tests.cli.cli_support import Qd, http_response, run_scripted_server
from tests.support.tmux import TmuxServer, needs_tmux, tmux_server

__all__ = ["tmux_server"]
NO_FLEETS = http_response(200, {"fleets": [], "next_cursor": None})


def problems(qd: Qd, **environment: str) -> dict[str, str]:
    """Returns the fix of each problem by the name of its check."""
    result = qd("doctor", **environment)
    fixes = {}
    for line in result.stdout.splitlines():
        state, name, rest = line.split(maxsplit=2)
        assert (" -> " in rest) == (state == "problem"), "exactly the problems have a fix"
        if state == "problem":
            fixes[name] = rest.partition(" -> ")[2]
    assert result.returncode == (1 if fixes else 0), result.stdout + result.stderr
    return fixes


def about(**fields: object) -> bytes:
    now = datetime.now(UTC).isoformat()
    defaults = {
        "version": __version__,
        "database": "sqlite",
        "revision": "1",
        "head": "1",
        "complaint": None,
        "now": now,
    }
    return http_response(200, {**defaults, **fields})


@needs_tmux
def test_healthy_installation_reports_no_problem(zone_qd: Qd) -> None:
    assert problems(zone_qd) == {}
    reply = zone_qd.run_json("doctor")
    names = ["versions", "tmux", "server", "database", "clock", "panes", "monitor"]
    assert (reply["ok"], [check["name"] for check in reply["checks"]]) == (True, names)


def test_missing_server_is_reported_and_not_started(tmp_path: Path) -> None:
    assert problems(Qd(tmp_path / "data"))["server"] == "qd up"
    assert not (tmp_path / "data").exists()


def test_missing_tmux_is_reported_with_an_install_hint(zone_qd: Qd, tmp_path: Path) -> None:
    assert "install tmux" in problems(zone_qd, PATH=str(tmp_path))["tmux"]


@pytest.mark.parametrize(
    ("fields", "name", "fix"),
    [
        ({"version": "9.9.9"}, "server", "pip install quarterdeck==9.9.9"),
        ({"now": None}, "clock", "upgrade that server"),
        ({"complaint": "The database is behind."}, "database", "qd db upgrade"),
        ({"now": (datetime.now(UTC) - timedelta(minutes=1)).isoformat()}, "clock", "timedatectl set-ntp true"),
    ],
)
def test_server_version_schema_and_clock_are_compared_with_the_client(
    zone_qd: Qd, fields: dict[str, object], name: str, fix: str
) -> None:
    with run_scripted_server(about(**fields), NO_FLEETS) as server:
        found = problems(zone_qd, QD_URL=server.url, QD_TOKEN="t")
    found.pop("tmux", None)  # This host may have no tmux.
    assert found == {name: fix}


def test_unreachable_tmux_does_not_suggest_deleting_members(zone_qd: Qd, tmp_path: Path) -> None:
    socket, host = tmp_path / "no socket", this_host()
    socket.touch()
    placement = {
        "tmux_session": "main", "tmux_window_id": "@1", "tmux_pane_id": "%1", "coding_agent": "claude",
        "host_id": host.id, "user_id": host.user_id, "tmux_socket": str(socket), "tmux_pid": 1,
        "created_at": "2026-01-01T00:00:00.000Z",
    }  # fmt: skip
    member = {"name": "a", "interval_seconds": 60, "is_due": False, "unread": 0, "placement": placement}
    members = [{**member, "agent_id": agent_id} for agent_id in (1, 3)]
    fleet = {"fleet_id": 1, "deleted_at": None, "director": {"agent_id": 1}}
    watch = {"fleet_id": 1, "pid": None, "members": members}
    fleets = http_response(200, {"fleets": [fleet], "next_cursor": None})
    with run_scripted_server(about(), fleets, http_response(200, watch)) as server:
        result = zone_qd("doctor", QD_URL=server.url, QD_TOKEN="t")
    lines = [line for line in result.stdout.splitlines() if line.startswith("problem") and "panes" in line]
    assert len(lines) == 1
    assert lines[0].endswith(f"-> tmux -S '{socket}' list-panes -a (when it works, run qd doctor again)")
    assert ("qd fleet delete" in result.stdout, result.returncode) == (False, 1)


@needs_tmux
def test_lost_panes_and_monitors_are_reported_with_their_fix(zone_qd: Qd, tmux_server: TmuxServer) -> None:
    pane = tmux_server.new_pane()
    tmux_server.wait_for_agent(pane)
    fleet_id = zone_qd.run_json("fleet", "create", **tmux_server.pane_environment(pane))["fleet_id"]
    create = ("member", "create", "--fleet-id", str(fleet_id), "--agent-id", "1", "--name", "ada")
    member = zone_qd.run_json(*create, "--description", "d", **tmux_server.pane_environment(pane))
    assert problems(zone_qd) == {}
    tmux_server.run_tmux("kill-pane", "-t", member["placement"]["tmux_pane_id"])
    fix = f"qd member delete --fleet-id {fleet_id} --member-id {member['agent_id']}"
    assert problems(zone_qd) == {"panes": fix}
    tmux_server.stop()
    tmux_server.start()
    fix = f"qd message poll --fleet-id {fleet_id} --agent-id 1 (or qd fleet delete {fleet_id})"
    assert f"its pane {pane} belonged to another tmux server -> {fix}" in zone_qd("doctor").stdout
    started = zone_qd.run_json("monitor", "start", "--fleet-id", str(fleet_id), "--daemon")
    os.kill(started["pid"], signal.SIGKILL)
    assert problems(zone_qd)["monitor"] == f"qd monitor start --fleet-id {fleet_id}"
