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
from quarterdeck.domain.agents.heartbeat_port import Keep, Reported, Tells, Warned, Working
from quarterdeck.domain.agents.model import (
    METADATA_MAX,
    Agent,
    AgentFilter,
    AgentList,
    AgentRef,
    AgentView,
    Beat,
    Beaten,
    HealthView,
    HeartbeatBody,
    HeartbeatView,
    Issued,
    IssueToken,
    ListAgentsQuery,
    Look,
    Register,
    RegisterBody,
    Registered,
    Standing,
    Terminate,
    TerminateBody,
    TokenBody,
    TokenView,
)
from quarterdeck.domain.agents.rules import errors
from quarterdeck.engine.lanes import zones_of
from quarterdeck.engine.transaction import Engine

LISTING = "agents"
NOTHING = Tells()
HEARTBEAT_MAX = 2 * 1024 * 1024
"""Bytes: a checkpoint is as large as any JSON field of a task may be."""


class Mint(msgspec.Struct, frozen=True):
    """What a token shall say that is an agent's own."""

    zone_id: str
    agent_id: str
    client_id: str
    ttl_seconds: int
    attempt: str | None
    since: Millis
    """When the agent was registered: a token is good for that registration alone."""


@dataclass(frozen=True, slots=True)
class AgentLanes:
    """Where the handlers hand in what is asked of them."""

    register: Callable[[Register], Awaitable[Registered]]
    beat: Callable[[Beat], Awaitable[Beaten]]
    look: Callable[[Look], Awaitable[Standing]]
    terminate: Callable[[Terminate], Awaitable[Standing]]
    issue: Callable[[IssueToken], Awaitable[Issued]]
    show: Callable[[AgentRef], Awaitable[Standing]]


@dataclass(frozen=True, slots=True)
class AgentDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    lanes: AgentLanes
    mint: Callable[[Mint], str]
    """Signs a token: keys are the shell's."""
    tells: Callable[[Working], Awaitable[Tells]]
    """What an agent must know of its tasks. Tasks are above agents, so the composition root lends this."""
    hears: Callable[[Reported], Awaitable[Keep]]
    """Looks at what a heartbeat says of its current task, and raises what is wrong with it: nothing is changed yet."""

    async def register(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, RegisterBody)
        done = await self.lanes.register(
            Register(
                zone_id=call.zone,
                agent_id=call.params["id"],
                caller=call.caller,
                trace=call.trace,
                said=rules.said_of(body),
                run_id=body.run_id,
            )
        )
        return Reply(rules.view(done.agent), 201 if done.created else 200)

    async def show(self, call: Call) -> AgentView:
        return rules.view((await self.lanes.show(_ref(call))).agent)

    async def health(self, call: Call) -> HealthView:
        ref = _ref(call)
        watched = await self.engine.read(lambda tx: operations.watch(tx, ref), zones=zones_of([ref]))
        return rules.health_view(watched)

    async def list_all(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, ListAgentsQuery)
        wanted = AgentFilter(
            zone_id=call.zone,
            limit=query.limit + 1,
            caller=call.caller,
            after=paging.decode(LISTING, query.cursor) if query.cursor else None,
            status=query.status,
            capability=query.capability,
            coordinator_enabled=query.coordinator_enabled,
        )
        found = await self.engine.read(lambda tx: operations.page(tx, wanted), zones=zones_of([wanted]))
        shown, last = paging.clip([agent.id for agent in found], query.limit)
        cursor = paging.encode(LISTING, last) if last else None
        body = AgentList([rules.view(agent) for agent in found[:shown]], cursor)
        return Reply(body, 200, call.link_to_next(cursor))

    async def terminate(self, call: Call) -> AgentView:
        body = call.body
        assert isinstance(body, TerminateBody)
        done = await self.lanes.terminate(
            Terminate(
                zone_id=call.zone,
                agent_id=call.params["id"],
                caller=call.caller,
                trace=call.trace,
                reason=body.reason,
                graceful=body.graceful,
            )
        )
        return rules.view(done.agent)

    async def token(self, call: Call) -> Reply:
        body = call.body
        assert isinstance(body, TokenBody)
        agent_id = call.params["id"]
        issued = await self.lanes.issue(
            IssueToken(
                zone_id=call.zone,
                agent_id=agent_id,
                caller=call.caller,
                trace=call.trace,
                ttl_seconds=body.ttl_seconds,
                for_attempt=body.attempt_token is not None,
            )
        )
        token = self.mint(
            Mint(
                zone_id=call.zone,
                agent_id=agent_id,
                client_id=call.caller.client_id,
                ttl_seconds=body.ttl_seconds,
                attempt=body.attempt_token,
                since=issued.agent.created_at,
            )
        )
        # Nobody between the two ends may keep the one answer that holds it.
        return Reply(TokenView(agent_id, token, iso(issued.expires_at)), 201, [("cache-control", "no-store")])

    # -- heartbeats ----------------------------------------------------------------------------------------------

    async def heartbeat(self, call: Call) -> HeartbeatView:
        body = call.body
        assert isinstance(body, HeartbeatBody)
        beat = _beat(call, body)
        # What can be refused is refused before anything is changed. The agent's own part is decided first, and what it
        # says of a task is kept only where it was heard of.
        keep = await self._report(call, body)
        beaten = await self.lanes.beat(beat)
        if beaten.is_news:
            # Before the answer: whoever has it may count on what follows from it.
            await self.lanes.look(Look(zone_id=beat.zone_id, agent_id=beat.agent_id, trace=call.trace))
        unkept = await keep()
        tells = await self._tells(call, body, beaten.agent)
        warnings = (*([unkept] if unkept else []), *tells.warnings)
        if beaten.agent.draining:
            warnings += (Warned("agent_draining", "It takes no tasks any more, and ends with its last."),)
        return HeartbeatView(tells.cancel, tells.pause, warnings, rules.expected_within(beaten.agent))

    async def _report(self, call: Call, body: HeartbeatBody) -> Keep:
        """What is said of the current task goes to that task, under its attempt's token."""
        task_id = body.current_task_id
        if task_id is None:
            return _unsaid
        if body.attempt_token is None and call.caller.attempt is None:
            return _unsaid if body.checkpoint_data is None else partial(_unkept, task_id)
        return await self.hears(
            Reported(
                zone_id=call.zone,
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

    async def _tells(self, call: Call, body: HeartbeatBody, agent: Agent) -> Tells:
        """Asked only of an agent that has tasks, names some, or says that there are none: many do neither."""
        named = dict.fromkeys(body.task_ids or ())
        if body.current_task_id is not None:
            named[body.current_task_id] = None
        if not named and body.task_ids is None and not agent.held:
            return NOTHING
        return await self.tells(
            Working(
                zone_id=call.zone,
                agent_id=call.params["id"],
                caller=call.caller,
                task_ids=tuple(named),
                is_all=body.task_ids is not None,
                holds=agent.held > 0,
            )
        )


async def _unsaid() -> None:
    """Nothing is said of a task."""


async def _unkept(task_id: str) -> Warned:
    detail = "The checkpoint was not kept: that needs the attemptToken that came with the task."
    return Warned("attempt_token_required", detail, task_id)


def _ref(call: Call) -> AgentRef:
    return AgentRef(zone_id=call.zone, agent_id=call.params["id"], caller=call.caller)


def _beat(call: Call, body: HeartbeatBody) -> Beat:
    metadata = msgspec.json.encode(body.metadata)
    if len(metadata) > METADATA_MAX:
        raise errors.metadata_too_large()
    return Beat(
        zone_id=call.zone,
        agent_id=call.params["id"],
        caller=call.caller,
        status=body.status,
        current_task_id=body.current_task_id,
        progress_percent=body.progress_percent,
        current_step=body.current_step,
        memory_mb=_whole(body.memory_mb),
        cpu_percent=_whole(body.cpu_percent),
        metadata=metadata.decode(),
    )


def _whole(amount: float | None) -> int | None:
    return None if amount is None else round(amount)


REGISTERING = (
    "Makes it (201), or changes what is said of it (200): what is not said stays. To register is to be heard of; one "
    "that was terminated begins anew. A process that begins to work as an agent says so by a `runId` of its own: what "
    "the agent held before is lost, and goes to another attempt at once. An agent's own token changes its own agent "
    "alone, and gives it no capability that it has not."
)
BEATING = (
    "Liveness, progress, checkpoint and cancellation in one call. What an agent must know is in the answer: which of "
    "the tasks that it names it is to stop (`cancel`) or were paused (`pause`), warnings about all it has, and in how "
    "many seconds to be heard of again. A heartbeat of an agent that was lost brings it back; tasks that were taken "
    "from it stay taken. With the token of an attempt that is over (its task was canceled, paused, finished, or waits "
    "for another) the heartbeat counts, what it says of the task is not kept, and a warning `stale_attempt` says why. "
    "While another attempt has the task, such a token is refused (409), and nothing is changed. Whatever is refused "
    "has changed nothing."
)
TERMINATING = (
    "At once, and its tasks are taken from it; or `graceful`: it takes no new ones, and ends with the last it holds. "
    "Repeated it changes nothing. A member of a fleet is not ended here: it is deregistered there."
)
TOKENS = (
    "A token of the server's own issuer that acts as this agent alone, in the role AGENT, while the agent is not "
    "terminated: one that is registered again needs another. With an `attemptToken` it stands in for that."
)


def routes(desk: AgentDesk) -> list[Route]:
    base, one = "/api/v1/agents", "/api/v1/agents/{id}"
    tags = ("agents",)
    missing = ("agent_not_found",)
    return [
        Route(
            "PUT", one, desk.register, "Register an agent", LIFECYCLE, body=RegisterBody, status=201, answer=AgentView,
            refusals=("unknown_launcher", "agent_required", "capabilities_not_allowed", *missing, "zone_ended"),
            tags=tags, description=REGISTERING, power="agents.register",
        ),
        Route(
            "GET", base, desk.list_all, "List agents", LIFECYCLE, query=ListAgentsQuery, answer=AgentList,
            refusals=("invalid_cursor",), tags=tags, power="agents.read",
        ),
        Route(
            "GET", one, desk.show, "Show an agent", LIFECYCLE, answer=AgentView, refusals=missing, tags=tags,
            power="agents.read",
        ),
        Route(
            "GET", f"{one}/health", desk.health, "Show how an agent fares", LIFECYCLE, answer=HealthView,
            refusals=missing, tags=tags, power="agents.read",
        ),
        Route(
            "POST", f"{one}/heartbeat", desk.heartbeat, "Tell that an agent lives", LIFECYCLE, body=HeartbeatBody,
            answer=HeartbeatView, tags=tags, description=BEATING, power="agents.beat", body_max=HEARTBEAT_MAX,
            refusals=(*missing, "agent_required", "agent_terminated", "metadata_too_large", "task_not_found",
                      "stale_attempt", "field_too_large", "reserved_key"),
        ),
        Route(
            "POST", f"{one}/terminate", desk.terminate, "Terminate an agent", LIFECYCLE, body=TerminateBody,
            answer=AgentView, refusals=(*missing, "agent_in_fleet"), tags=tags, description=TERMINATING,
            power="agents.terminate",
        ),
        Route(
            "POST", f"{one}/token", desk.token, "Make a token for an agent", LIFECYCLE, body=TokenBody,
            answer=TokenView, status=201, refusals=(*missing, "agent_terminated", "zone_ended"), tags=tags,
            description=TOKENS, power="agents.token",
        ),
    ]  # fmt: skip
