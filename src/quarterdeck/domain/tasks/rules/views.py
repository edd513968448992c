"""Views of tasks. A `FieldRenderer` masks secrets, or decrypts them for the holder of the attempt."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import UNSET

from quarterdeck.core.clock import iso, iso_or_none
from quarterdeck.domain.costs.model import MICROS_PER_USD
from quarterdeck.domain.tasks.model.rows import ClaimedTask, FullTask
from quarterdeck.domain.tasks.model.views import CostsView, TaskView

FieldRenderer = Callable[[str, str], str]
"""(field, stored JSON) → JSON for the response"""


def to_view(full_task: FullTask, render: FieldRenderer) -> TaskView:
    task, content = full_task.task, full_task.content
    return TaskView(
        id=task.id,
        zone_id=task.zone_id,
        title=content.title,
        description=content.description,
        task_type=task.task_type,
        status=task.status,
        priority=task.priority,
        agent_id=task.agent_id,
        session_key=task.session_key,
        progress_percent=task.progress_percent,
        current_step=task.current_step,
        estimated_duration_minutes=task.estimated_duration_minutes,
        estimated_completion_at=iso_or_none(task.estimated_completion_at),
        retry_count=task.retry_count,
        max_retries=task.max_retries,
        retry_backoff_seconds=task.retry_backoff_seconds,
        last_error=content.last_error,
        depends_on=[*full_task.depends_on],
        depends_on_count=task.dependency_count,
        blocks=[*full_task.blocks],
        more_blocks=full_task.has_more_blocks,
        on_dependency_failure=task.on_dependency_failure,
        input_context=_raw(render("input_context", content.input_context)),
        output_result=None if content.output_result is None else _raw(render("output_result", content.output_result)),
        summary=content.summary,
        checkpoint_data=_raw(render("checkpoint_data", content.checkpoint_data)),
        metadata=_raw(content.metadata_json),
        tags=_raw(content.tags),
        required_capabilities=_raw(content.required_capabilities),
        available_at=iso(task.available_at),
        timeout_seconds=task.timeout_seconds,
        attempt=task.attempt,
        reason=task.reason,
        is_final=bool(task.final),
        costs=CostsView(task.usd_micros / MICROS_PER_USD, task.input_tokens, task.output_tokens),
        created_by=task.created_by,
        created_at=iso(task.created_at),
        updated_at=iso(task.updated_at),
        assigned_at=iso_or_none(task.assigned_at),
        started_at=iso_or_none(task.started_at),
        completed_at=iso_or_none(task.completed_at),
        failed_at=iso_or_none(task.failed_at),
    )


def to_claimed_view(claimed: ClaimedTask, render: FieldRenderer) -> TaskView:
    """The view for the holder of the attempt, with its token and lease."""
    assert claimed.content is not None
    view = to_view(FullTask(claimed.task, claimed.content, claimed.depends_on), render)
    return msgspec.structs.replace(
        view, attempt_token=claimed.task.attempt_token or UNSET, lease_expires_at=iso(claimed.lease_expires_at)
    )


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())
