"""What the clients of a run share: where to ask, where to write, and what they have heard of in each zone. Some of what
they have heard is no longer so, which is the point."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.plane.fleet import Fleet
from tests.support.plane.recorder import Recorder

KEPT = 40
"""Of each kind the last so many."""


def _recent() -> deque[str]:
    return deque(maxlen=KEPT)


@dataclass
class Known:
    """Ids that somebody was told of, by kind."""

    roots: deque[str] = field(default_factory=_recent)
    sessions: deque[str] = field(default_factory=_recent)
    services: deque[str] = field(default_factory=lambda: deque(maxlen=6))
    invocations: deque[str] = field(default_factory=_recent)
    edges: deque[str] = field(default_factory=_recent)

    def forget(self, session: str) -> None:
        for kept in (self.roots, self.sessions):
            while session in kept:
                kept.remove(session)


class Plane:
    def __init__(self, seed: str, fleet: Fleet, recorder: Recorder, zones: Iterable[str]) -> None:
        self.seed = seed
        self.fleet = fleet
        self.recorder = recorder
        self.issuer = fleet[0].issuer
        self.zones = {zone: Known() for zone in zones}
        self.stopping = False


def one_of(chance: random.Random, some: deque[str]) -> str | None:
    return chance.choice(some) if some else None
