"""Row-level security for revisions: roles, grants and policies. PostgreSQL only; SQLite has no roles.

A revision that creates a table says in one line who may do what with it: `secure` for a table with rows of zones,
`grant` for one without. `tests/store/test_row_security.py` reads the system catalog and finds a table without either.

The policy is a hashed filter, built once per statement, without measurable cost; as `= any(…)` it would compete with
the statement's own key for the index. It is not forced on the owner, who migrates and backs up and must see every row.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy.exc import DBAPIError

from quarterdeck.store.interface import StoreError
from quarterdeck.store.migrations import on_postgresql
from quarterdeck.store.postgres_roles import ROLES, SERVER, SWEEP, Role, create_roles_sql, grant_roles_sql

CREATE_ROLE = """
do $$
begin
    create role {role} nologin;
    -- The creator of the roles may also act as them, so that one login can migrate and serve; a superuser may anyway.
    if not (select rolsuper from pg_roles where rolname = current_user) then
        grant {role} to current_user;
    end if;
exception when duplicate_object or unique_violation then
    null;
end
$$
"""
SESSION_ZONES = "(select unnest(string_to_array(current_setting('quarterdeck.zones', true), ',')))"


def make_roles() -> None:
    """Create the roles. They belong to the cluster: they may exist, or be created now for another database."""
    if not on_postgresql():
        return
    missing = [role for role in ROLES if not _scalar(f"exists (select from pg_roles where rolname = '{role}')")]
    if missing:
        _create_roles(missing)
    for role in ROLES:
        if not _scalar(f"has_schema_privilege('{role}', current_schema(), 'usage')"):
            _execute(f"grant usage on schema {_scalar('quote_ident(current_schema())')} to {role}")


def secure(table: str, *, server: str, sweep: str = "select", zone: str = "zone_id") -> None:
    """Grant privileges and create the policies: the server role gets the rows of its zones, the sweep role all rows."""
    if not on_postgresql():
        return
    grant(table, server=server, sweep=sweep)
    _execute(f"alter table {table} enable row level security")
    condition = f"{zone} in {SESSION_ZONES}"
    _execute(f"create policy server on {table} to {SERVER} using ({condition}) with check ({condition})")
    _execute(f"create policy sweep on {table} to {SWEEP} using (true) with check (true)")


def grant(table: str, *, server: str, sweep: str = "select") -> None:
    """Grant each role its privileges on a table. It has no others."""
    if not on_postgresql():
        return
    _execute(f"grant {server} on {table} to {SERVER}")
    _execute(f"grant {sweep} on {table} to {SWEEP}")


def revoke(*tables: str, sweep: str) -> None:
    """Revoke privileges of the sweep role."""
    if on_postgresql():
        _execute(f"revoke {sweep} on {', '.join(tables)} from {SWEEP}")


def _create_roles(missing: list[Role]) -> None:
    login = str(_scalar("current_user"))
    try:
        for role in missing:
            _execute(CREATE_ROLE.replace("{role}", role))
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) != "42501":
            raise
        raise StoreError(
            "migration",
            f"The login {login} may not create the roles that the server and its sweeps use. An administrator must "
            f"run: {create_roles_sql(missing)} {grant_roles_sql(login)} Then upgrade again.",
        ) from error


def _scalar(expression: str) -> object:
    return op.get_bind().exec_driver_sql(f"select {expression}").scalar_one()


def _execute(statement: str) -> None:
    op.get_bind().exec_driver_sql(statement)
