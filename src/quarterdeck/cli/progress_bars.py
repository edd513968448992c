"""Progress as people watch it: a bar for each task while there are few, one for all of them when there are many.

Drawn on stderr, and only on a terminal: what a program reads has no bars in it. The drawing is pure; `Bars` puts it on
the screen over the one before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from quarterdeck.cli.output import cell, clip, pad
from quarterdeck.client.api import Document

_WIDE = 24
"""Columns of a bar, if the terminal has as many to spare."""


def bar(share: float, columns: int) -> str:
    """`[=====>    ]`, for a share from 0 to 1."""
    inner = max(columns - 2, 1)
    full = round(max(0.0, min(1.0, share)) * inner)
    head = ">" if 0 < full < inner else ""
    return f"[{'=' * (full - len(head))}{head}{' ' * (inner - full)}]"


def lines(tasks: Sequence[Document], rows: int, columns: int) -> list[str]:
    """A line for each task, or one line for all where they would not fit."""
    if len(tasks) > max(rows, 1):
        return [clip(_all(tasks, columns), columns)]
    return [clip(_one(task, columns), columns) for task in tasks]


def counted(done: int, whole: int, what: str, columns: int) -> str:
    """How far something has come that is counted, not told in percent."""
    return clip(f"{bar(done / max(whole, 1), _columns_of_bar(columns))}  {done}/{whole} {what}", columns)


def _one(task: Document, columns: int) -> str:
    percent = task.get("progressPercent")
    share = percent / 100 if isinstance(percent, int) else 0.0
    share = 1.0 if task.get("status") == "COMPLETED" else share
    told = [cell(task.get(name)) for name in ("title", "currentStep") if task.get(name)]
    status = pad(cell(task.get("status")).lower(), 9)
    return f"{bar(share, _columns_of_bar(columns))} {share:>4.0%}  {status}  {' · '.join(told)}"


def _all(tasks: Sequence[Document], columns: int) -> str:
    counts: dict[str, int] = {}
    for task in tasks:
        word = cell(task.get("status")).lower()
        counts[word] = counts.get(word, 0) + 1
    over = sum(1 for task in tasks if is_over(task))
    told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    return f"{counted(over, len(tasks), 'ended', columns)}: {told}"


def is_over(task: Document) -> bool:
    """Whether nothing will move it by itself any more. What has failed and is tried again is not over."""
    status = task.get("status")
    return status in ("COMPLETED", "ARCHIVED") or (status in ("FAILED", "ABORTED") and task.get("isFinal") is True)


def _columns_of_bar(columns: int) -> int:
    return max(min(_WIDE, columns // 3), 5)


class Bars:
    """What is drawn now, and how to draw over it."""

    def __init__(self, stream: TextIO | None, on: bool) -> None:
        self._stream = stream
        self.on = on and stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = 0

    def show(self, tasks: Mapping[str, Document]) -> None:
        if self.on:
            columns, rows = self._size()
            self._draw(lines([*tasks.values()], min(rows - 2, 20), columns - 1))

    def count(self, done: int, whole: int, what: str) -> None:
        if self.on:
            columns, _ = self._size()
            self._draw([counted(done, whole, what, columns - 1)])

    def clear(self) -> None:
        self._draw([])

    def _draw(self, told: Sequence[str]) -> None:
        if not self.on or self._stream is None:
            return
        # Up to the first line of what was drawn, and away with everything below.
        over = f"\x1b[{self._drawn}A\r\x1b[J" if self._drawn else ""
        self._stream.write(over + "".join(f"{line}\n" for line in told))
        self._stream.flush()
        self._drawn = len(told)

    def _size(self) -> tuple[int, int]:
        assert self._stream is not None
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return 80, 24
        return size.columns or 80, size.lines or 24


def on_stderr(on: bool) -> Bars:
    return Bars(sys.stderr, on)
