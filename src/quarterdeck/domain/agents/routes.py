"""Routes for agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from quarterdeck.core import paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.clock import Millis, iso
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.agents import operations, rules
from quarterdeck.domain.agents.heartbeat_port import (
    HeartbeatWarning,
    ReportedProgress,
    ReportedTasks,
    SaveProgress,
    TaskFeedback,
)
from quarterdeck.domain.agents.model import (
    METADATA_BYTES_MAX,
    Agent,
    AgentFilter,
    AgentList,
    AgentResult,
    AgentView,
    HealthView,
    HeartbeatBody,
    HeartbeatResult,
    HeartbeatView,
    IssueToken,
    IssueTokenResult,
    ListAgentsQuery,
    RecordHeartbeat,
    RefreshStatus,
    Register,
    RegisterBody,
    RegisterResult,
    ShowAgent,
    Terminate,
    TerminateBody,
    TokenBody,
    TokenView,
)
from quarterdeck.domain.agents.rules import errors
from quarterdeck.engine.lanes import zones_of
from quarterdeck.engine.transaction import Engine

LISTING = "agents"
NO_FEEDBACK = TaskFeedback()
HEARTBEAT_BYTES_MAX = 2 * 1024 * 1024
"""Large, because a heartbeat may contain a checkpoint, which may be as large as any JSON field of a task."""


class AgentTokenClaims(msgspec.Struct, frozen=True):
    """The claims of a token that acts for one agent."""

    zone_id: str
    agent_id: str
    client_id: str
    ttl_seconds: int
    attempt: str | None
    registered_at: Millis
    """When the agent was registered. The token is valid only for that registration."""


@dataclass(frozen=True, slots=True)
class AgentLanes:
    """The lanes that the handlers submit to."""

    register: Callable[[Register], Awaitable[RegisterResult]]
    record_heartbeat: Callable[[RecordHeartbeat], Awaitable[HeartbeatResult]]
    refresh_status: Callable[[RefreshStatus], Awaitable[AgentResult]]
    terminate: Callable[[Terminate], Awaitable[AgentResult]]
    issue_token: Callable[[IssueToken], Awaitable[IssueTokenResult]]
    show: Callable[[ShowAgent], Awaitable[AgentResult]]


@dataclass(frozen=True, slots=True)
class AgentHandlers:
    engine: Engine
    lanes: AgentLanes
    mint_token: Callable[[AgentTokenClaims], str]
    """Creates and signs a token. Injected, because the signing key belongs to the HTTP layer."""
    load_task_feedback: Callable[[ReportedTasks], Awaitable[TaskFeedback]]
    """Loads the feedback on an agent's tasks. Injected, because tasks are a layer above agents."""
    check_progress: Callable[[ReportedProgress], Awaitable[SaveProgress]]
    """Checks a report on the current task. Raises a Problem or returns a function that stores the report."""

    async def register(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, RegisterBody)
        result = await self.lanes.register(
            Register(
                zone_id=call.zone_id,
                agent_id=call.params["id"],
                caller=call.caller,
                trace=call.trace,
                update=rules.update_from_body(body),
                run_id=body.run_id,
            )
        )
        return Reply(rules.view(result.agent), 201 if result.created else 200)

    async def show(self, call: Call) -> AgentView:
        return rules.view((await self.lanes.show(_show_command(call))).agent)

    async def show_health(self, call: Call) -> HealthView:
        ref = _show_command(call)
        history = await self.engine.read(lambda tx: operations.load_history(tx, ref), zones=zones_of([ref]))
        return rules.health_view(history)

    async def list_agents(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ListAgentsQuery)
        filters = AgentFilter(
            zone_id=call.zone_id,
            limit=query.limit + 1,
            caller=call.caller,
            after=paging.decode(LISTING, query.cursor) if query.cursor else None,
            status=query.status,
            capability=query.capability,
            coordinator_enabled=query.coordinator_enabled,
        )
        agents = await self.engine.read(lambda tx: operations.list_agents(tx, filters), zones=zones_of([filters]))
        count, last = paging.trim_page([agent.id for agent in agents], query.limit)
        cursor = paging.encode(LISTING, last) if last else None
        body = AgentList([rules.view(agent) for agent in agents[:count]], cursor)
        return Reply(body, 200, call.next_link(cursor))

    async def terminate(self, call: Call) -> AgentView:
        body = call.body
        assert isinstance(body, TerminateBody)
        result = await self.lanes.terminate(
            Terminate(
                zone_id=call.zone_id,
                agent_id=call.params["id"],
                caller=call.caller,
                trace=call.trace,
                reason=body.reason,
                graceful=body.graceful,
            )
        )
        return rules.view(result.agent)

    async def issue_token(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, TokenBody)
        agent_id = call.params["id"]
        result = await self.lanes.issue_token(
            IssueToken(
                zone_id=call.zone_id,
                agent_id=agent_id,
                caller=call.caller,
                trace=call.trace,
                ttl_seconds=body.ttl_seconds,
                for_attempt=body.attempt_token is not None,
            )
        )
        token = self.mint_token(
            AgentTokenClaims(
                zone_id=call.zone_id,
                agent_id=agent_id,
                client_id=call.caller.client_id,
                ttl_seconds=body.ttl_seconds,
                attempt=body.attempt_token,
                registered_at=result.agent.created_at,
            )
        )
        # No proxy may cache the response, because it contains the token.
        return Reply(TokenView(agent_id, token, iso(result.expires_at)), 201, [("cache-control", "no-store")])

    # -- heartbeats ----------------------------------------------------------------------------------------------

    async def heartbeat(self, call: Call) -> HeartbeatView:
        body = call.body
        assert isinstance(body, HeartbeatBody)
        command = _heartbeat_command(call, body)
        # The report on the task is checked before anything changes, and stored only after the heartbeat is recorded.
        save_progress = await self._check_progress(call, body)
        result = await self.lanes.record_heartbeat(command)
        if result.needs_refresh:
            # Before the response, so that the client can rely on the new status.
            await self.lanes.refresh_status(
                RefreshStatus(zone_id=command.zone_id, agent_id=command.agent_id, trace=call.trace)
            )
        warning = await save_progress()
        feedback = await self._task_feedback(call, body, result.agent)
        warnings = (*([warning] if warning else []), *feedback.warnings)
        if result.agent.draining:
            warnings += (
                HeartbeatWarning("agent_draining", "The agent gets no new tasks and is terminated after its last one."),
            )
        return HeartbeatView(feedback.cancel, feedback.pause, warnings, rules.next_heartbeat_seconds(result.agent))

    async def _check_progress(self, call: Call, body: HeartbeatBody) -> SaveProgress:
        """Check the report on the current task, if there is one. A report without an attempt token is not stored."""
        task_id = body.current_task_id
        if task_id is None:
            return _save_nothing
        if body.attempt_token is None and call.caller.attempt is None:
            return _save_nothing if body.checkpoint_data is None else partial(_warn_not_saved, task_id)
        return await self.check_progress(
            ReportedProgress(
                zone_id=call.zone_id,
                agent_id=call.params["id"],
                caller=call.caller,
                task_id=task_id,
                attempt_token=body.attempt_token,
                progress_percent=body.progress_percent,
                current_step=body.current_step,
                checkpoint_data=body.checkpoint_data,
                trace=call.trace,
            )
        )

    async def _task_feedback(self, call: Call, body: HeartbeatBody, agent: Agent) -> TaskFeedback:
        """Load feedback if the agent holds tasks, or the heartbeat has `taskIds` or `currentTaskId`."""
        task_ids = dict.fromkeys(body.task_ids or ())
        if body.current_task_id is not None:
            task_ids[body.current_task_id] = None
        if not task_ids and body.task_ids is None and not agent.held:
            return NO_FEEDBACK
        return await self.load_task_feedback(
            ReportedTasks(
                zone_id=call.zone_id,
                agent_id=call.params["id"],
                caller=call.caller,
                task_ids=tuple(task_ids),
                is_complete=body.task_ids is not None,
                holds_tasks=agent.held > 0,
            )
        )


async def _save_nothing() -> None:
    """The heartbeat has no report to store."""


async def _warn_not_saved(task_id: str) -> HeartbeatWarning:
    detail = "The checkpoint was not stored. Send the `attemptToken` that the claim returned."
    return HeartbeatWarning("attempt_token_required", detail, task_id)


def _show_command(call: Call) -> ShowAgent:
    return ShowAgent(zone_id=call.zone_id, agent_id=call.params["id"], caller=call.caller)


def _heartbeat_command(call: Call, body: HeartbeatBody) -> RecordHeartbeat:
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


REGISTER_DESCRIPTION = (
    "Creates an agent (201) or changes it (200); an omitted field keeps its value. A registration counts as a "
    "heartbeat. A terminated agent starts again with defaults. A process sends a new `runId` when it starts to work as "
    "the agent. Tasks that the agent still holds from its previous process are then retried at once. A token of an "
    "agent can change only that agent and cannot add capabilities."
)
HEARTBEAT_DESCRIPTION = (
    "Reports liveness, progress and a checkpoint, and returns cancellations, in one call. The response lists which of "
    "the named tasks the agent must stop (`cancel`), which were paused (`pause`), warnings about any of its tasks, and "
    "the seconds until the next heartbeat (`next`). A heartbeat revives a stale agent, but it does not get back the "
    "attempts that were aborted. With the token of an ended attempt (the task was canceled, paused or finished, or is "
    "waiting for its next attempt) the heartbeat counts, the report on the task is ignored, and a warning "
    "`stale_attempt` gives the reason. If another attempt is running, the request is refused (409). A refused request "
    "changes nothing."
)
TERMINATE_DESCRIPTION = (
    "Terminates the agent at once and aborts its attempts. If `graceful`, the agent gets no new tasks and is "
    "terminated after its last one. A repeated request changes nothing. A member of a fleet cannot be terminated here; "
    "deregister it in its fleet."
)
ISSUE_DESCRIPTION = (
    "Issues a token of the server's own issuer. It acts only for this agent, with role AGENT, until it expires or the "
    "agent is terminated. An agent that is registered again after its termination needs a new token. With an "
    "`attemptToken`, requests about that attempt need no separate attempt token."
)


def routes(handlers: AgentHandlers) -> list[Route]:
    base_path, agent_path = "/api/v1/agents", "/api/v1/agents/{id}"
    tags = ("agents",)
    not_found_errors = ("agent_not_found",)
    return [
        Route(
            "PUT", agent_path, handlers.register, "Register an agent", LIFECYCLE, body=RegisterBody, status=201,
            response=AgentView,
            errors=("unknown_launcher", "agent_required", "capabilities_not_allowed", *not_found_errors, "zone_ended"),
            tags=tags, description=REGISTER_DESCRIPTION, permission="agents.register",
        ),
        Route(
            "GET", base_path, handlers.list_agents, "List agents", LIFECYCLE, query=ListAgentsQuery, response=AgentList,
            errors=("invalid_cursor",), tags=tags, permission="agents.read",
        ),
        Route(
            "GET", agent_path, handlers.show, "Show an agent", LIFECYCLE, response=AgentView,
            errors=not_found_errors, tags=tags, permission="agents.read",
        ),
        Route(
            "GET", f"{agent_path}/health", handlers.show_health, "Show the health of an agent", LIFECYCLE,
            response=HealthView, errors=not_found_errors, tags=tags, permission="agents.read",
        ),
        Route(
            "POST", f"{agent_path}/heartbeat", handlers.heartbeat, "Send a heartbeat for an agent", LIFECYCLE,
            body=HeartbeatBody, response=HeartbeatView, tags=tags, description=HEARTBEAT_DESCRIPTION,
            permission="agents.beat", body_bytes_max=HEARTBEAT_BYTES_MAX,
            errors=(*not_found_errors, "agent_required", "agent_terminated", "metadata_too_large", "task_not_found",
                    "stale_attempt", "field_too_large", "reserved_key"),
        ),
        Route(
            "POST", f"{agent_path}/terminate", handlers.terminate, "Terminate an agent", LIFECYCLE, body=TerminateBody,
            response=AgentView, errors=(*not_found_errors, "agent_in_fleet"), tags=tags,
            description=TERMINATE_DESCRIPTION, permission="agents.terminate",
        ),
        Route(
            "POST", f"{agent_path}/token", handlers.issue_token, "Issue a token for an agent", LIFECYCLE,
            body=TokenBody, response=TokenView, status=201, tags=tags,
            errors=(*not_found_errors, "agent_terminated", "zone_ended"), description=ISSUE_DESCRIPTION,
            permission="agents.token",
        ),
    ]  # fmt: skip
