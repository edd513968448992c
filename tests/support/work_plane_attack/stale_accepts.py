"""Finds reports about an attempt that were sent after another client held the next attempt, and still accepted. Uses
only the agents' histories, which share one clock, not the event log or the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPORT_OPS = ("task.progress", "task.complete", "task.fail", "task.release")
REPEATABLE_OPS = ("task.complete", "task.fail")
"""A repeated report gets the same response and changes nothing."""


@dataclass(frozen=True)
class ClaimedAttempt:
    task: str
    attempt: int
    token: str
    at: float
    """When the claiming client had read the response."""
    client: str


def read_lines(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """Yield complete lines, without those that were written before their call."""
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
                # A repeated claim returns the same attempts: the client holds them since the first time.
                if leases.setdefault(token, attempt) is attempt:
                    attempts_by_task.setdefault(attempt.task, []).append(attempt)
        elif line["op"] in REPORT_OPS and line["status"] == 200:
            reports.append(line)
    found = []
    for line in sorted(reports, key=lambda line: line["started"]):
        reported = leases.get(line["asked"]["attemptToken"])
        if reported is None or _is_repeated(line, reports):
            continue
        found += [
            f"{line['op']} of attempt {reported.attempt} of {reported.task} by {line['client']} was accepted after "
            f"{other.client} held attempt {other.attempt}"
            for other in attempts_by_task[reported.task]
            # Compared by token: the number of a released attempt is used again. A lower number is an earlier attempt
            # whose claim was read late, by a client that was frozen.
            if other.token != reported.token
            and other.attempt >= reported.attempt
            and reported.at < other.at < line["started"]
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
    """The number of attempts that resumed from a checkpoint of an earlier one."""
    return sum(
        1
        for line in read_lines(files)
        if line["op"] == "task.claim" and line["status"] == 200
        for task in line["answer"]["tasks"]
        if task["attempt"] > 1 and task["checkpointData"]
    )


def count_refused(files: Sequence[Path], code: str) -> int:
    return sum(1 for line in read_lines(files) if (line["answer"] or {}).get("error") == code)
