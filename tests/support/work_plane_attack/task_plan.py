"""The tasks of a run, their inputs and their dependencies. They depend only on the seed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

Task = dict[str, object]
TYPES = ("development", "research", "review")
BEHAVIOUR_WEIGHTS = (("steady", 70), ("flaky", 20), ("slow", 4), ("failing", 6))
GROUP_SIZE = 25
"""Tasks in a group. Dependencies exist only inside a group."""


def plan_waves(seed: str, count: int) -> Iterator[list[Task]]:
    """Yield `count` tasks in groups. Each group is created in one call."""
    rng = random.Random(f"{seed} plan")
    planned = 0
    while planned < count:
        size = min(GROUP_SIZE, count - planned)
        yield [*_plan_group(rng, f"t{planned // GROUP_SIZE:03}", size)]
        planned += size


def _plan_group(rng: random.Random, prefix: str, size: int) -> Iterator[Task]:
    """A chain of five, a diamond of four, a fan-in of six into one. The rest have no dependencies."""
    names = [f"{prefix}-{number:02}" for number in range(size)]
    dependencies: dict[str, list[str]] = {name: [] for name in names}
    for before, after in itertools.pairwise(names[:5]):
        dependencies[after] = [before]
    if size >= 9:
        top, left, right, bottom = names[5:9]
        dependencies[left] = dependencies[right] = [top]
        dependencies[bottom] = [left, right]
    if size >= 16:
        dependencies[names[15]] = names[9:15]
    for name in names:
        yield _plan_task(rng, name, dependencies[name])


def _plan_task(rng: random.Random, name: str, dependencies: list[str]) -> Task:
    [behaviour] = rng.choices([name for name, _ in BEHAVIOUR_WEIGHTS], [weight for _, weight in BEHAVIOUR_WEIGHTS])
    task_input = {"steps": rng.randint(1, 4), "seconds": round(rng.uniform(0.01, 0.25), 3), "behaviour": behaviour}
    task: Task = {
        "id": name,
        "title": f"Task {name}",
        "taskType": rng.choice(TYPES),
        "priority": rng.randint(1, 10),
        "requiredCapabilities": ["build"] if rng.random() < 0.5 else [],
        "inputContext": task_input,
        "dependsOn": dependencies,
        "onDependencyFailure": "run" if rng.random() < 0.4 else "fail",
        "maxRetries": rng.randint(0, 2) if behaviour == "failing" else 12,
        "retryBackoffSeconds": rng.choice((0, 0, 1)),
    }
    if behaviour == "slow":
        task["timeoutSeconds"] = 1
    return task
