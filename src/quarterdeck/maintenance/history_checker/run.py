"""Checks histories against a database snapshot. This is the only module in the package that reads the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.invariants import INVARIANTS
from quarterdeck.maintenance.history_checker.model import (
    CascadeRow,
    DependencyRow,
    EdgeRow,
    Evidence,
    InvocationRow,
    KeyRow,
    MarkedSessionRow,
    Outcome,
    RecordedCall,
    Rows,
    ServiceRow,
    SessionRow,
    TaskRow,
    Violation,
)
from quarterdeck.maintenance.history_checker.queries import Q
from quarterdeck.maintenance.history_checker.reader import History
from quarterdeck.maintenance.queries import Q as MAINTENANCE_Q
from quarterdeck.maintenance.snapshot import Snapshot, first_row
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement

VIOLATIONS_MAX = 100
"""The maximum number of violations shown per invariant. Others usually have the same cause and are only counted."""
S = TypeVar("S", bound=msgspec.Struct)


class HistoryReport(msgspec.Struct, frozen=True):
    calls: dict[str, int]
    """The number of calls by outcome: done, refused, unknown."""
    events: int
    cut: int = 0
    """Histories whose last line is incomplete."""
    unjudged: int = 0
    """Calls older than the oldest stored event."""
    findings: list[Violation] = []
    counts: dict[str, int] = {}
    """Violations of each invariant, including those that are not shown."""

    @property
    def is_consistent(self) -> bool:
        return not self.findings

    def unproven_notes(self) -> list[str]:
        """What the result does not prove, as sentences."""
        notes = []
        if self.unjudged:
            notes.append(f"{self.unjudged:,} calls are older than the oldest stored event and were not checked.")
        if self.cut:
            notes.append(
                f"{self.cut:,} histories end in the middle of a line, so the last calls of their clients are unknown."
            )
        return notes

    def text(self) -> str:
        lines = [finding.text() for finding in self.findings]
        lines += [
            f"{name}: {count - VIOLATIONS_MAX:,} more" for name, count in self.counts.items() if count > VIOLATIONS_MAX
        ]
        lines += [f"(note) {note}" for note in self.unproven_notes()]
        violation_count = sum(self.counts.values())
        summary = (
            "no violations"
            if self.is_consistent
            else f"{violation_count:,} {'violation' if violation_count == 1 else 'violations'}"
        )
        total = sum(self.calls.values())
        outcomes = ", ".join(f"{count:,} {name}" for name, count in self.calls.items())
        return "\n".join([*lines, f"{summary}: {total:,} calls ({outcomes}) against {self.events:,} events"])


def check_invariants(evidence: Evidence) -> Iterator[Violation]:
    """The violations of all invariants."""
    for check in INVARIANTS.values():
        yield from check(evidence)


def check_history(snapshot: Snapshot, history: History) -> HistoryReport:
    evidence, skipped_calls = load_history_evidence(snapshot, history.calls)
    outcomes = Counter(call.outcome for call in evidence.history)
    violations: list[Violation] = []
    counts: Counter[str] = Counter()
    for violation in check_invariants(evidence):
        counts[violation.promise] += 1
        if counts[violation.promise] <= VIOLATIONS_MAX:
            violations.append(violation)
    return HistoryReport(
        {outcome.value: outcomes[outcome] for outcome in Outcome},
        sum(1 for _ in evidence.log),
        history.truncated_file_count,
        skipped_calls,
        violations,
        dict(counts),
    )


def load_history_evidence(snapshot: Snapshot, calls: Sequence[RecordedCall]) -> tuple[Evidence, int]:
    """The evidence, and the number of calls that are older than the oldest stored event."""
    log = SnapshotRows(snapshot, MAINTENANCE_Q.events_all(), Event)
    head = first_row(snapshot, MAINTENANCE_Q.log_head_row())
    floor = int(str(head[1])) if head else 0
    oldest = next(iter(log), None) if floor else None
    checked_calls = [call for call in calls if oldest is None or call.ended >= oldest.at]
    now = first_row(snapshot, Q.history_now())
    rows = Rows(
        now=int(str(now[0])) if now else 0,
        floor=floor,
        sessions=SnapshotRows(snapshot, Q.history_sessions(), SessionRow),
        keys=SnapshotRows(snapshot, Q.history_keys(), KeyRow),
        invocations=SnapshotRows(snapshot, Q.history_invocations(), InvocationRow),
        edges=SnapshotRows(snapshot, Q.history_edges(), EdgeRow),
        services=SnapshotRows(snapshot, Q.history_services(), ServiceRow),
        cascades=SnapshotRows(snapshot, Q.history_cascades(), CascadeRow),
        marked_sessions=SnapshotRows(snapshot, Q.history_marked_sessions(), MarkedSessionRow),
        tasks=SnapshotRows(snapshot, Q.history_tasks(), TaskRow),
        dependencies=SnapshotRows(snapshot, Q.history_dependencies(), DependencyRow),
    )
    return Evidence(log, checked_calls, rows), len(calls) - len(checked_calls)


@dataclass(frozen=True, slots=True)
class SnapshotRows(Generic[S], Iterable[S]):
    """The rows of a statement, read again on each iteration. All iterations yield the same rows of one snapshot."""

    snapshot: Snapshot
    query: BoundStatement
    row_type: type[S]

    def __iter__(self) -> Iterator[S]:
        for page in self.snapshot.pages(self.query):
            yield from decode(page, self.row_type)
