"""Settings, requests and responses of coordination."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from quarterdeck.core.routing import PathId
from quarterdeck.domain.tasks.model.bodies import Name
from quarterdeck.domain.tasks.model.log_lines import Level
from quarterdeck.domain.tasks.model.rows import Strategy

LEASE_NAME = "coordinator"
GATEWAY_LAUNCHER = "gateway"
"""The launcher that GATEWAY_URL defines."""
LOGS_MAX = 500
Seconds = Annotated[float, Meta(gt=0, le=86_400)]
Variable = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$(?!\n)", max_length=255)]
Header = Annotated[str, Meta(pattern=r"^[A-Za-z0-9-]+$(?!\n)", max_length=255)]
TaskTypes = Annotated[tuple[Name, ...], Meta(min_length=1, max_length=256)]
"""Task types that a launcher starts agents for. The launcher defines them, not the agents, because they depend on the
program that it starts."""


# -- settings ----------------------------------------------------------------------------------------------------


class HttpLauncherConfig(
    msgspec.Struct, frozen=True, tag="http", tag_field="kind", kw_only=True, forbid_unknown_fields=True
):
    """Requests a session from a gateway, at `{url}/api/agents/spawn`."""

    url: Annotated[str, Meta(pattern=r"^https?://[!-~]+$(?!\n)", max_length=2_048)]
    timeout_seconds: Seconds = 30.0
    task_types: TaskTypes | None = None
    headers: dict[Header, Variable] = {}
    """Header → the environment variable that holds its value, so that the settings file holds no secrets."""


class ProcessLauncherConfig(
    msgspec.Struct, frozen=True, tag="process", tag_field="kind", kw_only=True, forbid_unknown_fields=True
):
    """Starts a command on this machine, with the task as JSON on its standard input."""

    command: Annotated[tuple[str, ...], Meta(min_length=1, max_length=256)]
    cwd: str | None = None
    task_types: TaskTypes | None = None
    environment: Annotated[tuple[Variable, ...], Meta(max_length=256)] = ("PATH", "LANG")
    """The variables of the server's environment that the process inherits. It inherits no others."""
    max_concurrent: Annotated[int, Meta(ge=1, le=10_000)] = 4
    """Maximum number of processes per server."""
    timeout_seconds: Seconds | None = None
    """Limit on the process's entire run time, in addition to the task's timeout."""
    grace_seconds: Annotated[float, Meta(ge=0, le=600)] = 10.0
    """Time between SIGTERM and SIGKILL."""


LauncherConfig = HttpLauncherConfig | ProcessLauncherConfig
LauncherConfigs = dict[PathId, LauncherConfig]


class CoordinationSettings(msgspec.Struct, frozen=True):
    coordinator_interval_ms: Annotated[
        int, Meta(ge=10, le=600_000, description="how often the coordinator runs without a wake-up")
    ] = 30_000
    coordinator_cycle_check_ms: Annotated[
        int, Meta(ge=10, le=86_400_000, description="how often the coordinator searches for dependency cycles")
    ] = 600_000
    launch_concurrency: Annotated[int, Meta(ge=1, le=10_000, description="concurrent launches per HTTP launcher")] = 32
    launchers: (
        Annotated[
            LauncherConfigs,
            Meta(description="launchers of agents, by name (kind = http or process); only in the settings file"),
        ]
        | None
    ) = None
    gateway_url: (
        Annotated[
            str,
            Meta(
                pattern=r"^https?://[!-~]+$(?!\n)",
                max_length=2_048,
                description="URL of the gateway that starts agents; defines the launcher `gateway`",
            ),
        ]
        | None
    ) = None


def launcher_configs(settings: CoordinationSettings) -> LauncherConfigs:
    """Return all configured launchers. `gateway_url` is a short form for an HTTP launcher named `gateway`."""
    configs = dict(settings.launchers or {})
    if settings.gateway_url is not None:
        configs.setdefault(GATEWAY_LAUNCHER, HttpLauncherConfig(url=settings.gateway_url))
    return configs


# -- requests ----------------------------------------------------------------------------------------------------


class RecoverBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    zone_id: (
        Annotated[PathId, Meta(description="default: the caller's workspace; for an administrator: all")] | None
    ) = msgspec.field(default=None, name="workspaceId")


class StrategyBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    strategy: Annotated[
        Strategy, Meta(description="priority; sjf (shortest estimate first); fair (creators alternate)")
    ]


class StatusQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    zone_id: (
        Annotated[PathId, Meta(description="default: the caller's workspace; for an administrator: all")] | None
    ) = msgspec.field(default=None, name="workspace")


class LogsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    zone_id: Annotated[PathId, Meta(description="default: the caller's workspace")] | None = msgspec.field(
        default=None, name="workspace"
    )
    level: Annotated[Level | None, Meta(description="default: WARN, ERROR and CRITICAL")] = None
    limit: Annotated[int, Meta(ge=1, le=LOGS_MAX)] = 100
    cursor: Annotated[str, Meta(max_length=512)] | None = None


# -- responses ---------------------------------------------------------------------------------------------------


class StatsView(msgspec.Struct, frozen=True, rename="camel"):
    pending_tasks: Annotated[
        int, Meta(description="ready tasks, which are waiting only for an agent; counted up to 100,000 per workspace")
    ]
    running_tasks: Annotated[int, Meta(description="tasks that an agent holds")]
    healthy_agents: int
    stale_agents: int


class StatusView(msgspec.Struct, frozen=True, rename="camel"):
    active: Annotated[bool, Meta(description="this server is the coordinator or ready to take over")]
    instance_id: Annotated[str, Meta(description="the current or last coordinator")]
    zones: Annotated[list[str], Meta(description="the counted workspaces, at most 1,000")] = msgspec.field(
        name="workspaces"
    )
    last_heartbeat: str | None
    stats: StatsView
    launchers: Annotated[tuple[str, ...], Meta(description="the launchers in the server's configuration")]


class RecoverView(msgspec.Struct, frozen=True, rename="camel"):
    """How many agents and tasks of each kind were found and processed."""

    stale_agents: int
    timed_out: int
    overdue: int
    requeued: int
    spread: int
    """Ended tasks whose blocked dependents were unblocked."""
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


class CycleView(msgspec.Struct, frozen=True, rename="camel"):
    active: bool
    last_cycle: str | None
    cycle_count: int


class CoordinatorHealth(msgspec.Struct, frozen=True):
    status: Annotated[str, Meta(description="healthy, degraded (Valkey or a gateway is down) or unhealthy")]
    coordinator: CycleView
    database: Annotated[str, Meta(description="connected or disconnected")]
    valkey: Annotated[str, Meta(description="connected, disconnected or not_configured")]
    gateway: Annotated[
        str,
        Meta(
            description="reachable (all HTTP launchers respond), unreachable (at least one does not) or not_configured"
        ),
    ]
