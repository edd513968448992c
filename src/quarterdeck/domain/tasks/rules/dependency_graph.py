"""The dependency graph: cycles, and the order of creation.

A new task depends on existing tasks or on tasks of the same request, so it can form a cycle only with tasks of its
request. A task whose dependencies are replaced can form a cycle through any other tasks. To find it, the closure of the
new dependencies is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def find_cycle(start: str, depends_on: Mapping[str, Sequence[str]]) -> list[str] | None:
    """A path along dependencies from a task back to itself, `[start, …, start]`, or None.

    Iterative, because a chain of 10,000 tasks would exceed the recursion limit.
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
    """All tasks that are in a cycle or wait for one: the tasks that can never complete."""
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
    """(order, cycles): the tasks in an order in which they can be created, and for each other task the cycle that it is
    in or waits for."""
    stuck = find_stuck(depends_on)
    internal = {
        task: [dependency for dependency in dependencies if dependency in depends_on]
        for task, dependencies in depends_on.items()
    }
    order: list[str] = []
    unmet = {task: len(set(dependencies)) for task, dependencies in internal.items() if task not in stuck}
    dependents: dict[str, list[str]] = {}
    for task in unmet:
        for dependency in set(internal[task]):
            dependents.setdefault(dependency, []).append(task)
    ready = [task for task, count in unmet.items() if count == 0]
    while ready:
        # Going level by level keeps the order of the request where dependencies allow it.
        next_ready: list[str] = []
        for task in ready:
            order.append(task)
            for waiting in dependents.get(task, ()):
                unmet[waiting] -= 1
                if unmet[waiting] == 0:
                    next_ready.append(waiting)
        ready = next_ready
    next_stuck = {task: next(dependency for dependency in internal[task] if dependency in stuck) for task in stuck}
    return order, {task: _follow_cycle(task, next_stuck) for task in depends_on if task in stuck}


def _follow_cycle(task: str, next_stuck: Mapping[str, str]) -> list[str]:
    """The cycle that a stuck task is in or waits for. Every stuck task waits for one, so each path ends in a cycle."""
    path: dict[str, int] = {}
    while task not in path:
        path[task] = len(path)
        task = next_stuck[task]
    return [*[visited for visited, index in path.items() if index >= path[task]], task]
