"""From the agents' own lines, all written by one clock: was anybody's word about an attempt still accepted that it
spoke after the next attempt had been handed to somebody? It needs neither the log nor the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPORT_OPS = ("task.progress", "task.complete", "task.fail", "task.release")
REPEATABLE_OPS = ("task.complete", "task.fail")
"""What is said twice is answered twice, and changes nothing the second time."""


@dataclass(frozen=True)
class ClaimedAttempt:
    task: str
    attempt: int
    token: str
    at: float
    """When its claimer had read that it was its own."""
    client: str


def read_lines(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """All that were written whole, and not before their calls."""
    for file in files:
        for raw in file.read_bytes().split(b"\n")[:-1]:
            line = json.loads(raw)
            if not line.get("before"):
                yield line


def find_stale_accepts(files: Sequence[Path]) -> list[str]:
    leases: dict[str, ClaimedAttempt] = {}
    attempts_by_task: dict[str, list[ClaimedAttempt]] = {}
    reports: list[dict[str, Any]] = []
    for line in read_lines(files):
        if line["op"] == "task.claim" and line["status"] == 200:
            for task in line["answer"]["tasks"]:
                token = task["attemptToken"]
                attempt = ClaimedAttempt(task["id"], task["attempt"], token, line["ended"], line["client"])
                # A claim that is repeated is answered as before: it was its own from the first time on.
                if leases.setdefault(token, attempt) is attempt:
                    attempts_by_task.setdefault(attempt.task, []).append(attempt)
        elif line["op"] in REPORT_OPS and line["status"] == 200:
            reports.append(line)
    found = []
    for line in sorted(reports, key=lambda line: line["started"]):
        attempt_of_report = leases.get(line["asked"]["attemptToken"])
        if attempt_of_report is None or _is_repeated(line, reports):
            continue
        found += [
            f"{line['op']} of attempt {attempt_of_report.attempt} of {attempt_of_report.task} by {line['client']} was accepted after attempt "
            f"{other.attempt} had been handed to {other.client}"
            for other in attempts_by_task[attempt_of_report.task]
            # Not by their numbers: that of an attempt which was given back is given out again.
            if other.token != attempt_of_report.token and attempt_of_report.at < other.at < line["started"]
        ]
    return found


def _is_repeated(line: dict[str, Any], reports: Sequence[dict[str, Any]]) -> bool:
    return line["op"] in REPEATABLE_OPS and any(
        other["asked"]["attemptToken"] == line["asked"]["attemptToken"]
        and other["op"] == line["op"]
        and other["ended"] < line["started"]
        for other in reports
    )


def count_resumed(files: Sequence[Path]) -> int:
    """Attempts that went on from where another had come to."""
    return sum(
        1
        for line in read_lines(files)
        if line["op"] == "task.claim" and line["status"] == 200
        for task in line["answer"]["tasks"]
        if task["attempt"] > 1 and task["checkpointData"]
    )


def count_refused(files: Sequence[Path], code: str) -> int:
    return sum(1 for line in read_lines(files) if (line["answer"] or {}).get("error") == code)
