"""Since when a pane has shown the same. Pure: what it shows, and the time, are arguments."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple


class _Shown(NamedTuple):
    text: int
    since: float


class Quiet:
    """What each pane showed when somebody last looked. Of a pane that was never seen before, nobody knows for how long
    it has shown what it shows: it counts from now."""

    def __init__(self) -> None:
        self._shown: dict[str, _Shown] = {}

    def seconds(self, pane: str, text: str, now: float) -> float:
        """How long it has been quiet, now that it shows this."""
        known, seen = self._shown.get(pane), hash(text)
        if known is None or known.text != seen:
            known = self._shown[pane] = _Shown(seen, now)
        return now - known.since

    def keep(self, panes: Collection[str]) -> None:
        """The others are gone; whatever comes by their name later is another."""
        self._shown = {pane: shown for pane, shown in self._shown.items() if pane in panes}
