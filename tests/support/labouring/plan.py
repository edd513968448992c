"""The tasks of a run: who they are, what is asked of them, and who waits for whom. Drawn from the seed alone."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

Task = dict[str, object]
TYPES = ("development", "research", "review")
MOODS = (("steady", 70), ("fragile", 20), ("slow", 4), ("hopeless", 6))
GROUP = 25
"""Tasks of which some depend on others; what one group does is nothing to the next."""


def waves(seed: str, number: int) -> Iterator[list[Task]]:
    """So many tasks, in groups that are each made in one call."""
    chance = random.Random(f"{seed} plan")
    made = 0
    while made < number:
        size = min(GROUP, number - made)
        yield [*_group(chance, f"t{made // GROUP:03}", size)]
        made += size


def _group(chance: random.Random, prefix: str, size: int) -> Iterator[Task]:
    """A chain of five, a diamond of four, a fan-in over the rest but some that stand alone."""
    names = [f"{prefix}-{number:02}" for number in range(size)]
    ahead: dict[str, list[str]] = {name: [] for name in names}
    for before, after in itertools.pairwise(names[:5]):
        ahead[after] = [before]
    if size >= 9:
        top, left, right, bottom = names[5:9]
        ahead[left] = ahead[right] = [top]
        ahead[bottom] = [left, right]
    if size >= 16:
        ahead[names[15]] = names[9:15]
    for name in names:
        yield _task(chance, name, ahead[name])


def _task(chance: random.Random, name: str, ahead: list[str]) -> Task:
    [mood] = chance.choices([mood for mood, _ in MOODS], [weight for _, weight in MOODS])
    job = {"steps": chance.randint(1, 4), "seconds": round(chance.uniform(0.01, 0.25), 3), "mood": mood}
    task: Task = {
        "id": name,
        "title": f"The task {name}",
        "taskType": chance.choice(TYPES),
        "priority": chance.randint(1, 10),
        "requiredCapabilities": ["hands"] if chance.random() < 0.5 else [],
        "inputContext": job,
        "dependsOn": ahead,
        "onDependencyFailure": "run" if chance.random() < 0.4 else "fail",
        "maxRetries": chance.randint(0, 2) if mood == "hopeless" else 12,
        "retryBackoffSeconds": chance.choice((0, 0, 1)),
    }
    if mood == "slow":
        task["timeoutSeconds"] = 1
    return task
