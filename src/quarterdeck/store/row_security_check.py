"""Checks, when a server starts, that row-level security applies to its role (`postgres_roles.py` explains why)."""

from __future__ import annotations

import psycopg
from psycopg import AsyncConnection

from quarterdeck.store.interface import StoreError, TransientError
from quarterdeck.store.postgres_roles import SERVER, SWEEP, Role, create_roles_sql, role_denied_message

SET_ROLE = "select set_config('role', %s, false)"
_ROLE_ATTRIBUTES = "select rolsuper, rolbypassrls from pg_roles where rolname = current_user"
_IS_SWEEP_MEMBER = "select pg_has_role(current_user, 'quarterdeck_sweep', 'USAGE')"
_CAN_SEE_TABLES = "select to_regclass('zones') is not null"
_OWNED_TABLE = """
select c.relname from pg_class c
where c.relkind in ('r', 'p') and pg_has_role(current_user, c.relowner, 'USAGE')
  and c.relnamespace = (select z.relnamespace from pg_class z where z.oid = to_regclass('zones'))
order by 1 limit 1
"""
# A table on which row-level security does not apply to this role, for a reason that the queries above do not cover.
_UNPROTECTED_TABLE = """
select c.relname from pg_class c
where c.relkind in ('r', 'p') and not row_security_active(c.oid)
  and c.relnamespace = (select z.relnamespace from pg_class z where z.oid = to_regclass('zones'))
  and (c.relname = 'zones' or exists (
      select from pg_attribute a where a.attrelid = c.oid and a.attname = 'zone_id' and not a.attisdropped))
order by 1 limit 1
"""


async def require_row_security(url: str, role: Role) -> None:
    """Raises `StoreError` unless this login may act as the role and row-level security applies to it."""
    try:
        async with await AsyncConnection.connect(url, connect_timeout=5, autocommit=True) as connection:
            await _set_role(connection, role)
            if reason := await _bypass_reason(connection, role):
                raise StoreError("role", reason)
    except psycopg.Error as error:
        raise TransientError("08001", f"the database cannot be reached: {error}") from error


async def _set_role(connection: AsyncConnection, role: Role) -> None:
    # Set by a statement, because a refused startup option has no error code that distinguishes the reasons.
    try:
        await connection.execute(SET_ROLE, [role])
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreError("role", role_denied_message(connection.info.user, role)) from error
    except psycopg.errors.InvalidParameterValue as error:
        raise StoreError(
            "role",
            f"PostgreSQL has no role {role}. A dump that was restored without it has no policies: create the roles "
            f"({create_roles_sql()}), then restore again.",
        ) from error


async def _bypass_reason(connection: AsyncConnection, role: Role) -> str | None:
    """Why row-level security would not apply to the current role of this connection, or None if it applies."""
    is_superuser, has_bypass = await _fetch_row(connection, _ROLE_ATTRIBUTES)
    if is_superuser:
        return _bypass_message(role, "is a superuser", f"ALTER ROLE {role} NOSUPERUSER;")
    if has_bypass:
        return _bypass_message(role, "has BYPASSRLS", f"ALTER ROLE {role} NOBYPASSRLS;")
    if not (await _fetch_row(connection, _CAN_SEE_TABLES))[0]:
        return (
            f"{role} cannot find the tables: their schema is not in its search_path, or the role lacks USAGE on the "
            f"schema. An administrator must run: GRANT USAGE ON SCHEMA … TO {role}; or ALTER DATABASE … SET "
            "search_path = …;"
        )
    if owned_table := await _fetch_row(connection, _OWNED_TABLE):
        reason = f"owns the table {owned_table[0]}, or is a member of the role that does"
        return _bypass_message(role, reason, f"ALTER TABLE {owned_table[0]} OWNER TO …; or REVOKE … FROM {role};")
    if role == SERVER and (await _fetch_row(connection, _IS_SWEEP_MEMBER))[0]:
        return _bypass_message(role, f"is a member of {SWEEP}", f"REVOKE {SWEEP} FROM {SERVER};")
    if unprotected_table := await _fetch_row(connection, _UNPROTECTED_TABLE):
        remedy = f"ALTER TABLE {unprotected_table[0]} ENABLE ROW LEVEL SECURITY;"
        return _bypass_message(role, f"finds the table {unprotected_table[0]} without policies in force", remedy)
    return None


def _bypass_message(role: Role, reason: str, remedy: str) -> str:
    return f"{role} {reason}: row-level security would not apply to it. An administrator must run: {remedy}"


async def _fetch_row(connection: AsyncConnection, statement: str) -> tuple[object, ...]:
    row = await (await connection.execute(statement.encode())).fetchone()
    return row or ()
