"""Whether a placement's pane may be typed into: each reason against it, and that nothing is typed then."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import chain

import pytest

from quarterdeck.core.clock import Millis, iso, system_now
from quarterdeck.tmux import process_table
from quarterdeck.tmux.coding_agents import DEFAULTS
from quarterdeck.tmux.host import this_host
from quarterdeck.tmux.keystrokes import BlockReason, TypingTarget, check_host, check_pane, take_snapshot, type_line
from quarterdeck.tmux.panes import Tmux
from quarterdeck.tmux.process_table import Process, read_process
from tests.support.eventually import eventually, eventually_sync
from tests.support.tmux import TmuxServer, needs_tmux

pytestmark = needs_tmux
CLAUDE = DEFAULTS["claude"]
HOST = this_host()


@dataclass(frozen=True)
class Placement:
    host_id: str
    user_id: int
    tmux_socket: str
    tmux_pid: int
    tmux_pane_id: str | None
    created_at: Millis | str


def placement_of(server: TmuxServer, pane: str | None) -> Placement:
    return Placement(HOST.id, HOST.user_id, server.socket, server.pid, pane, system_now())


async def check(tmux: Tmux, placement: Placement) -> TypingTarget | BlockReason:
    return check_pane(await take_snapshot(tmux), placement, HOST, CLAUDE)


async def test_line_is_typed_to_the_agent_of_a_placement(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    placement = placement_of(shared_tmux, pane)
    assert isinstance(await check(tmux, replace(placement, created_at=iso(system_now()))), TypingTarget)
    target = await check(tmux, placement)
    assert isinstance(target, TypingTarget)
    assert await type_line(tmux, target, "[1 | from:2] hello") is None

    async def has_read() -> bool:
        return shared_tmux.wait_for_agent_log(pid).lines == ["[1 | from:2] hello"]

    await eventually(has_read, "the agent read the line")


async def test_check_returns_each_reason_against_typing(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    shared_tmux.wait_for_agent(pane)
    valid = placement_of(shared_tmux, pane)
    cases: list[tuple[Placement, BlockReason]] = [
        (replace(valid, tmux_pane_id=None), "no_pane"),
        (replace(valid, host_id="another"), "other_host"),
        (replace(valid, user_id=HOST.user_id + 1), "other_host"),
        (replace(valid, tmux_pid=valid.tmux_pid + 1), "other_tmux"),
        (replace(valid, tmux_socket="/nowhere"), "other_tmux"),
        # After a reboot, this tmux server has the pid of the previous one.
        (replace(valid, created_at=system_now() - 86_400_000), "other_tmux"),
        (replace(valid, tmux_pane_id="%999999"), "pane_gone"),
        (replace(valid, tmux_pane_id=shared_tmux.pane), "not_the_agent"),
    ]
    snapshot = await take_snapshot(tmux)
    for placement, reason in cases:
        assert check_pane(snapshot, placement, HOST, CLAUDE) == reason
        # `check_host` finds the reasons that need no tmux command.
        assert check_host(placement, HOST) == (reason if reason in ("no_pane", "other_host") else None)
    assert check_pane(snapshot, valid, HOST, DEFAULTS["codex"]) == "not_the_agent"
    assert check_pane(snapshot, valid, HOST, None) == "not_the_agent"


async def test_panes_of_a_stopped_tmux_server_are_gone(tmux_server: TmuxServer) -> None:
    tmux, pane = Tmux(tmux_server.socket), tmux_server.new_pane()
    tmux_server.wait_for_agent(pane)
    placement = placement_of(tmux_server, pane)
    assert isinstance(await check(tmux, placement), TypingTarget)
    tmux_server.stop()
    assert await check(tmux, placement) == "pane_gone"
    tmux_server.start()
    new_pane = tmux_server.new_pane()
    tmux_server.wait_for_agent(new_pane)
    assert new_pane == pane
    assert await check(tmux, placement) == "other_tmux"


async def test_nothing_is_typed_to_an_agent_that_exited_after_the_check(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane(behaviour="shell")
    shared_tmux.wait_for_agent(pane)
    placement = placement_of(shared_tmux, pane)
    target = await check(tmux, placement)
    assert isinstance(target, TypingTarget)
    assert target.is_still_ready()
    assert await type_line(tmux, target, "/exit") is None

    async def has_exited() -> bool:
        return await check(tmux, placement) == "not_the_agent"

    await eventually(has_exited, "a shell was in the foreground")
    assert not target.is_still_ready()
    assert await type_line(tmux, target, "touch executed") == "not_the_agent"
    assert "touch" not in shared_tmux.capture(pane)


async def test_nothing_is_typed_to_an_agent_that_was_suspended_after_the_check(
    shared_tmux: TmuxServer, tmux: Tmux
) -> None:
    pane = shared_tmux.new_pane("bash", "--norc")
    placement = placement_of(shared_tmux, pane)
    shared_tmux.run_tmux("send-keys", "-t", pane, f"{shared_tmux.bin / 'claude'} started", "Enter")

    async def is_ready() -> bool:
        return isinstance(await check(tmux, placement), TypingTarget)

    await eventually(is_ready, "the agent was in the foreground")
    target = await check(tmux, placement)
    assert isinstance(target, TypingTarget)
    shared_tmux.run_tmux("send-keys", "-t", pane, "C-z")
    eventually_sync(lambda: not target.is_still_ready(), "the agent was in the background")
    assert await type_line(tmux, target, "touch executed") == "not_the_agent"
    assert "touch" not in shared_tmux.capture(pane)


async def test_enter_is_not_sent_if_the_agent_exits_after_the_text(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    pane = shared_tmux.new_pane(behaviour="raw")
    pid = shared_tmux.wait_for_agent(pane)
    target = await check(tmux, placement_of(shared_tmux, pane))
    assert isinstance(target, TypingTarget)
    other_process = read_process(os.getpid())
    first = [read_process(target.process.pid), read_process(target.pane.pid)]
    processes = chain(first, iter(lambda: other_process, None))

    def next_process(pid: int) -> Process | None:
        return next(processes)

    monkeypatch.setattr(process_table, "read_process", next_process)
    assert await type_line(tmux, target, "hello") == "not_the_agent"

    async def has_read() -> bool:
        return "hello" in shared_tmux.wait_for_agent_log(pid).raw

    await eventually(has_read, "the text arrived")
    assert "\r" not in shared_tmux.wait_for_agent_log(pid).raw
