"""The monitor of a fleet: start it, ask how it is, and say whom it watches over, and how closely."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from quarterdeck.cli import fleet_common
from quarterdeck.cli.command_table import DURATION, MEMBER, NUMBER, Command, Noun, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import Usage
from quarterdeck.cli.input import without_nothing
from quarterdeck.cli.output import cell, instant, span
from quarterdeck.client.api import Document, items_of

TICK_SECONDS, TICK_MAX = 5, 3_600


def noun() -> Noun:
    return Noun(
        (
            Command(
                ("monitor", "start"),
                "Watch over a fleet until told to stop.",
                fleet_common.plainly(start),
                options=_START,
                description=_STARTING,
            ),
            Command(
                ("monitor", "status"),
                "Tell whether a monitor watches over the fleet, and over whom.",
                fleet_common.plainly(status),
            ),
            Command(
                ("monitor", "config"),
                "Show or set how closely a member is watched over.",
                fleet_common.plainly(config),
                options=_CONFIG,
            ),
        ),
        {"monitor": "Watches over the panes of a fleet, and reminds members of their messages."},
    )


_START = (
    Option("--tick", f"Seconds between two looks [default: {TICK_SECONDS}].", NUMBER),
    Option("--policy", "Whom to ping, of those who are due [default: quiet].", choice("quiet", "seed")),
    Option("--daemon", "Go on in the background; prints the pid. Its log is in the data directory."),
)
_STARTING = """\b
quiet: who has unread messages, or whose pane has shown the same for its interval
seed:  everybody, also who is at work

One process watches over a fleet. SIGTERM and Ctrl-C end it; it also ends with its fleet."""
_CONFIG = (
    Option("--agent-id", "The member [env QD_AGENT_ID].", MEMBER),
    Option("--interval", "How long to leave it alone after a ping: 90, 15m.", DURATION),
    Option("--enable", "Ping it."),
    Option("--disable", "Leave it alone altogether."),
)


# -- start ------------------------------------------------------------------------------------------------------------


def start(context: Context) -> int:
    from pathlib import Path  # a monitor stays for days, and may take its time to begin

    fleet_id, tick = fleet_common.fleet(context), _tick(context)
    context.server().connection.close()  # started where that is allowed: a monitor itself starts none
    from quarterdeck.monitor.daemonize import begin
    from quarterdeck.monitor.loop import Told, watch_over
    from quarterdeck.monitor.server_api import Desk
    from quarterdeck.tmux.host import this_host

    data = Path(context.place.path)

    def watch(begun: Callable[[], None]) -> None:
        told = Told(tick, context.text("policy") or "quiet", lambda line: _say(context, line), begun)
        watch_over(Desk(fleet_id, this_host(), context.again), data, told)

    if not context.flag("daemon"):
        watch(lambda: _begun(context, fleet_id, os.getpid(), tick))
        return 0
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = str(data / f"monitor-{context.zone}-{fleet_id}.log")

    def watch_alone(begun: Callable[[], None]) -> None:
        _say(context, f"begins to watch over fleet {fleet_id} (pid {os.getpid()})")
        watch(begun)
        _say(context, "has ended")

    _begun(context, fleet_id, begin(log, watch_alone), tick, log)
    return 0


def _tick(context: Context) -> int:
    given = context.number("tick")
    tick = TICK_SECONDS if given is None else given
    if not 1 <= tick <= TICK_MAX:
        raise Usage("usage", f"--tick: {tick} is not a number of seconds from 1 to {TICK_MAX}.")
    return tick


def _begun(context: Context, fleet_id: int, pid: int, tick: int, log: str | None = None) -> None:
    told: Document = without_nothing({"fleet_id": fleet_id, "pid": pid, "tick_seconds": tick, "log": log})
    now = time.time()
    fleet_common.tell(context, told, lambda: standing({**told, "is_recent": True}, now, now))
    _flush()


def _say(context: Context, line: str) -> None:
    """What happens, for people: of a program's answer there is one line."""
    moment = time.strftime("%Y-%m-%d %H:%M:%S")
    (context.note if context.as_json else context.write)(f"{moment} {fleet_common.harmless(line)}")
    _flush()


def _flush() -> None:
    """This goes on for days: whoever reads along must not wait for a full buffer."""
    import sys

    sys.stdout.flush()


# -- status -----------------------------------------------------------------------------------------------------------


def status(context: Context) -> int:
    found = context.server().get(fleet_common.fleets(fleet_common.fleet(context), "monitor"))
    live = is_live(found)
    now = time.time()

    def text() -> str:
        lines = [standing({**found, "is_recent": live}, instant(found.get("last_tick_at")), now)]
        return "\n".join([*lines, *(_watched(member, now) for member in items_of(found, "members"))])

    fleet_common.tell(context, {**found, "is_live": live}, text)
    return 0


def is_live(monitor: Document) -> bool:
    """Its heartbeat is young enough; and on its own host, as its own user, its process can be looked for."""
    pid = monitor.get("pid")
    if monitor.get("is_recent") is not True or not isinstance(pid, int):
        return False
    from quarterdeck.monitor.server_api import is_alive
    from quarterdeck.tmux.host import this_host

    here = this_host()
    # Elsewhere the pid is another's; and as another user one may not be shown processes that are there.
    is_ours = (monitor.get("host_id"), monitor.get("user_id")) == (here.id, here.user_id)
    return is_alive(pid) if is_ours else True


def standing(monitor: Document, ticked: float | None, now: float) -> str:
    """`monitor: running (pid 12, last tick 0s ago, tick 5s)`."""
    if monitor.get("pid") is None or ticked is None:
        return "monitor: stopped"
    word = "running" if monitor["is_recent"] else "stale"
    pid, tick = cell(monitor["pid"]), cell(monitor.get("tick_seconds"))
    return f"monitor: {word} (pid {pid}, last tick {span(now - ticked)} ago, tick {tick}s)"


# -- config -----------------------------------------------------------------------------------------------------------


def config(context: Context) -> int:
    if context.flag("enable") and context.flag("disable"):
        raise Usage("usage", "--enable and --disable exclude each other.")
    enabled = True if context.flag("enable") else False if context.flag("disable") else None
    body = without_nothing({"interval_seconds": context.number("interval"), "enabled": enabled})
    path = fleet_common.fleets(fleet_common.fleet(context), "members", fleet_common.agent(context), "monitor")
    found = context.server().call("PATCH" if body else "GET", path, body=body or None).document
    fleet_common.tell(context, found, lambda: _watched(found, time.time()))
    return 0


def _watched(member: Document, now: float) -> str:
    """`3 alice every 60s, last ping 12s ago`."""
    name = "" if member.get("name") is None else f" {cell(member['name'])}"
    pinged = instant(member.get("last_ping_at"))
    last = "never pinged" if pinged is None else f"last ping {span(now - pinged)} ago"
    unread = f", {member['unread']} unread" if member.get("unread") else ""
    off = "" if member.get("enabled") else ", disabled"
    return f"{cell(member.get('agent_id'))}{name} every {cell(member.get('interval_seconds'))}s, {last}{unread}{off}"
