"""The room of coordination: the coordinator's duty, whoever launches, and how both fare."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from quarterdeck.bus.redis.key_layout import KeyBoard
from quarterdeck.core.caller import Role
from quarterdeck.core.retry import Policy
from quarterdeck.domain.coordination import coordinator as coordinating, launchers, redis_signals, routes
from quarterdeck.domain.coordination.coordinator import Coordinator
from quarterdeck.domain.coordination.health import CONNECTED, REACHABLE, Check, CoordinationHealth
from quarterdeck.domain.coordination.launchers import Launching, Mandate
from quarterdeck.domain.coordination.metrics import Figures
from quarterdeck.domain.coordination.model import LEASE, CoordinationSettings, HttpLauncher, launchers_of
from quarterdeck.domain.coordination.routes import CoordinationDesk
from quarterdeck.domain.tasks import operations as tasks
from quarterdeck.domain.tasks.operations import strategies
from quarterdeck.engine.leader_loop import Duty, Pace
from quarterdeck.engine.outbound_http import OWN, Outward, Request
from quarterdeck.engine.secrets import Safe
from quarterdeck.http.auth import AuthSettings, Grant, LocalIssuer
from quarterdeck.http.metrics import BUCKETS, Histogram
from quarterdeck.runtime import Keel, Room, Runs
from quarterdeck.settings import environment
from quarterdeck.wiring.agents import AgentWatch
from quarterdeck.wiring.tasks import Tasks

RETRY = Policy(max_attempts=0, base_ms=5_000, multiplier=2.0, cap_ms=40_000, jitter=0.0)
"""5, 10, 20 and 40 seconds, as the seed has it."""
ALARM_SECONDS = 300.0
GAP_SECONDS = 0.1
"""Between two turns: every commit wakes, and most have nothing to do with this."""
GATEWAY_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Beside:
    """What of other rooms, and of the house, the coordinator acts through."""

    issuer: LocalIssuer
    safe: Safe
    tasks: Tasks
    agents: AgentWatch
    url: str | None
    """Where this server is reached from its own machine."""
    keys: KeyBoard | None = None
    """Redis, where it is configured."""


def launcher_names(keel: Keel) -> frozenset[str]:
    return frozenset(launchers_of(keel.settings.section(CoordinationSettings)))


def the_coordination(keel: Keel, beside: Beside, *, acts: bool) -> Room:
    """What only sweeps leaves coordinating to the servers: it must be told where they are, and launches nothing."""
    told, figures, took = keel.settings.section(CoordinationSettings), Figures(), Histogram(BUCKETS)
    outward = Outward(OWN)
    pad = _pad(keel, beside, outward)
    rank = keel.lanes.writing("task-rank", strategies.rank)
    means = coordinating.Means(
        keel.everywhere, beside.tasks.lane.submit, beside.agents.look.submit, rank.submit, took.observe
    )
    coordinator = Coordinator(means, pad, told, figures)
    pace = Pace(told.coordinator_interval_ms, GAP_SECONDS, RETRY, ALARM_SECONDS, hears_while_failing=True)
    duty = Duty(LEASE, keel.everywhere, keel.wakes, pace, coordinator)
    health = _health(keel, beside, duty, figures, outward)
    desk = CoordinationDesk(
        keel.engine, keel.everywhere, coordinator, health, duty.holder, rank.submit, tuple(sorted(launcher_names(keel)))
    )
    keel.heard.append(figures.committed)
    keel.metrics.histogram("coordinator_cycle_duration_seconds", "Time of a coordinator's turn", took)
    _watch(keel, figures, pad, duty)
    # First the duty stops, so that nothing is assigned that nobody would launch.
    runs: list[Runs] = [duty, pad, health] if acts else [health]
    if acts and beside.keys is not None:
        lock = redis_signals.LockSign(keel.everywhere, beside.keys, duty.holder)
        runs += [lock, redis_signals.Commands(beside.keys, keel.wakes.committed)]
    return Room(routes.routes(desk), leases=[duty.lease], runs=runs, on_drain=[pad.drain])


def _pad(keel: Keel, beside: Beside, outward: Outward) -> Launching:
    scopes = (keel.settings.section(AuthSettings).lifecycle_scope,)

    def mint(mandate: Mandate) -> str:
        grant = Grant(
            zone_id=mandate.zone_id,
            client_id="launcher",
            subject=f"agent:{mandate.agent_id}",
            scopes=scopes,
            agent_id=mandate.agent_id,
            role=Role.AGENT,
            attempt=mandate.attempt_token,
            agent_since=mandate.agent_since,
        )
        return beside.issuer.mint(grant, mandate.seconds)

    means = launchers.Means(
        keel.everywhere,
        keel.wakes,
        beside.tasks.lane.submit,
        keel.lanes.reading("launch-show", tasks.show).submit,
        keel.lanes.writing("launch-heartbeat", beside.agents.beater.beat).submit,
        beside.safe,
        mint,
        outward,
        environment(),
        beside.url,
    )
    settings = keel.settings
    return Launching(means, settings.section(CoordinationSettings), settings.server.shutdown_grace_ms / 1000)


def _health(keel: Keel, beside: Beside, duty: Duty, figures: Figures, outward: Outward) -> CoordinationHealth:
    known = launchers_of(keel.settings.section(CoordinationSettings)).values()
    gateways = [launcher.url for launcher in known if isinstance(launcher, HttpLauncher)]

    async def ask_gateways() -> None:
        """Every one of them must answer. Any answer is one: what they say to a stranger is their own affair."""
        async with asyncio.TaskGroup() as asking:
            for url in gateways:
                request = Request("GET", url, asker="health")
                asking.create_task(outward.ask(request, GATEWAY_SECONDS), name="health of a gateway")

    return CoordinationHealth(
        duty,
        figures,
        Check(keel.stores[0].ping, CONNECTED),
        None if beside.keys is None else Check(beside.keys.ping, CONNECTED),
        Check(ask_gateways, REACHABLE) if gateways else None,
    )


def _watch(keel: Keel, figures: Figures, pad: Launching, duty: Duty) -> None:
    metrics, own = keel.metrics, "coordinator"
    metrics.gauge("coordinator_stale_agents", "Agents that are lost", own, lambda: figures.stale_agents)
    metrics.gauge("tasks_pending", "Tasks that wait for an agent", own, lambda: figures.tasks_pending)
    metrics.counter("tasks_failed", "Tasks that failed for good", own, lambda: figures.tasks_failed)
    metrics.counter(
        "tasks_retry_exhausted",
        "Tasks that failed for good because no retries were left",
        own,
        lambda: figures.retries_exhausted,
    )
    metrics.counter("agents_spawned", "Sessions launched", own, lambda: pad.spawned)
    metrics.counter("quarterdeck_launches_failed", "Launches that failed", own, lambda: pad.failed)
    metrics.gauge("quarterdeck_launches", "Launches under way and processes running", own, pad.__len__)
    metrics.gauge(
        "quarterdeck_coordinator_failing",
        "Whether the coordinator cannot go on",
        own,
        lambda: float(duty.error is not None),
    )
