"""Views of tasks. A `FieldRenderer` masks secrets, or decrypts them for the holder of the attempt."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET
from msgspec.structs import replace

from quarterdeck.core.clock import iso
from quarterdeck.core.views import view_of
from quarterdeck.domain.costs.model import MICROS_PER_USD
from quarterdeck.domain.tasks.model.rows import ClaimedTask, FullTask, Task
from quarterdeck.domain.tasks.model.views import CostsView, TaskView

FieldRenderer = Callable[[str, str], str]
"""(field, stored JSON) → JSON for the response"""


def to_view(full_task: FullTask, render: FieldRenderer) -> TaskView:
    content = full_task.content
    rendered_content = replace(
        content,
        input_context=render("input_context", content.input_context),
        output_result=None if content.output_result is None else render("output_result", content.output_result),
        checkpoint_data=render("checkpoint_data", content.checkpoint_data),
    )
    return _view(replace(full_task, content=rendered_content))


def to_claimed_view(claimed: ClaimedTask, render: FieldRenderer) -> TaskView:
    """The view for the holder of the attempt, with its token and lease."""
    assert claimed.content is not None
    view = to_view(FullTask(claimed.task, claimed.content, claimed.depends_on), render)
    return replace(
        view, attempt_token=claimed.task.attempt_token or UNSET, lease_expires_at=iso(claimed.lease_expires_at)
    )


def _costs_view(task: Task) -> CostsView:
    return CostsView(task.usd_micros / MICROS_PER_USD, task.input_tokens, task.output_tokens)


_view = view_of(
    FullTask,
    TaskView,
    depends_on=lambda full_task: [*full_task.depends_on],
    depends_on_count="dependency_count",
    blocks=lambda full_task: [*full_task.blocks],
    more_blocks="has_more_blocks",
    metadata="metadata_json",
    is_final="final",
    costs=lambda full_task: _costs_view(full_task.task),
    # Only the holder of the attempt gets its token.
    attempt_token=lambda full_task: UNSET,
)
