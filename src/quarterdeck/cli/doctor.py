"""`qd doctor`: finds problems and prints a fix for each. It changes nothing and starts no server."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from quarterdeck import __version__
from quarterdeck.cli.command_table import Group
from quarterdeck.cli.context import Context
from quarterdeck.cli.fleet_common import fleets_path
from quarterdeck.cli.list_output import nested
from quarterdeck.cli.monitor import is_live
from quarterdeck.cli.output import cell, pad, parse_timestamp, width
from quarterdeck.client.api import ApiClient, Document, page_items
from quarterdeck.core.errors import EXIT_FAILED, NotFound, Problem

MAX_CLOCK_SKEW_SECONDS = 5.0
"""A larger skew is a problem: the CLI shows wrong ages, and tokens expire too early or too late."""


class CheckResult(NamedTuple):
    """One line of the report: what was checked, the finding, and the fix if there is a problem."""

    name: str
    detail: str
    fix: str | None = None

    @property
    def ok(self) -> bool:
        return self.fix is None


GROUP = Group("")


@GROUP.command(
    "doctor",
    "Diagnose problems and suggest fixes. Exits 1 if any are found.",
    description="Checks tmux, the server, its database and clock, and the panes and monitors of fleets.",
)
def doctor(context: Context) -> int:
    results = [_check_versions(), _check_tmux(context), *_check_server(context)]
    ok = all(result.ok for result in results)
    checks = [{"name": result.name, "ok": result.ok, "detail": result.detail, "mend": result.fix} for result in results]
    context.show({"ok": ok, "checks": checks}, lambda _: _format_results(context, results))
    return 0 if ok else EXIT_FAILED


def _format_results(context: Context, results: Sequence[CheckResult]) -> str:
    name_width = max(width(result.name) for result in results)
    ok, problem = (
        context.styler.color_by_status(status, label)
        for status, label in (("healthy", "ok     "), ("failed", "problem"))
    )
    return "\n".join(
        f"{ok if result.ok else problem}  {pad(result.name, name_width)}  {cell(result.detail)}"
        + ("" if result.fix is None else f" -> {cell(result.fix)}")
        for result in results
    )


# -- this machine ------------------------------------------------------------------------------------------------------


def _check_versions() -> CheckResult:
    python = ".".join(map(str, sys.version_info[:3]))
    return CheckResult("versions", f"quarterdeck {__version__}, python {python}")


def _check_tmux(context: Context) -> CheckResult:
    from quarterdeck.tmux.commands import MIN_VERSION, installed_version

    tmux_version = installed_version()
    if tmux_version is None:
        return CheckResult(
            "tmux", "tmux is not installed, so members cannot have panes", "apt install tmux, or brew install tmux"
        )
    numbers, text = tmux_version
    if numbers < MIN_VERSION:
        minimum = ".".join(map(str, MIN_VERSION))
        return CheckResult("tmux", f"{text} is older than {minimum}", f"install tmux {minimum} or newer")
    location = "inside tmux" if context.environ.get("TMUX_PANE") else "outside tmux (`qd fleet create --no-pane`)"
    return CheckResult("tmux", f"{text}, {location}")


# -- the server --------------------------------------------------------------------------------------------------------


def _check_server(context: Context) -> Iterator[CheckResult]:
    try:
        server = context.find_running_server()
        if server is None:
            yield CheckResult("server", f"no server is running for {context.data_dir.path}", "qd up")
        else:
            yield from _check_running_server(context, server)
    except Problem as problem:
        # The results yielded so far are kept.
        yield CheckResult("server", problem.detail, "qd status")


def _check_running_server(context: Context, server: ApiClient) -> Iterator[CheckResult]:
    sent_at = time.time()
    try:
        about = server.get("/about")
    except NotFound:
        # The server's release predates this route.
        yield CheckResult("server", f"{server.address} is running an older release", _version_fix(context, None))
        return
    received_at = time.time()
    yield _check_release(context, server, about)
    yield _check_database(about)
    yield _check_clock(context, about, sent_at, received_at)
    yield from _check_fleets(server)


def _check_release(context: Context, server: ApiClient, about: Document) -> CheckResult:
    server_version = about.get("version")
    if server_version == __version__:
        return CheckResult("server", f"{server.address}, quarterdeck {__version__}")
    detail = f"{server.address} is running quarterdeck {cell(server_version)}, but qd is {__version__}"
    return CheckResult("server", detail, _version_fix(context, cell(server_version)))


def _version_fix(context: Context, server_version: str | None) -> str:
    """Suggest restarting a local server, which then runs this release, or installing the release of a remote server."""
    if context.server_location.explicit_url(context.environ) is None:
        return "qd stop (the next command starts a server with this release)"
    return "upgrade that server" if server_version is None else f"pip install quarterdeck=={server_version}"


def _check_database(about: Document) -> CheckResult:
    complaint = about.get("complaint")
    engine, revision = cell(about.get("database")), cell(about.get("revision"))
    if complaint is None:
        return CheckResult("database", f"{engine}, schema {revision}")
    return CheckResult("database", f"{engine}: {cell(complaint)}", "qd db upgrade")


def _check_clock(context: Context, about: Document, sent_at: float, received_at: float) -> CheckResult:
    server_time = parse_timestamp(about.get("now"))
    if server_time is None:
        return CheckResult("clock", "the server does not report its time", _version_fix(context, None))
    # The server read its clock between the two times, so only a time outside this interval is skew.
    skew = max(sent_at - server_time, server_time - received_at, 0.0)
    if skew <= MAX_CLOCK_SKEW_SECONDS:
        return CheckResult("clock", f"differs from the server's clock by {skew:.1f} s")
    return CheckResult("clock", f"differs from the server's clock by {skew:.0f} s", "timedatectl set-ntp true")


# -- the fleets --------------------------------------------------------------------------------------------------------


def _check_fleets(server: ApiClient) -> list[CheckResult]:
    fleets = [fleet for page in server.pages(fleets_path(), {}) for fleet in page_items(page, "fleets")]
    directors = {
        fleet_id: nested(fleet, "director").get("agent_id")
        for fleet in fleets
        if isinstance(fleet_id := fleet.get("fleet_id"), int) and fleet.get("deleted_at") is None
    }
    monitors = [server.get(fleets_path(fleet_id, "monitor")) for fleet_id in directors]
    return [*_check_panes(monitors, directors), *_check_monitors(monitors)]


def _check_monitors(monitors: Sequence[Document]) -> list[CheckResult]:
    stale_results = [
        CheckResult(
            "monitor",
            f"fleet {cell(entry.get('fleet_id'))}: its monitor (pid {cell(entry.get('pid'))}) is no longer running",
            f"qd monitor start --fleet-id {cell(entry.get('fleet_id'))}",
        )
        for entry in monitors
        if entry.get("pid") is not None and not is_live(entry)
    ]
    running_count = sum(1 for entry in monitors if entry.get("pid") is not None)
    return stale_results or [CheckResult("monitor", f"{running_count} of {len(monitors)} fleets have a monitor")]


def _check_panes(monitors: Sequence[Document], directors: Mapping[int, object]) -> list[CheckResult]:
    """Find panes that are recorded but do not exist. Only panes on this host can be checked."""
    import asyncio

    from quarterdeck.monitor.missing_panes import find_missing_panes
    from quarterdeck.monitor.model import MonitorState, decode
    from quarterdeck.tmux.host import this_host

    placed = [
        (monitor.fleet_id, member, member.placement)
        for monitor in (decode(item, MonitorState) for item in monitors)
        for member in monitor.members
        if member.placement is not None
    ]
    missing = asyncio.run(find_missing_panes([placement for _, _, placement in placed], this_host(), time.time()))
    missing_results = [
        CheckResult(
            "panes",
            f"fleet {fleet_id}, {member.agent_id} {member.name}: {reason}",
            _pane_fix(fleet_id, member.agent_id, directors),
        )
        for (fleet_id, member, _), reason in zip(placed, missing.reasons, strict=True)
        if reason is not None
    ]
    unreachable_results = [CheckResult("panes", item.reason, _tmux_fix(item.socket)) for item in missing.unreachable]
    return [*missing_results, *unreachable_results] or [CheckResult("panes", f"{len(placed)} members have a pane")]


def _tmux_fix(socket: str) -> str:
    """Suggest running tmux, never deleting members: the panes could not be checked and may still exist."""
    from shlex import quote

    return f"tmux -S {quote(socket)} list-panes -a (when it works, run qd doctor again)"


def _pane_fix(fleet_id: int, agent_id: int, directors: Mapping[int, object]) -> str:
    """Suggest deleting the member. For a director, suggest polling first: deleting its fleet stops all members."""
    if directors.get(fleet_id) == agent_id:
        return f"qd message poll --fleet-id {fleet_id} --agent-id {agent_id} (or qd fleet delete {fleet_id})"
    return f"qd member delete --fleet-id {fleet_id} --member-id {agent_id}"
