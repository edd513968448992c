"""A connection lost during COMMIT: the lane looks up the outcome, and everything happens exactly once."""

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

SHORT_LOOKUP = LaneLimits(unknown_seconds=0.5)


class CommittedSubjects(list[str]):
    """The subjects of the events that were published after commits."""

    def record(self, events: Sequence[NewEvent]) -> None:
        self += [event.subject for event in events]


@pytest.fixture
async def proxy(postgres_url: str) -> AsyncIterator[CommitProxy]:
    async with open_proxy(postgres_url) as proxy:
        yield proxy


async def spawned_ids(runtime: RuntimeHarness) -> list[str]:
    return [event.subject for event in await runtime.read_log() if event.type == "session.spawn"]


@pytest.mark.parametrize("cut", ["before", "after", "at once"])
async def test_spawn_with_a_lost_commit_returns_the_one_stored_session(
    postgres_url: str, proxy: CommitProxy, cut: CutMoment
) -> None:
    subjects = CommittedSubjects()
    async with (
        open_runtime(postgres_url) as direct,
        open_runtime(proxy.url, RuntimeOptions(after_commit=subjects.record)) as runtime,
    ):
        await runtime.put_zone()
        proxy.arm(cut)
        command = spawn_command(key="k", digest="d")
        outcome = await runtime.spawn_lane.submit(command)
        assert proxy.cuts == 1
        assert outcome.created
        assert outcome.session.id == command.id
        assert await direct.read_session(outcome.session) == outcome.session
        assert await spawned_ids(direct) == [command.id]
        assert not (await runtime.spawn_lane.submit(spawn_command(key="k", digest="d"))).created
        assert direct.database.count("agent_sessions") == 1
        assert subjects[-1] == command.id, "readers of the log are woken"
        assert_counts_match_rows(direct.database)


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_each_command_of_a_batch_with_a_lost_commit_gets_its_own_outcome(
    postgres_url: str, proxy: CommitProxy, cut: CutMoment
) -> None:
    async with open_runtime(postgres_url) as direct, open_runtime(proxy.url) as runtime:
        await runtime.put_zone(max_sessions=30)
        proxy.arm(cut)
        commands = [spawn_command() for _ in range(50)]
        outcomes = await asyncio.gather(
            *(runtime.spawn_lane.submit(command) for command in commands), return_exceptions=True
        )
        assert proxy.cuts == 1
        assert [isinstance(outcome, Spawned) for outcome in outcomes] == [True] * 30 + [False] * 20
        assert await spawned_ids(direct) == [command.id for command in commands[:30]]
        assert_counts_match_rows(direct.database)


async def test_termination_with_a_lost_commit_happens_once(postgres_url: str, proxy: CommitProxy) -> None:
    async with open_runtime(postgres_url) as direct, open_runtime(proxy.url) as runtime:
        await runtime.put_zone()
        cuts: tuple[CutMoment, ...] = ("before", "after")
        for cut in cuts:
            sessions = await runtime.spawn_tree(3)
            proxy.arm(cut)
            receipt = await runtime.terminate(sessions[0])
            assert (receipt.stopped, receipt.already_stopped) == (4, 0)
        assert proxy.cuts == 2
        terminated = [event.subject for event in await direct.read_log() if event.type == "session.terminate"]
        assert len(terminated) == len(set(terminated)) == 8
        assert_counts_match_rows(direct.database)


async def test_lookup_waits_for_a_commit_that_is_still_running(postgres_url: str, proxy: CommitProxy) -> None:
    async with open_runtime(postgres_url) as direct, open_runtime(proxy.url) as runtime:
        await runtime.put_zone()
        with psycopg.connect(postgres_url) as holder:
            # The last lock of each transaction: COMMIT is sent, but the server cannot execute it yet.
            holder.execute("select pos from log_head for update")
            proxy.arm("at once")
            command = spawn_command()
            outcome = runtime.spawn_lane.submit(command)
            await proxy.was_cut.wait()

            async def lookup_waits_for_the_old_backend() -> bool:
                # The old backend waits for the log's head, and the lookup waits for the old backend.
                return direct.database.waiting_for_locks() > 1

            await eventually(lookup_waits_for_the_old_backend, "the lane looked up its commit")
            assert not outcome.done()
        assert (await outcome).created
        assert await spawned_ids(direct) == [command.id]
        assert_counts_match_rows(direct.database)


@pytest.mark.parametrize(("cut", "expected"), [("before", 0), ("after", 1)])
async def test_outcome_unknown_is_returned_when_the_lookup_times_out(
    postgres_url: str, proxy: CommitProxy, cut: CutMoment, expected: int
) -> None:
    async with (
        open_runtime(postgres_url) as direct,
        open_runtime(proxy.url, RuntimeOptions(lane_limits=SHORT_LOOKUP)) as runtime,
    ):
        await runtime.put_zone()
        proxy.arm(cut, refuse_afterwards=True)
        with pytest.raises(OutcomeUnknown) as unknown:
            await runtime.spawn(key="k", digest="d")
        assert (unknown.value.status, unknown.value.code) == (503, "outcome_unknown")
        assert unknown.value.retry_after == 1
        assert proxy.cuts == 1
        assert direct.database.count("agent_sessions") == expected
        # As the error advises: retry with the same key, later or at another replica.
        again = await direct.spawn_lane.submit(spawn_command(key="k", digest="d"))
        assert again.created == (expected == 0)
        assert direct.database.count("agent_sessions") == 1


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_cascade_with_a_lost_commit_is_recognized_as_its_own(
    postgres_url: str, proxy: CommitProxy, cut: CutMoment
) -> None:
    async with open_runtime(postgres_url) as direct, open_runtime(proxy.url, RuntimeOptions(chunk=2)) as runtime:
        await runtime.put_zone()
        sessions = await runtime.spawn_tree(3)
        proxy.arm(cut)
        result = await runtime.terminate_lane.submit(Terminate(ZONE, sessions[0].id, "requested", admin()))
        assert proxy.cuts == 1
        assert (result.stopped, result.joined) == (4, False)
        assert [event.type for event in await direct.read_log()].count("cascade.begin") == 1
        await runtime.cascade_runner.run_to_end(result)
        assert_counts_match_rows(direct.database)
