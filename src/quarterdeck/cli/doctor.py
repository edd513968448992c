"""`qd doctor`: what is wrong, and the command that mends it. It changes nothing, and starts no server."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from quarterdeck import __version__
from quarterdeck.cli.command_table import Command, Noun
from quarterdeck.cli.context import Context
from quarterdeck.cli.fleet_common import fleets
from quarterdeck.cli.monitor import is_live
from quarterdeck.cli.output import cell, instant, pad, width
from quarterdeck.client.api import Document, Server, items_of
from quarterdeck.core.errors import EXIT_FAILED, NotFound, Problem

CLOCKS_MAY_DIFFER = 5.0
"""Seconds: ages are shown wrongly by as much; tokens are good a little earlier or later."""


class Found(NamedTuple):
    """One line: what was looked at, whether it is as it should be, and what mends it if it is not."""

    name: str
    detail: str
    mend: str | None = None

    @property
    def ok(self) -> bool:
        return self.mend is None


def noun() -> Noun:
    return Noun(
        (
            Command(
                ("doctor",),
                "Tell what is wrong, and what mends it; fails if anything is.",
                doctor,
                description="Looks at tmux, the server, its database and clock, and the fleets' panes and monitors.",
            ),
        ),
        {},
    )


def doctor(context: Context) -> int:
    found = [*_versions(), *_tmux(context), *_server(context)]
    ok = all(each.ok for each in found)
    checks = [{"name": each.name, "ok": each.ok, "detail": each.detail, "mend": each.mend} for each in found]
    context.show({"ok": ok, "checks": checks}, lambda _: _drawn(context, found))
    return 0 if ok else EXIT_FAILED


def _drawn(context: Context, found: Sequence[Found]) -> str:
    columns = max(width(each.name) for each in found)
    lines = []
    for each in found:
        word = context.paint.status("healthy" if each.ok else "failed", "ok   " if each.ok else "wrong")
        mend = "" if each.mend is None else f" -> {cell(each.mend)}"
        lines.append(f"{word}  {pad(each.name, columns)}  {cell(each.detail)}{mend}")
    return "\n".join(lines)


# -- this machine ------------------------------------------------------------------------------------------------------


def _versions() -> list[Found]:
    python = ".".join(map(str, sys.version_info[:3]))
    return [Found("versions", f"quarterdeck {__version__}, python {python}")]


def _tmux(context: Context) -> list[Found]:
    from quarterdeck.tmux.version import LEAST_VERSION, version

    found = version()
    if found is None:
        return [Found("tmux", "tmux is not installed: members have no panes", "apt install tmux, or brew install tmux")]
    numbers, text = found
    if numbers < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        return [Found("tmux", f"{text} is older than {least}", f"install tmux {least} or newer")]
    inside = "inside tmux" if context.environ.get("TMUX_PANE") else "outside tmux (`qd fleet create --no-pane`)"
    return [Found("tmux", f"{text}, {inside}")]


# -- the server --------------------------------------------------------------------------------------------------------


def _server(context: Context) -> Iterator[Found]:
    try:
        server = context.again()
        if server is None:
            yield Found("server", f"no server runs for {context.place.path}", "qd up")
        else:
            yield from _served(context, server)
    except Problem as problem:
        # What was found before it stays said.
        yield Found("server", problem.detail, "qd status")


def _served(context: Context, server: Server) -> Iterator[Found]:
    asked = time.time()
    try:
        about = server.get("/about")
    except NotFound:
        # It is older than this route.
        yield Found("server", f"{server.address} is of an older release", _mend_version(context, None))
        return
    answered = time.time()
    yield _release(context, server, about)
    yield _database(about)
    yield _clock(about, asked, answered)
    yield from _fleets(server)


def _release(context: Context, server: Server, about: Document) -> Found:
    theirs = about.get("version")
    if theirs == __version__:
        return Found("server", f"{server.address}, quarterdeck {__version__}")
    detail = f"{server.address} is quarterdeck {cell(theirs)}, and this is {__version__}"
    return Found("server", detail, _mend_version(context, cell(theirs)))


def _mend_version(context: Context, theirs: str | None) -> str:
    """A server of one's own is started again as what is installed; elsewhere it is the other way round."""
    if context.where.address(context.environ) is None:
        return "qd stop (the next command starts a server of this release)"
    return "upgrade that server" if theirs is None else f"pip install quarterdeck=={theirs}"


def _database(about: Document) -> Found:
    complaint = about.get("complaint")
    engine, revision = cell(about.get("database")), cell(about.get("revision"))
    if complaint is None:
        return Found("database", f"{engine}, schema {revision}")
    return Found("database", f"{engine}: {cell(complaint)}", "qd db upgrade")


def _clock(about: Document, asked: float, answered: float) -> Found:
    theirs = instant(about.get("now"))
    if theirs is None:
        return Found("clock", "the server does not tell its time", "qd stop")
    # It was read between the two: only what cannot be explained by the way there and back is a difference.
    differs = max(asked - theirs, theirs - answered, 0.0)
    if differs <= CLOCKS_MAY_DIFFER:
        return Found("clock", f"differs from the server's by {differs:.1f} s")
    return Found("clock", f"differs from the server's by {differs:.0f} s", "timedatectl set-ntp true")


# -- the fleets --------------------------------------------------------------------------------------------------------


def _fleets(server: Server) -> list[Found]:
    directors: dict[int, object] = {}
    watches: list[Document] = []
    for fleet in _all_fleets(server):
        number, director = fleet.get("fleet_id"), fleet.get("director")
        if isinstance(number, int) and fleet.get("deleted_at") is None:
            directors[number] = director.get("agent_id") if isinstance(director, dict) else None
            watches.append(server.get(fleets(number, "monitor")))
    return [*_panes(watches, directors), *_monitors(watches)]


def _all_fleets(server: Server) -> Iterator[Document]:
    for page in server.pages(fleets(), {}):
        yield from items_of(page, "fleets")


def _monitors(watches: Sequence[Document]) -> list[Found]:
    stale = [
        Found(
            "monitor",
            f"fleet {cell(watch.get('fleet_id'))}: its monitor (pid {cell(watch.get('pid'))}) has ended without a word",
            f"qd monitor start --fleet-id {cell(watch.get('fleet_id'))}",
        )
        for watch in watches
        if watch.get("pid") is not None and not is_live(watch)
    ]
    running = sum(1 for watch in watches if watch.get("pid") is not None)
    return stale or [Found("monitor", f"{running} of {len(watches)} fleets have one")]


def _panes(watches: Sequence[Document], directors: Mapping[int, object]) -> list[Found]:
    """Panes that are written down and are not there: only on their own host can anybody tell."""
    import asyncio

    from quarterdeck.monitor.model import Watch, read
    from quarterdeck.monitor.stale_placements import stale
    from quarterdeck.tmux.host import this_host

    placed = [
        (watch.fleet_id, member, member.placement)
        for watch in (read(each, Watch) for each in watches)
        for member in watch.members
        if member.placement is not None
    ]
    judged = asyncio.run(stale([placement for _, _, placement in placed], this_host(), time.time()))
    gone = [
        Found(
            "panes",
            f"fleet {fleet_id}, {member.agent_id} {member.name}: {why}",
            _mend_pane(fleet_id, member.agent_id, directors),
        )
        for (fleet_id, member, _), why in zip(placed, judged.whys, strict=True)
        if why is not None
    ]
    unseen = [Found("panes", each.why, _mend_tmux(each.socket)) for each in judged.unseen]
    return [*gone, *unseen] or [Found("panes", f"{len(placed)} members have one")]


def _mend_tmux(socket: str) -> str:
    """Never a deletion: of panes that could not be looked at nothing is known."""
    from shlex import quote

    return f"tmux -S {quote(socket)} list-panes -a (once that answers, look again)"


def _mend_pane(fleet_id: int, agent_id: int, directors: Mapping[int, object]) -> str:
    """A director without a pane is told of nothing, and can poll; its members may be at work."""
    if directors.get(fleet_id) == agent_id:
        return f"qd message poll --fleet-id {fleet_id} --agent-id {agent_id} (or qd fleet delete {fleet_id})"
    return f"qd member delete --fleet-id {fleet_id} --member-id {agent_id}"
