"""Notices in the panes of a real tmux server: which are typed, which are not, and their receipts."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import pytest

from quarterdeck.core.clock import iso
from quarterdeck.domain.fleets.background.pane_notifier import TYPED, TYPED_LENGTH_MAX
from quarterdeck.domain.fleets.model.rows import Member, Message, MessageState, NoticeFailure
from quarterdeck.tmux.pane_lock import lock_pane
from tests.support.eventually import eventually
from tests.support.fleets import DIRECTOR
from tests.support.pane_fleet import PaneFleetHarness, open_pane_fleet
from tests.support.tmux import TmuxServer, needs_tmux, shared_tmux, tmux_server

__all__ = ["shared_tmux", "tmux_server"]
pytestmark = needs_tmux


@pytest.fixture
async def pane_fleet(sqlite_url: str, shared_tmux: TmuxServer) -> AsyncIterator[PaneFleetHarness]:
    async with open_pane_fleet(sqlite_url, shared_tmux) as harness:
        yield harness


async def wait_for_lines(pane_fleet: PaneFleetHarness, member: Member, number: int = 1) -> list[str]:
    async def has_lines() -> bool:
        return len(pane_fleet.agent_log(member).lines) >= number

    await eventually(has_lines, f"the agent received {number} lines")
    return pane_fleet.agent_log(member).lines


def envelope(message: Message) -> str:
    return f"[{message.task_id} | from:{message.from_agent_id} | {iso(message.created_at)}]"


# -- notices that are typed


async def test_message_is_typed_into_the_recipients_pane_and_gets_a_receipt(
    engine_url: str, shared_tmux: TmuxServer
) -> None:
    async with open_pane_fleet(engine_url, shared_tmux) as pane_fleet:
        alice, bob = await pane_fleet.register_with_agent(), await pane_fleet.register_with_agent()
        sent = await pane_fleet.send(alice.agent_id, "tidy up\nthe \x1b[31mhold\x1b[201~\r")
        [received] = await pane_fleet.wait_for_receipts(sent)
        assert received.notified_at is not None
        assert (received.notice, received.status_state) == (None, MessageState.INPUT_REQUIRED)
        assert received.status_timestamp == sent.status_timestamp, "a receipt does not change the message status"
        assert await wait_for_lines(pane_fleet, alice) == [f"{envelope(sent)} tidy up the hold"]
        assert pane_fleet.agent_log(bob).lines == []
        assert dict(pane_fleet.notifier.counts) == {TYPED: 1}


async def test_long_notice_is_truncated_and_names_the_command_for_the_full_message(
    pane_fleet: PaneFleetHarness,
) -> None:
    # A terminal in line mode limits the length of a line. Agents read in raw mode.
    alice = await pane_fleet.register_with_agent("raw")
    pane_fleet.held_back = []
    sent = await pane_fleet.send(alice.agent_id, "x" * 10 * TYPED_LENGTH_MAX)
    pane_fleet.notifier.notify(pane_fleet.held_back)
    assert len(pane_fleet.notifier._incoming[0].text) <= TYPED_LENGTH_MAX + 1, "the rest of the text is not kept"
    [received] = await pane_fleet.wait_for_receipts(sent)
    assert received.notice is None

    async def has_ended() -> bool:
        return pane_fleet.agent_log(alice).raw.endswith("\r")

    await eventually(has_ended, "the end of the notice was typed")
    typed = pane_fleet.agent_log(alice).raw
    assert typed.count("x") == TYPED_LENGTH_MAX
    assert f"… (full message: qd message show --task-id {sent.task_id})\x1b[201~\r" in typed


async def test_messages_to_one_pane_are_typed_in_order(pane_fleet: PaneFleetHarness) -> None:
    alice = await pane_fleet.register_with_agent()
    sent = await asyncio.gather(*(pane_fleet.send(alice.agent_id, f"number {n}") for n in range(4)))
    received = await pane_fleet.wait_for_receipts(*sent)
    assert all(message.notified_at is not None for message in received)
    in_order = sorted(sent, key=lambda message: message.task_id)
    assert await wait_for_lines(pane_fleet, alice, 4) == [f"{envelope(message)} {message.text}" for message in in_order]


# -- notices that are not typed


async def test_nothing_is_typed_into_a_shell_after_the_agent_exits(pane_fleet: PaneFleetHarness) -> None:
    alice = await pane_fleet.register_with_agent("shell")
    first = await pane_fleet.send(alice.agent_id, "hello")
    await pane_fleet.wait_for_receipts(first)
    pane_fleet.tmux.run_tmux("send-keys", "-t", pane_fleet.panes[alice.agent_id], "-l", "/exit")
    pane_fleet.tmux.run_tmux("send-keys", "-t", pane_fleet.panes[alice.agent_id], "Enter")

    async def has_prompt() -> bool:
        return pane_fleet.tmux.capture(pane_fleet.panes[alice.agent_id]).rstrip().endswith("$")

    await eventually(has_prompt, "the pane shows a shell prompt")
    trap = pane_fleet.tmux.home / "executed"
    [received] = await pane_fleet.wait_for_receipts(await pane_fleet.send(alice.agent_id, f"; touch {trap}"))
    assert (received.notice, received.notified_at) == (NoticeFailure.NOT_THE_AGENT, None)
    assert not trap.exists()
    assert "touch" not in pane_fleet.tmux.capture(pane_fleet.panes[alice.agent_id])


async def test_no_queued_notice_is_typed_after_the_agent_exits(pane_fleet: PaneFleetHarness) -> None:
    # The pane is checked before every notice: the shell behind the agent would execute the notices after the first.
    alice = await pane_fleet.register_with_agent("shell")
    trap = pane_fleet.tmux.home / "executed too"
    leaving = pane_fleet.send(alice.agent_id, "leave", from_agent_id=DIRECTOR)
    pane_fleet.tmux.run_tmux("send-keys", "-t", pane_fleet.panes[alice.agent_id], "-l", "/exit")
    pane_fleet.tmux.run_tmux("send-keys", "-t", pane_fleet.panes[alice.agent_id], "Enter")
    sent = await asyncio.gather(leaving, *(pane_fleet.send(alice.agent_id, f"; touch '{trap}'") for _ in range(3)))
    await pane_fleet.wait_for_receipts(*sent)
    assert not trap.exists()


async def test_nothing_is_typed_into_a_reused_pane_id_of_another_tmux_server(
    sqlite_url: str, tmux_server: TmuxServer
) -> None:
    async with open_pane_fleet(sqlite_url, tmux_server) as pane_fleet:
        alice = await pane_fleet.register_with_agent()
        tmux_server.stop()
        tmux_server.start()
        new_pane = tmux_server.new_pane()
        tmux_server.wait_for_agent(new_pane)
        assert pane_fleet.panes[alice.agent_id] in tmux_server.list_panes(), "tmux reuses the pane id"
        [received] = await pane_fleet.wait_for_receipts(await pane_fleet.send(alice.agent_id))
        assert received.notice is NoticeFailure.OTHER_TMUX
        assert tmux_server.wait_for_agent_log(tmux_server.pid_of(new_pane)).lines == []


@pytest.mark.parametrize(
    ("location_fields", "notice"),
    [
        ({"host_id": "other-host"}, NoticeFailure.OTHER_HOST),
        ({"user_id": os.getuid() + 1}, NoticeFailure.OTHER_HOST),
        ({"pane_id": "%999"}, NoticeFailure.PANE_GONE),
        ({"coding_agent": "codex"}, NoticeFailure.NOT_THE_AGENT),
        ({"coding_agent": "unknown-agent"}, NoticeFailure.NOT_THE_AGENT),
        ({"tmux_pid": 1}, NoticeFailure.OTHER_TMUX),
        ({"socket": "/no/such/socket"}, NoticeFailure.PANE_GONE),
    ],
)
async def test_receipt_names_the_reason_when_nothing_is_typed(
    pane_fleet: PaneFleetHarness, location_fields: dict[str, str | int], notice: NoticeFailure
) -> None:
    pane_id = pane_fleet.tmux.new_pane()
    pid = pane_fleet.tmux.wait_for_agent(pane_id)
    alice = await pane_fleet.register_in_pane(pane_fleet.pane_location(pane_id, **location_fields))
    [received] = await pane_fleet.wait_for_receipts(await pane_fleet.send(alice.agent_id))
    assert (received.notice, received.notified_at) == (notice, None)
    assert pane_fleet.tmux.wait_for_agent_log(pid).lines == []


async def test_members_without_a_pane_and_deregistered_members_get_no_notice(pane_fleet: PaneFleetHarness) -> None:
    alice = (await pane_fleet.register()).member
    pending = await pane_fleet.register_in_pane(pane_fleet.pane_location(None))
    received = await pane_fleet.wait_for_receipts(
        await pane_fleet.send(alice.agent_id), await pane_fleet.send(pending.agent_id)
    )
    assert [message.notice for message in received] == [NoticeFailure.NO_PANE] * 2
    deregistered = await pane_fleet.register_with_agent()
    # The member deregisters between the commit and the notice.
    pane_fleet.held_back = []
    sent = await pane_fleet.send(deregistered.agent_id)
    await pane_fleet.deregister(deregistered.agent_id)
    pane_fleet.notifier.notify(pane_fleet.held_back)
    assert [message.notice for message in await pane_fleet.wait_for_receipts(sent)] == [NoticeFailure.NO_PANE]
    assert pane_fleet.agent_log(deregistered).lines == []


async def test_queued_notices_are_not_typed_after_the_recipient_deregisters(pane_fleet: PaneFleetHarness) -> None:
    # Another member may use the pane by then.
    alice = await pane_fleet.register_with_agent()
    async with lock_pane(pane_fleet.tmux.socket, pane_fleet.panes[alice.agent_id], 5):
        sent = [await pane_fleet.send(alice.agent_id, f"number {n}") for n in range(3)]
        await pane_fleet.deregister(alice.agent_id)
    _, *received = await pane_fleet.wait_for_receipts(*sent)
    assert [(message.notice, message.notified_at) for message in received] == [(NoticeFailure.NO_PANE, None)] * 2
    assert len(pane_fleet.agent_log(alice).lines) <= 1, "only a notice that was already being typed"


async def test_canceled_and_acknowledged_messages_are_not_typed(pane_fleet: PaneFleetHarness) -> None:
    alice = await pane_fleet.register_with_agent()
    async with lock_pane(pane_fleet.tmux.socket, pane_fleet.panes[alice.agent_id], 5):
        sent = [await pane_fleet.send(alice.agent_id, f"number {n}") for n in range(3)]
        await pane_fleet.ack(sent[1].task_id, alice.agent_id)
        await pane_fleet.cancel(sent[2].task_id, DIRECTOR)
    first, *received = await pane_fleet.wait_for_receipts(*sent)
    assert first.notified_at is not None
    assert [(message.notice, message.notified_at) for message in received] == [(NoticeFailure.ENDED, None)] * 2
    assert await wait_for_lines(pane_fleet, alice) == [f"{envelope(sent[0])} number 0"]


# -- a slow tmux server, and shutdown


async def test_stopped_tmux_server_does_not_delay_other_tmux_servers(
    sqlite_url: str, shared_tmux: TmuxServer, tmux_server: TmuxServer
) -> None:
    async with open_pane_fleet(sqlite_url, shared_tmux, notice_seconds=2.0) as pane_fleet:
        alice = await pane_fleet.register_with_agent()
        stuck = tmux_server.new_pane()
        tmux_server.wait_for_agent(stuck)
        bob = await pane_fleet.register_in_pane(pane_fleet.pane_location(stuck, tmux_server))
        os.kill(tmux_server.pid, signal.SIGSTOP)
        try:
            late = await pane_fleet.send(bob.agent_id)
            [received] = await pane_fleet.wait_for_receipts(await pane_fleet.send(alice.agent_id))
            assert received.notice is None
            assert (await pane_fleet.read_message(late)).notice is None, "its own timeout has not passed"
            [failed] = await pane_fleet.wait_for_receipts(late)
            assert failed.notice is NoticeFailure.FAILED
        finally:
            os.kill(tmux_server.pid, signal.SIGCONT)


async def test_stop_finishes_delivered_notices_and_accepts_no_more(pane_fleet: PaneFleetHarness) -> None:
    alice = await pane_fleet.register_with_agent()
    sent = await pane_fleet.send(alice.agent_id)
    assert len(pane_fleet.notifier) == 1
    await pane_fleet.notifier.stop()
    assert len(pane_fleet.notifier) == 0
    assert (await pane_fleet.read_message(sent)).notified_at is not None
    late = await pane_fleet.send(alice.agent_id)
    assert len(pane_fleet.notifier) == 0
    received = await pane_fleet.read_message(late)
    assert (received.notified_at, received.notice) == (None, None)


async def test_stop_cancels_notices_after_the_grace_period(sqlite_url: str, tmux_server: TmuxServer) -> None:
    async with open_pane_fleet(sqlite_url, tmux_server, grace_seconds=0.1) as pane_fleet:
        alice = await pane_fleet.register_with_agent()
        os.kill(tmux_server.pid, signal.SIGSTOP)
        try:
            await pane_fleet.send(alice.agent_id)
            async with asyncio.timeout(3):
                await pane_fleet.notifier.stop()
        finally:
            os.kill(tmux_server.pid, signal.SIGCONT)
