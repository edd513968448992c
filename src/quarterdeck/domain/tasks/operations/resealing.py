"""Where tasks keep secrets, for the rotation of keys. Errors and agents' own lines hold none: they are struck out."""

from __future__ import annotations

from quarterdeck.domain.tasks.queries import Q
from quarterdeck.engine.secrets.rotation import Shelf

TASKS = Shelf(
    "agent_tasks", ("input_context", "output_result", "checkpoint_data"), Q.tasks_sealed, Q.tasks_reseal
)
