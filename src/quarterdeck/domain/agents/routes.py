"""The route table of agents."""

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
    METADATA_MAX,
    Agent,
    AgentAt,
    AgentFilter,
    AgentList,
    AgentRef,
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
"""Bytes: a checkpoint is as large as any JSON field of a task may be."""


class AgentTokenClaims(msgspec.Struct, frozen=True):
    """What a token shall say that is an agent's own."""

    zone_id: str
    agent_id: str
    client_id: str
    ttl_seconds: int
    attempt: str | None
    registered_at: Millis
    """When the agent was registered: a token is good for that registration alone."""


@dataclass(frozen=True, slots=True)
class AgentLanes:
    """Where the handlers hand in what is asked of them."""

    register: Callable[[Register], Awaitable[RegisterResult]]
    record_heartbeat: Callable[[RecordHeartbeat], Awaitable[HeartbeatResult]]
    refresh_status: Callable[[RefreshStatus], Awaitable[AgentAt]]
    terminate: Callable[[Terminate], Awaitable[AgentAt]]
    issue_token: Callable[[IssueToken], Awaitable[IssueTokenResult]]
    show: Callable[[AgentRef], Awaitable[AgentAt]]


@dataclass(frozen=True, slots=True)
class AgentHandlers:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    lanes: AgentLanes
    mint_token: Callable[[AgentTokenClaims], str]
    """Signs a token: keys are the shell's."""
    load_task_feedback: Callable[[ReportedTasks], Awaitable[TaskFeedback]]
    """What an agent must know of its tasks. Tasks are above agents, so the composition root lends this."""
    check_progress: Callable[[ReportedProgress], Awaitable[SaveProgress]]
    """Looks at what a heartbeat says of its current task, and raises what is wrong with it: nothing is changed yet."""

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
        return rules.view((await self.lanes.show(_agent_ref(call))).agent)

    async def show_health(self, call: Call) -> HealthView:
        ref = _agent_ref(call)
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
        found = await self.engine.read(lambda tx: operations.list_agents(tx, filters), zones=zones_of([filters]))
        count, last = paging.trim_page([agent.id for agent in found], query.limit)
        cursor = paging.encode(LISTING, last) if last else None
        body = AgentList([rules.view(agent) for agent in found[:count]], cursor)
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
        # Nobody between the two ends may keep the one answer that holds it.
        return Reply(TokenView(agent_id, token, iso(result.expires_at)), 201, [("cache-control", "no-store")])

    # -- heartbeats ----------------------------------------------------------------------------------------------

    async def heartbeat(self, call: Call) -> HeartbeatView:
        body = call.body
        assert isinstance(body, HeartbeatBody)
        command = _heartbeat_command(call, body)
        # What can be refused is refused before anything is changed. The agent's own part is decided first, and what it
        # says of a task is kept only where it was heard of.
        save_progress = await self._check_progress(call, body)
        result = await self.lanes.record_heartbeat(command)
        if result.needs_refresh:
            # Before the answer: whoever has it may count on what follows from it.
            await self.lanes.refresh_status(
                RefreshStatus(zone_id=command.zone_id, agent_id=command.agent_id, trace=call.trace)
            )
        warning = await save_progress()
        feedback = await self._task_feedback(call, body, result.agent)
        warnings = (*([warning] if warning else []), *feedback.warnings)
        if result.agent.draining:
            warnings += (HeartbeatWarning("agent_draining", "It takes no tasks any more, and ends with its last."),)
        return HeartbeatView(feedback.cancel, feedback.pause, warnings, rules.next_heartbeat_seconds(result.agent))

    async def _check_progress(self, call: Call, body: HeartbeatBody) -> SaveProgress:
        """What is said of the current task goes to that task, under its attempt's token."""
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
        """Asked only of an agent that has tasks, names some, or says that there are none: many do neither."""
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
    """Nothing is said of a task."""


async def _warn_not_saved(task_id: str) -> HeartbeatWarning:
    detail = "The checkpoint was not kept: that needs the attemptToken that came with the task."
    return HeartbeatWarning("attempt_token_required", detail, task_id)


def _agent_ref(call: Call) -> AgentRef:
    return AgentRef(zone_id=call.zone_id, agent_id=call.params["id"], caller=call.caller)


def _heartbeat_command(call: Call, body: HeartbeatBody) -> RecordHeartbeat:
    metadata = msgspec.json.encode(body.metadata)
    if len(metadata) > METADATA_MAX:
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
    "Makes it (201), or changes what is said of it (200): what is not said stays. To register is to be heard of; one "
    "that was terminated begins anew. A process that begins to work as an agent says so by a `runId` of its own: what "
    "the agent held before is lost, and goes to another attempt at once. An agent's own token changes its own agent "
    "alone, and gives it no capability that it has not."
)
HEARTBEAT_DESCRIPTION = (
    "Liveness, progress, checkpoint and cancellation in one call. What an agent must know is in the answer: which of "
    "the tasks that it names it is to stop (`cancel`) or were paused (`pause`), warnings about all it has, and in how "
    "many seconds to be heard of again. A heartbeat of an agent that was lost brings it back; tasks that were taken "
    "from it stay taken. With the token of an attempt that is over (its task was canceled, paused, finished, or waits "
    "for another) the heartbeat counts, what it says of the task is not kept, and a warning `stale_attempt` says why. "
    "While another attempt has the task, such a token is refused (409), and nothing is changed. Whatever is refused "
    "has changed nothing."
)
TERMINATE_DESCRIPTION = (
    "At once, and its tasks are taken from it; or `graceful`: it takes no new ones, and ends with the last it holds. "
    "Repeated it changes nothing. A member of a fleet is not ended here: it is deregistered there."
)
TOKEN_DESCRIPTION = (
    "A token of the server's own issuer that acts as this agent alone, in the role AGENT, while the agent is not "
    "terminated: one that is registered again needs another. With an `attemptToken` it stands in for that."
)


def routes(handlers: AgentHandlers) -> list[Route]:
    base, one = "/api/v1/agents", "/api/v1/agents/{id}"
    tags = ("agents",)
    missing = ("agent_not_found",)
    return [
        Route(
            "PUT", one, handlers.register, "Register an agent", LIFECYCLE, body=RegisterBody, status=201, response=AgentView,
            errors=("unknown_launcher", "agent_required", "capabilities_not_allowed", *missing, "zone_ended"),
            tags=tags, description=REGISTER_DESCRIPTION, permission="agents.register",
        ),
        Route(
            "GET", base, handlers.list_agents, "List agents", LIFECYCLE, query=ListAgentsQuery, response=AgentList,
            errors=("invalid_cursor",), tags=tags, permission="agents.read",
        ),
        Route(
            "GET", one, handlers.show, "Show an agent", LIFECYCLE, response=AgentView, errors=missing, tags=tags,
            permission="agents.read",
        ),
        Route(
            "GET", f"{one}/health", handlers.show_health, "Show how an agent fares", LIFECYCLE, response=HealthView,
            errors=missing, tags=tags, permission="agents.read",
        ),
        Route(
            "POST", f"{one}/heartbeat", handlers.heartbeat, "Tell that an agent lives", LIFECYCLE, body=HeartbeatBody,
            response=HeartbeatView, tags=tags, description=HEARTBEAT_DESCRIPTION, permission="agents.beat", body_bytes_max=HEARTBEAT_BYTES_MAX,
            errors=(*missing, "agent_required", "agent_terminated", "metadata_too_large", "task_not_found",
                      "stale_attempt", "field_too_large", "reserved_key"),
        ),
        Route(
            "POST", f"{one}/terminate", handlers.terminate, "Terminate an agent", LIFECYCLE, body=TerminateBody,
            response=AgentView, errors=(*missing, "agent_in_fleet"), tags=tags, description=TERMINATE_DESCRIPTION,
            permission="agents.terminate",
        ),
        Route(
            "POST", f"{one}/token", handlers.issue_token, "Make a token for an agent", LIFECYCLE, body=TokenBody,
            response=TokenView, status=201, errors=(*missing, "agent_terminated", "zone_ended"), tags=tags,
            description=TOKEN_DESCRIPTION, permission="agents.token",
        ),
    ]  # fmt: skip
