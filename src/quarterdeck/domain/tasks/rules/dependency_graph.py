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


def arranged(depends_on: Mapping[str, Sequence[str]]) -> tuple[list[str], dict[str, list[str]]]:
    """(in order, cycles): names that can be made one after the other, and of each that cannot the cycle it stands in or
    waits for."""
    stuck = in_cycles(depends_on)
    inner = {name: [each for each in of if each in depends_on] for name, of in depends_on.items()}
    order: list[str] = []
    unmet = {name: len(set(of)) for name, of in inner.items() if name not in stuck}
    blocks: dict[str, list[str]] = {}
    for name in unmet:
        for each in set(inner[name]):
            blocks.setdefault(each, []).append(name)
    free = [name for name, number in unmet.items() if number == 0]
    while free:
        # The order of the request is kept where nothing speaks against it.
        following: list[str] = []
        for name in free:
            order.append(name)
            for waiting in blocks.get(name, ()):
                unmet[waiting] -= 1
                if unmet[waiting] == 0:
                    following.append(waiting)
        free = following
    onward = {name: next(each for each in inner[name] if each in stuck) for name in stuck}
    return order, {name: _cycle(name, onward) for name in depends_on if name in stuck}


def _cycle(name: str, onward: Mapping[str, str]) -> list[str]:
    """Whatever is stuck waits for something that is stuck: going on from one to the next, one comes round."""
    way: dict[str, int] = {}
    while name not in way:
        way[name] = len(way)
        name = onward[name]
    return [*[each for each, place in way.items() if place >= way[name]], name]
