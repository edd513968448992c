"""Dependencies as a graph: whether new ones would close a cycle, and which.

A task that is made depends on tasks that are there, or that are made with it; so only among the new ones can a cycle
arise. One that is changed may close a cycle through tasks that nobody named: for it, what lies ahead was walked and
loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def cycle_through(start: str, depends_on: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The way from a task back to itself along what each depends on: `[start, …, start]`; None if there is none.

    Without recursion: a chain of ten thousand is an ordinary thing here.
    """
    came_from: dict[str, str] = {}
    pending = [start]
    while pending:
        at = pending.pop()
        for ahead in depends_on.get(at, ()):
            if ahead == start:
                return _way_back(start, at, came_from)
            if ahead not in came_from:
                came_from[ahead] = at
                pending.append(ahead)
    return None


def _way_back(start: str, last: str, came_from: Mapping[str, str]) -> list[str]:
    way = [start]
    while last != start:
        way.append(last)
        last = came_from[last]
    return [start, *reversed(way)]


def in_cycles(depends_on: Mapping[str, Iterable[str]]) -> set[str]:
    """All that stand in a cycle, or wait for one: what is left when everything is taken away that could be done."""
    unmet = {task: {ahead for ahead in of if ahead in depends_on} for task, of in depends_on.items()}
    blocks: dict[str, list[str]] = {}
    for task, of in unmet.items():
        for ahead in of:
            blocks.setdefault(ahead, []).append(task)
    free = [task for task, of in unmet.items() if not of]
    while free:
        done = free.pop()
        for task in blocks.get(done, ()):
            unmet[task].discard(done)
            if not unmet[task]:
                free.append(task)
    return {task for task, of in unmet.items() if of}
