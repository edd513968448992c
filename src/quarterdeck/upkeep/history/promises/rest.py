"""Everything has come to rest.

When nothing is asked any more, what has ended has nothing left that goes on: no cascade is half-way, no invocation of
an ended session waits or runs, no edge from or to one is active. (That counters are what the rows say is `qd check`
itself.) Asked while the servers still settle, this finds what is about to be settled.
"""

from __future__ import annotations

from collections.abc import Iterator

from quarterdeck.core.clock import MINUTE
from quarterdeck.upkeep.history.model import ENDED_STATES, Evidence, Finding, Ref

NAME = "rest"
SWEPT_WITHIN = 2 * MINUTE
"""For the sweep of what is past its time, which comes every minute by itself."""


def judge(evidence: Evidence) -> Iterator[Finding]:
    for cascade in evidence.rows.cascades:
        if cascade.finished_at is not None:
            continue
        what = cascade.target_id or f"the zone {cascade.zone_id}"
        detail = f"the cascade {cascade.id} of {what} has {cascade.left} left to settle"
        yield Finding(NAME, cascade.zone_id, cascade.target_id or cascade.id, detail)
    ended, known = _ended(evidence)
    for row in evidence.rows.sessions:
        if row.terminated_at is None and row.expires_at <= evidence.rows.now - SWEPT_WITHIN:
            yield Finding(
                NAME, row.zone_id, row.id, f"the session {row.id} is past its time, and was not ended"
            )
    for invocation in evidence.rows.invocations:
        if invocation.status in ENDED_STATES:
            continue
        for name in (invocation.source_session_id, invocation.target_session_id):
            if name is not None and _is_over((invocation.zone_id, name), ended, known):
                detail = (
                    f"the invocation {invocation.id} is {invocation.status}, and its session {name} has ended"
                )
                yield Finding(NAME, invocation.zone_id, invocation.id, detail)
    for edge in evidence.rows.edges:
        # Past its time it is over already, by another name, which a sweep writes down.
        if edge.status != "active" or edge.expires_at <= evidence.rows.now:
            continue
        for name in (edge.source_session_id, edge.target_session_id):
            if _is_over((edge.zone_id, name), ended, known):
                detail = f"the delegation {edge.id} is active, and its session {name} has ended"
                yield Finding(NAME, edge.zone_id, edge.id, detail)


def _ended(evidence: Evidence) -> tuple[set[Ref], set[Ref]]:
    ended: set[Ref] = set()
    known: set[Ref] = set()
    for row in evidence.rows.sessions:
        known.add((row.zone_id, row.id))
        if row.terminated_at is not None:
            ended.add((row.zone_id, row.id))
    return ended, known


def _is_over(session: Ref, ended: set[Ref], known: set[Ref]) -> bool:
    """One whose row is gone ended long ago."""
    return session in ended or session not in known
