"""The monitor of a fleet: start it, ask how it is, and say whom it watches over, and how closely."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from quarterdeck.cli import fleet_common
from quarterdeck.cli.command_table import DURATION, MEMBER_ID, NUMBER, Command, CommandTable, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.input import without_none
from quarterdeck.cli.output import cell, instant, span
from quarterdeck.client.api import Document, page_items

TICK_SECONDS, MAX_TICK_SECONDS = 5, 3_600


def build_command_table() -> CommandTable:
    return CommandTable(
        (
            Command(
                ("monitor", "start"),
                "Watch over a fleet until told to stop.",
                fleet_common.with_fleet_errors(start),
                options=_START_OPTIONS,
                description=_START_HELP,
            ),
            Command(
                ("monitor", "status"),
                "Tell whether a monitor watches over the fleet, and over whom.",
                fleet_common.with_fleet_errors(status),
            ),
            Command(
                ("monitor", "config"),
                "Show or set how closely a member is watched over.",
                fleet_common.with_fleet_errors(config),
                options=_CONFIG_OPTIONS,
            ),
        ),
        {"monitor": "Watches over the panes of a fleet, and reminds members of their messages."},
    )


_START_OPTIONS = (
    Option("--tick", f"Seconds between two looks [default: {TICK_SECONDS}].", NUMBER),
    Option("--policy", "Whom to ping, of those who are due [default: quiet].", choice("quiet", "seed")),
    Option("--daemon", "Go on in the background; prints the pid. Its log is in the data directory."),
)
_START_HELP = """\b
quiet: who has unread messages, or whose pane has shown the same for its interval
seed:  everybody, also who is at work

One process watches over a fleet. SIGTERM and Ctrl-C end it; it also ends with its fleet."""
_CONFIG_OPTIONS = (
    Option("--agent-id", "The member [env QD_AGENT_ID].", MEMBER_ID),
    Option("--interval", "How long to leave it alone after a ping: 90, 15m.", DURATION),
    Option("--enable", "Ping it."),
    Option("--disable", "Leave it alone altogether."),
)


# -- start ------------------------------------------------------------------------------------------------------------


def start(context: Context) -> int:
    from pathlib import Path  # a monitor stays for days, and may take its time to begin

    fleet_id, tick = fleet_common.require_fleet_id(context), _tick(context)
    context.server().connection.close()  # started where that is allowed: a monitor itself starts none
    from quarterdeck.monitor.daemonize import start_daemon
    from quarterdeck.monitor.loop import MonitorConfig, monitor_fleet
    from quarterdeck.monitor.server_api import ServerApi
    from quarterdeck.tmux.host import this_host

    data_dir = Path(context.data_dir.path)

    def run_monitor(on_started: Callable[[], None]) -> None:
        loop_config = MonitorConfig(
            tick, context.text("policy") or "quiet", lambda line: _log_line(context, line), on_started
        )
        monitor_fleet(ServerApi(fleet_id, this_host(), context.find_running_server), data_dir, loop_config)

    if not context.flag("daemon"):
        run_monitor(lambda: _print_started(context, fleet_id, os.getpid(), tick))
        return 0
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = str(data_dir / f"monitor-{context.zone}-{fleet_id}.log")

    def run_daemon(on_started: Callable[[], None]) -> None:
        _log_line(context, f"begins to watch over fleet {fleet_id} (pid {os.getpid()})")
        run_monitor(on_started)
        _log_line(context, "has ended")

    _print_started(context, fleet_id, start_daemon(log, run_daemon), tick, log)
    return 0


def _tick(context: Context) -> int:
    option_value = context.number("tick")
    tick = TICK_SECONDS if option_value is None else option_value
    if not 1 <= tick <= MAX_TICK_SECONDS:
        raise UsageError("usage", f"--tick: {tick} is not a number of seconds from 1 to {MAX_TICK_SECONDS}.")
    return tick


def _print_started(context: Context, fleet_id: int, pid: int, tick: int, log: str | None = None) -> None:
    started: Document = without_none({"fleet_id": fleet_id, "pid": pid, "tick_seconds": tick, "log": log})
    now = time.time()
    fleet_common.print_result(context, started, lambda: format_monitor({**started, "is_recent": True}, now, now))
    _flush()


def _log_line(context: Context, line: str) -> None:
    """What happens, for people: of a program's answer there is one line."""
    timestamp = time.strftime("%Y-%m-%d %H:%M:%S")
    (context.note if context.as_json else context.write)(f"{timestamp} {fleet_common.escape_control_characters(line)}")
    _flush()


def _flush() -> None:
    """This goes on for days: whoever reads along must not wait for a full buffer."""
    import sys

    sys.stdout.flush()


# -- status -----------------------------------------------------------------------------------------------------------


def status(context: Context) -> int:
    monitor = context.server().get(fleet_common.fleets_path(fleet_common.require_fleet_id(context), "monitor"))
    is_running = is_live(monitor)
    now = time.time()

    def render() -> str:
        lines = [format_monitor({**monitor, "is_recent": is_running}, instant(monitor.get("last_tick_at")), now)]
        return "\n".join([*lines, *(_format_member(member, now) for member in page_items(monitor, "members"))])

    fleet_common.print_result(context, {**monitor, "is_live": is_running}, render)
    return 0


def is_live(monitor: Document) -> bool:
    """Its heartbeat is young enough; and on its own host, as its own user, its process can be looked for."""
    pid = monitor.get("pid")
    if monitor.get("is_recent") is not True or not isinstance(pid, int):
        return False
    from quarterdeck.monitor.server_api import is_process_alive
    from quarterdeck.tmux.host import this_host

    host = this_host()
    # Elsewhere the pid is another's; and as another user one may not be shown processes that are there.
    is_local = (monitor.get("host_id"), monitor.get("user_id")) == (host.id, host.user_id)
    return is_process_alive(pid) if is_local else True


def format_monitor(monitor: Document, last_tick_at: float | None, now: float) -> str:
    """`monitor: running (pid 12, last tick 0s ago, tick 5s)`."""
    if monitor.get("pid") is None or last_tick_at is None:
        return "monitor: stopped"
    state = "running" if monitor["is_recent"] else "stale"
    pid, tick = cell(monitor["pid"]), cell(monitor.get("tick_seconds"))
    return f"monitor: {state} (pid {pid}, last tick {span(now - last_tick_at)} ago, tick {tick}s)"


# -- config -----------------------------------------------------------------------------------------------------------


def config(context: Context) -> int:
    if context.flag("enable") and context.flag("disable"):
        raise UsageError("usage", "--enable and --disable exclude each other.")
    enabled = True if context.flag("enable") else False if context.flag("disable") else None
    body = without_none({"interval_seconds": context.number("interval"), "enabled": enabled})
    path = fleet_common.fleets_path(
        fleet_common.require_fleet_id(context), "members", fleet_common.require_agent_id(context), "monitor"
    )
    member = context.server().call("PATCH" if body else "GET", path, body=body or None).document
    fleet_common.print_result(context, member, lambda: _format_member(member, time.time()))
    return 0


def _format_member(member: Document, now: float) -> str:
    """`3 alice every 60s, last ping 12s ago`."""
    name = "" if member.get("name") is None else f" {cell(member['name'])}"
    last_ping_at = instant(member.get("last_ping_at"))
    last = "never pinged" if last_ping_at is None else f"last ping {span(now - last_ping_at)} ago"
    unread = f", {member['unread']} unread" if member.get("unread") else ""
    off = "" if member.get("enabled") else ", disabled"
    return f"{cell(member.get('agent_id'))}{name} every {cell(member.get('interval_seconds'))}s, {last}{unread}{off}"
