"""Migrations on both engines: from an empty database, and from older revisions with rows in the tables."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from quarterdeck.core.errors import Problem
from quarterdeck.store import migrate
from quarterdeck.store.interface import StoreError, TransientError
from quarterdeck.store.migrate import current_revision, revisions, schema_mismatch, sqlite_path, upgrade
from tests.support.builders import APP, ZONE
from tests.support.child_processes import minimal_environment
from tests.support.databases import PostgresDatabases
from tests.support.delegations import DelegationHarness, delegate_command
from tests.support.rounds import ROUNDS
from tests.support.runtime import DirectDatabase, assert_counts_match_rows, open_runtime
from tests.support.source import ROOT

FIRST, LAST = revisions()[0], revisions()[-1]
TABLES = {
    "zones", "events", "log_head", "leases", "seals", "agent_sessions", "admission_counts", "idempotency_keys",
    "cascades", "api_keys", "agent_services", "service_sessions", "agent_invocations", "delegation_edges",
    "delegation_epochs", "delegation_ranks", "sinks", "sink_entries", "invocation_backlogs",
    "zone_members", "agents", "agent_capabilities", "agent_pulses", "agent_heartbeats", "task_classes",
    "agent_tasks", "task_dependencies", "task_tags", "task_log_lines", "task_log_counts", "task_shares",
    "task_strategies", "task_costs", "cost_days", "budgets", "webhook_endpoints", "webhook_deliveries",
    "secret_checks", "fleet_counters", "fleets", "members", "messages", "agent_placements", "monitor_config",
    "monitor_runtime",
}  # fmt: skip


def tables(url: str) -> set[str]:
    listing = (
        "select name from sqlite_master where type = 'table' and name not like 'sqlite%'"
        if sqlite_path(url)
        else "select table_name from information_schema.tables where table_schema = 'public'"
    )
    return {str(row[0]) for row in DirectDatabase(url).execute(listing)} - {"alembic_version"}


def columns(url: str, table: str) -> list[tuple[object, object]]:
    """(name, is nullable) of each column, in order."""
    if sqlite_path(url):
        return [(row[1], not row[3]) for row in DirectDatabase(url).execute(f"pragma table_info({table})")]
    rows = DirectDatabase(url).execute(
        "select column_name, is_nullable from information_schema.columns "
        "where table_name = ? order by ordinal_position",
        table,
    )
    return [(name, nullable == "YES") for name, nullable in rows]


# -- upgrades


def test_blank_database_is_upgraded_to_the_last_revision(blank_url: str) -> None:
    assert current_revision(blank_url) is None
    assert upgrade(blank_url) == LAST
    assert current_revision(blank_url) == LAST
    assert schema_mismatch(LAST) is None
    assert tables(blank_url) == TABLES


def test_upgrade_of_a_current_database_changes_nothing(blank_url: str) -> None:
    upgrade(blank_url)
    DirectDatabase(blank_url).execute("insert into leases (name, term, holder, expires_at) values ('kept', 3, 'me', 4)")
    assert upgrade(blank_url) == LAST
    assert DirectDatabase(blank_url).execute("select * from leases") == [("kept", 3, "me", 4)]


def test_each_revision_upgrades_from_its_predecessor(blank_url: str) -> None:
    for revision in revisions():
        assert upgrade(blank_url, revision) == revision
        assert current_revision(blank_url) == revision
        mismatch = schema_mismatch(revision)
        assert (mismatch is None) == (revision == LAST or revision in migrate.COMPATIBLE_REVISIONS)


async def test_rows_of_the_first_revision_are_kept_and_usable(blank_url: str) -> None:
    upgrade(blank_url, FIRST)
    database = DirectDatabase(blank_url)
    database.execute("insert into zones values ('old', 'Old zone', 0, '{\"max_sessions\": 2}', 5, 6)")
    database.execute(
        "insert into events values (1, 'e1', 'old', 'zone.create', 'old', 'me', null, null, '{}', null, 5)"
    )
    database.execute("update log_head set pos = 1")
    database.execute("insert into leases values ('pass', 7, 'me', 8)")
    assert upgrade(blank_url) == LAST
    assert database.execute("select * from zones") == [("old", "Old zone", 0, '{"max_sessions": 2}', 5, 6, None)]
    assert database.execute("select * from leases") == [("pass", 7, "me", 8)]
    async with open_runtime(blank_url) as runtime:
        session = await runtime.spawn("old")
        assert [(event.pos, event.subject) for event in await runtime.read_log()] == [(1, "old"), (2, session.id)]
        assert_counts_match_rows(database)


async def test_old_delegations_get_ranks_and_expire_with_their_sessions(blank_url: str) -> None:
    upgrade(blank_url, "0005")
    database, later = DirectDatabase(blank_url), 9_000_000_000_000
    database.execute(
        "insert into zones (id, name, frozen, quotas, created_at, updated_at) values (?, 'n', 0, '{}', 1, 1)", ZONE
    )
    for session_id, expires_at in (("a", later), ("b", later - 5), ("c", later), ("d", later)):
        database.execute(
            "insert into agent_sessions (id, zone_id, application_id, root_id, session_sid, kind, status, depth, "
            "capabilities, metadata, ttl_seconds, limits, spawned_at, expires_at, created_at, updated_at) "
            "values (?, ?, ?, ?, 's', 'instance', 'active', 0, '[]', '{}', 3600, '{}', 1, ?, 1, 1)",
            *(session_id, ZONE, APP, session_id, expires_at),
        )
    # In reverse order of the session ids: d to c, c to b, b to a. Each edge is the parent of the next.
    for edge_id, source, target, parent in (("e1", "d", "c", None), ("e2", "c", "b", "e1"), ("e3", "b", "a", "e2")):
        database.execute(
            "insert into delegation_edges (id, zone_id, source_session_id, target_session_id, issuer_application_id, "
            "receiver_application_id, scopes, hops, constraints_json, parent_edge_id, status, expires_at, "
            "edge_version, created_by, created_at, updated_at) "
            "values (?, ?, ?, ?, ?, ?, '[]', 10, '{}', ?, 'active', ?, 1, 'me', 1, 1)",
            *(edge_id, ZONE, source, target, APP, APP, parent, later - 1),
        )
    database.execute("insert into delegation_epochs values (?, 3)", ZONE)
    assert upgrade(blank_url) == LAST
    edges = database.execute("select id, expires_at from delegation_edges order by id")
    assert edges == [("e1", later - 1), ("e2", later - 5), ("e3", later - 5)]
    async with open_runtime(blank_url) as runtime:
        delegations = DelegationHarness(runtime)
        for source, target in (("a", "d"), ("a", "c"), ("b", "d")):
            with pytest.raises(Problem) as refused:
                await delegations.delegate_lane.submit(delegate_command(source, target))
            assert refused.value.code == "delegation_cycle_denied"
        assert (await delegations.delegate_lane.submit(delegate_command("d", "a"))).created
        assert delegations.edges_out_of_order() == []
        assert database.execute("select * from delegation_epochs") == [(ZONE, 4, 4)]


def test_zone_members_are_kept_when_fleet_members_are_introduced(blank_url: str) -> None:
    upgrade(blank_url, "0007")
    database, row = DirectDatabase(blank_url), ("old", "alice", "OWNER", "me", 5, 6)
    database.execute("insert into members values (?, ?, ?, ?, ?, ?)", *row)
    assert upgrade(blank_url) == LAST
    assert database.execute("select * from zone_members") == [row]
    assert database.count("members") == 0


def test_both_engines_have_the_same_tables_and_columns(sqlite_url: str, postgres_url: str) -> None:
    assert tables(sqlite_url) == tables(postgres_url) == TABLES
    for table in TABLES:
        assert columns(sqlite_url, table) == columns(postgres_url, table)


def test_failed_revision_is_rolled_back(blank_url: str) -> None:
    upgrade(blank_url, FIRST)
    before = tables(blank_url)
    # Conflicts with the second table that the next revision creates.
    DirectDatabase(blank_url).execute("create table admission_counts (x text)")
    with pytest.raises(Exception, match="admission_counts"):
        upgrade(blank_url)
    assert current_revision(blank_url) == FIRST
    assert tables(blank_url) == before | {"admission_counts"}
    DirectDatabase(blank_url).execute("drop table admission_counts")
    assert upgrade(blank_url) == LAST


async def test_concurrent_upgrades_reach_the_last_revision(tmp_path: Path, postgres: PostgresDatabases) -> None:
    # Few rounds: each process loads Alembic, which takes longer than the upgrade.
    for number in range(1 + ROUNDS // 10):
        for url in (f"sqlite:///{tmp_path / f'{number}.db'}", postgres.create_blank()):
            program = f"from quarterdeck.store.migrate import upgrade; print(upgrade({url!r}))"
            processes = [
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-c", program),
                    env=minimal_environment(),
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                )
                for _ in range(3)
            ]
            outputs = await asyncio.gather(*(process.communicate() for process in processes))
            assert [output.decode().strip() for output, _ in outputs] == [LAST] * 3, outputs
            assert tables(url) == TABLES


# -- refusals


def test_schema_mismatch_names_the_revisions_and_the_fix() -> None:
    none, behind, ahead = schema_mismatch(None), schema_mismatch(FIRST), schema_mismatch("9999")
    assert none
    assert "no schema yet" in none
    assert behind
    assert f"at revision {FIRST}, behind this release ({LAST})" in behind
    assert ahead
    assert f"at revision 9999, which is ahead of this release ({LAST})" in ahead
    assert "qd db upgrade" in none
    assert "qd db upgrade" in behind
    assert "qd db upgrade" not in ahead, "no newer revision exists"


def test_upgrade_of_a_newer_schema_is_refused_and_changes_nothing(blank_url: str) -> None:
    upgrade(blank_url)
    DirectDatabase(blank_url).execute("update alembic_version set version_num = '9999'")
    with pytest.raises(StoreError, match="at revision 9999, which is ahead of this release") as refused:
        upgrade(blank_url)
    assert refused.value.code == "migration"
    assert current_revision(blank_url) == "9999"
    assert tables(blank_url) == TABLES


def test_initialize_creates_or_keeps_the_schema_and_refuses_a_foreign_database(blank_url: str) -> None:
    DirectDatabase(blank_url).execute("create table customers (id bigint)")
    with pytest.raises(StoreError, match="tables but no revision"):
        migrate.initialize(blank_url)
    assert tables(blank_url) == {"customers"}
    DirectDatabase(blank_url).execute("drop table customers")
    assert migrate.initialize(blank_url) == (None, LAST)
    assert migrate.initialize(blank_url) == (LAST, LAST)
    DirectDatabase(blank_url).execute("update alembic_version set version_num = '9999'")
    with pytest.raises(StoreError, match="ahead of this release"):
        migrate.initialize(blank_url)


def test_initialize_upgrades_an_older_database(blank_url: str) -> None:
    upgrade(blank_url, FIRST)
    assert migrate.initialize(blank_url) == (FIRST, LAST)


def test_unreachable_database_is_a_transient_error() -> None:
    with pytest.raises(TransientError, match="cannot be reached"):
        current_revision("postgresql://user:secret@127.0.0.1:1/none")


def test_reading_the_revision_of_a_missing_file_does_not_create_it(tmp_path: Path) -> None:
    file = tmp_path / "none.db"
    assert current_revision(f"sqlite:///{file}") is None
    assert not file.exists()


def test_directory_of_a_new_sqlite_file_has_mode_700(tmp_path: Path) -> None:
    file = tmp_path / "new" / "quarterdeck.db"
    upgrade(f"sqlite:///{file}")
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///relative/x.db", Path("relative/x.db")),
        ("sqlite:////absolute/x.db", Path("/absolute/x.db")),
        ("sqlite:////with%20space/x.db", Path("/with space/x.db")),
        ("postgresql://host/db", None),
        ("postgres://host/db", None),
    ],
)
def test_sqlite_path_is_parsed_from_the_url(url: str, path: Path | None) -> None:
    assert sqlite_path(url) == path


def test_url_of_another_engine_is_refused_without_showing_its_password() -> None:
    with pytest.raises(StoreError) as refused:
        sqlite_path("mysql://user:secret@host/db")
    assert "secret" not in str(refused.value)
    assert "mysql" in str(refused.value)


def test_server_process_does_not_import_alembic_or_sqlalchemy() -> None:
    program = (
        "import sys, quarterdeck.store.migrate, quarterdeck.store.postgres, quarterdeck.store.sqlite\n"
        "import quarterdeck.domain.sessions.routes, quarterdeck.domain.zones.routes\n"
        "print(sorted({'alembic', 'sqlalchemy'} & sys.modules.keys()))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=minimal_environment(), capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_revisions_form_one_chain_and_match_their_file_names() -> None:
    for file in sorted(migrate.VERSIONS.glob("[0-9]*.py")):
        number = file.name.partition("_")[0]
        text = file.read_text(encoding="utf-8")
        assert f'revision = "{number}"' in text
        previous = revisions()[revisions().index(number) - 1] if number != FIRST else None
        assert f"down_revision = {previous!r}".replace("'", '"') in text
