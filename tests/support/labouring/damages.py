"""What is put wrong after a run of tasks, in its database or in what an agent wrote down: each names the promise that
must find it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from quarterdeck.maintenance.consistency import check_database
from tests.support.keel import Cell, Side
from tests.support.labouring.overlaps import lines

TABLES = ("events", "agent_tasks", "task_dependencies")
Damage = Callable[[Side], object]


def a_start_that_never_was(side: Side) -> None:
    _retell(side, "task.started", "type = 'task.note'")


def a_task_that_was_never_made(side: Side) -> None:
    _retell(side, "task.created", "type = 'task.note'")


def completions_that_were_aborts(side: Side) -> None:
    """All of them: of one alone, whoever was told may have died before it wrote that down."""
    side.run("update events set type = 'task.aborted', to_state = 'ABORTED' where type = 'task.completed'")


def begun_by_other_agents(side: Side) -> None:
    side.run("update events set data = replace(data, 'agent-', 'stranger-') where type = 'task.started'")


def an_attempt_in_the_name_of_the_lost(side: Side) -> None:
    """The agent was missed before, and heard of only after."""
    [[pos, name]] = side.run(
        "select s.pos, a.subject from events a join events s on s.type = 'task.started' and s.pos > a.pos"
        " where a.type = 'agent.stale' and not exists (select 1 from events r where r.subject = a.subject"
        " and r.type = 'agent.revived' and r.pos between a.pos and s.pos) order by s.pos limit 1"
    )
    [[data]] = side.run("select data from events where pos = ?", pos)
    told = {**json.loads(str(data)), "agentId": name}
    side.run("update events set data = ? where pos = ?", json.dumps(told), pos)


def a_dependency_on_what_came_later(side: Side) -> None:
    [[early, zone]] = side.run("select subject, zone_id from events where type = 'task.started' order by pos limit 1")
    [[late]] = side.run("select subject from events where type = 'task.completed' order by pos desc limit 1")
    side.run("insert into task_dependencies values (?, ?, ?, 1)", zone, early, late)


def a_row_gone(side: Side) -> None:
    side.run("delete from agent_tasks where id = (select min(id) from agent_tasks)")


def a_row_moved(side: Side) -> None:
    side.run("update agent_tasks set status = 'ABORTED' where status = 'FAILED'")


def an_end_nobody_heard_of(side: Side) -> None:
    side.run("update agent_tasks set spreads = 1 where id = (select max(id) from agent_tasks)")


DAMAGES: dict[Damage, str] = {
    a_start_that_never_was: "story",
    a_task_that_was_never_made: "acknowledged",
    completions_that_were_aborts: "stale",
    begun_by_other_agents: "one-holder",
    an_attempt_in_the_name_of_the_lost: "after-the-end",
    a_dependency_on_what_came_later: "dependencies",
    a_row_gone: "agreement",
    a_row_moved: "agreement",
    an_end_nobody_heard_of: "rest",
}


def _retell(side: Side, kind: str, changed: str) -> None:
    """One in the middle of its kind."""
    rows = side.run("select pos from events where type = ? order by pos", kind)
    side.run(f"update events set {changed} where pos = ?", rows[len(rows) // 2][0])


# -- what an agent might have written


def lies(histories: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """By the promise that it breaks: a line that would show it, had it been so."""
    claim = next(
        line
        for line in lines(histories)
        if line["op"] == "task.claim" and line["status"] == 200 and line["answer"]["tasks"]
    )
    [*_, lease] = claim["answer"]["tasks"]
    lie = {**claim, "client": "liar", "seq": 1, "asked": {**claim["asked"], "claimId": "a claim of its own"}}
    wrong = {**lease, "checkpointData": {"done": 1_000}}
    gone = {"id": "gone", "status": "PENDING"}
    return {
        "one-holder": lie,
        "resumed": {**lie, "asked": claim["asked"], "answer": {"tasks": [wrong]}},
        "acknowledged": {**lie, "op": "task.create", "asked": {"id": "gone"}, "status": 201, "answer": gone},
    }


def assert_everything_put_wrong_is_found(side: Side, histories: Sequence[Path]) -> None:
    """On SQLite, where nobody else writes; afterwards everything is as it was."""
    whole: dict[str, list[tuple[Cell, ...]]] = {table: side.run(f"select * from {table}") for table in TABLES}
    for damage, promise in DAMAGES.items():
        damage(side)
        _assert_found(side, histories, promise, damage.__name__)
        _restore(side, whole)
    lying = histories[0].with_name("lying.jsonl")
    for promise, line in lies(histories).items():
        lying.write_text(json.dumps(line) + "\n")
        _assert_found(side, [*histories, lying], promise, f"a lie about {promise}")
    lying.unlink()


def _assert_found(side: Side, histories: Sequence[Path], promise: str, what: str) -> None:
    verdict = check_database(side.url, histories).history
    assert verdict is not None
    assert promise in verdict.counts, f"{what}: {verdict.text()}"


def _restore(side: Side, whole: dict[str, list[tuple[Cell, ...]]]) -> None:
    for table, rows in whole.items():
        side.run(f"delete from {table}")
        for begin in range(0, len(rows), 100):
            part = rows[begin : begin + 100]
            values = ", ".join(f"({', '.join('?' for _ in part[0])})" for _ in part)
            side.run(f"insert into {table} values {values}", *(cell for row in part for cell in row))
