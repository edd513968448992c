"""From a database and files to a verdict: the only part of this package that reads anything but files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from quarterdeck.engine.event_log import Event
from quarterdeck.maintenance.history_checker.invariants import PROMISES
from quarterdeck.maintenance.history_checker.model import (
    Call,
    CascadeRow,
    EdgeRow,
    Evidence,
    Finding,
    InvocationRow,
    KeyRow,
    Outcome,
    Rows,
    ServiceRow,
    SessionRow,
)
from quarterdeck.maintenance.history_checker.queries import Q
from quarterdeck.maintenance.history_checker.reader import History
from quarterdeck.maintenance.history_checker.task_model import DependencyRow, TaskRow
from quarterdeck.maintenance.queries import Q as UPKEEP
from quarterdeck.maintenance.snapshot import Snapshot, first
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import Bound

SHOWN_MAX = 100
"""Lines of one promise. Whoever has more has one cause, and needs a number rather than a list."""
S = TypeVar("S", bound=msgspec.Struct)


class Verdict(msgspec.Struct, frozen=True):
    calls: dict[str, int]
    """How many were done, refused, and of unknown outcome."""
    events: int
    cut: int = 0
    """Histories whose last line was not whole."""
    unjudged: int = 0
    """Calls from before the first event that retention has left."""
    findings: list[Finding] = []
    counts: dict[str, int] = {}
    """By promise: how many breaches there are, shown or not."""

    @property
    def well(self) -> bool:
        return not self.findings

    def limits(self) -> list[str]:
        """What is not proved, in words."""
        said = []
        if self.unjudged:
            said.append(f"{self.unjudged:,} calls are older than the first event that is left, and were not judged.")
        if self.cut:
            said.append(f"{self.cut:,} histories end in the middle of a line: their clients' last calls are not known.")
        return said

    def text(self) -> str:
        lines = [finding.text() for finding in self.findings]
        lines += [f"{name}: {count - SHOWN_MAX:,} more" for name, count in self.counts.items() if count > SHOWN_MAX]
        lines += [f"(note) {said}" for said in self.limits()]
        broken = sum(self.counts.values())
        verdict = "every promise was kept" if self.well else f"{broken:,} {'breach' if broken == 1 else 'breaches'}"
        total = sum(self.calls.values())
        told = ", ".join(f"{count:,} {name}" for name, count in self.calls.items())
        return "\n".join([*lines, f"{verdict}: {total:,} calls ({told}) against {self.events:,} events"])


def judged(evidence: Evidence) -> Iterator[Finding]:
    """Every promise, one after the other."""
    for judge in PROMISES.values():
        yield from judge(evidence)


def verdict(snapshot: Snapshot, history: History) -> Verdict:
    evidence, unjudged = evidence_of(snapshot, history.calls)
    outcomes = Counter(call.outcome for call in evidence.history)
    shown: list[Finding] = []
    counts: Counter[str] = Counter()
    for finding in judged(evidence):
        counts[finding.promise] += 1
        if counts[finding.promise] <= SHOWN_MAX:
            shown.append(finding)
    return Verdict(
        {outcome.value: outcomes[outcome] for outcome in Outcome},
        sum(1 for _ in evidence.log),
        history.cut,
        unjudged,
        shown,
        dict(counts),
    )


def evidence_of(snapshot: Snapshot, calls: Sequence[Call]) -> tuple[Evidence, int]:
    """What there is to judge by, and how many calls are too old for it."""
    log = Walked(snapshot, UPKEEP.events_all(), Event)
    head = first(snapshot, UPKEEP.log_head_row())
    floor = int(str(head[1])) if head else 0
    oldest = next(iter(log), None) if floor else None
    judgeable = [call for call in calls if oldest is None or call.ended >= oldest.at]
    now = first(snapshot, Q.history_now())
    rows = Rows(
        now=int(str(now[0])) if now else 0,
        floor=floor,
        sessions=Walked(snapshot, Q.history_sessions(), SessionRow),
        keys=Walked(snapshot, Q.history_keys(), KeyRow),
        invocations=Walked(snapshot, Q.history_invocations(), InvocationRow),
        edges=Walked(snapshot, Q.history_edges(), EdgeRow),
        services=Walked(snapshot, Q.history_services(), ServiceRow),
        cascades=Walked(snapshot, Q.history_cascades(), CascadeRow),
        tasks=Walked(snapshot, Q.history_tasks(), TaskRow),
        dependencies=Walked(snapshot, Q.history_dependencies(), DependencyRow),
    )
    return Evidence(log, judgeable, rows), len(calls) - len(judgeable)


@dataclass(frozen=True, slots=True)
class Walked(Generic[S], Iterable[S]):
    """Rows that are read anew, in pages, whenever somebody walks over them: of one snapshot they are the same."""

    snapshot: Snapshot
    bound: Bound
    kind: type[S]

    def __iter__(self) -> Iterator[S]:
        for page in self.snapshot.pages(self.bound):
            yield from decode(page, self.kind)
