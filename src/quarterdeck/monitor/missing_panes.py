"""Finds placements whose pane does not exist. Panes of other hosts and other users cannot be checked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from quarterdeck.monitor.model import PanePlacement
from quarterdeck.tmux import keystrokes
from quarterdeck.tmux.errors import TmuxError
from quarterdeck.tmux.host import Host
from quarterdeck.tmux.keystrokes import TmuxSnapshot
from quarterdeck.tmux.panes import Tmux

CREATION_MAX_SECONDS = 60.0
"""How long it may take to create a pane after its member has been registered."""


class UnreachableTmux(NamedTuple):
    """A tmux server that did not answer. The state of its panes is unknown."""

    socket: str
    reason: str


class MissingPanes(NamedTuple):
    reasons: list[str | None]
    """For each placement, why its pane is missing. None if the pane exists or could not be checked."""
    unreachable: list[UnreachableTmux]


async def find_missing_panes(placements: Sequence[PanePlacement], host: Host, now: float) -> MissingPanes:
    """Find the placements whose pane is missing. Lists the panes of each tmux server of this host and user once."""
    sockets = {placement.tmux_socket for placement in placements if keystrokes.check_host(placement, host) is None}
    snapshots = dict(zip(sorted(sockets), await asyncio.gather(*map(_take_snapshot, sorted(sockets))), strict=True))
    return MissingPanes(
        [_missing_reason(placement, host, snapshots.get(placement.tmux_socket), now) for placement in placements],
        [UnreachableTmux(socket, str(error)) for socket, error in snapshots.items() if isinstance(error, TmuxError)],
    )


async def _take_snapshot(socket: str) -> TmuxSnapshot | TmuxError:
    try:
        return await keystrokes.take_snapshot(Tmux(socket))
    except TmuxError as error:
        return error


def _missing_reason(
    placement: PanePlacement, host: Host, snapshot: TmuxSnapshot | TmuxError | None, now: float
) -> str | None:
    if placement.tmux_pane_id is None:
        age_seconds = now - datetime.fromisoformat(placement.created_at).timestamp()
        return "its pane was never created" if age_seconds > CREATION_MAX_SECONDS else None
    if not isinstance(snapshot, TmuxSnapshot):
        # The tmux server may be healthy, so do not suggest deleting members whose pane could not be checked.
        return None
    match keystrokes.check_pane(snapshot, placement, host, None):
        case "pane_gone":
            return f"its pane {placement.tmux_pane_id} no longer exists"
        case "other_tmux":
            return f"its pane {placement.tmux_pane_id} belonged to another tmux server"
        case _:
            return None
