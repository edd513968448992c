"""From the agents' own lines, all written by one clock: was anybody's word about an attempt still accepted that it
spoke after the next attempt had been handed to somebody? It needs neither the log nor the rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORDS = ("task.progress", "task.complete", "task.fail", "task.release")
AGAIN = ("task.complete", "task.fail")
"""What is said twice is answered twice, and changes nothing the second time."""


@dataclass(frozen=True)
class Handed:
    task: str
    attempt: int
    token: str
    at: float
    """When its claimer had read that it was its own."""
    client: str


def lines(files: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """All that were written whole, and not before their calls."""
    for file in files:
        for raw in file.read_bytes().split(b"\n")[:-1]:
            line = json.loads(raw)
            if not line.get("before"):
                yield line


def late_words(files: Sequence[Path]) -> list[str]:
    leases: dict[str, Handed] = {}
    begun: dict[str, list[Handed]] = {}
    words: list[dict[str, Any]] = []
    for line in lines(files):
        if line["op"] == "task.claim" and line["status"] == 200:
            for task in line["answer"]["tasks"]:
                token = task["attemptToken"]
                handed = Handed(task["id"], task["attempt"], token, line["ended"], line["client"])
                # A claim that is repeated is answered as before: it was its own from the first time on.
                if leases.setdefault(token, handed) is handed:
                    begun.setdefault(handed.task, []).append(handed)
        elif line["op"] in WORDS and line["status"] == 200:
            words.append(line)
    found = []
    for line in sorted(words, key=lambda line: line["started"]):
        own = leases.get(line["asked"]["attemptToken"])
        if own is None or _is_repeated(line, words):
            continue
        found += [
            f"{line['op']} of attempt {own.attempt} of {own.task} by {line['client']} was accepted after attempt "
            f"{other.attempt} had been handed to {other.client}"
            for other in begun[own.task]
            # Not by their numbers: that of an attempt which was given back is given out again.
            if other.token != own.token and own.at < other.at < line["started"]
        ]
    return found


def _is_repeated(line: dict[str, Any], words: Sequence[dict[str, Any]]) -> bool:
    return line["op"] in AGAIN and any(
        other["asked"]["attemptToken"] == line["asked"]["attemptToken"]
        and other["op"] == line["op"]
        and other["ended"] < line["started"]
        for other in words
    )


def resumed(files: Sequence[Path]) -> int:
    """Attempts that went on from where another had come to."""
    return sum(
        1
        for line in lines(files)
        if line["op"] == "task.claim" and line["status"] == 200
        for task in line["answer"]["tasks"]
        if task["attempt"] > 1 and task["checkpointData"]
    )


def refused(files: Sequence[Path], code: str) -> int:
    return sum(1 for line in lines(files) if (line["answer"] or {}).get("error") == code)
