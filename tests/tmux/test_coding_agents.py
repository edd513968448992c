"""Coding agents: how they are begun, and whether one is in front in a pane."""

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
from quarterdeck.tmux.panes import PaneInfo, Tmux
from quarterdeck.tmux.process_table import Process, ProcessTable
from tests.support.eventually import eventually, eventually_sync
from tests.support.tmux import TmuxServer, needs_tmux, type_line

CLAUDE = DEFAULTS["claude"]


@dataclass(frozen=True)
class Said:
    """What a configuration says."""

    argv: Sequence[str] | None = None
    model_argv: Sequence[str] | None = None
    prompt_argv: Sequence[str] | None = None
    processes: Sequence[str] | None = None
    exit: str | None = None


# -- how they are begun ------------------------------------------------------------------------------------------


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
def test_the_usual_agents_are_begun_as_they_should_be(name: str, model: str | None, argv: list[str]) -> None:
    assert build_argv(DEFAULTS[name], name="alice", model=model, prompt="DO IT") == argv
    assert DEFAULTS[name].exit == "/exit"


def test_a_value_is_neither_a_placeholder_nor_an_option() -> None:
    argv = build_argv(CLAUDE, name="{prompt}", model="--danger", prompt="--allow {name}\0\x1b\n{model}")
    assert argv[4:] == ["{prompt}", "--model", " --danger", " --allow {name}\n{model}"]
    inside = CodingAgent("x", ("x", "--name={name}"), processes=("x",))
    assert build_argv(inside, name="-n", prompt=None) == ["x", "--name=-n"]


def test_a_new_agent_needs_no_code() -> None:
    known = merge_coding_agents({"aider": Said(argv=["bin/aider", "--yes"], prompt_argv=["--message", "{prompt}"])})
    assert sorted(known) == ["aider", "claude", "codex", "opencode"]
    assert known["aider"].processes == ("aider",)
    assert known["aider"].exit == "/exit"
    assert build_argv(known["aider"], name="a", model="m", prompt="p") == [
        *("bin/aider", "--yes", "--model", "m", "--message", "p")
    ]


def test_what_is_said_of_a_known_agent_replaces_only_that() -> None:
    known = merge_coding_agents({"claude": Said(argv=["claude", "--continue"], exit="/quit")})
    assert known["claude"] == replace(CLAUDE, argv=("claude", "--continue"), exit="/quit")
    assert merge_coding_agents(None) == DEFAULTS


def test_an_agent_without_a_command_or_known_by_a_shell_is_refused() -> None:
    with pytest.raises(CodingAgentError, match="no argv"):
        merge_coding_agents({"aider": Said(processes=["aider"])})
    for shells in (["bash"], ["aider", "zsh"], []):
        with pytest.raises(CodingAgentError, match="no shells"):
            merge_coding_agents({"aider": Said(argv=["aider"], processes=shells)})
    with pytest.raises(CodingAgentError, match="no shells"):
        merge_coding_agents({"mine": Said(argv=["/bin/sh", "agent.sh"])})


# -- what is a prompt --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "is_one"),
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
def test_a_shell_is_a_prompt_unless_it_runs_something_of_its_own(argv: list[str], is_one: bool) -> None:
    assert process_table.is_interactive_shell(shown(argv)) is is_one


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
def test_a_process_is_known_by_its_program_or_the_file_it_runs(argv: list[str], names: set[str]) -> None:
    assert process_table.process_names(shown(argv)) == names


def shown(argv: list[str]) -> Process:
    """As `ps` shows it: of a pid that nobody has."""
    command = argv[0].split(" ")[0].rpartition("/")[2].removeprefix("-")
    return Process(2**31 - 1, 1, 1, 1, 1, "S", "0", command, tuple(argv))


# -- whether it has left -----------------------------------------------------------------------------------------

SERVER, ROOT = 2**31 - 100, 2**31 - 50
"""Pids that nobody has."""


def family(*members: tuple[int, int, str], front: int = ROOT) -> ProcessTable:
    """Each with its pid and its parent's, both counted from the pane's own, and what it was begun with."""
    return ProcessTable(
        Process(ROOT + pid, SERVER if not pid else ROOT + of, ROOT + pid, ROOT, front, "S", "0", argv.split()[0],
                tuple(argv.split()))
        for pid, of, argv in members
    )  # fmt: skip


@pytest.mark.parametrize(
    ("now", "has"),
    [
        (family((0, 0, "claude --name x")), False),
        (family((0, 0, "claude --name x"), (1, 0, "less notes"), front=ROOT + 1), False),
        (family((0, 0, "bash"), (1, 0, "claude")), False),
        (family((0, 0, "bash"), (1, 0, "sh -c x"), (2, 1, "node /usr/bin/claude"), front=ROOT + 1), False),
        # Nobody knows what it is: it may be the agent, by a name that was not configured.
        (family((0, 0, "wrapper")), False),
        (family((0, 0, "sh -i")), True),
        (family((0, 0, "bash"), (1, 0, "vim claude"), front=ROOT + 1), True),
        (family((0, 0, "sh -c claude;bash"), (1, 0, "bash"), front=ROOT + 1), True),
    ],
)
def test_an_agent_has_left_when_a_shell_is_all_that_is_there(now: ProcessTable, has: bool) -> None:
    seen = PaneInfo("%1", "main", "@1", ROOT, "x", False, SERVER)
    assert has_exited(CLAUDE, seen, now) is has


# -- in a pane ---------------------------------------------------------------------------------------------------


@needs_tmux
@pytest.mark.parametrize("by", ["proc", "ps"])
async def test_an_agent_is_in_front_until_a_shell_is(
    shared_tmux: TmuxServer, tmux: Tmux, by: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if by == "ps":
        monkeypatch.setattr(process_table, "PROC", tmp_path)
    pane = shared_tmux.new_pane(behaviour="shell")
    shared_tmux.wait_for_agent(pane)
    assert await front(tmux, pane, CLAUDE)
    assert not await front(tmux, pane, DEFAULTS["codex"])
    await type_line(tmux, pane, "/exit")
    await eventually_not(tmux, pane, CLAUDE)
    assert not await front(tmux, shared_tmux.pane, CLAUDE)


@needs_tmux
async def test_an_agent_that_was_suspended_or_put_behind_is_not_in_front(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane("bash", "--norc")
    eventually_sync(lambda: "$" in shared_tmux.capture(pane), "the shell had a prompt")
    shared_tmux.run_tmux("send-keys", "-t", pane, f"{shared_tmux.bin / 'claude'} begun", "Enter")
    await eventually_so(tmux, pane, CLAUDE)
    shared_tmux.run_tmux("send-keys", "-t", pane, "C-z")
    await eventually_not(tmux, pane, CLAUDE)
    shared_tmux.run_tmux("send-keys", "-t", pane, "cat", "Enter")
    eventually_sync(lambda: command(shared_tmux, pane) == "cat", "cat was in front")
    assert not await front(tmux, pane, CLAUDE)
    shared_tmux.run_tmux("send-keys", "-t", pane, "C-d")
    eventually_sync(lambda: command(shared_tmux, pane) == "bash", "the shell was in front again")
    shared_tmux.run_tmux("send-keys", "-t", pane, "fg", "Enter")
    await eventually_so(tmux, pane, CLAUDE)


@needs_tmux
async def test_a_shells_script_may_be_an_agent_and_a_shell_by_an_agents_name_is_none(
    shared_tmux: TmuxServer, tmux: Tmux
) -> None:
    folder = shared_tmux.home / "scripts"
    folder.mkdir()
    script = folder / "claude"
    script.write_text("#!/bin/sh\nread -r line\nread -r line\n")
    script.chmod(0o755)
    await eventually_so(tmux, shared_tmux.new_pane(str(script), "x"), CLAUDE)
    wrapped = shared_tmux.new_pane("sh", "-c", f"{script} x; exit 0")
    await eventually_so(tmux, wrapped, CLAUDE)
    named = shared_tmux.new_pane("bash", "-c", "exec -a claude bash --norc")
    eventually_sync(lambda: command(shared_tmux, named) == "claude", "a shell called itself claude")
    assert not await front(tmux, named, CLAUDE)


@needs_tmux
async def test_a_pane_whose_process_is_not_of_its_tmux_server_runs_nothing_we_know(
    shared_tmux: TmuxServer, tmux: Tmux
) -> None:
    pane = shared_tmux.new_pane()
    shared_tmux.wait_for_agent(pane)
    seen = await of(tmux, pane)
    now = process_table.list_processes()
    assert find_agent_process(CLAUDE, seen, now) is not None
    for other in (
        replace(seen, server_pid=os.getpid()),
        replace(seen, is_dead=True),
        replace(seen, pid=2**31 - 1),
        replace(seen, tty="/dev/pts/999999"),
    ):
        assert find_agent_process(CLAUDE, other, now) is None
        assert not has_exited(CLAUDE, other, now), "nobody can tell"


async def of(tmux: Tmux, pane: str) -> PaneInfo:
    return (await tmux.panes())[pane]


async def front(tmux: Tmux, pane: str, agent: CodingAgent) -> bool:
    return find_agent_process(agent, await of(tmux, pane), process_table.list_processes()) is not None


async def eventually_so(tmux: Tmux, pane: str, agent: CodingAgent) -> None:
    await eventually(lambda: front(tmux, pane, agent), f"{agent.name} was in front")


async def eventually_not(tmux: Tmux, pane: str, agent: CodingAgent) -> None:
    async def is_not() -> bool:
        return not await front(tmux, pane, agent)

    await eventually(is_not, f"{agent.name} was no longer in front")


def command(server: TmuxServer, pane: str) -> str:
    return server.run_tmux("display-message", "-p", "-t", pane, "#{pane_current_command}")
