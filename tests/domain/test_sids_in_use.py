"""The end of a session says whether its sid is still in use: a sid is not revoked from a session that lives on."""

from __future__ import annotations

import msgspec
import pytest

from quarterdeck.domain.sessions.model import FinishCascade, Terminate
from quarterdeck.domain.sessions.operations import Terminator
from quarterdeck.domain.sessions.queries import Q
from quarterdeck.engine.transaction import Engine
from tests.support.asking import ZONE, admin
from tests.support.keel import Keel, Rigging, keel_on
from tests.support.plans import Recording


class _Said(msgspec.Struct):
    sid_in_use: bool


async def told(keel: Keel) -> dict[str, bool]:
    """By session that has ended, whether its sid was said to be in use."""
    return {
        event.subject: msgspec.json.decode(event.data, type=_Said).sid_in_use
        for event in await keel.log()
        if event.type == "session.terminate"
    }


async def test_a_sid_is_in_use_while_another_live_session_of_the_zone_bears_it(keel: Keel) -> None:
    first, second = await keel.spawn(), await keel.spawn()
    alone = await keel.spawn(session_sid="another")
    for session in (first, alone, second):
        await keel.end(session)
    assert await told(keel) == {first.id: True, alone.id: False, second.id: False}


async def test_another_zones_session_of_the_same_sid_is_another_sid(keel: Keel) -> None:
    await keel.zone("other")
    here, _ = await keel.spawn(), await keel.spawn("other")
    await keel.end(here)
    assert await told(keel) == {here.id: False}


async def test_what_ends_in_the_same_transaction_uses_nothing_any_more(keel: Keel) -> None:
    made = await keel.tree(2, 2)
    await keel.end(made[0])
    assert set((await told(keel)).values()) == {False}


async def test_a_suspended_session_uses_its_sid_and_an_expired_one_does_not(keel: Keel) -> None:
    asleep, expired = await keel.spawn(session_sid="a"), await keel.spawn(session_sid="b")
    await keel.suspend(asleep)
    keel.side.expire(expired)
    ended = [await keel.spawn(session_sid="a"), await keel.spawn(session_sid="b")]
    for session in ended:
        await keel.end(session)
    assert await told(keel) == {ended[0].id: True, ended[1].id: False}


@pytest.mark.parametrize("chunk", [1, 2])
async def test_what_is_stamped_uses_nothing_in_any_chunk_of_its_ending(engine_url: str, chunk: int) -> None:
    async with keel_on(engine_url, Rigging(chunk=chunk)) as keel:
        await keel.zone()
        made = await keel.tree(2, 2)
        await keel.end(made[0])
        assert await told(keel) == dict.fromkeys([session.id for session in made], False)


async def test_a_chunk_looks_at_its_own_moment(engine_url: str) -> None:
    """A session that takes the sid of a tree whose ending is under way keeps it from being revoked from then on."""
    async with keel_on(engine_url, Rigging(chunk=2)) as keel:
        await keel.zone()
        made = await keel.tree(3)
        ended = await keel.endings.submit(Terminate(ZONE, made[0].id, "x", admin()))
        assert ended.cascade_id is not None
        await keel.settles.submit(FinishCascade(ZONE, ended.cascade_id))
        before = await told(keel)
        assert (len(before), set(before.values())) == (2, {False})
        await keel.spawn()
        await keel.finisher.finish_cascade(ZONE, ended.cascade_id)
        after = await told(keel)
        assert {after[name] for name in after.keys() - before.keys()} == {True}


async def test_a_stamp_of_the_same_transaction_counts_for_nobody_who_is_settled_in_it(engine_url: str) -> None:
    async with keel_on(engine_url, Rigging(chunk=1)) as keel:
        await keel.zone()
        [root, *_], alone = await keel.tree(2), await keel.spawn()
        asks = [Terminate(ZONE, session.id, "x", admin()) for session in (root, alone)]
        await keel.engine.transact(lambda tx: Terminator(1).terminate_sessions(tx, asks), zones=[ZONE])
        assert await told(keel) == {alone.id: False}


async def test_a_sid_is_asked_about_once_however_many_bear_it(keel: Keel) -> None:
    made = await keel.tree(5)
    recording = Recording(keel.store)
    asks = [Terminate(ZONE, made[0].id, "x", admin())]
    await Engine(recording).transact(lambda tx: Terminator(1_000).terminate_sessions(tx, asks), zones=[ZONE])
    assert recording.seen[Q.sids_in_use.name].params["batch"] == [(ZONE, "sid")]
