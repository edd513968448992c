"""A fleet from the command line, inside a real tmux: its director types what agents type, to the letter."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from tests.cli.cli_support import Qd
from tests.support.databases import SqliteDatabases
from tests.support.eventually import eventually_sync
from tests.support.server import ServerProcess, Servers, launch_on
from tests.support.tmux import TmuxServer, needs_tmux, shared_tmux

__all__ = ["shared_tmux"]
pytestmark = needs_tmux
CREATE = ("member", "create", "--agent-id", "1", "--name")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, sqlite_databases: SqliteDatabases) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("commands")
    started = Servers(directory)
    try:
        launch = launch_on(sqlite_databases.fresh(directory), directory)
        yield asyncio.run(started.start(launch.told(QD_FLEET_EXIT_SECONDS="0.5")))
    finally:
        started.close()


def test_a_director_makes_members_talks_to_them_and_lets_them_go(
    server: ServerProcess, shared_tmux: TmuxServer
) -> None:
    inside = shared_tmux.inside()
    where = {"TMUX": inside["TMUX"], "TMUX_PANE": inside["TMUX_PANE"]}
    qd = Qd(server.launch.data, QD_FLEET_ID="1", **where)
    made = qd.json("fleet", "create", "--label", "review")
    assert (made["fleet_id"], made["director"]["placement"]["tmux_pane_id"]) == (1, shared_tmux.pane)
    line = qd.good(*CREATE, "alice", "--description", "reviews", "--", "look at", "page 7")
    found = re.fullmatch(r"3 alice backend=claude pane=(%\d+)", line)
    assert found is not None
    pane = found[1]
    alice = shared_tmux.pid_of(pane)
    assert shared_tmux.heard_by(alice).argv[-1] == "look at page 7"
    own = {name: value for name, value in shared_tmux.heard_by(alice).environment.items() if "QD_" in name}
    as_alice = Qd(server.launch.data, **own)
    assert as_alice.good("message", "poll") == "No messages found."
    assert qd.good("message", "broadcast", "--agent-id", "1", "--text", "$(hi)") == (
        "broadcast id=1 recipients=1 delivered=1"
    )
    eventually_sync(lambda: len(shared_tmux.heard_by(alice).lines) == 1, "alice was told")
    assert "$(hi)" in shared_tmux.heard_by(alice).lines[0]
    assert as_alice.good("message", "ack", "--task-id", "2") == "Message acknowledged."
    other = as_alice("message", "send", "--agent-id", "1", "--to", "3", "--text", "x")
    assert (other.returncode, other.stderr) == (1, "Error: This token cannot act as agent 1\n")
    to = ("--member-id", "3")
    assert qd.good("member", "exec", *to, "git log") == f"Sent a command to member 3 ({pane})."
    assert qd.good("member", "ping", *to) == f"Pinged member 3 ({pane})."
    eventually_sync(lambda: "heard ! git log" in qd.good("member", "capture", *to), "its pane shows it")
    assert as_alice("member", "exec", *to, "id").returncode == 1, "its token reaches into no pane"
    assert qd.good("member", "delete", *to) == f"Member deleted.\nPane {pane} has closed."
    assert pane not in shared_tmux.panes()
    shared_tmux.ask("set-environment", "-g", "FAKE", "stubborn")
    bob = qd.json(*CREATE, "bob", "--description", "tests", "--coding-agent", "codex")
    late = qd("member", "delete", "--member-id", "4")
    assert (late.returncode, "codex is ready" in late.stderr) == (2, True)
    assert "4 bob active" in qd.good("agent", "list")
    assert qd.good("member", "delete", "--member-id", "4", "--force").endswith("was killed.")
    assert bob["placement"]["tmux_pane_id"] not in shared_tmux.panes()
    done = qd("fleet", "delete", "1")
    assert done.stdout == "Deleted fleet 1. Deregistered 2 agents.\n"
    assert shared_tmux.pane in shared_tmux.panes(), "the director's own pane is its user's"
