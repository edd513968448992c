"""Decides the commands of one batch, in order of arrival. Each command sees the changes made by earlier commands.

Pure: no I/O, no clock, no randomness. Time, tokens and jitter are inputs. The caller writes all changes in one commit.
"""

from __future__ import annotations

from quarterdeck.core.errors import Problem
from quarterdeck.core.idempotency import Key, KeyRecord, key_conflict
from quarterdeck.domain.tasks.model.commands import (
    Abort,
    AbortCondition,
    Archive,
    Assign,
    BaseCommand,
    Cancel,
    Claim,
    Complete,
    Create,
    Fail,
    FailForCycle,
    MakeAvailable,
    Patch,
    Pause,
    Progress,
    RecordLaunch,
    Release,
    Resume,
    Retry,
    Start,
    TaskCommand,
    TaskResult,
    UnblockDependents,
    Warn,
)
from quarterdeck.domain.tasks.model.rows import (
    ClaimedTask,
    ClaimedTasks,
    ContentUpdate,
    CreatedTask,
    State,
    Strategy,
    Task,
    Verb,
    WaitsFor,
)
from quarterdeck.domain.tasks.rules import errors, ranking, states
from quarterdeck.domain.tasks.rules.batch import EventReason
from quarterdeck.domain.tasks.rules.batch_input import BatchInput, TaskClass
from quarterdeck.domain.tasks.rules.dependencies import DependencyTracker, dependency_error_text
from quarterdeck.domain.tasks.rules.idempotency import claim_key, command_key
from quarterdeck.domain.tasks.rules.states import HELD, Attempt, Failure, ProgressReport, TaskRank

PERMISSIONS: dict[type[BaseCommand], str] = {
    Create: "tasks.create",
    **dict.fromkeys((Claim, Start, Progress, Complete, Fail, Release), "tasks.work"),
    **dict.fromkeys((Cancel, Retry, Pause, Resume, Patch, Archive), "tasks.change"),
}
"""The permission that each command needs. Commands that are not listed are sent by the server itself."""


class BatchDecider(DependencyTracker):
    def __init__(self, loaded: BatchInput) -> None:
        super().__init__(loaded)
        self._keys = {**loaded.keys}
        self._fair_ranks = {**loaded.fair_ranks}

    def changed_fair_ranks(self) -> dict[tuple[str, str], int]:
        return {key: rank for key, rank in self._fair_ranks.items() if self._loaded.fair_ranks.get(key) != rank}

    def decide(self, command: TaskCommand) -> TaskResult | Problem:
        permission = PERMISSIONS.get(type(command), "tasks.work")
        if problem := self._loaded.permission_problem(command, permission):
            return problem
        match command:
            case Create():
                return self._create(command)
            case Claim():
                return self._record_claim(command, self._claim(command))
        task = self._tasks.get((command.zone_id, command.id))
        if task is None:
            return errors.task_not_found(command.id)
        if permission == "tasks.work" and (problem := _holder_problem(command, task)):
            return problem
        return self._record_report(command, task, self._decide_update(command, task))

    def _decide_update(self, command: TaskCommand, task: Task) -> TaskResult | Problem:
        match command:
            case Complete():
                return self._complete(command, task)
            case Progress():
                return self._progress(command, task)
            case Fail():
                return self._fail(command, task)
            case Start() | RecordLaunch() | Assign():
                return self._start_or_assign(command, task)
            case Release():
                return self._release(command, task)
            case Cancel() | Retry() | Pause() | Resume() | Archive():
                return self._decide_change(command, task)
            case Patch():
                return self._patch(command, task)
            case Abort():
                return self._abort(command, task)
            case MakeAvailable():
                return self._make_available(command, task)
            case Warn():
                return self._warn(command, task)
            case UnblockDependents():
                return self._unblock_dependents(command, task)
            case FailForCycle():
                return self._fail_for_cycle(command, task)
            case _:
                raise AssertionError(f"{type(command).__name__} does not refer to a task")

    def _create(self, command: Create) -> TaskResult | Problem:
        key = command_key(command)
        if key is not None and (record := self._keys.get(key)):
            # Check the key first: a repeated request gets the same response even if the zone has ended since.
            existing = self._tasks.get((command.zone_id, record.subject_id))
            if record.digest != command.request_digest:
                return key_conflict(key)
            return CreatedTask(existing, False) if existing is not None else errors.task_not_found(record.subject_id)
        if problem := self._loaded.zone_problems.get(command.zone_id):
            return problem
        if (command.zone_id, command.id) in self._tasks:
            return errors.task_exists(command.id)
        check = self._check_dependencies(command.zone_id, command.depends_on)
        if isinstance(check, Problem):
            return check
        unmet, failed = check
        task = states.create(command, self._rank_of(command), len(unmet), self._now)
        ref = self.add_task(task)
        self.new_task_contents[ref] = command.content
        self._add_dependencies(ref, command.depends_on, unmet)
        self.new_tags[ref] = command.tags
        self.new_classes.setdefault((task.zone_id, task.class_id), ref)
        self._queues.add_class(
            (task.zone_id, task.class_id), TaskClass(command.task_type, frozenset(command.required_capabilities))
        )
        if key is not None:
            self._add_key(key, command.request_digest, command.id)
        self._emit("task.created", None, task, command)
        if failed is not None and command.on_dependency_failure == "fail":
            self._update_content(task, ContentUpdate(last_error=dependency_error_text(failed)))
            task = states.fail_dependency(task, states.DEPENDENCY_FAILED, self._now)
            self._transition(self.task(ref), task, "task.failed", command, EventReason(task.reason))
        self._queue_if_ready(task)
        return CreatedTask(task, True, self.new_task_contents[ref])

    def _add_key(self, key: Key, digest: str, subject_id: str) -> None:
        record = KeyRecord(key.zone_id, key.application_id, key.operation, key.key, digest, subject_id)
        self._keys[key] = record
        self.key_records_to_store.append(record)

    def _rank_of(self, command: Create) -> TaskRank:
        assert command.caller is not None
        strategy = self._loaded.strategies.get(command.zone_id, Strategy.PRIORITY)
        if strategy is Strategy.SJF:
            return TaskRank(strategy, ranking.by_estimate(command.estimated_duration_minutes, self._now))
        if strategy is Strategy.PRIORITY:
            return TaskRank(strategy, ranking.by_priority(command.priority, self._now))
        creator = (command.zone_id, command.caller.subject)
        max_claimed_rank = self._fair_ranks.get((command.zone_id, ""), 0)
        self._fair_ranks[creator] = rank = ranking.next_fair_rank(self._fair_ranks.get(creator, 0), max_claimed_rank)
        return TaskRank(strategy, rank)

    # -- claim, start and assign ---------------------------------------------------------------------------------

    def _claim(self, command: Claim) -> TaskResult | Problem:
        if problem := _agent_problem(command):
            return problem
        agent = self._loaded.agents.get((command.zone_id, command.agent_id))
        if agent is None:
            return errors.agent_not_found(command.agent_id)
        if command.claim_id is not None and (held := self._held_by_claim(command)):
            return ClaimedTasks(tuple(ClaimedTask(task, lease_expires_at=agent.lease_expires_at) for task in held))
        key = claim_key(command.zone_id, command.agent_id, command.claim_id)
        if key is not None and (record := self._keys.get(key)) and record.subject_id:
            # A late repeat of a claim whose tasks have already ended: the client no longer expects tasks.
            return ClaimedTasks((), stop_waiting=True)
        if problem := self._loaded.zone_problems.get(command.zone_id) or agent.problem:
            return problem
        claimed = self.take_tasks(command)
        if key is not None and claimed.items:
            self._add_key(key, "", claimed.items[0].task.id)
        return claimed

    def _held_by_claim(self, command: Claim) -> list[Task]:
        expected = (command.zone_id, command.agent_id, command.claim_id)
        return [
            task
            for task in self._tasks.values()
            if task.status in HELD and (task.zone_id, task.agent_id, task.claim_id) == expected
        ]

    def take_tasks(self, command: Claim) -> ClaimedTasks:
        """Start the tasks that are assigned to the agent, then the matching ready tasks with the lowest ranks."""
        agent_ref = (command.zone_id, command.agent_id)
        agent = self._loaded.agents.get(agent_ref)
        if agent is None or agent.problem:
            return ClaimedTasks(())
        claimed = [
            self._start_assigned(task, command)
            for task in self._queues.take_fitting(self._assigned_tasks(command)[: command.limit])
        ]
        limit = min(command.limit - len(claimed), self._free_slots.get(agent_ref, 0))
        queues = (
            self._queues.find_matching(command.zone_id, self.usable_capabilities(command), command.task_types)
            if limit > 0
            else []
        )
        ready = self._queues.pop(command.zone_id, queues, limit, self._loaded.is_over_budget) if queues else []
        session_key = None if command.caller is None else command.caller.session_id
        claimed += [
            self._start_attempt(task, Attempt(command.agent_id, token, command.claim_id, session_key), command)
            for task, token in zip(ready, command.attempt_tokens, strict=False)
        ]
        return ClaimedTasks(tuple(ClaimedTask(task, lease_expires_at=agent.lease_expires_at) for task in claimed))

    def _assigned_tasks(self, command: Claim) -> list[Task]:
        return [
            task
            for task in self._tasks.values()
            if task.status is State.ASSIGNED
            and (task.zone_id, task.agent_id) == (command.zone_id, command.agent_id)
            and (command.task_types is None or task.task_type in command.task_types)
        ]

    def _start_assigned(self, task: Task, command: Claim) -> Task:
        """Start the attempt that the assignment created. The attempt keeps its token."""
        after = states.start(task, self._loaded.timeouts.overdue_ms, self._now)
        after = states.set_claim_id(after, command.claim_id)
        self._transition(task, after, "task.started", command)
        return after

    def usable_capabilities(self, command: Claim) -> frozenset[str]:
        agent = self._loaded.agents.get((command.zone_id, command.agent_id))
        agent_capabilities = frozenset[str]() if agent is None else agent.capabilities
        return agent_capabilities if command.capabilities is None else agent_capabilities & command.capabilities

    def has_matching_tasks(self, command: Claim) -> bool:
        """Whether a ready task matches the claim, even if the agent has no free slot or a budget is spent."""
        return bool(self._queues.find_matching(command.zone_id, self.usable_capabilities(command), command.task_types))

    def _start_attempt(self, task: Task, attempt: Attempt, command: BaseCommand) -> Task:
        after = states.start(states.assign(task, attempt, self._now), self._loaded.timeouts.overdue_ms, self._now)
        self._record_claimed_rank(task)
        self._change_held_count(after, 1)
        self._transition(task, after, "task.started", command)
        self.claim_changes[task.zone_id, task.id] = (task, after)
        return after

    def _record_claimed_rank(self, task: Task) -> None:
        claimed_key = (task.zone_id, "")
        if task.ranked_by is Strategy.FAIR and task.rank > self._fair_ranks.get(claimed_key, 0):
            self._fair_ranks[claimed_key] = task.rank

    def _start_or_assign(self, command: Start | RecordLaunch | Assign, task: Task) -> TaskResult | Problem:
        if isinstance(command, Assign):
            return self._assign(command, task)
        if problem := _attempt_problem(task, command.attempt_token):
            return problem
        after = task
        if task.status is State.ASSIGNED:
            after = states.start(task, self._loaded.timeouts.overdue_ms, self._now)
        if isinstance(command, RecordLaunch):
            after = states.set_session_key(after, command.session_key)
        if task.status is State.ASSIGNED:
            self._transition(task, after, "task.started", command)
        elif after != task:
            self._update(task, after)
        return after

    def _assign(self, command: Assign, task: Task) -> TaskResult | Problem:
        agent_ref = (command.zone_id, command.agent_id)
        agent = self._loaded.agents.get(agent_ref)
        zone_problem = self._loaded.zone_problems.get(command.zone_id)
        if zone_problem or agent is None or agent.problem or agent.is_stale or self._free_slots.get(agent_ref, 0) <= 0:
            return errors.state_conflict(task, "assigned", "the agent accepts no more tasks")
        if states.TASK_STATES.next_state(Verb.ASSIGN, task.status) is None or task.waits_for:
            return errors.state_conflict(task, "assigned", f"it is {task.status}")
        if self._loaded.is_over_budget(task):
            return errors.state_conflict(task, "assigned", "its budget is spent")
        after = states.assign(task, Attempt(command.agent_id, command.attempt_token), self._now)
        after = states.set_launch_deadline(after, self._now + command.launch_timeout_ms)
        self._record_claimed_rank(task)
        self._change_held_count(after, 1)
        self._transition(task, after, "task.assigned", command)
        return after

    # -- reports -------------------------------------------------------------------------------------------------

    def _progress(self, command: Progress, task: Task) -> TaskResult | Problem:
        if problem := _attempt_problem(task, command.attempt_token):
            return problem
        if (key := command_key(command)) is not None:
            if record := self._keys.get(key):
                # The report is a repeat and its costs are already charged. Ignore it: a later report may have followed.
                return task if record.digest == command.request_digest else key_conflict(key)
            self._add_key(key, command.request_digest, command.id)
        after = states.update_progress(task, ProgressReport(command.percent, command.step, command.is_reset), self._now)
        if after.warned_at is not None:
            after = states.set_overdue_at(after, self._now + self._loaded.timeouts.hung_ms)
        after = self._charge(after, command.costs)
        if command.checkpoint is not None:
            self._update_content(task, ContentUpdate(checkpoint_data=command.checkpoint))
        has_progressed = (after.progress_percent, after.current_step) != (task.progress_percent, task.current_step)
        # A report of costs alone emits an event too. If the response to COMMIT is lost, the batch counts as committed
        # if its events are in the log; without an event it would be retried and the costs charged twice.
        if command.costs or has_progressed:
            self._transition(task, after, "task.progressed", command)
        else:
            self._update(task, after)
        return after

    def _complete(self, command: Complete, task: Task) -> TaskResult | Problem:
        token = command.attempt_token
        if task.status is State.PAUSED and token is None:
            # A paused task has no attempt and therefore no token, but a user may complete it.
            if problem := self._loaded.permission_problem(command, "tasks.complete_paused"):
                return problem
        elif problem := _attempt_problem(task, token):
            is_repeat = task.status is State.COMPLETED and token is not None and token == task.attempt_token
            return task if is_repeat else problem
        after = self._charge(states.complete(task, self._now), command.costs)
        self._change_held_count(task, -1)
        self._update_content(task, ContentUpdate(output_result=command.output, summary=command.summary))
        self._transition(task, after, "task.completed", command)
        if not command.costs:
            self.completion_changes[task.zone_id, task.id] = (task, after)
        self._unblock(after, command)
        return self.task((task.zone_id, task.id))

    def _fail(self, command: Fail, task: Task) -> TaskResult | Problem:
        token = command.attempt_token
        if problem := _attempt_problem(task, token):
            is_repeat = task.status is State.FAILED and token is not None and token == task.attempt_token
            return task if is_repeat else problem
        if command.stack_trace is not None:
            self.stack_traces.append((task, command.stack_trace))
        self._update_content(task, ContentUpdate(last_error=command.error))
        failure = Failure("failed", command.jitter, command.retryable)
        return self._fail_attempt(self._charge(task, command.costs), State.FAILED, failure, command)

    def _abort(self, command: Abort, task: Task) -> TaskResult | Problem:
        if (
            task.status not in HELD
            or task.attempt_token != command.attempt_token
            or not self._condition_holds(command.condition, task)
        ):
            return task
        self._update_content(task, ContentUpdate(last_error=f"The attempt was aborted: {command.reason}."))
        failure = Failure(command.reason, command.jitter, True, command.raises_priority)
        return self._fail_attempt(task, State.ABORTED, failure, command)

    def _condition_holds(self, condition: AbortCondition | None, task: Task) -> bool:
        """Whether the reason for the abort still applies: the attempt may have started or made progress since."""
        match condition:
            case None:
                return True
            case "hung":
                return task.warned_at is not None and task.overdue_at is not None and task.overdue_at <= self._now
            case "not_started" if task.status is not State.ASSIGNED:
                return False
            case "not_started" | "timed_out":
                return task.timeout_at is not None and task.timeout_at <= self._now

    def _fail_attempt(self, task: Task, status: State, failure: Failure, command: Fail | Abort) -> Task:
        after = states.fail(task, status, failure, self._loaded.timeouts.backoff_max_ms, self._now)
        if after.priority != task.priority and after.ranked_by is not Strategy.FAIR:
            after = states.set_rank(after, TaskRank(after.ranked_by, ranking.rank_of(after.ranked_by, after)))
        retries_exhausted = states.has_exhausted_retries(task, after, retryable=failure.retryable)
        self._change_held_count(task, -1)
        event_type = "task.failed" if after.status is State.FAILED else "task.aborted"
        reason = EventReason(failure.reason, retries_exhausted)
        self._transition(self.task((task.zone_id, task.id)), after, event_type, command, reason)
        return after

    def _release(self, command: Release, task: Task) -> TaskResult | Problem:
        if problem := _attempt_problem(task, command.attempt_token):
            return problem
        if key := claim_key(task.zone_id, task.agent_id, task.claim_id):
            # Clear the record of the claim id, so that a client that never got the response can repeat the claim.
            self._add_key(key, "", "")
        after = states.release(task, self._now)
        self._change_held_count(task, -1)
        self._transition(task, after, "task.released", command)
        self._queue_if_ready(after)
        return after

    # -- changes by users ----------------------------------------------------------------------------------------

    def _decide_change(self, command: Cancel | Retry | Pause | Resume | Archive, task: Task) -> TaskResult | Problem:
        match command:
            case Cancel():
                return self._cancel(command, task)
            case Retry():
                return self._retry(command, task)
            case Pause():
                return self._pause(command, task)
            case Resume():
                return self._resume(command, task)
            case Archive():
                return self._archive(command, task)

    def _cancel(self, command: Cancel, task: Task) -> TaskResult | Problem:
        if states.has_ended(task):
            return (
                task
                if task.status is State.ABORTED
                else errors.state_conflict(task, "canceled", f"it is {task.status}")
            )
        awaits_retry = task.status in (State.FAILED, State.ABORTED)
        after = (states.cancel_retry if awaits_retry else states.cancel)(task, command.reason, self._now)
        self._change_held_count(task, -1)
        self._transition(task, after, "task.aborted", command, EventReason(command.reason))
        return after

    def _patch(self, command: Patch, task: Task) -> TaskResult | Problem:
        verb = {"pause": Verb.PAUSE, "resume": Verb.RESUME}.get(command.status_change or "")
        target_state = State.PAUSED if verb is Verb.PAUSE else State.PENDING
        if verb and task.status is not target_state and states.TASK_STATES.next_state(verb, task.status) is None:
            return errors.state_conflict(task, f"{verb}d", f"it is {task.status}")
        after = self._change_fields(command, task) if command.has_field_changes else task
        if verb is None or isinstance(after, Problem):
            return after
        return self._pause(command, after) if verb is Verb.PAUSE else self._resume(command, after)

    def _pause(self, command: Pause | Patch, task: Task) -> TaskResult | Problem:
        if task.status is State.PAUSED:
            return task
        if states.TASK_STATES.next_state(Verb.PAUSE, task.status) is None:
            return errors.state_conflict(task, "paused", f"it is {task.status}")
        self._change_held_count(task, -1)
        after = states.pause(task, self._now)
        self._transition(task, after, "task.paused", command)
        return after

    def _resume(self, command: Resume | Patch, task: Task) -> TaskResult | Problem:
        if task.status is State.PENDING:
            return task
        if task.status is not State.PAUSED:
            return errors.state_conflict(task, "resumed", f"it is {task.status}")
        after = states.resume(task, self._now)
        self._transition(task, after, "task.resumed", command)
        self._queue_if_ready(after)
        return after

    def _archive(self, command: Archive, task: Task) -> TaskResult | Problem:
        if task.status is State.ARCHIVED:
            return task
        if not states.has_ended(task):
            return errors.state_conflict(task, "archived", f"it is {task.status} and has not ended")
        after = states.archive(task, self._now)
        self._transition(task, after, "task.archived", command)
        return after

    # -- commands from the coordinator ---------------------------------------------------------------------------

    def _make_available(self, command: MakeAvailable, task: Task) -> TaskResult | Problem:
        if task.waits_for != WaitsFor.TIME or task.available_at > self._now:
            return task
        if task.status is State.PENDING:
            after = states.update_waits_for(task, self._now)
            self._update(task, after)
        else:
            after = states.requeue(task, self._now)
            self._transition(task, after, "task.requeued", command, EventReason("backoff"))
        self._queue_if_ready(after)
        return after

    def _warn(self, command: Warn, task: Task) -> TaskResult | Problem:
        if task.status is not State.RUNNING or task.overdue_at is None or task.overdue_at > self._now:
            return task
        after = states.mark_warned(task, self._now + self._loaded.timeouts.hung_ms, self._now)
        self._transition(task, after, "task.warned", command, EventReason("overdue"))
        return after


def _agent_problem(command: Claim) -> Problem | None:
    caller_agent_id = None if command.caller is None else command.caller.agent_id
    return errors.wrong_agent(command.agent_id) if caller_agent_id not in (None, command.agent_id) else None


def _holder_problem(command: BaseCommand, task: Task) -> Problem | None:
    """The error if an agent reports on a task that it does not hold. It does not reveal which agent holds the task."""
    caller_agent_id = None if command.caller is None else command.caller.agent_id
    return errors.stale_attempt(task) if caller_agent_id not in (None, task.agent_id) else None


def _attempt_problem(task: Task, token: str | None) -> Problem | None:
    """The error if `token` is not the token of the current attempt, or None."""
    if token is None:
        return errors.token_required()
    if token != task.attempt_token or task.status not in HELD:
        return errors.stale_attempt(task)
    return None
