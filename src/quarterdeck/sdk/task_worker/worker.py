"""The task worker itself: from claims over functions to reports, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from quarterdeck.core.ids import new_id
from quarterdeck.core.retry import backoff
from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.errors import Canceled, Fault, Problem
from quarterdeck.sdk.options import AgentOptions
from quarterdeck.sdk.task_worker.claims import CONCURRENT_CLAIMS, RETRY_POLICY, Claimer, is_agent_ending
from quarterdeck.sdk.task_worker.handlers import Function, Handlers, Outcome, build_failure
from quarterdeck.sdk.task_worker.heartbeat import TASK_IDS_MAX, HeartbeatSender
from quarterdeck.sdk.task_worker.in_flight import HeldAttempt, InFlight, Limits
from quarterdeck.sdk.task_worker.reports import Outbox, OutboxCallbacks
from quarterdeck.sdk.types import ItemProblem
from quarterdeck.sdk.work_types import Agent, TaskCompletion, TaskFailure, TaskItem, TaskLease, TaskProgress, TaskReturn
from quarterdeck.sdk.worker_core.signals import run_until_signal
from quarterdeck.sdk.worker_core.threads import DaemonThreadPool

log = logging.getLogger("quarterdeck.sdk.invocation_worker")
F = TypeVar("F", bound=Function)
FINAL_REPORT_SECONDS = 5.0
"""For giving back and telling what the grace was too short for."""
PREFETCH = 500


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    prefetch: int | None = None
    """Tasks that may be held beyond those that run; only as many are taken as begin within a quarter of a second."""
    grace: float = 30.0
    """Seconds that what runs may take at the worker's end."""
    described: AgentOptions = field(default_factory=lambda: AgentOptions())
    """What is said of the agent when it is registered, beside its capabilities and how many tasks it takes."""


@dataclass(slots=True, eq=False)
class _PendingProgress:
    """One word about how far an attempt is, and who waits for it to be heard."""

    update: TaskProgress
    future: asyncio.Future[None]


class TaskWorker:
    """Does the tasks of one agent.

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
        """So many functions run at once, at most. The agent is registered when it begins."""
        if not 1 <= concurrency <= TASK_IDS_MAX:
            raise ValueError(f"a task worker does 1 to {TASK_IDS_MAX} tasks at once")
        self._client = client
        self._agent_id = agent
        self._run_id = new_id()
        self._options = options or WorkerOptions()
        self._capabilities = [*capabilities]
        self._handlers = Handlers()
        self._threads = DaemonThreadPool(concurrency)
        prefetch = PREFETCH if self._options.prefetch is None else self._options.prefetch
        # No more than a heartbeat can name: what it does not name is taken back.
        self._limits = Limits(concurrency, min(max(0, prefetch), TASK_IDS_MAX - concurrency))
        self._in_flight = InFlight(self._limits, self._run_attempt, self._on_ended)
        tasks = client.tasks
        self._completions = Outbox(
            "completions", OutboxCallbacks(tasks.complete, self._on_reported, self._on_completion_refused, _output_size)
        )
        self._failures = Outbox("failures", OutboxCallbacks(tasks.fail, self._on_reported, self._on_report_refused))
        self._returns = Outbox("returns", OutboxCallbacks(tasks.release, self._on_reported, self._on_report_refused))
        self._progress_updates = Outbox(
            "words of progress",
            OutboxCallbacks(self._send_progress, _on_progress_reported, _on_progress_refused, _checkpoint_size),
        )
        self._heartbeat = HeartbeatSender(client.agents, self._in_flight, agent)
        self._stopping = asyncio.Event()
        self._registered = asyncio.Event()
        self._agent: Agent | None = None

    def task(self, task_type: str | None = None, *, capabilities: Iterable[str] = ()) -> Callable[[F], F]:
        """Declares a function for the tasks of a type, or for those of all other types. It is given the attempt:
        coroutines an `Attempt`, plain functions, which run in threads, a `ThreadAttempt`. The `capabilities` are added
        to the agent's."""

        def decorator(function: F) -> F:
            self._handlers.add(task_type, function, capabilities)
            return function

        return decorator

    # -- its life ----------------------------------------------------------------------------------------------------

    def main(self) -> None:
        """Works until SIGTERM or SIGINT: for a program that does nothing else. A second signal does not wait."""
        asyncio.run(run_until_signal(self, self._client))

    async def run(self) -> None:
        """Works until `stop` is called, until it is cancelled, until its agent ends, or until the server refuses for
        good, which is raised."""
        agent = await self._register_with_retry()
        if agent is None:
            return
        loop = asyncio.get_running_loop()
        claimers = [self._new_claimer() for _ in range(CONCURRENT_CLAIMS)]
        claim_tasks = [loop.create_task(claimer.run(self._add_leases, self._reregister)) for claimer in claimers]
        other_tasks = [*self._start_background(agent), loop.create_task(_wait_until_stopped(self._stopping))]
        try:
            await asyncio.wait([*claim_tasks, *other_tasks], return_when=asyncio.FIRST_COMPLETED)
            if any(task.done() and is_agent_ending(task.exception()) for task in (*claim_tasks, *other_tasks)):
                await self._wait_for_agent_end(other_tasks[-1])
        finally:
            self._stopping.set()
            await _cancel_and_wait(claim_tasks)
            await self._shut_down(claimers)
            await _cancel_and_wait(other_tasks)
            self._threads.close()
        _raise_first([*claim_tasks, *other_tasks])

    async def _wait_for_agent_end(self, stopping: asyncio.Task[None]) -> None:
        """An agent that is to end does so with its last task, however long that takes; one that has ended holds none,
        and whatever still runs for it is told."""
        log.warning("the agent %s is to end, and its worker with it", self._agent_id)
        if (await self._client.agents.get(self._agent_id)).status == "TERMINATED":
            self._in_flight.cancel(self._in_flight.task_ids, "canceled")
            return
        idle = asyncio.get_running_loop().create_task(self._in_flight.wait_until_idle())
        try:
            await asyncio.wait([idle, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()

    async def drain(self) -> int:
        """Does what there is to do now, and returns when nothing is left: how many attempts it has made. For programs
        that are started by a clock, and for tests. Not beside `run`."""
        other_tasks = self._start_background(await self._register())
        claimer, attempts = self._new_claimer(), 0
        try:
            while leases := await claimer.claim_now():
                attempts += len(leases)
                self._add_leases(leases)
                await self.until_idle()
        finally:
            await self._shut_down([claimer])
            await _cancel_and_wait(other_tasks)
        return attempts

    def _start_background(self, agent: Agent) -> list[asyncio.Task[None]]:
        loop = asyncio.get_running_loop()
        heartbeat = self._heartbeat.run(agent.heartbeat_interval_seconds, self._reregister)
        return [loop.create_task(heartbeat), *(loop.create_task(outbox.run()) for outbox in self._outboxes())]

    def _new_claimer(self) -> Claimer:
        return Claimer(self._client.tasks, self._in_flight, self._agent_id, self._handlers.task_types)

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop(self) -> None:
        """Takes nothing new, finishes what runs, gives back what has not begun. To be called on the loop."""
        self._stopping.set()

    async def until_registered(self) -> Agent:
        """The agent that it is, once it is registered."""
        await self._registered.wait()
        assert self._agent is not None
        return self._agent

    async def until_idle(self) -> None:
        """Returns when it holds nothing, and everything has been told."""
        await self._in_flight.wait_until_idle()
        for outbox in self._outboxes():
            await outbox.wait_until_sent()

    async def beat(self) -> None:
        """A heartbeat now, out of turn: what the server has to say of its tasks is heard when this returns."""
        try:
            await self._heartbeat.send()
        except Problem:
            self._heartbeat.send_soon()  # whatever it is, the worker is to hear of it as well
            raise

    def _outboxes(
        self,
    ) -> tuple[Outbox[TaskCompletion], Outbox[TaskFailure], Outbox[TaskReturn], Outbox[_PendingProgress]]:
        return self._completions, self._failures, self._returns, self._progress_updates

    async def _shut_down(self, claimers: Sequence[Claimer]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.grace):
                for claimer in claimers:
                    with _log_problems("tasks that were taken at the last moment are not given back"):
                        await claimer.release_pending_claim()
                self._return_tasks(self._in_flight.drop_waiting())
                await self._in_flight.wait_until_none_running()
                await self._wait_until_sent()
                return
        log.warning(
            "%d tasks were not done within %g s and are given back", self._in_flight.running, self._options.grace
        )
        self._return_tasks(self._in_flight.drop_running())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FINAL_REPORT_SECONDS):
                await self._wait_until_sent()

    async def _wait_until_sent(self) -> None:
        for outbox in self._outboxes():
            await outbox.wait_until_sent()

    def _return_tasks(self, returned: Iterable[TaskReturn]) -> None:
        for item in returned:
            self._returns.add(item)

    # -- what it is made of ------------------------------------------------------------------------------------------

    async def _register_with_retry(self) -> Agent | None:
        """However long the server is away; None if the worker is to stop before it is back."""
        failures = 0
        while not self._stopping.is_set():
            try:
                return await self._register()
            except Fault as fault:
                log.warning("the agent cannot be registered now: %s", fault.detail)
            failures += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(backoff(RETRY_POLICY, attempt=failures, jitter=random.random()) / 1000):
                    await self._stopping.wait()
        return None

    async def _register(self) -> Agent:
        capabilities = [*dict.fromkeys([*self._capabilities, *self._handlers.capabilities])]
        options: AgentOptions = {
            "capabilities": capabilities,
            "max_concurrent_tasks": self._limits.total,
            "run_id": self._run_id,
            **self._options.described,
        }
        self._agent = await self._client.agents.register(self._agent_id, **options)
        self._registered.set()
        log.info("working as %s on %s", self._agent_id, ", ".join(self._handlers.task_types or ["everything"]))
        return self._agent

    async def _reregister(self) -> None:
        with _log_problems("the agent cannot be registered again now"):
            await self._register()

    def _add_leases(self, leases: Sequence[TaskLease]) -> None:
        attempts = []
        for lease in leases:
            handler = self._handlers.find(lease.task_type)
            if handler is None:
                # Assigned to this agent by somebody who knows better, or of a type that was served before.
                self._failures.add(build_failure(lease, f"nobody here does {lease.task_type!r}", retryable=True))
            else:
                attempts.append(HeldAttempt(handler.create_attempt(lease, self), handler))
        self._in_flight.add(attempts)

    async def _run_attempt(self, held: HeldAttempt) -> Outcome:
        return await held.handler.run(held.attempt, self._threads)

    def _on_ended(self, outcome: Outcome, held: HeldAttempt) -> None:
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
            # It was taken from this worker meanwhile, or this was the answer that got lost: told already.
            log.warning("what became of %s does not count: %s", report.id, problem.detail)
        self._in_flight.remove(report.attempt_token)

    def _on_completion_refused(self, completion: TaskCompletion, refusal: Problem) -> None:
        error = f"The task was done, but its result cannot be kept: {refusal.detail}"
        self._failures.add(TaskFailure(completion.id, completion.attempt_token, error, retryable=False))

    def _on_report_refused(self, report: TaskFailure | TaskReturn, refusal: Problem) -> None:
        log.error("what became of %s cannot be told: %s", report.id, refusal.detail)
        self._in_flight.remove(report.attempt_token)

    # -- what attempts say -------------------------------------------------------------------------------------------

    async def progress(self, update: TaskProgress) -> None:
        """Told for an attempt; returns when it is kept, and raises what is wrong with it."""
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


async def _wait_until_stopped(stopping: asyncio.Event) -> None:
    await stopping.wait()


def _raise_first(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        error = None if task.cancelled() else task.exception()
        if error is not None and not is_agent_ending(error):
            raise error


@contextlib.contextmanager
def _log_problems(message: str) -> Iterator[None]:
    """For what a worker can do without."""
    try:
        yield
    except Problem as problem:
        log.warning("%s: %s", message, problem.detail)


async def _cancel_and_wait(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
