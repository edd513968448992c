"""Row security: the server role can neither read nor write another zone's rows, on any table."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest
from psycopg import sql

from quarterdeck.store.interface import ContentError, Row, StoreError, StoreTransaction
from quarterdeck.store.postgres import PostgresStore
from quarterdeck.store.postgres_pipeline import round_trip
from quarterdeck.store.postgres_roles import ROLES, SERVER, SWEEP
from quarterdeck.store.sql import Statements, parse
from tests.support.pg_catalog import (
    Table,
    build_row,
    connect_as,
    drop_foreign_keys,
    insert_row,
    read_tables,
    read_zone_tables,
)
from tests.support.runtime import DirectDatabase

OWN, OTHER = "own", "other"
Q = Statements(
    parse("""
-- name: current_zones
select current_setting('quarterdeck.zones', true);

-- name: visible_zones
select id from zones order by id;

-- name: current_roles
select current_user::text, session_user::text;

-- name: reset_role
reset role;

-- name: division_by_zero
select 1 / 0;

-- name: insert_zone
insert into zones (id, name, frozen, quotas, created_at, updated_at) values (:id, 'n', 0, '{}', 1, 1);
""")
)

# -- tables, from the catalogue


def unprotected_tables(url: str) -> list[str]:
    """Zone tables without row security or without its policies."""
    policies = DirectDatabase(url).execute(
        "select tablename::text, policyname::text, array_to_string(roles, ' '), cmd, with_check = qual"
        " from pg_policies where permissive = 'PERMISSIVE' order by 1, 2"
    )
    expected = [("server", SERVER, "ALL", True), ("sweep", SWEEP, "ALL", True)]
    return [
        table.name
        for table in read_zone_tables(url)
        if not table.has_row_security or [policy[1:] for policy in policies if policy[0] == table.name] != expected
    ]


def test_every_zone_table_has_row_security_and_both_policies(postgres_url: str) -> None:
    found = {table.name for table in read_zone_tables(postgres_url)}
    assert found >= {"zones", "agent_sessions", "admission_counts", "idempotency_keys", "events"}
    assert unprotected_tables(postgres_url) == []


def test_table_without_row_security_is_detected(postgres_url: str) -> None:
    database = DirectDatabase(postgres_url)
    database.execute("create table unprotected (zone_id text)")
    assert unprotected_tables(postgres_url) == ["unprotected"]
    database.execute("alter table unprotected enable row level security")
    assert unprotected_tables(postgres_url) == ["unprotected"]
    database.execute("alter table events disable row level security")
    assert unprotected_tables(postgres_url) == ["events", "unprotected"]


@pytest.fixture
def populated_url(postgres_url: str) -> str:
    """A database with a row of both zones in every zone table.

    The server role has all privileges, so only row security can refuse.
    """
    with psycopg.connect(postgres_url) as owner:
        drop_foreign_keys(owner)
        for table in read_zone_tables(postgres_url):
            for zone_id in (OWN, OTHER):
                insert_row(owner, table, build_row(owner, table, zone_id))
            owner.execute(sql.SQL("grant all on {} to {}").format(sql.Identifier(table.name), sql.Identifier(SERVER)))
    return postgres_url


def visible_zones(connection: psycopg.Connection, table: Table) -> list[str]:
    names = sql.Identifier(str(table.zone_column)), sql.Identifier(table.name)
    return [row[0] for row in connection.execute(sql.SQL("select {} from {} order by 1").format(*names))]


def test_rows_of_another_zone_cannot_be_read_on_any_table(populated_url: str) -> None:
    for zones, visible in (((OWN,), [OWN]), ((), []), (("",), []), ((OTHER, OWN), [OTHER, OWN]), (("ow", "n"), [])):
        with connect_as(populated_url, SERVER, *zones) as server:
            found = {table.name: visible_zones(server, table) for table in read_zone_tables(populated_url)}
        assert found == dict.fromkeys(found, visible)


@pytest.mark.parametrize("change", ["update {table} set {zone} = {zone}", "delete from {table}"])
def test_rows_of_another_zone_cannot_be_updated_or_deleted_on_any_table(populated_url: str, change: str) -> None:
    for table in read_zone_tables(populated_url):
        names = {"table": sql.Identifier(table.name), "zone": sql.Identifier(str(table.zone_column))}
        targeted = sql.SQL(change + " where {zone} = 'other'").format(**names)
        with connect_as(populated_url, SERVER, OWN) as server:
            assert server.execute(targeted).rowcount == 0, table.name
            assert server.execute(sql.SQL(change).format(**names)).rowcount == 1, table.name
            server.commit()
        with psycopg.connect(populated_url) as owner:
            assert OTHER in visible_zones(owner, table)


def test_rows_cannot_be_inserted_or_moved_into_another_zone_on_any_table(populated_url: str) -> None:
    for table in read_zone_tables(populated_url):
        moved = sql.SQL("update {} set {} = 'other'").format(
            sql.Identifier(table.name), sql.Identifier(str(table.zone_column))
        )
        with connect_as(populated_url, SERVER, "third") as server:
            insert_row(server, table, build_row(server, table, "third"))
            server.commit()
            for zone_id in (OTHER, "unknown", ""):
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
                    insert_row(server, table, build_row(server, table, zone_id))
                server.rollback()
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
                server.execute(moved)


def test_sweep_role_sees_every_zone(populated_url: str) -> None:
    with connect_as(populated_url, SWEEP) as sweep:
        for table in read_zone_tables(populated_url):
            assert visible_zones(sweep, table) == [OTHER, OWN], table.name


# -- least privilege


def privileges(url: str, role: str, table: str) -> set[str]:
    """The privileges of a role on a table or on any of its columns."""
    verbs = ("select", "insert", "update", "delete", "truncate", "references", "trigger")
    by_column = ("select", "insert", "update", "references")
    database = DirectDatabase(url)
    return {
        verb
        for verb in verbs
        if database.scalar("select has_table_privilege(?, ?, ?)", role, table, verb)
        or (verb in by_column and database.scalar("select has_any_column_privilege(?, ?, ?)", role, table, verb))
    }


def privileges_by_table(url: str, role: str) -> dict[str, set[str]]:
    return {table.name: privileges(url, role, table.name) for table in read_tables(url)}


def test_each_role_has_only_the_privileges_it_needs(postgres_url: str) -> None:
    server, sweep = privileges_by_table(postgres_url, SERVER), privileges_by_table(postgres_url, SWEEP)
    for name, verbs in [*server.items(), *sweep.items()]:
        assert "select" in verbs, f"{name} is not readable by both roles"
        assert not verbs & {"truncate", "references", "trigger"}, name
    assert server["events"] == {"select", "insert"}, "events are never updated, and callers cannot delete them"
    assert sweep["events"] == {"select", "delete"}
    assert server["seals"] == {"select"}
    assert sweep["seals"] == {"select", "insert"}
    assert server["alembic_version"] == sweep["alembic_version"] == {"select"}
    # Rejected entries are written by the sink, which runs for all zones, and never by a caller.
    assert server["sink_entries"] == {"select"}
    # Deliveries are inserted for all zones together with the position of the sink, and updated per zone.
    assert sweep["webhook_deliveries"] == {"select", "insert", "delete"}
    for table in read_zone_tables(postgres_url):
        if table.name not in ("sink_entries", "webhook_deliveries"):
            assert not sweep[table.name] & {"insert", "update"}, (
                f"sweeps change rows only through the lanes: {table.name}"
            )


def test_server_role_may_update_the_head_of_the_log_but_not_the_floor(postgres_url: str) -> None:
    with connect_as(postgres_url, SERVER) as server:
        server.execute("update log_head set pos = pos + 1")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            server.execute("update log_head set floor = 1")


def test_other_roles_have_no_privileges(postgres_url: str) -> None:
    # A predefined role of PostgreSQL without any grants here.
    found = privileges_by_table(postgres_url, "pg_signal_backend")
    assert found == {name: set() for name in found}


# -- connections


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """A store with one connection, so that its users follow one another."""
    opened = await PostgresStore.open(postgres_url, 1)
    yield opened
    await opened.close()


async def setting_left_behind(store: PostgresStore) -> list[Row]:
    """The zones setting that the next user of the connection finds."""
    async with store._connection() as connection:
        return (await round_trip(connection, [Q.current_zones()], 1))[0]


async def test_read_sets_its_zones_in_each_round_trip_and_resets_them(store: PostgresStore) -> None:
    async def read_twice(tx: StoreTransaction) -> list[list[Row]]:
        return await tx.read(Q.current_zones(), Q.current_zones()) + await tx.read(Q.current_zones())

    assert await store.read(read_twice, [OWN, OTHER]) == [[(f"{OWN},{OTHER}",)]] * 3
    assert await setting_left_behind(store) == [("",)]
    assert await store.read(read_twice) == [[("",)]] * 3
    with pytest.raises(StoreError):
        await store.read(lambda tx: tx.read(Q.current_zones(), Q.division_by_zero()), [OWN])
    assert await setting_left_behind(store) == [("",)]


async def test_transaction_keeps_its_zones_until_its_end_and_resets_them(store: PostgresStore) -> None:
    async def work(tx: StoreTransaction) -> list[list[Row]]:
        tx.write(Q.insert_zone(id=OWN))
        first = await tx.read(Q.current_zones(), Q.visible_zones())
        return first + await tx.read(Q.current_zones(), Q.visible_zones())

    assert await store.transact(work, zones=[OWN]) == [[(OWN,)], [(OWN,)]] * 2
    assert await setting_left_behind(store) == [("",)]
    with pytest.raises(StoreError):
        await store.transact(lambda tx: tx.read(Q.division_by_zero()), zones=[OWN])
    assert await setting_left_behind(store) == [("",)]
    assert await store.transact(lambda tx: tx.read(Q.current_zones(), Q.visible_zones()), key=7) == [[("",)], []]


async def test_write_outside_the_given_zones_is_refused_and_rolled_back(
    postgres_url: str, store: PostgresStore
) -> None:
    async def work(tx: StoreTransaction) -> None:
        tx.write(Q.insert_zone(id=OWN))
        tx.write(Q.insert_zone(id=OTHER))

    for zones in ([OWN], []):
        with pytest.raises(StoreError) as refused:
            await store.transact(work, zones=zones)
        assert refused.value.code == "42501"
    assert DirectDatabase(postgres_url).count("zones") == 0
    await store.transact(work, zones={OWN, OTHER})
    assert DirectDatabase(postgres_url).count("zones") == 2


async def test_zones_setting_of_the_database_has_no_effect(postgres_url: str) -> None:
    database = DirectDatabase(postgres_url)
    database.execute("insert into zones values ('own', 'n', 0, '{}', 1, 1), ('other', 'n', 0, '{}', 1, 1)")
    database_name = database.scalar("select current_database()")
    database.execute(f"alter database {database_name} set quarterdeck.zones = 'other'")
    store = await PostgresStore.open(postgres_url, 1)
    assert await setting_left_behind(store) == [(OTHER,)], "the setting is in effect"
    assert await store.read(lambda tx: tx.read(Q.visible_zones()), [OWN]) == [[(OWN,)]]
    assert await store.read(lambda tx: tx.read(Q.visible_zones())) == [[]]
    assert await store.transact(lambda tx: tx.read(Q.visible_zones())) == [[]]
    await store.close()


async def test_zone_id_with_a_comma_gives_no_access_to_another_zone(store: PostgresStore) -> None:
    for zones in ([f"{OWN},{OTHER}"], [OWN, f"x,{OTHER}"]):
        with pytest.raises(ContentError):
            await store.read(lambda tx: tx.read(Q.visible_zones()), zones)
        with pytest.raises(ContentError):
            await store.transact(lambda tx: tx.read(Q.visible_zones()), zones=zones)
    assert await store.read(lambda tx: tx.read(Q.current_zones()), [OWN]) == [[(OWN,)]]


@pytest.mark.parametrize("role", ROLES)
async def test_connection_acts_as_its_role_even_after_reset_role(postgres_url: str, role: str) -> None:
    login = DirectDatabase(postgres_url).scalar("select current_user::text")
    assert login not in ROLES
    store = await PostgresStore.open(postgres_url, 1, SERVER if role == SERVER else SWEEP)
    assert await store.read(lambda tx: tx.read(Q.current_roles(), Q.reset_role(), Q.current_roles())) == [
        [(role, login)],
        [],
        [(role, login)],
    ]
    assert await store.read(lambda tx: tx.read(Q.current_roles())) == [[(role, login)]]
    await store.close()
