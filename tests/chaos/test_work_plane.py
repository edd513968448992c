"""Agents as processes of their own, at work on tasks that depend on each other, while agents are killed and frozen,
servers are killed and PostgreSQL is restarted: every task ends as it should, and every promise was kept.

A few dozen seconds in `make test`, by fewer agents and tasks; 20 agents and 2,000 tasks in `make soak`. What fails
names its seed, and `QD_SEED=…` gives the same again.
"""

from __future__ import annotations

import json

import pytest

from tests.support.consistency import assert_check_passes
from tests.support.databases import PostgresDatabases
from tests.support.postgres import PostgresServer
from tests.support.rounds import ROUNDS, SEED
from tests.support.server import Servers
from tests.support.work_plane_attack.corruptions import assert_corruptions_are_found
from tests.support.work_plane_attack.run import ZONE, RunResult, RunScale, WorkPlaneRun
from tests.support.work_plane_attack.stale_accepts import count_refused, count_resumed, find_stale_accepts

FEW = 3
SCALE = RunScale(min(2_000, 100 * ROUNDS), min(20, 2 + 2 * ROUNDS), max(1, ROUNDS // 10))


@pytest.mark.timeout(300 + 20 * ROUNDS)
async def test_every_task_ends_and_no_attempt_had_two_holders_whatever_is_killed_frozen_or_restarted(
    servers: Servers, own_postgres: PostgresServer
) -> None:
    url = PostgresDatabases(own_postgres.url()).create_migrated()
    ran = await WorkPlaneRun(servers, own_postgres, SEED, SCALE).run(url)
    await assert_it_was_hard_and_all_went_well(servers, ran)
    assert ran.faults.counts["restarted PostgreSQL"] >= 1


@pytest.mark.timeout(300 + 20 * ROUNDS)
async def test_the_same_on_sqlite_with_one_server(servers: Servers) -> None:
    scale = RunScale(min(2_000, 50 * ROUNDS), SCALE.agents, SCALE.rounds)
    ran = await WorkPlaneRun(servers, None, SEED, scale).run(None)
    await assert_it_was_hard_and_all_went_well(servers, ran)
    assert await ran.servers[0].stop() == 0
    if ROUNDS <= FEW:
        # How a run is judged is the same for a long one, and each look at that takes its time.
        assert_corruptions_are_found(ran.side, ran.histories)


async def assert_it_was_hard_and_all_went_well(servers: Servers, ran: RunResult) -> None:
    print(ran.summary())
    assert_ended_as_it_should(ran)
    assert find_stale_accepts(ran.histories) == []
    launch = ran.servers[0].launch
    words = [word for file in ran.histories for word in ("--history", str(file))]
    checked = await servers.run_command(launch, "check", "--database", launch.database_url, *words)
    assert checked.exit_code == 0, f"{checked.log_text}\n{ran.summary()}"
    assert "every promise was kept" in checked.log_text
    print(checked.log_text)
    await assert_check_passes(servers, launch)
    await assert_the_shown_logs_tell_each_transition_once(ran)
    assert_it_was_hard(ran)


def assert_ended_as_it_should(ran: RunResult) -> None:
    """COMPLETED; or FAILED because no retries were left, or because what it waits for failed."""
    rows = ran.side.execute("select id, status, reason, retry_count, max_retries, output_result from agent_tasks")
    planned = {str(task["id"]): task for task in ran.tasks}
    assert {str(row[0]) for row in rows} == planned.keys()
    failed = 0
    for name, status, reason, retries, most, output in rows:
        job = planned[str(name)]["inputContext"]
        assert isinstance(job, dict)
        if status == "COMPLETED":
            assert job["mood"] != "hopeless", name
            assert json.loads(str(output))["steps"] == job["steps"], name
            continue
        failed += 1
        assert status == "FAILED", f"{name} is {status}"
        assert reason == "dependency_failed" or retries == most, f"{name} failed ({reason}) after {retries}"
    assert 0 < failed < len(rows)
    alerts = ran.side.execute("select data from events where type = 'task.failed'")
    exhausted = [row for row in alerts if json.loads(str(row[0])).get("exhausted")]
    by_itself = [row for row in rows if row[1] == "FAILED" and row[2] != "dependency_failed"]
    assert len(exhausted) == len(by_itself), "one alert for each that had no retries left"


async def assert_the_shown_logs_tell_each_transition_once(ran: RunResult) -> None:
    """Of those that had the hardest time: the log of a task as it is shown, against the events."""
    hardest = ran.side.execute(
        "select subject from events where type like 'task.%' group by subject order by count(*) desc, subject limit 10"
    )
    moves = "type not in ('task.progressed', 'task.unblocked', 'task.warned', 'task.changed')"
    async with ran.servers[0].client() as client:
        for [name] in hardest:
            query: dict[str, str | int] = {"event": "state_transition", "order": "asc", "limit": 500}
            answer = await client.get(
                f"/api/v1/agent-tasks/{name}/logs", params=query, headers={"X-Workspace-ID": ZONE}
            )
            assert answer.status_code == 200, answer.text
            told = [(line["previousStatus"], line["newStatus"]) for line in answer.json()["items"]]
            assert told == ran.side.execute(
                f"select from_state, to_state from events where subject = ? and {moves} order by pos", name
            )


def assert_it_was_hard(ran: RunResult) -> None:
    """A run in which nothing was hard proves nothing."""
    told, times = ran.summary(), ran.faults.counts
    assert min(times[kind] for kind in ("killed an agent", "froze an agent", "killed a server")) >= 1, told
    stale = ran.side.count("events", "type = 'agent.stale'")
    lost = ran.side.count("events", "type = 'task.aborted' and data like '%agent_stale%'")
    assert stale >= 3, told
    assert lost >= 1, told
    assert ran.side.count("events", "type = 'agent.revived'") >= 1, told
    assert ran.side.count("events", "type = 'task.unblocked'") >= 5, told
    assert count_refused(ran.histories, "stale_attempt") >= 1, told
    assert count_resumed(ran.histories) >= 1, told
