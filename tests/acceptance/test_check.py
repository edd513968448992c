"""`qd check` finds every kind of damage, and has no findings on a consistent database under load."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from quarterdeck.domain.sessions.model import Session, Terminate
from quarterdeck.maintenance.consistency import CHECKS, FINDINGS_MAX, ConsistencyReport, check_database
from quarterdeck.store.migrate import sqlite_path
from tests.acceptance.test_check_fleets import FLEET_CHECKS
from tests.cli.cli_support import Qd
from tests.support.builders import ZONE, admin
from tests.support.log_tampering import restore_tables
from tests.support.rounds import ROUNDS
from tests.support.runtime import DirectDatabase, RuntimeHarness, RuntimeOptions, SqlValue, open_runtime
from tests.support.server import Launch, Servers
from tests.support.source import ROOT
from tests.support.spawn_load import SpawnLoad
from tests.support.tasks import TaskHarness
from tests.support.zone import APP, FreshZone, create_zone, end, spawn

TABLES = [
    "zones",
    "agent_sessions",
    "admission_counts",
    "cascades",
    "idempotency_keys",
    "log_head",
    "agents",
    "agent_pulses",
    "agent_tasks",
    "task_dependencies",
    "leases",
    "events",
    "agent_invocations",
    "delegation_edges",
    "agent_services",
    "service_sessions",
]


@dataclass(frozen=True)
class Scenario:
    """A database with four trees: live, partly suspended, terminated, and marked by an unfinished cascade."""

    url: str
    root: Session
    child: Session
    leaf: Session
    suspended: Session
    ended: Session
    marked: Session

    @property
    def database(self) -> DirectDatabase:
        return DirectDatabase(self.url)

    def rows(self) -> dict[str, list[tuple[SqlValue, ...]]]:
        return {table: self.database.execute(f"select * from {table}") for table in TABLES}

    def restore(self, rows: dict[str, list[tuple[SqlValue, ...]]]) -> None:
        restore_tables(self.url, rows)


@pytest.fixture
async def scenario(engine_url: str) -> Scenario:
    async with open_runtime(engine_url, RuntimeOptions(chunk=2)) as runtime:
        await runtime.put_zone()
        root, child, _, leaf, *_ = await runtime.spawn_tree(2, 2)
        _, suspended, *_ = await runtime.spawn_tree(1, 2)
        await runtime.suspend(suspended)
        ended, *_ = await runtime.spawn_tree(3)
        await runtime.terminate(ended)
        await runtime.spawn(key="k", digest="d")
        marked = await mark_tree(runtime)
        await create_tasks(runtime)
    return Scenario(engine_url, root, child, leaf, suspended, ended, marked)


async def mark_tree(runtime: RuntimeHarness) -> Session:
    """Mark a tree larger than one chunk and stop before its first chunk, as if the process were killed."""
    top, *_ = await runtime.spawn_tree(3, 1)
    await runtime.terminate_lane.submit(Terminate(ZONE, top.id, "requested", admin()))
    return top


async def create_tasks(runtime: RuntimeHarness) -> None:
    """Create tasks: one running, one that depends on it, one completed, and one in its retry backoff."""
    work = TaskHarness(runtime)
    await work.register_agent("holder")
    await work.register_agent("idle")
    await work.create("done")
    [leased] = await work.claim("holder")
    await work.complete(leased.task)
    await work.create("held")
    await work.claim("holder")
    await work.create("waiting", depends_on=("held", "done"))
    await work.create("failing", retry_backoff_seconds=3_600)
    [leased] = await work.claim("holder")
    await work.fail(leased.task)


def details_by_check(report: ConsistencyReport) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for finding in report.findings:
        names.setdefault(finding.check, []).append(finding.detail)
    return names


Damage = tuple[str, str, Sequence[object]]
INVOCATION = f"""
insert into agent_invocations (id, zone_id, service_id, application_id, source_session_id, idempotency_key, digest,
    method, params_json, metadata_json, status, attempts, max_attempts, timeout_ms, retry_policy_json, parked,
    available_at, deadline_at, lease_expires_at, attempt_token, holder, invoker, completed_at, created_at, updated_at)
values ('i', '{ZONE}', 'v', '{APP}', ?, 'k', 'd', 'm', 'null', 'null', {{}}, 3, 1000, 'null', {{}}, 1, {{}}, '{APP}',
    1, 1, 1)
"""
"""The placeholders: status and attempts; parked; deadline, lease, token and holder."""
PENDING = ("'pending', 0", "0", "null, null, null, null")
RUNNING = ("'running', 1", "0", "9000000000000, 9000000000000, 't', 'h'")
EDGE = f"""
insert into delegation_edges (id, zone_id, source_session_id, target_session_id, issuer_application_id,
    receiver_application_id, scopes, hops, constraints_json, parent_edge_id, status, expires_at, edge_version,
    created_by, created_at, updated_at)
values ('d', '{ZONE}', ?, ?, '{APP}', '{APP}', '[]', 1, 'null', {{}}, 'active', 9000000000000, 1, 'tester', 1, 1)
"""
SERVICE = f"""
insert into agent_services (id, zone_id, application_id, endpoint_url, protocol_versions, capabilities, health,
    metadata_json, delivery, secret_number, active_invocations, created_at, updated_at)
values ('v', '{ZONE}', '{APP}', 'https://agents.example.com', '[]', '[]', 'healthy', '{{}}', 'pull', 1, 0, 1, 1)
"""


def session_damages(scenario: Scenario) -> list[Damage]:
    """Damage to invocations, delegations and services."""
    parked = ("'pending', 0", "1", "null, null, null, null")
    return [
        ("invocations", INVOCATION.format(*PENDING), (scenario.ended.id,)),
        ("invocations", INVOCATION.format(*RUNNING), (scenario.ended.id,)),
        ("invocations", INVOCATION.format(*RUNNING), ("missing",)),
        ("attempts", INVOCATION.format("'running', 0", "0", RUNNING[2]), (scenario.root.id,)),
        ("attempts", INVOCATION.format("'running', 4", "0", RUNNING[2]), (scenario.root.id,)),
        ("attempts", INVOCATION.format("'running', 1", "0", PENDING[2]), (scenario.root.id,)),
        ("attempts", INVOCATION.format("'pending', 0", "0", RUNNING[2]), (scenario.root.id,)),
        ("attempts", INVOCATION.format("'gone', 0", "0", PENDING[2]), (scenario.root.id,)),
        ("parked", INVOCATION.format(*parked), (scenario.root.id,)),
        ("delegations", EDGE.format("null"), (scenario.root.id, scenario.ended.id)),
        ("delegations", EDGE.format("null"), ("missing", scenario.root.id)),
        ("delegation-lines", EDGE.format("'gone'"), (scenario.root.id, scenario.leaf.id)),
        ("delegation-order", EDGE.format("null"), (scenario.root.id, scenario.leaf.id)),
        ("services", SERVICE, ()),
        ("services", f"insert into service_sessions values ('{ZONE}', 'v', ?)", (scenario.ended.id,)),
    ]


def task_damages() -> list[Damage]:
    """Damage to tasks and to the slots of agents."""
    task = "update agent_tasks set {} where id = ?"
    return [
        ("tasks", task.format("status = 'LOST'"), ("held",)),
        ("tasks", task.format("attempt_token = null"), ("held",)),
        ("tasks", task.format("attempt = 0"), ("held",)),
        ("tasks", task.format("agent_id = 'holder'"), ("waiting",)),
        ("tasks", task.format("completed_at = null"), ("done",)),
        ("tasks", task.format("waits = 0"), ("failing",)),
        ("tasks", task.format("waits = 7"), ("waiting",)),
        ("tasks-waiting", task.format("unmet = 2"), ("waiting",)),
        ("tasks-waiting", task.format("waits = 0"), ("waiting",)),
        ("tasks-waiting", "update task_dependencies set met = 1 where task_id = ?", ("waiting",)),
        ("tasks-forgotten", task.format("status = 'COMPLETED', completed_at = 1"), ("held",)),
        ("tasks-forgotten", "delete from agent_tasks where id = ?", ("held",)),
        ("tasks-held", "update agent_pulses set held = held + 1 where agent_id = ?", ("idle",)),
        ("tasks-held", "update agent_pulses set held = 0 where agent_id = ?", ("holder",)),
        ("tasks-lost", "update agents set status = 'TERMINATED' where id = ?", ("holder",)),
        ("tasks-lost", "update agents set status = 'ERROR' where id = ?", ("holder",)),
        ("tasks-lost", task.format("agent_id = 'missing'"), ("held",)),
    ]


def damages(scenario: Scenario) -> list[Damage]:
    """Each item: the check that must find the damage, the statement that causes it, its parameters."""
    session = "update agent_sessions set {} where id = ?"
    counts = [
        ("counts", f"update admission_counts set live = live + 1 where scope = '{scope}'", ())
        for scope in ("zone", "application", "tree", "concurrent", "parent")
    ]
    return [
        *counts,
        ("counts", "delete from admission_counts where scope = 'zone'", ()),
        ("counts", f"insert into admission_counts values ('{ZONE}', 'application', 'missing', 1, 1)", ()),
        ("counts-left", f"insert into admission_counts values ('{ZONE}', 'parent', ?, 0, 1)", (scenario.ended.id,)),
        ("counts-left", f"insert into admission_counts values ('{ZONE}', 'tree', 'missing', 0, 1)", ()),
        ("counts-ever", "update admission_counts set ever = 1 where scope = 'tree' and key = ?", (scenario.root.id,)),
        ("parents", session.format("status = 'terminated', terminated_at = 1"), (scenario.child.id,)),
        ("parents", session.format("terminated_at = 1"), (scenario.child.id,)),
        ("parents", "delete from agent_sessions where id = ?", (scenario.child.id,)),
        ("parents", session.format("parent_id = 'missing'"), (scenario.leaf.id,)),
        ("places", session.format("depth = depth + 1"), (scenario.leaf.id,)),
        ("places", session.format("depth = 1"), (scenario.root.id,)),
        ("places", session.format("root_id = 'missing'"), (scenario.leaf.id,)),
        ("places", session.format("parent_id = ?"), (scenario.suspended.id, scenario.leaf.id)),
        ("cycles", session.format("parent_id = ?"), (scenario.leaf.id, scenario.root.id)),
        ("cycles", session.format("parent_id = id"), (scenario.leaf.id,)),
        ("cycles", session.format("parent_id = ?"), (scenario.leaf.id, scenario.child.id)),
        ("expiries", session.format("expires_at = expires_at + 1"), (scenario.leaf.id,)),
        ("states", session.format("status = 'unknown'"), (scenario.leaf.id,)),
        ("states", session.format("status = 'terminated'"), (scenario.leaf.id,)),
        ("suspensions", session.format("status = 'suspended'"), (scenario.leaf.id,)),
        ("suspensions", session.format("status = 'active'"), (scenario.suspended.id,)),
        ("suspensions", session.format("held = 1"), (scenario.child.id,)),
        ("suspensions", session.format("held = 0"), (scenario.suspended.id,)),
        ("stamps", session.format("terminated_at = 1"), (scenario.leaf.id,)),
        ("stamps", "delete from cascades", ()),
        ("stamps", "update cascades set finished_at = 1", ()),
        ("cascades", "update cascades set stamped = stamped + 1", ()),
        ("cascades-slow", "update cascades set started_at = 1", ()),
        ("zones", f"update zones set ended_at = 1 where id = '{ZONE}'", ()),
        ("zones", f"delete from zones where id = '{ZONE}'", ()),
        ("log-head", "update log_head set pos = pos + 1", ()),
        ("log-head", "update log_head set pos = pos - 1", ()),
        ("log-head", "update log_head set floor = pos + 1", ()),
        ("log-head", "delete from log_head", ()),
        ("log-gaps", "delete from events where pos = 3", ()),
        ("log-gaps", "delete from events where pos < 5", ()),
        ("log-gaps", "update events set pos = -3 where pos = 1", ()),
        ("leases", "insert into leases values ('pass', 1, 'holder-1', 9000000000000)", ()),
        ("leases", "insert into leases values ('pass', -1, 'holder-1', 1)", ()),
    ]  # fmt: skip


REPORTED_BY_OTHER_ID = ("counts-left", "counts-ever", "attempts", "parked", "delegations", "delegation-lines",
                   "delegation-order")  # fmt: skip
"""Checks whose finding does not name the last parameter."""


def test_check_of_a_consistent_database_has_no_findings(scenario: Scenario) -> None:
    report = check_database(scenario.url)
    assert report.is_consistent, report.text()
    assert report.totals.cascades == 2
    assert re.match(r"consistent: 1 zone, \d+ sessions, \d+ live, ", report.text())


def test_every_kind_of_damage_is_found_by_its_check(scenario: Scenario) -> None:
    original, planted = scenario.rows(), [*damages(scenario), *session_damages(scenario), *task_damages()]
    # Damage to fleets is planted by test_check_fleets.py.
    assert {check.name for check in CHECKS} == {name for name, _, _ in planted} | {"keys"} | FLEET_CHECKS
    for name, statement, parameters in planted:
        scenario.database.execute(statement, *(str(parameter) for parameter in parameters))
        report = check_database(scenario.url)
        assert name in details_by_check(report), f"{statement}: {report.text()}"
        if parameters and name not in REPORTED_BY_OTHER_ID:
            assert str(parameters[-1]) in report.text(), statement
        scenario.restore(original)
    assert check_database(scenario.url).is_consistent


def test_one_wrong_row_is_one_finding(scenario: Scenario) -> None:
    for name, statement, target in (
        ("counts", "update admission_counts set live = live + 1 where scope = 'tree' and key = ?", scenario.root),
        ("expiries", "update agent_sessions set expires_at = expires_at + 1 where id = ?", scenario.leaf),
        ("suspensions", "update agent_sessions set status = 'suspended' where id = ?", scenario.leaf),
        ("places", "update agent_sessions set depth = depth + 1 where id = ?", scenario.leaf),
    ):
        original = scenario.rows()
        scenario.database.execute(statement, target.id)
        assert {check: len(lines) for check, lines in details_by_check(check_database(scenario.url)).items()} == {
            name: 1
        }
        scenario.restore(original)


def test_key_of_a_deleted_session_is_a_note_and_not_a_finding(scenario: Scenario) -> None:
    scenario.database.execute(
        f"insert into idempotency_keys values ('{ZONE}', '{APP}', 'spawn', 'a\nb', 'd', 'gone', 1)"
    )
    report = check_database(scenario.url)
    assert report.is_consistent
    assert [note.id for note in report.notes] == ["gone"]
    assert r"(note) keys: zone z: key 'a\\nb' of app names session gone" in report.text()


def test_findings_above_the_maximum_are_only_counted(scenario: Scenario) -> None:
    for number in range(FINDINGS_MAX + 7):
        scenario.database.execute(
            f"insert into admission_counts values ('{ZONE}', 'application', 'missing{number}', 1, 1)"
        )
    report = check_database(scenario.url)
    assert (len(report.findings), report.counts) == (FINDINGS_MAX, {"counts": FINDINGS_MAX + 7})
    assert "counts: 7 more" in report.text()
    assert f"{FINDINGS_MAX + 7} rows differ: " in report.text()


def test_every_check_is_documented() -> None:
    page = (ROOT / "docs" / "consistency.md").read_text(encoding="utf-8")
    assert [check.name for check in CHECKS if f"| `{check.name}` |" not in page] == []


# -- the command


async def test_check_passes_during_load_and_after_sigkill(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_SEAL_INTERVAL_MS="50", QD_TTL_SWEEP_INTERVAL_MS="50"))
    qd = Qd(launch.data, QD_DATABASE_URL=launch.database_url)
    zone = await create_zone(server)
    load, stop = SpawnLoad(zone, clients=8), asyncio.Event()
    async with zone.client() as client:
        trees = [asyncio.create_task(run_trees(client, zone, stop)) for _ in range(4)]
        for _ in range(ROUNDS):
            await load.wait_for_acknowledged(100)
            done = await asyncio.to_thread(qd, "check")
            assert done.returncode == 0, done.stdout + done.stderr
        stop.set()
        await asyncio.gather(*trees)
    await load.stop()
    server.kill()
    report = qd.run_json("check")
    assert report["well"] is True
    assert report["totals"]["sessions"] >= 100 * ROUNDS
    assert qd.run_json("audit", "verify")["proven"] is True


async def run_trees(client: httpx.AsyncClient, zone: FreshZone, stop: asyncio.Event) -> None:
    """Spawn, suspend, resume and terminate trees, with sessions that expire, until stopped."""
    while not stop.is_set():
        root = await spawn(client, zone, ttl_seconds=60)
        middle = await spawn(client, zone, parent_id=root["id"])
        await spawn(client, zone, parent_id=middle["id"])
        await spawn(client, zone, parent_id=root["id"], ttl_seconds=1)
        for verb in ("suspend", "resume", "suspend"):
            response = await client.post(zone.session_path(middle["id"], f"/{verb}"))
            assert response.status_code == 200, response.text
        await end(client, zone, root["id"])


def test_check_exits_1_on_findings_or_without_a_database(sqlite_url: str, tmp_path: Path) -> None:
    qd = Qd(tmp_path)
    assert qd.run("check") == "consistent: 0 zones, 0 sessions, 0 live, 0 counters, 0 cascades, 0 events"
    DirectDatabase(sqlite_url).execute("update log_head set pos = 4")
    done = qd("check")
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "log-head: log_head has position 4 and floor 0, but the last event is none"
    assert done.stdout.splitlines()[1].startswith("1 row differs: ")
    done = qd("check", "--json")
    assert (done.returncode, json.loads(done.stdout)["findings"][0]["check"]) == (1, "log-head")
    missing = qd("check", "--database", f"sqlite:///{tmp_path}/none.db")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "There is no database at" in missing.stderr
    path = sqlite_path(sqlite_url)
    assert path
    assert not path.with_name("none.db").exists()
