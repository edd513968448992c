"""What the clients of a run share: the servers, the history, and the ids they know in each zone. Some ids are no longer
valid, so that clients also act on ended objects."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.session_plane_attack.history_writer import HistoryWriter
from tests.support.session_plane_attack.server_pool import ServerPool

KNOWN_MAX = 40
"""The number of ids of each kind that are kept."""


def _recent_ids() -> deque[str]:
    return deque(maxlen=KNOWN_MAX)


@dataclass
class KnownIds:
    """Ids from responses to any client, by kind."""

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
