"""What is to be done about what a turn has seen.

Everything here is asked for and not done: the lanes look at the row again, under the zone's lock, and an attempt that
has ended meanwhile is left as it is.

| seen                                                | asked for                                            |
|-----------------------------------------------------|------------------------------------------------------|
| an attempt's time is over                             | abort it (`timeout`); another follows after its backoff  |
| it was assigned, and nobody has launched it in time   | abort it (`launch_lost`)                               |
| it is long past its estimate                          | warn its agent                                        |
| it was warned, and has not moved since                | abort it (`hung`); it comes back one priority higher    |
| a moment that a task waits for has come               | let it begin, or come back from its backoff             |
| it has ended, and some that depend on it do not know   | tell them, so many at a time                           |
| tasks wait for each other                             | fail all that stand in the cycle, naming it             |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from quarterdeck.domain.tasks.model.commands import Abort, Cut, Due, Spread, Warn
from quarterdeck.domain.tasks.model.rows import Attempt, Overdue, Ref, State
from quarterdeck.domain.tasks.rules.dependency_graph import cycle_through, in_cycles

TIMEOUT = "timeout"
LAUNCH_LOST = "launch_lost"
HUNG = "hung"
CYCLE_SHOWN = 100
Step = Abort | Due | Warn | Spread | Cut
Fence = tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class Seen:
    """What of the tasks needs somebody to act."""

    timed_out: Sequence[Attempt] = ()
    overdue: Sequence[Overdue] = ()
    due: Sequence[Ref] = ()
    spreading: Sequence[Ref] = ()

    def __len__(self) -> int:
        return len(self.timed_out) + len(self.overdue) + len(self.due) + len(self.spreading)


def steps(seen: Seen, fence: Fence, chance: Callable[[], float]) -> list[Step]:
    """What frees agents comes first, then what gives them something to do."""
    return [
        *(_timed_out(each, fence, chance()) for each in seen.timed_out),
        *(_overdue(each, fence, chance()) for each in seen.overdue),
        *(Spread(zone_id=zone_id, id=task_id, fence=fence) for zone_id, task_id in seen.spreading),
        *(Due(zone_id=zone_id, id=task_id, fence=fence) for zone_id, task_id in seen.due),
    ]


def _timed_out(seen: Attempt, fence: Fence, chance: float) -> Abort:
    is_begun = seen.status is not State.ASSIGNED
    return Abort(
        zone_id=seen.zone_id,
        id=seen.id,
        fence=fence,
        token=seen.token,
        reason=TIMEOUT if is_begun else LAUNCH_LOST,
        seen="out_of_time" if is_begun else "not_begun",
        chance=chance,
    )


def _overdue(seen: Overdue, fence: Fence, chance: float) -> Warn | Abort:
    if not seen.was_warned:
        return Warn(zone_id=seen.zone_id, id=seen.id, fence=fence)
    return Abort(
        zone_id=seen.zone_id,
        id=seen.id,
        fence=fence,
        token=seen.token,
        reason=HUNG,
        seen="hung",
        chance=chance,
        raises_priority=True,
    )


def cuts(zone_id: str, depends_on: Mapping[str, Iterable[str]], fence: Fence) -> list[Cut]:
    """Of one zone's tasks that wait for others, those that wait for themselves. Those that only wait for such fail with
    them, as with every failure."""
    # Once along what each waits for, and once against it: what is left stands in a cycle, or between two.
    stuck = in_cycles(depends_on)
    waited_for: dict[str, list[str]] = {task: [] for task in stuck}
    for task in stuck:
        for ahead in depends_on[task]:
            if ahead in stuck:
                waited_for[ahead].append(task)
    stuck = in_cycles(waited_for)
    among = {task: [ahead for ahead in depends_on[task] if ahead in stuck] for task in sorted(stuck)}
    found: list[Cut] = []
    named: dict[str, tuple[str, ...]] = {}
    for task in among:
        if task not in named:
            # Whoever stands in a cycle that was found already needs no search of its own.
            way = tuple(cycle_through(task, among) or ())
            named |= dict.fromkeys(way or (task,), way)
        if not (way := named[task]):
            continue
        found.append(Cut(zone_id=zone_id, id=task, fence=fence, cycle=way[:CYCLE_SHOWN]))
    return found
