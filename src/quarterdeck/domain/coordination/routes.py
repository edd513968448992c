"""Routes for the coordinator: status, health, recovery, log, strategy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from quarterdeck.core import paging
from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.core.clock import iso
from quarterdeck.core.command import Command
from quarterdeck.core.errors import Invalid
from quarterdeck.core.paging import CamelPage
from quarterdeck.core.routing import AnyCall, Call, Reply, Route
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.agents import operations as agents
from quarterdeck.domain.agents.model import AgentStatus
from quarterdeck.domain.coordination.background.coordinator import COUNT_MAX, Coordinator
from quarterdeck.domain.coordination.background.health_checks import HealthReporter
from quarterdeck.domain.coordination.model import (
    LEASE_NAME,
    CoordinatorHealth,
    CoordinatorLogView,
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
"""Maximum number of zones in a status of all zones."""


@dataclass(frozen=True, slots=True)
class CoordinatorHandlers:
    engine: Engine
    cross_zone_engine: Engine
    coordinator: Coordinator
    health: HealthReporter
    instance_id: str
    submit_strategy: Callable[[PutStrategy], Awaitable[RankingState]]
    launchers: tuple[str, ...]

    async def get_health(self, call: Call[None, None]) -> Reply[CoordinatorHealth]:
        view = await self.health.build_view()
        return Reply(view, 503 if view.status == "unhealthy" else 200)

    async def get_status(self, call: Call[None, StatusQuery]) -> StatusView:
        zone_id = await self._authorized_zone(call, call.query.zone_id)

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
                stats=await _read_stats(tx, zone_ids),
                launchers=self.launchers,
            )

        return await self.cross_zone_engine.read(read)

    async def recover(self, call: Call[RecoverBody, None]) -> RecoverView:
        zone_id = await self._authorized_zone(call, call.body.zone_id)
        to_recover, agents_checked, in_cycles = await self.coordinator.recover(zone_id)
        return RecoverView(
            agents_checked,
            len(to_recover.timed_out),
            len(to_recover.overdue),
            len(to_recover.due),
            len(to_recover.dependents_pending),
            in_cycles,
        )

    async def list_logs(self, call: Call[None, LogsQuery]) -> Reply[CamelPage[CoordinatorLogView]]:
        query = call.query
        zone_id = await self._authorized_zone(call, query.zone_id) or call.zone_id
        before = _decode_cursor(query.cursor) if query.cursor else POSITION_MAX
        filters = EventFilter(zone_id, limit=query.limit, types=log_view.event_types(query.level))
        events, next_position = await self.cross_zone_engine.read(lambda tx: event_log.read_newest(tx, filters, before))
        views = [log_view.to_view(event) for event in events]
        selected = [view for view in views if query.level in (None, view.level)]
        cursor = None if next_position is None else paging.encode(LISTING, str(next_position))
        return Reply(CamelPage(selected, cursor), headers=call.next_link(cursor))

    async def get_strategy(self, call: Call[None, None]) -> StrategyView:
        command = Command(zone_id=call.zone_id, caller=call.caller)
        return StrategyView(await self.engine.read(lambda tx: strategies.read_strategy(tx, command), zones=call.zones))

    async def put_strategy(self, call: Call[StrategyBody, None]) -> StrategyView:
        command = PutStrategy(**call.caller_fields, strategy=call.body.strategy)
        return StrategyView((await self.submit_strategy(command)).strategy)

    async def _authorized_zone(self, call: AnyCall, requested: str | None) -> str | None:
        """Return the requested zone, if the caller may use the coordinator there. None means all, for an administrator.

        Called before anything is read across zones.
        """
        caller = call.caller
        zone_id = requested if requested is not None else None if caller.is_admin else call.zone_id
        if zone_id is not None and zone_id != call.zone_id and not caller.is_admin:
            raise zone_rules.hidden_zone_problem(zone_id)
        zone_ids = call.zones | ({zone_id} if zone_id is not None else set())

        async def authorize(tx: Transaction) -> None:
            await access.require_permission(tx, caller, call.zone_id, PERMISSION)
            if zone_id is not None and not await zones.exists(tx, zone_id):
                raise zone_rules.hidden_zone_problem(zone_id)

        await self.engine.read(authorize, zones=zone_ids)
        return zone_id


async def _read_stats(tx: Transaction, zone_ids: list[str]) -> StatsView:
    tasks = await coordinator_queries.count_tasks(tx, zone_ids, COUNT_MAX)
    healthy = stale = 0
    for zone_id in zone_ids:
        counts = await agents.count_by_status(tx, zone_id)
        healthy += counts.get(AgentStatus.IDLE, 0) + counts.get(AgentStatus.WORKING, 0)
        stale += counts.get(AgentStatus.ERROR, 0)
    return StatsView(tasks.ready, tasks.held, healthy, stale)


def _decode_cursor(cursor: str) -> int:
    position = paging.decode(LISTING, cursor)
    if not position.isascii() or not position.isdigit() or int(position) > POSITION_MAX:
        raise Invalid(
            "invalid_cursor",
            "The cursor is not from this list. Use the `nextCursor` of its previous page.",
            field="cursor",
        )
    return int(position)


def routes(handlers: CoordinatorHandlers) -> list[Route]:
    base, tags, zone_errors = "/api/v1/coordinator", ("coordinator",), ("workspace_not_found",)
    return [
        Route(
            "GET", base + "/status", handlers.get_status, "Get the status of the coordinator", LIFECYCLE,
            errors=zone_errors, tags=tags, permission=PERMISSION,
        ),
        Route(
            "POST", base + "/recover", handlers.recover, "Run a recovery now", LIFECYCLE, errors=zone_errors, tags=tags,
            permission=PERMISSION,
            description="Runs one pass of the coordinator's background work now. It handles stale agents, timed-out "
            "attempts, ended backoffs, blocked dependents of ended tasks, and dependency cycles.",
        ),
        Route(
            "GET", base + "/logs", handlers.list_logs, "List events of tasks and agents, newest first", LIFECYCLE,
            errors=(*zone_errors, "invalid_cursor"), tags=tags,
            description="Lists only warnings and errors by default. A page may be short or empty even if more follow: "
            "continue as long as there is a `nextCursor`.", permission=PERMISSION,
        ),
        Route(
            "GET", base + "/strategy", handlers.get_strategy, "Get the order in which tasks are claimed", LIFECYCLE,
            tags=tags, permission=PERMISSION,
        ),
        Route(
            "PUT", base + "/strategy", handlers.put_strategy, "Set the order in which tasks are claimed", LIFECYCLE,
            tags=tags, permission=PERMISSION,
            description="Applies at once to new tasks. Waiting tasks are re-ranked in the background.",
        ),
        Route(
            "GET", "/health/coordinator", handlers.get_health, "Get the health of the coordinator", None,
            tags=("server",),
            description="Returns 503 with the same body if no coordinator is running. Tasks are then late, not lost.",
        ),
    ]  # fmt: skip
