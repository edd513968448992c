"""The dependency graph: cycles, and the order in which tasks are created.

A new task can depend on existing tasks and on tasks in the same request. It can form a cycle only with the latter. If
the dependencies of an existing task are replaced, a cycle can go through any task of the zone, so the closure of the
new dependencies is loaded and searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def find_cycle(start: str, depends_on: Mapping[str, Sequence[str]]) -> list[str] | None:
    """Return a path along dependencies from a task back to itself, `[start, …, start]`, or None.

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


def find_stuck_tasks(depends_on: Mapping[str, Iterable[str]]) -> set[str]:
    """Return the tasks that can never complete, because they are in a cycle or depend on a task in one."""
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
    """Return (order, cycles): the tasks that can be created, each after its dependencies; and, for every task that is
    in a cycle or depends on one, that cycle."""
    stuck = find_stuck_tasks(depends_on)
    request_edges = {
        task: [dependency for dependency in dependencies if dependency in depends_on]
        for task, dependencies in depends_on.items()
    }
    order: list[str] = []
    unmet = {task: len(set(dependencies)) for task, dependencies in request_edges.items() if task not in stuck}
    dependents: dict[str, list[str]] = {}
    for task in unmet:
        for dependency in set(request_edges[task]):
            dependents.setdefault(dependency, []).append(task)
    ready = [task for task, count in unmet.items() if count == 0]
    while ready:
        # Proceed level by level, to keep the order of the request as far as dependencies allow.
        next_ready: list[str] = []
        for task in ready:
            order.append(task)
            for waiting in dependents.get(task, ()):
                unmet[waiting] -= 1
                if unmet[waiting] == 0:
                    next_ready.append(waiting)
        ready = next_ready
    stuck_dependency = {
        task: next(dependency for dependency in request_edges[task] if dependency in stuck) for task in stuck
    }
    return order, {task: _follow_cycle(task, stuck_dependency) for task in depends_on if task in stuck}


def _follow_cycle(task: str, stuck_dependency: Mapping[str, str]) -> list[str]:
    """Return the cycle that a stuck task is in or depends on.

    Every stuck task depends on a stuck task, so following these dependencies leads into a cycle.
    """
    path: dict[str, int] = {}
    while task not in path:
        path[task] = len(path)
        task = stuck_dependency[task]
    return [*[visited for visited, index in path.items() if index >= path[task]], task]
