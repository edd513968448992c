"""Whether the wall would hold this server: asked before it serves, of the database itself (`roles.py` says why)."""

from __future__ import annotations

import psycopg
from psycopg import AsyncConnection

from quarterdeck.store.interface import StoreError, TransientError
from quarterdeck.store.postgres_roles import SERVER, SWEEP, Role, creation, may_not

BECOME = "select set_config('role', %s, false)"
_WHAT_IT_IS = "select rolsuper, rolbypassrls from pg_roles where rolname = current_user"
_SEES_ALL = "select pg_has_role(current_user, 'quarterdeck_sweep', 'USAGE')"
_FINDS = "select to_regclass('zones') is not null"
_OWNS = """
select c.relname from pg_class c
where c.relkind in ('r', 'p') and pg_has_role(current_user, c.relowner, 'USAGE')
  and c.relnamespace = (select z.relnamespace from pg_class z where z.oid = to_regclass('zones'))
order by 1 limit 1
"""
# Not active: the policies are off, or do not count for this role, for whatever reason the questions above overlooked.
_FINDS_OPEN = """
select c.relname from pg_class c
where c.relkind in ('r', 'p') and not row_security_active(c.oid)
  and c.relnamespace = (select z.relnamespace from pg_class z where z.oid = to_regclass('zones'))
  and (c.relname = 'zones' or exists (
      select from pg_attribute a where a.attrelid = c.oid and a.attname = 'zone_id' and not a.attisdropped))
order by 1 limit 1
"""


async def refuse_unless_held(url: str, role: Role) -> None:
    """Raises a StoreError with a sentence unless this login may become the role, and the wall would hold it."""
    try:
        async with await AsyncConnection.connect(url, connect_timeout=5, autocommit=True) as connection:
            await _become(connection, role)
            if complaint := await _complaint(connection, role):
                raise StoreError("role", complaint)
    except psycopg.Error as error:
        raise TransientError("08001", f"the database cannot be reached: {error}") from error


async def _become(connection: AsyncConnection, role: Role) -> None:
    # Asked as a statement: a startup option that is refused has no code to tell the reasons apart by.
    try:
        await connection.execute(BECOME, [role])
    except psycopg.errors.InsufficientPrivilege as error:
        raise StoreError("role", may_not(connection.info.user, role)) from error
    except psycopg.errors.InvalidParameterValue as error:
        raise StoreError(
            "role",
            f"PostgreSQL has no role {role}. A dump that was restored without it has lost its policies: make the roles "
            f"({creation()}), then restore again.",
        ) from error


async def _complaint(connection: AsyncConnection, role: Role) -> str | None:
    """Why the wall would not hold the role that this connection acts as now."""
    superuser, bypasses = await _row(connection, _WHAT_IT_IS)
    if superuser:
        return _past(role, "is a superuser", f"ALTER ROLE {role} NOSUPERUSER;")
    if bypasses:
        return _past(role, "has BYPASSRLS", f"ALTER ROLE {role} NOBYPASSRLS;")
    if not (await _row(connection, _FINDS))[0]:
        return (
            f"{role} does not find the tables: their schema is not in its search_path, or it may not use it. An "
            f"administrator has to run: GRANT USAGE ON SCHEMA … TO {role}; or ALTER DATABASE … SET search_path = …;"
        )
    if owned := await _row(connection, _OWNS):
        how = f"owns the table {owned[0]}, or is a member of the role that does"
        return _past(role, how, f"ALTER TABLE {owned[0]} OWNER TO …; or REVOKE … FROM {role};")
    if role == SERVER and (await _row(connection, _SEES_ALL))[0]:
        return _past(role, f"is a member of {SWEEP}", f"REVOKE {SWEEP} FROM {SERVER};")
    if opened := await _row(connection, _FINDS_OPEN):
        remedy = f"ALTER TABLE {opened[0]} ENABLE ROW LEVEL SECURITY;"
        return _past(role, f"finds the table {opened[0]} without policies in force", remedy)
    return None


def _past(role: Role, how: str, remedy: str) -> str:
    return f"{role} {how}: row-level security would not hold it. An administrator has to run: {remedy}"


async def _row(connection: AsyncConnection, statement: str) -> tuple[object, ...]:
    found = await (await connection.execute(statement.encode())).fetchone()
    return found or ()
