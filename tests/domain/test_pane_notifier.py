"""Notices in panes of a real tmux: what is typed, what is not, and the receipts that say so."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from quarterdeck.core.clock import iso
from quarterdeck.domain.fleets.model.rows import Member, Message, MessageState, NoticeFailure
from quarterdeck.domain.fleets.pane_notifier import TYPED, TYPED_LENGTH_MAX
from quarterdeck.tmux.pane_lock import lock_pane
from tests.support.eventually import eventually
from tests.support.fleets import DIRECTOR
from tests.support.pane_fleet import PaneFleetHarness, open_pane_fleet
from tests.support.tmux import TmuxServer, needs_tmux, shared_tmux, tmux_server

__all__ = ["shared_tmux", "tmux_server"]
pytestmark = needs_tmux


@pytest.fixture
async def pane_fleet(sqlite_url: str, shared_tmux: TmuxServer) -> AsyncIterator[PaneFleetHarness]:
    async with open_pane_fleet(sqlite_url, shared_tmux) as made:
        yield made


async def heard_something(manned: PaneFleetHarness, member: Member, number: int = 1) -> list[str]:
    async def has() -> bool:
        return len(manned.agent_log(member).lines) >= number

    await eventually(has, f"{number} lines were heard")
    return manned.agent_log(member).lines


def envelope(message: Message) -> str:
    return f"[{message.task_id} | from:{message.from_agent_id} | {iso(message.created_at)}]"


# -- what is typed


async def test_a_message_is_typed_into_its_recipients_pane_and_the_receipt_says_when(
    engine_url: str, shared_tmux: TmuxServer
) -> None:
    async with open_pane_fleet(engine_url, shared_tmux) as manned:
        alice, bob = await manned.register_with_agent(), await manned.register_with_agent()
        sent = await manned.send(alice.agent_id, "tidy up\nthe \x1b[31mhold\x1b[201~\r")
        [told] = await manned.wait_for_receipts(sent)
        assert told.notified_at is not None
        assert (told.notice, told.status_state) == (None, MessageState.INPUT_REQUIRED)
        assert told.status_timestamp == sent.status_timestamp, "a receipt moves no message"
        assert await heard_something(manned, alice) == [f"{envelope(sent)} tidy up the hold"]
        assert manned.agent_log(bob).lines == []
        assert dict(manned.notifier.counts) == {TYPED: 1}


async def test_what_is_longer_than_a_pane_should_be_told_is_cut_and_says_where_the_whole_is(
    pane_fleet: PaneFleetHarness,
) -> None:
    # A terminal that edits lines takes no longer ones; agents read theirs raw.
    alice = await pane_fleet.register_with_agent("raw")
    pane_fleet.held_back = []
    sent = await pane_fleet.send(alice.agent_id, "x" * 10 * TYPED_LENGTH_MAX)
    pane_fleet.notifier.notify(pane_fleet.held_back)
    assert len(pane_fleet.notifier._incoming[0].text) <= TYPED_LENGTH_MAX + 1, "what is not typed is not kept"
    [told] = await pane_fleet.wait_for_receipts(sent)
    assert told.notice is None

    async def has_come() -> bool:
        return pane_fleet.agent_log(alice).raw.endswith("\r")

    await eventually(has_come, "the end of it was typed")
    typed = pane_fleet.agent_log(alice).raw
    assert typed.count("x") == TYPED_LENGTH_MAX
    assert f"… (the whole: qd message show --task-id {sent.task_id})\x1b[201~\r" in typed


async def test_messages_to_one_pane_are_typed_one_after_the_other_in_their_order(pane_fleet: PaneFleetHarness) -> None:
    alice = await pane_fleet.register_with_agent()
    sent = await asyncio.gather(*(pane_fleet.send(alice.agent_id, f"number {n}") for n in range(4)))
    told = await pane_fleet.wait_for_receipts(*sent)
    assert all(each.notified_at is not None for each in told)
    in_order = sorted(sent, key=lambda message: message.task_id)
    assert await heard_something(pane_fleet, alice, 4) == [f"{envelope(each)} {each.text}" for each in in_order]


# -- what is not


async def test_nothing_is_typed_at_the_shell_that_an_agent_has_left_behind(pane_fleet: PaneFleetHarness) -> None:
    alice = await pane_fleet.register_with_agent("shell")
    first = await pane_fleet.send(alice.agent_id, "hello")
    await pane_fleet.wait_for_receipts(first)
    pane_fleet.tmux.run_tmux("send-keys", "-t", pane_fleet.panes[alice.agent_id], "-l", "/exit")
    pane_fleet.tmux.run_tmux("send-keys", "-t", pane_fleet.panes[alice.agent_id], "Enter")

    async def has_prompt() -> bool:
        return pane_fleet.tmux.capture(pane_fleet.panes[alice.agent_id]).rstrip().endswith("$")

    await eventually(has_prompt, "a shell was left")
    trap = pane_fleet.tmux.home / "executed"
    [told] = await pane_fleet.wait_for_receipts(await pane_fleet.send(alice.agent_id, f"; touch {trap}"))
    assert (told.notice, told.notified_at) == (NoticeFailure.NOT_THE_AGENT, None)
    assert not trap.exists()
    assert "touch" not in pane_fleet.tmux.capture(pane_fleet.panes[alice.agent_id])


async def test_what_makes_an_agent_leave_is_the_last_thing_that_is_typed_to_it(pane_fleet: PaneFleetHarness) -> None:
    """Each notice is looked at anew: what follows the first would be executed by the shell behind the agent."""
    alice = await pane_fleet.register_with_agent("shell")
    trap = pane_fleet.tmux.home / "executed too"
    leaves = pane_fleet.send(alice.agent_id, "leave", from_agent_id=DIRECTOR)
    pane_fleet.tmux.run_tmux("send-keys", "-t", pane_fleet.panes[alice.agent_id], "-l", "/exit")
    pane_fleet.tmux.run_tmux("send-keys", "-t", pane_fleet.panes[alice.agent_id], "Enter")
    sent = await asyncio.gather(leaves, *(pane_fleet.send(alice.agent_id, f"; touch '{trap}'") for _ in range(3)))
    await pane_fleet.wait_for_receipts(*sent)
    assert not trap.exists()


async def test_nothing_is_typed_into_a_pane_of_the_same_name_in_another_tmux_server(
    sqlite_url: str, tmux_server: TmuxServer
) -> None:
    async with open_pane_fleet(sqlite_url, tmux_server) as manned:
        alice = await manned.register_with_agent()
        tmux_server.stop()
        tmux_server.start()
        strangers = tmux_server.new_pane()
        tmux_server.wait_for_agent(strangers)
        assert manned.panes[alice.agent_id] in tmux_server.list_panes(), "the id is given out again"
        [told] = await manned.wait_for_receipts(await manned.send(alice.agent_id))
        assert told.notice is NoticeFailure.OTHER_TMUX
        assert tmux_server.wait_for_agent_log(tmux_server.pid_of(strangers)).lines == []


@pytest.mark.parametrize(
    ("said", "notice"),
    [
        ({"host_id": "elsewhere"}, NoticeFailure.OTHER_HOST),
        ({"user_id": os.getuid() + 1}, NoticeFailure.OTHER_HOST),
        ({"pane_id": "%999"}, NoticeFailure.PANE_GONE),
        ({"coding_agent": "codex"}, NoticeFailure.NOT_THE_AGENT),
        ({"coding_agent": "nobody-knows"}, NoticeFailure.NOT_THE_AGENT),
        ({"tmux_pid": 1}, NoticeFailure.OTHER_TMUX),
        ({"socket": "/nowhere/at/all"}, NoticeFailure.PANE_GONE),
    ],
)
async def test_a_receipt_says_why_nothing_was_typed(
    pane_fleet: PaneFleetHarness, said: dict[str, str | int], notice: NoticeFailure
) -> None:
    pane_id = pane_fleet.tmux.new_pane()
    pid = pane_fleet.tmux.wait_for_agent(pane_id)
    alice = await pane_fleet.register_in_pane(pane_fleet.pane_location(pane_id, **said))
    [told] = await pane_fleet.wait_for_receipts(await pane_fleet.send(alice.agent_id))
    assert (told.notice, told.notified_at) == (notice, None)
    assert pane_fleet.tmux.wait_for_agent_log(pid).lines == []


async def test_one_without_a_pane_is_told_nothing_and_nor_is_one_who_has_left(pane_fleet: PaneFleetHarness) -> None:
    alice = (await pane_fleet.register()).member
    pending = await pane_fleet.register_in_pane(pane_fleet.pane_location(None))
    told = await pane_fleet.wait_for_receipts(
        await pane_fleet.send(alice.agent_id), await pane_fleet.send(pending.agent_id)
    )
    assert [each.notice for each in told] == [NoticeFailure.NO_PANE] * 2
    gone = await pane_fleet.register_with_agent()
    # It leaves between the commit and the look.
    pane_fleet.held_back = []
    sent = await pane_fleet.send(gone.agent_id)
    await pane_fleet.deregister(gone.agent_id)
    pane_fleet.notifier.notify(pane_fleet.held_back)
    assert [each.notice for each in await pane_fleet.wait_for_receipts(sent)] == [NoticeFailure.NO_PANE]
    assert pane_fleet.agent_log(gone).lines == []


async def test_what_waits_to_be_typed_is_not_typed_once_its_recipient_has_left(pane_fleet: PaneFleetHarness) -> None:
    """Its pane may be another's by then."""
    alice = await pane_fleet.register_with_agent()
    async with lock_pane(pane_fleet.tmux.socket, pane_fleet.panes[alice.agent_id], 5):
        sent = [await pane_fleet.send(alice.agent_id, f"number {n}") for n in range(3)]
        await pane_fleet.deregister(alice.agent_id)
    _, *told = await pane_fleet.wait_for_receipts(*sent)
    assert [(each.notice, each.notified_at) for each in told] == [(NoticeFailure.NO_PANE, None)] * 2
    assert len(pane_fleet.agent_log(alice).lines) <= 1, "only what was about to be typed"


async def test_what_was_canceled_or_acknowledged_before_it_could_be_typed_is_not_typed(
    pane_fleet: PaneFleetHarness,
) -> None:
    alice = await pane_fleet.register_with_agent()
    async with lock_pane(pane_fleet.tmux.socket, pane_fleet.panes[alice.agent_id], 5):
        sent = [await pane_fleet.send(alice.agent_id, f"number {n}") for n in range(3)]
        await pane_fleet.ack(sent[1].task_id, alice.agent_id)
        await pane_fleet.cancel(sent[2].task_id, DIRECTOR)
    first, *told = await pane_fleet.wait_for_receipts(*sent)
    assert first.notified_at is not None
    assert [(each.notice, each.notified_at) for each in told] == [(NoticeFailure.ENDED, None)] * 2
    assert await heard_something(pane_fleet, alice) == [f"{envelope(sent[0])} number 0"]


# -- when things are slow, or end


async def test_a_tmux_server_that_stands_still_delays_nobody_elsewhere(
    sqlite_url: str, shared_tmux: TmuxServer, tmux_server: TmuxServer
) -> None:
    async with open_pane_fleet(sqlite_url, shared_tmux, notice_seconds=2.0) as manned:
        alice = await manned.register_with_agent()
        stuck = tmux_server.new_pane()
        tmux_server.wait_for_agent(stuck)
        bob = await manned.register_in_pane(manned.pane_location(stuck, tmux_server))
        os.kill(tmux_server.pid, signal.SIGSTOP)
        try:
            late = await manned.send(bob.agent_id)
            [told] = await manned.wait_for_receipts(await manned.send(alice.agent_id))
            assert told.notice is None
            assert (await manned.read_message(late)).notice is None, "its own time is not over"
            [failed] = await manned.wait_for_receipts(late)
            assert failed.notice is NoticeFailure.FAILED
        finally:
            os.kill(tmux_server.pid, signal.SIGCONT)


async def test_a_server_that_stops_finishes_what_was_delivered_and_takes_nothing_more(
    pane_fleet: PaneFleetHarness,
) -> None:
    alice = await pane_fleet.register_with_agent()
    sent = await pane_fleet.send(alice.agent_id)
    assert len(pane_fleet.notifier) == 1
    await pane_fleet.notifier.stop()
    assert len(pane_fleet.notifier) == 0
    assert (await pane_fleet.read_message(sent)).notified_at is not None
    late = await pane_fleet.send(alice.agent_id)
    assert len(pane_fleet.notifier) == 0
    told = await pane_fleet.read_message(late)
    assert (told.notified_at, told.notice) == (None, None)


async def test_a_server_that_has_no_time_left_cuts_its_notices_and_ends(
    sqlite_url: str, tmux_server: TmuxServer
) -> None:
    async with open_pane_fleet(sqlite_url, tmux_server, grace_seconds=0.1) as manned:
        alice = await manned.register_with_agent()
        os.kill(tmux_server.pid, signal.SIGSTOP)
        try:
            await manned.send(alice.agent_id)
            async with asyncio.timeout(3):
                await manned.notifier.stop()
        finally:
            os.kill(tmux_server.pid, signal.SIGCONT)
