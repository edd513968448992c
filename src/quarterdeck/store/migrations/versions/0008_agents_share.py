"""Planner statistics for agents: each agent has a small share of all tasks.

Tasks that agents hold are queried by agent and status, and are few. If one agent had done nearly everything, the
planner expected a million rows for each agent and scanned the complete table for every claim. The values set here apply
from the next ANALYZE on. SQLite estimates differently and uses the index anyway.

Revision ID: 0008
"""

from __future__ import annotations

from quarterdeck.store.migrations import on_postgresql, run

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    if on_postgresql():
        # Twenty tasks per agent; and all eight states, even if nearly all tasks are in one.
        run("alter table agent_tasks alter column agent_id set (n_distinct = -0.05)")
        run("alter table agent_tasks alter column status set (n_distinct = 8)")
