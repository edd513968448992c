"""Members with panes: created once per key, closed before deregistration, and interrupted deletions."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TypeVar

import msgspec
import pytest

from quarterdeck.core.caller import FLEET_EXEC
from quarterdeck.core.command import R
from quarterdeck.core.errors import Conflict, Invalid
from quarterdeck.core.idempotency import request_digest
from quarterdeck.core.routing import Call
from quarterdeck.domain.fleets.model.bodies import DeleteFleetQuery, MemberBody, Pane
from quarterdeck.domain.fleets.model.commands import (
    BaseFleetCommand,
    DeregisterMember,
    RegisterMember,
    RegisterMemberResult,
)
from quarterdeck.domain.fleets.model.rows import MemberStatus, NoticeFailure, PaneOutcome, Placement
from quarterdeck.domain.fleets.model.views import FleetDeletedView, FleetMemberDeleted
from quarterdeck.domain.fleets.operations.member_panes import MemberPanes, MemberPanesDeps, PaneCaller
from quarterdeck.domain.fleets.operations.pane_access import PaneAccess
from quarterdeck.domain.fleets.queries import Q
from quarterdeck.domain.fleets.routes.fleet_routes import FleetHandlers
from quarterdeck.tmux import terminate
from quarterdeck.tmux.coding_agents import merge_coding_agents
from quarterdeck.tmux.host import this_host
from tests.support.eventually import eventually
from tests.support.fleets import DIRECTOR, FLEET_ID, placement_row
from tests.support.pane_fleet import PaneFleetHarness, open_pane_fleet
from tests.support.tmux import FakeAgentLog, TmuxServer, is_alive, needs_tmux, shared_tmux, tmux_server

__all__ = ["shared_tmux", "tmux_server"]
pytestmark = needs_tmux
BodyT = TypeVar("BodyT")
QueryT = TypeVar("QueryT")
EXIT_SECONDS_MAX = 60.0
"""Longer than any test waits, so that an agent that does not exit blocks its deletion."""


class MemberPanesHarness:
    """A fleet with the handlers for its panes, without a server."""

    def __init__(self, fleet_harness: PaneFleetHarness, exit_seconds: float = 1.0, call_seconds: float = 5.0) -> None:
        self.fleet_harness = fleet_harness
        self.tmux = fleet_harness.tmux
        pane_access = PaneAccess(this_host(), merge_coding_agents(None), call_seconds, exit_seconds)
        submit = fleet_harness.submit_fleet
        self.deps = MemberPanesDeps(fleet_harness.runtime.engine, submit, lambda _: "token", pane_access, {})
        self.member_panes = MemberPanes(self.deps)
        self.fleets = FleetHandlers(fleet_harness.runtime.engine, submit, self.member_panes)

        scopes = fleet_harness.caller.scopes | {FLEET_EXEC}
        self.pane_caller = PaneCaller(msgspec.structs.replace(fleet_harness.caller, scopes=scopes), is_unix_socket=True)

    @property
    def body(self) -> MemberBody:
        pane = Pane(socket=self.tmux.socket, pane_id=self.tmux.pane)
        return MemberBody(name="alice", description="d", director_id=DIRECTOR, pane=pane)

    async def create(self, key: str | None = None) -> RegisterMemberResult:
        body, caller = self.body, self.pane_caller
        command = RegisterMember(
            zone_id=self.fleet_harness.zone_id,
            caller=caller.caller,
            fleet_id=FLEET_ID,
            name=body.name,
            description=body.description,
            director_id=body.director_id,
            idempotency_key=key,
            request_digest=request_digest(body) if key else "",
        )
        return await self.member_panes.create(caller, command, body)

    async def delete(self, created: RegisterMemberResult, force: bool = False) -> FleetMemberDeleted:
        command = DeregisterMember(
            zone_id=self.fleet_harness.zone_id,
            caller=self.pane_caller.caller,
            fleet_id=FLEET_ID,
            agent_id=created.member.agent_id,
        )
        return await self.member_panes.delete(self.pane_caller, command, force)

    @property
    def delete_call(self) -> Call[None, DeleteFleetQuery]:
        params = {"zone": self.fleet_harness.zone_id, "fleet": str(FLEET_ID)}
        return Call(self.pane_caller.caller, params, None, DeleteFleetQuery(), is_unix_socket=True)

    async def delete_fleet(self) -> FleetDeletedView:
        return await self.fleets.delete(self.delete_call)

    async def count_members(self) -> int:
        """The number of active members without director and administrator."""
        [rows] = await self.fleet_harness.runtime.engine.read(
            lambda tx: tx.read(
                Q.members_of_fleets(batch=[(self.fleet_harness.zone_id, FLEET_ID, MemberStatus.ACTIVE)])
            ),
            zones=[self.fleet_harness.zone_id],
        )
        return len(rows) - 2

    def set_pane(self, created: RegisterMemberResult, pane_id: str | None) -> None:
        self.fleet_harness.runtime.database.execute(
            "update agent_placements set tmux_pane_id = ? where agent_id = ?", pane_id, created.member.agent_id
        )

    def agent_log(self, created: RegisterMemberResult) -> FakeAgentLog:
        return self.tmux.wait_for_agent_log(self.tmux.pid_of(pane_of(created)))

    async def wait_for_line(self, created: RegisterMemberResult, line: str) -> None:
        async def has_line() -> bool:
            return line in self.agent_log(created).lines

        await eventually(has_line, f"the agent received {line}")


def pane_of(created: RegisterMemberResult) -> str:
    assert created.placement is not None
    assert created.placement.tmux_pane_id is not None
    return created.placement.tmux_pane_id


@pytest.fixture
async def member_panes(sqlite_url: str, shared_tmux: TmuxServer) -> AsyncIterator[MemberPanesHarness]:
    async with open_pane_fleet(sqlite_url, shared_tmux) as fleet_harness:
        yield MemberPanesHarness(fleet_harness)
        shared_tmux.run_tmux("set-environment", "-gu", "FAKE")
        await MemberPanesHarness(fleet_harness, 0.1).delete_fleet()


# -- creation


async def test_concurrent_creations_with_one_key_return_the_same_pane(member_panes: MemberPanesHarness) -> None:
    results = await asyncio.gather(*(member_panes.create("k") for _ in range(3)))
    assert sorted(result.created for result in results) == [False, False, True]
    assert len({(result.member.agent_id, pane_of(result)) for result in results}) == 1
    assert await member_panes.count_members() == 1


async def test_repeated_key_of_a_member_without_a_pane_is_a_conflict(member_panes: MemberPanesHarness) -> None:
    """Another server is creating the pane, or was killed before it did."""
    location, caller = member_panes.fleet_harness.pane_location(None), member_panes.pane_caller.caller
    await member_panes.fleet_harness.register(
        location=location,
        director_id=DIRECTOR,
        idempotency_key="k",
        request_digest=request_digest(member_panes.body),
        caller=caller,
    )
    with pytest.raises(Conflict) as problem:
        await member_panes.create("k")
    assert problem.value.code == "member_being_made"


# -- deletion


async def test_panes_of_another_host_are_not_accessed() -> None:
    pane_access = PaneAccess(this_host(), merge_coding_agents(None), 1.0, 1.0)
    placement = placement_row(host_id="another", tmux_pane_id="%1", tmux_socket="relative path, invalid if used")
    assert await pane_access.find_pane(placement) is NoticeFailure.OTHER_HOST
    assert await pane_access.type_line(placement, "hello") is NoticeFailure.OTHER_HOST
    assert await pane_access.close(placement) is NoticeFailure.OTHER_HOST


async def test_agent_behind_another_program_stays_registered_unless_forced(member_panes: MemberPanesHarness) -> None:
    created = await member_panes.create()
    pid = member_panes.agent_log(created).pid
    member_panes.tmux.run_tmux("send-keys", "-t", pane_of(created), "/edit", "Enter")
    current_command = ("display-message", "-p", "-t", pane_of(created), "#{pane_current_command}")

    async def is_edited() -> bool:
        return member_panes.tmux.run_tmux(*current_command) == "cat"

    await eventually(is_edited, "an editor is in the foreground")
    with pytest.raises(Conflict) as problem:
        await member_panes.delete(created)
    assert problem.value.code == "member_still_there"
    assert "received /edit" in str(problem.value.members["tail"])
    assert "--force" in str(problem.value.frees)
    assert (await member_panes.count_members(), is_alive(pid)) == (1, True)
    assert (await member_panes.delete(created, force=True)).pane == "killed"
    assert (await member_panes.count_members(), is_alive(pid)) == (0, False)


async def test_member_that_gets_its_pane_during_deletion_is_closed(member_panes: MemberPanesHarness) -> None:
    created = await member_panes.create()
    pane_id, pid = pane_of(created), member_panes.tmux.pid_of(pane_of(created))
    member_panes.set_pane(created, None)

    async def submit(command: BaseFleetCommand[R]) -> R:
        member_panes.set_pane(created, pane_id)
        return await member_panes.fleet_harness.submit_fleet(command)

    member_panes.member_panes = MemberPanes(replace(member_panes.deps, submit=submit))
    deleted = await member_panes.delete(created)
    assert (deleted.pane_id, deleted.pane) == (pane_id, PaneOutcome.EXITED)
    assert not is_alive(pid)


async def test_agent_that_is_no_longer_configured_is_closed_only_with_force(member_panes: MemberPanesHarness) -> None:
    created = await member_panes.create()
    member_panes.member_panes = MemberPanes(
        replace(member_panes.deps, pane_access=replace(member_panes.deps.pane_access, coding_agents={}))
    )
    with pytest.raises(Invalid, match=r"'claude', which is no longer configured.*--force"):
        await member_panes.delete(created)
    assert (await member_panes.delete(created, force=True)).pane == PaneOutcome.KILLED


async def test_interrupted_fleet_deletion_can_be_repeated(
    member_panes: MemberPanesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminate, "TERM_SECONDS", 0.1)
    member_panes.tmux.run_tmux("set-environment", "-g", "FAKE", "stubborn")
    created = await member_panes.create()
    pid = member_panes.agent_log(created).pid
    interrupted = asyncio.create_task(MemberPanesHarness(member_panes.fleet_harness, EXIT_SECONDS_MAX).delete_fleet())
    await member_panes.wait_for_line(created, "/exit")
    interrupted.cancel()
    with pytest.raises(asyncio.CancelledError):
        await interrupted
    assert (await member_panes.count_members(), is_alive(pid)) == (1, True)
    deleted = await MemberPanesHarness(member_panes.fleet_harness, 0.1).delete_fleet()
    assert (deleted.deregistered_count, deleted.panes_closed, deleted.panes_left) == (3, 1, 0)
    assert not is_alive(pid)


async def test_late_pane_that_cannot_be_closed_is_counted_as_left(
    member_panes: MemberPanesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fleet is already deleted then, so an error would suggest a retry that has no effect."""
    created = await member_panes.create()
    pane_id = pane_of(created)
    member_panes.set_pane(created, None)

    async def submit(command: BaseFleetCommand[R]) -> R:
        member_panes.set_pane(created, pane_id)
        return await member_panes.fleet_harness.submit_fleet(command)

    async def close_panes(
        caller: PaneCaller, placements: Sequence[Placement]
    ) -> dict[int, PaneOutcome | NoticeFailure]:
        assert [placement.tmux_pane_id for placement in placements] == [pane_id]
        raise Conflict("panes_not_closed", "tmux does not answer.")

    monkeypatch.setattr(member_panes.member_panes, "close_panes", close_panes)
    deleted = await replace(member_panes.fleets, submit=submit).delete(member_panes.delete_call)
    assert (deleted.deregistered_count, deleted.panes_closed, deleted.panes_left) == (3, 0, 1)
    member_panes.tmux.run_tmux("kill-pane", "-t", pane_id)


async def test_fleet_with_a_pane_that_cannot_be_closed_is_not_deleted(sqlite_url: str, tmux_server: TmuxServer) -> None:
    async with open_pane_fleet(sqlite_url, tmux_server) as fleet_harness:
        panes = MemberPanesHarness(fleet_harness)
        created = await panes.create()
        closed = await panes.create()
        tmux_server.run_tmux("kill-pane", "-t", pane_of(closed))
        os.kill(tmux_server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(Conflict) as problem:
                await MemberPanesHarness(fleet_harness, call_seconds=0.3).delete_fleet()
        finally:
            os.kill(tmux_server.pid, signal.SIGCONT)
        assert problem.value.code == "panes_not_closed"
        assert await panes.count_members() == 2
        deleted = await panes.delete_fleet()
        assert (deleted.deregistered_count, deleted.panes_closed, deleted.panes_left) == (4, 1, 0)
        assert pane_of(created) not in tmux_server.list_panes()
