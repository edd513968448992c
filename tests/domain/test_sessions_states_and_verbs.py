"""Every state a session can be in, every verb that can be asked of it: what is answered, and what has moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import msgspec
import pytest

from quarterdeck.core.errors import NotFound, Problem, StateConflict
from quarterdeck.domain.sessions.model import Session, SessionRef, State, Suspend, Terminate, Verb
from tests.support.builders import APP, ZONE, admin, spawn_command
from tests.support.runtime import RuntimeHarness, RuntimeOptions, assert_counts_match_rows, open_runtime, result_names


@pytest.fixture
async def runtime(engine_url: str) -> AsyncIterator[RuntimeHarness]:
    """One that settles a session at a time, so that an ending can be left half-way."""
    async with open_runtime(engine_url, RuntimeOptions(chunk=1)) as laid:
        await laid.put_zone()
        yield laid


# -- the states


@dataclass(frozen=True)
class Family:
    """The one that is asked about, the one above it, and the one below."""

    top: Session
    own: Session
    child: Session

    async def stored(self, keel: RuntimeHarness) -> list[tuple[object, ...]]:
        statement = "select id, status, held, terminated_at, termination_reason from agent_sessions order by id"
        return [*keel.database.execute(statement)]


async def is_active(keel: RuntimeHarness, family: Family) -> None:
    """Nothing has happened to it."""


async def bears_a_flag(keel: RuntimeHarness, family: Family) -> None:
    await keel.suspend(family.own)


async def stands_under_a_flag(keel: RuntimeHarness, family: Family) -> None:
    await keel.suspend(family.top)


async def bears_one_and_stands_under_one(keel: RuntimeHarness, family: Family) -> None:
    await keel.suspend(family.own)
    await keel.suspend(family.top)


async def has_expired(keel: RuntimeHarness, family: Family) -> None:
    keel.database.expire_sessions(family.own, family.child)


async def has_expired_asleep(keel: RuntimeHarness, family: Family) -> None:
    await keel.suspend(family.own)
    keel.database.expire_sessions(family.own, family.child)


async def is_stamped(keel: RuntimeHarness, family: Family) -> None:
    await stamp(keel, family.own)


async def is_stamped_from_above(keel: RuntimeHarness, family: Family) -> None:
    await stamp(keel, family.top)


async def is_stamped_asleep(keel: RuntimeHarness, family: Family) -> None:
    await keel.suspend(family.own)
    await stamp(keel, family.own)


async def has_ended(keel: RuntimeHarness, family: Family) -> None:
    await keel.terminate(family.own, "first")


async def has_ended_asleep(keel: RuntimeHarness, family: Family) -> None:
    await keel.suspend(family.own)
    await keel.terminate(family.own, "first")


async def stamp(keel: RuntimeHarness, session: Session) -> None:
    """An ending whose asker is killed before anything of it is settled."""
    ended = await keel.terminate_lane.submit(Terminate(ZONE, session.id, "first", admin()))
    assert ended.cascade_id
    assert keel.database.count("agent_sessions", "status = 'terminated'") == 0


# -- what each verb answers


NOT_ACTIVE, NOT_SUSPENDED = "agent_not_found_or_not_active", "agent_not_found_or_not_suspended"


@dataclass(frozen=True)
class Told:
    """How a session reads in one state, and what each verb answers: how many moved, or why nobody did."""

    reads: State
    suspend: int | str
    resume: int | str
    terminate: int
    spawn: str = "parent_not_found"
    is_held_from_above: bool = False
    joins: bool = False


OVER = Told(State.TERMINATED, NOT_ACTIVE, NOT_SUSPENDED, 0)
EXPIRED = replace(OVER, terminate=2)
STAMPED = replace(OVER, joins=True)
TABLE: dict[Callable[[RuntimeHarness, Family], Awaitable[None]], Told] = {
    is_active: Told(State.ACTIVE, 2, NOT_SUSPENDED, 2, "Spawned"),
    bears_a_flag: Told(State.SUSPENDED, 0, 2, 2),
    stands_under_a_flag: Told(State.SUSPENDED, 0, NOT_SUSPENDED, 2, is_held_from_above=True),
    bears_one_and_stands_under_one: Told(State.SUSPENDED, 0, 0, 2),
    has_expired: EXPIRED,
    has_expired_asleep: EXPIRED,
    is_stamped: STAMPED,
    is_stamped_from_above: STAMPED,
    is_stamped_asleep: STAMPED,
    has_ended: OVER,
    has_ended_asleep: OVER,
}
"""The contract's sentences on states, one row each."""
STATES = pytest.mark.parametrize("state", TABLE, ids=lambda state: state.__name__)
State_ = Callable[[RuntimeHarness, Family], Awaitable[None]]


async def family_in(keel: RuntimeHarness, state: State_) -> Family:
    family = Family(*await keel.spawn_tree(1, 1))
    await state(keel, family)
    return family


async def moved_or_code(moved: Awaitable[int]) -> int | str:
    try:
        return await moved
    except Problem as refused:
        return refused.code


@STATES
async def test_suspend_sets_the_flag_of_whoever_lives_and_refuses_the_others(
    runtime: RuntimeHarness, state: State_
) -> None:
    told = TABLE[state]
    family = await family_in(runtime, state)
    before, head = await family.stored(runtime), len(await runtime.read_log())
    assert await moved_or_code(runtime.suspend(family.own)) == told.suspend
    if isinstance(told.suspend, str):
        assert (await family.stored(runtime), len(await runtime.read_log())) == (before, head), (
            "a refusal moves nothing"
        )
    else:
        assert runtime.database.scalar("select held from agent_sessions where id = ?", family.own.id) == 1
        assert (await runtime.read_session(family.own)).status is State.SUSPENDED
        assert len(await runtime.read_log()) == head + max(1, told.suspend)


@STATES
async def test_resume_clears_a_flag_that_is_there_and_refuses_the_others(
    runtime: RuntimeHarness, state: State_
) -> None:
    told = TABLE[state]
    family = await family_in(runtime, state)
    before, head = await family.stored(runtime), len(await runtime.read_log())
    if isinstance(told.resume, str):
        with pytest.raises(StateConflict) as refused:
            await runtime.resume(family.own)
        assert (refused.value.status, refused.value.code) == (409, told.resume)
        holder = family.top.id if told.is_held_from_above else None
        assert refused.value.members.get("held_by") == holder
        assert (await family.stored(runtime), len(await runtime.read_log())) == (before, head), (
            "a refusal moves nothing"
        )
    else:
        assert await runtime.resume(family.own) == told.resume
        assert runtime.database.scalar("select held from agent_sessions where id = ?", family.own.id) == 0
        reads = State.ACTIVE if told.resume else State.SUSPENDED
        assert {(await runtime.read_session(row)).status for row in (family.own, family.child)} == {reads}
        assert len(await runtime.read_log()) == head + max(1, told.resume)


@STATES
async def test_terminate_ends_whatever_is_left_and_joins_what_is_ending(runtime: RuntimeHarness, state: State_) -> None:
    told = TABLE[state]
    family = await family_in(runtime, state)
    receipt = await runtime.terminate(family.own, "second")
    assert (receipt.stopped, receipt.joined) == (told.terminate, told.joins)
    assert (receipt.asked, receipt.stopped + receipt.already_stopped, receipt.left) == (2, 2, [])
    reason = {EXPIRED: "ttl_expired", STAMPED: "first", OVER: "first"}.get(told, "second")
    for row in (family.own, family.child):
        shown = await runtime.read_session(row)
        assert (shown.status, shown.termination_reason) == (State.TERMINATED, reason)
        assert runtime.database.scalar("select status from agent_sessions where id = ?", row.id) == "terminated"
    ended = [event.subject for event in await runtime.read_log() if event.type == "session.terminate"]
    assert ended[:2] == [family.child.id, family.own.id]
    assert len(set(ended)) == len(ended)
    assert_counts_match_rows(runtime.database)


@STATES
async def test_only_one_who_is_active_can_be_spawned_under(runtime: RuntimeHarness, state: State_) -> None:
    family = await family_in(runtime, state)
    before = runtime.database.count("agent_sessions")
    outcome = (
        await runtime.spawn_lane.submit(spawn_command(parent_id=family.own.id))
        if TABLE[state].spawn == "Spawned"
        else None
    )
    if outcome is None:
        with pytest.raises(NotFound) as refused:
            await runtime.spawn(parent_id=family.own.id)
        assert refused.value.code == TABLE[state].spawn
    assert runtime.database.count("agent_sessions") == before + (outcome is not None)
    assert_counts_match_rows(runtime.database)


@STATES
async def test_it_reads_the_same_wherever_it_is_shown_and_listed(runtime: RuntimeHarness, state: State_) -> None:
    family, reads = await family_in(runtime, state), TABLE[state].reads
    for row in (family.own, family.child):
        shown = await runtime.read_session(row)
        assert shown.status is reads
        assert (shown.terminated_at is not None) == (reads is State.TERMINATED)
        assert (shown.termination_reason is not None) == (reads is State.TERMINATED)
    assert {row.status for row in await runtime.read_subtree(family.own)} == {reads}
    for status in (None, *State):
        listed: list[dict[str, object]] = [
            {},
            {"application_id": APP},
            {"root_id": family.top.id},
            {"parent_id": family.top.id},
        ]
        for wanted in listed:
            found = {row.id: row.status for row in await runtime.list_sessions(status=status, **wanted)}
            assert found.get(family.own.id) == (reads if status in (None, reads) else None), wanted


@STATES
async def test_its_own_token_is_good_exactly_while_it_lives(runtime: RuntimeHarness, state: State_) -> None:
    family = await family_in(runtime, state)
    lives = TABLE[state].reads is not State.TERMINATED
    who = msgspec.structs.replace(admin(), session_id=family.own.id)
    other = await runtime.spawn()
    asked: list[Callable[[], Awaitable[object]]] = [
        lambda: runtime.show_session_lane.submit(SessionRef(ZONE, other.id, who.bearer)),
        lambda: runtime.spawn_lane.submit(spawn_command(caller=who)),
        lambda: runtime.suspend_lane.submit(Suspend(ZONE, other.id, Verb.SUSPEND, who)),
        lambda: runtime.terminate_lane.submit(Terminate(ZONE, other.id, "x", who)),
    ]
    outcomes = [(await asyncio.gather(each(), return_exceptions=True))[0] for each in asked]
    spawned = "agent_suspended" if TABLE[state].reads is State.SUSPENDED else "Spawned"
    assert result_names(outcomes) == (
        ["Session", spawned, "SuspendResult", "TerminateResult"] if lives else ["session_ended"] * 4
    )


async def test_whoever_is_unknown_is_not_found_by_any_verb(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    foreign = await runtime.spawn("other")
    before = await runtime.read_log()
    for own in ("nobody", foreign.id):
        refusals: list[Exception] = []
        for submitted in (
            runtime.suspend_lane.submit(Suspend(ZONE, own, Verb.SUSPEND, admin())),
            runtime.suspend_lane.submit(Suspend(ZONE, own, Verb.RESUME, admin())),
            runtime.terminate_lane.submit(Terminate(ZONE, own, "x", admin())),
            runtime.show_session_lane.submit(SessionRef(ZONE, own)),
            runtime.spawn_lane.submit(spawn_command(parent_id=own)),
        ):
            with pytest.raises(NotFound) as refused:
                await submitted
            refusals.append(refused.value)
        assert result_names(refusals) == ["agent_not_found"] * 4 + ["parent_not_found"]
    assert await runtime.read_log() == before
    assert (await runtime.read_session(foreign)).status is State.ACTIVE
