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
from tests.support.fleeting import DIRECTOR
from tests.support.manned import Manned, manned_on
from tests.support.tmux import TmuxServer, needs_tmux, shared_tmux, tmux_server

__all__ = ["shared_tmux", "tmux_server"]
pytestmark = needs_tmux


@pytest.fixture
async def manned(sqlite_url: str, shared_tmux: TmuxServer) -> AsyncIterator[Manned]:
    async with manned_on(sqlite_url, shared_tmux) as made:
        yield made


async def heard_something(manned: Manned, member: Member, number: int = 1) -> list[str]:
    async def has() -> bool:
        return len(manned.heard(member).lines) >= number

    await eventually(has, f"{number} lines were heard")
    return manned.heard(member).lines


def envelope(message: Message) -> str:
    return f"[{message.task_id} | from:{message.from_agent_id} | {iso(message.created_at)}]"


# -- what is typed


async def test_a_message_is_typed_into_its_recipients_pane_and_the_receipt_says_when(
    engine_url: str, shared_tmux: TmuxServer
) -> None:
    async with manned_on(engine_url, shared_tmux) as manned:
        alice, bob = await manned.staffed(), await manned.staffed()
        sent = await manned.send(alice.agent_id, "tidy up\nthe \x1b[31mhold\x1b[201~\r")
        [told] = await manned.received(sent)
        assert told.notified_at is not None
        assert (told.notice, told.status_state) == (None, MessageState.INPUT_REQUIRED)
        assert told.status_timestamp == sent.status_timestamp, "a receipt moves no message"
        assert await heard_something(manned, alice) == [f"{envelope(sent)} tidy up the hold"]
        assert manned.heard(bob).lines == []
        assert dict(manned.notifier.counts) == {TYPED: 1}


async def test_what_is_longer_than_a_pane_should_be_told_is_cut_and_says_where_the_whole_is(manned: Manned) -> None:
    # A terminal that edits lines takes no longer ones; agents read theirs raw.
    alice = await manned.staffed("raw")
    manned.held = []
    sent = await manned.send(alice.agent_id, "x" * 10 * TYPED_LENGTH_MAX)
    manned.notifier.notify(manned.held)
    assert len(manned.notifier._incoming[0].text) <= TYPED_LENGTH_MAX + 1, "what is not typed is not kept"
    [told] = await manned.received(sent)
    assert told.notice is None

    async def has_come() -> bool:
        return manned.heard(alice).raw.endswith("\r")

    await eventually(has_come, "the end of it was typed")
    typed = manned.heard(alice).raw
    assert typed.count("x") == TYPED_LENGTH_MAX
    assert f"… (the whole: qd message show --task-id {sent.task_id})\x1b[201~\r" in typed


async def test_messages_to_one_pane_are_typed_one_after_the_other_in_their_order(manned: Manned) -> None:
    alice = await manned.staffed()
    sent = await asyncio.gather(*(manned.send(alice.agent_id, f"number {n}") for n in range(4)))
    told = await manned.received(*sent)
    assert all(each.notified_at is not None for each in told)
    in_order = sorted(sent, key=lambda message: message.task_id)
    assert await heard_something(manned, alice, 4) == [f"{envelope(each)} {each.text}" for each in in_order]


# -- what is not


async def test_nothing_is_typed_at_the_shell_that_an_agent_has_left_behind(manned: Manned) -> None:
    alice = await manned.staffed("shell")
    first = await manned.send(alice.agent_id, "hello")
    await manned.received(first)
    manned.tmux.ask("send-keys", "-t", manned.panes[alice.agent_id], "-l", "/exit")
    manned.tmux.ask("send-keys", "-t", manned.panes[alice.agent_id], "Enter")

    async def has_prompt() -> bool:
        return manned.tmux.shows(manned.panes[alice.agent_id]).rstrip().endswith("$")

    await eventually(has_prompt, "a shell was left")
    trap = manned.tmux.home / "executed"
    [told] = await manned.received(await manned.send(alice.agent_id, f"; touch {trap}"))
    assert (told.notice, told.notified_at) == (NoticeFailure.NOT_THE_AGENT, None)
    assert not trap.exists()
    assert "touch" not in manned.tmux.shows(manned.panes[alice.agent_id])


async def test_what_makes_an_agent_leave_is_the_last_thing_that_is_typed_to_it(manned: Manned) -> None:
    """Each notice is looked at anew: what follows the first would be executed by the shell behind the agent."""
    alice = await manned.staffed("shell")
    trap = manned.tmux.home / "executed too"
    leaves = manned.send(alice.agent_id, "leave", from_agent_id=DIRECTOR)
    manned.tmux.ask("send-keys", "-t", manned.panes[alice.agent_id], "-l", "/exit")
    manned.tmux.ask("send-keys", "-t", manned.panes[alice.agent_id], "Enter")
    sent = await asyncio.gather(leaves, *(manned.send(alice.agent_id, f"; touch '{trap}'") for _ in range(3)))
    await manned.received(*sent)
    assert not trap.exists()


async def test_nothing_is_typed_into_a_pane_of_the_same_name_in_another_tmux_server(
    sqlite_url: str, tmux_server: TmuxServer
) -> None:
    async with manned_on(sqlite_url, tmux_server) as manned:
        alice = await manned.staffed()
        tmux_server.stop()
        tmux_server.start()
        strangers = tmux_server.new_pane()
        tmux_server.ready(strangers)
        assert manned.panes[alice.agent_id] in tmux_server.panes(), "the id is given out again"
        [told] = await manned.received(await manned.send(alice.agent_id))
        assert told.notice is NoticeFailure.OTHER_TMUX
        assert tmux_server.heard_by(tmux_server.pid_of(strangers)).lines == []


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
    manned: Manned, said: dict[str, str | int], notice: NoticeFailure
) -> None:
    pane_id = manned.tmux.new_pane()
    pid = manned.tmux.ready(pane_id)
    alice = await manned.member(manned.at(pane_id, **said))
    [told] = await manned.received(await manned.send(alice.agent_id))
    assert (told.notice, told.notified_at) == (notice, None)
    assert manned.tmux.heard_by(pid).lines == []


async def test_one_without_a_pane_is_told_nothing_and_nor_is_one_who_has_left(manned: Manned) -> None:
    alice = (await manned.register()).member
    pending = await manned.member(manned.at(None))
    told = await manned.received(await manned.send(alice.agent_id), await manned.send(pending.agent_id))
    assert [each.notice for each in told] == [NoticeFailure.NO_PANE] * 2
    gone = await manned.staffed()
    # It leaves between the commit and the look.
    manned.held = []
    sent = await manned.send(gone.agent_id)
    await manned.deregister(gone.agent_id)
    manned.notifier.notify(manned.held)
    assert [each.notice for each in await manned.received(sent)] == [NoticeFailure.NO_PANE]
    assert manned.heard(gone).lines == []


async def test_what_waits_to_be_typed_is_not_typed_once_its_recipient_has_left(manned: Manned) -> None:
    """Its pane may be another's by then."""
    alice = await manned.staffed()
    async with lock_pane(manned.tmux.socket, manned.panes[alice.agent_id], 5):
        sent = [await manned.send(alice.agent_id, f"number {n}") for n in range(3)]
        await manned.deregister(alice.agent_id)
    _, *told = await manned.received(*sent)
    assert [(each.notice, each.notified_at) for each in told] == [(NoticeFailure.NO_PANE, None)] * 2
    assert len(manned.heard(alice).lines) <= 1, "only what was about to be typed"


async def test_what_was_canceled_or_acknowledged_before_it_could_be_typed_is_not_typed(manned: Manned) -> None:
    alice = await manned.staffed()
    async with lock_pane(manned.tmux.socket, manned.panes[alice.agent_id], 5):
        sent = [await manned.send(alice.agent_id, f"number {n}") for n in range(3)]
        await manned.ack(sent[1].task_id, alice.agent_id)
        await manned.cancel(sent[2].task_id, DIRECTOR)
    first, *told = await manned.received(*sent)
    assert first.notified_at is not None
    assert [(each.notice, each.notified_at) for each in told] == [(NoticeFailure.ENDED, None)] * 2
    assert await heard_something(manned, alice) == [f"{envelope(sent[0])} number 0"]


# -- when things are slow, or end


async def test_a_tmux_server_that_stands_still_delays_nobody_elsewhere(
    sqlite_url: str, shared_tmux: TmuxServer, tmux_server: TmuxServer
) -> None:
    async with manned_on(sqlite_url, shared_tmux, notice_seconds=2.0) as manned:
        alice = await manned.staffed()
        stuck = tmux_server.new_pane()
        tmux_server.ready(stuck)
        bob = await manned.member(manned.at(stuck, tmux_server))
        os.kill(tmux_server.pid, signal.SIGSTOP)
        try:
            late = await manned.send(bob.agent_id)
            [told] = await manned.received(await manned.send(alice.agent_id))
            assert told.notice is None
            assert (await manned.now(late)).notice is None, "its own time is not over"
            [failed] = await manned.received(late)
            assert failed.notice is NoticeFailure.FAILED
        finally:
            os.kill(tmux_server.pid, signal.SIGCONT)


async def test_a_server_that_stops_finishes_what_was_delivered_and_takes_nothing_more(manned: Manned) -> None:
    alice = await manned.staffed()
    sent = await manned.send(alice.agent_id)
    assert len(manned.notifier) == 1
    await manned.notifier.stop()
    assert len(manned.notifier) == 0
    assert (await manned.now(sent)).notified_at is not None
    late = await manned.send(alice.agent_id)
    assert len(manned.notifier) == 0
    told = await manned.now(late)
    assert (told.notified_at, told.notice) == (None, None)


async def test_a_server_that_has_no_time_left_cuts_its_notices_and_ends(
    sqlite_url: str, tmux_server: TmuxServer
) -> None:
    async with manned_on(sqlite_url, tmux_server, grace_seconds=0.1) as manned:
        alice = await manned.staffed()
        os.kill(tmux_server.pid, signal.SIGSTOP)
        try:
            await manned.send(alice.agent_id)
            async with asyncio.timeout(3):
                await manned.notifier.stop()
        finally:
            os.kill(tmux_server.pid, signal.SIGCONT)
