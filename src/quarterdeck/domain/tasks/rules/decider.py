"""One batch, decided in order of arrival.

The board holds what was loaded for the batch and moves it, command by command, as if each came alone; what moved is
then written at once. It does no I/O and knows no clock: the moment is handed to it, and so are tokens and chance.

What becomes ready within a batch (made, unblocked, back from its backoff, given back) is offered to those who wait for
work, in the same commit (`take`).
"""

from __future__ import annotations

from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Binding, Key, conflict
from quarterdeck.domain.tasks.model.commands import (
    Abort,
    Archive,
    Ask,
    Assign,
    Cancel,
    Claim,
    Command,
    Complete,
    Create,
    Cut,
    Due,
    Fail,
    Launched,
    Outcome,
    Patch,
    Pause,
    Progress,
    Release,
    Resume,
    Retry,
    Sight,
    Spread,
    Start,
    Warn,
)
from quarterdeck.domain.tasks.model.rows import Created, Leased, Leases, Said, State, Strategy, Task, Verb, Waits
from quarterdeck.domain.tasks.rules import errors, ranking, states
from quarterdeck.domain.tasks.rules.batch import Why
from quarterdeck.domain.tasks.rules.batch_input import Kind, Known
from quarterdeck.domain.tasks.rules.dependencies import Dependencies, because
from quarterdeck.domain.tasks.rules.idempotency import key_of, key_of_claim
from quarterdeck.domain.tasks.rules.states import HELD, Holding, Rank, Report, Setback

POWERS: dict[type[Ask], str] = {
    Create: "tasks.create",
    **dict.fromkeys((Claim, Start, Progress, Complete, Fail, Release), "tasks.work"),
    **dict.fromkeys((Cancel, Retry, Pause, Resume, Patch, Archive), "tasks.change"),
}
"""What one must be allowed to ask for each; the rest is the server's own."""


class Board(Dependencies):
    def __init__(self, known: Known) -> None:
        super().__init__(known)
        self._keys = {**known.keys}
        self._shares = {**known.shares}

    def shares(self) -> dict[tuple[str, str], int]:
        """Those that moved."""
        return {who: turn for who, turn in self._shares.items() if self._known.shares.get(who) != turn}

    def decide(self, ask: Command) -> Outcome | Problem:
        power = POWERS.get(type(ask), "tasks.work")
        if problem := self._known.problem_of(ask, power):
            return problem
        match ask:
            case Create():
                return self._create(ask)
            case Claim():
                return self._claimed(ask, self._claim(ask))
        row = self._rows.get((ask.zone_id, ask.id))
        if row is None:
            return errors.not_found(ask.id)
        if power == "tasks.work" and (problem := _others(ask, row)):
            return problem
        return self._spoken(ask, row, self._of_one(ask, row))

    def _of_one(self, ask: Command, row: Task) -> Outcome | Problem:
        match ask:
            case Complete():
                return self._complete(ask, row)
            case Progress():
                return self._progress(ask, row)
            case Fail():
                return self._fail(ask, row)
            case Start() | Launched() | Assign():
                return self._begin_assigned(ask, row)
            case Release():
                return self._release(ask, row)
            case Cancel() | Retry() | Pause() | Resume() | Archive():
                return self._by_hand(ask, row)
            case Patch():
                return self._patch(ask, row)
            case Abort():
                return self._abort(ask, row)
            case Due():
                return self._due(ask, row)
            case Warn():
                return self._warn(ask, row)
            case Spread():
                return self._spread(ask, row)
            case Cut():
                return self._cut(ask, row)
            case _:
                raise AssertionError(f"{type(ask).__name__} names no task")

    # -- making --------------------------------------------------------------------------------------------------

    def _create(self, ask: Create) -> Outcome | Problem:
        key = key_of(ask)
        if key is not None and (known := self._keys.get(key)):
            # Decided before everything else: what was acknowledged once is acknowledged again.
            made = self._rows.get((ask.zone_id, known.subject_id))
            if known.digest != ask.digest:
                return conflict(key)
            return Created(made, False) if made is not None else errors.not_found(known.subject_id)
        if over := self._known.zones.get(ask.zone_id):
            return over
        if (ask.zone_id, ask.id) in self._rows:
            return errors.id_taken(ask.id)
        met = self._standings_of(ask.zone_id, ask.depends_on)
        if isinstance(met, Problem):
            return met
        unmet, failed = met
        row = states.created(ask, self._rank(ask), len(unmet), self._now)
        ref = self.learn(row)
        self.created[ref] = ask.content
        self._wait_for(ref, ask.depends_on, unmet)
        self.tags[ref] = ask.tags
        self.kinds.setdefault((row.zone_id, row.class_id), ref)
        self._queues.knows((row.zone_id, row.class_id), Kind(ask.task_type, frozenset(ask.required_capabilities)))
        if key is not None:
            self._bind(key, ask.digest, ask.id)
        self._tell("task.created", None, row, ask)
        if failed is not None and ask.on_dependency_failure == "fail":
            self._say(row, Said(last_error=because(failed)))
            row = states.failed_by_dependency(row, states.DEPENDENCY_FAILED, self._now)
            self._move(self.row(ref), row, "task.failed", ask, Why(row.reason))
        self._becomes_ready(row)
        return Created(row, True, self.created[ref])

    def _bind(self, key: Key, digest: str, subject_id: str) -> None:
        binding = Binding(key.zone_id, key.application_id, key.operation, key.key, digest, subject_id)
        self._keys[key] = binding
        self.bindings.append(binding)

    def _rank(self, ask: Create) -> Rank:
        assert ask.caller is not None
        strategy = self._known.strategies.get(ask.zone_id, Strategy.PRIORITY)
        if strategy is Strategy.SJF:
            return Rank(strategy, ranking.by_estimate(ask.estimated_duration_minutes, self._now))
        if strategy is Strategy.PRIORITY:
            return Rank(strategy, ranking.by_priority(ask.priority, self._now))
        who = (ask.zone_id, ask.caller.subject)
        served = self._shares.get((ask.zone_id, ""), 0)
        self._shares[who] = turn = ranking.by_share(self._shares.get(who, 0), served)
        return Rank(strategy, turn)

    # -- giving out ----------------------------------------------------------------------------------------------

    def _claim(self, ask: Claim) -> Outcome | Problem:
        if problem := _other_agent(ask):
            return problem
        worker = self._known.workers.get((ask.zone_id, ask.agent_id))
        if worker is None:
            return errors.agent_not_found(ask.agent_id)
        if ask.claim_id is not None and (again := self._held_by(ask)):
            return Leases(tuple(Leased(row, lease_expires_at=worker.lease_expires_at) for row in again))
        key = key_of_claim(ask.zone_id, ask.agent_id, ask.claim_id)
        if key is not None and (known := self._keys.get(key)) and known.subject_id:
            # What it was given is done, or was taken from it: the same request, come late once more, gets nothing new.
            return Leases((), is_over=True)
        if problem := self._known.zones.get(ask.zone_id) or worker.problem:
            return problem
        leases = self.take(ask)
        if key is not None and leases.items:
            self._bind(key, "", leases.items[0].task.id)
        return leases

    def _held_by(self, ask: Claim) -> list[Task]:
        wanted = (ask.zone_id, ask.agent_id, ask.claim_id)
        return [
            row
            for row in self._rows.values()
            if row.status in HELD and (row.zone_id, row.agent_id, row.claim_id) == wanted
        ]

    def take(self, ask: Claim) -> Leases:
        """What a claim gets: of all that it may take, the lowest turns."""
        who = (ask.zone_id, ask.agent_id)
        worker = self._known.workers.get(who)
        if worker is None or worker.problem:
            return Leases(())
        given = [self._begin_own(row, ask) for row in self._queues.fitting(self._assigned_to(ask)[: ask.max])]
        most = min(ask.max - len(given), self._free.get(who, 0))
        queues = self._queues.suited(ask.zone_id, self.capabilities(ask), ask.task_types) if most > 0 else []
        rows = self._queues.take(ask.zone_id, queues, most, self._known.spent) if queues else []
        session = None if ask.caller is None else ask.caller.session_id
        given += [
            self._begin(row, Holding(ask.agent_id, token, ask.claim_id, session), ask)
            for row, token in zip(rows, ask.tokens, strict=False)
        ]
        return Leases(tuple(Leased(row, lease_expires_at=worker.lease_expires_at) for row in given))

    def _assigned_to(self, ask: Claim) -> list[Task]:
        """What waits for just this agent to begin it."""
        return [
            row
            for row in self._rows.values()
            if row.status is State.ASSIGNED
            and (row.zone_id, row.agent_id) == (ask.zone_id, ask.agent_id)
            and (ask.task_types is None or row.task_type in ask.task_types)
        ]

    def _begin_own(self, row: Task, ask: Claim) -> Task:
        """The attempt is the one it was assigned as, and so is its token."""
        after = states.started(row, self._known.windows.overdue_ms, self._now)
        after = states.claimed(after, ask.claim_id)
        self._move(row, after, "task.started", ask)
        return after

    def capabilities(self, ask: Claim) -> frozenset[str]:
        """Those that a claim may use: the agent's own, or of these the ones it names."""
        worker = self._known.workers.get((ask.zone_id, ask.agent_id))
        own = frozenset[str]() if worker is None else worker.capabilities
        return own if ask.capabilities is None else own & ask.capabilities

    def could_be_given(self, ask: Claim) -> bool:
        """Whether there is work that it suits, although it was given none."""
        return bool(self._queues.suited(ask.zone_id, self.capabilities(ask), ask.task_types))

    def _begin(self, row: Task, holding: Holding, ask: Ask) -> Task:
        after = states.started(states.assigned(row, holding, self._now), self._known.windows.overdue_ms, self._now)
        self._serve(row)
        self._hold(after, 1)
        self._move(row, after, "task.started", ask)
        self.begun[row.zone_id, row.id] = (row, after)
        return after

    def _serve(self, row: Task) -> None:
        served = (row.zone_id, "")
        if row.ranked_by is Strategy.FAIR and row.turn > self._shares.get(served, 0):
            self._shares[served] = row.turn

    def _begin_assigned(self, ask: Start | Launched | Assign, row: Task) -> Outcome | Problem:
        if isinstance(ask, Assign):
            return self._assign(ask, row)
        if problem := _fenced(row, ask.token):
            return problem
        after = row
        if row.status is State.ASSIGNED:
            after = states.started(row, self._known.windows.overdue_ms, self._now)
        if isinstance(ask, Launched):
            after = states.in_session(after, ask.session_key)
        if row.status is State.ASSIGNED:
            self._move(row, after, "task.started", ask)
        elif after != row:
            self._keep(row, after)
        return after

    def _assign(self, ask: Assign, row: Task) -> Outcome | Problem:
        who = (ask.zone_id, ask.agent_id)
        worker = self._known.workers.get(who)
        over = self._known.zones.get(ask.zone_id)
        if over or worker is None or worker.problem or worker.is_lost or self._free.get(who, 0) <= 0:
            return errors.not_movable(row, "assigned", "the agent takes no more")
        if states.TASK.target(Verb.ASSIGN, row.status) is None or row.waits:
            return errors.not_movable(row, "assigned", f"it is {row.status}")
        if self._known.spent(row):
            return errors.not_movable(row, "assigned", "its budget is spent")
        after = states.assigned(row, Holding(ask.agent_id, ask.token), self._now)
        after = states.launching(after, self._now + ask.launch_ms)
        self._serve(row)
        self._hold(after, 1)
        self._move(row, after, "task.assigned", ask)
        return after

    # -- reporting -----------------------------------------------------------------------------------------------

    def _progress(self, ask: Progress, row: Task) -> Outcome | Problem:
        if problem := _fenced(row, ask.token):
            return problem
        if (key := key_of(ask)) is not None:
            if known := self._keys.get(key):
                # Heard of and charged, and its answer was lost: whatever was said since is the later word.
                return row if known.digest == ask.digest else conflict(key)
            self._bind(key, ask.digest, ask.id)
        after = states.progressed(row, Report(ask.percent, ask.step, ask.resets), self._now)
        if after.warned_at is not None:
            after = states.watched(after, self._now + self._known.windows.hung_ms)
        after = self._charge(after, ask.costs)
        if ask.checkpoint is not None:
            self._say(row, Said(checkpoint_data=ask.checkpoint))
        has_moved = (after.progress_percent, after.current_step) != (row.progress_percent, row.current_step)
        # Costs are told of even alone: it is by its events that a batch is known to have been committed when the answer
        # to COMMIT was lost, and what is not known is done, and charged, again.
        if ask.costs or has_moved:
            self._move(row, after, "task.progressed", ask)
        else:
            self._keep(row, after)
        return after

    def _complete(self, ask: Complete, row: Task) -> Outcome | Problem:
        if row.status is State.PAUSED and ask.token is None:
            if problem := self._known.problem_of(ask, "tasks.complete_paused"):
                return problem
        elif problem := _fenced(row, ask.token):
            said_before = row.status is State.COMPLETED and ask.token is not None and ask.token == row.attempt_token
            return row if said_before else problem
        after = self._charge(states.completed(row, self._now), ask.costs)
        self._hold(row, -1)
        self._say(row, Said(output_result=ask.output, summary=ask.summary))
        self._move(row, after, "task.completed", ask)
        if not ask.costs:
            self.completed[row.zone_id, row.id] = (row, after)
        self._settle(after, ask)
        return self.row((row.zone_id, row.id))

    def _fail(self, ask: Fail, row: Task) -> Outcome | Problem:
        if problem := _fenced(row, ask.token):
            said_before = row.status is State.FAILED and ask.token is not None and ask.token == row.attempt_token
            return row if said_before else problem
        if ask.stack_trace is not None:
            self.stack_traces.append((row, ask.stack_trace))
        self._say(row, Said(last_error=ask.error))
        why = Setback("failed", ask.chance, ask.retryable)
        return self._set_back(self._charge(row, ask.costs), State.FAILED, why, ask)

    def _abort(self, ask: Abort, row: Task) -> Outcome | Problem:
        if row.status not in HELD or row.attempt_token != ask.token or not self._is_still(ask.seen, row):
            return row
        self._say(row, Said(last_error=f"The attempt was aborted: {ask.reason}."))
        why = Setback(ask.reason, ask.chance, True, ask.raises_priority)
        return self._set_back(row, State.ABORTED, why, ask)

    def _is_still(self, seen: Sight | None, row: Task) -> bool:
        """Whether what was seen of an attempt is so now: it may have begun, or moved on, since."""
        match seen:
            case None:
                return True
            case "hung":
                return row.warned_at is not None and row.overdue_at is not None and row.overdue_at <= self._now
            case "not_begun" if row.status is not State.ASSIGNED:
                return False
            case "not_begun" | "out_of_time":
                return row.timeout_at is not None and row.timeout_at <= self._now

    def _set_back(self, row: Task, to: State, why: Setback, ask: Fail | Abort) -> Task:
        after = states.set_back(row, to, why, self._known.windows.backoff_cap_ms, self._now)
        if after.priority != row.priority and after.ranked_by is not Strategy.FAIR:
            after = states.ranked(after, Rank(after.ranked_by, ranking.of(after.ranked_by, after)))
        exhausted = states.is_exhausted(row, after, retryable=why.retryable)
        self._hold(row, -1)
        kind = "task.failed" if after.status is State.FAILED else "task.aborted"
        self._move(self.row((row.zone_id, row.id)), after, kind, ask, Why(why.reason, exhausted))
        return after

    def _release(self, ask: Release, row: Task) -> Outcome | Problem:
        if problem := _fenced(row, ask.token):
            return problem
        if key := key_of_claim(row.zone_id, row.agent_id, row.claim_id):
            # As if it had never been given anything: its answer may have been lost, and it will ask again.
            self._bind(key, "", "")
        after = states.released(row, self._now)
        self._hold(row, -1)
        self._move(row, after, "task.released", ask)
        self._becomes_ready(after)
        return after

    # -- by hand -------------------------------------------------------------------------------------------------

    def _by_hand(self, ask: Cancel | Retry | Pause | Resume | Archive, row: Task) -> Outcome | Problem:
        match ask:
            case Cancel():
                return self._cancel(ask, row)
            case Retry():
                return self._retry(ask, row)
            case Pause():
                return self._pause(ask, row)
            case Resume():
                return self._resume(ask, row)
            case Archive():
                return self._archive(ask, row)

    def _cancel(self, ask: Cancel, row: Task) -> Outcome | Problem:
        if states.is_over(row):
            return row if row.status is State.ABORTED else errors.not_movable(row, "canceled", f"it is {row.status}")
        waits_for_retry = row.status in (State.FAILED, State.ABORTED)
        after = (states.given_up if waits_for_retry else states.canceled)(row, ask.reason, self._now)
        self._hold(row, -1)
        self._move(row, after, "task.aborted", ask, Why(ask.reason))
        return after

    def _patch(self, ask: Patch, row: Task) -> Outcome | Problem:
        verb = {"pause": Verb.PAUSE, "resume": Verb.RESUME}.get(ask.holds or "")
        there = State.PAUSED if verb is Verb.PAUSE else State.PENDING
        if verb and row.status is not there and states.TASK.target(verb, row.status) is None:
            return errors.not_movable(row, f"{verb}d", f"it is {row.status}")
        after = self._change(ask, row) if ask.changes else row
        if verb is None or isinstance(after, Problem):
            return after
        return self._pause(ask, after) if verb is Verb.PAUSE else self._resume(ask, after)

    def _pause(self, ask: Pause | Patch, row: Task) -> Outcome | Problem:
        if row.status is State.PAUSED:
            return row
        if states.TASK.target(Verb.PAUSE, row.status) is None:
            return errors.not_movable(row, "paused", f"it is {row.status}")
        self._hold(row, -1)
        after = states.paused(row, self._now)
        self._move(row, after, "task.paused", ask)
        return after

    def _resume(self, ask: Resume | Patch, row: Task) -> Outcome | Problem:
        if row.status is State.PENDING:
            return row
        if row.status is not State.PAUSED:
            return errors.not_movable(row, "resumed", f"it is {row.status}")
        after = states.resumed(row, self._now)
        self._move(row, after, "task.resumed", ask)
        self._becomes_ready(after)
        return after

    def _archive(self, ask: Archive, row: Task) -> Outcome | Problem:
        if row.status is State.ARCHIVED:
            return row
        if not states.is_over(row):
            return errors.not_movable(row, "archived", f"it is {row.status}, and not over")
        after = states.archived(row, self._now)
        self._move(row, after, "task.archived", ask)
        return after

    # -- by the coordinator --------------------------------------------------------------------------------------

    def _due(self, ask: Due, row: Task) -> Outcome | Problem:
        if row.waits != Waits.A_MOMENT or row.available_at > self._now:
            return row
        if row.status is State.PENDING:
            after = states.called_up(row, self._now)
            self._keep(row, after)
        else:
            after = states.requeued(row, self._now)
            self._move(row, after, "task.requeued", ask, Why("backoff"))
        self._becomes_ready(after)
        return after

    def _warn(self, ask: Warn, row: Task) -> Outcome | Problem:
        if row.status is not State.RUNNING or row.overdue_at is None or row.overdue_at > self._now:
            return row
        after = states.warned(row, self._now + self._known.windows.hung_ms, self._now)
        self._move(row, after, "task.warned", ask, Why("overdue"))
        return after


def _other_agent(ask: Claim) -> Problem | None:
    own = None if ask.caller is None else ask.caller.agent_id
    return errors.other_agent(ask.agent_id) if own is not None and own != ask.agent_id else None


def _others(ask: Ask, row: Task) -> Problem | None:
    """An agent's token acts only as that agent. Whose task it is, is told to nobody else."""
    own = None if ask.caller is None else ask.caller.agent_id
    return errors.stale(row) if own is not None and own != row.agent_id else None


def _fenced(row: Task, token: str | None) -> Problem | None:
    """Whether this word about an attempt still counts."""
    if token is None:
        return errors.token_required()
    if token != row.attempt_token or row.status not in HELD:
        return errors.stale(row)
    return None
