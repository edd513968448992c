"""Whether a placement's pane may be typed into: each reason against it, and nothing typed then."""

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


def placed(server: TmuxServer, pane: str | None) -> Placement:
    return Placement(HOST.id, HOST.user_id, server.socket, server.pid, pane, system_now())


async def judged(tmux: Tmux, placement: Placement) -> TypingTarget | BlockReason:
    return check_pane(await take_snapshot(tmux), placement, HOST, CLAUDE)


async def test_a_line_is_delivered_to_the_agent_of_a_placement(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    pid = shared_tmux.wait_for_agent(pane)
    placement = placed(shared_tmux, pane)
    assert isinstance(await judged(tmux, replace(placement, created_at=iso(system_now()))), TypingTarget)
    ready = await judged(tmux, placement)
    assert isinstance(ready, TypingTarget)
    assert await type_line(tmux, ready, "[1 | from:2] hello") is None

    async def has_heard() -> bool:
        return shared_tmux.wait_for_agent_log(pid).lines == ["[1 | from:2] hello"]

    await eventually(has_heard, "the agent had heard it")


async def test_each_reason_not_to_type_is_said(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane()
    shared_tmux.wait_for_agent(pane)
    good = placed(shared_tmux, pane)
    cases: list[tuple[Placement, BlockReason]] = [
        (replace(good, tmux_pane_id=None), "no_pane"),
        (replace(good, host_id="another"), "other_host"),
        (replace(good, user_id=HOST.user_id + 1), "other_host"),
        (replace(good, tmux_pid=good.tmux_pid + 1), "other_tmux"),
        (replace(good, tmux_socket="/nowhere"), "other_tmux"),
        # The machine was started again, and this tmux has the pid of the one before.
        (replace(good, created_at=system_now() - 86_400_000), "other_tmux"),
        (replace(good, tmux_pane_id="%999999"), "pane_gone"),
        (replace(good, tmux_pane_id=shared_tmux.pane), "not_the_agent"),
    ]
    looked = await take_snapshot(tmux)
    for placement, word in cases:
        assert check_pane(looked, placement, HOST, CLAUDE) == word
        # What can be told without asking a tmux is told without.
        assert check_host(placement, HOST) == (word if word in ("no_pane", "other_host") else None)
    assert check_pane(looked, good, HOST, DEFAULTS["codex"]) == "not_the_agent"
    assert check_pane(looked, good, HOST, None) == "not_the_agent"


async def test_a_tmux_server_that_has_gone_has_taken_its_panes_along(tmux_server: TmuxServer) -> None:
    tmux, pane = Tmux(tmux_server.socket), tmux_server.new_pane()
    tmux_server.wait_for_agent(pane)
    placement = placed(tmux_server, pane)
    assert isinstance(await judged(tmux, placement), TypingTarget)
    tmux_server.stop()
    assert await judged(tmux, placement) == "pane_gone"
    tmux_server.start()
    again = tmux_server.new_pane()
    tmux_server.wait_for_agent(again)
    assert again == pane
    assert await judged(tmux, placement) == "other_tmux"


async def test_an_agent_that_left_since_the_look_is_not_typed_to(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane(behaviour="shell")
    shared_tmux.wait_for_agent(pane)
    placement = placed(shared_tmux, pane)
    ready = await judged(tmux, placement)
    assert isinstance(ready, TypingTarget)
    assert ready.is_still_ready()
    assert await type_line(tmux, ready, "/exit") is None

    async def has_left() -> bool:
        return await judged(tmux, placement) == "not_the_agent"

    await eventually(has_left, "a shell was in front")
    assert not ready.is_still_ready()
    assert await type_line(tmux, ready, "touch executed") == "not_the_agent"
    assert "touch" not in shared_tmux.capture(pane)


async def test_an_agent_that_was_suspended_since_the_look_is_not_typed_to(shared_tmux: TmuxServer, tmux: Tmux) -> None:
    pane = shared_tmux.new_pane("bash", "--norc")
    placement = placed(shared_tmux, pane)
    shared_tmux.run_tmux("send-keys", "-t", pane, f"{shared_tmux.bin / 'claude'} begun", "Enter")

    async def is_there() -> bool:
        return isinstance(await judged(tmux, placement), TypingTarget)

    await eventually(is_there, "the agent was in front")
    ready = await judged(tmux, placement)
    assert isinstance(ready, TypingTarget)
    shared_tmux.run_tmux("send-keys", "-t", pane, "C-z")
    eventually_sync(lambda: not ready.is_still_ready(), "the agent was put behind")
    assert await type_line(tmux, ready, "touch executed") == "not_the_agent"
    assert "touch" not in shared_tmux.capture(pane)


async def test_an_agent_that_leaves_between_text_and_enter_is_sent_no_enter(
    shared_tmux: TmuxServer, tmux: Tmux, monkeypatch: pytest.MonkeyPatch
) -> None:
    pane = shared_tmux.new_pane(behaviour="raw")
    pid = shared_tmux.wait_for_agent(pane)
    ready = await judged(tmux, placed(shared_tmux, pane))
    assert isinstance(ready, TypingTarget)
    other = read_process(os.getpid())
    answers = chain([read_process(ready.process.pid), read_process(ready.pane.pid)], iter(lambda: other, None))

    def then_another(pid: int) -> Process | None:
        return next(answers)

    monkeypatch.setattr(process_table, "read_process", then_another)
    assert await type_line(tmux, ready, "hello") == "not_the_agent"

    async def has_heard() -> bool:
        return "hello" in shared_tmux.wait_for_agent_log(pid).raw

    await eventually(has_heard, "the text was there")
    assert "\r" not in shared_tmux.wait_for_agent_log(pid).raw
