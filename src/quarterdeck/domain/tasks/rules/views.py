"""How a task is shown: secrets masked, except to whoever holds it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import UNSET

from quarterdeck.core.clock import iso, iso_or_none
from quarterdeck.domain.tasks.model.cost_types import MICROS
from quarterdeck.domain.tasks.model.rows import Leased, Whole
from quarterdeck.domain.tasks.model.views import CostsView, TaskView

Shown = Callable[[str, str], str]
"""(field, as stored) → as shown"""


def view(whole: Whole, shown: Shown) -> TaskView:
    row, said = whole.task, whole.content
    return TaskView(
        id=row.id,
        zone_id=row.zone_id,
        title=said.title,
        description=said.description,
        task_type=row.task_type,
        status=row.status,
        priority=row.priority,
        agent_id=row.agent_id,
        session_key=row.session_key,
        progress_percent=row.progress_percent,
        current_step=row.current_step,
        estimated_duration_minutes=row.estimated_duration_minutes,
        estimated_completion_at=iso_or_none(row.estimated_completion_at),
        retry_count=row.retry_count,
        max_retries=row.max_retries,
        retry_backoff_seconds=row.retry_backoff_seconds,
        last_error=said.last_error,
        depends_on=[*whole.depends_on],
        depends_on_count=row.depends,
        blocks=[*whole.blocks],
        more_blocks=whole.has_more_blocks,
        on_dependency_failure=row.on_dependency_failure,
        input_context=_raw(shown("input_context", said.input_context)),
        output_result=None if said.output_result is None else _raw(shown("output_result", said.output_result)),
        summary=said.summary,
        checkpoint_data=_raw(shown("checkpoint_data", said.checkpoint_data)),
        metadata=_raw(said.metadata_json),
        tags=_raw(said.tags),
        required_capabilities=_raw(said.required_capabilities),
        available_at=iso(row.available_at),
        timeout_seconds=row.timeout_seconds,
        attempt=row.attempt,
        reason=row.reason,
        is_final=bool(row.final),
        costs=CostsView(row.usd_micros / MICROS, row.input_tokens, row.output_tokens),
        created_by=row.created_by,
        created_at=iso(row.created_at),
        updated_at=iso(row.updated_at),
        assigned_at=iso_or_none(row.assigned_at),
        started_at=iso_or_none(row.started_at),
        completed_at=iso_or_none(row.completed_at),
        failed_at=iso_or_none(row.failed_at),
    )


def lease_view(leased: Leased, shown: Shown) -> TaskView:
    """The same for its holder, with what it needs to speak for the attempt."""
    assert leased.content is not None
    plain = view(Whole(leased.task, leased.content, leased.depends_on), shown)
    return msgspec.structs.replace(
        plain, attempt_token=leased.task.attempt_token or UNSET, lease_expires_at=iso(leased.lease_expires_at)
    )


def _raw(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())
