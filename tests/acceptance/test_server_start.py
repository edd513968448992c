"""Starting a server: it comes up with what it was told, or says in a sentence why not, and never with a traceback."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from quarterdeck.http.auth import Grant
from quarterdeck.store.migrate import revisions
from tests.support.databases import PostgresDatabases
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, ServerProcess, Servers
from tests.support.zone import assert_problem


async def refused(servers: Servers, launch: Launch) -> str:
    """What a start that must fail had to say, last of all."""
    server = await servers.start_expecting_failure(launch)
    assert server.exit_code == 1
    assert "Traceback" not in server.log_text, server.log_text
    assert "ready" not in server.log_text.splitlines()
    sentence = server.log_text.splitlines()[-1]
    assert sentence.startswith("qd: "), server.log_text
    return sentence


def first_line(server: ServerProcess) -> str:
    return server.log_text.splitlines()[0]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- a server that comes up


async def test_a_first_start_makes_everything_it_needs_and_keeps_its_secrets_to_itself(servers: Servers) -> None:
    server = await servers.start(Launch(servers.directory / "new" / "deep"))
    data = server.launch.data
    assert first_line(server).startswith("database sqlite:///")
    assert first_line(server).endswith("(from the data directory)")
    assert [line for line in server.log_text.splitlines() if line.startswith("ready ")] == [f"ready {server.url}"]
    record = json.loads((data / "server.json").read_text())
    assert record.keys() == {"pid", "url", "socket", "database", "version", "started_at"}
    assert (record["database"], record["pid"]) == ("sqlite", server.pid)
    assert [mode(data / name) for name in ("admin-token", "signing-key.pem")] == [0o600, 0o600]
    assert mode(Path(record["socket"])) == 0o600
    assert mode(data) == 0o700
    async with server.client() as client:
        assert (await client.get("/zones/default")).status_code == 200


async def test_a_restart_keeps_the_key_so_that_tokens_stay_good(servers: Servers) -> None:
    launch = Launch(servers.directory / "data")
    first = await servers.start(launch)
    token = first.admin_token
    await first.stop()
    second = await servers.start(launch)
    async with second.client(token) as client:
        assert (await client.get("/zones")).status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere 127.0.0.1 is the only address of the loopback")
async def test_beyond_loopback_metrics_need_a_scope(servers: Servers) -> None:
    server = await servers.start(Launch(servers.directory / "data", arguments=["--host", "127.0.0.2"]))
    assert server.url.startswith("http://127.0.0.2:")
    async with server.client("") as stranger, server.client() as admin:
        assert_problem(await stranger.get("/metrics"), 401, "missing_token")
        assert (await stranger.get("/health")).status_code == 200
        assert (await admin.get("/metrics")).status_code == 200
    scraper = server.issuer.mint(
        Grant(zone_id="default", client_id="scraper", subject="scraper", scopes=("quarterdeck.metrics",)), 60
    )
    async with server.client(scraper) as client:
        figures = await client.get("/metrics")
        assert (figures.status_code, "quarterdeck_log_lines_lost_total" in figures.text) == (200, True)
        assert_problem(await client.get("/zones/default/agents"), 403, "missing_scope")


# -- a directory that is taken


async def test_a_sqlite_file_is_not_upgraded_under_a_running_server(servers: Servers) -> None:
    launch = Launch(servers.directory / "data")
    server = await servers.start(launch)
    upgrade = [*launch.command_line("db", "upgrade")]
    while_it_runs = await asyncio.to_thread(subprocess.run, upgrade, capture_output=True, text=True)
    assert (while_it_runs.returncode, "Another server runs on" in while_it_runs.stderr) == (1, True)
    await server.stop()
    assert (await asyncio.to_thread(subprocess.run, upgrade, capture_output=True)).returncode == 0


async def test_what_lies_in_a_directory_that_was_there_before_is_its_owners_alone(servers: Servers) -> None:
    launch = Launch(servers.directory / "data")
    launch.data.mkdir(mode=0o755)
    await servers.start(launch)
    open_to_others = [path.name for path in launch.data.iterdir() if path.stat().st_mode & 0o077]
    assert not open_to_others


async def test_a_second_server_on_one_data_directory_is_refused_and_the_first_goes_on(servers: Servers) -> None:
    launch = Launch(servers.directory / "data")
    first = await servers.start(launch)
    sentence = await refused(servers, launch)
    assert "Another server runs on" in sentence
    assert str(launch.data) in sentence
    async with first.client() as client:
        assert (await client.get("/ready")).status_code == 200
    assert json.loads((launch.data / "server.json").read_text())["pid"] == first.pid
    await first.stop()
    await servers.start(launch)


async def test_a_directory_whose_server_was_killed_is_free(servers: Servers) -> None:
    launch = Launch(servers.directory / "data")
    first = await servers.start(launch)
    first.kill()
    second = await servers.start(launch)
    assert json.loads((launch.data / "server.json").read_text())["pid"] == second.pid


async def test_a_port_that_is_taken_is_named(servers: Servers) -> None:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        sentence = await refused(servers, replace(Launch(servers.directory / "data"), port=port))
    assert str(port) in sentence
    assert "in use" in sentence


# -- the schema


async def test_a_schema_ahead_of_the_server_is_refused_and_not_touched(servers: Servers, launch: Launch) -> None:
    database = DirectDatabase(launch.database_url)
    database.execute("update alembic_version set version_num = '9999'")
    for arguments in ([], ["--migrate"]):
        sentence = await refused(servers, replace(launch, arguments=arguments))
        assert "9999" in sentence
        assert "ahead of this release" in sentence
    assert database.scalar("select version_num from alembic_version") == "9999"


async def test_postgresql_without_a_schema_names_the_command_and_migrate_mends_it(
    servers: Servers, postgres: PostgresDatabases
) -> None:
    url = postgres.create_blank()
    launch = Launch(servers.directory / "data", url)
    sentence = await refused(servers, launch)
    assert "qd db upgrade" in sentence
    server = await servers.start(replace(launch, arguments=["--migrate"]))
    assert DirectDatabase(url).scalar("select version_num from alembic_version") == revisions()[-1]
    async with server.client() as client:
        assert (await client.get("/zones/default")).status_code == 200
    await server.stop()
    postgres.drop(url)


# -- what it was told


MALFORMED: dict[str, tuple[dict[str, str], list[str]]] = {
    "a malformed value": ({"QD_DB_POOL_MAX": "many"}, ["QD_DB_POOL_MAX", "many"]),
    "an unknown name": ({"QD_DATABASE": "x"}, ["QD_DATABASE", "is not a setting"]),
    "a shared variable's malformed value": ({"LOG_LEVEL": "chatty"}, ["LOG_LEVEL"]),
    "a database of another kind": ({"DATABASE_URL": "mysql://u:hush@h/d"}, ["mysql", "postgresql://"]),
    "a database that is no URL": ({"QD_DATABASE_URL": "host=h password=hush"}, ["postgresql://"]),
    "a malformed database URL": ({"QD_DATABASE_URL": "postgresql://u:hush@h:port/d"}, ["port"]),
    "a database that is away": ({"QD_DATABASE_URL": "postgresql://u:hush@127.0.0.1:1/d"}, ["cannot be reached"]),
    "an issuer that is no URL": ({"ISSUER_URL": "nowhere"}, ["ISSUER_URL"]),
    "a key for secrets that is none": ({"QD_SECRET_KEYS": "hush:hush"}, ["QD_SECRET_KEYS", "32 bytes"]),
    "a key that is not there to be made": ({"QD_SIGNING_KEY": "/dev/null/key.pem"}, ["/dev/null/key.pem"]),
}


@pytest.mark.parametrize(("variables", "words"), MALFORMED.values(), ids=MALFORMED.keys())
async def test_what_cannot_be_is_said_in_a_sentence(
    servers: Servers, variables: dict[str, str], words: list[str]
) -> None:
    server = await servers.start_expecting_failure(Launch(servers.directory / "data").with_environment(**variables))
    assert server.exit_code == 1
    assert "Traceback" not in server.log_text, server.log_text
    assert "hush" not in server.log_text
    assert "qd: " in server.log_text
    for word in words:
        assert word in server.log_text


def garbled(path: Path) -> None:
    path.write_bytes(b"this is no key")
    path.chmod(0o600)


def open_to_others(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0o644)


KEY_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "garbled": (garbled, "no PEM private key"),
    "open to others": (open_to_others, "chmod 600"),
    "a directory": (Path.mkdir, "signing-key.pem"),
}


@pytest.mark.parametrize(("spoil", "words"), KEY_FILES.values(), ids=KEY_FILES.keys())
async def test_a_key_file_that_cannot_serve_is_named(
    servers: Servers, spoil: Callable[[Path], None], words: str
) -> None:
    data = servers.directory / "data"
    data.mkdir()
    spoil(data / "signing-key.pem")
    sentence = await refused(servers, Launch(data))
    assert words in sentence
    assert "signing-key.pem" in sentence


async def test_a_file_that_is_no_toml_or_no_database_is_named(servers: Servers) -> None:
    data = servers.directory / "data"
    data.mkdir()
    (data / "quarterdeck.toml").write_text("port = \n")
    assert "quarterdeck.toml is not valid TOML" in await refused(servers, Launch(data))
    (data / "quarterdeck.toml").unlink()
    (data / "quarterdeck.db").write_bytes(b"this is no database" * 100)
    assert "quarterdeck.db cannot be opened" in await refused(servers, Launch(data))


async def test_a_data_directory_that_is_a_file_is_named(servers: Servers) -> None:
    (servers.directory / "data").write_text("")
    server = await servers.start_expecting_failure(Launch(servers.directory / "data"))
    assert "Traceback" not in server.log_text
    assert str(servers.directory / "data") in server.log_text


async def test_postgresql_without_its_driver_names_what_to_install(servers: Servers) -> None:
    stand_in = servers.directory / "modules"
    stand_in.mkdir()
    (stand_in / "psycopg.py").write_text("raise ImportError('not installed')\n")
    launch = Launch(servers.directory / "data", "postgresql://127.0.0.1:1/d").with_environment(PYTHONPATH=str(stand_in))
    assert "quarterdeck[postgres]" in await refused(servers, launch)


async def test_the_file_in_the_data_directory_is_read(servers: Servers) -> None:
    data = servers.directory / "data"
    data.mkdir()
    (data / "quarterdeck.toml").write_text("max_sessions = 1\nport = 0\n")
    server = await servers.start(Launch(data, port=None))
    async with server.client() as client:
        quotas = (await client.get("/zones/default/quotas")).json()
    assert quotas["limits"]["max_sessions"] == 1


# -- the shared variables


async def test_up_honours_the_shared_variables_and_says_so_without_the_password(
    servers: Servers, postgres_url: str
) -> None:
    environment = {"DATABASE_URL": postgres_url, "PORT": "0", "AGENT_COORDINATOR_SCOPE": "crew"}
    server = await servers.start(Launch(servers.directory / "data", environment=environment, port=None))
    assert first_line(server).startswith("database postgresql://")
    assert first_line(server).endswith("(from DATABASE_URL)")
    password = postgres_url.split(":")[2].split("@")[0]
    assert password not in server.log_text
    assert json.loads((server.launch.data / "server.json").read_text())["database"] == "postgresql"
    async with server.client() as client:
        assert (await client.get("/zones/default")).status_code == 200, "the admin's token speaks of the scope so named"


@pytest.mark.parametrize("flag", ["--auto-started", "--only-own-variables"])
async def test_automatic_starts_ignore_the_shared_variables_even_malformed_ones(servers: Servers, flag: str) -> None:
    other_project = {"DATABASE_URL": "mysql://u:hush@h/d", "PORT": "tcp://172.17.0.2:80", "LOG_LEVEL": "chatty"}
    launch = Launch(servers.directory / "data", environment=other_project, arguments=[flag])
    server = await servers.start(launch)
    assert first_line(server).endswith("(from the data directory)")
    assert json.loads((launch.data / "server.json").read_text())["database"] == "sqlite"


async def test_an_own_variable_beats_a_shared_one_and_a_flag_beats_both(servers: Servers, postgres_url: str) -> None:
    own, flag = servers.directory / "own.db", servers.directory / "flag.db"
    both = {"DATABASE_URL": postgres_url, "QD_DATABASE_URL": f"sqlite:///{own}"}
    server = await servers.start(Launch(servers.directory / "one", environment=both))
    assert first_line(server) == f"database sqlite:///{own} (from QD_DATABASE_URL)"
    named = Launch(servers.directory / "two", f"sqlite:///{flag}", environment=both)
    server = await servers.start(named)
    assert first_line(server) == f"database sqlite:///{flag} (from --database)"


async def test_config_show_masks_passwords_and_tells_where_each_value_came_from(servers: Servers) -> None:
    environment = {"QD_DATABASE_URL": "postgresql://u:hush@h/d", "LOG_LEVEL": "warning"}
    for style in ([], ["--json"]):
        launch = Launch(servers.directory / "data", environment=environment)
        done = await servers.run_command(launch, "config", "show", *style)
        assert done.exit_code == 0
        assert "hush" not in done.log_text
        assert "postgresql://u:***@h/d" in done.log_text
        if style:
            told = json.loads(done.log_text)
            assert told["log_level"] == {"value": "warning", "source": "LOG_LEVEL"}
            assert told["port"] == {"value": "4000", "source": "default"}
        else:
            assert "QD_DATABASE_URL" in done.log_text
