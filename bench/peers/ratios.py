"""The ratio of Quarterdeck to the best peer on PostgreSQL, for each round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bench.peers.comparison import Comparison, our_name
from bench.results import Figure, Run


def ratios_to_best_peer(
    name: str, runs: Mapping[str, Sequence[Run]], comparison: Comparison, template: Figure, field: str = "rate"
) -> list[Figure]:
    """A figure with one ratio per round.

    The best peer is the one with the highest rate, or with the lowest time if `template.at_most` is set.
    Returns no figure if all peers are excluded.
    """
    runs_of_peers = [peer_runs for peer in comparison.baseline_names if (peer_runs := runs.get(peer))]
    if not runs_of_peers:
        return []
    best_of = min if template.at_most else max
    values = [
        getattr(ours, field) / best_of(getattr(peer_runs[number], field) for peer_runs in runs_of_peers)
        for number, ours in enumerate(runs[our_name("PostgreSQL")])
    ]
    return [msgspec.structs.replace(template, name=name, values=values)]
