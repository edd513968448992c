"""Corruptions of the database or of an agent's history after a run of tasks. Each names the invariant that must find
it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quarterdeck.maintenance.consistency import check_database
from tests.support.runtime import DirectDatabase, SqlValue
from tests.support.work_plane_attack.stale_accepts import read_lines

TABLES = ("events", "agent_tasks", "task_dependencies")
Corruption = Callable[[DirectDatabase], object]


def start_event_removed(database: DirectDatabase) -> None:
    _change_middle_event(database, "task.started", "type = 'task.note'")


def create_event_removed(database: DirectDatabase) -> None:
    _change_middle_event(database, "task.created", "type = 'task.note'")


def completions_logged_as_aborts(database: DirectDatabase) -> None:
    """All of them: for a single one, the client may have died before it recorded the response."""
    database.execute("update events set type = 'task.aborted', to_state = 'ABORTED' where type = 'task.completed'")


def starts_by_other_agents(database: DirectDatabase) -> None:
    database.execute("update events set data = replace(data, 'agent-', 'other-') where type = 'task.started'")


def start_by_lost_agent(database: DirectDatabase) -> None:
    """The agent was stale before the start, and revived only after it."""
    [[pos, name]] = database.execute(
        "select s.pos, a.subject from events a join events s on s.type = 'task.started' and s.pos > a.pos"
        " where a.type = 'agent.stale' and not exists (select 1 from events r where r.subject = a.subject"
        " and r.type = 'agent.revived' and r.pos between a.pos and s.pos) order by s.pos limit 1"
    )
    [[data]] = database.execute("select data from events where pos = ?", pos)
    changed_data = {**json.loads(str(data)), "agentId": name}
    database.execute("update events set data = ? where pos = ?", json.dumps(changed_data), pos)


def dependency_on_later_task(database: DirectDatabase) -> None:
    [[early, zone]] = database.execute(
        "select subject, zone_id from events where type = 'task.started' order by pos limit 1"
    )
    [[late]] = database.execute("select subject from events where type = 'task.completed' order by pos desc limit 1")
    database.execute("insert into task_dependencies values (?, ?, ?, 1)", zone, early, late)


def task_row_deleted(database: DirectDatabase) -> None:
    database.execute("delete from agent_tasks where id = (select min(id) from agent_tasks)")


def task_state_changed(database: DirectDatabase) -> None:
    database.execute("update agent_tasks set status = 'ABORTED' where status = 'FAILED'")


def end_not_propagated(database: DirectDatabase) -> None:
    database.execute("update agent_tasks set spreads = 1 where id = (select max(id) from agent_tasks)")


CORRUPTIONS: dict[Corruption, str] = {
    start_event_removed: "story",
    create_event_removed: "acknowledged",
    completions_logged_as_aborts: "stale",
    starts_by_other_agents: "one-holder",
    start_by_lost_agent: "after-the-end",
    dependency_on_later_task: "dependencies",
    task_row_deleted: "agreement",
    task_state_changed: "agreement",
    end_not_propagated: "rest",
}


def _change_middle_event(database: DirectDatabase, event_type: str, assignment: str) -> None:
    """Change an event in the middle of those of its type."""
    rows = database.execute("select pos from events where type = ? order by pos", event_type)
    database.execute(f"update events set {assignment} where pos = ?", rows[len(rows) // 2][0])


# -- false lines in a history


def false_history_lines(histories: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """By invariant: a line that violates it."""
    claim = next(
        line
        for line in read_lines(histories)
        if line["op"] == "task.claim" and line["status"] == 200 and line["answer"]["tasks"]
    )
    [*_, lease] = claim["answer"]["tasks"]
    false_claim = {**claim, "client": "false-client", "seq": 1, "asked": {**claim["asked"], "claimId": "false-claim"}}
    false_lease = {**lease, "checkpointData": {"done": 1_000}}
    missing_task = {"id": "gone", "status": "PENDING"}
    return {
        "one-holder": false_claim,
        "resumed": {**false_claim, "asked": claim["asked"], "answer": {"tasks": [false_lease]}},
        "acknowledged": {
            **false_claim,
            "op": "task.create",
            "asked": {"id": "gone"},
            "status": 201,
            "answer": missing_task,
        },
    }


def assert_corruptions_are_found(database: DirectDatabase, histories: Sequence[Path]) -> None:
    """Apply every corruption, and restore the rows after each. On SQLite, where no other process writes."""
    original_rows: dict[str, list[tuple[SqlValue, ...]]] = {
        table: database.execute(f"select * from {table}") for table in TABLES
    }
    for corrupt, invariant in CORRUPTIONS.items():
        corrupt(database)
        _assert_found(database, histories, invariant, corrupt.__name__)
        _restore(database, original_rows)
    false_history = histories[0].with_name("false.jsonl")
    for invariant, line in false_history_lines(histories).items():
        false_history.write_text(json.dumps(line) + "\n")
        _assert_found(database, [*histories, false_history], invariant, f"a false line about {invariant}")
    false_history.unlink()


def _assert_found(database: DirectDatabase, histories: Sequence[Path], invariant: str, description: str) -> None:
    report = check_database(database.url, histories).history
    assert report is not None
    assert invariant in report.counts, f"{description}: {report.text()}"


def _restore(database: DirectDatabase, original_rows: dict[str, list[tuple[SqlValue, ...]]]) -> None:
    for table, rows in original_rows.items():
        database.execute(f"delete from {table}")
        for start in range(0, len(rows), 100):
            chunk = rows[start : start + 100]
            values = ", ".join(f"({', '.join('?' for _ in chunk[0])})" for _ in chunk)
            database.execute(f"insert into {table} values {values}", *(cell for row in chunk for cell in row))
