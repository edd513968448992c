"""Alembic's entry point: runs revisions on the connection on which `store.migrate` holds its lock."""

from __future__ import annotations

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=False)
context.run_migrations()
