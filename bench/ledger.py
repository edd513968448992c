"""Is what was acknowledged there, whole, and nothing else?

A generator that is cut off leaves requests under way: at most one per connection, committed or not. So after a run of
n acknowledged spawns over c connections there must be between n and n + c new sessions, exactly as many spawn events,
and counts that rose by exactly as much.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass

import psycopg

from bench.plan import BenchError
from bench.stage import Target

QUERY = """
select (select count(*) from agent_sessions where zone_id in {zones}),
       (select count(*) from events where type = 'session.spawn' and zone_id in {zones}),
       (select coalesce(sum(live), 0) from admission_counts where scope = 'zone' and zone_id in {zones}),
       (select coalesce(sum(live), 0) from admission_counts where scope = 'tree' and zone_id in {zones}),
       (select count(*) from events where type = 'session.terminate' and zone_id in {zones})
"""


@dataclass(frozen=True, slots=True)
class Held:
    """What a database holds of some zones, read in one snapshot."""

    sessions: int
    events: int
    counted: int
    in_trees: int
    ended: int
    """By their events."""


def held(target: Target, zones: list[str]) -> Held:
    return Held(*read(target, QUERY, zones))


def read(target: Target, query: str, zones: list[str]) -> list[int]:
    """One row of numbers; `{zones}` in the query stands for all of these."""
    return (_sqlite if target.database is None else _postgres)(target, query, zones)


def check(before: Held, after: Held, acknowledged: int, under_way: int) -> None:
    new = Held(
        after.sessions - before.sessions,
        after.events - before.events,
        after.counted - before.counted,
        after.in_trees - before.in_trees,
        after.ended - before.ended,
    )
    whole = new.sessions == new.events == new.counted == new.in_trees and not new.ended
    if not whole or not acknowledged <= new.sessions <= acknowledged + under_way:
        raise BenchError(
            f"{acknowledged} spawns were acknowledged, up to {under_way} were under way, and the database holds {new}."
        )


def _postgres(target: Target, query: str, zones: list[str]) -> list[int]:
    assert target.database is not None
    query = query.format(zones="(select json_array_elements_text(%(zones)s::json))")
    with psycopg.connect(target.database) as connection:
        row = connection.execute(query.encode(), {"zones": json.dumps(zones)}).fetchone()
    assert row is not None
    return [int(value) for value in row]


def _sqlite(target: Target, query: str, zones: list[str]) -> list[int]:
    query = query.format(zones="(select value from json_each(:zones))")
    file = target.data / "quarterdeck.db"
    with contextlib.closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
        return [int(value) for value in connection.execute(query, {"zones": json.dumps(zones)}).fetchone()]
