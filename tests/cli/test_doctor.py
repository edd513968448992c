"""`qd doctor`: every line is right, or wrong with the command that mends it."""

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


def wrong(qd: Qd, **environment: str) -> dict[str, str]:
    """What is wrong, by its name, and what mends it."""
    done = qd("doctor", **environment)
    found = {}
    for line in done.stdout.splitlines():
        word, name, rest = line.split(maxsplit=2)
        assert (" -> " in rest) == (word == "wrong"), "what is wrong says what mends it"
        if word == "wrong":
            found[name] = rest.partition(" -> ")[2]
    assert done.returncode == (1 if found else 0), done.stdout + done.stderr
    return found


def about(**said: object) -> bytes:
    now = datetime.now(UTC).isoformat()
    whole = {"version": __version__, "database": "sqlite", "revision": "1", "head": "1", "complaint": None, "now": now}
    return http_response(200, {**whole, **said})


@needs_tmux
def test_where_all_is_well_every_line_says_so(zone_qd: Qd) -> None:
    assert wrong(zone_qd) == {}
    told = zone_qd.run_json("doctor")
    names = ["versions", "tmux", "server", "database", "clock", "panes", "monitor"]
    assert (told["ok"], [each["name"] for each in told["checks"]]) == (True, names)


def test_without_a_server_it_names_the_command_that_starts_one_and_starts_none(tmp_path: Path) -> None:
    assert wrong(Qd(tmp_path / "data"))["server"] == "qd up"
    assert not (tmp_path / "data").exists()


def test_without_tmux_it_says_how_to_get_it(zone_qd: Qd, tmp_path: Path) -> None:
    assert "install tmux" in wrong(zone_qd, PATH=str(tmp_path))["tmux"]


@pytest.mark.parametrize(
    ("said", "name", "mend"),
    [
        ({"version": "9.9.9"}, "server", "pip install quarterdeck==9.9.9"),
        ({"complaint": "The database is behind."}, "database", "qd db upgrade"),
        ({"now": (datetime.now(UTC) - timedelta(minutes=1)).isoformat()}, "clock", "timedatectl set-ntp true"),
    ],
)
def test_what_the_server_tells_of_itself_is_held_against_what_is_here(
    zone_qd: Qd, said: dict[str, object], name: str, mend: str
) -> None:
    with run_scripted_server(about(**said), NO_FLEETS) as other:
        found = wrong(zone_qd, QD_URL=other.url, QD_TOKEN="t")
    found.pop("tmux", None)  # where there is none
    assert found == {name: mend}


def test_nothing_is_to_be_deleted_because_tmux_does_not_answer(zone_qd: Qd, tmp_path: Path) -> None:
    socket, host = tmp_path / "no socket", this_host()
    socket.touch()
    placed = {
        "tmux_session": "main", "tmux_window_id": "@1", "tmux_pane_id": "%1", "coding_agent": "claude",
        "host_id": host.id, "user_id": host.user_id, "tmux_socket": str(socket), "tmux_pid": 1,
        "created_at": "2026-01-01T00:00:00.000Z",
    }  # fmt: skip
    watched = {"name": "a", "interval_seconds": 60, "is_due": False, "unread": 0, "placement": placed}
    members = [{**watched, "agent_id": agent_id} for agent_id in (1, 3)]
    fleet = {"fleet_id": 1, "deleted_at": None, "director": {"agent_id": 1}}
    watch = {"fleet_id": 1, "pid": None, "members": members}
    listed = http_response(200, {"fleets": [fleet], "next_cursor": None})
    with run_scripted_server(about(), listed, http_response(200, watch)) as other:
        done = zone_qd("doctor", QD_URL=other.url, QD_TOKEN="t")
    told = [line for line in done.stdout.splitlines() if line.startswith("wrong") and "panes" in line]
    assert len(told) == 1
    assert told[0].endswith(f"-> tmux -S '{socket}' list-panes -a (once that answers, look again)")
    assert ("qd fleet delete" in done.stdout, done.returncode) == (False, 1)


@needs_tmux
def test_panes_and_monitors_that_are_gone_are_named_with_what_mends_them(zone_qd: Qd, tmux_server: TmuxServer) -> None:
    pane = tmux_server.new_pane()
    tmux_server.wait_for_agent(pane)
    number = zone_qd.run_json("fleet", "create", **tmux_server.pane_environment(pane))["fleet_id"]
    create = ("member", "create", "--fleet-id", str(number), "--agent-id", "1", "--name", "ada")
    member = zone_qd.run_json(*create, "--description", "d", **tmux_server.pane_environment(pane))
    assert wrong(zone_qd) == {}
    tmux_server.run_tmux("kill-pane", "-t", member["placement"]["tmux_pane_id"])
    mend = f"qd member delete --fleet-id {number} --member-id {member['agent_id']}"
    assert wrong(zone_qd) == {"panes": mend}
    tmux_server.stop()
    tmux_server.start()
    mend = f"qd message poll --fleet-id {number} --agent-id 1 (or qd fleet delete {number})"
    assert f"its pane {pane} was of another tmux server -> {mend}" in zone_qd("doctor").stdout
    started = zone_qd.run_json("monitor", "start", "--fleet-id", str(number), "--daemon")
    os.kill(started["pid"], signal.SIGKILL)
    assert wrong(zone_qd)["monitor"] == f"qd monitor start --fleet-id {number}"
