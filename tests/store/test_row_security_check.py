"""Whom the wall would not hold does not serve: the start is refused with a sentence, and the sentence mends it."""

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
-- name: shown
select current_user::text, current_setting('work_mem'), current_setting('lock_timeout');
""")
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[PostgresServer]:
    """Roles belong to a whole cluster, so what is done to them here is done in one of our own."""
    server = PostgresServer()
    try:
        server.start()
        upgrade(server.url())
        yield server
    finally:
        server.close()


def login(server: PostgresServer, name: str, rights: str = "", database: str = "postgres") -> str:
    """The URL of a login that is made here."""
    quoted = sql.Identifier(name).as_string()
    DirectDatabase(server.url()).execute(f"create role {quoted} login password 'pass' {rights}")
    return as_login(server, name, database)


def as_login(server: PostgresServer, name: str, database: str = "postgres") -> str:
    there = urlsplit(server.url(database))
    return there._replace(netloc=f"{quote(name)}:pass@127.0.0.1:{server.port}").geturl()


def database(server: PostgresServer, name: str, owner: str) -> None:
    with psycopg.connect(server.url(), autocommit=True) as admin:
        admin.execute(f"create database {name} owner {owner}".encode())


async def refusal(url: str, role: Role = SERVER) -> str:
    with pytest.raises(StoreError) as refused:
        await PostgresStore.open(url, 2, role)
    assert refused.value.code == "role"
    return str(refused.value)


async def opens(url: str) -> None:
    for role in ROLES:
        store = await PostgresStore.open(url, 2, role)
        await store.ping()
        await store.close()


UNSAFE: dict[str, tuple[str, str, str]] = {
    # what is done, what takes it back, what the sentence says
    "superuser": ("alter role {role} superuser", "alter role {role} nosuperuser", "{role} is a superuser"),
    "BYPASSRLS": ("alter role {role} bypassrls", "alter role {role} nobypassrls", "{role} has BYPASSRLS"),
    "owner": (
        "alter table leases owner to {role}",
        "alter table leases owner to postgres",
        "{role} owns the table leases",
    ),
    "member of the owner": (
        "create role keeper; alter table events owner to keeper; grant keeper to {role}",
        "alter table events owner to postgres; drop role keeper",
        "{role} owns the table events, or is a member of the role that does",
    ),
    "table left open": (
        "alter table cascades disable row level security",
        "alter table cascades enable row level security",
        "{role} finds the table cascades without policies in force",
    ),
    "schema out of reach": (
        "revoke usage on schema public from public",
        "grant usage on schema public to public",
        "{role} does not find the tables",
    ),
}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("how", UNSAFE)
async def test_a_role_that_the_wall_would_not_hold_is_refused(cluster: PostgresServer, how: str, role: Role) -> None:
    done, undone, said = (text.format(role=role) for text in UNSAFE[how])
    side = DirectDatabase(cluster.url())
    side.execute(done)
    try:
        assert said in await refusal(cluster.url(), role)
    finally:
        side.execute(undone)
    await opens(cluster.url())


async def test_a_server_that_is_also_a_sweep_is_refused(cluster: PostgresServer) -> None:
    side = DirectDatabase(cluster.url())
    side.execute(f"grant {SWEEP} to {SERVER}")
    said = await refusal(cluster.url())
    assert f"{SERVER} is a member of {SWEEP}" in said
    side.execute(remedy(said))
    await opens(cluster.url())


async def test_what_the_sentence_tells_an_administrator_to_run_mends_it(cluster: PostgresServer) -> None:
    side = DirectDatabase(cluster.url())
    for harm in ("superuser", "BYPASSRLS", "table left open"):
        side.execute(UNSAFE[harm][0].format(role=SERVER))
        side.execute(remedy(await refusal(cluster.url())))
        await opens(cluster.url())
    stranger = login(cluster, 'O\'Neil the "stranger"')
    side.execute(remedy(await refusal(stranger)))
    await opens(stranger)


def remedy(said: str) -> str:
    return said.partition("An administrator has to run: ")[2]


# -- logins


async def test_a_login_that_may_not_act_as_the_roles_is_refused_and_one_that_may_is_not(
    cluster: PostgresServer,
) -> None:
    url = login(cluster, "plain")
    for role in ROLES:
        said = await refusal(url, role)
        assert f"The login plain may not act as {role}." in said
        assert f'GRANT {SERVER}, {SWEEP} TO "plain";' in said
    with pytest.raises(StoreError, match="may not act as"):
        current_revision(url)
    DirectDatabase(cluster.url()).execute(remedy(said))
    await opens(url)


async def test_a_login_without_any_right_but_to_act_as_the_roles_is_enough(
    cluster: PostgresServer, servers: Servers
) -> None:
    url = login(cluster, "bare", "noinherit")
    DirectDatabase(cluster.url()).execute(f"grant {SERVER}, {SWEEP} to bare")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        DirectDatabase(url).execute("select * from alembic_version")
    server = await servers.start(Launch(servers.directory / "bare", url))
    zone = await create_zone(server)
    async with zone.client() as client:
        await spawn(client, zone)
    assert await server.stop() == 0


async def test_the_roles_themselves_may_log_in(cluster: PostgresServer) -> None:
    side = DirectDatabase(cluster.url())
    for role in ROLES:
        side.execute(f"alter role {role} login password 'pass'")
        store = await PostgresStore.open(as_login(cluster, role), 2, role)
        await store.ping()
        await store.close()
        side.execute(f"alter role {role} nologin")


async def test_options_of_the_url_are_kept_and_cannot_change_the_role(cluster: PostgresServer) -> None:
    url = cluster.url() + "?options=-c%20role%3Dpostgres%20-c%20work_mem%3D77kB%20-c%20lock_timeout%3D1h"
    store = await PostgresStore.open(url, 2)
    [shown] = await store.read(lambda tx: tx.read(Q.shown()))
    assert shown == [(SERVER, "77kB", "1s")]
    await store.close()


# -- `qd up`


@pytest.mark.parametrize("how", ["superuser", "BYPASSRLS", "owner"])
async def test_qd_up_refuses_to_serve_as_whom_the_wall_would_not_hold(
    cluster: PostgresServer, servers: Servers, how: str
) -> None:
    side = DirectDatabase(cluster.url())
    for role in ROLES:
        done, undone, said = (text.format(role=role) for text in UNSAFE[how])
        side.execute(done)
        try:
            refused = await servers.start_expecting_failure(Launch(servers.directory / "refused", cluster.url()))
        finally:
            side.execute(undone)
        assert refused.exit_code == 1
        assert said in refused.log_text
        assert "Traceback" not in refused.log_text
        assert "ready" not in refused.log_text


async def test_qd_up_refuses_a_login_that_may_not_act_as_the_server(cluster: PostgresServer, servers: Servers) -> None:
    url = login(cluster, "outsider")
    refused = await servers.start_expecting_failure(Launch(servers.directory / "refused", url))
    assert refused.exit_code == 1
    assert "The login outsider may not act as quarterdeck_server." in refused.log_text
    assert "Traceback" not in refused.log_text


async def test_a_start_that_fails_once_the_connections_are_made_ends_all_the_same(
    postgres_url: str, servers: Servers
) -> None:
    DirectDatabase(postgres_url).execute(f"revoke insert on zones from {SERVER}")
    failed = await servers.start_expecting_failure(Launch(servers.directory / "failed", postgres_url))
    assert failed.exit_code == 1


# -- making the roles


async def test_whoever_may_not_make_the_roles_is_told_what_an_administrator_must_run(
    own_postgres: PostgresServer, servers: Servers
) -> None:
    admin = DirectDatabase(own_postgres.url())
    url = login(own_postgres, "builder", database="house")
    database(own_postgres, "house", "builder")
    with pytest.raises(StoreError) as refused:
        upgrade(url)
    assert current_revision(url) is None, "nothing of it was done"
    said = str(refused.value)
    assert "The login builder may not make the roles" in said
    upgrading = await servers.run_command(
        Launch(servers.directory / "builder").with_environment(QD_DATABASE_URL=url), "db", "upgrade"
    )
    assert (upgrading.exit_code, "Traceback" in upgrading.log_text) == (1, False)
    assert "CREATE ROLE quarterdeck_server NOLOGIN;" in upgrading.log_text

    ran = re.findall(r"(?:CREATE|GRANT)[^;]*;", said)
    assert len(ran) == 3
    for statement in ran:
        admin.execute(statement)
    assert upgrade(url) == LAST
    await opens(url)


async def test_one_login_that_may_make_roles_can_migrate_and_serve(own_postgres: PostgresServer) -> None:
    url = login(own_postgres, "maker", "createrole", database="house")
    database(own_postgres, "house", "maker")
    assert upgrade(url) == LAST
    await opens(url)
    # Its tables are its own, and the wall holds the server all the same.
    DirectDatabase(url).execute("insert into zones values ('theirs', 'n', 0, '{}', 1, 1)")
    with connect_as(url, SERVER, "ours") as server:
        assert server.execute("select count(*) from zones").fetchall() == [(0,)]


async def test_roles_that_are_made_for_another_database_at_the_same_moment_are_waited_for(
    own_postgres: PostgresServer,
) -> None:
    side = DirectDatabase(own_postgres.url())
    program = f"from quarterdeck.store.migrate import upgrade; print(upgrade({own_postgres.url()!r}))"
    with psycopg.connect(own_postgres.url()) as other:
        for role in ROLES:
            other.execute(f"create role {role} nologin".encode())
        upgrading = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program), env=minimal_environment(), stdout=asyncio.subprocess.PIPE
        )

        async def waits() -> bool:
            return side.waiting_for_locks() > 0

        await eventually(waits, "the upgrade waited for the one who makes the roles")
        other.commit()
    output, _ = await upgrading.communicate()
    assert output.decode().strip() == LAST
    await opens(own_postgres.url())


async def test_a_cluster_without_the_roles_says_so(own_postgres: PostgresServer) -> None:
    assert f"PostgreSQL has no role {SERVER}" in await refusal(own_postgres.url())
