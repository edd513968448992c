"""Checks that every acknowledged invocation is stored, with its events and in the expected state.

As in `session_counts`, a generator that is stopped leaves requests in flight: after n acknowledged calls over c
connections there must be between n and n + c invocations.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench import session_counts
from bench.plan import BenchError
from bench.testbed import Target

QUERY = """
select (select count(*) from agent_invocations where zone_id in {zones}),
       (select count(*) from agent_invocations where zone_id in {zones}
          and status = 'succeeded' and attempts = 1 and result_json = params_json),
       (select count(*) from events where type = 'invocation.created' and zone_id in {zones}),
       (select count(*) from events where type = 'invocation.started' and zone_id in {zones}),
       (select count(*) from events where type = 'invocation.succeeded' and zone_id in {zones}),
       (select count(*) from events where substr(type, 1, 11) = 'invocation.' and zone_id in {zones})
"""
OPEN_QUERY = """
select count(*) from agent_invocations where zone_id in {zones} and status in ('pending', 'running')
"""
SPAN_QUERY = """
select count(*), min(created_at), max(created_at), max(completed_at) from agent_invocations where zone_id in {zones}
"""
COMPLETED_BY_QUERY = """
select count(*) from agent_invocations where zone_id in {{zones}} and completed_at <= {instant:d}
"""


@dataclass(frozen=True, slots=True)
class InvocationCounts:
    """The rows of some zones, read in one snapshot."""

    stored: int
    completed: int
    """Succeeded at the first attempt, with the expected result."""
    created_events: int
    started_events: int
    succeeded_events: int
    all_events: int
    """All events of invocations, to detect unexpected ones."""


@dataclass(frozen=True, slots=True)
class InvocationSpan:
    """From the first call to the last completion, by the database's clock."""

    count: int
    completed_while_calling: int
    """Invocations that were completed before the last call."""
    calling_seconds: float
    """From the first call to the last call."""
    seconds: float


def count_invocations(target: Target, zone: str) -> InvocationCounts:
    return InvocationCounts(*session_counts.read_numbers(target, QUERY, [zone]))


def count_open(target: Target, zone: str) -> int:
    """The number of pending and running invocations."""
    return session_counts.read_numbers(target, OPEN_QUERY, [zone])[0]


def read_span(target: Target, zone: str) -> InvocationSpan:
    count, first, last, completed = session_counts.read_numbers(target, SPAN_QUERY, [zone])
    [completed_while_calling] = session_counts.read_numbers(target, COMPLETED_BY_QUERY.format(instant=last), [zone])
    return InvocationSpan(count, completed_while_calling, (last - first) / 1e3, (completed - first) / 1e3)


def check_pending(counts: InvocationCounts, acknowledged: int, in_flight: int) -> None:
    """All invocations are pending, with one event each."""
    if counts != InvocationCounts(counts.stored, 0, counts.stored, 0, 0, counts.stored):
        raise BenchError(f"All invocations should be pending, but the database holds {counts}.")
    _check_count(counts, acknowledged, in_flight)


def check_completed(counts: InvocationCounts, acknowledged: int, in_flight: int) -> None:
    """All invocations succeeded at the first attempt, with three events each."""
    number = counts.stored
    if counts != InvocationCounts(number, number, number, number, number, 3 * number):
        raise BenchError(f"All invocations should have succeeded once, but the database holds {counts}.")
    _check_count(counts, acknowledged, in_flight)


def _check_count(counts: InvocationCounts, acknowledged: int, in_flight: int) -> None:
    if not acknowledged <= counts.stored <= acknowledged + in_flight:
        raise BenchError(
            f"{acknowledged} calls were acknowledged and up to {in_flight} in flight, but {counts.stored} are stored."
        )
