"""Behind the second wall: the server's own role can neither read nor write another zone's rows, on any table."""

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
-- name: seen
select current_setting('quarterdeck.zones', true);

-- name: zones_seen
select id from zones order by id;

-- name: who
select current_user::text, session_user::text;

-- name: reset
reset role;

-- name: fails
select 1 / 0;

-- name: make
insert into zones (id, name, frozen, quotas, created_at, updated_at) values (:id, 'n', 0, '{}', 1, 1);
""")
)

# -- from the catalogue: whatever table is made, it is in here


def unwalled(url: str) -> list[str]:
    """Tables with a zone's rows that row-level security does not guard as it must."""
    policies = DirectDatabase(url).execute(
        "select tablename::text, policyname::text, array_to_string(roles, ' '), cmd, with_check = qual"
        " from pg_policies where permissive = 'PERMISSIVE' order by 1, 2"
    )
    wanted = [("server", SERVER, "ALL", True), ("sweep", SWEEP, "ALL", True)]
    return [
        table.name
        for table in read_zone_tables(url)
        if not table.has_row_security or [policy[1:] for policy in policies if policy[0] == table.name] != wanted
    ]


def test_every_table_with_a_zones_rows_has_row_level_security_and_both_policies(postgres_url: str) -> None:
    found = {table.name for table in read_zone_tables(postgres_url)}
    assert found >= {"zones", "agent_sessions", "admission_counts", "idempotency_keys", "events"}
    assert unwalled(postgres_url) == []


def test_a_table_that_a_revision_forgot_is_found(postgres_url: str) -> None:
    side = DirectDatabase(postgres_url)
    side.execute("create table forgotten (zone_id text)")
    assert unwalled(postgres_url) == ["forgotten"]
    side.execute("alter table forgotten enable row level security")
    assert unwalled(postgres_url) == ["forgotten"]
    side.execute("alter table events disable row level security")
    assert unwalled(postgres_url) == ["events", "forgotten"]


@pytest.fixture
def populated_url(postgres_url: str) -> str:
    """A database with a row of either zone in every zone table, in which the roles may do all that grants can allow:
    what is refused is then refused by the wall."""
    with psycopg.connect(postgres_url) as owner:
        drop_foreign_keys(owner)
        for table in read_zone_tables(postgres_url):
            for zone_id in (OWN, OTHER):
                insert_row(owner, table, build_row(owner, table, zone_id))
            owner.execute(sql.SQL("grant all on {} to {}").format(sql.Identifier(table.name), sql.Identifier(SERVER)))
    return postgres_url


def seen(connection: psycopg.Connection, table: Table) -> list[str]:
    names = sql.Identifier(str(table.zone_column)), sql.Identifier(table.name)
    return [row[0] for row in connection.execute(sql.SQL("select {} from {} order by 1").format(*names))]


def test_another_zones_rows_cannot_be_read_on_any_table(populated_url: str) -> None:
    for zones, visible in (((OWN,), [OWN]), ((), []), (("",), []), ((OTHER, OWN), [OTHER, OWN]), (("ow", "n"), [])):
        with connect_as(populated_url, SERVER, *zones) as server:
            found = {table.name: seen(server, table) for table in read_zone_tables(populated_url)}
        assert found == dict.fromkeys(found, visible)


@pytest.mark.parametrize("change", ["update {table} set {zone} = {zone}", "delete from {table}"])
def test_another_zones_rows_cannot_be_changed_or_deleted_on_any_table(populated_url: str, change: str) -> None:
    for table in read_zone_tables(populated_url):
        names = {"table": sql.Identifier(table.name), "zone": sql.Identifier(str(table.zone_column))}
        aimed = sql.SQL(change + " where {zone} = 'other'").format(**names)
        with connect_as(populated_url, SERVER, OWN) as server:
            assert server.execute(aimed).rowcount == 0, table.name
            assert server.execute(sql.SQL(change).format(**names)).rowcount == 1, table.name
            server.commit()
        with psycopg.connect(populated_url) as owner:
            assert OTHER in seen(owner, table)


def test_no_row_can_be_put_into_another_zone_on_any_table(populated_url: str) -> None:
    for table in read_zone_tables(populated_url):
        moved = sql.SQL("update {} set {} = 'other'").format(
            sql.Identifier(table.name), sql.Identifier(str(table.zone_column))
        )
        with connect_as(populated_url, SERVER, "third") as server:
            insert_row(server, table, build_row(server, table, "third"))
            server.commit()
            for zone_id in (OTHER, "nowhere", ""):
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
                    insert_row(server, table, build_row(server, table, zone_id))
                server.rollback()
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
                server.execute(moved)


def test_the_sweeps_role_sees_every_zone(populated_url: str) -> None:
    with connect_as(populated_url, SWEEP) as sweep:
        for table in read_zone_tables(populated_url):
            assert seen(sweep, table) == [OTHER, OWN], table.name


# -- least privilege


def may(url: str, role: str, table: str) -> set[str]:
    """What a role may do with a table, or with some column of it."""
    verbs = ("select", "insert", "update", "delete", "truncate", "references", "trigger")
    by_column = ("select", "insert", "update", "references")
    side = DirectDatabase(url)
    return {
        verb
        for verb in verbs
        if side.scalar("select has_table_privilege(?, ?, ?)", role, table, verb)
        or (verb in by_column and side.scalar("select has_any_column_privilege(?, ?, ?)", role, table, verb))
    }


def all_that(url: str, role: str) -> dict[str, set[str]]:
    return {table.name: may(url, role, table.name) for table in read_tables(url)}


def test_each_role_may_do_what_its_code_does_and_no_more(postgres_url: str) -> None:
    server, sweep = all_that(postgres_url, SERVER), all_that(postgres_url, SWEEP)
    for name, verbs in [*server.items(), *sweep.items()]:
        assert "select" in verbs, f"{name} was granted to nobody"
        assert not verbs & {"truncate", "references", "trigger"}, name
    assert server["events"] == {"select", "insert"}, "an event is never changed, nor deleted for a caller"
    assert sweep["events"] == {"select", "delete"}
    assert server["seals"] == {"select"}
    assert sweep["seals"] == {"select", "insert"}
    assert server["alembic_version"] == sweep["alembic_version"] == {"select"}
    # What a sink could not deliver is put down by whoever delivers, which is for all zones, and never by a caller.
    assert server["sink_entries"] == {"select"}
    # So it is with what endpoints are to be told: made for all zones with the sink's position, and moved for one.
    assert sweep["webhook_deliveries"] == {"select", "insert", "delete"}
    for table in read_zone_tables(postgres_url):
        if table.name not in ("sink_entries", "webhook_deliveries"):
            assert not sweep[table.name] & {"insert", "update"}, f"sweeps end through the lanes: {table.name}"


def test_the_server_moves_the_head_of_the_log_and_not_its_floor(postgres_url: str) -> None:
    with connect_as(postgres_url, SERVER) as server:
        server.execute("update log_head set pos = pos + 1")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            server.execute("update log_head set floor = 1")


def test_everybody_else_may_do_nothing(postgres_url: str) -> None:
    # A role that every PostgreSQL has, and that nothing was granted to.
    found = all_that(postgres_url, "pg_signal_backend")
    assert found == {name: set() for name in found}


# -- connections


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """With one connection, so that each user of it comes after another."""
    opened = await PostgresStore.open(postgres_url, 1)
    yield opened
    await opened.close()


async def left_behind(store: PostgresStore) -> list[Row]:
    """What the connection's next user finds, before it has said anything itself."""
    async with store._connection() as connection:
        return (await round_trip(connection, [Q.seen()], 1))[0]


async def test_a_read_is_behind_the_wall_in_each_round_trip_and_leaves_nothing_behind(store: PostgresStore) -> None:
    async def twice(tx: StoreTransaction) -> list[list[Row]]:
        return await tx.read(Q.seen(), Q.seen()) + await tx.read(Q.seen())

    assert await store.read(twice, [OWN, OTHER]) == [[(f"{OWN},{OTHER}",)]] * 3
    assert await left_behind(store) == [("",)]
    assert await store.read(twice) == [[("",)]] * 3
    with pytest.raises(StoreError):
        await store.read(lambda tx: tx.read(Q.seen(), Q.fails()), [OWN])
    assert await left_behind(store) == [("",)]


async def test_a_transaction_is_behind_the_wall_to_its_end_and_leaves_nothing_behind(store: PostgresStore) -> None:
    async def work(tx: StoreTransaction) -> list[list[Row]]:
        tx.write(Q.make(id=OWN))
        first = await tx.read(Q.seen(), Q.zones_seen())
        return first + await tx.read(Q.seen(), Q.zones_seen())

    assert await store.transact(work, zones=[OWN]) == [[(OWN,)], [(OWN,)]] * 2
    assert await left_behind(store) == [("",)]
    with pytest.raises(StoreError):
        await store.transact(lambda tx: tx.read(Q.fails()), zones=[OWN])
    assert await left_behind(store) == [("",)]
    assert await store.transact(lambda tx: tx.read(Q.seen(), Q.zones_seen()), key=7) == [[("",)], []]


async def test_a_write_outside_the_zones_that_were_named_is_refused_and_nothing_is_written(
    postgres_url: str, store: PostgresStore
) -> None:
    async def work(tx: StoreTransaction) -> None:
        tx.write(Q.make(id=OWN))
        tx.write(Q.make(id=OTHER))

    for zones in ([OWN], []):
        with pytest.raises(StoreError) as refused:
            await store.transact(work, zones=zones)
        assert refused.value.code == "42501"
    assert DirectDatabase(postgres_url).count("zones") == 0
    await store.transact(work, zones={OWN, OTHER})
    assert DirectDatabase(postgres_url).count("zones") == 2


async def test_zones_that_an_administrator_set_for_the_database_count_for_nothing(postgres_url: str) -> None:
    side = DirectDatabase(postgres_url)
    side.execute("insert into zones values ('own', 'n', 0, '{}', 1, 1), ('other', 'n', 0, '{}', 1, 1)")
    database = side.scalar("select current_database()")
    side.execute(f"alter database {database} set quarterdeck.zones = 'other'")
    store = await PostgresStore.open(postgres_url, 1)
    assert await left_behind(store) == [(OTHER,)], "it is set, or this test shows nothing"
    assert await store.read(lambda tx: tx.read(Q.zones_seen()), [OWN]) == [[(OWN,)]]
    assert await store.read(lambda tx: tx.read(Q.zones_seen())) == [[]]
    assert await store.transact(lambda tx: tx.read(Q.zones_seen())) == [[]]
    await store.close()


async def test_a_zones_id_with_a_comma_in_it_opens_no_other_zone(store: PostgresStore) -> None:
    for zones in ([f"{OWN},{OTHER}"], [OWN, f"x,{OTHER}"]):
        with pytest.raises(ContentError):
            await store.read(lambda tx: tx.read(Q.zones_seen()), zones)
        with pytest.raises(ContentError):
            await store.transact(lambda tx: tx.read(Q.zones_seen()), zones=zones)
    assert await store.read(lambda tx: tx.read(Q.seen()), [OWN]) == [[(OWN,)]]


@pytest.mark.parametrize("role", ROLES)
async def test_a_connection_acts_as_its_role_and_resetting_the_role_returns_to_it(postgres_url: str, role: str) -> None:
    login = DirectDatabase(postgres_url).scalar("select current_user::text")
    assert login not in ROLES
    store = await PostgresStore.open(postgres_url, 1, SERVER if role == SERVER else SWEEP)
    assert await store.read(lambda tx: tx.read(Q.who(), Q.reset(), Q.who())) == [[(role, login)], [], [(role, login)]]
    assert await store.read(lambda tx: tx.read(Q.who())) == [[(role, login)]]
    await store.close()
