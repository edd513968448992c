"""What coordination can be told, what is asked of it, and what is shown."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.routing import PathId
from quarterdeck.domain.tasks.model.bodies import Name
from quarterdeck.domain.tasks.model.log_types import Level
from quarterdeck.domain.tasks.model.rows import Strategy

LEASE_NAME = "coordinator"
"""Of the one process that coordinates."""
GATEWAY_LAUNCHER = "gateway"
"""The launcher that GATEWAY_URL defines."""
LOGS_MAX = 500
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Variable = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)", max_length=255)]
Header = Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]+$(?!\n)", max_length=255)]
TaskTypes = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=256)]
"""Of tasks that agents are launched for. Said here and not by agents: it is what a program can do, whoever it is."""


# -- told by whoever runs the server -----------------------------------------------------------------------------


class HttpLauncherConfig(
    msgspec.Struct, frozen=True, tag="http", tag_field="kind", kw_only=True, forbid_unknown_fields=True
):
    """Asks a gateway to start a session, at `{url}/api/agents/spawn`."""

    url: Annotated[str, Meta(pattern=r"^https?://[!-~]+$(?!\n)", max_length=2_048)]
    timeout_seconds: Seconds = 30.0
    task_types: TaskTypes | None = None
    headers: dict[Header, Variable] = {}
    """Header → the variable of the environment that holds its value: a file of settings holds no secrets."""


class ProcessLauncherConfig(
    msgspec.Struct, frozen=True, tag="process", tag_field="kind", kw_only=True, forbid_unknown_fields=True
):
    """Starts a command on this machine, with the task on its standard input."""

    command: Annotated[tuple[str, ...], Meta(min_length=1, max_length=256)]
    cwd: str | None = None
    task_types: TaskTypes | None = None
    environment: Annotated[tuple[Variable, ...], Meta(max_length=256)] = ("PATH", "LANG")
    """The variables of the server's own environment that it may see. It sees no others."""
    max_concurrent: Annotated[int, Meta(ge=1, le=10_000)] = 4
    """At once, on one server."""
    timeout_seconds: Seconds | None = None
    """For the whole of its run, whatever the task says."""
    grace_seconds: Annotated[float, Meta(ge=0, le=600)] = 10.0
    """Between asking it to end and ending it."""


LauncherConfig = HttpLauncherConfig | ProcessLauncherConfig
LauncherConfigs = dict[PathId, LauncherConfig]


class CoordinationSettings(msgspec.Struct, frozen=True):
    """What this room can be told."""

    coordinator_interval_ms: Annotated[
        int, Meta(ge=10, le=600_000, description="how often the coordinator looks by itself if no wake comes")
    ] = 30_000
    coordinator_cycle_check_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often it looks for tasks that wait for each other")
    ] = 600_000
    launch_concurrency: Annotated[int, Meta(ge=1, le=10_000, description="launches that may be under way at once")] = 32
    launchers: (
        Annotated[
            LauncherConfigs,
            Meta(description="what may start agents' sessions, by name: kind = http or process; in the file"),
        ]
        | None
    ) = None
    gateway_url: (
        Annotated[
            str,
            Meta(
                pattern=r"^https?://[!-~]+$(?!\n)",
                max_length=2_048,
                description="of the gateway that starts agents' sessions: defines the launcher `gateway`",
            ),
        ]
        | None
    ) = None


def launcher_configs(settings: CoordinationSettings) -> LauncherConfigs:
    """All that there are; GATEWAY_URL is a short way to define the usual one."""
    configs = dict(settings.launchers or {})
    if settings.gateway_url is not None:
        configs.setdefault(GATEWAY_LAUNCHER, HttpLauncherConfig(url=settings.gateway_url))
    return configs


# -- asked for ---------------------------------------------------------------------------------------------------


class RecoverBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    zone_id: (
        Annotated[PathId, Meta(description="only there; without it, wherever the caller may coordinate")] | None
    ) = msgspec.field(default=None, name="workspaceId")


class StrategyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    strategy: Annotated[
        Strategy, Meta(description="priority; sjf (the shortest estimate first); fair (those who ask take turns)")
    ]


class StatusQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    zone_id: (
        Annotated[PathId, Meta(description="the caller's, if it is not named; of an administrator: all")] | None
    ) = msgspec.field(default=None, name="workspace")


class LogsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    zone_id: Annotated[PathId, Meta(description="the caller's, if it is not named")] | None = msgspec.field(
        default=None, name="workspace"
    )
    level: Annotated[Level | None, Meta(description="without one: WARN, ERROR and CRITICAL")] = None
    limit: Annotated[int, Meta(ge=1, le=LOGS_MAX)] = 100
    cursor: Annotated[str, Meta(max_length=512)] | None = None


# -- shown -------------------------------------------------------------------------------------------------------


class StatsView(msgspec.Struct, frozen=True, rename="camel"):
    pending_tasks: Annotated[
        int, Meta(description="that wait for an agent and nothing else; beyond 100,000 they are not counted")
    ]
    running_tasks: Annotated[int, Meta(description="that an agent has")]
    healthy_agents: int
    stale_agents: int


class StatusView(msgspec.Struct, frozen=True, rename="camel"):
    active: Annotated[bool, Meta(description="whether this server looks after tasks and agents, or could at once")]
    instance_id: Annotated[str, Meta(description="who did so last, or does")]
    zones: Annotated[list[str], Meta(description="what was counted, 1,000 at most")] = msgspec.field(name="workspaces")
    last_heartbeat: str | None
    stats: StatsView
    launchers: Annotated[
        tuple[str, ...], Meta(description="that the server's configuration names, for agents to be started by")
    ]


class RecoverView(msgspec.Struct, frozen=True, rename="camel"):
    """How many of each were found and put right."""

    stale_agents: int
    timed_out: int
    overdue: int
    requeued: int
    spread: int
    in_cycles: int


class StrategyView(msgspec.Struct, frozen=True):
    strategy: Strategy


class CoordinatorLogView(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    id: str
    zone_id: str = msgspec.field(name="workspaceId")
    level: Level
    event: str
    task_id: str | None
    agent_id: str | None
    message: str
    details: msgspec.Raw
    previous_status: str | None
    new_status: str | None
    created_at: str


class CoordinatorLogs(msgspec.Struct, frozen=True, rename="camel"):
    items: list[CoordinatorLogView]
    next_cursor: str | None


class CycleView(msgspec.Struct, frozen=True, rename="camel"):
    active: bool
    last_cycle: str | None
    cycle_count: int


class CoordinatorHealth(msgspec.Struct, frozen=True):
    status: Annotated[str, Meta(description="healthy, degraded (something beside it is away) or unhealthy")]
    coordinator: CycleView
    database: Annotated[str, Meta(description="connected or disconnected")]
    valkey: Annotated[str, Meta(description="connected, disconnected or not_configured")]
    gateway: Annotated[
        str,
        Meta(
            description="reachable (every launcher of kind http answers), unreachable (one does not) or not_configured"
        ),
    ]
