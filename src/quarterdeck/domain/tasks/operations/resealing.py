"""Where tasks keep secrets, for the rotation of keys. Errors and agents' own lines hold none: they are struck out."""

from __future__ import annotations

from quarterdeck.domain.tasks.model.rows import TABLE
from quarterdeck.domain.tasks.queries import COORDINATING
from quarterdeck.engine.secrets.rotation import Shelf

TASKS = Shelf(
    TABLE, ("input_context", "output_result", "checkpoint_data"), COORDINATING.tasks_sealed, COORDINATING.tasks_reseal
)
