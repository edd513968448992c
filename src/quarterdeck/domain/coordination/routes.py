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
from quarterdeck.domain.agents.model import Shown
from quarterdeck.domain.agents.operations.authorization import require_power
from quarterdeck.domain.coordination.coordinator import COUNTED_MAX, Coordinator
from quarterdeck.domain.coordination.health import CoordinationHealth
from quarterdeck.domain.coordination.model import (
    LEASE,
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
from quarterdeck.domain.tasks.model.commands import Ask
from quarterdeck.domain.tasks.operations import coordinator_queries, strategies
from quarterdeck.domain.tasks.operations.strategies import PutStrategy, Ranked
from quarterdeck.domain.zones import operations as zones, rules as zone_rules
from quarterdeck.engine import event_log, leases
from quarterdeck.engine.event_log import LAST, EventFilter
from quarterdeck.engine.leader_loop import LEASE_MS
from quarterdeck.engine.transaction import Engine, Tx

POWER = "coordinator.use"
LISTING = "coordinator-logs"
ZONES_MAX = 1_000
"""That are counted for an administrator."""


@dataclass(frozen=True, slots=True)
class CoordinationDesk:
    """What the handlers need, handed over by the composition root."""

    engine: Engine
    everywhere: Engine
    coordinator: Coordinator
    health: CoordinationHealth
    instance_id: str
    rank: Callable[[PutStrategy], Awaitable[Ranked]]
    launchers: tuple[str, ...]

    async def show_health(self, call: Call) -> Reply:
        found = await self.health.view()
        return Reply(found, 503 if found.status == "unhealthy" else 200)

    async def status(self, call: Call) -> StatusView:
        query = call.query
        assert isinstance(query, StatusQuery)
        zone_id = await self._allowed(call, query.zone_id)

        async def read(tx: Tx) -> StatusView:
            wanted = [zone_id] if zone_id is not None else [zone.id for zone in await zones.page(tx, "", ZONES_MAX)]
            lease = await leases.holder_of(tx, LEASE)
            return StatusView(
                active=self.health.is_active,
                instance_id=lease.holder if lease is not None and lease.holder else self.instance_id,
                zones=wanted,
                last_heartbeat=None if lease is None or not lease.term else iso(lease.expires_at - LEASE_MS),
                stats=await _stats(tx, wanted),
                launchers=self.launchers,
            )

        return await self.everywhere.read(read)

    async def recover(self, call: Call) -> RecoverView:
        body = call.body
        assert isinstance(body, RecoverBody)
        zone_id = await self._allowed(call, body.zone_id)
        seen, looked_at, in_cycles = await self.coordinator.recover(zone_id)
        return RecoverView(
            looked_at, len(seen.timed_out), len(seen.overdue), len(seen.due), len(seen.spreading), in_cycles
        )

    async def logs(self, call: Call) -> Reply:
        query = call.query
        assert isinstance(query, LogsQuery)
        zone_id = await self._allowed(call, query.zone_id) or call.zone
        before = _position(query.cursor) if query.cursor else LAST
        wanted = EventFilter(zone_id, limit=query.limit, types=log_view.types_of(query.level))
        found, following = await self.everywhere.read(lambda tx: event_log.newest(tx, wanted, before))
        views = [log_view.view(event) for event in found]
        shown = [view for view in views if query.level in (None, view.level)]
        cursor = None if following is None else paging.encode(LISTING, str(following))
        return Reply(CoordinatorLogs(shown, cursor), 200, call.link_to_next(cursor))

    async def strategy(self, call: Call) -> StrategyView:
        ask = Ask(zone_id=call.zone, caller=call.caller)
        places = {call.zone, call.caller.zone_id}
        return StrategyView(await self.engine.read(lambda tx: strategies.strategy_of(tx, ask), zones=places))

    async def put_strategy(self, call: Call) -> StrategyView:
        body = call.body
        assert isinstance(body, StrategyBody)
        ask = PutStrategy(zone_id=call.zone, caller=call.caller, trace=call.trace, strategy=body.strategy)
        return StrategyView((await self.rank(ask)).strategy)

    async def _allowed(self, call: Call, named: str | None) -> str | None:
        """The zone that is asked about, if the caller may coordinate it; None is all of them, for an administrator.
        Nothing is read across zones before this has been asked."""
        caller = call.caller
        zone_id = named if named is not None else None if caller.is_admin else call.zone
        if zone_id is not None and zone_id != call.zone and not caller.is_admin:
            raise zone_rules.zone_hidden(zone_id)
        places = {call.zone, caller.zone_id, *([] if zone_id is None else [zone_id])}

        async def ask(tx: Tx) -> None:
            await require_power(tx, caller, call.zone, POWER)
            if zone_id is not None and not await zones.exists(tx, zone_id):
                raise zone_rules.zone_hidden(zone_id)

        await self.engine.read(ask, zones=places)
        return zone_id


async def _stats(tx: Tx, wanted: list[str]) -> StatsView:
    tasks = await coordinator_queries.counted(tx, wanted, COUNTED_MAX)
    healthy = stale = 0
    for zone_id in wanted:
        counts = await agents.counted(tx, zone_id)
        healthy += counts.get(Shown.IDLE, 0) + counts.get(Shown.WORKING, 0)
        stale += counts.get(Shown.ERROR, 0)
    return StatsView(tasks.ready, tasks.held, healthy, stale)


def _position(cursor: str) -> int:
    after = paging.decode(LISTING, cursor)
    if not after.isascii() or not after.isdigit() or int(after) > LAST:
        raise Invalid("invalid_cursor", "This cursor was not given out by this list.", field="cursor")
    return int(after)


def routes(desk: CoordinationDesk) -> list[Route]:
    base, tags, hidden = "/api/v1/coordinator", ("coordinator",), ("workspace_not_found",)
    return [
        Route(
            "GET", base + "/status", desk.status, "Whether tasks and agents are looked after", LIFECYCLE,
            query=StatusQuery, answer=StatusView, refusals=hidden, tags=tags, power=POWER,
        ),
        Route(
            "POST", base + "/recover", desk.recover, "Look for what is lost, now", LIFECYCLE, body=RecoverBody,
            answer=RecoverView, refusals=hidden, tags=tags, power=POWER,
            description="Agents that are silent, attempts whose time is over, backoffs that have ended, failures that "
            "some have not heard of, tasks that wait for each other: what the coordinator does by itself, at once.",
        ),
        Route(
            "GET", base + "/logs", desk.logs, "What went wrong, newest first", LIFECYCLE, query=LogsQuery,
            answer=CoordinatorLogs, refusals=(*hidden, "invalid_cursor"), tags=tags, power=POWER,
            description="Events of tasks and agents, as lines. A page may be short, or empty, and go on all the same: "
            "`nextCursor` says so.",
        ),
        Route(
            "GET", base + "/strategy", desk.strategy, "In what order tasks are handed out", LIFECYCLE,
            answer=StrategyView, tags=tags, power=POWER,
        ),
        Route(
            "PUT", base + "/strategy", desk.put_strategy, "Choose in what order tasks are handed out", LIFECYCLE,
            body=StrategyBody, answer=StrategyView, tags=tags, power=POWER,
            description="It counts at once for tasks that are made from then on; those that wait are ranked anew in "
            "the background, soon.",
        ),
        Route(
            "GET", "/health/coordinator", desk.show_health, "How coordination fares, and what it needs", None,
            answer=CoordinatorHealth, tags=("server",),
            description="503 with the same body if it does not go on: then tasks are late, and not lost.",
        ),
    ]  # fmt: skip
