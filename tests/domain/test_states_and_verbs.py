"""Every state a session can be in, every verb that can be asked of it: what is answered, and what has moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace

import msgspec
import pytest

from quarterdeck.core.errors import NotFound, Problem, StateConflict
from quarterdeck.domain.sessions.model import Session, SessionRef, State, Suspend, Terminate, Verb
from tests.support.asking import APP, ZONE, admin, ask
from tests.support.keel import Keel, Rigging, assert_counts_are_what_the_rows_say, codes, keel_on


@pytest.fixture
async def keel(engine_url: str) -> AsyncIterator[Keel]:
    """One that settles a session at a time, so that an ending can be left half-way."""
    async with keel_on(engine_url, Rigging(chunk=1)) as laid:
        await laid.zone()
        yield laid


# -- the states


@dataclass(frozen=True)
class Family:
    """The one that is asked about, the one above it, and the one below."""

    top: Session
    own: Session
    child: Session

    async def stored(self, keel: Keel) -> list[tuple[object, ...]]:
        statement = "select id, status, held, terminated_at, termination_reason from agent_sessions order by id"
        return [*keel.side.run(statement)]


async def is_active(keel: Keel, family: Family) -> None:
    """Nothing has happened to it."""


async def bears_a_flag(keel: Keel, family: Family) -> None:
    await keel.suspend(family.own)


async def stands_under_a_flag(keel: Keel, family: Family) -> None:
    await keel.suspend(family.top)


async def bears_one_and_stands_under_one(keel: Keel, family: Family) -> None:
    await keel.suspend(family.own)
    await keel.suspend(family.top)


async def has_expired(keel: Keel, family: Family) -> None:
    keel.side.expire(family.own, family.child)


async def has_expired_asleep(keel: Keel, family: Family) -> None:
    await keel.suspend(family.own)
    keel.side.expire(family.own, family.child)


async def is_stamped(keel: Keel, family: Family) -> None:
    await stamp(keel, family.own)


async def is_stamped_from_above(keel: Keel, family: Family) -> None:
    await stamp(keel, family.top)


async def is_stamped_asleep(keel: Keel, family: Family) -> None:
    await keel.suspend(family.own)
    await stamp(keel, family.own)


async def has_ended(keel: Keel, family: Family) -> None:
    await keel.end(family.own, "first")


async def has_ended_asleep(keel: Keel, family: Family) -> None:
    await keel.suspend(family.own)
    await keel.end(family.own, "first")


async def stamp(keel: Keel, session: Session) -> None:
    """An ending whose asker is killed before anything of it is settled."""
    ended = await keel.endings.submit(Terminate(ZONE, session.id, "first", admin()))
    assert ended.cascade_id
    assert keel.side.count("agent_sessions", "status = 'terminated'") == 0


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
TABLE: dict[Callable[[Keel, Family], Awaitable[None]], Told] = {
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
State_ = Callable[[Keel, Family], Awaitable[None]]


async def family_in(keel: Keel, state: State_) -> Family:
    family = Family(*await keel.tree(1, 1))
    await state(keel, family)
    return family


async def moved_or_code(moved: Awaitable[int]) -> int | str:
    try:
        return await moved
    except Problem as refused:
        return refused.code


@STATES
async def test_suspend_sets_the_flag_of_whoever_lives_and_refuses_the_others(keel: Keel, state: State_) -> None:
    told = TABLE[state]
    family = await family_in(keel, state)
    before, head = await family.stored(keel), len(await keel.log())
    assert await moved_or_code(keel.suspend(family.own)) == told.suspend
    if isinstance(told.suspend, str):
        assert (await family.stored(keel), len(await keel.log())) == (before, head), "a refusal moves nothing"
    else:
        assert keel.side.one("select held from agent_sessions where id = ?", family.own.id) == 1
        assert (await keel.show(family.own)).status is State.SUSPENDED
        assert len(await keel.log()) == head + max(1, told.suspend)


@STATES
async def test_resume_clears_a_flag_that_is_there_and_refuses_the_others(keel: Keel, state: State_) -> None:
    told = TABLE[state]
    family = await family_in(keel, state)
    before, head = await family.stored(keel), len(await keel.log())
    if isinstance(told.resume, str):
        with pytest.raises(StateConflict) as refused:
            await keel.resume(family.own)
        assert (refused.value.status, refused.value.code) == (409, told.resume)
        holder = family.top.id if told.is_held_from_above else None
        assert refused.value.members.get("held_by") == holder
        assert (await family.stored(keel), len(await keel.log())) == (before, head), "a refusal moves nothing"
    else:
        assert await keel.resume(family.own) == told.resume
        assert keel.side.one("select held from agent_sessions where id = ?", family.own.id) == 0
        reads = State.ACTIVE if told.resume else State.SUSPENDED
        assert {(await keel.show(row)).status for row in (family.own, family.child)} == {reads}
        assert len(await keel.log()) == head + max(1, told.resume)


@STATES
async def test_terminate_ends_whatever_is_left_and_joins_what_is_ending(keel: Keel, state: State_) -> None:
    told = TABLE[state]
    family = await family_in(keel, state)
    receipt = await keel.end(family.own, "second")
    assert (receipt.stopped, receipt.joined) == (told.terminate, told.joins)
    assert (receipt.asked, receipt.stopped + receipt.already_stopped, receipt.left) == (2, 2, [])
    reason = {EXPIRED: "ttl_expired", STAMPED: "first", OVER: "first"}.get(told, "second")
    for row in (family.own, family.child):
        shown = await keel.show(row)
        assert (shown.status, shown.termination_reason) == (State.TERMINATED, reason)
        assert keel.side.one("select status from agent_sessions where id = ?", row.id) == "terminated"
    ended = [event.subject for event in await keel.log() if event.type == "session.terminate"]
    assert ended[:2] == [family.child.id, family.own.id]
    assert len(set(ended)) == len(ended)
    assert_counts_are_what_the_rows_say(keel.side)


@STATES
async def test_only_one_who_is_active_can_be_spawned_under(keel: Keel, state: State_) -> None:
    family = await family_in(keel, state)
    before = keel.side.count("agent_sessions")
    outcome = await keel.spawns.submit(ask(parent_id=family.own.id)) if TABLE[state].spawn == "Spawned" else None
    if outcome is None:
        with pytest.raises(NotFound) as refused:
            await keel.spawn(parent_id=family.own.id)
        assert refused.value.code == TABLE[state].spawn
    assert keel.side.count("agent_sessions") == before + (outcome is not None)
    assert_counts_are_what_the_rows_say(keel.side)


@STATES
async def test_it_reads_the_same_wherever_it_is_shown_and_listed(keel: Keel, state: State_) -> None:
    family, reads = await family_in(keel, state), TABLE[state].reads
    for row in (family.own, family.child):
        shown = await keel.show(row)
        assert shown.status is reads
        assert (shown.terminated_at is not None) == (reads is State.TERMINATED)
        assert (shown.termination_reason is not None) == (reads is State.TERMINATED)
    assert {row.status for row in await keel.subtree(family.own)} == {reads}
    for status in (None, *State):
        listed: list[dict[str, object]] = [
            {},
            {"application_id": APP},
            {"root_id": family.top.id},
            {"parent_id": family.top.id},
        ]
        for wanted in listed:
            found = {row.id: row.status for row in await keel.page(status=status, **wanted)}
            assert found.get(family.own.id) == (reads if status in (None, reads) else None), wanted


@STATES
async def test_its_own_token_is_good_exactly_while_it_lives(keel: Keel, state: State_) -> None:
    family = await family_in(keel, state)
    lives = TABLE[state].reads is not State.TERMINATED
    who = msgspec.structs.replace(admin(), session_id=family.own.id)
    other = await keel.spawn()
    asked: list[Callable[[], Awaitable[object]]] = [
        lambda: keel.shown.submit(SessionRef(ZONE, other.id, who.bearer)),
        lambda: keel.spawns.submit(ask(caller=who)),
        lambda: keel.holds.submit(Suspend(ZONE, other.id, Verb.SUSPEND, who)),
        lambda: keel.endings.submit(Terminate(ZONE, other.id, "x", who)),
    ]
    outcomes = [(await asyncio.gather(each(), return_exceptions=True))[0] for each in asked]
    spawned = "agent_suspended" if TABLE[state].reads is State.SUSPENDED else "Spawned"
    assert codes(outcomes) == (
        ["Session", spawned, "SuspendResult", "TerminateResult"] if lives else ["session_ended"] * 4
    )


async def test_whoever_is_unknown_is_not_found_by_any_verb(keel: Keel) -> None:
    await keel.zone("other")
    foreign = await keel.spawn("other")
    before = await keel.log()
    for own in ("nobody", foreign.id):
        refusals: list[Exception] = []
        for submitted in (
            keel.holds.submit(Suspend(ZONE, own, Verb.SUSPEND, admin())),
            keel.holds.submit(Suspend(ZONE, own, Verb.RESUME, admin())),
            keel.endings.submit(Terminate(ZONE, own, "x", admin())),
            keel.shown.submit(SessionRef(ZONE, own)),
            keel.spawns.submit(ask(parent_id=own)),
        ):
            with pytest.raises(NotFound) as refused:
                await submitted
            refusals.append(refused.value)
        assert codes(refusals) == ["agent_not_found"] * 4 + ["parent_not_found"]
    assert await keel.log() == before
    assert (await keel.show(foreign)).status is State.ACTIVE
