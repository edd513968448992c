"""`qd check`: every kind of damage is found and named, and a healthy database is well, however busy."""

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
from tests.support.log_tampering import owner_transaction
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
class World:
    """A database with a living tree, one that sleeps in part, one that has ended, and one that is stamped."""

    url: str
    root: Session
    child: Session
    leaf: Session
    sleeper: Session
    ended: Session
    stamped: Session

    @property
    def side(self) -> DirectDatabase:
        return DirectDatabase(self.url)

    def rows(self) -> dict[str, list[tuple[SqlValue, ...]]]:
        return {table: self.side.execute(f"select * from {table}") for table in TABLES}

    def restore(self, rows: dict[str, list[tuple[SqlValue, ...]]]) -> None:
        with owner_transaction(self.url) as (run, each):
            for table, content in rows.items():
                run(f"delete from {table}", ())
                if content:
                    each(f"insert into {table} values ({', '.join('?' for _ in content[0])})", content)


@pytest.fixture
async def scenario(engine_url: str) -> World:
    async with open_runtime(engine_url, RuntimeOptions(chunk=2)) as keel:
        await keel.put_zone()
        root, child, _, leaf, *_ = await keel.spawn_tree(2, 2)
        _, sleeper, *_ = await keel.spawn_tree(1, 2)
        await keel.suspend(sleeper)
        ended, *_ = await keel.spawn_tree(3)
        await keel.terminate(ended)
        await keel.spawn(key="k", digest="d")
        stamped = await begun_to_end(keel)
        await some_work(keel)
    return World(engine_url, root, child, leaf, sleeper, ended, stamped)


async def begun_to_end(keel: RuntimeHarness) -> Session:
    """A tree larger than one chunk, stamped and not settled: somebody was killed in between."""
    top, *_ = await keel.spawn_tree(3, 1)
    await keel.terminate_lane.submit(Terminate(ZONE, top.id, "requested", admin()))
    return top


async def some_work(keel: RuntimeHarness) -> None:
    """One that is held, one that waits for it, one that is done, and one that waits for its backoff."""
    work = TaskHarness(keel)
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


def found(report: ConsistencyReport) -> dict[str, list[str]]:
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
"""Status and attempts; the mark of sleep; deadline, lease, token and holder."""
WAITS = ("'pending', 0", "0", "null, null, null, null")
RUNS = ("'running', 1", "0", "9000000000000, 9000000000000, 't', 'h'")
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


def plane_damages(w: World) -> list[Damage]:
    """What belongs to sessions."""
    asleep = ("'pending', 0", "1", "null, null, null, null")
    return [
        ("invocations", INVOCATION.format(*WAITS), (w.ended.id,)),
        ("invocations", INVOCATION.format(*RUNS), (w.ended.id,)),
        ("invocations", INVOCATION.format(*RUNS), ("nobody",)),
        ("attempts", INVOCATION.format("'running', 0", "0", RUNS[2]), (w.root.id,)),
        ("attempts", INVOCATION.format("'running', 4", "0", RUNS[2]), (w.root.id,)),
        ("attempts", INVOCATION.format("'running', 1", "0", WAITS[2]), (w.root.id,)),
        ("attempts", INVOCATION.format("'pending', 0", "0", RUNS[2]), (w.root.id,)),
        ("attempts", INVOCATION.format("'gone', 0", "0", WAITS[2]), (w.root.id,)),
        ("parked", INVOCATION.format(*asleep), (w.root.id,)),
        ("delegations", EDGE.format("null"), (w.root.id, w.ended.id)),
        ("delegations", EDGE.format("null"), ("nobody", w.root.id)),
        ("delegation-lines", EDGE.format("'gone'"), (w.root.id, w.leaf.id)),
        ("delegation-order", EDGE.format("null"), (w.root.id, w.leaf.id)),
        ("services", SERVICE, ()),
        ("services", f"insert into service_sessions values ('{ZONE}', 'v', ?)", (w.ended.id,)),
    ]


def work_damages() -> list[Damage]:
    """What is wrong with tasks, and who has them."""
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
        ("tasks-lost", task.format("agent_id = 'nobody'"), ("held",)),
    ]


def damages(w: World) -> list[Damage]:
    """(the check that must find it, what is done, with which ids)"""
    session = "update agent_sessions set {} where id = ?"
    counts = [
        ("counts", f"update admission_counts set live = live + 1 where scope = '{scope}'", ())
        for scope in ("zone", "application", "tree", "concurrent", "parent")
    ]
    return [
        *counts,
        ("counts", "delete from admission_counts where scope = 'zone'", ()),
        ("counts", f"insert into admission_counts values ('{ZONE}', 'application', 'nobody', 1, 1)", ()),
        ("counts-left", f"insert into admission_counts values ('{ZONE}', 'parent', ?, 0, 1)", (w.ended.id,)),
        ("counts-left", f"insert into admission_counts values ('{ZONE}', 'tree', 'nobody', 0, 1)", ()),
        ("counts-ever", "update admission_counts set ever = 1 where scope = 'tree' and key = ?", (w.root.id,)),
        ("parents", session.format("status = 'terminated', terminated_at = 1"), (w.child.id,)),
        ("parents", session.format("terminated_at = 1"), (w.child.id,)),
        ("parents", "delete from agent_sessions where id = ?", (w.child.id,)),
        ("parents", session.format("parent_id = 'nobody'"), (w.leaf.id,)),
        ("places", session.format("depth = depth + 1"), (w.leaf.id,)),
        ("places", session.format("depth = 1"), (w.root.id,)),
        ("places", session.format("root_id = 'nobody'"), (w.leaf.id,)),
        ("places", session.format("parent_id = ?"), (w.sleeper.id, w.leaf.id)),
        ("cycles", session.format("parent_id = ?"), (w.leaf.id, w.root.id)),
        ("cycles", session.format("parent_id = id"), (w.leaf.id,)),
        ("cycles", session.format("parent_id = ?"), (w.leaf.id, w.child.id)),
        ("expiries", session.format("expires_at = expires_at + 1"), (w.leaf.id,)),
        ("states", session.format("status = 'asleep'"), (w.leaf.id,)),
        ("states", session.format("status = 'terminated'"), (w.leaf.id,)),
        ("suspensions", session.format("status = 'suspended'"), (w.leaf.id,)),
        ("suspensions", session.format("status = 'active'"), (w.sleeper.id,)),
        ("suspensions", session.format("held = 1"), (w.child.id,)),
        ("suspensions", session.format("held = 0"), (w.sleeper.id,)),
        ("stamps", session.format("terminated_at = 1"), (w.leaf.id,)),
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
        ("leases", "insert into leases values ('pass', 1, 'somebody', 9000000000000)", ()),
        ("leases", "insert into leases values ('pass', -1, 'somebody', 1)", ()),
    ]  # fmt: skip


NAMED_BY_OTHERS = ("counts-left", "counts-ever", "attempts", "parked", "delegations", "delegation-lines",
                   "delegation-order")  # fmt: skip
"""Found by an id of their own, and not by the one that was given last."""


def test_a_healthy_database_is_well(scenario: World) -> None:
    report = check_database(scenario.url)
    assert report.is_consistent, report.text()
    assert report.totals.cascades == 2
    assert re.match(r"all is well: 1 zone, \d+ sessions, \d+ live, ", report.text())


def test_every_kind_of_damage_is_found(scenario: World) -> None:
    whole, planted = scenario.rows(), [*damages(scenario), *plane_damages(scenario), *work_damages()]
    # What is wrong with fleets is planted by tests of its own.
    assert {check.name for check in CHECKS} == {name for name, _, _ in planted} | {"keys"} | FLEET_CHECKS
    for name, statement, ids in planted:
        scenario.side.execute(statement, *(str(one) for one in ids))
        report = check_database(scenario.url)
        assert name in found(report), f"{statement}: {report.text()}"
        if ids and name not in NAMED_BY_OTHERS:
            assert str(ids[-1]) in report.text(), statement
        scenario.restore(whole)
    assert check_database(scenario.url).is_consistent


def test_what_the_damage_is_not_is_not_said(scenario: World) -> None:
    """One wrong row is one line, where nothing else follows from it."""
    for name, statement, target in (
        ("counts", "update admission_counts set live = live + 1 where scope = 'tree' and key = ?", scenario.root),
        ("expiries", "update agent_sessions set expires_at = expires_at + 1 where id = ?", scenario.leaf),
        ("suspensions", "update agent_sessions set status = 'suspended' where id = ?", scenario.leaf),
        ("places", "update agent_sessions set depth = depth + 1 where id = ?", scenario.leaf),
    ):
        whole = scenario.rows()
        scenario.side.execute(statement, target.id)
        assert {check: len(lines) for check, lines in found(check_database(scenario.url)).items()} == {name: 1}
        scenario.restore(whole)


def test_a_key_whose_session_is_gone_is_a_note_and_no_damage(scenario: World) -> None:
    scenario.side.execute(f"insert into idempotency_keys values ('{ZONE}', '{APP}', 'spawn', 'a\nb', 'd', 'gone', 1)")
    report = check_database(scenario.url)
    assert report.is_consistent
    assert [note.id for note in report.notes] == ["gone"]
    assert r"(note) keys: zone z: the key 'a\\nb' of app stands for gone" in report.text()


def test_more_than_can_be_read_are_counted(scenario: World) -> None:
    for number in range(FINDINGS_MAX + 7):
        scenario.side.execute(f"insert into admission_counts values ('{ZONE}', 'application', 'nobody{number}', 1, 1)")
    report = check_database(scenario.url)
    assert (len(report.findings), report.counts) == (FINDINGS_MAX, {"counts": FINDINGS_MAX + 7})
    assert "counts: 7 more" in report.text()
    assert f"{FINDINGS_MAX + 7} rows differ: " in report.text()


def test_every_check_is_explained_to_operators() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    assert [check.name for check in CHECKS if f"| `{check.name}` |" not in page] == []


# -- the command


async def test_beside_a_server_under_load_all_is_well_at_every_moment(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_SEAL_INTERVAL_MS="50", QD_TTL_SWEEP_INTERVAL_MS="50"))
    qd = Qd(launch.data, QD_DATABASE_URL=launch.database_url)
    zone = await create_zone(server)
    load, stop = SpawnLoad(zone, clients=8), asyncio.Event()
    async with zone.client() as client:
        trees = [asyncio.create_task(grow_and_fell(client, zone, stop)) for _ in range(4)]
        for _ in range(ROUNDS):
            await load.wait_for_acknowledged(100)
            done = await asyncio.to_thread(qd, "check")
            assert done.returncode == 0, done.stdout + done.stderr
        stop.set()
        await asyncio.gather(*trees)
    await load.stop()
    server.kill()
    told = qd.run_json("check")
    assert told["well"] is True
    assert told["totals"]["sessions"] >= 100 * ROUNDS
    assert qd.run_json("audit", "verify")["proven"] is True


async def grow_and_fell(client: httpx.AsyncClient, zone: FreshZone, stop: asyncio.Event) -> None:
    """Trees that grow, fall asleep, wake, expire and end."""
    while not stop.is_set():
        root = await spawn(client, zone, ttl_seconds=60)
        middle = await spawn(client, zone, parent_id=root["id"])
        await spawn(client, zone, parent_id=middle["id"])
        await spawn(client, zone, parent_id=root["id"], ttl_seconds=1)
        for verb in ("suspend", "resume", "suspend"):
            answer = await client.post(zone.session_path(middle["id"], f"/{verb}"))
            assert answer.status_code == 200, answer.text
        await end(client, zone, root["id"])


def test_the_exit_code_says_whether_all_is_well(sqlite_url: str, tmp_path: Path) -> None:
    qd = Qd(tmp_path)
    assert qd.run("check") == "all is well: 0 zones, 0 sessions, 0 live, 0 counters, 0 cascades, 0 events"
    DirectDatabase(sqlite_url).execute("update log_head set pos = 4")
    done = qd("check")
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "log-head: log_head has position 4 and floor 0, and the last event is nothing"
    assert done.stdout.splitlines()[1].startswith("1 row differs: ")
    done = qd("check", "--json")
    assert (done.returncode, json.loads(done.stdout)["findings"][0]["check"]) == (1, "log-head")
    missing = qd("check", "--database", f"sqlite:///{tmp_path}/none.db")
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "There is no database at" in missing.stderr
    path = sqlite_path(sqlite_url)
    assert path
    assert not path.with_name("none.db").exists()
