"""How often something happens: counted by the second, over the last minute. Pure: the time is an argument."""

from __future__ import annotations

KEPT = 60
"""Seconds that are remembered."""
OVER = 10
"""Seconds that a rate is the mean of: less would jump, more would lag."""
_LEVELS = "▁▂▃▄▅▆▇█"


class Rates:
    def __init__(self, now: float) -> None:
        self._began = int(now)
        self._counts: dict[str, dict[int, int]] = {}

    def note(self, kind: str, now: float) -> None:
        second = int(now)
        counts = self._counts.setdefault(kind, {})
        if second not in counts and len(counts) > KEPT:
            for old in [at for at in counts if at < second - KEPT]:
                del counts[old]
        counts[second] = counts.get(second, 0) + 1

    def per_second(self, kind: str, now: float) -> float:
        """Of whole seconds only: the one that has just begun would pull it down."""
        last = int(now)
        # Who has watched for three seconds knows nothing of the seven before.
        seconds = max(min(OVER, last - self._began), 1)
        return sum(self.history(kind, now)[-seconds:]) / seconds

    def history(self, kind: str, now: float) -> list[int]:
        counts = self._counts.get(kind, {})
        return [counts.get(second, 0) for second in range(int(now) - KEPT, int(now))]


def sparkline(counts: list[int], columns: int) -> str:
    """The last seconds, as many as there are columns, each as high as it is among them."""
    shown = counts[-columns:] if columns > 0 else []
    most = max(shown, default=0)
    if most == 0:
        return ""
    return "".join(" " if one == 0 else _LEVELS[min(one * len(_LEVELS) // most, len(_LEVELS) - 1)] for one in shown)
