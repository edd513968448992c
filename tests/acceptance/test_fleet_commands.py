"""The fleet commands of `qd` in a real tmux server, run as a director and as a member."""

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
    servers = Servers(directory)
    try:
        launch = launch_on(sqlite_databases.create_migrated(directory), directory)
        yield asyncio.run(servers.start(launch.with_environment(QD_FLEET_EXIT_SECONDS="0.5")))
    finally:
        servers.close()


def test_director_creates_messages_and_deletes_members_from_the_command_line(
    server: ServerProcess, shared_tmux: TmuxServer
) -> None:
    pane_environment = shared_tmux.pane_environment()
    tmux_variables = {"TMUX": pane_environment["TMUX"], "TMUX_PANE": pane_environment["TMUX_PANE"]}
    qd = Qd(server.launch.data, QD_FLEET_ID="1", **tmux_variables)
    created = qd.run_json("fleet", "create", "--label", "review")
    assert (created["fleet_id"], created["director"]["placement"]["tmux_pane_id"]) == (1, shared_tmux.pane)
    line = qd.run(*CREATE, "alice", "--description", "reviews", "--", "look at", "page 7")
    match = re.fullmatch(r"3 alice backend=claude pane=(%\d+)", line)
    assert match is not None
    pane = match[1]
    alice = shared_tmux.pid_of(pane)
    assert shared_tmux.wait_for_agent_log(alice).argv[-1] == "look at page 7"
    member_environment = {
        name: value for name, value in shared_tmux.wait_for_agent_log(alice).environment.items() if "QD_" in name
    }
    as_alice = Qd(server.launch.data, **member_environment)
    assert as_alice.run("message", "poll") == "No messages found."
    assert qd.run("message", "broadcast", "--agent-id", "1", "--text", "$(hi)") == (
        "broadcast id=1 recipients=1 delivered=1"
    )
    eventually_sync(lambda: len(shared_tmux.wait_for_agent_log(alice).lines) == 1, "alice got the notice")
    assert "$(hi)" in shared_tmux.wait_for_agent_log(alice).lines[0]
    assert as_alice.run("message", "ack", "--task-id", "2") == "Message acknowledged."
    refused = as_alice("message", "send", "--agent-id", "1", "--to", "3", "--text", "x")
    assert (refused.returncode, refused.stderr) == (1, "Error: This token cannot act as agent 1\n")
    member = ("--member-id", "3")
    assert qd.run("member", "exec", *member, "git log") == f"Sent a command to member 3 ({pane})."
    assert qd.run("member", "ping", *member) == f"Pinged member 3 ({pane})."
    eventually_sync(lambda: "received ! git log" in qd.run("member", "capture", *member), "the pane shows the command")
    assert as_alice("member", "exec", *member, "id").returncode == 1, "a member's token cannot type into panes"
    assert qd.run("member", "delete", *member) == f"Member deleted.\nPane {pane} was closed."
    assert pane not in shared_tmux.list_panes()
    shared_tmux.run_tmux("set-environment", "-g", "FAKE", "stubborn")
    bob = qd.run_json(*CREATE, "bob", "--description", "tests", "--coding-agent", "codex")
    timed_out = qd("member", "delete", "--member-id", "4")
    assert (timed_out.returncode, "codex is ready" in timed_out.stderr) == (2, True)
    assert "4 bob active" in qd.run("agent", "list")
    assert qd.run("member", "delete", "--member-id", "4", "--force").endswith("was killed.")
    assert bob["placement"]["tmux_pane_id"] not in shared_tmux.list_panes()
    done = qd("fleet", "delete", "1")
    assert done.stdout == "Deleted fleet 1. Deregistered 2 agents.\n"
    assert shared_tmux.pane in shared_tmux.list_panes(), "the director's own pane stays open"
