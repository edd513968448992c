"""Suspension, on both engines: flags upon flags against a plain model, who is told, and who may ask."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable
from itertools import count
from typing import Literal

import msgspec
import pytest
from hypothesis import given, strategies as st

from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import SECOND
from quarterdeck.core.errors import Forbidden, LimitReached, NotFound, Problem
from quarterdeck.domain.sessions.model import Session, State, Suspend, SuspendResult, Terminate, Verb
from quarterdeck.engine.event_log import Event
from tests.support.builders import APP, NOW, ZONE, admin, caller, spawn_command
from tests.support.rounds import ROUNDS
from tests.support.runtime import RuntimeHarness, RuntimeOptions, assert_counts_match_rows, open_runtime, result_names
from tests.support.session_trees import DATABASE_EXAMPLES, shapes

SUSPEND: Literal[Verb.SUSPEND] = Verb.SUSPEND
RESUME: Literal[Verb.RESUME] = Verb.RESUME
Way = Literal[Verb.SUSPEND, Verb.RESUME]
_numbers = count()


async def statuses(keel: RuntimeHarness, *sessions: Session) -> list[State]:
    return [(await keel.read_session(session)).status for session in sessions]


async def told(keel: RuntimeHarness, after: int = 0) -> list[Event]:
    return [event for event in await keel.read_log(after) if event.type in ("session.suspend", "session.resume")]


# -- flags, against a model


class Fleet:
    """Sessions of a zone by number, and the model: who bears a flag, who has ended, and what follows from that."""

    def __init__(self, keel: RuntimeHarness, zone_id: str) -> None:
        self.keel = keel
        self.zone_id = zone_id
        self.rows: list[Session] = []
        self.flags: set[int] = set()
        self.ended: set[int] = set()

    @classmethod
    async def of(cls, keel: RuntimeHarness, shape: list[int | None]) -> Fleet:
        fleet = cls(keel, f"fleet-{next(_numbers)}")
        await keel.put_zone(fleet.zone_id)
        for parent in shape:
            await fleet.spawn(parent)
        return fleet

    async def spawn(self, parent: int | None) -> None:
        parent_id = None if parent is None else self.rows[parent].id
        self.rows.append(await self.keel.spawn(self.zone_id, parent_id=parent_id))

    def line(self, own: int | None) -> list[int]:
        """A session and its ancestors."""
        ids = [row.id for row in self.rows]
        found = []
        while own is not None:
            found.append(own)
            parent = self.rows[own].parent_id
            own = None if parent is None else ids.index(parent)
        return found

    def asleep(self) -> set[int]:
        living = {*range(len(self.rows))} - self.ended
        return {own for own in living if self.flags.intersection(self.line(own))}

    async def end(self, own: int) -> None:
        below = {each for each in range(len(self.rows)) if own in self.line(each)}
        receipt = await self.keel.terminate(self.rows[own])
        assert receipt.stopped == len(below - self.ended)
        self.ended |= below

    async def hold(self, asks: list[tuple[int, Way]]) -> None:
        """One batch: each answer and each event must be what the model says, in order."""
        after = len(await self.keel.read_log())
        holds = [Suspend(self.zone_id, self.rows[own].id, verb, admin(self.zone_id)) for own, verb in asks]
        outcomes = await asyncio.gather(*map(self.keel.suspend_lane.submit, holds), return_exceptions=True)
        events = iter(await told(self.keel, after))
        for (own, verb), outcome in zip(asks, outcomes, strict=True):
            before = self.asleep()
            if problem := self.refusal(own, verb):
                assert isinstance(outcome, Problem)
                assert (outcome.code, outcome.members.get("held_by")) == problem
                continue
            (self.flags.add if verb is Verb.SUSPEND else self.flags.remove)(own)
            moved = before ^ self.asleep()
            assert outcome == SuspendResult(len(moved))
            self.check([next(events) for _ in moved | {own}], own, verb, before)
        assert next(events, None) is None, "nobody else is told of"

    def refusal(self, own: int, verb: Way) -> tuple[str, str | None] | None:
        if own in self.ended and verb is Verb.SUSPEND:
            return "agent_not_found_or_not_active", None
        if own in self.ended or (verb is Verb.RESUME and own not in self.flags):
            above = [] if own in self.ended else [each for each in self.line(own) if each in self.flags]
            return "agent_not_found_or_not_suspended", self.rows[above[0]].id if above else None
        return None

    def check(self, events: list[Event], own: int, verb: Way, before: set[int]) -> None:
        moved = before ^ self.asleep()
        assert {event.subject for event in events} == {self.rows[each].id for each in moved | {own}}
        for event in events:
            assert (event.type, event.zone_id, event.actor) == (f"session.{verb}", self.zone_id, "tester")
            assert msgspec.json.decode(event.data)["cause"] == self.rows[own].id
            number = [row.id for row in self.rows].index(event.subject)
            slept, sleeps = number in before, number in self.asleep()
            assert event.from_state == ("suspended" if slept else "active")
            assert event.to_state == ("suspended" if sleeps else "active")

    async def check_rows(self) -> None:
        asleep = self.asleep()
        for own, row in enumerate(self.rows):
            shown = await self.keel.read_session(row)
            expected = "terminated" if own in self.ended else "suspended" if own in asleep else "active"
            assert shown.status == expected
            if own not in self.ended:
                assert bool(shown.held) == (own in self.flags)
                assert (shown.suspended_at is not None) == (own in asleep)


BATCH = st.lists(st.tuples(st.integers(0, 20), st.sampled_from([SUSPEND, RESUME])), min_size=1, max_size=5)
STEPS = st.lists(st.one_of(BATCH, st.integers(-20, 20)), max_size=10)
"""A batch of suspensions and resumptions; or the end of a session (below nothing) or a spawn under one."""


@DATABASE_EXAMPLES
@given(shape=shapes(7), steps=STEPS)
async def test_who_sleeps_is_who_bears_a_flag_or_stands_under_one_whatever_happens_meanwhile(
    runtime: RuntimeHarness, shape: list[int | None], steps: list[list[tuple[int, Way]] | int]
) -> None:
    fleet = await Fleet.of(runtime, shape)
    for step in steps:
        size = len(fleet.rows)
        if isinstance(step, list):
            await fleet.hold([(which % size, verb) for which, verb in step])
        elif step < 0:
            await fleet.end(-step % size)
        elif step % size in fleet.asleep() | fleet.ended:
            with pytest.raises(NotFound):
                await fleet.spawn(step % size)
        else:
            await fleet.spawn(step % size)
    await fleet.check_rows()
    assert_counts_match_rows(runtime.database)


@DATABASE_EXAMPLES
@given(shape=shapes(7), first=BATCH, second=BATCH)
async def test_asks_of_one_batch_are_answered_and_told_as_they_would_be_one_by_one(
    runtime: RuntimeHarness, shape: list[int | None], first: list[tuple[int, Way]], second: list[tuple[int, Way]]
) -> None:
    together, apart = await Fleet.of(runtime, shape), await Fleet.of(runtime, shape)
    for batch in (first, second):
        asks = [(which % len(shape), verb) for which, verb in batch]
        await together.hold(asks)
        for asked in asks:
            await apart.hold([asked])
    for one, other in zip(together.rows, apart.rows, strict=True):
        left, right = await runtime.read_session(one), await runtime.read_session(other)
        assert (left.status, left.held) == (right.status, right.held)


# -- what else it does, and does not


async def test_a_suspended_session_keeps_its_place_in_every_bound(runtime: RuntimeHarness) -> None:
    root, *_ = await runtime.spawn_tree(2)
    await runtime.suspend(root)
    await runtime.put_zone(max_sessions=3)
    with pytest.raises(LimitReached):
        await runtime.spawn()
    assert_counts_match_rows(runtime.database)


async def test_the_time_of_a_suspended_session_runs_on_and_a_sweep_ends_it(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    await runtime.suspend(root)
    runtime.database.expire_sessions(root, child)
    assert await statuses(runtime, root, child) == [State.TERMINATED] * 2
    assert await runtime.run_sweep() == 1
    ended = [event for event in await runtime.read_log() if event.type == "session.terminate"]
    assert [(event.subject, event.from_state) for event in ended] == [(child.id, "suspended"), (root.id, "suspended")]


async def test_since_when_a_session_sleeps_is_since_it_last_fell_asleep(sqlite_url: str) -> None:
    time = [NOW]
    async with open_runtime(sqlite_url, RuntimeOptions(clock=lambda: time[0])) as keel:
        await keel.put_zone()
        root, child = await keel.spawn_tree(1)

        async def since(*asks: Suspend) -> list[int | None]:
            time[0] += SECOND
            await asyncio.gather(*map(keel.suspend_lane.submit, asks))
            shown = [await keel.read_session(row) for row in (root, child)]
            assert all(row.updated_at == time[0] for row in shown if row.id in {a.session_id for a in asks})
            return [row.suspended_at for row in shown]

        def hold(row: Session, verb: Way) -> Suspend:
            return Suspend(ZONE, row.id, verb, admin())

        assert await since(hold(child, SUSPEND)) == [None, NOW + 1 * SECOND]
        assert await since(hold(root, SUSPEND)) == [NOW + 2 * SECOND, NOW + 1 * SECOND]
        assert await since(hold(child, SUSPEND)) == [NOW + 2 * SECOND, NOW + 1 * SECOND]
        assert await since(hold(child, RESUME)) == [NOW + 2 * SECOND, NOW + 1 * SECOND]
        woken_and_put_to_sleep = [hold(root, RESUME), hold(root, SUSPEND)]
        assert await since(*woken_and_put_to_sleep) == [NOW + 5 * SECOND, NOW + 5 * SECOND]
        assert await since(hold(root, RESUME)) == [None, None]


async def test_every_event_says_who_asked_with_what_trace_and_about_whom(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    asked = Suspend(ZONE, root.id, SUSPEND, caller(APP), "00-ab-cd-01")
    await runtime.suspend_lane.submit(asked)
    events = await told(runtime)
    assert [event.subject for event in events] == [root.id, child.id], "parents first"
    for event in events:
        assert (event.actor, event.trace) == ("tester", "00-ab-cd-01")
        assert msgspec.json.decode(event.data) == {"cause": root.id, "session_sid": "sid", "root_id": root.id}


async def test_a_frozen_zone_suspends_and_resumes(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    await runtime.freeze_zone()
    assert (await runtime.suspend(root), await runtime.resume(root)) == (1, 1)


async def test_a_suspension_that_takes_hundreds_takes_them_at_once(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    await asyncio.gather(*(runtime.spawn_lane.submit(spawn_command(parent_id=root.id)) for _ in range(600)))
    assert await runtime.suspend(root) == 601
    assert runtime.database.count("agent_sessions", "status = 'suspended'") == 601
    assert await runtime.resume(root) == 601
    assert runtime.database.count("agent_sessions", "status = 'active' and suspended_at is null") == 601


async def test_a_line_that_meets_itself_can_be_suspended_and_resumed(runtime: RuntimeHarness) -> None:
    # No operation makes one; a restored backup or a hand in the database might.
    root, child, grandchild = await runtime.spawn_tree(1, 1)
    runtime.database.execute("update agent_sessions set parent_id = ? where id = ?", grandchild.id, root.id)
    async with asyncio.timeout(30):
        assert (await runtime.suspend(child), await runtime.resume(child)) == (3, 3)
    assert runtime.database.count("agent_sessions", "status = 'active' and held = 0") == 3


# -- who may ask


@pytest.mark.parametrize(
    ("who", "may"),
    [
        (caller(APP), True),
        (caller("other", f"coordinator.spawn_for:{APP}"), True),
        (admin(), True),
        (caller("other"), False),
        (caller("other", "coordinator.spawn_for:another"), False),
        (caller("other", f"coordinator.spawn_under:{APP}"), False),
    ],
)
@pytest.mark.parametrize("verb", [SUSPEND, RESUME])
async def test_suspending_and_resuming_need_power_over_the_application(
    runtime: RuntimeHarness, who: Caller, may: bool, verb: Way
) -> None:
    root = await runtime.spawn()
    if verb is Verb.RESUME:
        await runtime.suspend(root)
    asked = runtime.suspend_lane.submit(Suspend(ZONE, root.id, verb, who))
    if may:
        assert (await asked).changed == 1
    else:
        before = await runtime.read_session(root)
        with pytest.raises(Forbidden) as refused:
            await asked
        assert refused.value.code == "application_ownership_required"
        assert await runtime.read_session(root) == before


async def test_refusals_and_suspensions_in_one_batch_do_not_disturb_each_other(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    here, there, bearer = await runtime.spawn(), await runtime.spawn("other"), await runtime.spawn()
    await runtime.terminate(bearer)
    asks = [
        Suspend(ZONE, "nobody", SUSPEND, admin()),
        Suspend(ZONE, here.id, SUSPEND, admin()),
        Suspend("nowhere", here.id, SUSPEND, admin()),
        Suspend("other", there.id, SUSPEND, caller("stranger")),
        Suspend(ZONE, there.id, SUSPEND, admin()),
        Suspend(ZONE, here.id, RESUME, caller(session_id=bearer.id)),
        Suspend("other", there.id, SUSPEND, admin("other")),
        Suspend("other", there.id, RESUME, admin("other")),
    ]
    outcomes = await asyncio.gather(*map(runtime.suspend_lane.submit, asks), return_exceptions=True)
    assert result_names(outcomes) == [
        "agent_not_found",
        "SuspendResult",
        "zone_not_found",
        "application_ownership_required",
        "agent_not_found",
        "session_ended",
        "SuspendResult",
        "SuspendResult",
    ]
    assert await statuses(runtime, here, there) == [State.SUSPENDED, State.ACTIVE]


# -- beside others


async def test_nobody_is_awake_under_a_flag_though_others_spawn_and_resume_on_three_replicas(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        keels = [await stack.enter_async_context(open_runtime(postgres_url)) for _ in range(3)]
        for number in range(ROUNDS):
            zone_id = f"round-{number}"
            await keels[0].put_zone(zone_id)
            made = await keels[0].spawn_tree(3, 2, zone_id=zone_id)
            works: list[Awaitable[object]] = []
            for turn, row in enumerate(made * 3):
                replica = keels[turn % 3]
                works.append(replica.spawn_lane.submit(spawn_command(zone_id, parent_id=row.id)))
                works.append(
                    replica.suspend_lane.submit(Suspend(zone_id, row.id, (SUSPEND, RESUME)[turn % 2], admin(zone_id)))
                )
                if turn % 7 == 6:
                    works.append(replica.terminate_lane.submit(Terminate(zone_id, row.id, "x", admin(zone_id))))
            outcomes = await asyncio.gather(*works, return_exceptions=True)
            allowed = {"Spawned", "SuspendResult", "TerminateResult", "parent_not_found", "agent_not_found_or_not_active",
                       "agent_not_found_or_not_suspended"}  # fmt: skip
            assert set(result_names(outcomes)) <= allowed
            assert_flags_explain_who_sleeps(keels[0], zone_id)
        assert_counts_match_rows(keels[0].database)


def assert_flags_explain_who_sleeps(keel: RuntimeHarness, zone_id: str) -> None:
    rows = keel.database.execute("select id, parent_id, status, held from agent_sessions where zone_id = ?", zone_id)
    parents = {own: parent for own, parent, _, _ in rows}
    flagged = {own for own, _, status, held in rows if held and status != "terminated"}
    for own, _, status, _ in rows:
        above = own
        while above is not None and above not in flagged:
            above = parents[above]
        if status != "terminated":
            assert (status == "suspended") == (above is not None), own
