"""The PostgreSQL roles of the server and its sweeps, and row-level security on every table with rows of zones.

Each role may do what its code does and no more. No role updates events. Only the sweep role deletes events, sessions
and idempotency keys (retention), writes seals and raises the floor of the log.

Revision ID: 0004
"""

from __future__ import annotations

from quarterdeck.store.migrations.row_security import grant, make_roles, secure

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    make_roles()
    secure("zones", server="select, insert, update", zone="id")
    secure("agent_sessions", server="select, insert, update", sweep="select, delete")
    secure("admission_counts", server="select, insert, update, delete")
    secure("idempotency_keys", server="select, insert, update", sweep="select, delete")
    secure("cascades", server="select, insert, update", sweep="select, delete")
    secure("events", server="select, insert", sweep="select, delete")
    secure("api_keys", server="select, insert, update (revoked_at)")
    grant("log_head", server="select, update (pos)", sweep="select, update (floor)")
    grant("leases", server="select, insert, update", sweep="select, insert, update")
    grant("seals", server="select", sweep="select, insert")
    grant("alembic_version", server="select")
