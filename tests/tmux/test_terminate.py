"""Who is ended with a pane, and who never."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from quarterdeck.tmux import process_table, terminate
from quarterdeck.tmux.panes import Tmux, TmuxError
from quarterdeck.tmux.process_table import Process, ProcessTable, read_process
from quarterdeck.tmux.terminate import ContainsThisProcess, ProcessTree, send_signal, terminate_tree
from tests.support.eventually import eventually_sync
from tests.support.tmux import TmuxServer, needs_tmux

ROOT = 100


def a(pid: int, parent: int, session: int = ROOT, *, started: str = "1", state: str = "S") -> Process:
    return Process(pid, parent, session, session, session, state, started, "x", ())


def alive(family: ProcessTree, *now: Process) -> set[int]:
    return {each.pid for each in family.find_alive(ProcessTable(now))}


def test_a_family_is_the_session_and_all_that_descend_from_it() -> None:
    stranger, root, child, other_session = a(1, 0, 1), a(ROOT, 1), a(101, ROOT), a(102, 101, 102)
    left_behind = a(103, 1)
    family = ProcessTree(root)
    assert alive(family, stranger, root, child, other_session, left_behind) == {ROOT, 101, 102, 103}


def test_who_was_begun_since_the_last_look_is_found_and_who_lost_its_parent_is_not_lost() -> None:
    root, child, far = a(ROOT, 1), a(101, ROOT), a(102, 101, 102)
    family = ProcessTree(root)
    assert alive(family, root, child, far) == {ROOT, 101, 102}
    assert alive(family, a(102, 1, 102), a(104, 102, 104)) == {102, 104}


def test_whoever_has_the_pid_of_one_that_ended_is_not_of_the_family() -> None:
    root, far = a(ROOT, 1), a(102, ROOT, 102)
    family = ProcessTree(root)
    assert alive(family, root, far) == {ROOT, 102}
    # Nobody of the session was left, so its number was given out again; and the other's pid as well.
    assert alive(family, a(ROOT, 1, started="9"), a(105, ROOT, started="9"), a(102, 1, 102, started="9")) == set()


def test_one_that_has_ended_and_was_not_asked_after_is_gone() -> None:
    family = ProcessTree(a(ROOT, 1))
    assert alive(family, a(ROOT, 1, state="Z")) == set()


@pytest.mark.parametrize("by_handle", [True, False])
def test_a_signal_reaches_the_process_that_was_seen_and_nobody_who_has_its_pid(
    by_handle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not by_handle:
        monkeypatch.setattr(terminate, "_send_by_pidfd", lambda *_: False)
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert child.stdin is not None
    seen = read_process(child.pid)
    assert seen is not None
    send_signal(Process(seen.pid, 1, 1, 1, 1, "S", "another", "cat"), signal.SIGKILL)
    assert child.poll() is None
    send_signal(seen, signal.SIGKILL)
    assert child.wait(timeout=20) == -signal.SIGKILL
    child.stdin.close()
    send_signal(seen, signal.SIGKILL)


async def test_nobody_ends_itself() -> None:
    us = read_process(os.getpid())
    assert us is not None
    with pytest.raises(ContainsThisProcess):
        await terminate_tree(us)


@needs_tmux
async def test_a_pane_that_holds_whoever_would_close_it_is_left(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    monkeypatch.setattr(os, "getpid", lambda: pid)
    with pytest.raises(TmuxError, match="this very process"):
        await tmux.kill(pane)
    assert pane in shared_tmux.list_panes()


@needs_tmux
async def test_without_proc_a_pane_is_killed_all_the_same(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    pane = shared_tmux.new_pane(behaviour="family")
    pid = shared_tmux.wait_for_agent(pane)
    eventually_sync(lambda: len(shared_tmux.wait_for_agent_log(pid).children) == 2, "the agent had two children")
    family = [pid, *shared_tmux.wait_for_agent_log(pid).children]
    monkeypatch.setattr(process_table, "PROC", shared_tmux.home)
    monkeypatch.setattr(terminate, "_send_by_pidfd", lambda *_: False)
    monkeypatch.setattr(terminate, "TERM_SECONDS", 0.1)
    await tmux.kill(pane)
    monkeypatch.undo()
    assert [each for each in map(read_process, family) if each is not None and not each.is_gone] == []
    assert pane not in shared_tmux.list_panes()
