"""Members with panes: made once for a key, ended before they are deregistered, and what is left when that is cut."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import msgspec
import pytest

from quarterdeck.core.caller import FLEET_EXEC
from quarterdeck.core.errors import Conflict, Invalid
from quarterdeck.core.idempotency import request_digest
from quarterdeck.core.routing import Call
from quarterdeck.domain.fleets.fleet_routes import FleetHandlers
from quarterdeck.domain.fleets.member_panes import MemberPanes, MemberPanesDeps
from quarterdeck.domain.fleets.model.bodies import DeleteFleetQuery, MemberBody, Pane
from quarterdeck.domain.fleets.model.commands import FleetCommand, FleetOutcome, RegisterMemberResult
from quarterdeck.domain.fleets.model.rows import MemberStatus, NoticeFailure, PaneOutcome, Placement
from quarterdeck.domain.fleets.model.views import FleetDeletedView, FleetMemberDeleted
from quarterdeck.domain.fleets.pane_access import PaneAccess
from quarterdeck.domain.fleets.queries import Q
from quarterdeck.tmux import terminate
from quarterdeck.tmux.coding_agents import merge_coding_agents
from quarterdeck.tmux.host import this_host
from tests.support.eventually import eventually
from tests.support.fleets import DIRECTOR, FLEET_ID, placement_row
from tests.support.pane_fleet import PaneFleetHarness, open_pane_fleet
from tests.support.tmux import FakeAgentLog, TmuxServer, is_alive, needs_tmux, shared_tmux, tmux_server

__all__ = ["shared_tmux", "tmux_server"]
pytestmark = needs_tmux
PATIENCE = 60.0
"""Longer than any test waits: an agent that does not leave holds up whoever waits for it."""


class Deck:
    """A fleet and whoever has its panes, without a server around them."""

    def __init__(self, manned: PaneFleetHarness, exit_seconds: float = 1.0, call_seconds: float = 5.0) -> None:
        self.manned = manned
        self.tmux = manned.tmux
        reach = PaneAccess(this_host(), merge_coding_agents(None), call_seconds, exit_seconds)
        submit = manned.fleet_lane.submit
        self.means = MemberPanesDeps(manned.runtime.engine, submit, lambda _: "token", reach, {})
        self.station = MemberPanes(self.means)
        self.fleets = FleetHandlers(manned.runtime.engine, submit, self.station)

    def call(self, **said: object) -> Call:
        scopes = self.manned.caller.scopes | {FLEET_EXEC}
        caller = msgspec.structs.replace(self.manned.caller, scopes=scopes)
        call = Call(caller, {"zone": self.manned.zone_id, "fleet": str(FLEET_ID)}, is_unix_socket=True)
        return msgspec.structs.replace(call, **said)

    @property
    def body(self) -> MemberBody:
        own = Pane(socket=self.tmux.socket, pane_id=self.tmux.pane)
        return MemberBody(name="alice", description="d", director_id=DIRECTOR, pane=own)

    async def create(self, key: str | None = None) -> RegisterMemberResult:
        return await self.station.create(self.call(body=self.body, idempotency_key=key), self.body)

    async def delete(self, made: RegisterMemberResult, force: bool = False) -> FleetMemberDeleted:
        return await self.station.delete(self.call(), FLEET_ID, made.member.agent_id, force)

    async def delete_fleet(self) -> FleetDeletedView:
        return await self.fleets.delete(self.call(query=DeleteFleetQuery()))

    async def members(self) -> int:
        """How many are there beside the director and the administrator."""
        [rows] = await self.manned.runtime.engine.read(
            lambda tx: tx.read(Q.members_of_fleets(batch=[(self.manned.zone_id, FLEET_ID, MemberStatus.ACTIVE)])),
            zones=[self.manned.zone_id],
        )
        return len(rows) - 2

    def place(self, made: RegisterMemberResult, pane_id: str | None) -> None:
        self.manned.runtime.database.execute(
            "update agent_placements set tmux_pane_id = ? where agent_id = ?", pane_id, made.member.agent_id
        )

    def heard(self, made: RegisterMemberResult) -> FakeAgentLog:
        return self.tmux.wait_for_agent_log(self.tmux.pid_of(pane_of(made)))

    async def has_heard(self, made: RegisterMemberResult, line: str) -> None:
        async def has() -> bool:
            return line in self.heard(made).lines

        await eventually(has, f"the agent had heard {line}")


def pane_of(made: RegisterMemberResult) -> str:
    assert made.placement is not None
    assert made.placement.tmux_pane_id is not None
    return made.placement.tmux_pane_id


@pytest.fixture
async def member_panes(sqlite_url: str, shared_tmux: TmuxServer) -> AsyncIterator[Deck]:
    async with open_pane_fleet(sqlite_url, shared_tmux) as manned:
        yield Deck(manned)
        shared_tmux.run_tmux("set-environment", "-gu", "FAKE")
        await Deck(manned, 0.1).delete_fleet()


# -- making


async def test_whoever_repeats_a_key_while_its_member_is_made_is_answered_with_the_same_pane(
    member_panes: Deck,
) -> None:
    asked = await asyncio.gather(*(member_panes.create("k") for _ in range(3)))
    assert sorted(each.created for each in asked) == [False, False, True]
    assert len({(each.member.agent_id, pane_of(each)) for each in asked}) == 1
    assert await member_panes.members() == 1


async def test_a_key_whose_member_has_no_pane_yet_is_not_answered_as_if_it_had(member_panes: Deck) -> None:
    """Another server is about to make it, or was killed before it had."""
    place, caller = member_panes.manned.pane_location(None), member_panes.call().caller
    await member_panes.manned.register(
        place=place, director_id=DIRECTOR, key="k", digest=request_digest(member_panes.body), caller=caller
    )
    with pytest.raises(Conflict) as refused:
        await member_panes.create("k")
    assert refused.value.code == "member_being_made"


# -- ending


async def test_no_tmux_is_asked_about_a_pane_of_another_host() -> None:
    reach = PaneAccess(this_host(), merge_coding_agents(None), 1.0, 1.0)
    there = placement_row(host_id="another", tmux_pane_id="%1", tmux_socket="relative: refused when it is used")
    assert await reach.find_pane(there) is NoticeFailure.OTHER_HOST
    assert await reach.type_line(there, "hello") is NoticeFailure.OTHER_HOST
    assert await reach.close(there) is NoticeFailure.OTHER_HOST


async def test_an_agent_behind_something_else_stays_registered_unless_it_is_forced_to_leave(member_panes: Deck) -> None:
    made = await member_panes.create()
    pid = member_panes.heard(made).pid
    member_panes.tmux.run_tmux("send-keys", "-t", pane_of(made), "/edit", "Enter")
    front = ("display-message", "-p", "-t", pane_of(made), "#{pane_current_command}")

    async def is_edited() -> bool:
        return member_panes.tmux.run_tmux(*front) == "cat"

    await eventually(is_edited, "something else was in front")
    with pytest.raises(Conflict) as refused:
        await member_panes.delete(made)
    assert refused.value.code == "member_still_there"
    assert "heard /edit" in str(refused.value.members["tail"])
    assert "--force" in str(refused.value.frees)
    assert (await member_panes.members(), is_alive(pid)) == (1, True)
    assert (await member_panes.delete(made, force=True)).pane == "killed"
    assert (await member_panes.members(), is_alive(pid)) == (0, False)


async def test_a_member_that_gets_its_pane_while_it_is_deleted_leaves_nobody_running(member_panes: Deck) -> None:
    made = await member_panes.create()
    pane_id, pid = pane_of(made), member_panes.tmux.pid_of(pane_of(made))
    member_panes.place(made, None)

    async def submit(ask: FleetCommand) -> FleetOutcome:
        member_panes.place(made, pane_id)
        return await member_panes.manned.fleet_lane.submit(ask)

    member_panes.station = MemberPanes(replace(member_panes.means, submit=submit))
    gone = await member_panes.delete(made)
    assert (gone.pane_id, gone.pane) == (pane_id, PaneOutcome.EXITED)
    assert not is_alive(pid)


async def test_an_agent_that_the_configuration_no_longer_names_stays_and_the_reason_is_said(member_panes: Deck) -> None:
    made = await member_panes.create()
    member_panes.station = MemberPanes(
        replace(member_panes.means, pane_access=replace(member_panes.means.pane_access, coding_agents={}))
    )
    with pytest.raises(Invalid, match=r"'claude', which the server's configuration no longer names.*--force"):
        await member_panes.delete(made)
    assert (await member_panes.delete(made, force=True)).pane == PaneOutcome.KILLED


async def test_a_fleet_whose_deletion_was_cut_is_still_there_and_is_deleted_by_asking_again(
    member_panes: Deck, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminate, "TERM_SECONDS", 0.1)
    member_panes.tmux.run_tmux("set-environment", "-g", "FAKE", "stubborn")
    made = await member_panes.create()
    pid = member_panes.heard(made).pid
    cut = asyncio.create_task(Deck(member_panes.manned, PATIENCE).delete_fleet())
    await member_panes.has_heard(made, "/exit")
    cut.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cut
    assert (await member_panes.members(), is_alive(pid)) == (1, True)
    done = await Deck(member_panes.manned, 0.1).delete_fleet()
    assert (done.deregistered_count, done.panes_closed, done.panes_left) == (3, 1, 0)
    assert not is_alive(pid)


async def test_a_pane_that_came_in_the_last_moment_and_cannot_be_closed_is_counted_as_left(
    member_panes: Deck, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fleet is deleted by then: a refusal would send its user to do again what can do nothing."""
    made = await member_panes.create()
    pane_id = pane_of(made)
    member_panes.place(made, None)

    async def submit(ask: FleetCommand) -> FleetOutcome:
        member_panes.place(made, pane_id)
        return await member_panes.manned.fleet_lane.submit(ask)

    async def close_panes(call: Call, placements: Sequence[Placement]) -> dict[int, PaneOutcome | NoticeFailure]:
        assert [each.tmux_pane_id for each in placements] == [pane_id]
        raise Conflict("panes_not_closed", "tmux does not answer.")

    monkeypatch.setattr(member_panes.station, "close_panes", close_panes)
    done = await replace(member_panes.fleets, submit=submit).delete(member_panes.call(query=DeleteFleetQuery()))
    assert (done.deregistered_count, done.panes_closed, done.panes_left) == (3, 0, 1)
    member_panes.tmux.run_tmux("kill-pane", "-t", pane_id)


async def test_a_fleet_with_a_pane_that_cannot_be_closed_is_not_deleted(
    sqlite_url: str, tmux_server: TmuxServer
) -> None:
    async with open_pane_fleet(sqlite_url, tmux_server) as manned:
        deck = Deck(manned)
        made = await deck.create()
        gone = await deck.create()
        tmux_server.run_tmux("kill-pane", "-t", pane_of(gone))
        os.kill(tmux_server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(Conflict) as refused:
                await Deck(manned, call_seconds=0.3).delete_fleet()
        finally:
            os.kill(tmux_server.pid, signal.SIGCONT)
        assert refused.value.code == "panes_not_closed"
        assert await deck.members() == 2
        done = await deck.delete_fleet()
        assert (done.deregistered_count, done.panes_closed, done.panes_left) == (4, 1, 0)
        assert pane_of(made) not in tmux_server.list_panes()
