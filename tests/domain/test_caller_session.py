"""Callers who speak for a session of one zone and act on another: its end is the end of what they may do."""

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

Act = Callable[[RuntimeHarness, Caller, Session], Awaitable[object]]
ACTS: dict[str, Act] = {
    "spawn": lambda keel, who, _: keel.spawn_lane.submit(spawn_command("away", caller=who)),
    "terminate": lambda keel, who, there: keel.terminate_lane.submit(Terminate("away", there.id, "x", who)),
    "suspend": lambda keel, who, there: keel.suspend_lane.submit(Suspend("away", there.id, Verb.SUSPEND, who)),
    "stop the zone": lambda keel, who, _: keel.stop_zone_lane.submit(StopZone("away", "x", who)),
    "freeze the zone": lambda keel, who, _: keel.freeze_lane.submit(SetZoneFrozen("away", True, who)),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
async def test_an_act_that_meets_the_end_of_its_bearer_in_another_zone_waits_for_it_and_is_refused(
    act: Act, postgres_url: str
) -> None:
    async with open_runtime(postgres_url) as one, open_runtime(postgres_url) as two:
        for zone_id in ("home", "away"):
            await one.put_zone(zone_id)
        bearer, there = await one.spawn("home"), await one.spawn("away")
        ended, committing = asyncio.Event(), asyncio.Event()

        async def end(tx: Transaction) -> None:
            ask = Terminate("home", bearer.id, "enough", admin("home"))
            await sessions.Terminator(chunk_size=10).terminate_sessions(tx, [ask])
            ended.set()
            await committing.wait()

        ending = asyncio.ensure_future(one.engine.transact(end, zones=["home"]))
        await ended.wait()
        before = await one.read_log()
        who = caller("console", COORDINATOR_ADMIN, session_id=bearer.id, zone_id="home")
        acting = asyncio.ensure_future(act(two, who, there))

        async def stands_before_the_lock() -> bool:
            return one.database.waiting_for_locks() > 0

        await eventually(stands_before_the_lock, "the act stands before the lock of its bearer's zone")
        committing.set()
        await ending
        with pytest.raises(Unauthenticated):
            await acting
        assert [event.subject for event in (await one.read_log())[len(before) :]] == [bearer.id]
