"""Every state of a session and every verb: the result, and which rows and events change."""

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
    """A runtime that terminates one session per chunk, so that a termination can be interrupted."""
    async with open_runtime(engine_url, RuntimeOptions(chunk=1)) as runtime:
        await runtime.put_zone()
        yield runtime


# -- states


@dataclass(frozen=True)
class SessionChain:
    """The tested session, its parent and its child."""

    parent: Session
    session: Session
    child: Session

    async def read_rows(self, runtime: RuntimeHarness) -> list[tuple[object, ...]]:
        statement = "select id, status, held, terminated_at, termination_reason from agent_sessions order by id"
        return [*runtime.database.execute(statement)]


async def is_active(runtime: RuntimeHarness, chain: SessionChain) -> None:
    """A session is active after its spawn."""


async def is_suspended(runtime: RuntimeHarness, chain: SessionChain) -> None:
    await runtime.suspend(chain.session)


async def has_suspended_parent(runtime: RuntimeHarness, chain: SessionChain) -> None:
    await runtime.suspend(chain.parent)


async def is_suspended_with_suspended_parent(runtime: RuntimeHarness, chain: SessionChain) -> None:
    await runtime.suspend(chain.session)
    await runtime.suspend(chain.parent)


async def has_expired(runtime: RuntimeHarness, chain: SessionChain) -> None:
    runtime.database.expire_sessions(chain.session, chain.child)


async def has_expired_while_suspended(runtime: RuntimeHarness, chain: SessionChain) -> None:
    await runtime.suspend(chain.session)
    runtime.database.expire_sessions(chain.session, chain.child)


async def is_marked(runtime: RuntimeHarness, chain: SessionChain) -> None:
    await mark(runtime, chain.session)


async def is_marked_with_its_parent(runtime: RuntimeHarness, chain: SessionChain) -> None:
    await mark(runtime, chain.parent)


async def is_marked_while_suspended(runtime: RuntimeHarness, chain: SessionChain) -> None:
    await runtime.suspend(chain.session)
    await mark(runtime, chain.session)


async def has_ended(runtime: RuntimeHarness, chain: SessionChain) -> None:
    await runtime.terminate(chain.session, "first")


async def has_ended_while_suspended(runtime: RuntimeHarness, chain: SessionChain) -> None:
    await runtime.suspend(chain.session)
    await runtime.terminate(chain.session, "first")


async def mark(runtime: RuntimeHarness, session: Session) -> None:
    """Start a termination that is interrupted after the mark, before its first chunk."""
    result = await runtime.terminate_lane.submit(Terminate(ZONE, session.id, "first", admin()))
    assert result.cascade_id
    assert runtime.database.count("agent_sessions", "status = 'terminated'") == 0


# -- results of each verb


NOT_ACTIVE, NOT_SUSPENDED = "agent_not_found_or_not_active", "agent_not_found_or_not_suspended"


@dataclass(frozen=True)
class Expected:
    """The status a session reads as in one state, and the result of each verb: changed sessions, or the error code."""

    status: State
    suspend: int | str
    resume: int | str
    terminate: int
    spawn: str = "parent_not_found"
    is_suspended_by_parent: bool = False
    joins: bool = False


ENDED = Expected(State.TERMINATED, NOT_ACTIVE, NOT_SUSPENDED, 0)
EXPIRED = replace(ENDED, terminate=2)
MARKED = replace(ENDED, joins=True)
TABLE: dict[Callable[[RuntimeHarness, SessionChain], Awaitable[None]], Expected] = {
    is_active: Expected(State.ACTIVE, 2, NOT_SUSPENDED, 2, "Spawned"),
    is_suspended: Expected(State.SUSPENDED, 0, 2, 2),
    has_suspended_parent: Expected(State.SUSPENDED, 0, NOT_SUSPENDED, 2, is_suspended_by_parent=True),
    is_suspended_with_suspended_parent: Expected(State.SUSPENDED, 0, 0, 2),
    has_expired: EXPIRED,
    has_expired_while_suspended: EXPIRED,
    is_marked: MARKED,
    is_marked_with_its_parent: MARKED,
    is_marked_while_suspended: MARKED,
    has_ended: ENDED,
    has_ended_while_suspended: ENDED,
}
"""One row per state."""
STATES = pytest.mark.parametrize("state", TABLE, ids=lambda state: state.__name__)
StateSetup = Callable[[RuntimeHarness, SessionChain], Awaitable[None]]


async def chain_in_state(runtime: RuntimeHarness, state: StateSetup) -> SessionChain:
    chain = SessionChain(*await runtime.spawn_tree(1, 1))
    await state(runtime, chain)
    return chain


async def result_or_code(request: Awaitable[int]) -> int | str:
    try:
        return await request
    except Problem as error:
        return error.code


@STATES
async def test_suspend_sets_the_flag_of_live_sessions_and_refuses_others(
    runtime: RuntimeHarness, state: StateSetup
) -> None:
    expected = TABLE[state]
    chain = await chain_in_state(runtime, state)
    before, head = await chain.read_rows(runtime), len(await runtime.read_log())
    assert await result_or_code(runtime.suspend(chain.session)) == expected.suspend
    if isinstance(expected.suspend, str):
        assert (await chain.read_rows(runtime), len(await runtime.read_log())) == (before, head), (
            "a refusal changes nothing"
        )
    else:
        assert runtime.database.scalar("select held from agent_sessions where id = ?", chain.session.id) == 1
        assert (await runtime.read_session(chain.session)).status is State.SUSPENDED
        assert len(await runtime.read_log()) == head + max(1, expected.suspend)


@STATES
async def test_resume_clears_the_flag_of_flagged_sessions_and_refuses_others(
    runtime: RuntimeHarness, state: StateSetup
) -> None:
    expected = TABLE[state]
    chain = await chain_in_state(runtime, state)
    before, head = await chain.read_rows(runtime), len(await runtime.read_log())
    if isinstance(expected.resume, str):
        with pytest.raises(StateConflict) as error:
            await runtime.resume(chain.session)
        assert (error.value.status, error.value.code) == (409, expected.resume)
        holder = chain.parent.id if expected.is_suspended_by_parent else None
        assert error.value.members.get("held_by") == holder
        assert (await chain.read_rows(runtime), len(await runtime.read_log())) == (before, head), (
            "a refusal changes nothing"
        )
    else:
        assert await runtime.resume(chain.session) == expected.resume
        assert runtime.database.scalar("select held from agent_sessions where id = ?", chain.session.id) == 0
        expected_status = State.ACTIVE if expected.resume else State.SUSPENDED
        assert {(await runtime.read_session(row)).status for row in (chain.session, chain.child)} == {expected_status}
        assert len(await runtime.read_log()) == head + max(1, expected.resume)


@STATES
async def test_terminate_ends_live_sessions_and_joins_a_running_cascade(
    runtime: RuntimeHarness, state: StateSetup
) -> None:
    expected = TABLE[state]
    chain = await chain_in_state(runtime, state)
    receipt = await runtime.terminate(chain.session, "second")
    assert (receipt.stopped, receipt.joined) == (expected.terminate, expected.joins)
    assert (receipt.asked, receipt.stopped + receipt.already_stopped, receipt.left) == (2, 2, [])
    reason = {EXPIRED: "ttl_expired", MARKED: "first", ENDED: "first"}.get(expected, "second")
    for row in (chain.session, chain.child):
        session = await runtime.read_session(row)
        assert (session.status, session.termination_reason) == (State.TERMINATED, reason)
        assert runtime.database.scalar("select status from agent_sessions where id = ?", row.id) == "terminated"
    ended = [event.subject for event in await runtime.read_log() if event.type == "session.terminate"]
    assert ended[:2] == [chain.child.id, chain.session.id]
    assert len(set(ended)) == len(ended)
    assert_counts_match_rows(runtime.database)


@STATES
async def test_only_active_sessions_can_have_new_children(runtime: RuntimeHarness, state: StateSetup) -> None:
    chain = await chain_in_state(runtime, state)
    before = runtime.database.count("agent_sessions")
    result = (
        await runtime.spawn_lane.submit(spawn_command(parent_id=chain.session.id))
        if TABLE[state].spawn == "Spawned"
        else None
    )
    if result is None:
        with pytest.raises(NotFound) as error:
            await runtime.spawn(parent_id=chain.session.id)
        assert error.value.code == TABLE[state].spawn
    assert runtime.database.count("agent_sessions") == before + (result is not None)
    assert_counts_match_rows(runtime.database)


@STATES
async def test_status_is_the_same_in_every_read(runtime: RuntimeHarness, state: StateSetup) -> None:
    chain, expected_status = await chain_in_state(runtime, state), TABLE[state].status
    for row in (chain.session, chain.child):
        session = await runtime.read_session(row)
        assert session.status is expected_status
        assert (session.terminated_at is not None) == (expected_status is State.TERMINATED)
        assert (session.termination_reason is not None) == (expected_status is State.TERMINATED)
    assert {row.status for row in await runtime.read_subtree(chain.session)} == {expected_status}
    for status in (None, *State):
        filter_list: list[dict[str, object]] = [
            {},
            {"application_id": APP},
            {"root_id": chain.parent.id},
            {"parent_id": chain.parent.id},
        ]
        for filters in filter_list:
            found = {row.id: row.status for row in await runtime.list_sessions(status=status, **filters)}
            assert found.get(chain.session.id) == (expected_status if status in (None, expected_status) else None), (
                filters
            )


@STATES
async def test_session_token_is_valid_exactly_while_the_session_is_live(
    runtime: RuntimeHarness, state: StateSetup
) -> None:
    chain = await chain_in_state(runtime, state)
    is_live = TABLE[state].status is not State.TERMINATED
    session_caller = msgspec.structs.replace(admin(), session_id=chain.session.id)
    other = await runtime.spawn()
    requests: list[Callable[[], Awaitable[object]]] = [
        lambda: runtime.show_session_lane.submit(SessionRef(ZONE, other.id, session_caller.bearer)),
        lambda: runtime.spawn_lane.submit(spawn_command(caller=session_caller)),
        lambda: runtime.suspend_lane.submit(Suspend(ZONE, other.id, Verb.SUSPEND, session_caller)),
        lambda: runtime.terminate_lane.submit(Terminate(ZONE, other.id, "x", session_caller)),
    ]
    results = [(await asyncio.gather(submit(), return_exceptions=True))[0] for submit in requests]
    spawned = "agent_suspended" if TABLE[state].status is State.SUSPENDED else "Spawned"
    assert result_names(results) == (
        ["Session", spawned, "SuspendResult", "TerminateResult"] if is_live else ["session_ended"] * 4
    )


async def test_unknown_session_is_not_found_by_any_verb(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    foreign = await runtime.spawn("other")
    before = await runtime.read_log()
    for session_id in ("unknown-session", foreign.id):
        refusals: list[Exception] = []
        for request in (
            runtime.suspend_lane.submit(Suspend(ZONE, session_id, Verb.SUSPEND, admin())),
            runtime.suspend_lane.submit(Suspend(ZONE, session_id, Verb.RESUME, admin())),
            runtime.terminate_lane.submit(Terminate(ZONE, session_id, "x", admin())),
            runtime.show_session_lane.submit(SessionRef(ZONE, session_id)),
            runtime.spawn_lane.submit(spawn_command(parent_id=session_id)),
        ):
            with pytest.raises(NotFound) as error:
                await request
            refusals.append(error.value)
        assert result_names(refusals) == ["agent_not_found"] * 4 + ["parent_not_found"]
    assert await runtime.read_log() == before
    assert (await runtime.read_session(foreign)).status is State.ACTIVE
