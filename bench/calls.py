"""The ledger of invocations: is every call that was acknowledged there, with its events, and has it come far enough?

Here, too, a generator that is cut off leaves calls of which nobody heard: between n and n + c must be there.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench import ledger
from bench.plan import BenchError
from bench.stage import Target

QUERY = """
select (select count(*) from agent_invocations where zone_id in {zones}),
       (select count(*) from agent_invocations where zone_id in {zones}
          and status = 'succeeded' and attempts = 1 and result_json = params_json),
       (select count(*) from events where type = 'invocation.created' and zone_id in {zones}),
       (select count(*) from events where type = 'invocation.started' and zone_id in {zones}),
       (select count(*) from events where type = 'invocation.succeeded' and zone_id in {zones}),
       (select count(*) from events where substr(type, 1, 11) = 'invocation.' and zone_id in {zones})
"""
OPEN = """
select count(*) from agent_invocations where zone_id in {zones} and status in ('pending', 'running')
"""
SPAN = """
select count(*), min(created_at), max(created_at), max(completed_at) from agent_invocations where zone_id in {zones}
"""
DONE_BY = """
select count(*) from agent_invocations where zone_id in {{zones}} and completed_at <= {instant:d}
"""


@dataclass(frozen=True, slots=True)
class Calls:
    """What a database holds of some zones, read in one snapshot."""

    made: int
    done: int
    """Succeeded at the first attempt, with the result that was to be."""
    created: int
    """By their events; so are the next three."""
    started: int
    succeeded: int
    told: int
    """Whatever of invocations was told at all: nothing else should have happened to them."""


@dataclass(frozen=True, slots=True)
class Span:
    """From the first call to the last completion, by the database's clock."""

    made: int
    done_meanwhile: int
    """How many were done when the last was made."""
    calling_seconds: float
    """From the first call to the last."""
    seconds: float


def held(target: Target, zone: str) -> Calls:
    return Calls(*ledger.read(target, QUERY, [zone]))


def are_open(target: Target, zone: str) -> int:
    """How many are neither done nor given up."""
    return ledger.read(target, OPEN, [zone])[0]


def span(target: Target, zone: str) -> Span:
    made, first, last, done = ledger.read(target, SPAN, [zone])
    [meanwhile] = ledger.read(target, DONE_BY.format(instant=last), [zone])
    return Span(made, meanwhile, (last - first) / 1e3, (done - first) / 1e3)


def check_made(found: Calls, acknowledged: int, under_way: int) -> None:
    """Each waits for somebody, and nothing more has become of it."""
    if found != Calls(found.made, 0, found.made, 0, 0, found.made):
        raise BenchError(f"Calls that nobody serves should all wait, and the database holds {found}.")
    _check_number(found, acknowledged, under_way)


def check_done(found: Calls, acknowledged: int, under_way: int) -> None:
    """Each has been done once, at once, and nothing else happened to it."""
    number = found.made
    if found != Calls(number, number, number, number, number, 3 * number):
        raise BenchError(f"Calls should all have been done, once each, and the database holds {found}.")
    _check_number(found, acknowledged, under_way)


def _check_number(found: Calls, acknowledged: int, under_way: int) -> None:
    if not acknowledged <= found.made <= acknowledged + under_way:
        raise BenchError(
            f"{acknowledged} calls were acknowledged, up to {under_way} were under way, and there are {found.made}."
        )
