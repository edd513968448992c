"""The six recovery patterns of the design, each by its name, on both engines."""

from __future__ import annotations

import logging

import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.core.retry import Policy
from quarterdeck.domain.agents.model import State as AgentState
from quarterdeck.domain.coordination import coordinator as coordinators
from quarterdeck.domain.tasks.model.commands import Assign, Progress, RecordLaunch
from quarterdeck.domain.tasks.model.rows import State, Task
from quarterdeck.domain.tasks.operations import load
from quarterdeck.engine.leader_loop import LeaderLoop, LoopTiming
from quarterdeck.engine.leases import Fence, LeaseLost
from quarterdeck.engine.wakeups import Wakeups
from quarterdeck.store.interface import TransientError
from quarterdeck.wiring.coordination import ALARM_SECONDS, RETRY
from tests.support.asking import ZONE
from tests.support.coordinating import Coordinating
from tests.support.eventually import eventually
from tests.support.keel import Keel, keel_on

BACKOFF = 300


@pytest.fixture
async def here(keel: Keel) -> Coordinating:
    return Coordinating(keel)


async def refused(here: Coordinating, task: Task) -> str:
    """Why the word of whoever holds this attempt is refused."""
    with pytest.raises(Problem) as refusal:
        await here.work.complete(task)
    return refusal.value.code


def saved(task: Task, checkpoint: str) -> Progress:
    return Progress(
        zone_id=ZONE, id=task.id, attempt_token=task.attempt_token, percent=40, step="half", checkpoint=checkpoint
    )


# -- 1


async def test_pattern_1_agent_failure_recovery(here: Coordinating) -> None:
    await here.work.agent("a", slots=1)
    await here.work.make("t", retry_backoff_seconds=BACKOFF)
    [leased] = await here.work.claim("a")
    await here.work.moved(saved(leased.task, '{"page":7}'))
    assert await here.turns() is not None
    assert (await here.task("t")).status is State.RUNNING, "an agent that is heard of keeps what it holds"

    here.agency.silent("a")
    again = await here.turns()
    assert (await here.agency.show("a")).status is AgentState.ERROR
    aborted = await here.task("t")
    assert (aborted.status, aborted.reason, aborted.retry_count) == (State.ABORTED, "agent_stale", 1)
    assert BACKOFF * 500 <= aborted.available_at - aborted.updated_at <= BACKOFF * 1000
    assert again is not None
    assert again <= BACKOFF, "the next turn is due when the backoff has ended, and needs no wake for it"

    here.pass_by("t", "available_at")
    await here.turns()
    assert (await here.task("t")).status is State.PENDING
    await here.work.agent("b")
    [second] = await here.work.claim("b")
    assert second.task.attempt == 2
    assert second.content is not None
    assert second.content.checkpoint_data == '{"page":7}', "it goes on where the first had come to"
    assert await refused(here, leased.task) == "stale_attempt"
    assert (await here.work.complete(second.task)).status is State.COMPLETED


async def test_a_late_heartbeat_revives_the_agent_but_not_its_old_token(here: Coordinating) -> None:
    await here.work.agent("a", slots=1)
    await here.work.make("t")
    [leased] = await here.work.claim("a")
    here.agency.silent("a")
    await here.turns()
    await here.agency.beat("a")
    assert (await here.agency.show("a")).status is AgentState.IDLE
    assert await refused(here, leased.task) == "stale_attempt"
    [again] = await here.work.claim("a")
    assert again.task.attempt == 2


# -- 2


async def test_pattern_2_gateway_restart_recovery(here: Coordinating, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinators, "AGENT_LIMIT", 5)
    names = [f"a{number:02}" for number in range(12)]
    for name in names:
        await here.work.agent(name, slots=1)
        await here.work.make(f"of {name}", retry_backoff_seconds=BACKOFF)
    held = [leased.task for name in names for leased in await here.work.claim(name)]
    await here.work.moved(saved(held[0], '{"page":1}'))
    here.keel.side.run("update agent_pulses set last_seen_at = 1")
    here.keel.side.run("update agents set look_at = 1")
    await here.turn()
    lost = here.keel.side.count("agents", "status = 'ERROR'")
    assert lost == 5, "so many at once are worked off in several turns"
    await here.turns()
    rows = [await here.task(task.id) for task in held]
    assert {row.status for row in rows} == {State.ABORTED}
    assert here.keel.side.count("agents", "status = 'ERROR'") == len(names)
    delays = [row.available_at - row.updated_at for row in rows]
    assert len({*delays}) > 5, "they do not all come back at the same moment"
    assert (await here.work.show(held[0].id)).content.checkpoint_data == '{"page":1}'


# -- 3


async def test_pattern_3_task_dependency_deadlock(here: Coordinating) -> None:
    await here.work.make("a")
    await here.work.make("b", depends_on=("a",))
    await here.work.make("after", depends_on=("b",))
    await here.work.make("apart", depends_on=("a",), on_dependency_failure="run")
    # By hand, since no request can: `a` waits for `b`, which waits for `a`.
    here.keel.side.run("insert into task_dependencies values (?, 'a', 'b', 0)", ZONE)
    here.keel.side.run("update agent_tasks set waits = 2, unmet = 1, depends = 1 where id = 'a'")
    await here.turns()
    rows = {name: await here.task(name) for name in ("a", "b", "after", "apart")}
    assert {name: (row.status, row.reason) for name, row in rows.items()} == {
        "a": (State.FAILED, "dependency_cycle"),
        "b": (State.FAILED, "dependency_cycle"),
        "after": (State.FAILED, "dependency_failed"),
        "apart": (State.PENDING, None),
    }
    [event] = [e for e in await here.keel.log() if e.type == "task.failed" and e.subject == "a"]
    assert '"cycle":["a","b","a"]' in event.data


# -- 4


class Failing:
    """Work that cannot be done while the database is away."""

    def __init__(self) -> None:
        self.is_away = True

    async def is_due(self) -> bool:
        if self.is_away:
            raise TransientError("08006", "the database is away")
        return False

    async def run_cycle(self, fence: Fence) -> float | None:
        raise AssertionError("nothing was due")

    async def on_stop(self, fence: Fence | None) -> None: ...


async def test_pattern_4_database_failure(keel: Keel, caplog: pytest.LogCaptureFixture) -> None:
    work = Failing()
    duty = LeaderLoop(
        "coordinator", keel.everywhere, Wakeups(), LoopTiming(30_000, retry=RETRY, alarm_seconds=ALARM_SECONDS), work
    )
    assert [await duty._try_cycle() for _ in range(5)] == [
        (5.0, False), (10.0, False), (20.0, False), (40.0, False), (40.0, False)
    ]  # fmt: skip
    assert duty.error is not None, "it says that it is unhealthy"
    assert duty.failing_since is not None
    assert not [line for line in caplog.records if line.levelno == logging.CRITICAL]
    duty.failing_since -= ALARM_SECONDS
    for _ in range(3):
        await duty._try_cycle()
    assert len([line for line in caplog.records if line.levelno == logging.CRITICAL]) == 1
    work.is_away = False
    assert await duty._try_cycle() == (30.0, True)
    assert not duty.error, "it goes on by itself"


async def test_after_an_outage_the_first_commit_ends_a_long_pause(keel: Keel) -> None:
    work, wakes = Failing(), Wakeups()
    retry = Policy(max_attempts=0, base_ms=10, multiplier=10_000.0, cap_ms=100_000, jitter=0.0)
    duty = LeaderLoop(
        "coordinator", keel.everywhere, wakes, LoopTiming(30_000, retry=retry, wakes_while_failing=True), work
    )
    duty.start()

    async def rests_for_long() -> bool:
        return duty._failures >= 2

    async def goes_on() -> bool:
        return duty.error is None

    try:
        await eventually(rests_for_long, "it has failed twice, and rests for a hundred seconds")
        work.is_away = False
        wakes.notify()
        await eventually(goes_on, "it goes on")
    finally:
        await duty.stop()


# -- 5


async def test_pattern_5_split_brain_prevention(here: Coordinating) -> None:
    await here.work.agent("a", slots=1)
    await here.work.agent("b", slots=1)
    await here.work.make("t")
    frozen = await here.fence()
    other = Coordinating(here.keel)
    assert await other.lease.acquire() is None, "there is one coordinator at a time"
    # The first stands still beyond its time, and another takes over.
    here.keel.side.run("update leases set expires_at = 0")
    newer = await other.lease.acquire()
    assert newer is not None
    assert newer.term == frozen.term + 1

    def assign(fence: Fence, agent: str, token: str) -> Assign:
        shown = (fence.name, fence.term)
        return Assign(zone_id=ZONE, id="t", leader_term=shown, agent_id=agent, attempt_token=token)

    with pytest.raises(LeaseLost):
        await here.keel.tasks.submit(assign(frozen, "a", "old"))
    assert (await here.task("t")).status is State.PENDING, "a term that is over assigns nothing"
    given = await other.work.moved(assign(newer, "b", "new"))
    assert (given.agent_id, given.attempt_token) == ("b", "new")
    with pytest.raises(Problem):
        await here.keel.tasks.submit(assign(newer, "a", "second"))
    assert (await here.task("t")).agent_id == "b", "a task has one holder"


async def test_of_two_holders_after_a_restored_backup_the_newer_assignment_wins(
    here: Coordinating, caplog: pytest.LogCaptureFixture
) -> None:
    await here.work.agent("a", slots=1)
    await here.work.agent("b", slots=1)
    await here.work.make("t")
    [older] = await here.work.claim("a")
    # As in a backup that was made before that claim.
    here.keel.side.run(
        "update agent_tasks set status = 'PENDING', agent_id = null, attempt = 0, attempt_token = null where id = 't'"
    )
    [newer] = await here.work.claim("b")
    assert newer.task.attempt == older.task.attempt
    assert await refused(here, older.task) == "stale_attempt"
    row = await here.task("t")
    assert (row.status, row.agent_id) == (State.RUNNING, "b"), "the older one changes nothing"
    assert "another holds it" in caplog.text, "and the conflict is logged"
    assert (await here.work.complete(newer.task)).status is State.COMPLETED


# -- 6


async def test_pattern_6_stale_task_timeout(here: Coordinating) -> None:
    await here.work.agent("a")
    await here.work.make("t", priority=5, estimated_duration_minutes=1)
    [leased] = await here.work.claim("a")
    await here.turns()
    assert "task.warned" not in await here.told("t")
    here.pass_by("t", "overdue_at")
    await here.turns()
    assert (await here.told("t"))[-1] == "task.warned"
    assert (await here.task("t")).status is State.RUNNING, "it is warned first"
    here.pass_by("t", "overdue_at")
    await here.turns()
    hung = await here.task("t")
    assert (hung.status, hung.reason) == (State.PENDING, None)
    assert hung.priority == 6, "it comes back one priority higher"
    assert hung.retry_count == 1
    assert (await here.told("t"))[-2:] == ["task.aborted", "task.requeued"]
    assert await refused(here, leased.task) == "stale_attempt"


async def test_an_attempt_that_moves_after_its_warning_is_left_to_go_on(here: Coordinating) -> None:
    await here.work.agent("a")
    await here.work.make("t", estimated_duration_minutes=1)
    [leased] = await here.work.claim("a")
    here.pass_by("t", "overdue_at")
    await here.turns()
    await here.work.moved(saved(leased.task, "{}"))
    again = await here.turns()
    assert again is not None
    assert again > 60, "it is looked at when the time without progress would be over"
    assert (await here.task("t")).status is State.RUNNING


# -- what they have in common


async def test_an_attempt_whose_time_is_over_is_aborted_and_tried_again(here: Coordinating) -> None:
    await here.work.agent("a")
    await here.work.make("t", timeout_seconds=60)
    await here.work.claim("a")
    assert await here.turns() == pytest.approx(60, abs=5), "the turn is due when the time is over"
    here.pass_by("t", "timeout_at")
    await here.turns()
    assert (await here.told("t"))[-2:] == ["task.aborted", "task.requeued"]


async def test_an_assignment_that_nobody_launched_is_taken_back(here: Coordinating) -> None:
    """Whoever was to launch it died in between; so does one who wakes after that."""
    await here.work.agent("a")
    await here.work.make("t", retry_backoff_seconds=BACKOFF)
    fence = await here.fence()
    ask = Assign(
        zone_id=ZONE,
        id="t",
        leader_term=(fence.name, fence.term),
        agent_id="a",
        attempt_token="k",
        launch_timeout_ms=60_000,
    )
    await here.work.moved(ask)
    assert await here.turns() == pytest.approx(60, abs=5)
    here.pass_by("t", "timeout_at")
    await here.turns()
    row = await here.task("t")
    assert (row.status, row.reason) == (State.ABORTED, "launch_lost")
    late = RecordLaunch(zone_id=ZONE, id="t", attempt_token="k", session_key="too late")
    with pytest.raises(Problem) as refusal:
        await here.keel.tasks.submit(late)
    assert refusal.value.code == "stale_attempt"


async def test_backoff_survives_a_restart(engine_url: str) -> None:
    async with keel_on(engine_url) as keel:
        await keel.zone()
        before = Coordinating(keel)
        await before.work.agent("a")
        await before.work.make("t", retry_backoff_seconds=BACKOFF)
        [leased] = await before.work.claim("a")
        failed = await before.work.fail(leased.task)
        await before.lease.release()
    async with keel_on(engine_url) as keel:
        after = Coordinating(keel)
        again = await after.turns()
        assert again is not None
        assert 0 < again <= BACKOFF
        waiting = await after.task("t")
        assert waiting == failed, "nothing of it was in memory"
        after.pass_by("t", "available_at")
        await after.turns()
        assert (await after.task("t")).status is State.PENDING


async def test_a_failure_reaches_all_that_depend_on_it_in_bounded_steps(
    here: Coordinating, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "DEPENDENTS_MAX", 20)
    await here.work.make("root", max_retries=0)
    asks = [here.work.asking(f"d{number:04}", depends_on=("root",)) for number in range(50)]
    await here.work.make_many(asks)
    await here.work.agent("a")
    [leased] = await here.work.claim("a")
    await here.work.fail(leased.task, retryable=False)
    await here.turns()
    assert here.keel.side.count("agent_tasks", "reason = 'dependency_failed'") == 50
    assert here.keel.side.count("agent_tasks", "spreads = 1") == 0


async def test_an_idle_coordinator_takes_no_lease(here: Coordinating) -> None:
    assert await here.coordinator.is_due() is False
    await here.work.agent("a")
    await here.work.make("t")
    due = await here.coordinator.is_due()
    assert due is not False
    assert due > 60, "until the agent would be stale nothing is to be done"
