"""Tables as PostgreSQL's catalogue lists them, so that tests cover every table."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import sql

from quarterdeck.store.postgres_roles import Role

TABLES_QUERY = """
select c.relname::text, c.relrowsecurity, a.attname::text
from pg_class c
left join pg_attribute a on a.attrelid = c.oid and not a.attisdropped
  and a.attname = case when c.relname = 'zones' then 'id' else 'zone_id' end
where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace
order by 1
"""
COLUMNS_QUERY = """
select attname::text, format_type(atttypid, null)
from pg_attribute where attrelid = %s::regclass and attnum > 0 and not attisdropped order by attnum
"""
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Table:
    name: str
    has_row_security: bool
    zone_column: str | None
    """The column that names a row's zone; None for a table that belongs to no zone."""


def read_tables(url: str) -> list[Table]:
    with psycopg.connect(url) as connection:
        return [Table(*row) for row in connection.execute(TABLES_QUERY)]


def read_zone_tables(url: str) -> list[Table]:
    return [table for table in read_tables(url) if table.zone_column]


def build_row(connection: psycopg.Connection, table: Table, zone_id: str) -> dict[str, str | int]:
    """A new row of a zone: each column gets a value of its type."""
    number = next(_numbers)
    row: dict[str, str | int] = {}
    for column, column_type in connection.execute(COLUMNS_QUERY, [table.name]):
        if column == table.zone_column:
            row[column] = zone_id
        elif column_type == "text":
            row[column] = f"{column}-{number}"
        elif column_type in ("bigint", "smallint", "integer"):
            row[column] = number
        else:
            raise AssertionError(f"{table.name}.{column} is {column_type}: add a value for this type here")
    return row


def insert_row(connection: psycopg.Connection, table: Table, row: dict[str, str | int]) -> None:
    statement = sql.SQL("insert into {} ({}) values ({})").format(
        sql.Identifier(table.name),
        sql.SQL(", ").join(map(sql.Identifier, row)),
        sql.SQL(", ").join(sql.Placeholder() for _ in row),
    )
    connection.execute(statement, list(row.values()))


def drop_foreign_keys(connection: psycopg.Connection) -> None:
    """Drop all foreign keys, so that a test can insert rows into any table, and only what is tested refuses them."""
    found = connection.execute(
        "select conrelid::regclass::text, conname from pg_constraint where contype = 'f'"
    ).fetchall()
    for table, name in found:
        connection.execute(
            sql.SQL("alter table {} drop constraint {}").format(sql.Identifier(table), sql.Identifier(name))
        )


@contextmanager
def connect_as(url: str, role: Role, *zones: str) -> Iterator[psycopg.Connection]:
    """A connection with this role for these zones. Its statements are rolled back at the end."""
    with psycopg.connect(url, options=f"-c role={role}") as connection:
        connection.execute("select set_config('quarterdeck.zones', %s, false)", [",".join(zones)])
        connection.commit()
        yield connection
        connection.rollback()
