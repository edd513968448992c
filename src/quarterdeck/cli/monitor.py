"""`qd monitor`: start, status, config."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

from quarterdeck.cli.command_table import DURATION, MEMBER_ID, NUMBER, Group, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import usage_error
from quarterdeck.cli.fleet_common import (
    escape_control_characters,
    fleet_path,
    fleets_path,
    require_agent_id,
    require_fleet_id,
    with_fleet_errors,
)
from quarterdeck.cli.output import cell, format_duration, parse_timestamp
from quarterdeck.client.api import Document, page_items

DEFAULT_TICK_SECONDS, MAX_TICK_SECONDS = 5, 3_600


GROUP = Group(
    "monitor", "Manage the monitor of a fleet. It watches panes and pings idle members.", wrap=with_fleet_errors
)


_START_HELP = """\b
quiet: members with unread messages, or whose pane has not changed for the interval
seed:  all members, even if they are working

A fleet has one monitor process. SIGTERM and Ctrl-C stop it. It exits when its fleet is deleted."""


# -- start ------------------------------------------------------------------------------------------------------------


@GROUP.command(
    "start",
    "Run the monitor of a fleet.",
    Option("--tick", f"Seconds between two checks of the panes [default: {DEFAULT_TICK_SECONDS}].", NUMBER),
    Option("--policy", "Which members to ping when their interval ends [default: quiet].", choice("quiet", "seed")),
    Option("--daemon", "Run in the background and print the pid. The log is in the data directory."),
    description=_START_HELP,
)
def start(context: Context) -> None:
    from pathlib import Path  # slow to import, but a monitor runs for days

    fleet_id, tick_seconds = require_fleet_id(context), _require_tick_seconds(context)
    context.server().connection.close()  # starts a local server if necessary: the monitor never starts one
    from quarterdeck.monitor.daemonize import start_daemon
    from quarterdeck.monitor.loop import MonitorConfig, monitor_fleet
    from quarterdeck.monitor.server_api import ServerApi
    from quarterdeck.tmux.host import this_host

    data_dir = Path(context.data_dir.path)

    def run_monitor(on_started: Callable[[], None]) -> None:
        loop_config = MonitorConfig(
            tick_seconds, context.text("policy") or "quiet", lambda line: _log_line(context, line), on_started
        )
        monitor_fleet(ServerApi(fleet_id, this_host(), context.find_running_server), data_dir, loop_config)

    if not context.flag("daemon"):
        run_monitor(lambda: _print_started(context, fleet_id, os.getpid(), tick_seconds))
        return
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    log_path = str(data_dir / f"monitor-{context.zone}-{fleet_id}.log")

    def run_daemon(on_started: Callable[[], None]) -> None:
        _log_line(context, f"monitor of fleet {fleet_id} started (pid {os.getpid()})")
        run_monitor(on_started)
        _log_line(context, f"monitor of fleet {fleet_id} stopped")

    _print_started(context, fleet_id, start_daemon(log_path, run_daemon), tick_seconds, log_path)


def _require_tick_seconds(context: Context) -> int:
    tick = context.number("tick")
    tick_seconds = DEFAULT_TICK_SECONDS if tick is None else tick
    if not 1 <= tick_seconds <= MAX_TICK_SECONDS:
        raise usage_error(f"--tick: {tick_seconds} is out of range. Use 1 to {MAX_TICK_SECONDS} seconds.")
    return tick_seconds


def _print_started(context: Context, fleet_id: int, pid: int, tick_seconds: int, log_path: str | None = None) -> None:
    monitor: Document = {"fleet_id": fleet_id, "pid": pid, "tick_seconds": tick_seconds}
    now = time.time()
    context.show(
        monitor if log_path is None else {**monitor, "log": log_path},
        lambda _: format_monitor({**monitor, "is_recent": True}, now, now),
    )
    # A monitor runs for days, and its output must not wait for a full buffer.
    sys.stdout.flush()


def _log_line(context: Context, line: str) -> None:
    """Print a log line. With --json it goes to stderr, because stdout must have exactly one JSON line."""
    timestamp = time.strftime("%Y-%m-%d %H:%M:%S")
    (context.note if context.as_json else context.write)(f"{timestamp} {escape_control_characters(line)}")
    sys.stdout.flush()


# -- status -----------------------------------------------------------------------------------------------------------


@GROUP.command("status", "Show the monitor of a fleet and the members it watches.")
def status(context: Context) -> None:
    monitor, now = context.server().get(fleet_path(context, "monitor")), time.time()
    is_running = is_live(monitor)

    def render(_: Document) -> str:
        last_tick_at = parse_timestamp(monitor.get("last_tick_at"))
        heading = format_monitor({**monitor, "is_recent": is_running}, last_tick_at, now)
        return "\n".join([heading, *(_format_member(member, now) for member in page_items(monitor, "members"))])

    context.show({**monitor, "is_live": is_running}, render)


def is_live(monitor: Document) -> bool:
    """Whether the heartbeat is recent and, for a monitor of this user on this host, the process exists."""
    pid = monitor.get("pid")
    if monitor.get("is_recent") is not True or not isinstance(pid, int):
        return False
    from quarterdeck.monitor.server_api import is_process_alive
    from quarterdeck.tmux.host import this_host

    host = this_host()
    # The pid of another host means nothing here, and processes of other users may be hidden.
    is_local = (monitor.get("host_id"), monitor.get("user_id")) == (host.id, host.user_id)
    return is_process_alive(pid) if is_local else True


def format_monitor(monitor: Document, last_tick_at: float | None, now: float) -> str:
    """Format a line such as `monitor: running (pid 12, last tick 0s ago, tick 5s)`."""
    if monitor.get("pid") is None or last_tick_at is None:
        return "monitor: stopped"
    state = "running" if monitor["is_recent"] else "stale"
    pid, tick = cell(monitor["pid"]), cell(monitor.get("tick_seconds"))
    return f"monitor: {state} (pid {pid}, last tick {format_duration(now - last_tick_at)} ago, tick {tick}s)"


# -- config -----------------------------------------------------------------------------------------------------------


@GROUP.command(
    "config",
    "Show or set how often a member is pinged.",
    Option("--agent-id", "Member to configure [env: QD_AGENT_ID].", MEMBER_ID),
    Option("--interval", "Minimum time between two pings, such as 90s or 15m.", DURATION, field="interval_seconds"),
    Option("--enable", "Ping the member.", field="enabled"),
    Option("--disable", "Do not ping the member."),
)
def config(context: Context) -> None:
    if context.flag("enable") and context.flag("disable"):
        raise usage_error("Give --enable or --disable, not both.")
    body = context.body() | ({"enabled": False} if context.flag("disable") else {})
    path = fleets_path(require_fleet_id(context), "members", require_agent_id(context), "monitor")
    context.send(
        "PATCH" if body else "GET", path, lambda member: _format_member(member, time.time()), body=body or None
    )


def _format_member(member: Document, now: float) -> str:
    """Format a line such as `3 alice every 60s, last ping 12s ago`."""
    name = "" if member.get("name") is None else f" {cell(member['name'])}"
    last_ping_at = parse_timestamp(member.get("last_ping_at"))
    last_ping = "never pinged" if last_ping_at is None else f"last ping {format_duration(now - last_ping_at)} ago"
    unread = f", {member['unread']} unread" if member.get("unread") else ""
    disabled = "" if member.get("enabled") else ", disabled"
    interval = f"every {cell(member.get('interval_seconds'))}s"
    return f"{cell(member.get('agent_id'))}{name} {interval}, {last_ping}{unread}{disabled}"
