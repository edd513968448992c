"""Runs one batch of task commands in one transaction: load, decide, persist."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Protocol

import msgspec

from quarterdeck.core.command import R
from quarterdeck.core.errors import Problem
from quarterdeck.domain.access.operations import BatchWithRoles
from quarterdeck.domain.tasks.model.commands import BaseTaskCommand, Claim, Create, TaskCommand, TaskResult, TaskUpdate
from quarterdeck.domain.tasks.model.rows import AgentRef, ClaimedTask, ClaimedTasks, Content, TaskRef, TaskSettings
from quarterdeck.domain.tasks.operations import load, persist
from quarterdeck.domain.tasks.rules.batch import Batch
from quarterdeck.domain.tasks.rules.batch_input import TaskClass, Timeouts
from quarterdeck.domain.tasks.rules.decider import BatchDecider
from quarterdeck.domain.tasks.rules.decisions.claim import has_matching_tasks, usable_capabilities
from quarterdeck.domain.tasks.rules.states import HELD
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.leases import LeaseLost
from quarterdeck.engine.long_poll import LongPoll, LongPolls
from quarterdeck.engine.transaction import Transaction

log = logging.getLogger("quarterdeck.tasks")
NO_TASKS = ClaimedTasks(())
ClaimPoll = LongPoll[Claim, str, ClaimedTask]
ClaimPolls = LongPolls[Claim, str, ClaimedTask]
"""The waiting claims of this process, by zone."""


class SubmitTaskCommand(Protocol):
    def __call__(self, command: BaseTaskCommand[R], /) -> asyncio.Future[R]: ...


def new_claim_polls() -> ClaimPolls:
    return LongPolls(lambda claimed: claimed.task.id)


def timeouts_of(settings: TaskSettings) -> Timeouts:
    return Timeouts(
        backoff_max_ms=settings.task_backoff_max_seconds * 1_000,
        overdue_ms=round(settings.task_overdue_minutes * 60_000),
        hung_ms=round(settings.task_hung_minutes * 60_000),
    )


class BatchRunner:
    """Runs the batches of the task lane, and offers new tasks to the long polls of this process."""

    def __init__(self, timeouts: Timeouts, polls: ClaimPolls, retry_seconds: float) -> None:
        self._timeouts = timeouts
        self._polls = polls
        self._retry_seconds = retry_seconds

    async def run(self, tx: Transaction, commands: Sequence[TaskCommand]) -> list[TaskResult | Problem | Busy]:
        polls = self._polls_for(command for command in commands if isinstance(command, Create))
        loaded = await load.load(tx, commands, [poll.request for poll in polls], self._timeouts)
        decider = BatchDecider(loaded.input)
        outcomes: list[TaskResult | Problem | Busy] = [
            loaded.batch.problem(command) or _term_problem(command, loaded) or decider.decide(command)
            for command in commands
        ]
        _log_conflicts(commands, outcomes)
        self._wait_after_commit(tx, commands, outcomes, decider.batch)
        offers = _offer(decider, polls, loaded.batch)
        claims = [outcome for outcome in outcomes if isinstance(outcome, ClaimedTasks)] + [*offers.values()]
        contents = await persist.persist(tx, decider.batch, [item for claimed in claims for item in claimed.items])
        for poll, claimed in offers.items():
            tx.on_commit(partial(self._polls.deliver, poll, _with_content(claimed, contents).items))
        if freed_agents := {ref for ref, change in decider.batch.agents.held_changes.items() if change < 0}:
            tx.on_commit(partial(self._retry_polls_of, freed_agents))
        return [
            _with_content(outcome, contents) if isinstance(outcome, ClaimedTasks) else outcome for outcome in outcomes
        ]

    # -- long polls ----------------------------------------------------------------------------------------------

    def _polls_for(self, creates: Iterable[Create]) -> list[ClaimPoll]:
        """Select long polls that may take the new tasks, oldest first.

        The selection only determines which agents are loaded. The decider checks each claim again.
        """
        chosen: dict[ClaimPoll, int] = {}
        now = time.monotonic()
        for command in creates:
            if command.depends_on or command.run_at is not None:
                continue
            task_class = TaskClass(command.task_type, frozenset(command.required_capabilities))
            for poll in self._polls.waiting(command.zone_id):
                if chosen.get(poll, 0) < poll.request.limit and accepts(poll.request, task_class, now):
                    chosen[poll] = chosen.get(poll, 0) + 1
                    break
        return [*chosen]

    def _wait_after_commit(
        self,
        tx: Transaction,
        commands: Sequence[TaskCommand],
        outcomes: Sequence[TaskResult | Problem | Busy],
        batch: Batch,
    ) -> None:
        """Register claims that got no tasks as long polls, and end those that will never get any.

        A commit callback registers them. If this were done later, another batch of this process could create a task
        between the commit and the registration, and the claim would miss it.
        """
        for command, outcome in zip(commands, outcomes, strict=True):
            if not isinstance(command, Claim) or not isinstance(command.waiter, LongPoll):
                continue
            if isinstance(outcome, ClaimedTasks) and outcome.stop_waiting:
                tx.on_commit(partial(self._polls.remove, command.waiter))
            elif outcome == NO_TASKS:
                # If ready tasks match, the agent has no free slot or a budget is spent, so offer no tasks for a while.
                is_blocked = has_matching_tasks(batch, command)
                command.waiter.request = msgspec.structs.replace(
                    command,
                    capabilities=usable_capabilities(batch, command),
                    waiter=None,
                    not_before=time.monotonic() + self._retry_seconds if is_blocked else 0.0,
                )
                tx.on_commit(partial(self._polls.add, command.waiter))

    def _retry_polls_of(self, freed_agents: set[AgentRef]) -> None:
        """Allow tasks to be offered to the long polls of these agents again: the batch has freed slots on them."""
        for zone_id in {zone_id for zone_id, _ in freed_agents}:
            for poll in self._polls.waiting(zone_id):
                claim = poll.request
                if claim.not_before and (zone_id, claim.agent_id) in freed_agents:
                    poll.request = msgspec.structs.replace(claim, not_before=0.0)
                    self._polls.wakeup.set()


def _offer(decider: BatchDecider, polls: Iterable[ClaimPoll], batch: BatchWithRoles) -> dict[ClaimPoll, ClaimedTasks]:
    """Claim new tasks for long polls in the commit that creates them.

    A poll may get nothing because its session has ended, its agent has no free slot, or this transaction has not
    locked the zone of its session. It then submits its claim again and gets that result.
    """
    offers: dict[ClaimPoll, ClaimedTasks] = {}
    for poll in polls:
        claim = poll.request
        has_ready_tasks = bool(decider.batch.queues.ready_classes)
        claimed = decider.decide(claim) if has_ready_tasks and batch.can_decide(claim) else None
        offers[poll] = claimed if isinstance(claimed, ClaimedTasks) else NO_TASKS
    return offers


def accepts(claim: Claim, task_class: TaskClass, now: float) -> bool:
    """Whether a waiting claim may take tasks of the class. The agent's capabilities may have changed, so the decider
    checks the claim again."""
    return claim.not_before <= now and task_class.matches(claim.capabilities or frozenset(), claim.task_types)


def _log_conflicts(commands: Sequence[TaskCommand], outcomes: Sequence[TaskResult | Problem | Busy]) -> None:
    """Log each report that was refused because another attempt now holds the task.

    Two workers are then reporting on the same task, usually because a process was frozen or a backup was restored.
    """
    for command, outcome in zip(commands, outcomes, strict=True):
        if not isinstance(outcome, Problem) or outcome.code != "stale_attempt" or not isinstance(command, TaskUpdate):
            continue
        if outcome.members.get("taskStatus") in HELD:
            log.warning("task %s: ignored a report from an older attempt; another attempt holds the task", command.id)


def _term_problem(command: TaskCommand, loaded: load.Loaded) -> Problem | None:
    """The error if the leader term of the command has ended, or None."""
    if command.leader_term is None or command.leader_term in loaded.valid_terms:
        return None
    name, term = command.leader_term
    return LeaseLost("lease_lost", f"Leader term {term} of lease {name!r} has ended: another process is the leader.")


def _with_content(claimed: ClaimedTasks, contents: dict[TaskRef, tuple[Content, tuple[str, ...]]]) -> ClaimedTasks:
    items = tuple(
        msgspec.structs.replace(item, content=entry[0], depends_on=entry[1])
        for item in claimed.items
        if (entry := contents.get(item.task.ref)) is not None
    )
    return msgspec.structs.replace(claimed, items=items)
