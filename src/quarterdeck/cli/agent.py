"""`qd agent`: register, list, show, deregister, health, heartbeat, terminate, token.

With a fleet id, `register`, `list`, `show` and `deregister` work on the agents of that fleet (`fleet_agents`).
"""

from __future__ import annotations

import time

from quarterdeck.cli import fleet_agents, task_work
from quarterdeck.cli.command_table import (
    DURATION,
    ID,
    ID_ARGUMENT,
    JSON_OBJECT,
    NUMBER,
    REASON_OPTION,
    TEXT,
    YES_NO,
    Argument,
    Group,
    Option,
    choice,
    uppercase_choice,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import usage_error
from quarterdeck.cli.fleet_common import AGENT_ID_OPTION, FULL_OPTION
from quarterdeck.cli.list_output import PAGING, Column, detail_pairs, field_text, fields_and_table, print_list, time_ago
from quarterdeck.cli.output import cell, fields
from quarterdeck.client.api import Document, page_items
from quarterdeck.core.errors import EXIT_FAILED

GROUP = Group("agent", "Manage agents: registered workers that claim tasks.")


_FLEET_HELP = "Uses the agent registry. With a fleet id (--fleet-id, QD_FLEET_ID), uses the agents of that fleet."
_TERMINATE_OPTIONS = (
    REASON_OPTION,
    Option("--graceful", "Let the agent finish its tasks, but give it no new ones.", field="graceful"),
)


@GROUP.command(
    "register",
    "Register an agent or change its properties.",
    Argument("id", "ID", ID, required=False),
    Option("--name", "Display name [default: the id].", TEXT, field="name"),
    Option("--model", "Model that the agent uses.", TEXT, field="model"),
    Option("--description", "Purpose of the agent.", TEXT, field="description"),
    Option("--capability", "Capability of the agent; repeatable.", TEXT, many=True, field="capabilities"),
    Option("--max-tasks", "Maximum number of concurrent tasks [default: 1].", NUMBER, field="maxConcurrentTasks"),
    Option("--heartbeat", "Heartbeat interval [default: 30s].", DURATION, field="heartbeatIntervalSeconds"),
    Option(
        "--stale-after",
        "Time without a heartbeat after which the agent is stale [default: 3m].",
        DURATION,
        field="staleThresholdSeconds",
    ),
    Option(
        "--coordinator",
        "Whether the coordinator assigns tasks to the agent [default: yes].",
        YES_NO,
        field="coordinatorEnabled",
    ),
    Option(
        "--launcher",
        "Launcher in the server's configuration that starts the agent for each task.",
        ID,
        field="launcher",
    ),
    Option("--pool", "Pool that the agent belongs to.", TEXT, field="pool"),
    Option("--labels", "JSON object of labels to store with the agent.", JSON_OBJECT, field="labels"),
    fleet_agents.SKILLS_OPTION,
    description=(
        "Prints the id. Omitted options leave their property unchanged. A terminated agent can be registered "
        "again. With a fleet id, give --name, --description and --skills, but no ID: the fleet assigns it."
    ),
)
@fleet_agents.in_fleet(fleet_agents.register)
def register(context: Context) -> None:
    context.send("PUT", _path(context), field_text("id"), body=context.body())


@GROUP.command(
    "list",
    "List agents.",
    Option(
        "--status",
        "Only agents with this status.",
        uppercase_choice("IDLE", "WORKING", "DEGRADED", "ERROR", "TERMINATED"),
        field="status",
    ),
    Option("--capability", "Only agents with this capability.", TEXT, field="capability"),
    Option(
        "--coordinator",
        "Only agents that the coordinator does (yes) or does not (no) assign tasks to.",
        YES_NO,
        field="coordinatorEnabled",
    ),
    *PAGING,
    FULL_OPTION,
    description=_FLEET_HELP,
)
@fleet_agents.in_fleet(fleet_agents.list_)
def list_(context: Context) -> None:
    print_list(context, context.api_path("agents"), _COLUMNS, f"No agents found in zone {context.zone}.")


@GROUP.command(
    "show",
    "Show one agent.",
    Argument("id", "ID", ID, required=False),
    AGENT_ID_OPTION,
    FULL_OPTION,
    description=_FLEET_HELP,
)
@fleet_agents.in_fleet(fleet_agents.show)
def show(context: Context) -> None:
    agent = context.server().get(_path(context))
    non_empty = {name: value for name, value in agent.items() if value not in ([], {})}
    context.show(agent, lambda _: fields(detail_pairs(non_empty, time.time()), context.styler))


@GROUP.command(
    "deregister",
    "Terminate an agent, or remove it from its fleet.",
    Argument("id", "ID", ID, required=False),
    AGENT_ID_OPTION,
    *_TERMINATE_OPTIONS,
    description="With a fleet id, removes the agent from that fleet. Without one, acts like `qd agent terminate`.",
)
@fleet_agents.in_fleet(fleet_agents.deregister)
def deregister(context: Context) -> None:
    terminate(context)


@GROUP.command("health", "Show the health of an agent. Exits 1 if it is ERROR or TERMINATED.", ID_ARGUMENT)
def health(context: Context) -> int:
    agent_health = context.send("GET", _path(context, "health"), lambda health: _format_health(context, health))
    return EXIT_FAILED if agent_health.get("status") in ("ERROR", "TERMINATED") else 0


@GROUP.command(
    "heartbeat",
    "Send a heartbeat for an agent.",
    ID_ARGUMENT,
    Option("--status", "Status to report [default: healthy].", choice("healthy", "degraded"), field="status"),
    Option("--task", "Task that the agent is working on.", ID, field="currentTaskId"),
    Option("--percent", "Progress of the task, 0 to 100.", NUMBER, field="progressPercent"),
    Option("--step", "Current step of the task.", TEXT, field="currentStep"),
    task_work.CHECKPOINT_OPTION,
    Option("--attempt-token", "Token of the task's attempt.", TEXT, field="attemptToken"),
    Option("--memory", "Memory use in MB.", NUMBER, field="memoryMb"),
    Option("--cpu", "CPU use in percent.", NUMBER, field="cpuPercent"),
    Option("--metadata", "JSON object with more data.", JSON_OBJECT, field="metadata"),
    description="Exits 1 if the agent must stop working on a task because the task was canceled or paused.",
)
def heartbeat(context: Context) -> int:
    path = _path(context, "heartbeat")
    document = context.send("POST", path, _format_heartbeat_reply, body=context.body())
    return EXIT_FAILED if document.get("cancel") or document.get("pause") else 0


GROUP.commands += task_work.AGENT_GROUP.commands


@GROUP.command(
    "terminate",
    "Terminate an agent.",
    ID_ARGUMENT,
    *_TERMINATE_OPTIONS,
    description="Without --graceful, the attempts of the agent are aborted at once. Other agents can retry the tasks.",
)
def terminate(context: Context) -> None:
    agent_id = _agent_id(context)

    def render(agent: Document) -> str:
        if agent.get("status") == "TERMINATED":
            return f"Terminated agent {agent_id}."
        tasks_text = "last task" if agent.get("heldTasks") == 1 else f"{cell(agent.get('heldTasks'))} tasks"
        return f"Agent {agent_id} gets no new tasks and ends after its {tasks_text}."

    context.send("POST", _path(context, "terminate"), render, body=context.body())


@GROUP.command(
    "token",
    "Print a token that acts for an agent.",
    ID_ARGUMENT,
    Option("--ttl", "Lifetime, such as 15m, 2h or 30d [default: 1h].", DURATION, field="ttlSeconds"),
    Option(
        "--attempt-token",
        "Token of the attempt that the new token is for. Requests with the new token need no attempt token.",
        TEXT,
        field="attemptToken",
    ),
)
def token(context: Context) -> None:
    # Only the token goes to stdout, so that a script can use it: QD_TOKEN=$(qd agent token ID)
    context.send("POST", _path(context, "token"), field_text("token"), body=context.body())


def _path(context: Context, *segments: str) -> str:
    return context.api_path("agents", _agent_id(context), *segments)


def _agent_id(context: Context) -> str:
    """Return the ID argument. It is optional only with a fleet id."""
    agent_id = context.text("id")
    if agent_id is None:
        raise usage_error("Give the ID of an agent, or --fleet-id to use a fleet.")
    return agent_id


def _format_heartbeat_reply(reply: Document) -> str:
    lines = [f"Continue. Send the next heartbeat within {cell(reply.get('next'))}s."]
    if reply.get("cancel") or reply.get("pause"):
        lines = [
            f"Stop: {cell(reply[name])} {'was canceled' if name == 'cancel' else 'was paused'}."
            for name in ("cancel", "pause")
            if reply.get(name)
        ]
    for warning in page_items(reply, "warnings"):
        task_text = f" (task {cell(warning['taskId'])})" if warning.get("taskId") else ""
        lines.append(f"{cell(warning.get('code'))}: {cell(warning.get('detail'))}{task_text}")
    return "\n".join(lines)


def format_status(agent: Document) -> str:
    """Format the status with its reason: `ERROR (stale)`, `WORKING (draining)`."""
    reason = agent.get("statusReason") or ("draining" if agent.get("draining") is True else None)
    status = cell(agent.get("status"))
    return status if reason is None or status == "TERMINATED" else f"{status} ({cell(reason)})"


def _format_health(context: Context, document: Document) -> str:
    details = {name: value for name, value in document.items() if name not in ("heartbeats", "ageSeconds")}
    heartbeats = page_items(document, "heartbeats")
    return fields_and_table(context, detail_pairs(details, time.time()), _HEARTBEAT_COLUMNS, heartbeats)


_COLUMNS = (
    Column("ID", "id"),
    Column("NAME", "name"),
    Column("STATUS", lambda agent, _: format_status(agent)),
    Column("TASKS", lambda agent, _: f"{cell(agent.get('heldTasks'))}/{cell(agent.get('maxConcurrentTasks'))}"),
    Column("CAPABILITIES", "capabilities"),
    Column("MODEL", "model"),
    Column("LAST SEEN", time_ago("lastSeenAt")),
)
_HEARTBEAT_COLUMNS = (
    Column("LAST SEEN", time_ago("lastSeenAt")),
    Column("STATUS", "status"),
    Column("TASK", "currentTaskId"),
    Column("PERCENT", "progressPercent"),
    Column("MEMORY MB", "memoryMb"),
    Column("CPU %", "cpuPercent"),
)
