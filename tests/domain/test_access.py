"""Callers lose their authority when their session or agent ends, also in another zone; permissions come first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from quarterdeck.core.caller import COORDINATOR_ADMIN, Caller
from quarterdeck.core.errors import Forbidden, Problem, Unauthenticated
from quarterdeck.domain.access.model import CallerSession
from quarterdeck.domain.access.operations import Batch
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import Terminate as TerminateAgent
from quarterdeck.domain.fleets.model.commands import DeleteFleet
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import Session, StopZone, Suspend, Terminate, Verb
from quarterdeck.domain.zones.model import SetZoneFrozen
from quarterdeck.domain.zones.rules import zone_not_found
from quarterdeck.engine.lanes import BUSY, Busy
from quarterdeck.engine.transaction import Transaction
from tests.support.agents import AgentHarness, agent_caller, user_caller
from tests.support.builders import NOW, ZONE, admin, caller, spawn_command
from tests.support.eventually import eventually
from tests.support.fleets import FleetHarness, claim_monitor_command
from tests.support.runtime import RuntimeHarness, open_runtime

NOT_FOUND = zone_not_found("own")
Action = Callable[[RuntimeHarness, Caller, Session], Awaitable[object]]
ACTIONS: dict[str, Action] = {
    "spawn": lambda runtime, requester, _: runtime.spawn_lane.submit(spawn_command("target-zone", caller=requester)),
    "terminate": lambda runtime, requester, target: runtime.terminate_lane.submit(
        Terminate("target-zone", target.id, "x", requester)
    ),
    "suspend": lambda runtime, requester, target: runtime.suspend_lane.submit(
        Suspend("target-zone", target.id, Verb.SUSPEND, requester)
    ),
    "stop-zone": lambda runtime, requester, _: runtime.stop_zone_lane.submit(StopZone("target-zone", "x", requester)),
    "freeze-zone": lambda runtime, requester, _: runtime.freeze_lane.submit(
        SetZoneFrozen("target-zone", True, requester)
    ),
}


Ending = Callable[[Transaction, Session], Awaitable[object]]


async def terminate_session(tx: Transaction, bearer: Session) -> None:
    command = Terminate(ZONE, bearer.id, "obsolete", admin(ZONE))
    await sessions.Terminator(chunk_size=10).terminate_sessions(tx, [command])


async def terminate_agent(tx: Transaction, bearer: Session) -> None:
    command = TerminateAgent(zone_id=ZONE, agent_id="agent", reason="obsolete", graceful=False)
    await agents.terminate_agents(tx, [command])


ENDINGS: dict[str, tuple[Ending, str]] = {
    "session_ended": (terminate_session, "session.terminate"),
    "agent_ended": (terminate_agent, "agent.terminated"),
}


@pytest.mark.parametrize("code", ENDINGS)
@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
async def test_action_waits_for_its_bearer_ending_in_another_zone_and_is_refused(
    action: Action, code: str, postgres_url: str
) -> None:
    end_bearer, event_type = ENDINGS[code]
    async with open_runtime(postgres_url) as first, open_runtime(postgres_url) as second:
        for zone_id in (ZONE, "target-zone"):
            await first.put_zone(zone_id)
        bearer, target = await first.spawn(ZONE), await first.spawn("target-zone")
        await AgentHarness(first).register("agent", name="agent")
        has_ended, may_commit = asyncio.Event(), asyncio.Event()

        async def hold_until_allowed(tx: Transaction) -> None:
            await end_bearer(tx, bearer)
            has_ended.set()
            await may_commit.wait()

        ending = asyncio.ensure_future(first.engine.transact(hold_until_allowed, zones=[ZONE]))
        await has_ended.wait()
        before = await first.read_log()
        requester = msgspec.structs.replace(
            caller("console", COORDINATOR_ADMIN, session_id=bearer.id, zone_id=ZONE), agent_id="agent"
        )
        running_action = asyncio.ensure_future(action(second, requester, target))

        async def waits_for_lock() -> bool:
            return first.database.waiting_for_locks() > 0

        await eventually(waits_for_lock, "the action waits for the lock of its bearer's zone")
        may_commit.set()
        await ending
        with pytest.raises(Unauthenticated) as refusal:
            await running_action
        assert refusal.value.code == code
        assert [event.type for event in (await first.read_log())[len(before) :]] == [event_type]


async def test_permission_is_checked_before_the_fleet_is_looked_up(runtime: RuntimeHarness) -> None:
    fleet_harness = FleetHarness(runtime)
    agent, non_member = agent_caller("fleet-1-3"), msgspec.structs.replace(user_caller(), role=None)
    for command in (
        fleet_harness.create_command(caller=agent),
        fleet_harness.register_command(fleet_id=99, caller=agent),
        DeleteFleet(zone_id=ZONE, fleet_id=99, caller=agent),
        claim_monitor_command(fleet_id=99, caller=agent),
    ):
        with pytest.raises(Forbidden) as refusal:
            await fleet_harness.submit_fleet(command)
        assert (refusal.value.code, refusal.value.members["power"]) == ("forbidden_role", "fleets.change")
    with pytest.raises(Forbidden) as refusal:
        await fleet_harness.send(fleet_id=99, caller=non_member)
    assert refusal.value.code == "not_a_member"


@pytest.mark.parametrize(
    ("own_zone", "home_zone", "session_id", "expected"),
    [
        (BUSY, None, "ended", BUSY),
        (None, BUSY, "ended", BUSY),
        (NOT_FOUND, BUSY, "live", BUSY),
        (NOT_FOUND, None, "ended", "session_ended"),
        (NOT_FOUND, NOT_FOUND, "ended", "session_ended"),
        (NOT_FOUND, None, "live", "zone_not_found"),
        (None, None, "live", None),
    ],
)
def test_busy_zone_comes_before_an_ended_session_and_that_before_a_missing_zone(
    own_zone: Problem | Busy | None, home_zone: Problem | Busy | None, session_id: str, expected: object
) -> None:
    failures = {"own": own_zone, "home": home_zone}
    batch = Batch(
        NOW,
        {},
        {zone_id: failure for zone_id, failure in failures.items() if failure},
        {("home", "live"): CallerSession("home", "live", "active", NOW + 1, None)},
        {},
    )
    problem = batch.problem(spawn_command("own", caller=caller(session_id=session_id, zone_id="home")))
    assert (problem.code if isinstance(problem, Problem) else problem) == expected
