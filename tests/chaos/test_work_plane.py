"""Agent processes work on dependent tasks while agents are killed and frozen, servers killed and PostgreSQL restarted.

Every task must end correctly, and no invariant may be violated. `make test` runs some dozen seconds with few agents and
tasks, `make soak` 20 agents and 2,000 tasks. A failure prints its seed; `QD_SEED=…` repeats the run.
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

SHORT_ROUNDS = 3
SCALE = RunScale(min(2_000, 100 * ROUNDS), min(20, 2 + 2 * ROUNDS), max(1, ROUNDS // 10))


@pytest.mark.timeout(300 + 20 * ROUNDS)
async def test_every_task_ends_and_no_attempt_has_two_holders_under_faults(
    servers: Servers, own_postgres: PostgresServer
) -> None:
    url = PostgresDatabases(own_postgres.url()).create_migrated()
    result = await WorkPlaneRun(servers, own_postgres, SEED, SCALE).run(url)
    await assert_run_is_valid(servers, result)
    assert result.faults.counts["restarted PostgreSQL"] >= 1


@pytest.mark.timeout(300 + 20 * ROUNDS)
async def test_every_task_ends_and_no_attempt_has_two_holders_on_sqlite(servers: Servers) -> None:
    scale = RunScale(min(2_000, 50 * ROUNDS), SCALE.agents, SCALE.rounds)
    result = await WorkPlaneRun(servers, None, SEED, scale).run(None)
    await assert_run_is_valid(servers, result)
    assert await result.servers[0].stop() == 0
    if ROUNDS <= SHORT_ROUNDS:
        # Each corruption is a slow check, and a long run would be checked in the same way.
        assert_corruptions_are_found(result.database, result.histories)


async def assert_run_is_valid(servers: Servers, result: RunResult) -> None:
    print(result.summary())
    assert_tasks_ended_correctly(result)
    assert find_stale_accepts(result.histories) == []
    launch = result.servers[0].launch
    arguments = [argument for file in result.histories for argument in ("--history", str(file))]
    checked = await servers.run_command(launch, "check", "--database", launch.database_url, *arguments)
    assert checked.exit_code == 0, f"{checked.log_text}\n{result.summary()}"
    assert "no violations" in checked.log_text
    print(checked.log_text)
    await assert_check_passes(servers, launch)
    await assert_task_logs_match_events(result)
    assert_enough_faults(result)


def assert_tasks_ended_correctly(result: RunResult) -> None:
    """Each task is COMPLETED, or FAILED because its retries are exhausted or a dependency failed."""
    rows = result.database.execute(
        "select id, status, reason, retry_count, max_retries, output_result from agent_tasks"
    )
    planned = {str(task["id"]): task for task in result.tasks}
    assert {str(row[0]) for row in rows} == planned.keys()
    failed = 0
    for task_id, status, reason, retries, max_retries, output in rows:
        job = planned[str(task_id)]["inputContext"]
        assert isinstance(job, dict)
        if status == "COMPLETED":
            assert job["behaviour"] != "failing", task_id
            assert json.loads(str(output))["steps"] == job["steps"], task_id
            continue
        failed += 1
        assert status == "FAILED", f"{task_id} is {status}"
        assert reason == "dependency_failed" or retries == max_retries, f"{task_id} failed ({reason}) after {retries}"
    assert 0 < failed < len(rows)
    alerts = result.database.execute("select data from events where type = 'task.failed'")
    exhausted = [row for row in alerts if json.loads(str(row[0])).get("exhausted")]
    exhausted_tasks = [row for row in rows if row[1] == "FAILED" and row[2] != "dependency_failed"]
    assert len(exhausted) == len(exhausted_tasks), "one alert for each task with exhausted retries"


async def assert_task_logs_match_events(result: RunResult) -> None:
    """Compare the log routes of the tasks with the most events with the event log."""
    task_ids = result.database.execute(
        "select subject from events where type like 'task.%' group by subject order by count(*) desc, subject limit 10"
    )
    transitions = "type not in ('task.progressed', 'task.unblocked', 'task.warned', 'task.changed')"
    async with result.servers[0].client() as client:
        for [task_id] in task_ids:
            query: dict[str, str | int] = {"event": "state_transition", "order": "asc", "limit": 500}
            response = await client.get(
                f"/api/v1/agent-tasks/{task_id}/logs", params=query, headers={"X-Workspace-ID": ZONE}
            )
            assert response.status_code == 200, response.text
            logged = [(line["previousStatus"], line["newStatus"]) for line in response.json()["items"]]
            assert logged == result.database.execute(
                f"select from_state, to_state from events where subject = ? and {transitions} order by pos", task_id
            )


def assert_enough_faults(result: RunResult) -> None:
    """Assert that the run had enough faults to prove anything."""
    summary, fault_counts = result.summary(), result.faults.counts
    assert min(fault_counts[fault] for fault in ("killed an agent", "froze an agent", "killed a server")) >= 1, summary
    stale = result.database.count("events", "type = 'agent.stale'")
    lost = result.database.count("events", "type = 'task.aborted' and data like '%agent_stale%'")
    assert stale >= 3, summary
    assert lost >= 1, summary
    assert result.database.count("events", "type = 'agent.revived'") >= 1, summary
    assert result.database.count("events", "type = 'task.unblocked'") >= 5, summary
    assert count_refused(result.histories, "stale_attempt") >= 1, summary
    assert count_resumed(result.histories) >= 1, summary
