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
from tests.support.builders import ZONE, admin, spawn_command
from tests.support.commit_proxy import CommitProxy, CutMoment, open_proxy
from tests.support.eventually import eventually
from tests.support.runtime import RuntimeHarness, RuntimeOptions, assert_counts_match_rows, open_runtime

IMPATIENT = LaneLimits(unknown_seconds=0.5)


class Ears(list[str]):
    """What was announced after commits."""

    def hear(self, events: Sequence[NewEvent]) -> None:
        self += [event.subject for event in events]


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[CommitProxy]:
    async with open_proxy(postgres_url) as standing:
        yield standing


async def spawned(keel: RuntimeHarness) -> list[str]:
    return [event.subject for event in await keel.read_log() if event.type == "session.spawn"]


@pytest.mark.parametrize("cut", ["before", "after", "at once"])
async def test_a_spawn_whose_commit_is_cut_is_answered_with_the_one_session_there_is(
    postgres_url: str, proxy: CommitProxy, cut: CutMoment
) -> None:
    ears = Ears()
    async with (
        open_runtime(postgres_url) as direct,
        open_runtime(proxy.url, RuntimeOptions(after_commit=ears.hear)) as keel,
    ):
        await keel.put_zone()
        proxy.arm(cut)
        asked = spawn_command(key="k", digest="d")
        outcome = await keel.spawn_lane.submit(asked)
        assert proxy.cuts == 1
        assert outcome.created
        assert outcome.session.id == asked.id
        assert await direct.read_session(outcome.session) == outcome.session
        assert await spawned(direct) == [asked.id]
        assert not (await keel.spawn_lane.submit(spawn_command(key="k", digest="d"))).created
        assert direct.database.count("agent_sessions") == 1
        assert ears[-1] == asked.id, "whoever follows the log is woken all the same"
        assert_counts_match_rows(direct.database)


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_every_command_of_a_batch_whose_commit_is_cut_has_its_own_outcome(
    postgres_url: str, proxy: CommitProxy, cut: CutMoment
) -> None:
    async with open_runtime(postgres_url) as direct, open_runtime(proxy.url) as keel:
        await keel.put_zone(max_sessions=30)
        proxy.arm(cut)
        asks = [spawn_command() for _ in range(50)]
        outcomes = await asyncio.gather(*(keel.spawn_lane.submit(asked) for asked in asks), return_exceptions=True)
        assert proxy.cuts == 1
        assert [isinstance(outcome, Spawned) for outcome in outcomes] == [True] * 30 + [False] * 20
        assert await spawned(direct) == [asked.id for asked in asks[:30]]
        assert_counts_match_rows(direct.database)


async def test_an_ending_whose_commit_is_cut_ends_everything_once(postgres_url: str, proxy: CommitProxy) -> None:
    async with open_runtime(postgres_url) as direct, open_runtime(proxy.url) as keel:
        await keel.put_zone()
        cuts: tuple[CutMoment, ...] = ("before", "after")
        for cut in cuts:
            made = await keel.spawn_tree(3)
            proxy.arm(cut)
            receipt = await keel.terminate(made[0])
            assert (receipt.stopped, receipt.already_stopped) == (4, 0)
        assert proxy.cuts == 2
        ended = [event.subject for event in await direct.read_log() if event.type == "session.terminate"]
        assert len(ended) == len(set(ended)) == 8
        assert_counts_match_rows(direct.database)


async def test_a_commit_still_under_way_on_the_server_is_waited_for_before_anything_is_concluded(
    postgres_url: str, proxy: CommitProxy
) -> None:
    async with open_runtime(postgres_url) as direct, open_runtime(proxy.url) as keel:
        await keel.put_zone()
        with psycopg.connect(postgres_url) as holder:
            # The last lock of every transaction: COMMIT has been sent, and the server cannot come to it.
            holder.execute("select pos from log_head for update")
            proxy.arm("at once")
            asked = spawn_command()
            outcome = keel.spawn_lane.submit(asked)
            await proxy.was_cut.wait()

            async def somebody_waits_for_the_old_backend() -> bool:
                # One stands before the log's head, and is the old backend; the other stands before the old backend.
                return direct.database.waiting_for_locks() > 1

            await eventually(somebody_waits_for_the_old_backend, "the lane asked what became of its commit")
            assert not outcome.done()
        assert (await outcome).created
        assert await spawned(direct) == [asked.id]
        assert_counts_match_rows(direct.database)


@pytest.mark.parametrize(("cut", "stored"), [("before", 0), ("after", 1)])
async def test_when_nobody_can_be_asked_in_time_the_answer_is_that_it_is_not_known(
    postgres_url: str, proxy: CommitProxy, cut: CutMoment, stored: int
) -> None:
    async with (
        open_runtime(postgres_url) as direct,
        open_runtime(proxy.url, RuntimeOptions(lane_limits=IMPATIENT)) as keel,
    ):
        await keel.put_zone()
        proxy.arm(cut, refuse_afterwards=True)
        with pytest.raises(OutcomeUnknown) as unknown:
            await keel.spawn(key="k", digest="d")
        assert (unknown.value.status, unknown.value.code) == (503, "outcome_unknown")
        assert unknown.value.retry_after == 1
        assert proxy.cuts == 1
        assert direct.database.count("agent_sessions") == stored
        # What the answer advises: the same key, at another replica or later.
        again = await direct.spawn_lane.submit(spawn_command(key="k", digest="d"))
        assert again.created == (stored == 0)
        assert direct.database.count("agent_sessions") == 1


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_the_stamp_of_a_tree_whose_commit_is_cut_is_found_and_not_taken_for_somebody_elses(
    postgres_url: str, proxy: CommitProxy, cut: CutMoment
) -> None:
    async with open_runtime(postgres_url) as direct, open_runtime(proxy.url, RuntimeOptions(chunk=2)) as keel:
        await keel.put_zone()
        made = await keel.spawn_tree(3)
        proxy.arm(cut)
        ended = await keel.terminate_lane.submit(Terminate(ZONE, made[0].id, "enough", admin()))
        assert proxy.cuts == 1
        assert (ended.stopped, ended.joined) == (4, False)
        assert [event.type for event in await direct.read_log()].count("cascade.begin") == 1
        await keel.cascade_runner.run_to_end(ended)
        assert_counts_match_rows(direct.database)
