"""Which processes end with a pane, and which never do."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from quarterdeck.tmux import process_table, terminate
from quarterdeck.tmux.errors import TmuxError
from quarterdeck.tmux.panes import Tmux
from quarterdeck.tmux.process_table import Process, ProcessTable, read_process
from quarterdeck.tmux.terminate import ContainsThisProcess, ProcessTree, send_signal, terminate_tree
from tests.support.eventually import eventually_sync
from tests.support.tmux import TmuxServer, needs_tmux

ROOT = 100


def make_process(pid: int, parent: int, session: int = ROOT, *, started: str = "1", state: str = "S") -> Process:
    return Process(pid, parent, session, session, session, state, started, "x", ())


def alive(tree: ProcessTree, *processes: Process) -> set[int]:
    return {process.pid for process in tree.find_alive(ProcessTable(processes))}


def test_process_tree_is_the_session_and_all_descendants() -> None:
    unrelated, root, child = make_process(1, 0, 1), make_process(ROOT, 1), make_process(101, ROOT)
    other_session, orphan = make_process(102, 101, 102), make_process(103, 1)
    tree = ProcessTree(root)
    assert alive(tree, unrelated, root, child, other_session, orphan) == {ROOT, 101, 102, 103}


def test_process_tree_keeps_orphans_and_finds_new_descendants() -> None:
    root, child, grandchild = make_process(ROOT, 1), make_process(101, ROOT), make_process(102, 101, 102)
    tree = ProcessTree(root)
    assert alive(tree, root, child, grandchild) == {ROOT, 101, 102}
    assert alive(tree, make_process(102, 1, 102), make_process(104, 102, 104)) == {102, 104}


def test_process_with_a_reused_pid_is_not_in_the_tree() -> None:
    root, child = make_process(ROOT, 1), make_process(102, ROOT, 102)
    tree = ProcessTree(root)
    assert alive(tree, root, child) == {ROOT, 102}
    # The session is empty, so its id and the pids are reused.
    reused = [(ROOT, 1, ROOT), (105, ROOT, ROOT), (102, 1, 102)]
    assert alive(tree, *(make_process(*ids, started="9") for ids in reused)) == set()


def test_zombie_counts_as_gone() -> None:
    tree = ProcessTree(make_process(ROOT, 1))
    assert alive(tree, make_process(ROOT, 1, state="Z")) == set()


@pytest.mark.parametrize("by_handle", [True, False])
def test_signal_reaches_the_observed_process_and_no_process_with_a_reused_pid(
    by_handle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_handle:
        monkeypatch.setattr(terminate, "_send_by_pidfd", lambda *_: False)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    process = read_process(child.pid)
    assert process is not None
    send_signal(Process(process.pid, 1, 1, 1, 1, "S", "another", "cat"), signal.SIGKILL)
    assert child.poll() is None
    send_signal(process, signal.SIGKILL)
    assert child.wait(timeout=20) == -signal.SIGKILL
    child.stdin.close()
    send_signal(process, signal.SIGKILL)


async def test_tree_of_this_process_is_not_terminated() -> None:
    this_process = read_process(os.getpid())
    assert this_process is not None
    with pytest.raises(ContainsThisProcess):
        await terminate_tree(this_process)


@needs_tmux
async def test_pane_that_contains_this_process_is_not_killed(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    monkeypatch.setattr(os, "getpid", lambda: pid)
    with pytest.raises(TmuxError, match="contains this process"):
        await tmux.kill(pane)
    assert pane in shared_tmux.list_panes()


@needs_tmux
async def test_pane_is_killed_without_procfs(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    pane = shared_tmux.new_pane(behaviour="family")
    pid = shared_tmux.wait_for_agent(pane)
    eventually_sync(lambda: len(shared_tmux.wait_for_agent_log(pid).children) == 2, "the agent had two children")
    pids = [pid, *shared_tmux.wait_for_agent_log(pid).children]
    monkeypatch.setattr(process_table, "PROC", shared_tmux.home)
    monkeypatch.setattr(terminate, "_send_by_pidfd", lambda *_: False)
    monkeypatch.setattr(terminate, "TERM_SECONDS", 0.1)
    await tmux.kill(pane)
    monkeypatch.undo()
    assert [process for process in map(read_process, pids) if process is not None and not process.is_gone] == []
    assert pane not in shared_tmux.list_panes()
