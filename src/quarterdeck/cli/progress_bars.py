"""Progress bars: one per task if they fit on the terminal, otherwise one for all tasks.

They are drawn on stderr, and only on a terminal, so programs never read them. The `render_` functions are pure;
`ProgressBars` draws over the previous output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TextIO

from quarterdeck.cli.output import cell, clip, pad
from quarterdeck.client.api import Document

_MAX_BAR_WIDTH = 24
"""A bar takes a third of the terminal's width, but at most this many columns."""


def bar(fraction: float, columns: int) -> str:
    """Draw `[=====>    ]` for a fraction from 0 to 1."""
    inner = max(columns - 2, 1)
    filled = round(max(0.0, min(1.0, fraction)) * inner)
    head = ">" if 0 < filled < inner else ""
    return f"[{'=' * (filled - len(head))}{head}{' ' * (inner - filled)}]"


def render_lines(tasks: Sequence[Document], max_lines: int, columns: int) -> list[str]:
    """Render one line per task, or one line for all tasks if there are more than `max_lines`."""
    if len(tasks) > max(max_lines, 1):
        return [clip(_summary_line(tasks, columns), columns)]
    return [clip(_task_line(task, columns), columns) for task in tasks]


def render_count(done: int, total: int, unit: str, columns: int) -> str:
    """Render a bar for a count, such as 3/10 tasks."""
    return clip(f"{bar(done / max(total, 1), _bar_width(columns))}  {done}/{total} {unit}", columns)


def _task_line(task: Document, columns: int) -> str:
    percent = task.get("progressPercent")
    fraction = percent / 100 if isinstance(percent, int) else 0.0
    fraction = 1.0 if task.get("status") == "COMPLETED" else fraction
    parts = [cell(task.get(name)) for name in ("title", "currentStep") if task.get(name)]
    status = pad(cell(task.get("status")).lower(), 9)
    return f"{bar(fraction, _bar_width(columns))} {fraction:>4.0%}  {status}  {' · '.join(parts)}"


def _summary_line(tasks: Sequence[Document], columns: int) -> str:
    counts: dict[str, int] = {}
    for task in tasks:
        status = cell(task.get("status")).lower()
        counts[status] = counts.get(status, 0) + 1
    finished = sum(1 for task in tasks if is_finished(task))
    summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return f"{render_count(finished, len(tasks), 'ended', columns)}: {summary}"


def is_finished(task: Document) -> bool:
    """Whether the task has ended. A failed task that will be retried has not ended."""
    status = task.get("status")
    return status in ("COMPLETED", "ARCHIVED") or (status in ("FAILED", "ABORTED") and task.get("isFinal") is True)


def _bar_width(columns: int) -> int:
    return max(min(_MAX_BAR_WIDTH, columns // 3), 5)


class ProgressBars:
    """Erases the bars drawn before, then draws the new ones."""

    def __init__(self, stream: TextIO | None, is_enabled: bool) -> None:
        self._stream = stream
        self.is_enabled = is_enabled and stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn_lines = 0

    def show(self, tasks: Mapping[str, Document]) -> None:
        if self.is_enabled:
            columns, rows = self._size()
            self._draw(render_lines([*tasks.values()], min(rows - 2, 20), columns - 1))

    def show_count(self, done: int, total: int, unit: str) -> None:
        if self.is_enabled:
            columns, _ = self._size()
            self._draw([render_count(done, total, unit, columns - 1)])

    def clear(self) -> None:
        self._draw([])

    def _draw(self, lines: Sequence[str]) -> None:
        if not self.is_enabled or self._stream is None:
            return
        # Move up to the first line that was drawn, and erase from there.
        erase = f"\x1b[{self._drawn_lines}A\r\x1b[J" if self._drawn_lines else ""
        self._stream.write(erase + "".join(f"{line}\n" for line in lines))
        self._stream.flush()
        self._drawn_lines = len(lines)

    def _size(self) -> tuple[int, int]:
        assert self._stream is not None
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return 80, 24
        return size.columns or 80, size.lines or 24


def stderr_bars(is_enabled: bool) -> ProgressBars:
    return ProgressBars(sys.stderr, is_enabled)
