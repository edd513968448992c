"""A task with what it depends on and what it blocks, drawn. Pure: the tasks and the colours are arguments.

A task that several ways lead to has a line at the end of each of them; all but the first say `also above`, and what
hangs below it is drawn once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from quarterdeck.cli.output import Paint, cell, clip, pad, width
from quarterdeck.cli.session_tree import BOX, Lines, lines_for, under
from quarterdeck.client.api import Document, items_of

__all__ = ["draw", "lines_for"]
AGAIN = "(also above)"
_TITLE = 60


class Row(NamedTuple):
    """A line: the branch before it, and the task it is about, or the heading of what is below."""

    branch: str
    name: str
    is_heading: bool = False
    is_again: bool = False


def draw(told: Document, marked: str, paint: Paint, lines: Lines = BOX) -> str:
    """`marked` is the task that was asked about: everything is seen from there."""
    tasks = {str(one.get("id")): one for one in items_of(told)}
    ahead: dict[str, list[str]] = {name: _names(one, "dependsOn", tasks) for name, one in tasks.items()}
    behind: dict[str, list[str]] = {}
    for name, others in ahead.items():
        for other in others:
            behind.setdefault(other, []).append(name)
    rows = [Row("", marked)]
    sides = [(title, side) for title, side in (("depends on", ahead), ("blocks", behind)) if side.get(marked)]
    for at, (title, side) in enumerate(sides):
        turn, rest = (lines.corner, lines.blank) if at == len(sides) - 1 else (lines.tee, lines.bar)
        rows.append(Row(turn, title, is_heading=True))
        rows += _below(marked, side, rest, lines)
    return _drawn(rows, tasks, marked, paint)


def _below(root: str, side: Mapping[str, Sequence[str]], indent: str, lines: Lines) -> list[Row]:
    """Depth first. A stack, not recursion: a chain may be longer than Python's."""
    rows: list[Row] = []
    seen: set[str] = {root}
    stack = under(side.get(root, ()), indent, lines)
    while stack:
        name, branch, below = stack.pop()
        rows.append(Row(branch, name, is_again=name in seen))
        if name not in seen:
            seen.add(name)
            stack += under(side.get(name, ()), below, lines)
    return rows


def _drawn(rows: Sequence[Row], tasks: Mapping[str, Document], marked: str, paint: Paint) -> str:
    # Each piece of a branch is one column per character, so only the names need measuring.
    first = max(len(row.branch) + width(cell(row.name)) for row in rows if not row.is_heading)
    states = [_state(tasks.get(row.name, {})) for row in rows if not row.is_heading]
    second = max(map(width, states))
    drawn = []
    for row in rows:
        if row.is_heading:
            drawn.append(row.branch + paint.dim(row.name))
            continue
        task = tasks.get(row.name, {})
        head = row.branch + pad(cell(row.name), first - len(row.branch))
        state = _state(task)
        shown = paint.status(cell(task.get("status")), pad(state, second))
        again = paint.dim(AGAIN) if row.is_again else ""
        title = clip(cell(task.get("title")), _TITLE)
        drawn.append("  ".join([paint.bold(head) if row.name == marked else head, shown, title, again]).rstrip())
    return "\n".join(drawn)


def _state(task: Document) -> str:
    status, percent = cell(task.get("status")), task.get("progressPercent")
    return f"{status} {percent}%" if status == "RUNNING" and isinstance(percent, int) else status


def _names(task: Document, field: str, known: Mapping[str, Document]) -> list[str]:
    """Those that are in the answer: what is too far away is not."""
    told = task.get(field)
    return [str(one) for one in told if str(one) in known] if isinstance(told, list) else []
