"""Sweeps of sessions.

The first three sweeps only search. They terminate sessions through the same lanes as requests, under the zone's lock.
Terminating a session twice has no further effect, so any number of replicas may sweep at the same time.

| sweep             | finds                                            | does                                        |
|-------------------|--------------------------------------------------|---------------------------------------------|
| ttl               | expired sessions                                 | terminates them with their subtrees         |
| orphan            | live sessions whose parent is terminated or gone | terminates them with the reason `orphaned`  |
| cascade           | unfinished cascades                              | finishes them, whichever process began them |
| session-retention | sessions whose retention period has ended        | deletes the rows, children before parents   |
| reconcile         | counts that differ from the number of sessions   | repairs the counts                          |
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from quarterdeck.core.clock import DAY
from quarterdeck.core.ids import Ref
from quarterdeck.domain.sessions.model import RepairCounts, RepairCountsResult, SessionSettings, Terminate
from quarterdeck.domain.sessions.operations import counts, reads
from quarterdeck.domain.sessions.operations.terminate import CascadeRunner
from quarterdeck.domain.sessions.rules import states
from quarterdeck.domain.zones import operations as zones
from quarterdeck.engine.sweep_passes import Pass, delete_past_retention, find_and_submit
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import TransientError

log = logging.getLogger("quarterdeck.sessions")

TTL = "ttl"
ORPHAN = "orphan"
CASCADE = "cascade"
RETENTION = "session-retention"
RECONCILE = "reconcile"
ZONES_PER_PAGE = 100
REPAIRS_MAX = 10_000
ORPHANED = "orphaned"
"""Termination reason of a live session without a live parent."""


def sweeps(
    cross_zone_engine: Engine,
    cascade_runner: CascadeRunner,
    settings: SessionSettings,
    retention_sweep_interval_ms: int = 900_000,
) -> list[Sweep]:
    """The cross-zone engine finds sessions, and deletes those whose retention period has ended.

    The lanes that terminate sessions see only the zones of their batch.
    """

    def terminate_pass(reason: str, find: Callable[[Transaction, int], Awaitable[list[Ref]]]) -> Pass:
        return find_and_submit(cross_zone_engine, find, lambda ref: cascade_runner.terminate(Terminate(*ref, reason)))

    finish_cascades = find_and_submit(
        cross_zone_engine, reads.find_unfinished_cascades, lambda ref: cascade_runner.finish_cascade(*ref)
    )
    retention_ms = round(settings.session_retention_days * DAY)
    delete_level = delete_past_retention(cross_zone_engine, retention_ms, reads.retention_statements)

    async def delete_levels(batch: int) -> int:
        deleted = 0
        # One level of the trees per transaction: deleting children makes their parents deletable.
        while deleted < batch and (count := await delete_level(batch)):
            deleted += count
        return deleted

    batch = settings.ttl_sweep_batch
    return [
        Sweep(TTL, settings.ttl_sweep_interval_ms, batch, terminate_pass(states.TTL_EXPIRED, reads.find_expired)),
        Sweep(ORPHAN, settings.orphan_sweep_interval_ms, batch, terminate_pass(ORPHANED, reads.find_orphaned)),
        Sweep(CASCADE, settings.cascade_sweep_interval_ms, batch, finish_cascades),
        Sweep(RETENTION, retention_sweep_interval_ms, batch, delete_levels),
    ]


class CountReconciler:
    """Checks all zones, page by page, and then starts again.

    If a pass times out, the next pass continues where it stopped. The position is kept only in this process: several
    processes can check the same zone without harm.
    """

    def __init__(
        self, cross_zone_engine: Engine, submit_repair: Callable[[RepairCounts], Awaitable[RepairCountsResult]]
    ) -> None:
        self._cross_zone_engine = cross_zone_engine
        self._submit_repair = submit_repair
        self._last_zone_id = ""

    def sweep(self, every_ms: int) -> Sweep:
        return Sweep(RECONCILE, every_ms, REPAIRS_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        """Return the number of repaired counts. After a full batch, `SweepRunner` starts the next pass at once."""
        repaired = 0
        while repaired < batch:
            page = await self._cross_zone_engine.read(
                lambda tx: zones.list_zones(tx, self._last_zone_id, ZONES_PER_PAGE)
            )
            for zone in page:
                repaired += await self._reconcile_zone(zone.id)
                self._last_zone_id = zone.id
            if len(page) < ZONES_PER_PAGE:
                self._last_zone_id = ""
                break
        return repaired

    async def _reconcile_zone(self, zone_id: str) -> int:
        try:
            if await self._cross_zone_engine.read(lambda tx: counts.has_mismatched_counts(tx, zone_id)):
                return (await self._submit_repair(RepairCounts(zone_id))).repaired
        except TransientError as error:
            # The count took too long, or the database is unavailable. Continue with the other zones.
            log.warning("could not compare the counts of zone %s: %s", zone_id, error)
        return 0
