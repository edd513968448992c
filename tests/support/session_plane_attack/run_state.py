"""What the clients of a run share: where to ask, where to write, and what they have heard of in each zone. Some of what
they have heard is no longer so, which is the point."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.session_plane_attack.history_writer import HistoryWriter
from tests.support.session_plane_attack.server_pool import ServerPool

KNOWN_MAX = 40
"""Of each kind the last so many."""


def _recent_ids() -> deque[str]:
    return deque(maxlen=KNOWN_MAX)


@dataclass
class KnownIds:
    """Ids that somebody was told of, by kind."""

    roots: deque[str] = field(default_factory=_recent_ids)
    sessions: deque[str] = field(default_factory=_recent_ids)
    services: deque[str] = field(default_factory=lambda: deque(maxlen=6))
    invocations: deque[str] = field(default_factory=_recent_ids)
    edges: deque[str] = field(default_factory=_recent_ids)

    def remove_session(self, session: str) -> None:
        for ids in (self.roots, self.sessions):
            while session in ids:
                ids.remove(session)


class RunState:
    def __init__(self, seed: str, servers: ServerPool, history: HistoryWriter, zones: Iterable[str]) -> None:
        self.seed = seed
        self.servers = servers
        self.history = history
        self.issuer = servers[0].issuer
        self.zones = {zone: KnownIds() for zone in zones}
        self.is_stopping = False


def choose(rng: random.Random, ids: deque[str]) -> str | None:
    return rng.choice(ids) if ids else None
