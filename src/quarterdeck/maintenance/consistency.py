"""`qd check`: checks that the rows of a database are consistent with each other.

It covers admission counters, session trees, suspensions, cascades, zones, invocations, delegations, services, tasks
with their dependencies and agents, fleets with their members and messages, the event log, leases and idempotency keys.

Each check has a statement that finds inconsistent rows and a template for the message about each row. All checks read
one snapshot, so concurrent writes cause no false findings. `docs/consistency.md` explains each check and what to do.
Recorded client histories are checked against the same snapshot (`history_checker`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from quarterdeck.maintenance.history_checker.reader import read_histories
from quarterdeck.maintenance.history_checker.run import HistoryReport, check_history
from quarterdeck.maintenance.queries import FLEET_QUERIES, Q
from quarterdeck.maintenance.snapshot import Snapshot, first_row, iter_rows, open_snapshot
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import BoundStatement

FINDINGS_MAX = 100
"""The maximum number of findings shown per check. Others usually have the same cause and are only counted."""


class Check(msgspec.Struct, frozen=True):
    """One kind of inconsistency: how to find the rows and how to describe each of them."""

    name: str
    statement: Callable[[], BoundStatement]
    """The first two columns are the zone and the id."""
    template: str
    """The message for a row. `{2}` is the third column."""
    is_note: bool = False
    """Whether the rows are reported for information only, because they are not inconsistent."""


CHECKS = (
    Check("counts", Q.check_counts, "counter {2} {1} is {3}, but {4} sessions are live"),
    Check(
        "counts-left", Q.check_counts_leftover, "counter {2} {1} ({3}) belongs to a session that has ended or is gone"
    ),
    Check("counts-ever", Q.check_counts_total_spawned, "tree {1} has counted {2} spawned sessions, but has {3} rows"),
    Check("parents", Q.check_parents, "session {1} is live, but its parent {2} {3}"),
    Check("places", Q.check_tree_positions, "session {1} has depth {2} and root {3}; its parent implies {4} and {5}"),
    Check("cycles", Q.check_cycles, "session {1} is its own ancestor"),
    Check("expiries", Q.check_expiries, "session {1} expires at {2}, after its parent {3} at {4}"),
    Check("states", Q.check_states, "session {1} is {2}: the state is unknown, or its end time is missing"),
    Check("suspensions", Q.check_suspensions, "session {1} is {2}, but {3}"),
    Check("stamps", Q.check_cascade_marks, "session {1} is waiting for cascade {2}, which {3}"),
    Check("cascades", Q.check_cascades, "cascade {1} marked {2} sessions and terminated {3}, but {4} are left"),
    Check("cascades-slow", Q.check_cascades_slow, "cascade {1} has {2} sessions left after {3} s"),
    Check("zones", Q.check_zones, "session {1} is live, but its zone {2}"),
    Check("invocations", Q.check_invocations, "invocation {1} is {2}, but its session {3} {4}"),
    Check("attempts", Q.check_attempts, "invocation {1} is {2} in attempt {3} of {4}, but its row is inconsistent"),
    Check("parked", Q.check_parked, "invocation {1} is parked, but none of its sessions is suspended"),
    Check("delegations", Q.check_delegations, "delegation {1} is active, but its session {2} {3}"),
    Check(
        "delegation-lines", Q.check_delegation_chains, "delegation {1} outlives its parent delegation {2}, which is {3}"
    ),
    Check(
        "delegation-order",
        Q.check_delegation_order,
        "delegation {1} leads from {2} to {3}, but their ranks do not increase in that order",
    ),
    Check("services", Q.check_services, "service {1} is {2}"),
    Check("tasks", Q.check_tasks, "task {1} is {2} in attempt {3}, but its row is inconsistent"),
    Check("tasks-waiting", Q.check_tasks_unmet, "task {1} counts {2} unmet dependencies (`waits` is {4}), but has {3}"),
    Check("tasks-forgotten", Q.check_tasks_not_unblocked, "task {1} is waiting for {2}, which is {3}"),
    Check("tasks-held", Q.check_tasks_held, "agent {1} counts {2} held tasks, but holds {3}"),
    Check("tasks-lost", Q.check_tasks_of_lost_agents, "task {1} is held by agent {2}, which is {3}"),
    Check(
        "fleets",
        FLEET_QUERIES.check_fleets,
        "fleet {1} is {2}, but has {3} administrators, {4} directors and {5} active members",
    ),
    Check(
        "fleet-members",
        FLEET_QUERIES.check_fleet_members,
        "member {1} of fleet {2} is {3}, but its row is inconsistent",
    ),
    Check(
        "fleet-registry", FLEET_QUERIES.check_fleet_registry, "member {1} of fleet {2} is {3}, but its agent {4} is {5}"
    ),
    Check("fleet-panes", FLEET_QUERIES.check_fleet_panes, "member {1} {2}"),
    Check(
        "fleet-monitors",
        FLEET_QUERIES.check_fleet_monitors,
        "the monitor of fleet {1} has pid {2}, but the fleet is {3} or the monitor's row is inconsistent",
    ),
    Check("fleet-ids", FLEET_QUERIES.check_fleet_ids, "the counter of {1} is {2}, but the highest id is {3}"),
    Check("messages", FLEET_QUERIES.check_messages, "message {1} is a {2} and {3}, but its row is inconsistent"),
    Check(
        "message-ends",
        FLEET_QUERIES.check_message_endpoints,
        "message {1} of fleet {2} is {3} {4}, which is not a member of that fleet or is its administrator",
    ),
    Check(
        "broadcasts",
        FLEET_QUERIES.check_broadcasts,
        "broadcast {1} has the text {2!r}, but has {3} deliveries to {4} members, up to id {5}",
    ),
    Check("deliveries", FLEET_QUERIES.check_deliveries, "message {1} names broadcast {2}, which {3}"),
    Check("log-head", Q.check_log_head, "{1} has position {2} and floor {3}, but the last event is {4}"),
    Check("log-gaps", Q.check_log_gaps, "{1} at positions {2} to {3} are missing"),
    Check("leases", Q.check_leases, "lease {1} of {2} expires in {3} s, or its term is negative"),
    Check("keys", Q.check_idempotency_keys, "key {3!r} of {2} names session {1}, which was deleted", is_note=True),
)


class Finding(msgspec.Struct, frozen=True):
    check: str
    zone_id: str | None
    id: str
    detail: str

    def text(self) -> str:
        where = f"zone {self.zone_id}: " if self.zone_id else ""
        return f"{self.check}: {where}{self.detail}"


class Totals(msgspec.Struct, frozen=True, array_like=True):
    zones: int
    sessions: int
    live: int
    counters: int
    cascades: int
    events: int

    def text(self) -> str:
        counts_by_noun = msgspec.structs.asdict(self)
        return ", ".join(
            f"{count:,} {noun.removesuffix('s') if count == 1 else noun}" for noun, count in counts_by_noun.items()
        )


class ConsistencyReport(msgspec.Struct):
    totals: Totals
    findings: list[Finding] = []
    notes: list[Finding] = []
    counts: dict[str, int] = {}
    """Rows found by each check, including those that are not shown."""
    history: HistoryReport | None = None
    """The result of `--history`, if it was given."""

    @property
    def is_consistent(self) -> bool:
        return not self.findings and (self.history is None or self.history.is_consistent)

    def to_dict(self) -> dict[str, object]:
        result: dict[str, object] = msgspec.to_builtins(self)
        if self.history is None:
            del result["history"]
        return {"well": self.is_consistent, **result, "totals": msgspec.structs.asdict(self.totals)}

    def text(self) -> str:
        lines = [finding.text() for finding in self.findings]
        lines += [f"(note) {note.text()}" for note in self.notes]
        lines += [
            f"{name}: {count - FINDINGS_MAX:,} more" for name, count in self.counts.items() if count > FINDINGS_MAX
        ]
        mismatch_count = sum(self.counts.get(check.name, 0) for check in CHECKS if not check.is_note)
        summary = (
            f"{mismatch_count:,} {'row differs' if mismatch_count == 1 else 'rows differ'}"
            if mismatch_count
            else "consistent"
        )
        lines.append(f"{summary}: {self.totals.text()}")
        return "\n".join([*lines, self.history.text()] if self.history else lines)


def check_database(url: str, history_files: Sequence[Path] = ()) -> ConsistencyReport:
    history = read_histories(history_files)
    with open_snapshot(url) as snapshot:
        result = run_checks(snapshot)
        if history_files:
            result.history = check_history(snapshot, history)
        return result


def run_checks(snapshot: Snapshot) -> ConsistencyReport:
    totals = first_row(snapshot, Q.check_totals())
    result = ConsistencyReport(msgspec.convert(totals, Totals))
    for check in CHECKS:
        for finding in _iter_findings(snapshot, check):
            count = result.counts[check.name] = result.counts.get(check.name, 0) + 1
            if count <= FINDINGS_MAX:
                (result.notes if check.is_note else result.findings).append(finding)
    return result


def _iter_findings(snapshot: Snapshot, check: Check) -> Iterator[Finding]:
    return (_to_finding(check, row) for row in iter_rows(snapshot, check.statement()))


def _to_finding(check: Check, row: Row) -> Finding:
    # Clients choose names, so control characters are escaped: a name must not move the terminal's cursor.
    values = [value if isinstance(value, int) else _escape_unprintable(str(value)) for value in row]
    zone_id = str(row[0]) or None
    return Finding(check.name, zone_id, str(row[1]), check.template.format(*values))


def _escape_unprintable(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]
