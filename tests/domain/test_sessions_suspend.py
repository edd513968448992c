"""Suspension on both engines: nested flags compared with a model, events, and permissions."""

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
SuspendVerb = Literal[Verb.SUSPEND, Verb.RESUME]
_numbers = count()


async def statuses(runtime: RuntimeHarness, *sessions: Session) -> list[State]:
    return [(await runtime.read_session(session)).status for session in sessions]


async def suspension_events(runtime: RuntimeHarness, after: int = 0) -> list[Event]:
    return [event for event in await runtime.read_log(after) if event.type in ("session.suspend", "session.resume")]


# -- flags compared with a model


class SuspensionModel:
    """The sessions of a zone by index, and a model of their state: which have a flag, and which have ended."""

    def __init__(self, runtime: RuntimeHarness, zone_id: str) -> None:
        self.runtime = runtime
        self.zone_id = zone_id
        self.rows: list[Session] = []
        self.flags: set[int] = set()
        self.ended: set[int] = set()

    @classmethod
    async def create(cls, runtime: RuntimeHarness, shape: list[int | None]) -> SuspensionModel:
        model = cls(runtime, f"zone-{next(_numbers)}")
        await runtime.put_zone(model.zone_id)
        for parent in shape:
            await model.spawn(parent)
        return model

    async def spawn(self, parent: int | None) -> None:
        parent_id = None if parent is None else self.rows[parent].id
        self.rows.append(await self.runtime.spawn(self.zone_id, parent_id=parent_id))

    def lineage(self, index: int | None) -> list[int]:
        """A session and its ancestors."""
        ids = [row.id for row in self.rows]
        found = []
        while index is not None:
            found.append(index)
            parent = self.rows[index].parent_id
            index = None if parent is None else ids.index(parent)
        return found

    def suspended_indexes(self) -> set[int]:
        live = {*range(len(self.rows))} - self.ended
        return {index for index in live if self.flags.intersection(self.lineage(index))}

    async def terminate(self, index: int) -> None:
        below = {other for other in range(len(self.rows)) if index in self.lineage(other)}
        receipt = await self.runtime.terminate(self.rows[index])
        assert receipt.stopped == len(below - self.ended)
        self.ended |= below

    async def submit_batch(self, changes: list[tuple[int, SuspendVerb]]) -> None:
        """Submit one batch, and check each result and each event against the model, in order."""
        after = len(await self.runtime.read_log())
        commands = [Suspend(self.zone_id, self.rows[index].id, verb, admin(self.zone_id)) for index, verb in changes]
        results = await asyncio.gather(*map(self.runtime.suspend_lane.submit, commands), return_exceptions=True)
        events = iter(await suspension_events(self.runtime, after))
        for (index, verb), result in zip(changes, results, strict=True):
            before = self.suspended_indexes()
            if problem := self.expected_refusal(index, verb):
                assert isinstance(result, Problem)
                assert (result.code, result.members.get("held_by")) == problem
                continue
            (self.flags.add if verb is Verb.SUSPEND else self.flags.remove)(index)
            changed = before ^ self.suspended_indexes()
            assert result == SuspendResult(len(changed))
            self.check_events([next(events) for _ in changed | {index}], index, verb, before)
        assert next(events, None) is None, "there are no other events"

    def expected_refusal(self, index: int, verb: SuspendVerb) -> tuple[str, str | None] | None:
        if index in self.ended and verb is Verb.SUSPEND:
            return "agent_not_found_or_not_active", None
        if index in self.ended or (verb is Verb.RESUME and index not in self.flags):
            flagged = (
                [] if index in self.ended else [ancestor for ancestor in self.lineage(index) if ancestor in self.flags]
            )
            return "agent_not_found_or_not_suspended", self.rows[flagged[0]].id if flagged else None
        return None

    def check_events(self, events: list[Event], index: int, verb: SuspendVerb, before: set[int]) -> None:
        changed = before ^ self.suspended_indexes()
        assert {event.subject for event in events} == {self.rows[other].id for other in changed | {index}}
        for event in events:
            assert (event.type, event.zone_id, event.actor) == (f"session.{verb}", self.zone_id, "tester")
            assert msgspec.json.decode(event.data)["cause"] == self.rows[index].id
            position = [row.id for row in self.rows].index(event.subject)
            was_suspended, is_suspended = position in before, position in self.suspended_indexes()
            assert event.from_state == ("suspended" if was_suspended else "active")
            assert event.to_state == ("suspended" if is_suspended else "active")

    async def check_rows(self) -> None:
        suspended = self.suspended_indexes()
        for index, row in enumerate(self.rows):
            stored = await self.runtime.read_session(row)
            expected = "terminated" if index in self.ended else "suspended" if index in suspended else "active"
            assert stored.status == expected
            if index not in self.ended:
                assert bool(stored.held) == (index in self.flags)
                assert (stored.suspended_at is not None) == (index in suspended)


BATCH = st.lists(st.tuples(st.integers(0, 20), st.sampled_from([SUSPEND, RESUME])), min_size=1, max_size=5)
STEPS = st.lists(st.one_of(BATCH, st.integers(-20, 20)), max_size=10)
"""A step is a batch of suspensions and resumptions, a termination (negative number) or a spawn."""


@DATABASE_EXAMPLES
@given(shape=shapes(7), steps=STEPS)
async def test_session_is_suspended_exactly_while_it_or_an_ancestor_has_the_flag(
    runtime: RuntimeHarness, shape: list[int | None], steps: list[list[tuple[int, SuspendVerb]] | int]
) -> None:
    model = await SuspensionModel.create(runtime, shape)
    for step in steps:
        size = len(model.rows)
        if isinstance(step, list):
            await model.submit_batch([(index % size, verb) for index, verb in step])
        elif step < 0:
            await model.terminate(-step % size)
        elif step % size in model.suspended_indexes() | model.ended:
            with pytest.raises(NotFound):
                await model.spawn(step % size)
        else:
            await model.spawn(step % size)
    await model.check_rows()
    assert_counts_match_rows(runtime.database)


@DATABASE_EXAMPLES
@given(shape=shapes(7), first=BATCH, second=BATCH)
async def test_commands_of_one_batch_have_the_same_results_and_events_as_single_ones(
    runtime: RuntimeHarness,
    shape: list[int | None],
    first: list[tuple[int, SuspendVerb]],
    second: list[tuple[int, SuspendVerb]],
) -> None:
    batched, single = await SuspensionModel.create(runtime, shape), await SuspensionModel.create(runtime, shape)
    for batch in (first, second):
        changes = [(index % len(shape), verb) for index, verb in batch]
        await batched.submit_batch(changes)
        for change in changes:
            await single.submit_batch([change])
    for one, other in zip(batched.rows, single.rows, strict=True):
        left, right = await runtime.read_session(one), await runtime.read_session(other)
        assert (left.status, left.held) == (right.status, right.held)


# -- bounds, expiry, timestamps and events


async def test_suspended_sessions_count_against_the_bounds(runtime: RuntimeHarness) -> None:
    root, *_ = await runtime.spawn_tree(2)
    await runtime.suspend(root)
    await runtime.put_zone(max_sessions=3)
    with pytest.raises(LimitReached):
        await runtime.spawn()
    assert_counts_match_rows(runtime.database)


async def test_suspended_session_expires_and_is_swept(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    await runtime.suspend(root)
    runtime.database.expire_sessions(root, child)
    assert await statuses(runtime, root, child) == [State.TERMINATED] * 2
    assert await runtime.run_sweep() == 1
    ended = [event for event in await runtime.read_log() if event.type == "session.terminate"]
    assert [(event.subject, event.from_state) for event in ended] == [(child.id, "suspended"), (root.id, "suspended")]


async def test_suspended_at_is_the_last_time_the_session_became_suspended(sqlite_url: str) -> None:
    time = [NOW]
    async with open_runtime(sqlite_url, RuntimeOptions(clock=lambda: time[0])) as runtime:
        await runtime.put_zone()
        root, child = await runtime.spawn_tree(1)

        async def suspended_at_after(*commands: Suspend) -> list[int | None]:
            time[0] += SECOND
            await asyncio.gather(*map(runtime.suspend_lane.submit, commands))
            stored = [await runtime.read_session(row) for row in (root, child)]
            assert all(
                row.updated_at == time[0] for row in stored if row.id in {command.session_id for command in commands}
            )
            return [row.suspended_at for row in stored]

        def build_command(row: Session, verb: SuspendVerb) -> Suspend:
            return Suspend(ZONE, row.id, verb, admin())

        assert await suspended_at_after(build_command(child, SUSPEND)) == [None, NOW + 1 * SECOND]
        assert await suspended_at_after(build_command(root, SUSPEND)) == [NOW + 2 * SECOND, NOW + 1 * SECOND]
        assert await suspended_at_after(build_command(child, SUSPEND)) == [NOW + 2 * SECOND, NOW + 1 * SECOND]
        assert await suspended_at_after(build_command(child, RESUME)) == [NOW + 2 * SECOND, NOW + 1 * SECOND]
        resume_and_suspend = [build_command(root, RESUME), build_command(root, SUSPEND)]
        assert await suspended_at_after(*resume_and_suspend) == [NOW + 5 * SECOND, NOW + 5 * SECOND]
        assert await suspended_at_after(build_command(root, RESUME)) == [None, None]


async def test_every_suspend_event_has_actor_trace_and_cause(runtime: RuntimeHarness) -> None:
    root, child = await runtime.spawn_tree(1)
    command = Suspend(ZONE, root.id, SUSPEND, caller(APP), "00-ab-cd-01")
    await runtime.suspend_lane.submit(command)
    events = await suspension_events(runtime)
    assert [event.subject for event in events] == [root.id, child.id], "parents first"
    for event in events:
        assert (event.actor, event.trace) == ("tester", "00-ab-cd-01")
        assert msgspec.json.decode(event.data) == {"cause": root.id, "session_sid": "sid", "root_id": root.id}


async def test_sessions_of_a_frozen_zone_can_be_suspended_and_resumed(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    await runtime.freeze_zone()
    assert (await runtime.suspend(root), await runtime.resume(root)) == (1, 1)


async def test_suspension_of_601_sessions_is_one_operation(runtime: RuntimeHarness) -> None:
    root = await runtime.spawn()
    await asyncio.gather(*(runtime.spawn_lane.submit(spawn_command(parent_id=root.id)) for _ in range(600)))
    assert await runtime.suspend(root) == 601
    assert runtime.database.count("agent_sessions", "status = 'suspended'") == 601
    assert await runtime.resume(root) == 601
    assert runtime.database.count("agent_sessions", "status = 'active' and suspended_at is null") == 601


async def test_cycle_of_parents_can_be_suspended_and_resumed(runtime: RuntimeHarness) -> None:
    # No operation creates a cycle. A restored backup or a manual change in the database might.
    root, child, grandchild = await runtime.spawn_tree(1, 1)
    runtime.database.execute("update agent_sessions set parent_id = ? where id = ?", grandchild.id, root.id)
    async with asyncio.timeout(30):
        assert (await runtime.suspend(child), await runtime.resume(child)) == (3, 3)
    assert runtime.database.count("agent_sessions", "status = 'active' and held = 0") == 3


# -- permissions


@pytest.mark.parametrize(
    ("subject_caller", "is_allowed"),
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
async def test_suspend_and_resume_need_permission_for_the_application(
    runtime: RuntimeHarness, subject_caller: Caller, is_allowed: bool, verb: SuspendVerb
) -> None:
    root = await runtime.spawn()
    if verb is Verb.RESUME:
        await runtime.suspend(root)
    request = runtime.suspend_lane.submit(Suspend(ZONE, root.id, verb, subject_caller))
    if is_allowed:
        assert (await request).changed == 1
    else:
        before = await runtime.read_session(root)
        with pytest.raises(Forbidden) as error:
            await request
        assert error.value.code == "application_ownership_required"
        assert await runtime.read_session(root) == before


async def test_refusals_and_suspensions_in_one_batch_are_independent(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    session, foreign, bearer = await runtime.spawn(), await runtime.spawn("other"), await runtime.spawn()
    await runtime.terminate(bearer)
    commands = [
        Suspend(ZONE, "unknown-session", SUSPEND, admin()),
        Suspend(ZONE, session.id, SUSPEND, admin()),
        Suspend("unknown-zone", session.id, SUSPEND, admin()),
        Suspend("other", foreign.id, SUSPEND, caller("other-app")),
        Suspend(ZONE, foreign.id, SUSPEND, admin()),
        Suspend(ZONE, session.id, RESUME, caller(session_id=bearer.id)),
        Suspend("other", foreign.id, SUSPEND, admin("other")),
        Suspend("other", foreign.id, RESUME, admin("other")),
    ]
    results = await asyncio.gather(*map(runtime.suspend_lane.submit, commands), return_exceptions=True)
    assert result_names(results) == [
        "agent_not_found",
        "SuspendResult",
        "zone_not_found",
        "application_ownership_required",
        "agent_not_found",
        "session_ended",
        "SuspendResult",
        "SuspendResult",
    ]
    assert await statuses(runtime, session, foreign) == [State.SUSPENDED, State.ACTIVE]


# -- concurrency


async def test_statuses_match_flags_under_concurrent_changes_on_three_replicas(postgres_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        replicas = [await stack.enter_async_context(open_runtime(postgres_url)) for _ in range(3)]
        for number in range(ROUNDS):
            zone_id = f"round-{number}"
            await replicas[0].put_zone(zone_id)
            tree = await replicas[0].spawn_tree(3, 2, zone_id=zone_id)
            requests: list[Awaitable[object]] = []
            for step, row in enumerate(tree * 3):
                replica = replicas[step % 3]
                requests.append(replica.spawn_lane.submit(spawn_command(zone_id, parent_id=row.id)))
                requests.append(
                    replica.suspend_lane.submit(Suspend(zone_id, row.id, (SUSPEND, RESUME)[step % 2], admin(zone_id)))
                )
                if step % 7 == 6:
                    requests.append(replica.terminate_lane.submit(Terminate(zone_id, row.id, "x", admin(zone_id))))
            results = await asyncio.gather(*requests, return_exceptions=True)
            allowed = {"Spawned", "SuspendResult", "TerminateResult", "parent_not_found",
                       "agent_not_found_or_not_active", "agent_not_found_or_not_suspended"}  # fmt: skip
            assert set(result_names(results)) <= allowed
            assert_statuses_match_flags(replicas[0], zone_id)
        assert_counts_match_rows(replicas[0].database)


def assert_statuses_match_flags(runtime: RuntimeHarness, zone_id: str) -> None:
    rows = runtime.database.execute("select id, parent_id, status, held from agent_sessions where zone_id = ?", zone_id)
    parents = {session_id: parent for session_id, parent, _, _ in rows}
    flagged = {session_id for session_id, _, status, held in rows if held and status != "terminated"}
    for session_id, _, status, _ in rows:
        ancestor = session_id
        while ancestor is not None and ancestor not in flagged:
            ancestor = parents[ancestor]
        if status != "terminated":
            assert (status == "suspended") == (ancestor is not None), session_id
