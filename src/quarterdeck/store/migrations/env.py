"""Alembic's entry: runs revisions on the connection that `store.migrate` holds its lock with."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()
