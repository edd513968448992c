"""A server does not start as a role that bypasses row security. The error names the statement that fixes it."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from urllib.parse import quote, urlsplit

import psycopg
import pytest
from psycopg import sql

from quarterdeck.store.interface import StoreError
from quarterdeck.store.migrate import current_revision, revisions, upgrade
from quarterdeck.store.postgres import PostgresStore
from quarterdeck.store.postgres_roles import ROLES, SERVER, SWEEP, Role
from quarterdeck.store.sql import Statements, parse
from tests.support.child_processes import minimal_environment
from tests.support.eventually import eventually
from tests.support.pg_catalog import connect_as
from tests.support.postgres import PostgresServer
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, Servers
from tests.support.zone import create_zone, spawn

LAST = revisions()[-1]
Q = Statements(
    parse("""
-- name: current_settings
select current_user::text, current_setting('work_mem'), current_setting('lock_timeout');
""")
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresServer]:
    """A separate cluster, because roles belong to the whole cluster and these tests change them."""
    server = PostgresServer()
    try:
        server.start()
        upgrade(server.url())
        yield server
    finally:
        server.close()


def login(server: PostgresServer, name: str, attributes: str = "", database: str = "postgres") -> str:
    """Create a login, and return its URL."""
    quoted = sql.Identifier(name).as_string()
    DirectDatabase(server.url()).execute(f"create role {quoted} login password 'pass' {attributes}")
    return as_login(server, name, database)


def as_login(server: PostgresServer, name: str, database: str = "postgres") -> str:
    parts = urlsplit(server.url(database))
    return parts._replace(netloc=f"{quote(name)}:pass@127.0.0.1:{server.port}").geturl()


def create_database(server: PostgresServer, name: str, owner: str) -> None:
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute(f"create database {name} owner {owner}".encode())


async def refusal(url: str, role: Role = SERVER) -> str:
    with pytest.raises(StoreError) as refused:
        await PostgresStore.open(url, 2, role)
    assert refused.value.code == "role"
    return str(refused.value)


async def assert_opens(url: str) -> None:
    for role in ROLES:
        store = await PostgresStore.open(url, 2, role)
        await store.ping()
        await store.close()


UNSAFE: dict[str, tuple[str, str, str]] = {
    # setup, cleanup, expected error
    "superuser": ("alter role {role} superuser", "alter role {role} nosuperuser", "{role} is a superuser"),
    "BYPASSRLS": ("alter role {role} bypassrls", "alter role {role} nobypassrls", "{role} has BYPASSRLS"),
    "owner": (
        "alter table leases owner to {role}",
        "alter table leases owner to postgres",
        "{role} owns the table leases",
    ),
    "member of the owner": (
        "create role table_owner; alter table events owner to table_owner; grant table_owner to {role}",
        "alter table events owner to postgres; drop role table_owner",
        "{role} owns the table events, or is a member of the role that does",
    ),
    "table without row security": (
        "alter table cascades disable row level security",
        "alter table cascades enable row level security",
        "{role} finds the table cascades without policies in force",
    ),
    "schema without usage": (
        "revoke usage on schema public from public",
        "grant usage on schema public to public",
        "{role} cannot find the tables",
    ),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("case", UNSAFE)
async def test_role_that_bypasses_row_security_is_refused(cluster: PostgresServer, case: str, role: Role) -> None:
    setup, cleanup, message = (text.format(role=role) for text in UNSAFE[case])
    admin = DirectDatabase(cluster.url())
    admin.execute(setup)
    try:
        assert message in await refusal(cluster.url(), role)
    finally:
        admin.execute(cleanup)
    await assert_opens(cluster.url())


async def test_server_role_that_is_a_member_of_the_sweep_role_is_refused(cluster: PostgresServer) -> None:
    admin = DirectDatabase(cluster.url())
    admin.execute(f"grant {SWEEP} to {SERVER}")
    message = await refusal(cluster.url())
    assert f"{SERVER} is a member of {SWEEP}" in message
    admin.execute(remedy_in(message))
    await assert_opens(cluster.url())


async def test_statement_in_the_error_fixes_the_problem(cluster: PostgresServer) -> None:
    admin = DirectDatabase(cluster.url())
    for case in ("superuser", "BYPASSRLS", "table without row security"):
        admin.execute(UNSAFE[case][0].format(role=SERVER))
        admin.execute(remedy_in(await refusal(cluster.url())))
        await assert_opens(cluster.url())
    new_login = login(cluster, 'O\'Neil the "new"')
    admin.execute(remedy_in(await refusal(new_login)))
    await assert_opens(new_login)


def remedy_in(message: str) -> str:
    return message.partition("An administrator must run: ")[2]


# -- logins


async def test_login_must_be_allowed_to_act_as_the_roles(cluster: PostgresServer) -> None:
    url = login(cluster, "plain")
    for role in ROLES:
        message = await refusal(url, role)
        assert f"The login plain may not act as {role}." in message
        assert f'GRANT {SERVER}, {SWEEP} TO "plain";' in message
    with pytest.raises(StoreError, match="may not act as"):
        current_revision(url)
    DirectDatabase(cluster.url()).execute(remedy_in(message))
    await assert_opens(url)


async def test_login_needs_no_privilege_but_to_act_as_the_roles(cluster: PostgresServer, servers: Servers) -> None:
    url = login(cluster, "bare", "noinherit")
    DirectDatabase(cluster.url()).execute(f"grant {SERVER}, {SWEEP} to bare")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        DirectDatabase(url).execute("select * from alembic_version")
    server = await servers.start(Launch(servers.directory / "bare", url))
    zone = await create_zone(server)
    async with zone.client() as client:
        await spawn(client, zone)
    assert await server.stop() == 0


async def test_roles_themselves_may_log_in(cluster: PostgresServer) -> None:
    admin = DirectDatabase(cluster.url())
    for role in ROLES:
        admin.execute(f"alter role {role} login password 'pass'")
        store = await PostgresStore.open(as_login(cluster, role), 2, role)
        await store.ping()
        await store.close()
        admin.execute(f"alter role {role} nologin")


async def test_url_options_are_kept_but_cannot_change_the_role(cluster: PostgresServer) -> None:
    url = cluster.url() + "?options=-c%20role%3Dpostgres%20-c%20work_mem%3D77kB%20-c%20lock_timeout%3D1h"
    store = await PostgresStore.open(url, 2)
    [settings] = await store.read(lambda tx: tx.read(Q.current_settings()))
    assert settings == [(SERVER, "77kB", "1s")]
    await store.close()


# -- `qd up`


@pytest.mark.parametrize("case", ["superuser", "BYPASSRLS", "owner"])
async def test_qd_up_refuses_a_role_that_bypasses_row_security(
    cluster: PostgresServer, servers: Servers, case: str
) -> None:
    admin = DirectDatabase(cluster.url())
    for role in ROLES:
        setup, cleanup, message = (text.format(role=role) for text in UNSAFE[case])
        admin.execute(setup)
        try:
            refused = await servers.start_expecting_failure(Launch(servers.directory / "refused", cluster.url()))
        finally:
            admin.execute(cleanup)
        assert refused.exit_code == 1
        assert message in refused.log_text
        assert "Traceback" not in refused.log_text
        assert "ready" not in refused.log_text


async def test_qd_up_refuses_a_login_that_may_not_act_as_the_server(cluster: PostgresServer, servers: Servers) -> None:
    url = login(cluster, "outsider")
    refused = await servers.start_expecting_failure(Launch(servers.directory / "refused", url))
    assert refused.exit_code == 1
    assert "The login outsider may not act as quarterdeck_server." in refused.log_text
    assert "Traceback" not in refused.log_text


async def test_start_that_fails_after_connecting_exits(postgres_url: str, servers: Servers) -> None:
    DirectDatabase(postgres_url).execute(f"revoke insert on zones from {SERVER}")
    failed = await servers.start_expecting_failure(Launch(servers.directory / "failed", postgres_url))
    assert failed.exit_code == 1


# -- creating the roles


async def test_upgrade_without_createrole_names_the_statements_to_run(
    own_postgres: PostgresServer, servers: Servers
) -> None:
    admin = DirectDatabase(own_postgres.url())
    url = login(own_postgres, "builder", database="app")
    create_database(own_postgres, "app", "builder")
    with pytest.raises(StoreError) as refused:
        upgrade(url)
    assert current_revision(url) is None, "the upgrade was rolled back"
    message = str(refused.value)
    assert "The login builder may not create the roles" in message
    upgraded = await servers.run_command(
        Launch(servers.directory / "builder").with_environment(QD_DATABASE_URL=url), "db", "upgrade"
    )
    assert (upgraded.exit_code, "Traceback" in upgraded.log_text) == (1, False)
    assert "CREATE ROLE quarterdeck_server NOLOGIN;" in upgraded.log_text

    statements = re.findall(r"(?:CREATE|GRANT)[^;]*;", message)
    assert len(statements) == 3
    for statement in statements:
        admin.execute(statement)
    assert upgrade(url) == LAST
    await assert_opens(url)


async def test_login_with_createrole_can_migrate_and_serve(own_postgres: PostgresServer) -> None:
    url = login(own_postgres, "maker", "createrole", database="app")
    create_database(own_postgres, "app", "maker")
    assert upgrade(url) == LAST
    await assert_opens(url)
    # The login owns the tables, and row security still confines the server role.
    DirectDatabase(url).execute("insert into zones values ('theirs', 'n', 0, '{}', 1, 1)")
    with connect_as(url, SERVER, "ours") as server:
        assert server.execute("select count(*) from zones").fetchall() == [(0,)]


async def test_upgrade_waits_for_a_concurrent_creation_of_the_roles(own_postgres: PostgresServer) -> None:
    admin = DirectDatabase(own_postgres.url())
    program = f"from quarterdeck.store.migrate import upgrade; print(upgrade({own_postgres.url()!r}))"
    with psycopg.connect(own_postgres.url()) as other:
        for role in ROLES:
            other.execute(f"create role {role} nologin".encode())
        upgrading = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program), env=minimal_environment(), stdout=asyncio.subprocess.PIPE
        )

        async def upgrade_waits() -> bool:
            return admin.waiting_for_locks() > 0

        await eventually(upgrade_waits, "the upgrade waited for the transaction that creates the roles")
        other.commit()
    output, _ = await upgrading.communicate()
    assert output.decode().strip() == LAST
    await assert_opens(own_postgres.url())


async def test_error_names_the_missing_roles(own_postgres: PostgresServer) -> None:
    assert f"PostgreSQL has no role {SERVER}" in await refusal(own_postgres.url())
