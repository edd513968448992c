"""The task worker: registers its agent, claims tasks, runs functions, reports outcomes, shuts down."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from quarterdeck.core.ids import new_id
from quarterdeck.core.retry import backoff
from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.errors import Canceled, Fault, Problem
from quarterdeck.sdk.options import AgentOptions
from quarterdeck.sdk.task_worker.calls import (
    CONCURRENT_CLAIMS,
    TASK_IDS_MAX,
    HeartbeatSender,
    TaskSource,
    is_agent_ending,
)
from quarterdeck.sdk.task_worker.handlers import Function, Handlers, HeldTask, Outcome, build_failure
from quarterdeck.sdk.types import ItemProblem
from quarterdeck.sdk.wait import wait_at_most
from quarterdeck.sdk.work_types import Agent, TaskCompletion, TaskFailure, TaskItem, TaskLease, TaskProgress, TaskReturn
from quarterdeck.sdk.worker_core.claims import RETRY_POLICY, Claimer
from quarterdeck.sdk.worker_core.in_flight import InFlight, Limits
from quarterdeck.sdk.worker_core.lifecycle import RegisteredWorker, Shutdown, cancel_and_wait, log_problems
from quarterdeck.sdk.worker_core.reports import Outbox, OutboxCallbacks
from quarterdeck.sdk.worker_core.threads import DaemonThreadPool

log = logging.getLogger("quarterdeck.sdk.worker")
F = TypeVar("F", bound=Function)
DEFAULT_PREFETCH = 500


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    prefetch: int | None = None
    """Tasks that may be held in addition to the running ones. Default: 500. A task is prefetched only if it is expected
    to start within 0.25 s."""
    grace: float = 30.0
    """Seconds that running functions have to finish when the worker stops."""
    described: AgentOptions = field(default_factory=lambda: AgentOptions())
    """Additional fields of the agent's registration. They override what the worker sets, such as `capabilities`."""


@dataclass(slots=True, eq=False)
class _PendingProgress:
    """A progress report, and the future that the reporting function awaits."""

    update: TaskProgress
    future: asyncio.Future[None]


class TaskWorker(RegisteredWorker[Agent]):
    """Runs the tasks of one agent with Python functions.

    worker = TaskWorker(Quarterdeck.connect(), "dev-1", concurrency=8)

    @worker.task("development", capabilities=["python"])
    async def develop(task: Attempt) -> dict[str, object]: ...

    worker.main()
    """

    def __init__(
        self,
        client: Quarterdeck,
        agent: str,
        *,
        capabilities: Iterable[str] = (),
        concurrency: int = 8,
        options: WorkerOptions | None = None,
    ) -> None:
        """Create a worker. It registers the agent when it starts.

        `agent`: the agent's id.
        `capabilities`: capabilities of the agent, in addition to those of its functions.
        `concurrency`: the maximum number of functions that run at once.
        """
        if not 1 <= concurrency <= TASK_IDS_MAX:
            raise ValueError(f"concurrency must be 1 to {TASK_IDS_MAX}")
        super().__init__(client)
        self._agent_id = agent
        self._run_id = new_id()
        self._options = options or WorkerOptions()
        self._capabilities = [*capabilities]
        self._handlers = Handlers()
        self._threads = DaemonThreadPool(concurrency)
        prefetch = DEFAULT_PREFETCH if self._options.prefetch is None else self._options.prefetch
        # Hold no more tasks than a heartbeat can name: the server takes back tasks that the heartbeat does not name.
        self._limits = Limits(concurrency, min(max(0, prefetch), TASK_IDS_MAX - concurrency))
        self._in_flight = InFlight(self._limits, self._run_attempt, self._on_ended)
        tasks = client.tasks
        self._completions = Outbox(
            "completions", OutboxCallbacks(tasks.complete, self._on_reported, self._on_completion_refused, _output_size)
        )
        self._failures = Outbox("failures", OutboxCallbacks(tasks.fail, self._on_reported, self._on_report_refused))
        self._returns = Outbox("returns", OutboxCallbacks(tasks.release, self._on_reported, self._on_report_refused))
        self._progress_updates = Outbox(
            "progress updates",
            OutboxCallbacks(self._send_progress, _on_progress_reported, _on_progress_refused, _checkpoint_size),
        )
        self._heartbeat = HeartbeatSender(client.agents, self._in_flight, agent)

    def task(self, task_type: str | None = None, *, capabilities: Iterable[str] = ()) -> Callable[[F], F]:
        """Declare the function for a task type. Without a type, it gets the tasks of all types without a function.

        A coroutine function gets an `Attempt`. A plain function runs in a thread and gets a `ThreadAttempt`. The
        `capabilities` are added to the agent's.
        """

        def decorator(function: F) -> F:
            self._handlers.add(task_type, function, capabilities)
            return function

        return decorator

    # -- run and stop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until `stop` is called, this call is cancelled, or the agent ends.

        Raises if the server permanently refuses the worker.
        """
        agent = await self._register_with_retry()
        if agent is None:
            return
        loop = asyncio.get_running_loop()
        claimers = [self._new_claimer() for _ in range(CONCURRENT_CLAIMS)]
        claim_tasks = [loop.create_task(claimer.run(self._add_leases)) for claimer in claimers]
        other_tasks = [*self._start_background(agent), loop.create_task(self._wait_until_stopped())]
        try:
            await asyncio.wait([*claim_tasks, *other_tasks], return_when=asyncio.FIRST_COMPLETED)
            if any(task.done() and is_agent_ending(task.exception()) for task in (*claim_tasks, *other_tasks)):
                await self._wait_for_agent_end(other_tasks[-1])
        finally:
            self._stopping.set()
            await cancel_and_wait(claim_tasks)
            await self._shut_down(claimers)
            await cancel_and_wait(other_tasks)
            self._threads.close()
        _raise_first([*claim_tasks, *other_tasks])

    async def _wait_for_agent_end(self, stopping: asyncio.Task[None]) -> None:
        """Wait for the last task of a draining agent, however long that takes.

        A terminated agent holds no tasks, so the attempts that are still running here are canceled.
        """
        log.warning("the agent %s is draining or terminated; stopping its worker", self._agent_id)
        if (await self._client.agents.get(self._agent_id)).status == "TERMINATED":
            self._in_flight.cancel([held.id for held in self._in_flight.held], "canceled")
            return
        idle = asyncio.get_running_loop().create_task(self._in_flight.wait_until_idle())
        try:
            await asyncio.wait([idle, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()

    async def drain(self) -> int:
        """Run tasks until none is ready, and return the number of attempts.

        For scheduled programs and for tests. Do not call it while `run` is active.
        """
        other_tasks = self._start_background(await self._register())
        claimer, attempt_count = self._new_claimer(), 0
        try:
            while leases := await claimer.claim_now():
                attempt_count += len(leases)
                self._add_leases(leases)
                await self.until_idle()
        finally:
            await self._shut_down([claimer])
            await cancel_and_wait(other_tasks)
        return attempt_count

    def _start_background(self, agent: Agent) -> list[asyncio.Task[None]]:
        loop = asyncio.get_running_loop()
        heartbeat = self._heartbeat.run(agent.heartbeat_interval_seconds, self._reregister)
        return [loop.create_task(heartbeat), *(loop.create_task(outbox.run()) for outbox in self._outboxes())]

    def _new_claimer(self) -> Claimer[TaskLease]:
        source = TaskSource(self._client.tasks, self._agent_id, self._handlers.task_types, self._reregister)
        return Claimer(source, self._in_flight)

    async def until_idle(self) -> None:
        """Wait until no task is held and everything is reported."""
        await self._in_flight.wait_until_idle()
        await self._wait_until_sent()

    async def beat(self) -> None:
        """Send a heartbeat now. Cancellations in its response have taken effect when this returns."""
        try:
            await self._heartbeat.send()
        except Problem:
            self._heartbeat.send_soon()  # so that the worker's own loop gets the problem as well
            raise

    def _outboxes(
        self,
    ) -> tuple[Outbox[TaskCompletion], Outbox[TaskFailure], Outbox[TaskReturn], Outbox[_PendingProgress]]:
        return self._completions, self._failures, self._returns, self._progress_updates

    async def _shut_down(self, claimers: Sequence[Claimer[TaskLease]]) -> None:
        shutdown = Shutdown("tasks", self._in_flight, self._give_back, self._wait_until_sent)
        await shutdown.run(claimers, self._options.grace)

    async def _wait_until_sent(self) -> None:
        for outbox in self._outboxes():
            await outbox.wait_until_sent()

    async def _give_back(self, attempts: Sequence[HeldTask]) -> None:
        for held in attempts:
            self._returns.add(TaskReturn(held.id, held.token))

    # -- registration, attempts, outcomes ----------------------------------------------------------------------------

    async def _register_with_retry(self) -> Agent | None:
        """Register the agent. Retries while the server is unreachable. Returns None if the worker is stopped first."""
        failures = 0
        while not self._stopping.is_set():
            try:
                return await self._register()
            except Fault as fault:
                log.warning("cannot register the agent now: %s", fault.detail)
            failures += 1
            await wait_at_most(backoff(RETRY_POLICY, attempt=failures, jitter=random.random()) / 1000, self._stopping)
        return None

    async def _register(self) -> Agent:
        capabilities = [*dict.fromkeys([*self._capabilities, *self._handlers.capabilities])]
        options: AgentOptions = {
            "capabilities": capabilities,
            "max_concurrent_tasks": self._limits.total,
            "run_id": self._run_id,
            **self._options.described,
        }
        agent = await self._client.agents.register(self._agent_id, **options)
        self._set_registered(agent)
        log.info(
            "working as agent %s on task types: %s", self._agent_id, ", ".join(self._handlers.task_types or ["all"])
        )
        return agent

    async def _reregister(self) -> None:
        with log_problems("cannot register the agent again now"):
            await self._register()

    def _add_leases(self, leases: Sequence[TaskLease]) -> None:
        attempts = []
        for lease in leases:
            handler = self._handlers.find(lease.task_type)
            if handler is None:
                # The task was assigned to this agent by hand, or an earlier version of the worker handled this type.
                message = f"this worker has no function for task type {lease.task_type!r}"
                self._failures.add(build_failure(lease, message, retryable=True))
            else:
                attempts.append(HeldTask(handler.create_attempt(lease, self), handler))
        self._in_flight.add(attempts)

    async def _run_attempt(self, held: HeldTask) -> Outcome:
        try:
            return await held.handler.run(held.attempt, self._threads)
        except asyncio.CancelledError:
            if held.is_dropped:
                raise
            # The function canceled itself, which counts as a failure.
            return build_failure(held.attempt.lease, "the function was canceled")

    def _on_ended(self, outcome: Outcome, held: HeldTask) -> None:
        if isinstance(outcome, TaskCompletion):
            self._completions.add(outcome)
        elif isinstance(outcome, TaskFailure):
            self._failures.add(outcome)
        elif isinstance(outcome, TaskReturn):
            self._returns.add(outcome)
        else:
            self._in_flight.remove(held.token)

    def _on_reported(self, report: TaskCompletion | TaskFailure | TaskReturn, problem: ItemProblem | None) -> None:
        if problem is not None:
            # The task was taken from this worker, or an earlier report counted and its response was lost.
            log.warning("the outcome of %s does not count: %s", report.id, problem.detail)
        self._in_flight.remove(report.attempt_token)

    def _on_completion_refused(self, completion: TaskCompletion, refusal: Problem) -> None:
        error = f"The task was done, but its result cannot be stored: {refusal.detail}"
        self._failures.add(TaskFailure(completion.id, completion.attempt_token, error, retryable=False))

    def _on_report_refused(self, report: TaskFailure | TaskReturn, refusal: Problem) -> None:
        log.error("the outcome of %s cannot be reported: %s", report.id, refusal.detail)
        self._in_flight.remove(report.attempt_token)

    # -- progress and log lines of attempts --------------------------------------------------------------------------

    async def progress(self, update: TaskProgress) -> None:
        """Report progress of an attempt. Returns when the server has stored it, and raises if it is refused."""
        pending = _PendingProgress(update, asyncio.get_running_loop().create_future())
        self._progress_updates.add(pending)
        await pending.future

    async def log(self, lease: TaskLease, line: Mapping[str, object]) -> None:
        await self._client.tasks.say(lease.id, [line], attempt_token=lease.attempt_token)

    async def _send_progress(self, batch: Sequence[_PendingProgress]) -> Sequence[TaskItem]:
        return await self._client.tasks.progress([pending.update for pending in batch])


def _on_progress_reported(pending: _PendingProgress, problem: ItemProblem | None) -> None:
    if pending.future.done():
        return
    if problem is None:
        pending.future.set_result(None)
    else:
        pending.future.set_exception(Canceled(problem.detail))


def _on_progress_refused(pending: _PendingProgress, refusal: Problem) -> None:
    if not pending.future.done():
        pending.future.set_exception(refusal)


def _output_size(completion: TaskCompletion) -> int:
    return 0 if not completion.output_result else len(memoryview(completion.output_result))


def _checkpoint_size(pending: _PendingProgress) -> int:
    checkpoint = pending.update.checkpoint_data
    return 0 if checkpoint is None else len(memoryview(checkpoint))


def _raise_first(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        error = None if task.cancelled() else task.exception()
        if error is not None and not is_agent_ending(error):
            raise error
