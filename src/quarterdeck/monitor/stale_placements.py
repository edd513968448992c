"""Which placements are of panes that are there no more, as far as this host can tell."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from quarterdeck.monitor.model import Placed
from quarterdeck.tmux import keystrokes
from quarterdeck.tmux.errors import TmuxError
from quarterdeck.tmux.host import Host
from quarterdeck.tmux.keystrokes import Look
from quarterdeck.tmux.panes import Tmux

PENDING_SECONDS = 60.0
"""How long a pane may take to be there, from when its member was registered."""


class Unseen(NamedTuple):
    """A tmux server that was asked and did not answer: of its panes nothing is known."""

    socket: str
    why: str


class Stale(NamedTuple):
    whys: list[str | None]
    """Of each placement why it is stale; None where it is not, or where that cannot be told from here."""
    unseen: list[Unseen]


async def stale(placements: Sequence[Placed], host: Host, now: float) -> Stale:
    """With one look at each tmux server of this host and user."""
    here = {each.tmux_socket for each in placements if keystrokes.elsewhere(each, host) is None}
    looks = dict(zip(sorted(here), await asyncio.gather(*map(_look, sorted(here))), strict=True))
    return Stale(
        [_why(each, host, looks.get(each.tmux_socket), now) for each in placements],
        [Unseen(socket, str(error)) for socket, error in looks.items() if isinstance(error, TmuxError)],
    )


async def _look(socket: str) -> Look | TmuxError:
    try:
        return await keystrokes.look(Tmux(socket))
    except TmuxError as error:
        return error


def _why(placement: Placed, host: Host, looked: Look | TmuxError | None, now: float) -> str | None:
    if placement.tmux_pane_id is None:
        waits = now - datetime.fromisoformat(placement.created_at).timestamp()
        return "its pane was never made" if waits > PENDING_SECONDS else None
    if not isinstance(looked, Look):
        # What did not answer may be well: nobody is to be told to delete what only could not be seen.
        return None
    match keystrokes.judge(looked, placement, host, None):
        case "pane_gone":
            return f"its pane {placement.tmux_pane_id} is gone"
        case "other_tmux":
            return f"its pane {placement.tmux_pane_id} was of another tmux server"
        case _:
            return None
