"""A backup taken under load and restored elsewhere is whole: it checks, it proves, and a server starts on it."""

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


class Busy:
    """A server under load that has sealed already, and what was acknowledged before its backup was begun."""

    def __init__(self, server: ServerProcess, load: SpawnLoad) -> None:
        self.server = server
        self.load = load
        self.before = set(load.acknowledged.items())

    @property
    def key(self) -> Path:
        return self.server.launch.data / KEY


async def busy(servers: Servers, launch: Launch) -> Busy:
    server = await servers.start(launch.with_environment(QD_SEAL_INTERVAL_MS="50"))
    load = SpawnLoad(await create_zone(server), clients=8)
    await load.wait_for_acknowledged(100)

    async def sealed() -> bool:
        return DirectDatabase(launch.database_url).count("seals") > 0

    await eventually(sealed, "something was sealed")
    return Busy(server, load)


async def assert_whole(servers: Servers, made: Busy, restored: Launch, anchor: str) -> None:
    """What was restored checks and proves, holds everything that was acknowledged before, and serves."""
    url, zone_id = restored.database_url, made.load.zone.id
    qd = Qd(restored.data, QD_DATABASE_URL=url)
    told = qd.run_json("check")
    assert told["well"] is True
    told = qd.run_json("audit", "verify", "--anchor", anchor)
    assert told["proven"] is True
    assert told["events"] > 0
    assert made.before <= set(stored_keys(url, zone_id))
    server = await servers.start(restored.with_environment(QD_SEAL_INTERVAL_MS="50"))
    zone = FreshZone(server, zone_id)
    async with zone.client() as client:
        answer = await client.post(zone.sessions_path, json={"application_id": APP})
        assert answer.status_code == 201, answer.text
        for key, session in made.before:
            again = await client.post(
                zone.sessions_path,
                json={"application_id": APP, "metadata": {"key": key}},
                headers={"Idempotency-Key": key},
            )
            assert (again.status_code, again.json()["id"]) == (200, session)
            break

    async def sealed_on() -> bool:
        return int(qd.run_json("audit", "verify", "--anchor", anchor)["seals"]) > int(told["seals"])

    await eventually(sealed_on, "the chain went on")
    assert await server.stop() == 0
    assert qd.run_json("check")["well"] is True


async def test_a_copy_of_sqlite_taken_under_load_is_whole(servers: Servers, sqlite_url: str, tmp_path: Path) -> None:
    path = sqlite_path(sqlite_url)
    assert path
    made = await busy(servers, Launch(path.parent))
    qd, file = Qd(path.parent), tmp_path / "backups" / "today.db"
    file.parent.mkdir()
    copied = await asyncio.to_thread(qd.run_json, "db", "backup", str(file))
    await made.load.wait_for_acknowledged(10)
    await made.load.stop()
    await made.server.stop()
    assert copied["file"] == str(file)
    assert copied["bytes"] == file.stat().st_size
    assert file.stat().st_mode & 0o777 == 0o600
    assert [found.name for found in file.parent.iterdir()] == ["today.db"]

    elsewhere = Launch(tmp_path / "elsewhere")
    elsewhere.data.mkdir()
    shutil.copyfile(file, elsewhere.data / "quarterdeck.db")
    shutil.copy2(made.key, elsewhere.data / KEY)
    shutil.copy2(made.key.with_name(SECRETS), elsewhere.data / SECRETS)
    assert DirectDatabase(elsewhere.database_url).scalar("select pos from log_head") == copied["position"]
    await assert_whole(servers, made, elsewhere, copied["anchor"])


async def test_a_dump_of_postgresql_taken_under_load_is_whole_in_another_cluster(
    servers: Servers, postgres_url: str, own_postgres: PostgresServer, tmp_path: Path
) -> None:
    made = await busy(servers, Launch(tmp_path / "data", postgres_url))
    anchor = Qd(tmp_path / "data", QD_DATABASE_URL=postgres_url).run("audit", "anchor")
    dump = tmp_path / "today.dump"
    await asyncio.to_thread(run, "pg_dump", "--format=custom", f"--file={dump}", postgres_url)
    await made.load.wait_for_acknowledged(10)
    await made.load.stop()
    await made.server.stop()

    with psycopg.connect(own_postgres.url(), autocommit=True) as connection:
        connection.execute(create_roles_sql().encode())
        connection.execute("create database restored")
    url = own_postgres.url("restored")
    run("pg_restore", "--no-owner", "--exit-on-error", f"--dbname={url}", str(dump))
    elsewhere = Launch(tmp_path / "elsewhere", url)
    elsewhere.data.mkdir()
    shutil.copy2(made.key, elsewhere.data / KEY)
    shutil.copy2(made.key.with_name(SECRETS), elsewhere.data / SECRETS)
    await assert_whole(servers, made, elsewhere, anchor)


def run(tool: str, *arguments: str) -> None:
    done = subprocess.run(
        [tool_path(tool), *arguments], env=minimal_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# -- what a copy is not


def test_nothing_is_overwritten_and_nothing_is_left_behind(sqlite_url: str, tmp_path: Path) -> None:
    file = tmp_path / "backups" / "copy.db"
    file.parent.mkdir()
    file.write_text("precious")
    with pytest.raises(Conflict, match="nothing is overwritten"):
        backup.create_backup(sqlite_url, file)
    assert file.read_text() == "precious"
    with pytest.raises(StoreError, match="There is no database"):
        backup.create_backup(f"sqlite:///{tmp_path / 'none.db'}", file.with_name("another.db"))
    (tmp_path / "noise.db").write_bytes(b"noise" * 1_000)
    with pytest.raises(StoreError):
        backup.create_backup(f"sqlite:///{tmp_path / 'noise.db'}", file.with_name("another.db"))
    assert [found.name for found in file.parent.iterdir()] == ["copy.db"]


def test_a_damaged_file_makes_no_backup(sqlite_url: str, tmp_path: Path) -> None:
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


def test_on_postgresql_the_sentence_says_what_to_use(tmp_path: Path) -> None:
    done = Qd(tmp_path)("db", "backup", "copy.db", "--database", "postgresql://db/quarterdeck")
    assert done.returncode == 1
    assert "pg_dump --format=custom" in done.stderr


def test_a_name_that_begins_with_a_dash_is_a_name(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Qd(tmp_path).run("db", "backup", "--", "-copy.db")
    assert (tmp_path / "-copy.db").exists()
