"""The route table of coordination."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core import paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.clock import iso
from quarterdeck.core.errors import Invalid
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import AgentStatus
from quarterdeck.domain.agents.operations.authorization import require_permission
from quarterdeck.domain.coordination.coordinator import COUNT_MAX, Coordinator
from quarterdeck.domain.coordination.health import HealthReporter
from quarterdeck.domain.coordination.model import (
    LEASE_NAME,
    CoordinatorHealth,
    CoordinatorLogs,
    LogsQuery,
    RecoverBody,
    RecoverView,
    StatsView,
    StatusQuery,
    StatusView,
    StrategyBody,
    StrategyView,
)
from quarterdeck.domain.coordination.rules import log_view
from quarterdeck.domain.tasks.model.commands import BaseCommand
from quarterdeck.domain.tasks.operations import coordinator_queries, strategies
from quarterdeck.domain.tasks.operations.strategies import PutStrategy, RankingState
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.engine import event_log, leases
from quarterdeck.engine.event_log import POSITION_MAX, EventFilter
from quarterdeck.engine.leader_loop import LEASE_MS
from quarterdeck.engine.transaction import Engine, Transaction

PERMISSION = "coordinator.use"
LISTING = "coordinator-logs"
ZONES_MAX = 1_000
"""That are counted for an administrator."""


@dataclass(frozen=True, slots=True)
class CoordinatorHandlers:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    cross_zone_engine: Engine
    coordinator: Coordinator
    health: HealthReporter
    instance_id: str
    submit_strategy: Callable[[PutStrategy], Awaitable[RankingState]]
    launchers: tuple[str, ...]

    async def get_health(self, call: Call) -> Reply:
        view = await self.health.build_view()
        return Reply(view, 503 if view.status == "unhealthy" else 200)

    async def get_status(self, call: Call) -> StatusView:
        query = call.query
        assert isinstance(query, StatusQuery)
        zone_id = await self._authorized_zone(call, query.zone_id)

        async def read(tx: Transaction) -> StatusView:
            zone_ids = (
                [zone_id] if zone_id is not None else [zone.id for zone in await zones.list_zones(tx, "", ZONES_MAX)]
            )
            lease = await leases.read_holder(tx, LEASE_NAME)
            return StatusView(
                active=self.health.is_active,
                instance_id=lease.holder if lease is not None and lease.holder else self.instance_id,
                zones=zone_ids,
                last_heartbeat=None if lease is None or not lease.term else iso(lease.expires_at - LEASE_MS),
                stats=await _stats(tx, zone_ids),
                launchers=self.launchers,
            )

        return await self.cross_zone_engine.read(read)

    async def recover(self, call: Call) -> RecoverView:
        body = call.body
        assert isinstance(body, RecoverBody)
        zone_id = await self._authorized_zone(call, body.zone_id)
        to_recover, agents_checked, in_cycles = await self.coordinator.recover(zone_id)
        return RecoverView(
            agents_checked,
            len(to_recover.timed_out),
            len(to_recover.overdue),
            len(to_recover.due),
            len(to_recover.dependents_pending),
            in_cycles,
        )

    async def list_logs(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, LogsQuery)
        zone_id = await self._authorized_zone(call, query.zone_id) or call.zone_id
        before = _position(query.cursor) if query.cursor else POSITION_MAX
        filters = EventFilter(zone_id, limit=query.limit, types=log_view.event_types(query.level))
        found, next_position = await self.cross_zone_engine.read(lambda tx: event_log.read_newest(tx, filters, before))
        views = [log_view.to_view(event) for event in found]
        selected = [view for view in views if query.level in (None, view.level)]
        cursor = None if next_position is None else paging.encode(LISTING, str(next_position))
        return Reply(CoordinatorLogs(selected, cursor), 200, call.next_link(cursor))

    async def get_strategy(self, call: Call) -> StrategyView:
        command = BaseCommand(zone_id=call.zone_id, caller=call.caller)
        zone_ids = {call.zone_id, call.caller.zone_id}
        return StrategyView(await self.engine.read(lambda tx: strategies.read_strategy(tx, command), zones=zone_ids))

    async def put_strategy(self, call: Call) -> StrategyView:
        body = call.body
        assert isinstance(body, StrategyBody)
        command = PutStrategy(zone_id=call.zone_id, caller=call.caller, trace=call.trace, strategy=body.strategy)
        return StrategyView((await self.submit_strategy(command)).strategy)

    async def _authorized_zone(self, call: Call, requested: str | None) -> str | None:
        """The zone that is asked about, if the caller may coordinate it; None is all of them, for an administrator.
        Nothing is read across zones before this has been asked."""
        caller = call.caller
        zone_id = requested if requested is not None else None if caller.is_admin else call.zone_id
        if zone_id is not None and zone_id != call.zone_id and not caller.is_admin:
            raise zone_rules.workspace_not_found(zone_id)
        zone_ids = {call.zone_id, caller.zone_id, *([] if zone_id is None else [zone_id])}

        async def authorize(tx: Transaction) -> None:
            await require_permission(tx, caller, call.zone_id, PERMISSION)
            if zone_id is not None and not await zones.exists(tx, zone_id):
                raise zone_rules.workspace_not_found(zone_id)

        await self.engine.read(authorize, zones=zone_ids)
        return zone_id


async def _stats(tx: Transaction, zone_ids: list[str]) -> StatsView:
    tasks = await coordinator_queries.count_tasks(tx, zone_ids, COUNT_MAX)
    healthy = stale = 0
    for zone_id in zone_ids:
        counts = await agents.count_by_status(tx, zone_id)
        healthy += counts.get(AgentStatus.IDLE, 0) + counts.get(AgentStatus.WORKING, 0)
        stale += counts.get(AgentStatus.ERROR, 0)
    return StatsView(tasks.ready, tasks.held, healthy, stale)


def _position(cursor: str) -> int:
    after = paging.decode(LISTING, cursor)
    if not after.isascii() or not after.isdigit() or int(after) > POSITION_MAX:
        raise Invalid("invalid_cursor", "This cursor was not given out by this list.", field="cursor")
    return int(after)


def routes(handlers: CoordinatorHandlers) -> list[Route]:
    base, tags, hidden = "/api/v1/coordinator", ("coordinator",), ("workspace_not_found",)
    return [
        Route(
            "GET", base + "/status", handlers.get_status, "Whether tasks and agents are looked after", LIFECYCLE,
            query=StatusQuery, response=StatusView, errors=hidden, tags=tags, permission=PERMISSION,
        ),
        Route(
            "POST", base + "/recover", handlers.recover, "Look for what is lost, now", LIFECYCLE, body=RecoverBody,
            response=RecoverView, errors=hidden, tags=tags, permission=PERMISSION,
            description="Agents that are silent, attempts whose time is over, backoffs that have ended, failures that "
            "some have not heard of, tasks that wait for each other: what the coordinator does by itself, at once.",
        ),
        Route(
            "GET", base + "/logs", handlers.list_logs, "What went wrong, newest first", LIFECYCLE, query=LogsQuery,
            response=CoordinatorLogs, errors=(*hidden, "invalid_cursor"), tags=tags, permission=PERMISSION,
            description="Events of tasks and agents, as lines. A page may be short, or empty, and go on all the same: "
            "`nextCursor` says so.",
        ),
        Route(
            "GET", base + "/strategy", handlers.get_strategy, "In what order tasks are handed out", LIFECYCLE,
            response=StrategyView, tags=tags, permission=PERMISSION,
        ),
        Route(
            "PUT", base + "/strategy", handlers.put_strategy, "Choose in what order tasks are handed out", LIFECYCLE,
            body=StrategyBody, response=StrategyView, tags=tags, permission=PERMISSION,
            description="It counts at once for tasks that are made from then on; those that wait are ranked anew in "
            "the background, soon.",
        ),
        Route(
            "GET", "/health/coordinator", handlers.get_health, "How coordination fares, and what it needs", None,
            response=CoordinatorHealth, tags=("server",),
            description="503 with the same body if it does not go on: then tasks are late, and not lost.",
        ),
    ]  # fmt: skip
