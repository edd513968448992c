"""One tree of revisions for both engines.

A revision is plain SQL that both engines understand; where one needs more (a storage parameter), it asks
`on_postgresql()`. Revisions are never edited once released, and `tests/store/test_migrations.py` rehearses them from
nothing and from the first one, with rows in the tables. Each runs inside one transaction on both engines: a revision
that fails half-way leaves nothing behind.
"""

from __future__ import annotations

from alembic import op


def on_postgresql() -> bool:
    return op.get_context().dialect.name == "postgresql"


def run(script: str) -> None:
    """Runs the statements of a script one by one; they are separated by semicolons at line ends.

    `{position}` is a 64-bit integer key: SQLite keeps such a table in that order, without an index beside it, only if
    the type is spelt INTEGER. `{clustered}` keeps a narrow table in the order of its key on SQLite; PostgreSQL has
    no such thing.
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
