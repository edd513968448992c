"""What the clients of a zone have heard of: who may live, what may wait. Some of it is no longer so, which is the point."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")
KEPT = 60
"""Of each kind the last so many: old ones are asked for, too, but not only."""


@dataclass(frozen=True)
class Service:
    id: str
    application: str


def _recent() -> deque[str]:
    return deque(maxlen=KEPT)


@dataclass
class Known:
    roots: deque[str] = field(default_factory=_recent)
    sessions: deque[str] = field(default_factory=_recent)
    services: deque[str] = field(default_factory=lambda: deque(maxlen=8))
    invocations: deque[str] = field(default_factory=_recent)
    edges: deque[str] = field(default_factory=_recent)

    def forget(self, session: str) -> None:
        """It is said to have ended; one in a while is remembered all the same."""
        for kept in (self.roots, self.sessions):
            while session in kept:
                kept.remove(session)


def one_of(chance: random.Random, some: deque[str]) -> str | None:
    return chance.choice(some) if some else None
