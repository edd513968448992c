"""Any single bound stops a runaway tree, in which every session spawns two more, through many clients and replicas.

All other bounds are at their ceilings. Peak counts are computed from the event log, which is in commit order, and the
spawner must have stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from quarterdeck.domain.sessions.rules import BOUNDS
from quarterdeck.domain.zones.model import CEILINGS
from tests.support.client_pool import open_clients
from tests.support.log_replay import peak_counts, read_full_log, sessions_alive
from tests.support.rounds import ROUNDS
from tests.support.runaway_spawner import NO_BUDGET, RunawaySpawner, SpawnBehaviour
from tests.support.server import ServerProcess
from tests.support.zone import APP, FreshZone, assert_zone_counts_match_rows, create_zone, spawn

CLIENTS = 24
CODES = {bound.name: bound.code for bound in BOUNDS}


@dataclass(frozen=True)
class BoundCase:
    """One low bound and the expected result of a runaway tree under it."""

    bound: str
    limit: int
    alive: int | None
    """The number of live sessions at the end. None if it depends on the order of the requests."""
    trees: int = 1
    behaviour: SpawnBehaviour = field(default_factory=SpawnBehaviour)
    other_bounds: tuple[str, ...] = ()
    """Bounds at their ceilings that may refuse too."""

    def __str__(self) -> str:
        return self.bound


BOUND_CASES = (
    BoundCase("max_depth", 4, alive=2**5 - 1),
    # One child each makes a chain, which ends at the ceiling of max_depth.
    BoundCase("max_children", 1, alive=CEILINGS["max_depth"] + 1, other_bounds=("max_depth",)),
    BoundCase("max_tree_size", 20, alive=3 * 20, trees=3),
    BoundCase("max_concurrent", 20, alive=3 + 20, trees=3),
    BoundCase("max_sessions", 20, alive=20, trees=3),
    BoundCase("max_sessions_per_application", 20, alive=2 * 20, behaviour=SpawnBehaviour(applications=(APP, "other"))),
    # Spawn, end, spawn: few sessions are live at any time, and only this bound stops it.
    BoundCase("max_tree_spawns", 60, alive=None, trees=2, behaviour=SpawnBehaviour(ends_max=NO_BUDGET)),
)


async def run_spawner(replicas: list[ServerProcess], case: BoundCase) -> tuple[FreshZone, RunawaySpawner]:
    """Run a runaway spawner in a new zone until it stops."""
    zone = await create_zone(replicas[0], **{case.bound: case.limit})
    async with zone.client() as client, open_clients(replicas, CLIENTS) as clients:
        roots = [(await spawn(client, zone))["id"] for _ in range(case.trees)]
        spawner = RunawaySpawner(zone, case.behaviour)
        await spawner.run(clients, roots)
    return zone, spawner


@pytest.mark.parametrize("case", BOUND_CASES, ids=str)
async def test_each_bound_alone_stops_a_runaway_tree(replicas: list[ServerProcess], case: BoundCase) -> None:
    for _ in range(max(1, ROUNDS // 3)):
        zone, spawner = await run_spawner(replicas, case)
        log = await read_full_log(zone)
        peaks = peak_counts(log)
        assert peaks[case.bound] == case.limit, "the limit is reached and never exceeded"
        assert spawner.refusals.keys() == {CODES[name] for name in (case.bound, *case.other_bounds)}
        assert spawner.ended > 0, "slots of ended sessions are used again"
        if case.alive is not None:
            assert len(sessions_alive(log)) == case.alive
        assert_zone_counts_match_rows(replicas[0].launch.database_url, zone.id)


async def test_max_tree_spawns_stops_a_tree_that_ends_its_sessions(replicas: list[ServerProcess]) -> None:
    """At most three sessions are live, so no bound on live sessions refuses a spawn."""
    ends_every_session = SpawnBehaviour(keep_every=NO_BUDGET, ends_max=NO_BUDGET)
    case = BoundCase("max_tree_spawns", 100, alive=1, behaviour=ends_every_session)
    zone, spawner = await run_spawner(replicas, case)
    log = await read_full_log(zone)
    peaks = peak_counts(log)
    assert peaks["max_tree_spawns"] == case.limit
    assert peaks["max_tree_size"] == 1 + ends_every_session.children
    assert spawner.admitted == spawner.ended == case.limit - 1
    assert len(sessions_alive(log)) == case.alive


async def test_max_children_holds_for_every_session_of_a_runaway_tree(replicas: list[ServerProcess]) -> None:
    """Three children each do not limit a tree; only the spawner's own budget stops it."""
    case = BoundCase("max_children", 3, alive=None, behaviour=SpawnBehaviour(children=5, sessions_max=150))
    zone, spawner = await run_spawner(replicas, case)
    assert peak_counts(await read_full_log(zone))["max_children"] == case.limit
    assert spawner.admitted >= case.behaviour.sessions_max
    assert spawner.refusals.keys() == {CODES["max_children"]}
    assert_zone_counts_match_rows(replicas[0].launch.database_url, zone.id)
