"""Routes for agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.clock import iso
from quarterdeck.core.paging import CamelPage, Listing
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.domain.agents.model import (
    Agent,
    AgentFilter,
    AgentResult,
    AgentTokenClaims,
    AgentView,
    HealthView,
    IssueToken,
    IssueTokenResult,
    ListAgentsQuery,
    MintAgentToken,
    Register,
    RegisterBody,
    RegisterResult,
    ShowAgent,
    Terminate,
    TerminateBody,
    TokenBody,
    TokenView,
)
from quarterdeck.domain.agents.operations import reads
from quarterdeck.domain.agents.rules import registration, views
from quarterdeck.engine.transaction import Engine

LISTING = Listing[Agent]("agents")


@dataclass(frozen=True, slots=True)
class AgentLanes:
    """The lanes that the handlers submit to."""

    register: Callable[[Register], Awaitable[RegisterResult]]
    terminate: Callable[[Terminate], Awaitable[AgentResult]]
    issue_token: Callable[[IssueToken], Awaitable[IssueTokenResult]]
    show: Callable[[ShowAgent], Awaitable[AgentResult]]


@dataclass(frozen=True, slots=True)
class AgentHandlers:
    engine: Engine
    lanes: AgentLanes
    mint_token: MintAgentToken

    async def register(self, call: Call[RegisterBody, None]) -> Reply[AgentView]:
        body = call.body
        result = await self.lanes.register(
            Register(
                **call.caller_fields,
                agent_id=call.params["id"],
                update=registration.update_from_body(body),
                run_id=body.run_id,
            )
        )
        return Reply(views.view(result.agent), 201 if result.created else 200)

    async def show(self, call: Call[None, None]) -> AgentView:
        return views.view((await self.lanes.show(_show_command(call))).agent)

    async def show_health(self, call: Call[None, None]) -> HealthView:
        ref = _show_command(call)
        return views.health_view(await self.engine.read(lambda tx: reads.load_history(tx, ref), zones=call.zones))

    async def list_agents(self, call: Call[None, ListAgentsQuery]) -> Reply[CamelPage[AgentView]]:
        query = call.query
        filters = AgentFilter(
            zone_id=call.zone_id,
            limit=query.limit + 1,
            caller=call.caller,
            after=LISTING.start_key(query),
            status=query.status,
            capability=query.capability,
            coordinator_enabled=query.coordinator_enabled,
        )
        agents = await self.engine.read(lambda tx: reads.list_agents(tx, filters), zones=call.zones)
        return LISTING.reply(call, agents, views.view, CamelPage)

    async def terminate(self, call: Call[TerminateBody, None]) -> AgentView:
        body = call.body
        result = await self.lanes.terminate(
            Terminate(**call.caller_fields, agent_id=call.params["id"], reason=body.reason, graceful=body.graceful)
        )
        return views.view(result.agent)

    async def issue_token(self, call: Call[TokenBody, None]) -> Reply[TokenView]:
        body = call.body
        agent_id = call.params["id"]
        result = await self.lanes.issue_token(
            IssueToken(
                **call.caller_fields,
                agent_id=agent_id,
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


def _show_command(call: AnyCall) -> ShowAgent:
    return ShowAgent(zone_id=call.zone_id, agent_id=call.params["id"], caller=call.caller)


REGISTER_DESCRIPTION = (
    "Creates an agent (201) or changes it (200); an omitted field keeps its value. A registration counts as a "
    "heartbeat. A terminated agent starts again with defaults. A process sends a new `runId` when it starts to work as "
    "the agent. Tasks that the agent still holds from its previous process are then retried at once. A token of an "
    "agent can change only that agent and cannot add capabilities."
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
            "PUT", agent_path, handlers.register, "Register an agent", LIFECYCLE, status=201,
            errors=("unknown_launcher", "agent_required", "capabilities_not_allowed", *not_found_errors, "zone_ended"),
            tags=tags, description=REGISTER_DESCRIPTION, permission="agents.register",
        ),
        Route(
            "GET", base_path, handlers.list_agents, "List agents", LIFECYCLE, errors=("invalid_cursor",), tags=tags,
            permission="agents.read",
        ),
        Route(
            "GET", agent_path, handlers.show, "Show an agent", LIFECYCLE, errors=not_found_errors, tags=tags,
            permission="agents.read",
        ),
        Route(
            "GET", f"{agent_path}/health", handlers.show_health, "Show the health of an agent", LIFECYCLE,
            errors=not_found_errors, tags=tags, permission="agents.read",
        ),
        Route(
            "POST", f"{agent_path}/terminate", handlers.terminate, "Terminate an agent", LIFECYCLE,
            errors=(*not_found_errors, "agent_in_fleet"), tags=tags, description=TERMINATE_DESCRIPTION,
            permission="agents.terminate",
        ),
        Route(
            "POST", f"{agent_path}/token", handlers.issue_token, "Issue a token for an agent", LIFECYCLE, status=201,
            tags=tags, errors=(*not_found_errors, "agent_terminated", "zone_ended"), description=ISSUE_DESCRIPTION,
            permission="agents.token",
        ),
    ]  # fmt: skip
