"""What a batch has changed so far, kept until all of it is written at once."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Binding
from quarterdeck.domain.tasks.model.commands import Ask, Claim, Complete, Cost, Fail, Outcome, Progress, Release, Start
from quarterdeck.domain.tasks.model.rows import AgentRef, Content, Leases, Ref, Said, State, Task
from quarterdeck.domain.tasks.rules import states
from quarterdeck.domain.tasks.rules.batch_input import ClassRef, Known, Told
from quarterdeck.domain.tasks.rules.ready_queues import Queues, is_ready
from quarterdeck.domain.tasks.rules.states import HELD

Step = tuple[Task, Task]
"""A task before and after."""
WORDS = (Start, Progress, Complete, Fail, Release)
"""What the holder of an attempt says of it."""


class Book:
    def __init__(self, known: Known) -> None:
        self._known = known
        self._now = known.now
        self._rows: dict[Ref, Task] = {}
        self._queues = Queues(self._rows, known.kinds, self._size_of)
        self._free = {ref: worker.free for ref, worker in known.workers.items()}
        self.created: dict[Ref, Content] = {}
        self.depends: dict[Ref, tuple[str, ...]] = {}
        """What tasks depend on, of those that were made or whose dependencies were changed."""
        self.met: set[tuple[Ref, str]] = set()
        """Dependencies, (task, on what), that nobody waits for any more."""
        self.reopened: set[tuple[Ref, str]] = set()
        """And those that are waited for again."""
        self.changed: dict[Ref, Task] = {}
        """As it was loaded."""
        self.begun: dict[Ref, Step] = {}
        """Those that were given out to a claim, and those that were completed, by this step alone if nothing else has
        happened to them since."""
        self.completed: dict[Ref, Step] = {}
        self.said: dict[Ref, Said] = {}
        self.tags: dict[Ref, tuple[str, ...]] = {}
        self.untagged: set[tuple[str, str, str]] = set()
        """(zone, tag, task)"""
        self.kinds: dict[ClassRef, Ref] = {}
        """Classes that something was made of."""
        self.bindings: list[Binding] = []
        self.held: dict[AgentRef, int] = {}
        """By how much more, or less, each agent holds, whoever gave it or took it."""
        self.heard: set[AgentRef] = set()
        """Agents that have spoken: by a claim, or under the token of an attempt."""
        self.revived: dict[AgentRef, Ask] = {}
        """Those of them that were believed to be lost, or were never heard of, and by which word they are there."""
        self.costs: list[tuple[Task, Cost]] = []
        self.stack_traces: list[tuple[Task, str]] = []
        self.fresh: set[ClassRef] = set()
        """Classes of which something became ready in this batch."""
        self.told: list[Told] = []
        for row in known.rows:
            self.learn(row)
        for row in known.ready:
            self.learn(row)
            self._queues.add(row)

    def learn(self, row: Task) -> Ref:
        ref = (row.zone_id, row.id)
        self._rows.setdefault(ref, row)
        return ref

    def _size_of(self, row: Task) -> int:
        ref = (row.zone_id, row.id)
        made = self.created.get(ref)
        return self._known.sizes.get(ref, 0) if made is None else made.size

    def row(self, ref: Ref) -> Task:
        """As it is now."""
        return self._rows[ref]

    def refs(self) -> list[Ref]:
        return [*self._rows]

    def rows(self, refs: Iterable[Ref]) -> list[Task]:
        return [self._rows[ref] for ref in refs]

    def is_all(self, ref: Ref, step: Step | None) -> bool:
        """Whether this step is all that has happened to a task in this batch."""
        return step is not None and self.changed[ref] is step[0] and self._rows[ref] is step[1]

    # -- being heard of ------------------------------------------------------------------------------------------

    def _claimed(self, ask: Claim, outcome: Outcome | Problem) -> Outcome | Problem:
        """A claim is a sign of life, whatever it gets: by it an agent that was believed to be lost is back, and one
        that was never heard of is missed from now on."""
        who = (ask.zone_id, ask.agent_id)
        worker = self._known.workers.get(who)
        if worker is None or not isinstance(outcome, Leases):
            return outcome
        is_back = worker.is_lost or worker.is_unheard
        if is_back:
            self.revived.setdefault(who, ask)
        if outcome.items or is_back or not worker.was_just_heard:
            self.heard.add(who)
        return outcome

    def _spoken(self, ask: Ask, row: Task, outcome: Outcome | Problem) -> Outcome | Problem:
        """So is what is said under the token of an attempt, as long as that counts; and nothing that others do with
        the task, nor what the server gives back because it reached nobody."""
        is_a_word = isinstance(ask, WORDS) and ask.caller is not None and not isinstance(outcome, Problem)
        if is_a_word and row.agent_id is not None and row.status in HELD:
            self.heard.add((row.zone_id, row.agent_id))
        return outcome

    # -- writing down --------------------------------------------------------------------------------------------

    def _becomes_ready(self, row: Task) -> None:
        if is_ready(row):
            self.fresh.add((row.zone_id, row.class_id))
            self._queues.add(row)

    def _charge(self, row: Task, costs: tuple[Cost, ...]) -> Task:
        self.costs += [(row, cost) for cost in costs]
        return states.charged(row, costs) if costs else row

    def _hold(self, row: Task, by: int) -> None:
        """What an agent holds is counted where it is given out and where it ends, and nowhere else."""
        if row.agent_id is None or (by < 0 and row.status not in HELD):
            return
        who = (row.zone_id, row.agent_id)
        self.held[who] = self.held.get(who, 0) + by
        if who in self._free:
            self._free[who] -= by

    def _keep(self, before: Task, after: Task) -> None:
        ref = (before.zone_id, before.id)
        if ref not in self.created:
            self.changed.setdefault(ref, before)
        self._rows[ref] = after

    def _say(self, row: Task, said: Said) -> None:
        ref = (row.zone_id, row.id)
        if ref in self.created:
            old = self.created[ref]
            new = {name: value for name, value in msgspec.structs.asdict(said).items() if value is not None}
            self.created[ref] = msgspec.structs.replace(old, **new)
            return
        earlier = self.said.get(ref)
        self.said[ref] = said if earlier is None else _later(earlier, said)

    def _move(self, before: Task, after: Task, kind: str, ask: Ask, told: Why | None = None) -> None:
        self._keep(before, after)
        self._tell(kind, before.status, after, ask, told)

    def _tell(self, kind: str, before: State | None, row: Task, ask: Ask, why: Why | None = None) -> None:
        why = why or NO_REASON
        trace = ask.trace or row.trace
        self.told.append(Told(kind, before, row, ask.actor, trace, why.reason, why.exhausted, why.cycle))


class Why(msgspec.Struct, frozen=True):
    """What is told of a transition besides where it led."""

    reason: str | None = None
    exhausted: bool = False
    cycle: tuple[str, ...] = ()


NO_REASON = Why()


def _later(earlier: Said, said: Said) -> Said:
    return Said(*(new if new is not None else old for old, new in zip(_values(earlier), _values(said), strict=True)))


def _values(said: Said) -> tuple[str | None, ...]:
    return msgspec.structs.astuple(said)
