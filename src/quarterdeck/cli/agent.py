"""`qd agent`: register, list, show, deregister, health, heartbeat, terminate, token.

With a fleet id, `register`, `list`, `show` and `deregister` work on the agents of that fleet (`fleet_agents`).
"""

from __future__ import annotations

import time

from quarterdeck.cli import fleet_agents, task_work
from quarterdeck.cli.command_table import (
    DURATION,
    ID,
    JSON_OBJECT,
    NUMBER,
    TEXT,
    Argument,
    Command,
    CommandTable,
    Option,
    choice,
    uppercase_choice,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.fleet_common import AGENT_ID_OPTION, FULL_OPTION, fleet_id_or_none
from quarterdeck.cli.input import JSON_INPUT_HELP, json_option, without_none
from quarterdeck.cli.list_output import PAGING, ago, detail_pairs, print_list
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document, page_items
from quarterdeck.core.errors import EXIT_FAILED


def build_command_table() -> CommandTable:
    id_argument, optional_id_argument = (Argument("id", "ID", ID),), (Argument("id", "ID", ID, required=False),)
    return CommandTable(
        (
            Command(
                ("agent", "register"),
                "Register an agent or change its properties.",
                register,
                optional_id_argument,
                _REGISTER_OPTIONS,
                _REGISTER_HELP,
            ),
            Command(("agent", "list"), "List agents.", list_, options=_LIST_OPTIONS, description=_FLEET_HELP),
            Command(
                ("agent", "show"),
                "Show one agent.",
                show,
                optional_id_argument,
                (AGENT_ID_OPTION, FULL_OPTION),
                _FLEET_HELP,
            ),
            Command(
                ("agent", "deregister"),
                "Terminate an agent, or remove it from its fleet.",
                deregister,
                optional_id_argument,
                (AGENT_ID_OPTION, *_TERMINATE_OPTIONS),
                _DEREGISTER_HELP,
            ),
            Command(
                ("agent", "health"),
                "Show the health of an agent. Exits 1 if it is ERROR or TERMINATED.",
                health,
                id_argument,
            ),
            Command(
                ("agent", "heartbeat"),
                "Send a heartbeat for an agent.",
                heartbeat,
                id_argument,
                _HEARTBEAT_OPTIONS,
                _HEARTBEAT_HELP,
            ),
            task_work.build_claim_command(),
            Command(
                ("agent", "terminate"),
                "Terminate an agent.",
                terminate,
                id_argument,
                _TERMINATE_OPTIONS,
                _TERMINATE_HELP,
            ),
            Command(("agent", "token"), "Print a token that acts for an agent.", token, id_argument, _TOKEN_OPTIONS),
        ),
        {"agent": "Manage agents: registered workers that claim tasks."},
    )


_REGISTER_OPTIONS = (
    Option("--name", "Display name [default: the id].", TEXT),
    Option("--model", "Model that the agent uses.", TEXT),
    Option("--description", "Purpose of the agent.", TEXT),
    Option("--capability", "Capability of the agent; repeatable.", TEXT, many=True),
    Option("--max-tasks", "Maximum number of concurrent tasks [default: 1].", NUMBER),
    Option("--heartbeat", "Heartbeat interval [default: 30s].", DURATION),
    Option("--stale-after", "Time without a heartbeat after which the agent is stale [default: 3m].", DURATION),
    Option("--coordinator", "Whether the coordinator assigns tasks to the agent [default: yes].", choice("yes", "no")),
    Option("--launcher", "Launcher in the server's configuration that starts the agent for each task.", ID),
    Option("--pool", "Pool that the agent belongs to.", TEXT),
    Option("--labels", "JSON object of labels to store with the agent.", JSON_OBJECT),
    fleet_agents.SKILLS_OPTION,
)
_REGISTER_HELP = """Prints the id. Omitted options leave their property unchanged. A terminated agent can be registered
again. With a fleet id, give --name, --description and --skills, but no ID: the fleet assigns it."""
_FLEET_HELP = "Uses the agent registry. With a fleet id (--fleet-id, QD_FLEET_ID), uses the agents of that fleet."
_DEREGISTER_HELP = "With a fleet id, removes the agent from that fleet. Without one, acts like `qd agent terminate`."
_LIST_OPTIONS = (
    Option(
        "--status",
        "Only agents with this status.",
        uppercase_choice("IDLE", "WORKING", "DEGRADED", "ERROR", "TERMINATED"),
    ),
    Option("--capability", "Only agents with this capability.", TEXT),
    Option(
        "--coordinator",
        "Only agents that the coordinator does (yes) or does not (no) assign tasks to.",
        choice("yes", "no"),
    ),
    *PAGING,
    FULL_OPTION,
)
_HEARTBEAT_OPTIONS = (
    Option("--status", "Status to report [default: healthy].", choice("healthy", "degraded")),
    Option("--task", "Task that the agent is working on.", ID),
    Option("--percent", "Progress of the task, 0 to 100.", NUMBER),
    Option("--step", "Current step of the task.", TEXT),
    Option("--checkpoint", f"State from which the next attempt continues: {JSON_INPUT_HELP}.", TEXT),
    Option("--attempt-token", "Token of the task's attempt.", TEXT),
    Option("--memory", "Memory use in MB.", NUMBER),
    Option("--cpu", "CPU use in percent.", NUMBER),
    Option("--metadata", "JSON object with more data.", JSON_OBJECT),
)
_HEARTBEAT_HELP = "Exits 1 if the agent must stop working on a task because the task was canceled or paused."
_TERMINATE_OPTIONS = (
    Option("--reason", "Reason to record [default: requested].", TEXT),
    Option("--graceful", "Let the agent finish its tasks, but give it no new ones."),
)
_TERMINATE_HELP = "Without --graceful, the attempts of the agent are aborted at once. Other agents can retry the tasks."
_TOKEN_OPTIONS = (
    Option("--ttl", "Lifetime, such as 15m, 2h or 30d [default: 1h].", DURATION),
    Option(
        "--attempt-token",
        "Token of the attempt that the new token is for. Requests with the new token need no attempt token.",
        TEXT,
    ),
)


def register(context: Context) -> int:
    if fleet_id_or_none(context) is not None:
        return fleet_agents.register(context)
    fleet_agents.refuse_fleet_options(context)
    coordinator = context.text("coordinator")
    body = without_none(
        {
            "name": context.text("name"),
            "model": context.text("model"),
            "description": context.text("description"),
            "capabilities": context.values("capability") or None,
            "maxConcurrentTasks": context.number("max_tasks"),
            "heartbeatIntervalSeconds": context.number("heartbeat"),
            "staleThresholdSeconds": context.number("stale_after"),
            "coordinatorEnabled": None if coordinator is None else coordinator == "yes",
            "launcher": context.text("launcher"),
            "pool": context.text("pool"),
            "labels": context.parsed.values["labels"],
        }
    )
    document = context.server().call("PUT", _path(context), body=body).document
    context.show(document, lambda agent: cell(agent.get("id")))
    return 0


def list_(context: Context) -> int:
    if fleet_id_or_none(context) is not None:
        return fleet_agents.list_(context)
    coordinator = context.text("coordinator")
    query = {
        "status": context.text("status"),
        "capability": context.text("capability"),
        # A string, because the client omits a parameter that is False.
        "coordinatorEnabled": None if coordinator is None else "true" if coordinator == "yes" else "false",
    }
    return print_list(context, context.api_path("agents"), query, _table)


def show(context: Context) -> int:
    if fleet_id_or_none(context) is not None:
        return fleet_agents.show(context)
    fleet_agents.refuse_fleet_options(context)
    agent = context.server().get(_path(context))
    non_empty = {name: value for name, value in agent.items() if value not in ([], {})}
    context.show(agent, lambda _: fields(detail_pairs(non_empty, time.time()), context.styler))
    return 0


def health(context: Context) -> int:
    agent_health = context.server().get(_path(context, "health"))
    context.show(agent_health, lambda document: _format_health(context, document))
    return EXIT_FAILED if agent_health.get("status") in ("ERROR", "TERMINATED") else 0


def heartbeat(context: Context) -> int:
    body = without_none(
        {
            "status": context.text("status"),
            "currentTaskId": context.text("task"),
            "progressPercent": context.number("percent"),
            "currentStep": context.text("step"),
            "checkpointData": json_option(context, "checkpoint"),
            "attemptToken": context.text("attempt_token"),
            "memoryMb": context.number("memory"),
            "cpuPercent": context.number("cpu"),
            "metadata": context.parsed.values["metadata"],
        }
    )
    document = context.server().call("POST", _path(context, "heartbeat"), body=body).document
    context.show(document, _format_heartbeat_reply)
    return EXIT_FAILED if document.get("cancel") or document.get("pause") else 0


def deregister(context: Context) -> int:
    if fleet_id_or_none(context) is not None:
        return fleet_agents.deregister(context)
    fleet_agents.refuse_fleet_options(context)
    return terminate(context)


def terminate(context: Context) -> int:
    body = without_none({"reason": context.text("reason"), "graceful": True if context.flag("graceful") else None})
    document = context.server().call("POST", _path(context, "terminate"), body=body).document
    agent_id = _agent_id(context)
    is_terminated = document.get("status") == "TERMINATED"
    tasks_text = "last task" if document.get("heldTasks") == 1 else f"{cell(document.get('heldTasks'))} tasks"
    context.show(
        document,
        lambda _: (
            f"Terminated agent {agent_id}."
            if is_terminated
            else f"Agent {agent_id} gets no new tasks and ends after its {tasks_text}."
        ),
    )
    return 0


def token(context: Context) -> int:
    # Only the token goes to stdout, so that a script can use it: QD_TOKEN=$(qd agent token ID)
    body = without_none({"ttlSeconds": context.number("ttl"), "attemptToken": context.text("attempt_token")})
    document = context.server().call("POST", _path(context, "token"), body=body).document
    context.show(document, lambda issued: cell(issued.get("token")))
    return 0


def _path(context: Context, *segments: str) -> str:
    return context.api_path("agents", _agent_id(context), *segments)


def _agent_id(context: Context) -> str:
    """Return the ID argument. It is optional only with a fleet id."""
    agent_id = context.text("id")
    if agent_id is None:
        raise UsageError("usage", "Give the ID of an agent, or --fleet-id to use a fleet.")
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


def _table(context: Context, agents: list[Document]) -> str:
    if not agents:
        return f"No agents found in zone {context.zone}."
    now = time.time()
    rows = [
        [
            agent.get("id"),
            agent.get("name"),
            format_status(agent),
            f"{cell(agent.get('heldTasks'))}/{cell(agent.get('maxConcurrentTasks'))}",
            agent.get("capabilities"),
            agent.get("model"),
            ago(agent.get("lastSeenAt"), now),
        ]
        for agent in agents
    ]
    return table(("ID", "NAME", "STATUS", "TASKS", "CAPABILITIES", "MODEL", "LAST SEEN"), rows, context.styler)


def format_status(agent: Document) -> str:
    """Format the status with its reason: `ERROR (stale)`, `WORKING (draining)`."""
    reason = agent.get("statusReason") or ("draining" if agent.get("draining") is True else None)
    status = cell(agent.get("status"))
    return status if reason is None or status == "TERMINATED" else f"{status} ({cell(reason)})"


def _format_health(context: Context, document: Document) -> str:
    details = {name: value for name, value in document.items() if name not in ("heartbeats", "ageSeconds")}
    text = fields(detail_pairs(details, time.time()), context.styler)
    heartbeats = page_items(document, "heartbeats")
    if not heartbeats:
        return text
    now = time.time()
    rows = [
        [
            ago(entry.get("lastSeenAt"), now),
            *(entry.get(name) for name in ("status", "currentTaskId", "progressPercent", "memoryMb", "cpuPercent")),
        ]
        for entry in heartbeats
    ]
    headers = ("LAST SEEN", "STATUS", "TASK", "PERCENT", "MEMORY MB", "CPU %")
    return f"{text}\n\n{table(headers, rows, context.styler)}"
