"""A backup taken under load restores completely: it passes `qd check` and `qd audit verify`, and a server starts."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import subprocess
from pathlib import Path

import psycopg
import pytest

from quarterdeck.core.errors import Conflict
from quarterdeck.maintenance import backup
from quarterdeck.store.interface import StoreError
from quarterdeck.store.migrate import sqlite_path
from quarterdeck.store.postgres_roles import create_roles_sql
from tests.cli.cli_support import Qd
from tests.support.child_processes import minimal_environment
from tests.support.eventually import eventually
from tests.support.postgres import PostgresServer, tool_path
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.spawn_load import SpawnLoad, stored_keys
from tests.support.zone import APP, FreshZone, create_zone

KEY = "signing-key.pem"
SECRETS = "secret-keys"


class BackupSource:
    """A server under load with at least one seal, and the spawns acknowledged before the backup."""

    def __init__(self, server: ServerProcess, load: SpawnLoad) -> None:
        self.server = server
        self.load = load
        self.acknowledged_before = set(load.acknowledged.items())

    @property
    def key(self) -> Path:
        return self.server.launch.data / KEY


async def start_source(servers: Servers, launch: Launch) -> BackupSource:
    server = await servers.start(launch.with_environment(QD_SEAL_INTERVAL_MS="50"))
    load = SpawnLoad(await create_zone(server), clients=8)
    await load.wait_for_acknowledged(100)

    async def has_seal() -> bool:
        return DirectDatabase(launch.database_url).count("seals") > 0

    await eventually(has_seal, "the log has a seal")
    return BackupSource(server, load)


async def assert_restored(servers: Servers, source: BackupSource, restored: Launch, anchor: str) -> None:
    """Assert that the restored database is consistent and verified, contains every acknowledged spawn, and works."""
    url, zone_id = restored.database_url, source.load.zone.id
    qd = Qd(restored.data, QD_DATABASE_URL=url)
    check = qd.run_json("check")
    assert check["well"] is True
    audit = qd.run_json("audit", "verify", "--anchor", anchor)
    assert audit["proven"] is True
    assert audit["events"] > 0
    assert source.acknowledged_before <= set(stored_keys(url, zone_id))
    server = await servers.start(restored.with_environment(QD_SEAL_INTERVAL_MS="50"))
    zone = FreshZone(server, zone_id)
    async with zone.client() as client:
        response = await client.post(zone.sessions_path, json={"application_id": APP})
        assert response.status_code == 201, response.text
        for key, session in source.acknowledged_before:
            repeated = await client.post(
                zone.sessions_path,
                json={"application_id": APP, "metadata": {"key": key}},
                headers={"Idempotency-Key": key},
            )
            assert (repeated.status_code, repeated.json()["id"]) == (200, session)
            break

    async def has_new_seal() -> bool:
        return int(qd.run_json("audit", "verify", "--anchor", anchor)["seals"]) > int(audit["seals"])

    await eventually(has_new_seal, "the chain of seals continued")
    assert await server.stop() == 0
    assert qd.run_json("check")["well"] is True


async def test_sqlite_backup_taken_under_load_restores_completely(
    servers: Servers, sqlite_url: str, tmp_path: Path
) -> None:
    path = sqlite_path(sqlite_url)
    assert path
    source = await start_source(servers, Launch(path.parent))
    qd, file = Qd(path.parent), tmp_path / "backups" / "today.db"
    file.parent.mkdir()
    copied = await asyncio.to_thread(qd.run_json, "db", "backup", str(file))
    await source.load.wait_for_acknowledged(10)
    await source.load.stop()
    await source.server.stop()
    assert copied["file"] == str(file)
    assert copied["bytes"] == file.stat().st_size
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["today.db"]

    target = Launch(tmp_path / "restored")
    target.data.mkdir()
    shutil.copyfile(file, target.data / "quarterdeck.db")
    shutil.copy2(source.key, target.data / KEY)
    shutil.copy2(source.key.with_name(SECRETS), target.data / SECRETS)
    assert DirectDatabase(target.database_url).scalar("select pos from log_head") == copied["position"]
    await assert_restored(servers, source, target, copied["anchor"])


async def test_pg_dump_taken_under_load_restores_completely_in_another_cluster(
    servers: Servers, postgres_url: str, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    source = await start_source(servers, Launch(tmp_path / "data", postgres_url))
    anchor = Qd(tmp_path / "data", QD_DATABASE_URL=postgres_url).run("audit", "anchor")
    dump = tmp_path / "today.dump"
    await asyncio.to_thread(run, "pg_dump", "--format=custom", f"--file={dump}", postgres_url)
    await source.load.wait_for_acknowledged(10)
    await source.load.stop()
    await source.server.stop()

    with psycopg.connect(own_postgres.url(), autocommit=True) as connection:
        connection.execute(create_roles_sql().encode())
        connection.execute("create database restored")
    url = own_postgres.url("restored")
    run("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={url}", str(dump))
    target = Launch(tmp_path / "restored", url)
    target.data.mkdir()
    shutil.copy2(source.key, target.data / KEY)
    shutil.copy2(source.key.with_name(SECRETS), target.data / SECRETS)
    await assert_restored(servers, source, target, anchor)


def run(tool: str, *arguments: str) -> None:
    done = subprocess.run(
        [tool_path(tool), *arguments], env=minimal_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# -- errors and arguments


def test_backup_overwrites_no_file_and_leaves_none_after_an_error(sqlite_url: str, tmp_path: Path) -> None:
    file = tmp_path / "backups" / "copy.db"
    file.parent.mkdir()
    file.write_text("existing")
    with pytest.raises(Conflict, match="overwrites nothing"):
        backup.create_backup(sqlite_url, file)
    assert file.read_text() == "existing"
    with pytest.raises(StoreError, match="There is no database"):
        backup.create_backup(f"sqlite:///{tmp_path / 'none.db'}", file.with_name("another.db"))
    (tmp_path / "noise.db").write_bytes(b"noise" * 1_000)
    with pytest.raises(StoreError):
        backup.create_backup(f"sqlite:///{tmp_path / 'noise.db'}", file.with_name("another.db"))
    assert [path.name for path in file.parent.iterdir()] == ["copy.db"]


def test_damaged_database_creates_no_backup(sqlite_url: str, tmp_path: Path) -> None:
    path = sqlite_path(sqlite_url)
    assert path
    with sqlite3.connect(path) as connection:
        [[size]] = connection.execute("pragma page_size").fetchall()
        [[root]] = connection.execute("select rootpage from sqlite_master where name = 'log_head'").fetchall()
    content = bytearray(path.read_bytes())
    content[(root - 1) * size : root * size] = b"\xff" * size
    path.write_bytes(content)
    with pytest.raises(StoreError):
        backup.create_backup(sqlite_url, tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


def test_backup_of_postgresql_recommends_pg_dump(tmp_path: Path) -> None:
    done = Qd(tmp_path)("db", "backup", "copy.db", "--database", "postgresql://db/quarterdeck")
    assert done.returncode == 1
    assert "pg_dump --format=custom" in done.stderr


def test_file_name_may_start_with_a_dash(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Qd(tmp_path).run("db", "backup", "--", "-copy.db")
    assert (tmp_path / "-copy.db").exists()
