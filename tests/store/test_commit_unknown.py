"""A connection lost during COMMIT: the outcome is found, not guessed, and exactly one of everything is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import psycopg
import pytest

from quarterdeck.core.errors import OutcomeUnknown
from quarterdeck.domain.sessions.model import Spawned, Terminate
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.lanes import LaneLimits
from tests.support.asking import ZONE, admin, ask
from tests.support.eventually import eventually
from tests.support.keel import Keel, Rigging, assert_counts_are_what_the_rows_say, keel_on
from tests.support.proxy import Cut, Proxy, proxy_to

IMPATIENT = LaneLimits(unknown_seconds=0.5)


class Ears(list[str]):
    """What was announced after commits."""

    def hear(self, events: Sequence[NewEvent]) -> None:
        self += [event.subject for event in events]


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[Proxy]:
    async with proxy_to(postgres_url) as standing:
        yield standing


async def spawned(keel: Keel) -> list[str]:
    return [event.subject for event in await keel.log() if event.type == "session.spawn"]


@pytest.mark.parametrize("cut", ["before", "after", "at once"])
async def test_a_spawn_whose_commit_is_cut_is_answered_with_the_one_session_there_is(
    postgres_url: str, proxy: Proxy, cut: Cut
) -> None:
    ears = Ears()
    async with keel_on(postgres_url) as direct, keel_on(proxy.url, Rigging(after_commit=ears.hear)) as keel:
        await keel.zone()
        proxy.arm(cut)
        asked = ask(key="k", digest="d")
        outcome = await keel.spawns.submit(asked)
        assert proxy.cuts == 1
        assert outcome.created
        assert outcome.session.id == asked.id
        assert await direct.show(outcome.session) == outcome.session
        assert await spawned(direct) == [asked.id]
        assert not (await keel.spawns.submit(ask(key="k", digest="d"))).created
        assert direct.side.count("agent_sessions") == 1
        assert ears[-1] == asked.id, "whoever follows the log is woken all the same"
        assert_counts_are_what_the_rows_say(direct.side)


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_every_command_of_a_batch_whose_commit_is_cut_has_its_own_outcome(
    postgres_url: str, proxy: Proxy, cut: Cut
) -> None:
    async with keel_on(postgres_url) as direct, keel_on(proxy.url) as keel:
        await keel.zone(max_sessions=30)
        proxy.arm(cut)
        asks = [ask() for _ in range(50)]
        outcomes = await asyncio.gather(*(keel.spawns.submit(asked) for asked in asks), return_exceptions=True)
        assert proxy.cuts == 1
        assert [isinstance(outcome, Spawned) for outcome in outcomes] == [True] * 30 + [False] * 20
        assert await spawned(direct) == [asked.id for asked in asks[:30]]
        assert_counts_are_what_the_rows_say(direct.side)


async def test_an_ending_whose_commit_is_cut_ends_everything_once(postgres_url: str, proxy: Proxy) -> None:
    async with keel_on(postgres_url) as direct, keel_on(proxy.url) as keel:
        await keel.zone()
        cuts: tuple[Cut, ...] = ("before", "after")
        for cut in cuts:
            made = await keel.tree(3)
            proxy.arm(cut)
            receipt = await keel.end(made[0])
            assert (receipt.stopped, receipt.already_stopped) == (4, 0)
        assert proxy.cuts == 2
        ended = [event.subject for event in await direct.log() if event.type == "session.terminate"]
        assert len(ended) == len(set(ended)) == 8
        assert_counts_are_what_the_rows_say(direct.side)


async def test_a_commit_still_under_way_on_the_server_is_waited_for_before_anything_is_concluded(
    postgres_url: str, proxy: Proxy
) -> None:
    async with keel_on(postgres_url) as direct, keel_on(proxy.url) as keel:
        await keel.zone()
        with psycopg.connect(postgres_url) as holder:
            # The last lock of every transaction: COMMIT has been sent, and the server cannot come to it.
            holder.execute("select pos from log_head for update")
            proxy.arm("at once")
            asked = ask()
            outcome = keel.spawns.submit(asked)
            await proxy.cut.wait()

            async def somebody_waits_for_the_old_backend() -> bool:
                # One stands before the log's head, and is the old backend; the other stands before the old backend.
                return direct.side.waiting_for_locks() > 1

            await eventually(somebody_waits_for_the_old_backend, "the lane asked what became of its commit")
            assert not outcome.done()
        assert (await outcome).created
        assert await spawned(direct) == [asked.id]
        assert_counts_are_what_the_rows_say(direct.side)


@pytest.mark.parametrize(("cut", "stored"), [("before", 0), ("after", 1)])
async def test_when_nobody_can_be_asked_in_time_the_answer_is_that_it_is_not_known(
    postgres_url: str, proxy: Proxy, cut: Cut, stored: int
) -> None:
    async with keel_on(postgres_url) as direct, keel_on(proxy.url, Rigging(patience=IMPATIENT)) as keel:
        await keel.zone()
        proxy.arm(cut, refuse_afterwards=True)
        with pytest.raises(OutcomeUnknown) as unknown:
            await keel.spawn(key="k", digest="d")
        assert (unknown.value.status, unknown.value.code) == (503, "outcome_unknown")
        assert unknown.value.retry_after == 1
        assert proxy.cuts == 1
        assert direct.side.count("agent_sessions") == stored
        # What the answer advises: the same key, at another replica or later.
        again = await direct.spawns.submit(ask(key="k", digest="d"))
        assert again.created == (stored == 0)
        assert direct.side.count("agent_sessions") == 1


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_the_stamp_of_a_tree_whose_commit_is_cut_is_found_and_not_taken_for_somebody_elses(
    postgres_url: str, proxy: Proxy, cut: Cut
) -> None:
    async with keel_on(postgres_url) as direct, keel_on(proxy.url, Rigging(chunk=2)) as keel:
        await keel.zone()
        made = await keel.tree(3)
        proxy.arm(cut)
        ended = await keel.endings.submit(Terminate(ZONE, made[0].id, "enough", admin()))
        assert proxy.cuts == 1
        assert (ended.stopped, ended.joined) == (4, False)
        assert [event.type for event in await direct.log()].count("cascade.begin") == 1
        await keel.finisher.run_to_end(ended)
        assert_counts_are_what_the_rows_say(direct.side)
