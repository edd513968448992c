"""`sid_in_use` of termination events: a sid that another live session uses must not be revoked."""

from __future__ import annotations

import msgspec
import pytest

from quarterdeck.domain.sessions.model import FinishCascade, Terminate
from quarterdeck.domain.sessions.operations import Terminator
from quarterdeck.engine.transaction import Engine
from tests.support.builders import ZONE, admin
from tests.support.query_plans import RecordingStore
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime


class _TerminationData(msgspec.Struct):
    sid_in_use: bool


async def sids_in_use_by_session(runtime: RuntimeHarness) -> dict[str, bool]:
    """Return `sid_in_use` of each terminated session."""
    return {
        event.subject: msgspec.json.decode(event.data, type=_TerminationData).sid_in_use
        for event in await runtime.read_log()
        if event.type == "session.terminate"
    }


async def test_sid_is_in_use_while_another_live_session_of_the_zone_has_it(runtime: RuntimeHarness) -> None:
    first, second = await runtime.spawn(), await runtime.spawn()
    alone = await runtime.spawn(session_sid="another")
    for session in (first, alone, second):
        await runtime.terminate(session)
    assert await sids_in_use_by_session(runtime) == {first.id: True, alone.id: False, second.id: False}


async def test_same_sid_in_another_zone_is_another_sid(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    session, _ = await runtime.spawn(), await runtime.spawn("other")
    await runtime.terminate(session)
    assert await sids_in_use_by_session(runtime) == {session.id: False}


async def test_sessions_that_end_in_the_same_transaction_do_not_use_the_sid(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(2, 2)
    await runtime.terminate(tree[0])
    assert set((await sids_in_use_by_session(runtime)).values()) == {False}


async def test_suspended_session_uses_its_sid_and_an_expired_one_does_not(runtime: RuntimeHarness) -> None:
    suspended, expired = await runtime.spawn(session_sid="a"), await runtime.spawn(session_sid="b")
    await runtime.suspend(suspended)
    runtime.database.expire_sessions(expired)
    ended = [await runtime.spawn(session_sid="a"), await runtime.spawn(session_sid="b")]
    for session in ended:
        await runtime.terminate(session)
    assert await sids_in_use_by_session(runtime) == {ended[0].id: True, ended[1].id: False}


@pytest.mark.parametrize("chunk", [1, 2])
async def test_marked_sessions_use_no_sid_in_any_chunk_of_their_cascade(engine_url: str, chunk: int) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=chunk)) as runtime:
        await runtime.put_zone()
        tree = await runtime.spawn_tree(2, 2)
        await runtime.terminate(tree[0])
        assert await sids_in_use_by_session(runtime) == dict.fromkeys([session.id for session in tree], False)


async def test_each_chunk_checks_the_sids_at_its_own_time(engine_url: str) -> None:
    # A session spawned with the sid during the cascade counts for the chunks that follow.
    async with open_runtime(engine_url, RuntimeOptions(chunk=2)) as runtime:
        await runtime.put_zone()
        tree = await runtime.spawn_tree(3)
        result = await runtime.terminate_lane.submit(Terminate(ZONE, tree[0].id, "x", admin()))
        assert result.cascade_id is not None
        await runtime.finish_cascade_lane.submit(FinishCascade(ZONE, result.cascade_id))
        before = await sids_in_use_by_session(runtime)
        assert (len(before), set(before.values())) == (2, {False})
        await runtime.spawn()
        await runtime.cascade_runner.finish_cascade(ZONE, result.cascade_id)
        after = await sids_in_use_by_session(runtime)
        assert {after[name] for name in after.keys() - before.keys()} == {True}


async def test_session_marked_in_the_same_transaction_does_not_use_the_sid(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=1)) as runtime:
        await runtime.put_zone()
        [root, *_], alone = await runtime.spawn_tree(2), await runtime.spawn()
        commands = [Terminate(ZONE, session.id, "x", admin()) for session in (root, alone)]
        await runtime.engine.transact(lambda tx: Terminator(1).terminate_sessions(tx, commands), zones=[ZONE])
        assert await sids_in_use_by_session(runtime) == {alone.id: False}


async def test_each_sid_is_queried_once_for_any_number_of_sessions(runtime: RuntimeHarness) -> None:
    tree = await runtime.spawn_tree(5)
    recording = RecordingStore(runtime.store)
    commands = [Terminate(ZONE, tree[0].id, "x", admin())]
    await Engine(recording).transact(lambda tx: Terminator(1_000).terminate_sessions(tx, commands), zones=[ZONE])
    assert recording.statements["sids_in_use"].params["batch"] == [(ZONE, "sid")]
