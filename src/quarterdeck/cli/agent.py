"""Agents: register, list, show, how they fare, tell that they live, end them, and a token to speak as one.

With a fleet id, `register`, `list`, `show` and `deregister` are about the agents of that fleet (`crew`).
"""

from __future__ import annotations

import time

from quarterdeck.cli import fleet_agents, task_work
from quarterdeck.cli.command_table import (
    DURATION,
    ID,
    NUMBER,
    OBJECT,
    TEXT,
    Argument,
    Command,
    Noun,
    Option,
    any_case,
    choice,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import Usage
from quarterdeck.cli.fleet_common import AGENT, FULL, fleet_or_none
from quarterdeck.cli.input import GIVEN, document, without_nothing
from quarterdeck.cli.list_output import PAGES, ago, in_full, show_list
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document, items_of
from quarterdeck.core.errors import EXIT_FAILED


def noun() -> Noun:
    one, perhaps = (Argument("id", "ID", ID),), (Argument("id", "ID", ID, required=False),)
    return Noun(
        (
            Command(
                ("agent", "register"),
                "Register an agent, or change what is said of one.",
                register,
                perhaps,
                _REGISTER,
                _REGISTERING,
            ),
            Command(("agent", "list"), "List agents.", list_, options=_LIST, description=_OF_A_FLEET),
            Command(("agent", "show"), "Show one agent.", show, perhaps, (AGENT, FULL), _OF_A_FLEET),
            Command(
                ("agent", "deregister"),
                "End an agent, or take it from its fleet.",
                deregister,
                perhaps,
                (AGENT, *_TERMINATE),
                _DEREGISTERING,
            ),
            Command(("agent", "health"), "Show how an agent fares; fails if it is lost.", health, one),
            Command(("agent", "heartbeat"), "Tell that an agent lives.", heartbeat, one, _BEAT, _BEATING),
            task_work.claim_command(),
            Command(("agent", "terminate"), "End an agent.", terminate, one, _TERMINATE, _ENDING),
            Command(("agent", "token"), "Print a token that speaks as an agent.", token, one, _TOKEN),
        ),
        {"agent": "Registered workers, who take tasks."},
    )


_REGISTER = (
    Option("--name", "What people call it [default: its id].", TEXT),
    Option("--model", "The model it works with.", TEXT),
    Option("--description", "What it is for.", TEXT),
    Option("--capability", "A capability it has; may be repeated.", TEXT, many=True),
    Option("--max-tasks", "How many tasks it works on at once [default: 1].", NUMBER),
    Option("--heartbeat", "How often it will be heard of [default: 30s].", DURATION),
    Option("--stale-after", "How long it may be silent [default: 3m].", DURATION),
    Option("--coordinator", "Whether tasks are matched to it [default: yes].", choice("yes", "no")),
    Option("--launcher", "A launcher of the server's configuration, which starts it for each task.", ID),
    Option("--pool", "The pool it belongs to.", TEXT),
    Option("--labels", "A JSON object of words to keep with it.", OBJECT),
    fleet_agents.SKILLS,
)
_REGISTERING = """Prints its id. What is not said stays as it is. A terminated one begins anew. With a fleet id there is
no ID, which the fleet gives out: --name and --description say who it is, and --skills what it can do."""
_OF_A_FLEET = "Of the registry, or with a fleet id (--fleet-id, QD_FLEET_ID) of that fleet."
_DEREGISTERING = "With a fleet id, of that fleet; without one it is `qd agent terminate`."
_LIST = (
    Option("--status", "Only those in this status.", any_case("IDLE", "WORKING", "DEGRADED", "ERROR", "TERMINATED")),
    Option("--capability", "Only those with this capability.", TEXT),
    Option("--coordinator", "Only those that tasks are matched to, or are not.", choice("yes", "no")),
    *PAGES,
    FULL,
)
_BEAT = (
    Option("--status", "How it is [default: healthy].", choice("healthy", "degraded")),
    Option("--task", "The task it works on.", ID),
    Option("--percent", "How far that has come, 0 to 100.", NUMBER),
    Option("--step", "What is being done now.", TEXT),
    Option("--checkpoint", f"Where another attempt goes on from: {GIVEN}.", TEXT),
    Option("--attempt-token", "Of that task's attempt.", TEXT),
    Option("--memory", "Megabytes it uses.", NUMBER),
    Option("--cpu", "Percent of a processor it uses.", NUMBER),
    Option("--metadata", "A JSON object.", OBJECT),
)
_BEATING = "Exits with 1 if it must stop working on a task: one was canceled, or paused."
_TERMINATE = (
    Option("--reason", "Why, for the record [default: requested].", TEXT),
    Option("--graceful", "Let it finish what it works on, and give it nothing more."),
)
_ENDING = "Without --graceful its tasks are taken from it at once, and tried again by others."
_TOKEN = (
    Option("--ttl", "How long it is good: 15m, 2h, 30d [default: 1h].", DURATION),
    Option("--attempt-token", "The attempt it is for, which then need not be named again.", TEXT),
)


def register(context: Context) -> int:
    if fleet_or_none(context) is not None:
        return fleet_agents.register(context)
    fleet_agents.require_none(context)
    coordinator = context.text("coordinator")
    body = without_nothing(
        {
            "name": context.text("name"),
            "model": context.text("model"),
            "description": context.text("description"),
            "capabilities": context.many("capability") or None,
            "maxConcurrentTasks": context.number("max_tasks"),
            "heartbeatIntervalSeconds": context.number("heartbeat"),
            "staleThresholdSeconds": context.number("stale_after"),
            "coordinatorEnabled": None if coordinator is None else coordinator == "yes",
            "launcher": context.text("launcher"),
            "pool": context.text("pool"),
            "labels": context.ask.values["labels"],
        }
    )
    told = context.server().call("PUT", _path(context), body=body).document
    context.show(told, lambda agent: cell(agent.get("id")))
    return 0


def list_(context: Context) -> int:
    if fleet_or_none(context) is not None:
        return fleet_agents.list_(context)
    coordinator = context.text("coordinator")
    query = {
        "status": context.text("status"),
        "capability": context.text("capability"),
        # As text: what is False would be left out.
        "coordinatorEnabled": None if coordinator is None else "true" if coordinator == "yes" else "false",
    }
    return show_list(context, context.work("agents"), query, _table)


def show(context: Context) -> int:
    if fleet_or_none(context) is not None:
        return fleet_agents.show(context)
    fleet_agents.require_none(context)
    found = context.server().get(_path(context))
    told = {name: value for name, value in found.items() if value not in ([], {})}
    context.show(found, lambda _: fields(in_full(told, time.time()), context.paint))
    return 0


def health(context: Context) -> int:
    found = context.server().get(_path(context, "health"))
    context.show(found, lambda told: _health(context, told))
    return EXIT_FAILED if found.get("status") in ("ERROR", "TERMINATED") else 0


def heartbeat(context: Context) -> int:
    body = without_nothing(
        {
            "status": context.text("status"),
            "currentTaskId": context.text("task"),
            "progressPercent": context.number("percent"),
            "currentStep": context.text("step"),
            "checkpointData": document(context, "checkpoint"),
            "attemptToken": context.text("attempt_token"),
            "memoryMb": context.number("memory"),
            "cpuPercent": context.number("cpu"),
            "metadata": context.ask.values["metadata"],
        }
    )
    told = context.server().call("POST", _path(context, "heartbeat"), body=body).document
    context.show(told, _heard)
    return EXIT_FAILED if told.get("cancel") or told.get("pause") else 0


def deregister(context: Context) -> int:
    if fleet_or_none(context) is not None:
        return fleet_agents.deregister(context)
    fleet_agents.require_none(context)
    return terminate(context)


def terminate(context: Context) -> int:
    body = without_nothing({"reason": context.text("reason"), "graceful": True if context.flag("graceful") else None})
    told = context.server().call("POST", _path(context, "terminate"), body=body).document
    name = _id(context)
    over = told.get("status") == "TERMINATED"
    held = "last task" if told.get("heldTasks") == 1 else f"{cell(told.get('heldTasks'))} tasks"
    context.show(
        told, lambda _: f"terminated {name}" if over else f"{name} takes nothing more, and ends with its {held}"
    )
    return 0


def token(context: Context) -> int:
    """The token alone on stdout: `QD_TOKEN=$(qd agent token ID)`."""
    body = without_nothing({"ttlSeconds": context.number("ttl"), "attemptToken": context.text("attempt_token")})
    told = context.server().call("POST", _path(context, "token"), body=body).document
    context.show(told, lambda made: cell(made.get("token")))
    return 0


def _path(context: Context, *rest: str) -> str:
    return context.work("agents", _id(context), *rest)


def _id(context: Context) -> str:
    """What a line may leave away only where a fleet is named."""
    given = context.text("id")
    if given is None:
        raise Usage("usage", "Which agent? Give its id; or a fleet's, with --fleet-id.")
    return given


def _heard(told: Document) -> str:
    lines = [f"go on; be heard of again within {cell(told.get('next'))}s"]
    if told.get("cancel") or told.get("pause"):
        lines = [
            f"stop: {cell(told[name])} {'was canceled' if name == 'cancel' else 'was paused'}"
            for name in ("cancel", "pause")
            if told.get(name)
        ]
    for warning in items_of(told, "warnings"):
        of = f" (task {cell(warning['taskId'])})" if warning.get("taskId") else ""
        lines.append(f"{cell(warning.get('code'))}: {cell(warning.get('detail'))}{of}")
    return "\n".join(lines)


def _table(context: Context, agents: list[Document]) -> str:
    if not agents:
        return f"no such agents in zone {context.zone}"
    now = time.time()
    rows = [
        [
            one.get("id"),
            one.get("name"),
            standing(one),
            f"{cell(one.get('heldTasks'))}/{cell(one.get('maxConcurrentTasks'))}",
            one.get("capabilities"),
            one.get("model"),
            ago(one.get("lastSeenAt"), now),
        ]
        for one in agents
    ]
    return table(("ID", "NAME", "STATUS", "TASKS", "CAPABILITIES", "MODEL", "HEARD OF"), rows, context.paint)


def standing(agent: Document) -> str:
    """In a word or two: `ERROR (stale)`, `WORKING (draining)`."""
    more = agent.get("statusReason") or ("draining" if agent.get("draining") is True else None)
    status = cell(agent.get("status"))
    return status if more is None or status == "TERMINATED" else f"{status} ({cell(more)})"


def _health(context: Context, told: Document) -> str:
    named = {name: value for name, value in told.items() if name not in ("heartbeats", "ageSeconds")}
    shown = fields(in_full(named, time.time()), context.paint)
    beats = items_of(told, "heartbeats")
    if not beats:
        return shown
    now = time.time()
    rows = [
        [
            ago(one.get("lastSeenAt"), now),
            *(one.get(name) for name in ("status", "currentTaskId", "progressPercent", "memoryMb", "cpuPercent")),
        ]
        for one in beats
    ]
    heads = ("HEARD OF", "STATUS", "TASK", "PERCENT", "MB", "CPU")
    return f"{shown}\n\n{table(heads, rows, context.paint)}"
