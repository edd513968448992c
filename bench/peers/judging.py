"""Us over the best of the peers that count, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bench.peers.contest import Contest, ours_on
from bench.results import Figure, Run


def best_ratios(
    name: str, runs: Mapping[str, Sequence[Run]], contest: Contest, asked: Figure, field: str = "rate"
) -> list[Figure]:
    """Against whoever was best in each round: at rates the highest, at times (`asked.at_most`) the lowest. Nothing
    where no peer is left."""
    peers = [found for peer in contest.judged if (found := runs.get(peer))]
    if not peers:
        return []
    best = min if asked.at_most else max
    values = [
        getattr(ours, field) / best(getattr(peer[number], field) for peer in peers)
        for number, ours in enumerate(runs[ours_on("PostgreSQL")])
    ]
    return [msgspec.structs.replace(asked, name=name, values=values)]
