"""Server start: it uses its settings, or exits with an error message and never with a traceback."""

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


async def start_refused(servers: Servers, launch: Launch) -> str:
    """Start a server that must fail and return its error message, the last line of its log."""
    server = await servers.start_expecting_failure(launch)
    assert server.exit_code == 1
    assert "Traceback" not in server.log_text, server.log_text
    assert "ready" not in server.log_text.splitlines()
    message = server.log_text.splitlines()[-1]
    assert message.startswith("qd: "), server.log_text
    return message


def first_line(server: ServerProcess) -> str:
    return server.log_text.splitlines()[0]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# -- successful start


async def test_first_start_creates_its_files_readable_only_by_the_owner(servers: Servers) -> None:
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


async def test_restart_keeps_the_signing_key_and_tokens_stay_valid(servers: Servers) -> None:
    launch = Launch(servers.directory / "data")
    first = await servers.start(launch)
    token = first.admin_token
    await first.stop()
    second = await servers.start(launch)
    async with second.client(token) as client:
        assert (await client.get("/zones")).status_code == 200


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has loopback addresses besides 127.0.0.1")
async def test_metrics_on_another_address_than_127_0_0_1_need_a_scope(servers: Servers) -> None:
    server = await servers.start(Launch(servers.directory / "data", arguments=["--host", "127.0.0.2"]))
    assert server.url.startswith("http://127.0.0.2:")
    async with server.client("") as anonymous, server.client() as admin:
        assert_problem(await anonymous.get("/metrics"), 401, "missing_token")
        assert (await anonymous.get("/health")).status_code == 200
        assert (await admin.get("/metrics")).status_code == 200
    scraper = server.issuer.mint(
        Grant(zone_id="default", client_id="scraper", subject="scraper", scopes=("quarterdeck.metrics",)), 60
    )
    async with server.client(scraper) as client:
        metrics = await client.get("/metrics")
        assert (metrics.status_code, "quarterdeck_log_lines_lost_total" in metrics.text) == (200, True)
        assert_problem(await client.get("/zones/default/agents"), 403, "missing_scope")


# -- data directory and port in use


async def test_db_upgrade_of_sqlite_is_refused_while_a_server_runs(servers: Servers) -> None:
    launch = Launch(servers.directory / "data")
    server = await servers.start(launch)
    upgrade = [*launch.command_line("db", "upgrade")]
    while_running = await asyncio.to_thread(subprocess.run, upgrade, capture_output=True, text=True)
    assert (while_running.returncode, "Another server is running on" in while_running.stderr) == (1, True)
    await server.stop()
    assert (await asyncio.to_thread(subprocess.run, upgrade, capture_output=True)).returncode == 0


async def test_files_in_an_existing_directory_are_private_to_the_owner(servers: Servers) -> None:
    launch = Launch(servers.directory / "data")
    launch.data.mkdir(mode=0o755)
    await servers.start(launch)
    accessible_to_others = [path.name for path in launch.data.iterdir() if path.stat().st_mode & 0o077]
    assert not accessible_to_others


async def test_second_server_on_a_data_directory_is_refused(servers: Servers) -> None:
    launch = Launch(servers.directory / "data")
    first = await servers.start(launch)
    message = await start_refused(servers, launch)
    assert "Another server is running on" in message
    assert str(launch.data) in message
    async with first.client() as client:
        assert (await client.get("/ready")).status_code == 200
    assert json.loads((launch.data / "server.json").read_text())["pid"] == first.pid
    await first.stop()
    await servers.start(launch)


async def test_data_directory_of_a_killed_server_can_be_used(servers: Servers) -> None:
    launch = Launch(servers.directory / "data")
    first = await servers.start(launch)
    first.kill()
    second = await servers.start(launch)
    assert json.loads((launch.data / "server.json").read_text())["pid"] == second.pid


async def test_error_names_the_port_in_use(servers: Servers) -> None:
    with closing(socket.socket()) as in_use:
        in_use.bind(("127.0.0.1", 0))
        in_use.listen()
        port = in_use.getsockname()[1]
        message = await start_refused(servers, replace(Launch(servers.directory / "data"), port=port))
    assert str(port) in message
    assert "in use" in message


# -- the schema


async def test_schema_ahead_of_the_server_is_refused_and_not_changed(servers: Servers, launch: Launch) -> None:
    database = DirectDatabase(launch.database_url)
    database.execute("update alembic_version set version_num = '9999'")
    for arguments in ([], ["--migrate"]):
        message = await start_refused(servers, replace(launch, arguments=arguments))
        assert "9999" in message
        assert "ahead of this release" in message
    assert database.scalar("select version_num from alembic_version") == "9999"


async def test_postgresql_without_a_schema_is_refused_unless_migrate_is_given(
    servers: Servers, postgres: PostgresDatabases
) -> None:
    url = postgres.create_blank()
    launch = Launch(servers.directory / "data", url)
    message = await start_refused(servers, launch)
    assert "qd db upgrade" in message
    server = await servers.start(replace(launch, arguments=["--migrate"]))
    assert DirectDatabase(url).scalar("select version_num from alembic_version") == revisions()[-1]
    async with server.client() as client:
        assert (await client.get("/zones/default")).status_code == 200
    await server.stop()
    postgres.drop(url)


# -- settings


INVALID_SETTINGS: dict[str, tuple[dict[str, str], list[str]]] = {
    "malformed value": ({"QD_DB_POOL_MAX": "many"}, ["QD_DB_POOL_MAX", "many"]),
    "unknown name": ({"QD_DATABASE": "x"}, ["QD_DATABASE", "is not a setting"]),
    "malformed shared variable": ({"LOG_LEVEL": "unknown-level"}, ["LOG_LEVEL"]),
    "unsupported database": ({"DATABASE_URL": "mysql://u:hunter2@h/d"}, ["mysql", "postgresql://"]),
    "database not a URL": ({"QD_DATABASE_URL": "host=h password=hunter2"}, ["postgresql://"]),
    "malformed database URL": ({"QD_DATABASE_URL": "postgresql://u:hunter2@h:port/d"}, ["port"]),
    "unreachable database": ({"QD_DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/d"}, ["cannot be reached"]),
    "issuer not a URL": ({"ISSUER_URL": "not-a-url"}, ["ISSUER_URL"]),
    "invalid secret key": ({"QD_SECRET_KEYS": "hunter2:hunter22"}, ["QD_SECRET_KEYS", "32 bytes"]),
    "signing key cannot be created": ({"QD_SIGNING_KEY": "/dev/null/key.pem"}, ["/dev/null/key.pem"]),
}


@pytest.mark.parametrize(("variables", "parts"), INVALID_SETTINGS.values(), ids=INVALID_SETTINGS.keys())
async def test_invalid_setting_stops_the_start_with_an_error_message(
    servers: Servers, variables: dict[str, str], parts: list[str]
) -> None:
    server = await servers.start_expecting_failure(Launch(servers.directory / "data").with_environment(**variables))
    assert server.exit_code == 1
    assert "Traceback" not in server.log_text, server.log_text
    assert "hunter2" not in server.log_text
    assert "qd: " in server.log_text
    for part in parts:
        assert part in server.log_text


def write_invalid_key(path: Path) -> None:
    path.write_bytes(b"not a key")
    path.chmod(0o600)


def write_world_readable_key(path: Path) -> None:
    path.write_bytes(b"")
    path.chmod(0o644)


KEY_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "invalid content": (write_invalid_key, "no PEM private key"),
    "world-readable": (write_world_readable_key, "chmod 600"),
    "directory": (Path.mkdir, "signing-key.pem"),
}


@pytest.mark.parametrize(("prepare", "message_part"), KEY_FILES.values(), ids=KEY_FILES.keys())
async def test_unusable_signing_key_file_is_named_in_the_error(
    servers: Servers, prepare: Callable[[Path], None], message_part: str
) -> None:
    data = servers.directory / "data"
    data.mkdir()
    prepare(data / "signing-key.pem")
    message = await start_refused(servers, Launch(data))
    assert message_part in message
    assert "signing-key.pem" in message
    assert not list(data.glob("*.db*")), "a start that fails must not upgrade the database"


async def test_invalid_toml_or_database_file_is_named_in_the_error(servers: Servers) -> None:
    data = servers.directory / "data"
    data.mkdir()
    (data / "quarterdeck.toml").write_text("port = \n")
    assert "quarterdeck.toml is not valid TOML" in await start_refused(servers, Launch(data))
    (data / "quarterdeck.toml").unlink()
    (data / "quarterdeck.db").write_bytes(b"not a database" * 100)
    assert "quarterdeck.db cannot be opened" in await start_refused(servers, Launch(data))


async def test_data_directory_that_is_a_file_is_named_in_the_error(servers: Servers) -> None:
    (servers.directory / "data").write_text("")
    server = await servers.start_expecting_failure(Launch(servers.directory / "data"))
    assert "Traceback" not in server.log_text
    assert str(servers.directory / "data") in server.log_text


async def test_missing_postgresql_driver_error_names_the_package(servers: Servers) -> None:
    modules = servers.directory / "modules"
    modules.mkdir()
    (modules / "psycopg.py").write_text("raise ImportError('not installed')\n")
    launch = Launch(servers.directory / "data", "postgresql://127.0.0.1:1/d").with_environment(PYTHONPATH=str(modules))
    assert "quarterdeck[postgres]" in await start_refused(servers, launch)


async def test_configuration_file_in_the_data_directory_is_read(servers: Servers) -> None:
    data = servers.directory / "data"
    data.mkdir()
    (data / "quarterdeck.toml").write_text("max_sessions = 1\nport = 0\n")
    server = await servers.start(Launch(data, port=None))
    async with server.client() as client:
        quotas = (await client.get("/zones/default/quotas")).json()
    assert quotas["limits"]["max_sessions"] == 1


# -- the shared variables


async def test_up_uses_the_shared_variables_and_masks_the_password(servers: Servers, postgres_url: str) -> None:
    environment = {"DATABASE_URL": postgres_url, "PORT": "0", "AGENT_COORDINATOR_SCOPE": "custom"}
    server = await servers.start(Launch(servers.directory / "data", environment=environment, port=None))
    assert first_line(server).startswith("database postgresql://")
    assert first_line(server).endswith("(from DATABASE_URL)")
    password = postgres_url.split(":")[2].split("@")[0]
    assert password not in server.log_text
    assert json.loads((server.launch.data / "server.json").read_text())["database"] == "postgresql"
    async with server.client() as client:
        assert (await client.get("/zones/default")).status_code == 200, "the admin token has the scope of this name"


@pytest.mark.parametrize("flag", ["--auto-started", "--only-own-variables"])
async def test_automatic_start_ignores_the_shared_variables(servers: Servers, flag: str) -> None:
    other_project = {
        "DATABASE_URL": "mysql://u:hunter2@h/d",
        "PORT": "tcp://172.17.0.2:80",
        "LOG_LEVEL": "unknown-level",
    }
    launch = Launch(servers.directory / "data", environment=other_project, arguments=[flag])
    server = await servers.start(launch)
    assert first_line(server).endswith("(from the data directory)")
    assert json.loads((launch.data / "server.json").read_text())["database"] == "sqlite"


async def test_flag_overrides_own_variable_which_overrides_shared_variable(servers: Servers, postgres_url: str) -> None:
    own, flag = servers.directory / "own.db", servers.directory / "flag.db"
    variables = {"DATABASE_URL": postgres_url, "QD_DATABASE_URL": f"sqlite:///{own}"}
    server = await servers.start(Launch(servers.directory / "one", environment=variables))
    assert first_line(server) == f"database sqlite:///{own} (from QD_DATABASE_URL)"
    with_flag = Launch(servers.directory / "two", f"sqlite:///{flag}", environment=variables)
    server = await servers.start(with_flag)
    assert first_line(server) == f"database sqlite:///{flag} (from --database)"


async def test_config_show_masks_passwords_and_names_each_source(servers: Servers) -> None:
    environment = {"QD_DATABASE_URL": "postgresql://u:hunter2@h/d", "LOG_LEVEL": "warning"}
    for flags in ([], ["--json"]):
        launch = Launch(servers.directory / "data", environment=environment)
        done = await servers.run_command(launch, "config", "show", *flags)
        assert done.exit_code == 0
        assert "hunter2" not in done.log_text
        assert "postgresql://u:***@h/d" in done.log_text
        if flags:
            settings = json.loads(done.log_text)
            assert settings["log_level"] == {"value": "warning", "source": "LOG_LEVEL"}
            assert settings["port"] == {"value": "4000", "source": "default"}
        else:
            assert "QD_DATABASE_URL" in done.log_text
