"""`qd check --history` passes after a real run and finds every violation planted in the database or in a history.

Each violation must be reported under the invariant that it breaks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quarterdeck.maintenance.consistency import ConsistencyReport, check_database
from quarterdeck.maintenance.history_checker.invariants import INVARIANTS
from quarterdeck.store.migrate import sqlite_path
from tests.cli.cli_support import Qd
from tests.support.eventually import eventually
from tests.support.log_tampering import restore_tables
from tests.support.runtime import DirectDatabase, SqlValue
from tests.support.server import Launch, Servers
from tests.support.session_plane_attack.history_writer import HistoryWriter
from tests.support.session_plane_attack.run import SHORT_INTERVALS, create_zones, run_clients, wait_until_idle
from tests.support.session_plane_attack.run_state import RunState
from tests.support.session_plane_attack.server_pool import ServerPool

CALLS = 700
TASK_INVARIANTS = {"dependencies", "resumed"}
"""Violations of these invariants are planted by `tests/chaos/test_work_plane.py`."""
TABLES = ("events", "agent_sessions", "idempotency_keys", "agent_invocations", "delegation_edges", "cascades")


@dataclass(frozen=True)
class Scenario:
    """An idle database and the history that its clients recorded."""

    url: str
    data: Path
    history: Path

    @property
    def database(self) -> DirectDatabase:
        return DirectDatabase(self.url)

    def report(self) -> ConsistencyReport:
        return check_database(self.url, [self.history])

    def lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.history.read_text().splitlines()]

    def rows(self) -> dict[str, list[tuple[SqlValue, ...]]]:
        return {table: self.database.execute(f"select * from {table}") for table in TABLES}

    def restore(self, rows: dict[str, list[tuple[SqlValue, ...]]]) -> None:
        restore_tables(self.url, rows)


@pytest.fixture
async def scenario(servers: Servers, launch: Launch) -> Scenario:
    server = await servers.start(launch.with_environment(**SHORT_INTERVALS))
    pool = ServerPool(servers, [server])
    history = HistoryWriter(servers.directory / "history.jsonl")
    state = RunState("a short run", pool, history, ("narrow", "stopped"))
    await create_zones(pool)

    async def run_long_enough() -> None:
        async def is_enough() -> bool:
            counts = [
                history.count_calls("complete", 200),
                history.count_calls("suspend", 200),
                history.count_calls("revoke", 200),
            ]
            return len(history) >= CALLS and min(counts) >= 2 and history.count_calls("spawn", 429) > 0

        await eventually(is_enough, f"{CALLS} calls were made", limit=90)

    await run_clients(state, run_long_enough())
    await wait_until_idle(pool, launch.database_url)
    assert await server.stop() == 0
    while DirectDatabase(launch.database_url).count("cascades", "finished_at is null"):
        # A session expired during the stop. The next server finishes its cascade.
        pool = ServerPool(servers, [server := await servers.start(launch.with_environment(**SHORT_INTERVALS))])
        await wait_until_idle(pool, launch.database_url)
        assert await server.stop() == 0
    return Scenario(launch.database_url, launch.data, history.file)


# -- violations

Damage = Callable[[Scenario], None]


def read_event(
    scenario: Scenario, event_type: str, where: str = "1 = 1", *params: SqlValue
) -> tuple[int, str, dict[str, object]]:
    """Position, subject and data of one event of this type."""
    rows = scenario.database.execute(
        f"select pos, subject, data from events where type = ? and {where} order by pos", event_type, *params
    )
    assert rows, f"no {event_type} where {where}"
    pos, subject, data = rows[len(rows) // 2]
    return int(str(pos)), str(subject), json.loads(str(data))


def delete_event(scenario: Scenario) -> None:
    pos, *_ = read_event(scenario, "session.suspend")
    scenario.database.execute("delete from events where pos = ?", pos)


def retype_spawn_event(scenario: Scenario) -> None:
    pos, *_ = read_event(scenario, "session.spawn")
    scenario.database.execute("update events set type = 'session.note' where pos = ?", pos)


def point_key_to_other_session(scenario: Scenario) -> None:
    """Point the key of one live session to another live session."""
    rows = scenario.database.execute(
        "select k.key, k.zone_id, k.application_id from idempotency_keys k join agent_sessions s"
        " on s.zone_id = k.zone_id and s.id = k.subject_id"
        " where k.operation = 'spawn' and s.terminated_at is null and s.zone_id = 'narrow' order by s.id"
    )
    (first, zone, application), (other, *_) = rows[0], rows[-1]
    target = scenario.database.scalar(
        "select subject_id from idempotency_keys where zone_id = ? and key = ? and operation = 'spawn'", zone, other
    )
    scenario.database.execute(
        "update idempotency_keys set subject_id = ? where zone_id = ? and application_id = ? and key = ?",
        target,
        zone,
        application,
        first,
    )


def lower_limit(scenario: Scenario) -> None:
    _, subject, _ = read_event(scenario, "session.spawn", "zone_id = 'narrow'")
    [[limits]] = scenario.database.execute("select limits from agent_sessions where id = ?", subject)
    lower = {**json.loads(str(limits)), "max_tree_spawns": 0}
    scenario.database.execute("update agent_sessions set limits = ? where id = ?", json.dumps(lower), subject)


def retype_start_event(scenario: Scenario) -> None:
    pos, *_ = read_event(scenario, "invocation.started")
    scenario.database.execute("update events set type = 'invocation.note' where pos = ?", pos)


def turn_success_into_retry(scenario: Scenario) -> None:
    pos, subject, _ = read_event(scenario, "invocation.succeeded")
    scenario.database.execute("update events set type = 'invocation.retried', to_state = 'pending' where pos = ?", pos)
    scenario.database.execute("update agent_invocations set status = 'pending' where id = ?", subject)


def store_key_of_refused_spawn(scenario: Scenario) -> None:
    refused = next(line for line in scenario.lines() if line["op"] == "spawn" and line["status"] == 429)
    refused_request = refused["asked"]
    assert isinstance(refused_request, dict)
    requests = [
        line["asked"] for line in scenario.lines() if line["op"] == "spawn" and line["status"] in (200, 201, None)
    ]
    used_keys = {str(request["idempotency_key"]) for request in requests if isinstance(request, dict)}
    assert refused_request["idempotency_key"] not in used_keys
    _, subject, _ = read_event(scenario, "session.spawn")
    scenario.database.execute(
        "insert into idempotency_keys values (?, ?, 'spawn', ?, 'd', ?, 1)",
        str(refused["zone"]),
        refused_request["application_id"],
        refused_request["idempotency_key"],
        subject,
    )


def spawn_under_ended_parent(scenario: Scenario) -> None:
    [[subject, pos, data]] = scenario.database.execute(
        "select t.subject, s.pos, s.data from events t join events s on s.zone_id = t.zone_id and s.pos > t.pos"
        " where t.type = 'session.terminate' and s.type = 'session.spawn' order by t.pos, s.pos desc limit 1"
    )
    changed = {**json.loads(str(data)), "parent_id": subject}
    scenario.database.execute("update events set data = ? where pos = ?", json.dumps(changed), pos)


def delegate_without_authority(scenario: Scenario) -> None:
    pos, _, data = read_event(scenario, "delegation.create")
    changed = {**data, "scopes": ["unknown-scope"], "parent_edge_id": "missing-edge"}
    scenario.database.execute("update events set data = ? where pos = ?", json.dumps(changed), pos)


def swap_spawn_positions(scenario: Scenario) -> None:
    """Swap the log positions of the first and the last spawn."""
    rows = scenario.database.execute("select pos from events where type = 'session.spawn' order by pos")
    early, late = int(str(rows[0][0])), int(str(rows[-1][0]))
    for old, new in ((early, -1), (late, early), (-1, late)):
        scenario.database.execute("update events set pos = ? where pos = ?", new, old)


def delete_edge_rows(scenario: Scenario) -> None:
    scenario.database.execute("delete from delegation_edges where status = 'revoked'")


def change_invocation_status(scenario: Scenario) -> None:
    scenario.database.execute("update agent_invocations set status = 'dead' where status = 'succeeded'")


def reopen_cascades(scenario: Scenario) -> None:
    scenario.database.execute("update cascades set finished_at = null, settled = settled - 1")


def reopen_invocation_of_ended_session(scenario: Scenario) -> None:
    scenario.database.execute(
        "update agent_invocations set status = 'running' where id = (select i.id from agent_invocations i join"
        " agent_sessions s on s.zone_id = i.zone_id and s.id = i.source_session_id where s.terminated_at is not null"
        " order by i.id limit 1)"
    )


def reopen_invocation_past_deadline(scenario: Scenario) -> None:
    """The invocation has no session, so that only its deadline is violated."""
    scenario.database.execute(
        "update agent_invocations set status = 'running', deadline_at = 1 where id = (select i.id from"
        " agent_invocations i where i.source_session_id is null and i.target_session_id is null order by i.id limit 1)"
    )


DAMAGES: dict[Damage, str] = {
    delete_event: "story",
    retype_spawn_event: "acknowledged",
    point_key_to_other_session: "one-key",
    lower_limit: "limits",
    retype_start_event: "one-holder",
    turn_success_into_retry: "stale",
    store_key_of_refused_spawn: "refused",
    spawn_under_ended_parent: "after-the-end",
    delegate_without_authority: "narrowing",
    swap_spawn_positions: "order",
    delete_edge_rows: "agreement",
    change_invocation_status: "agreement",
    reopen_cascades: "rest",
    reopen_invocation_of_ended_session: "rest",
    reopen_invocation_past_deadline: "rest",
}


def test_history_check_passes_after_a_run_and_finds_every_planted_violation(scenario: Scenario) -> None:
    report = scenario.report()
    assert report.is_consistent, report.text()
    assert report.history
    assert report.history.calls["done"] >= CALLS // 3
    assert set(DAMAGES.values()) == set(INVARIANTS) - TASK_INVARIANTS
    original = scenario.rows()
    for damage, invariant in DAMAGES.items():
        # Checks of log and history are the same on both engines. Checks of rows have a query for each engine.
        if not sqlite_path(scenario.url) and invariant not in ("agreement", "rest"):
            continue
        damage(scenario)
        history = scenario.report().history
        assert history
        assert invariant in history.counts, f"{damage.__name__}: {history.text()}"
        scenario.restore(original)
    assert scenario.report().is_consistent
    assert_command_agrees(scenario)


def assert_command_agrees(scenario: Scenario) -> None:
    qd = Qd(scenario.data, QD_DATABASE_URL=scenario.url)
    lines = qd.run("check", "--history", str(scenario.history)).splitlines()
    assert lines[-1].startswith("no violations: ")
    assert qd.run_json("check", "--history", str(scenario.history))["history"]["findings"] == []
    for forge in (forge_spawn_line, truncate_line):
        forged = scenario.history.with_name("forged.jsonl")
        forged.write_text("\n".join(forge(scenario)) + "\n")
        done = qd("check", "--history", str(scenario.history), "--history", str(forged))
        assert done.returncode == 1
        output = done.stdout + done.stderr
        assert "forged.jsonl:1" in output, output
    done = qd("check", "--json", "--history", str(scenario.history), "--history", str(forged.with_name("none")))
    assert (done.returncode, json.loads(done.stderr)["error"]) == (1, "invalid_history")


def forge_spawn_line(scenario: Scenario) -> Iterator[str]:
    line = next(line for line in scenario.lines() if line["op"] == "spawn" and line["status"] == 201)
    yield json.dumps({**line, "client": "forged", "asked": {}, "answer": {"id": "never"}})


def truncate_line(scenario: Scenario) -> Iterator[str]:
    yield '{"client": "forged", '
