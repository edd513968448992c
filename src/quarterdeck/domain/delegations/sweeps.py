"""The sweeps for delegations: expiry and retention.

| sweep                | finds                                               | does                                   |
|----------------------|-----------------------------------------------------|----------------------------------------|
| delegation-expiry    | active edges past their `expires_at`                | marks them expired under the zone lock |
| delegation-retention | edges that ended more than the retention period ago | deletes the rows                       |

A derived edge expires no later than its parent, so the sweep finds derived edges by their own `expires_at` and need not
follow chains. Several replicas may sweep at the same time: an edge that one has marked is skipped by the others.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from quarterdeck.core.clock import DAY
from quarterdeck.domain.delegations.model import DelegationSettings, Edge, Expire
from quarterdeck.domain.delegations.operations import end_edges
from quarterdeck.engine.sweep_passes import delete_past_retention, find_and_submit
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine

EXPIRY = "delegation-expiry"
RETENTION = "delegation-retention"


def sweeps(
    cross_zone_engine: Engine,
    submit_expire: Callable[[Expire], Awaitable[Edge]],
    settings: DelegationSettings,
    retention_sweep_interval_ms: int = 900_000,
) -> list[Sweep]:
    """`cross_zone_engine` finds edges in all zones. `submit_expire` marks them in a lane that sees only their zones."""
    expire = find_and_submit(cross_zone_engine, end_edges.find_expired, lambda ref: submit_expire(Expire(*ref)))
    retention_ms = round(settings.delegation_retention_days * DAY)
    delete_ended = delete_past_retention(cross_zone_engine, retention_ms, end_edges.retention_statements)
    batch = settings.delegation_sweep_batch
    return [
        Sweep(EXPIRY, settings.delegation_sweep_interval_ms, batch, expire),
        Sweep(RETENTION, retention_sweep_interval_ms, batch, delete_ended),
    ]
