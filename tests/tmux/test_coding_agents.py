"""Coding agents: their command lines, and whether one is in the foreground of a pane."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from quarterdeck.tmux import process_table
from quarterdeck.tmux.coding_agents import (
    DEFAULTS,
    CodingAgent,
    CodingAgentError,
    build_argv,
    find_agent_process,
    has_exited,
    merge_coding_agents,
)
from quarterdeck.tmux.pane_info import PaneInfo
from quarterdeck.tmux.panes import Tmux
from quarterdeck.tmux.process_table import Process, ProcessTable
from tests.support.eventually import eventually, eventually_sync
from tests.support.tmux import TmuxServer, needs_tmux, type_line

CLAUDE = DEFAULTS["claude"]


@dataclass(frozen=True)
class AgentConfig:
    """A coding agent as the settings file configures it."""

    argv: Sequence[str] | None = None
    model_argv: Sequence[str] | None = None
    prompt_argv: Sequence[str] | None = None
    processes: Sequence[str] | None = None
    exit: str | None = None


# -- command lines -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "model", "argv"),
    [
        ("claude", None, ["claude", "--permission-mode", "dontAsk", "--name", "alice", "DO IT"]),
        ("claude", "m", ["claude", "--permission-mode", "dontAsk", "--name", "alice", "--model", "m", "DO IT"]),
        ("codex", None, ["codex", "--ask-for-approval", "never", "--sandbox", "workspace-write", "DO IT"]),
        (
            "codex",
            "m",
            ["codex", "--ask-for-approval", "never", "--sandbox", "workspace-write", "--model", "m", "DO IT"],
        ),
        ("opencode", None, ["opencode", "--agent", "build", "--prompt", "DO IT"]),
        ("opencode", "p/m", ["opencode", "--agent", "build", "--model", "p/m", "--prompt", "DO IT"]),
    ],
)
def test_default_agents_have_their_command_lines(name: str, model: str | None, argv: list[str]) -> None:
    assert build_argv(DEFAULTS[name], name="alice", model=model, prompt="DO IT") == argv
    assert DEFAULTS[name].exit == "/exit"


def test_values_are_neither_placeholders_nor_options() -> None:
    argv = build_argv(CLAUDE, name="{prompt}", model="--danger", prompt="--allow {name}\0\x1b\n{model}")
    assert argv[4:] == ["{prompt}", "--model", " --danger", " --allow {name}\n{model}"]
    inside = CodingAgent("x", ("x", "--name={name}"), processes=("x",))
    assert build_argv(inside, name="-n", prompt=None) == ["x", "--name=-n"]


def test_new_agent_needs_only_configuration() -> None:
    agents = merge_coding_agents(
        {"aider": AgentConfig(argv=["bin/aider", "--yes"], prompt_argv=["--message", "{prompt}"])}
    )
    assert sorted(agents) == ["aider", "claude", "codex", "opencode"]
    assert agents["aider"].processes == ("aider",)
    assert agents["aider"].exit == "/exit"
    assert build_argv(agents["aider"], name="a", model="m", prompt="p") == [
        *("bin/aider", "--yes", "--model", "m", "--message", "p")
    ]


def test_configuration_of_a_default_agent_replaces_only_the_given_fields() -> None:
    agents = merge_coding_agents({"claude": AgentConfig(argv=["claude", "--continue"], exit="/quit")})
    assert agents["claude"] == replace(CLAUDE, argv=("claude", "--continue"), exit="/quit")
    assert merge_coding_agents(None) == DEFAULTS


def test_agent_without_argv_or_with_a_shell_as_its_process_is_refused() -> None:
    with pytest.raises(CodingAgentError, match="no `argv`"):
        merge_coding_agents({"aider": AgentConfig(processes=["aider"])})
    for shells in (["bash"], ["aider", "zsh"], []):
        with pytest.raises(CodingAgentError, match="name a shell"):
            merge_coding_agents({"aider": AgentConfig(argv=["aider"], processes=shells)})
    with pytest.raises(CodingAgentError, match="name a shell"):
        merge_coding_agents({"mine": AgentConfig(argv=["/bin/sh", "agent.sh"])})


# -- process names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["bash"], True),
        (["-zsh"], True),
        (["/bin/sh", "-i"], True),
        (["bash", "--rcfile", "claude"], True),
        (["bash", "--norc", "-o", "vi"], True),
        (["sh", "-s", "claude"], True),
        (["fish", "-C", "claude"], True),
        (["bash", "-c", "claude"], False),
        (["bash", "-lc", "claude"], False),
        (["bash", "-o", "pipefail", "-c", "claude"], False),
        (["/bin/sh", "/usr/bin/claude", "--name", "x"], False),
        (["claude"], False),
        (["node", "/usr/bin/claude"], False),
    ],
)
def test_shell_is_interactive_unless_it_runs_a_command_or_script(argv: list[str], expected: bool) -> None:
    assert process_table.is_interactive_shell(process(argv)) is expected


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["/usr/bin/claude", "--name", "codex"], {"claude"}),
        (["node", "--max-old-space-size=9", "/usr/bin/codex", "x"], {"node", "codex"}),
        (["python3.11", "/opt/agent.py"], {"python3.11", "agent.py", "agent"}),
        (["/bin/sh", "/usr/bin/claude"], {"sh", "claude"}),
        (["vim", "claude"], {"vim"}),
        (["claude working on it"], {"claude"}),
    ],
)
def test_process_names_are_the_program_and_the_script_it_runs(argv: list[str], names: set[str]) -> None:
    assert process_table.process_names(process(argv)) == names


def process(argv: list[str]) -> Process:
    """A process with this command line and an unused pid."""
    command = argv[0].split(" ")[0].rpartition("/")[2].removeprefix("-")
    return Process(2**31 - 1, 1, 1, 1, 1, "S", "0", command, tuple(argv))


# -- exit --------------------------------------------------------------------------------------------------------

SERVER, ROOT = 2**31 - 100, 2**31 - 50
"""Unused pids."""


def table_of(*members: tuple[int, int, str], foreground: int = ROOT) -> ProcessTable:
    """Members are (pid, parent pid, command line). Both pids are offsets from the pid of the pane."""
    return ProcessTable(
        Process(ROOT + pid, SERVER if not pid else ROOT + parent, ROOT + pid, ROOT, foreground, "S", "0",
                argv.split()[0], tuple(argv.split()))
        for pid, parent, argv in members
    )  # fmt: skip


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        (table_of((0, 0, "claude --name x")), False),
        (table_of((0, 0, "claude --name x"), (1, 0, "less notes"), foreground=ROOT + 1), False),
        (table_of((0, 0, "bash"), (1, 0, "claude")), False),
        (table_of((0, 0, "bash"), (1, 0, "sh -c x"), (2, 1, "node /usr/bin/claude"), foreground=ROOT + 1), False),
        # An unknown program may be the agent under a name that is not configured.
        (table_of((0, 0, "wrapper")), False),
        (table_of((0, 0, "sh -i")), True),
        (table_of((0, 0, "bash"), (1, 0, "vim claude"), foreground=ROOT + 1), True),
        (table_of((0, 0, "sh -c claude;bash"), (1, 0, "bash"), foreground=ROOT + 1), True),
    ],
)
def test_agent_has_exited_when_only_a_shell_is_left(processes: ProcessTable, expected: bool) -> None:
    pane = PaneInfo("%1", "main", "@1", ROOT, "x", False, SERVER)
    assert has_exited(CLAUDE, pane, processes) is expected


# -- in a pane ---------------------------------------------------------------------------------------------------


@needs_tmux
@pytest.mark.parametrize("source", ["proc", "ps"])
async def test_agent_is_in_the_foreground_until_a_shell_is(
    shared_tmux: TmuxServer, tmux: Tmux, source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if source == "ps":
        monkeypatch.setattr(process_table, "PROC", tmp_path)
    pane = shared_tmux.new_pane(behaviour="shell")
    shared_tmux.wait_for_agent(pane)
    assert await is_foreground(tmux, pane, CLAUDE)
    assert not await is_foreground(tmux, pane, DEFAULTS["codex"])
    await type_line(tmux, pane, "/exit")
    await eventually_not_foreground(tmux, pane, CLAUDE)
    assert not await is_foreground(tmux, shared_tmux.pane, CLAUDE)


@needs_tmux
async def test_suspended_or_background_agent_is_not_in_the_foreground(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane("bash", "--norc")
    eventually_sync(lambda: "$" in shared_tmux.capture(pane), "the shell showed its prompt")
    shared_tmux.run_tmux("send-keys", "-t", pane, f"{shared_tmux.bin / 'claude'} started", "Enter")
    await eventually_foreground(tmux, pane, CLAUDE)
    shared_tmux.run_tmux("send-keys", "-t", pane, "C-z")
    await eventually_not_foreground(tmux, pane, CLAUDE)
    shared_tmux.run_tmux("send-keys", "-t", pane, "cat", "Enter")
    eventually_sync(lambda: command(shared_tmux, pane) == "cat", "cat was in the foreground")
    assert not await is_foreground(tmux, pane, CLAUDE)
    shared_tmux.run_tmux("send-keys", "-t", pane, "C-d")
    eventually_sync(lambda: command(shared_tmux, pane) == "bash", "the shell was in the foreground again")
    shared_tmux.run_tmux("send-keys", "-t", pane, "fg", "Enter")
    await eventually_foreground(tmux, pane, CLAUDE)


@needs_tmux
async def test_shell_script_can_be_an_agent_but_a_shell_with_an_agents_name_is_not(
    shared_tmux: TmuxServer, tmux: Tmux
) -> None:
    folder = shared_tmux.home / "scripts"
    folder.mkdir()
    script = folder / "claude"
    script.write_text("#!/bin/sh\nread -r line\nread -r line\n")
    script.chmod(0o755)
    await eventually_foreground(tmux, shared_tmux.new_pane(str(script), "x"), CLAUDE)
    wrapped = shared_tmux.new_pane("sh", "-c", f"{script} x; exit 0")
    await eventually_foreground(tmux, wrapped, CLAUDE)
    named = shared_tmux.new_pane("bash", "-c", "exec -a claude bash --norc")
    eventually_sync(lambda: command(shared_tmux, named) == "claude", "a shell was named claude")
    assert not await is_foreground(tmux, named, CLAUDE)


@needs_tmux
async def test_pane_whose_process_does_not_match_its_tmux_server_has_no_agent(
    shared_tmux: TmuxServer, tmux: Tmux
) -> None:
    pane = shared_tmux.new_pane()
    shared_tmux.wait_for_agent(pane)
    pane_now = await pane_info(tmux, pane)
    processes = process_table.list_processes()
    assert find_agent_process(CLAUDE, pane_now, processes) is not None
    for other in (
        replace(pane_now, server_pid=os.getpid()),
        replace(pane_now, is_dead=True),
        replace(pane_now, pid=2**31 - 1),
        replace(pane_now, tty="/dev/pts/999999"),
    ):
        assert find_agent_process(CLAUDE, other, processes) is None
        assert not has_exited(CLAUDE, other, processes), "unknown does not count as exited"


async def pane_info(tmux: Tmux, pane: str) -> PaneInfo:
    return (await tmux.list_panes())[pane]


async def is_foreground(tmux: Tmux, pane: str, agent: CodingAgent) -> bool:
    return find_agent_process(agent, await pane_info(tmux, pane), process_table.list_processes()) is not None


async def eventually_foreground(tmux: Tmux, pane: str, agent: CodingAgent) -> None:
    await eventually(lambda: is_foreground(tmux, pane, agent), f"{agent.name} was in the foreground")


async def eventually_not_foreground(tmux: Tmux, pane: str, agent: CodingAgent) -> None:
    async def is_not_foreground() -> bool:
        return not await is_foreground(tmux, pane, agent)

    await eventually(is_not_foreground, f"{agent.name} was no longer in the foreground")


def command(server: TmuxServer, pane: str) -> str:
    return server.run_tmux("display-message", "-p", "-t", pane, "#{pane_current_command}")
