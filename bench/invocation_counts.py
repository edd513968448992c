"""The ledger of invocations: is every call that was acknowledged there, with its events, and has it come far enough?

Here, too, a generator that is cut off leaves calls of which nobody heard: between n and n + c must be there.
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
    """What a database holds of some zones, read in one snapshot."""

    stored: int
    completed: int
    """Succeeded at the first attempt, with the result that was to be."""
    created_events: int
    """By their events; so are the next three."""
    started_events: int
    succeeded_events: int
    all_events: int
    """Whatever of invocations was told at all: nothing else should have happened to them."""


@dataclass(frozen=True, slots=True)
class InvocationSpan:
    """From the first call to the last completion, by the database's clock."""

    count: int
    completed_while_calling: int
    """How many were done when the last was made."""
    calling_seconds: float
    """From the first call to the last."""
    seconds: float


def count_invocations(target: Target, zone: str) -> InvocationCounts:
    return InvocationCounts(*session_counts.read_numbers(target, QUERY, [zone]))


def count_open(target: Target, zone: str) -> int:
    """How many are neither done nor given up."""
    return session_counts.read_numbers(target, OPEN_QUERY, [zone])[0]


def read_span(target: Target, zone: str) -> InvocationSpan:
    count, first, last, completed = session_counts.read_numbers(target, SPAN_QUERY, [zone])
    [completed_while_calling] = session_counts.read_numbers(target, COMPLETED_BY_QUERY.format(instant=last), [zone])
    return InvocationSpan(count, completed_while_calling, (last - first) / 1e3, (completed - first) / 1e3)


def check_pending(counts: InvocationCounts, acknowledged: int, in_flight: int) -> None:
    """Each waits for somebody, and nothing more has become of it."""
    if counts != InvocationCounts(counts.stored, 0, counts.stored, 0, 0, counts.stored):
        raise BenchError(f"Calls that nobody serves should all wait, and the database holds {counts}.")
    _check_count(counts, acknowledged, in_flight)


def check_completed(counts: InvocationCounts, acknowledged: int, in_flight: int) -> None:
    """Each has been done once, at once, and nothing else happened to it."""
    number = counts.stored
    if counts != InvocationCounts(number, number, number, number, number, 3 * number):
        raise BenchError(f"Calls should all have been done, once each, and the database holds {counts}.")
    _check_count(counts, acknowledged, in_flight)


def _check_count(counts: InvocationCounts, acknowledged: int, in_flight: int) -> None:
    if not acknowledged <= counts.stored <= acknowledged + in_flight:
        raise BenchError(
            f"{acknowledged} calls were acknowledged, up to {in_flight} were under way, and there are {counts.stored}."
        )
