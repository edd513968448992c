"""Callers whose bearer session is in another zone lose their authority when that session ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from quarterdeck.core.caller import COORDINATOR_ADMIN, Caller
from quarterdeck.core.errors import Unauthenticated
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.domain.sessions.model import Session, StopZone, Suspend, Terminate, Verb
from quarterdeck.domain.zones.model import SetZoneFrozen
from quarterdeck.engine.transaction import Transaction
from tests.support.builders import admin, caller, spawn_command
from tests.support.eventually import eventually
from tests.support.runtime import RuntimeHarness, open_runtime

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


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
async def test_action_waits_for_its_bearer_ending_in_another_zone_and_is_refused(
    action: Action, postgres_url: str
) -> None:
    async with open_runtime(postgres_url) as first, open_runtime(postgres_url) as second:
        for zone_id in ("bearer-zone", "target-zone"):
            await first.put_zone(zone_id)
        bearer, target = await first.spawn("bearer-zone"), await first.spawn("target-zone")
        is_terminated, may_commit = asyncio.Event(), asyncio.Event()

        async def terminate_bearer(tx: Transaction) -> None:
            command = Terminate("bearer-zone", bearer.id, "obsolete", admin("bearer-zone"))
            await sessions.Terminator(chunk_size=10).terminate_sessions(tx, [command])
            is_terminated.set()
            await may_commit.wait()

        termination = asyncio.ensure_future(first.engine.transact(terminate_bearer, zones=["bearer-zone"]))
        await is_terminated.wait()
        before = await first.read_log()
        requester = caller("console", COORDINATOR_ADMIN, session_id=bearer.id, zone_id="bearer-zone")
        running_action = asyncio.ensure_future(action(second, requester, target))

        async def waits_for_lock() -> bool:
            return first.database.waiting_for_locks() > 0

        await eventually(waits_for_lock, "the action waits for the lock of its bearer's zone")
        may_commit.set()
        await termination
        with pytest.raises(Unauthenticated):
            await running_action
        assert [event.subject for event in (await first.read_log())[len(before) :]] == [bearer.id]
