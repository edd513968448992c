"""The route for heartbeats of agents. It is here and not with agents, because a heartbeat also reports on tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.routing import AnyCall, Call, Route
from quarterdeck.domain.agents import rules as agent_rules
from quarterdeck.domain.agents.model import (
    METADATA_BYTES_MAX,
    Agent,
    AgentResult,
    HeartbeatResult,
    RecordHeartbeat,
    RefreshStatus,
)
from quarterdeck.domain.agents.rules import errors
from quarterdeck.domain.tasks.model.commands import Progress
from quarterdeck.domain.tasks.model.heartbeat_types import (
    HeartbeatBody,
    HeartbeatView,
    HeartbeatWarning,
    ReportedTasks,
    TaskFeedback,
)
from quarterdeck.domain.tasks.operations.heartbeat_feedback import HeartbeatFeedback
from quarterdeck.domain.tasks.routes import request_commands
from quarterdeck.engine.secrets import FieldCipher

NO_FEEDBACK = TaskFeedback()
HEARTBEAT_BYTES_MAX = 2 * 1024 * 1024
"""Large, because a heartbeat may contain a checkpoint, which may be as large as any JSON field of a task."""


@dataclass(frozen=True, slots=True)
class HeartbeatHandlers:
    record_heartbeat: Callable[[RecordHeartbeat], Awaitable[HeartbeatResult]]
    refresh_status: Callable[[RefreshStatus], Awaitable[AgentResult]]
    feedback: HeartbeatFeedback
    cipher: FieldCipher

    async def heartbeat(self, call: Call[HeartbeatBody, None]) -> HeartbeatView:
        body = call.body
        command = _heartbeat_command(call, body)
        # The report on the task is checked before anything changes, and stored only after the heartbeat is recorded.
        progress = self._progress_command(call, body)
        task = await self.feedback.check_progress(progress, call.caller) if progress else None
        result = await self.record_heartbeat(command)
        if result.needs_refresh:
            # Before the response, so that the client can rely on the new status.
            await self.refresh_status(
                RefreshStatus(zone_id=command.zone_id, agent_id=command.agent_id, trace=call.trace)
            )
        warnings = []
        if progress and task:
            warnings.append(await self.feedback.save_progress(progress, task, command.agent_id))
        elif body.current_task_id is not None and body.checkpoint_data is not None:
            warnings.append(_not_saved_warning(body.current_task_id))
        feedback = await self._task_feedback(call, body, result.agent)
        warnings += feedback.warnings
        if result.agent.draining:
            warnings.append(_draining_warning())
        return HeartbeatView(
            feedback.cancel,
            feedback.pause,
            tuple(warning for warning in warnings if warning),
            agent_rules.next_heartbeat_seconds(result.agent),
        )

    def _progress_command(self, call: AnyCall, body: HeartbeatBody) -> Progress | None:
        """The report on the current task. None without a current task, or without an attempt token."""
        task_id, attempt_token = body.current_task_id, body.attempt_token or call.caller.attempt
        if task_id is None or attempt_token is None:
            return None
        return Progress(
            **call.caller_fields,
            id=task_id,
            attempt_token=attempt_token,
            percent=body.progress_percent,
            step=body.current_step,
            checkpoint=request_commands.encrypt_field(
                self.cipher, call.zone_id, task_id, "checkpoint_data", body.checkpoint_data
            ),
        )

    async def _task_feedback(self, call: AnyCall, body: HeartbeatBody, agent: Agent) -> TaskFeedback:
        """Load feedback if the agent holds tasks, or the heartbeat has `taskIds` or `currentTaskId`."""
        task_ids = dict.fromkeys(body.task_ids or ())
        if body.current_task_id is not None:
            task_ids[body.current_task_id] = None
        if not task_ids and body.task_ids is None and not agent.held:
            return NO_FEEDBACK
        return await self.feedback.build_feedback(
            ReportedTasks(
                zone_id=call.zone_id,
                agent_id=call.params["id"],
                caller=call.caller,
                task_ids=tuple(task_ids),
                is_complete=body.task_ids is not None,
                holds_tasks=agent.held > 0,
            )
        )


def _not_saved_warning(task_id: str) -> HeartbeatWarning:
    detail = "The checkpoint was not stored. Send the `attemptToken` that the claim returned."
    return HeartbeatWarning("attempt_token_required", detail, task_id)


def _draining_warning() -> HeartbeatWarning:
    return HeartbeatWarning("agent_draining", "The agent gets no new tasks and is terminated after its last one.")


def _heartbeat_command(call: AnyCall, body: HeartbeatBody) -> RecordHeartbeat:
    metadata = msgspec.json.encode(body.metadata)
    if len(metadata) > METADATA_BYTES_MAX:
        raise errors.metadata_too_large()
    return RecordHeartbeat(
        zone_id=call.zone_id,
        agent_id=call.params["id"],
        caller=call.caller,
        status=body.status,
        current_task_id=body.current_task_id,
        progress_percent=body.progress_percent,
        current_step=body.current_step,
        memory_mb=_rounded(body.memory_mb),
        cpu_percent=_rounded(body.cpu_percent),
        metadata=metadata.decode(),
    )


def _rounded(amount: float | None) -> int | None:
    return None if amount is None else round(amount)


HEARTBEAT_DESCRIPTION = (
    "Reports liveness, progress and a checkpoint, and returns cancellations, in one call. The response lists which of "
    "the named tasks the agent must stop (`cancel`), which were paused (`pause`), warnings about any of its tasks, and "
    "the seconds until the next heartbeat (`next`). A heartbeat revives a stale agent, but it does not get back the "
    "attempts that were aborted. With the token of an ended attempt (the task was canceled, paused or finished, or is "
    "waiting for its next attempt) the heartbeat counts, the report on the task is ignored, and a warning "
    "`stale_attempt` gives the reason. If another attempt is running, the request is refused (409). A refused request "
    "changes nothing."
)


def routes(handlers: HeartbeatHandlers) -> list[Route]:
    return [
        Route(
            "POST", "/api/v1/agents/{id}/heartbeat", handlers.heartbeat, "Send a heartbeat for an agent", LIFECYCLE,
            tags=("agents",), description=HEARTBEAT_DESCRIPTION, permission="agents.beat",
            body_bytes_max=HEARTBEAT_BYTES_MAX,
            errors=("agent_not_found", "agent_required", "agent_terminated", "metadata_too_large", "task_not_found",
                    "stale_attempt", "field_too_large", "reserved_key"),
        ),
    ]  # fmt: skip
