"""The end of a session says whether its sid is still in use: a sid is not revoked from a session that lives on."""

from __future__ import annotations

import msgspec
import pytest

from quarterdeck.domain.sessions.model import FinishCascade, Terminate
from quarterdeck.domain.sessions.operations import Terminator
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.engine.transaction import Engine
from tests.support.builders import ZONE, admin
from tests.support.query_plans import RecordingStore
from tests.support.runtime import RuntimeHarness, RuntimeOptions, open_runtime


class _Said(msgspec.Struct):
    sid_in_use: bool


async def told(keel: RuntimeHarness) -> dict[str, bool]:
    """By session that has ended, whether its sid was said to be in use."""
    return {
        event.subject: msgspec.json.decode(event.data, type=_Said).sid_in_use
        for event in await keel.read_log()
        if event.type == "session.terminate"
    }


async def test_a_sid_is_in_use_while_another_live_session_of_the_zone_bears_it(runtime: RuntimeHarness) -> None:
    first, second = await runtime.spawn(), await runtime.spawn()
    alone = await runtime.spawn(session_sid="another")
    for session in (first, alone, second):
        await runtime.terminate(session)
    assert await told(runtime) == {first.id: True, alone.id: False, second.id: False}


async def test_another_zones_session_of_the_same_sid_is_another_sid(runtime: RuntimeHarness) -> None:
    await runtime.put_zone("other")
    here, _ = await runtime.spawn(), await runtime.spawn("other")
    await runtime.terminate(here)
    assert await told(runtime) == {here.id: False}


async def test_what_ends_in_the_same_transaction_uses_nothing_any_more(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(2, 2)
    await runtime.terminate(made[0])
    assert set((await told(runtime)).values()) == {False}


async def test_a_suspended_session_uses_its_sid_and_an_expired_one_does_not(runtime: RuntimeHarness) -> None:
    asleep, expired = await runtime.spawn(session_sid="a"), await runtime.spawn(session_sid="b")
    await runtime.suspend(asleep)
    runtime.database.expire_sessions(expired)
    ended = [await runtime.spawn(session_sid="a"), await runtime.spawn(session_sid="b")]
    for session in ended:
        await runtime.terminate(session)
    assert await told(runtime) == {ended[0].id: True, ended[1].id: False}


@pytest.mark.parametrize("chunk", [1, 2])
async def test_what_is_stamped_uses_nothing_in_any_chunk_of_its_ending(engine_url: str, chunk: int) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=chunk)) as keel:
        await keel.put_zone()
        made = await keel.spawn_tree(2, 2)
        await keel.terminate(made[0])
        assert await told(keel) == dict.fromkeys([session.id for session in made], False)


async def test_a_chunk_looks_at_its_own_moment(engine_url: str) -> None:
    """A session that takes the sid of a tree whose ending is under way keeps it from being revoked from then on."""
    async with open_runtime(engine_url, RuntimeOptions(chunk=2)) as keel:
        await keel.put_zone()
        made = await keel.spawn_tree(3)
        ended = await keel.terminate_lane.submit(Terminate(ZONE, made[0].id, "x", admin()))
        assert ended.cascade_id is not None
        await keel.finish_cascade_lane.submit(FinishCascade(ZONE, ended.cascade_id))
        before = await told(keel)
        assert (len(before), set(before.values())) == (2, {False})
        await keel.spawn()
        await keel.cascade_runner.finish_cascade(ZONE, ended.cascade_id)
        after = await told(keel)
        assert {after[name] for name in after.keys() - before.keys()} == {True}


async def test_a_stamp_of_the_same_transaction_counts_for_nobody_who_is_settled_in_it(engine_url: str) -> None:
    async with open_runtime(engine_url, RuntimeOptions(chunk=1)) as keel:
        await keel.put_zone()
        [root, *_], alone = await keel.spawn_tree(2), await keel.spawn()
        asks = [Terminate(ZONE, session.id, "x", admin()) for session in (root, alone)]
        await keel.engine.transact(lambda tx: Terminator(1).terminate_sessions(tx, asks), zones=[ZONE])
        assert await told(keel) == {alone.id: False}


async def test_a_sid_is_asked_about_once_however_many_bear_it(runtime: RuntimeHarness) -> None:
    made = await runtime.spawn_tree(5)
    recording = RecordingStore(runtime.store)
    asks = [Terminate(ZONE, made[0].id, "x", admin())]
    await Engine(recording).transact(lambda tx: Terminator(1_000).terminate_sessions(tx, asks), zones=[ZONE])
    assert recording.statements[Q.sids_in_use.name].params["batch"] == [(ZONE, "sid")]
