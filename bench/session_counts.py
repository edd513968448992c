"""Checks that the database holds every acknowledged spawn completely, and nothing else.

A generator that is stopped leaves requests in flight: at most one per connection, committed or not. So after n
acknowledged spawns over c connections there must be between n and n + c new sessions, exactly as many spawn events, and
counters that increased by exactly as much.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from dataclasses import dataclass

import psycopg

from bench.plan import BenchError
from bench.testbed import Target

SESSION_COUNTS_QUERY = """
select (select count(*) from agent_sessions where zone_id in {zones}),
       (select count(*) from events where type = 'session.spawn' and zone_id in {zones}),
       (select coalesce(sum(live), 0) from admission_counts where scope = 'zone' and zone_id in {zones}),
       (select coalesce(sum(live), 0) from admission_counts where scope = 'tree' and zone_id in {zones}),
       (select count(*) from events where type = 'session.terminate' and zone_id in {zones})
"""


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """The rows of some zones, read in one snapshot."""

    sessions: int
    events: int
    zone_live: int
    tree_live: int
    ended: int
    """Terminated sessions, by their events."""


def count_sessions(target: Target, zones: list[str]) -> SessionCounts:
    return SessionCounts(*read_numbers(target, SESSION_COUNTS_QUERY, zones))


def read_numbers(target: Target, query: str, zones: list[str]) -> list[int]:
    """One row of numbers. `{zones}` in the query is replaced by the set of zones."""
    return (_read_sqlite if target.database is None else _read_postgres)(target, query, zones)


def check_spawned(before: SessionCounts, after: SessionCounts, acknowledged: int, in_flight: int) -> None:
    new = SessionCounts(
        after.sessions - before.sessions,
        after.events - before.events,
        after.zone_live - before.zone_live,
        after.tree_live - before.tree_live,
        after.ended - before.ended,
    )
    is_consistent = new.sessions == new.events == new.zone_live == new.tree_live and not new.ended
    if not is_consistent or not acknowledged <= new.sessions <= acknowledged + in_flight:
        raise BenchError(
            f"{acknowledged} spawns were acknowledged and up to {in_flight} in flight, but the database holds {new}."
        )


def _read_postgres(target: Target, query: str, zones: list[str]) -> list[int]:
    assert target.database is not None
    query = query.format(zones="(select json_array_elements_text(%(zones)s::json))")
    with psycopg.connect(target.database) as connection:
        row = connection.execute(query.encode(), {"zones": json.dumps(zones)}).fetchone()
    assert row is not None
    return [int(value) for value in row]


def _read_sqlite(target: Target, query: str, zones: list[str]) -> list[int]:
    query = query.format(zones="(select value from json_each(:zones))")
    path = target.data_dir / "quarterdeck.db"
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return [int(value) for value in connection.execute(query, {"zones": json.dumps(zones)}).fetchone()]
