"""Tasks that wait for tasks: what the end of one means for those that depend on it.

A dependency is either waited for or out of the way. When a task is done, each dependency on it is got out of the way
and its dependent waits for one less; what waits for nothing more may begin. When it has failed for good, its
dependents fail with it, or go on without it if they were told to. Both cost what they touch: only dependencies that
are still waited for are looked at, and those that are too many for one batch are left to the next (`spreads`).
"""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.tasks.model.commands import Ask, Cut, Patch, Retry, Spread
from quarterdeck.domain.tasks.model.rows import Ref, Said, State, Strategy, Task
from quarterdeck.domain.tasks.rules import errors, ranking, states
from quarterdeck.domain.tasks.rules.batch import Book, Why
from quarterdeck.domain.tasks.rules.batch_input import Known, Standing, standing
from quarterdeck.domain.tasks.rules.dependency_graph import cycle_through
from quarterdeck.domain.tasks.rules.states import Rank


class Dependencies(Book):
    def __init__(self, known: Known) -> None:
        super().__init__(known)
        self._standings = {(each.zone_id, each.id): each for each in known.standings}
        self._blocked = {ref: [*of] for ref, of in known.blocked.items()}

    def _standing(self, ref: Ref) -> Standing | None:
        """As it is now, which may be otherwise than it was loaded."""
        row = self._rows.get(ref)
        return standing(row) if row is not None else self._standings.get(ref)

    def _standings_of(self, zone_id: str, depends_on: Sequence[str]) -> tuple[set[str], str | None] | Problem:
        """Of those that something is to depend on: which are not out of the way yet, and one that has failed."""
        unmet: set[str] = set()
        failed: str | None = None
        for task_id in depends_on:
            found = self._standing((zone_id, task_id))
            if found is None:
                return errors.unknown_dependency(task_id)
            if found.has_failed:
                failed = failed or task_id
            elif not found.is_done:
                unmet.add(task_id)
        return unmet, failed

    def _wait_for(self, ref: Ref, depends_on: Sequence[str], unmet: set[str]) -> None:
        """From here on it waits for these; the others are out of its way."""
        self.depends[ref] = tuple(depends_on)
        self.met |= {(ref, task_id) for task_id in depends_on if task_id not in unmet}
        for task_id in unmet:
            self._blocked.setdefault((ref[0], task_id), []).append(ref)

    # -- the end of one ------------------------------------------------------------------------------------------

    def _settle(self, row: Task, ask: Ask) -> None:
        """Tells those that wait for it, as far as they were loaded."""
        for dependent in self._blocked.pop((row.zone_id, row.id), ()):
            waiting = self._rows.get(dependent)
            still = row.id in self.depends.get(dependent, (row.id,)) and (dependent, row.id) not in self.met
            if waiting is not None and still:
                self._get_out_of_the_way(waiting, row, ask)
        if bool(row.spreads) != self._known.blocked_cut:
            self._keep(row, states.spreading(row, spreads=self._known.blocked_cut))

    def _get_out_of_the_way(self, waiting: Task, ended: Task, ask: Ask) -> None:
        dependency = ((waiting.zone_id, waiting.id), ended.id)
        self.met.add(dependency)
        self.reopened.discard(dependency)
        if waiting.status not in (State.PENDING, State.PAUSED):
            return
        if ended.final and waiting.on_dependency_failure == "fail":
            self._say(waiting, Said(last_error=because(ended.id)))
            after = states.failed_by_dependency(waiting, states.DEPENDENCY_FAILED, self._now)
            self._move(waiting, after, "task.failed", ask, Why(states.DEPENDENCY_FAILED))
            return
        after = states.unblocked(waiting, self._now)
        if after.unmet == 0 and waiting.unmet > 0:
            self._move(waiting, after, "task.unblocked", ask)
        else:
            self._keep(waiting, after)
        self._becomes_ready(after)

    def _spread(self, ask: Spread, row: Task) -> Task:
        if row.spreads and (row.final or row.completed_at is not None):
            self._settle(row, ask)
        return self.row((row.zone_id, row.id))

    def _cut(self, ask: Cut, row: Task) -> Task:
        """One of those that wait for each other. That it waits at all is looked at again here."""
        if row.status not in (State.PENDING, State.PAUSED) or not row.unmet:
            return row
        self._say(row, Said(last_error=f"These tasks wait for each other: {errors.shown(ask.cycle)}."))
        after = states.failed_by_dependency(row, states.DEPENDENCY_CYCLE, self._now)
        self._move(row, after, "task.failed", ask, Why(states.DEPENDENCY_CYCLE, cycle=ask.cycle))
        return after

    # -- by hand -------------------------------------------------------------------------------------------------

    def _retry(self, ask: Retry, row: Task) -> Task | Problem:
        """Begins anew, and waits anew for what it depends on, should that have been begun anew as well."""
        if row.status not in (State.FAILED, State.ABORTED):
            return errors.not_movable(row, "retried", f"it is {row.status}")
        ref = (row.zone_id, row.id)
        depends_on = self._known.ahead.get(ref, ())
        met = self._standings_of(row.zone_id, depends_on)
        if isinstance(met, Problem):
            return met
        unmet, failed = met
        if failed is not None and row.on_dependency_failure == "fail":
            return errors.not_movable(row, "retried", f"it depends on {failed!r}, which has failed: retry that first")
        again = {(ref, task_id) for task_id in unmet}
        self.reopened |= again
        self.met -= again
        for task_id in unmet:
            self._blocked.setdefault((row.zone_id, task_id), []).append(ref)
        after = states.waiting_for(states.retried(row, self._now), row.depends, len(unmet), self._now)
        self._move(row, after, "task.requeued", ask, Why("retry"))
        self._becomes_ready(after)
        return after

    def _change(self, ask: Patch, row: Task) -> Task | Problem:
        if row.status is State.ARCHIVED:
            return errors.not_movable(row, "changed", "it is ARCHIVED")
        after = states.patched(row, ask, self._known.windows.overdue_ms, self._now)
        if ask.depends_on is not None:
            changed = self._depend_anew(ask.depends_on, after)
            if isinstance(changed, Problem):
                return changed
            after = changed
        if after.priority != row.priority and row.ranked_by is not Strategy.FAIR:
            after = states.ranked(after, Rank(row.ranked_by, ranking.of(row.ranked_by, after)))
        if ask.metadata is not None or ask.tags is not None:
            self._say(row, Said(metadata_json=ask.metadata, tags=ask.tags_json))
        if ask.tags is not None:
            ref = (row.zone_id, row.id)
            had = self.tags.get(ref, self._known.tags.get(ref, ()))
            self.untagged |= {(row.zone_id, tag, row.id) for tag in had}
            self.tags[ref] = ask.tags
        self._move(row, after, "task.changed", ask)
        self._becomes_ready(after)
        return after

    def _depend_anew(self, depends_on: tuple[str, ...], row: Task) -> Task | Problem:
        if row.status not in (State.PENDING, State.PAUSED) or row.attempt:
            return errors.has_begun(row.id)
        met = self._standings_of(row.zone_id, depends_on)
        if isinstance(met, Problem):
            return met
        unmet, failed = met
        ahead = {task_id: of for (zone_id, task_id), of in self._known.ahead.items() if zone_id == row.zone_id}
        changed = {task_id: of for (zone_id, task_id), of in self.depends.items() if zone_id == row.zone_id}
        if way := cycle_through(row.id, {**ahead, **changed, row.id: depends_on}):
            return errors.cycle(way)
        ref = (row.zone_id, row.id)
        if failed is not None and row.on_dependency_failure == "fail":
            return errors.failed_dependency(failed)
        self._wait_for(ref, depends_on, unmet)
        return states.waiting_for(row, len(depends_on), len(unmet), self._now)


def because(task_id: str) -> str:
    return f"It depends on {task_id!r}, which has failed or was canceled."
