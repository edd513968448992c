"""Dependencies as a graph: whether new ones would close a cycle, and which.

A task that is made depends on tasks that are there, or that are made with it; so only among the new ones can a cycle
arise. One that is changed may close a cycle through tasks that nobody named: for it, what lies ahead was walked and
loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def find_cycle(start: str, depends_on: Mapping[str, Sequence[str]]) -> list[str] | None:
    """The way from a task back to itself along what each depends on: `[start, …, start]`; None if there is none.

    Without recursion: a chain of ten thousand is an ordinary thing here.
    """
    came_from: dict[str, str] = {}
    pending = [start]
    while pending:
        current = pending.pop()
        for dependency in depends_on.get(current, ()):
            if dependency == start:
                return _path_back(start, current, came_from)
            if dependency not in came_from:
                came_from[dependency] = current
                pending.append(dependency)
    return None


def _path_back(start: str, last: str, came_from: Mapping[str, str]) -> list[str]:
    path = [start]
    while last != start:
        path.append(last)
        last = came_from[last]
    return [start, *reversed(path)]


def find_stuck(depends_on: Mapping[str, Iterable[str]]) -> set[str]:
    """All that stand in a cycle, or wait for one: what is left when everything is taken away that could be done."""
    unmet = {
        task: {dependency for dependency in dependencies if dependency in depends_on}
        for task, dependencies in depends_on.items()
    }
    dependents: dict[str, list[str]] = {}
    for task, dependencies in unmet.items():
        for dependency in dependencies:
            dependents.setdefault(dependency, []).append(task)
    ready = [task for task, dependencies in unmet.items() if not dependencies]
    while ready:
        done = ready.pop()
        for task in dependents.get(done, ()):
            unmet[task].discard(done)
            if not unmet[task]:
                ready.append(task)
    return {task for task, dependencies in unmet.items() if dependencies}


def order_by_dependencies(depends_on: Mapping[str, Sequence[str]]) -> tuple[list[str], dict[str, list[str]]]:
    """(in order, cycles): names that can be made one after the other, and of each that cannot the cycle it stands in or
    waits for."""
    stuck = find_stuck(depends_on)
    internal = {
        name: [dependency for dependency in dependencies if dependency in depends_on]
        for name, dependencies in depends_on.items()
    }
    order: list[str] = []
    unmet = {name: len(set(dependencies)) for name, dependencies in internal.items() if name not in stuck}
    dependents: dict[str, list[str]] = {}
    for name in unmet:
        for dependency in set(internal[name]):
            dependents.setdefault(dependency, []).append(name)
    ready = [name for name, count in unmet.items() if count == 0]
    while ready:
        # The order of the request is kept where nothing speaks against it.
        next_ready: list[str] = []
        for name in ready:
            order.append(name)
            for waiting in dependents.get(name, ()):
                unmet[waiting] -= 1
                if unmet[waiting] == 0:
                    next_ready.append(waiting)
        ready = next_ready
    next_stuck = {name: next(dependency for dependency in internal[name] if dependency in stuck) for name in stuck}
    return order, {name: _follow_cycle(name, next_stuck) for name in depends_on if name in stuck}


def _follow_cycle(name: str, next_stuck: Mapping[str, str]) -> list[str]:
    """Whatever is stuck waits for something that is stuck: going on from one to the next, one comes round."""
    path: dict[str, int] = {}
    while name not in path:
        path[name] = len(path)
        name = next_stuck[name]
    return [*[visited for visited, index in path.items() if index >= path[name]], name]
