"""One tree of revisions for both engines.

A revision is plain SQL that both engines understand. Where PostgreSQL needs more (a storage parameter), the revision
checks `on_postgresql()`. Released revisions are never edited. `tests/store/test_migrations.py` runs them on an empty
database and from the first revision with rows in the tables. Each runs in one transaction on both engines: a revision
that fails half-way changes nothing.
"""

from __future__ import annotations

from alembic import op


def on_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def run(script: str) -> None:
    """Run the statements of a script one by one. They are separated by semicolons at line ends.

    `{position}` is a 64-bit integer key: SQLite stores a table in that order, without a separate index, only if the
    type is written INTEGER. `{clustered}` stores a narrow table in key order on SQLite; PostgreSQL has no equivalent.
    """
    replacements = ("bigint", "") if on_postgresql() else ("integer", "without rowid")
    for statement in script.split(";\n"):
        if statement.strip():
            op.execute(
                statement.replace("{position}", replacements[0])
                .replace("{clustered}", replacements[1])
                .strip()
                .rstrip(";")
            )
