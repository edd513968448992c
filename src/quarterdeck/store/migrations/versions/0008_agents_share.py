"""How the planner is to think of agents: each has done a small part of all tasks.

What agents hold is asked for by agent and status, and is little. Where one agent had done nearly everything, the
planner went by that: it expected a million rows for each agent and read the whole table for every claim. What it is
told here holds from the next ANALYZE on. SQLite counts otherwise, and goes by the index anyway.

Revision ID: 0008
"""

from __future__ import annotations

from quarterdeck.store.migrations import on_postgresql, run

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    if on_postgresql():
        # Twenty tasks for each agent; and all eight states, also where nearly all tasks are in one.
        run("alter table agent_tasks alter column agent_id set (n_distinct = -0.05)")
        run("alter table agent_tasks alter column status set (n_distinct = 8)")
