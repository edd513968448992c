"""`qd check`: counters against rows, sessions against parents, flags against states, cascades, zones, what belongs to
sessions against whether they live, tasks against those they wait for and who holds them, fleets against their members
and messages, the log, leases.

Each check is one statement over whole tables that finds what differs, and a sentence for each row it finds. All of
them read one snapshot, so a server under load looks as consistent as it is. `docs/operations.md` says of each what it
means and what to do. Where clients kept histories, those are held against the same snapshot (`upkeep.history`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from quarterdeck.maintenance.history_checker.reader import read_histories
from quarterdeck.maintenance.history_checker.run import HistoryReport, check_history
from quarterdeck.maintenance.queries import FLEET_QUERIES, Q
from quarterdeck.maintenance.snapshot import Snapshot, first_row, iter_rows, open_snapshot
from quarterdeck.store.interface import Row
from quarterdeck.store.sql import Statement

FINDINGS_MAX = 100
"""Lines of one check. Whoever has more has one cause, and needs a number rather than a list."""


class Check(msgspec.Struct, frozen=True):
    """Its rows begin with the zone and the id of what differs; the sentence takes values by their place."""

    name: str
    statement: Statement
    template: str
    is_note: bool = False
    """Worth knowing, and not wrong."""


CHECKS = (
    Check("counts", Q.check_counts, "the counter {2} {1} says {3}, and {4} are live"),
    Check(
        "counts-left", Q.check_counts_leftover, "the counter {2} {1} ({3}) is of a session that has ended or is gone"
    ),
    Check("counts-ever", Q.check_counts_total_spawned, "the tree {1} is said to have had {2} sessions, and has {3}"),
    Check("parents", Q.check_parents, "the session {1} lives, and its parent {2} {3}"),
    Check("places", Q.check_tree_positions, "the session {1} says depth {2}, root {3}; by its parent it is {4}, {5}"),
    Check("cycles", Q.check_cycles, "the session {1} is its own ancestor"),
    Check("expiries", Q.check_expiries, "the session {1} expires at {2}, after its parent {3} at {4}"),
    Check("states", Q.check_states, "the session {1} is {2}, and has no instant of its end, or no such state is known"),
    Check("suspensions", Q.check_suspensions, "the session {1} is {2}, and {3} is on it or above it"),
    Check("stamps", Q.check_cascade_marks, "the session {1} waits to be settled by the cascade {2}, which {3}"),
    Check("cascades", Q.check_cascades, "the cascade {1} stamped {2} and settled {3}, and {4} wait"),
    Check("cascades-slow", Q.check_cascades_slow, "the cascade {1} has {2} left after {3} s"),
    Check("zones", Q.check_zones, "the session {1} lives in a zone that {2}"),
    Check("invocations", Q.check_invocations, "the invocation {1} is {2}, and its session {3} {4}"),
    Check("attempts", Q.check_attempts, "the invocation {1} is {2} in attempt {3} of {4}, and its row cannot be"),
    Check("parked", Q.check_parked, "the waiting invocation {1} is put aside, and no session of it sleeps"),
    Check("delegations", Q.check_delegations, "the delegation {1} is active, and its session {2} {3}"),
    Check(
        "delegation-lines",
        Q.check_delegation_chains,
        "the delegation {1} goes further than {2}, which it was lent out of and which is {3}",
    ),
    Check(
        "delegation-order",
        Q.check_delegation_order,
        "the delegation {1} leads from {2} to {3}, which do not stand in that order",
    ),
    Check("services", Q.check_services, "the service {1} is {2}"),
    Check("tasks", Q.check_tasks, "the task {1} is {2} in attempt {3}, and its row cannot be"),
    Check("tasks-waiting", Q.check_tasks_unmet, "the task {1} is said to wait for {2} others ({4}), and waits for {3}"),
    Check("tasks-forgotten", Q.check_tasks_not_unblocked, "the task {1} waits for {2}, which is {3}"),
    Check("tasks-held", Q.check_tasks_held, "the agent {1} is said to hold {2} tasks, and holds {3}"),
    Check("tasks-lost", Q.check_tasks_of_lost_agents, "the task {1} is held by the agent {2}, which is {3}"),
    Check(
        "fleets",
        FLEET_QUERIES.check_fleets,
        "the fleet {1} is {2}, and has {3} administrators, {4} directors and {5} active members",
    ),
    Check(
        "fleet-members", FLEET_QUERIES.check_fleet_members, "the member {1} of fleet {2} is {3}, and its row cannot be"
    ),
    Check(
        "fleet-registry",
        FLEET_QUERIES.check_fleet_registry,
        "the member {1} of fleet {2} is {3}, and in the registry {4} is {5}",
    ),
    Check("fleet-panes", FLEET_QUERIES.check_fleet_panes, "the member {1} {2}"),
    Check(
        "fleet-monitors",
        FLEET_QUERIES.check_fleet_monitors,
        "the monitor of fleet {1} has the pid {2}; the fleet is {3}, or the monitor's row cannot be",
    ),
    Check("fleet-ids", FLEET_QUERIES.check_fleet_ids, "the counter of {1} says {2}, and the highest id is {3}"),
    Check("messages", FLEET_QUERIES.check_messages, "the message {1} is a {2} and {3}, and its row cannot be"),
    Check(
        "message-ends",
        FLEET_QUERIES.check_message_endpoints,
        "the message {1} of fleet {2} is {3} {4}, who is not of that fleet, or is its administrator",
    ),
    Check(
        "broadcasts",
        FLEET_QUERIES.check_broadcasts,
        "the broadcast {1} says {2!r}, and has {3} deliveries to {4} members, up to {5}",
    ),
    Check("deliveries", FLEET_QUERIES.check_deliveries, "the message {1} was delivered of {2}, which {3}"),
    Check("log-head", Q.check_log_head, "{1} has position {2} and floor {3}, and the last event is {4}"),
    Check("log-gaps", Q.check_log_gaps, "the {1} at positions {2} to {3} are gone"),
    Check("leases", Q.check_leases, "the lease {1} of {2} ends in {3} s, or has a term that cannot be"),
    Check("keys", Q.check_idempotency_keys, "the key {3!r} of {2} stands for {1}, which is gone", is_note=True),
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
        named = msgspec.structs.asdict(self)
        return ", ".join(f"{count:,} {noun.removesuffix('s') if count == 1 else noun}" for noun, count in named.items())


class ConsistencyReport(msgspec.Struct):
    totals: Totals
    findings: list[Finding] = []
    notes: list[Finding] = []
    counts: dict[str, int] = {}
    """By check: how many rows it found, shown or not."""
    history: HistoryReport | None = None
    """What became of the histories, if any were given."""

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
        mismatches = sum(self.counts.get(check.name, 0) for check in CHECKS if not check.is_note)
        summary = (
            f"{mismatches:,} {'row differs' if mismatches == 1 else 'rows differ'}" if mismatches else "all is well"
        )
        lines.append(f"{summary}: {self.totals.text()}")
        return "\n".join([*lines, self.history.text()] if self.history else lines)


def check_database(url: str, histories: Sequence[Path] = ()) -> ConsistencyReport:
    history = read_histories(histories)
    with open_snapshot(url) as snapshot:
        result = run_checks(snapshot)
        if histories:
            result.history = check_history(snapshot, history)
        return result


def run_checks(snapshot: Snapshot) -> ConsistencyReport:
    totals = first_row(snapshot, Q.check_totals())
    result = ConsistencyReport(msgspec.convert(totals, Totals))
    for check in CHECKS:
        for finding in _findings(snapshot, check):
            count = result.counts[check.name] = result.counts.get(check.name, 0) + 1
            if count <= FINDINGS_MAX:
                (result.notes if check.is_note else result.findings).append(finding)
    return result


def _findings(snapshot: Snapshot, check: Check) -> Iterator[Finding]:
    return (_finding(check, row) for row in iter_rows(snapshot, check.statement()))


def _finding(check: Check, row: Row) -> Finding:
    # Names are chosen by strangers: as one line that cannot move a cursor.
    values = [value if isinstance(value, int) else _one_line(str(value)) for value in row]
    zone_id = str(row[0]) or None
    return Finding(check.name, zone_id, str(row[1]), check.template.format(*values))


def _one_line(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]
