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
from quarterdeck.core.retry import delay
from quarterdeck.sdk.client import Quarterdeck
from quarterdeck.sdk.errors import Canceled, Fault, Problem
from quarterdeck.sdk.options import AgentOptions
from quarterdeck.sdk.task_worker.claims import AGAIN, CLAIMS, Claimer, ends_it
from quarterdeck.sdk.task_worker.handlers import Function, Handlers, Outcome, failed
from quarterdeck.sdk.task_worker.heartbeat import NAMED_MAX, Beater
from quarterdeck.sdk.task_worker.in_flight import Held, Holdings, Limits
from quarterdeck.sdk.task_worker.reports import Outbox, Ways
from quarterdeck.sdk.types import ItemProblem
from quarterdeck.sdk.work_types import Agent, TaskCompletion, TaskFailure, TaskItem, TaskLease, TaskProgress, TaskReturn
from quarterdeck.sdk.worker_core.signals import until_signalled
from quarterdeck.sdk.worker_core.threads import Threads

log = logging.getLogger("quarterdeck.sdk.invocation_worker")
F = TypeVar("F", bound=Function)
LAST_WORDS_SECONDS = 5.0
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
class _Telling:
    """One word about how far an attempt is, and who waits for it to be heard."""

    said: TaskProgress
    heard: asyncio.Future[None]


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
        if not 1 <= concurrency <= NAMED_MAX:
            raise ValueError(f"a task worker does 1 to {NAMED_MAX} tasks at once")
        self._client = client
        self._agent_id = agent
        self._run_id = new_id()
        self._options = options or WorkerOptions()
        self._capabilities = [*capabilities]
        self._handlers = Handlers()
        self._threads = Threads(concurrency)
        wanted = PREFETCH if self._options.prefetch is None else self._options.prefetch
        # No more than a heartbeat can name: what it does not name is taken back.
        self._limits = Limits(concurrency, min(max(0, wanted), NAMED_MAX - concurrency))
        self._holdings = Holdings(self._limits, self._run, self._ended)
        tasks = client.tasks
        self._completed = Outbox("completions", Ways(tasks.complete, self._told, self._not_taken, _output_size))
        self._failed = Outbox("failures", Ways(tasks.fail, self._told, self._lost_for_good))
        self._returned = Outbox("returns", Ways(tasks.release, self._told, self._lost_for_good))
        self._progressed = Outbox(
            "words of progress", Ways(self._send_progress, _progress_heard, _progress_refused, _checkpoint_size)
        )
        self._beater = Beater(client.agents, self._holdings, agent)
        self._stopping = asyncio.Event()
        self._registered = asyncio.Event()
        self._agent: Agent | None = None

    def task(self, task_type: str | None = None, *, capabilities: Iterable[str] = ()) -> Callable[[F], F]:
        """Declares a function for the tasks of a type, or for those of all other types. It is given the attempt:
        coroutines an `Attempt`, plain functions, which run in threads, a `ThreadAttempt`. The `capabilities` are added
        to the agent's."""

        def declared(function: F) -> F:
            self._handlers.add(task_type, function, capabilities)
            return function

        return declared

    # -- its life ----------------------------------------------------------------------------------------------------

    def main(self) -> None:
        """Works until SIGTERM or SIGINT: for a program that does nothing else. A second signal does not wait."""
        asyncio.run(until_signalled(self, self._client))

    async def run(self) -> None:
        """Works until `stop` is called, until it is cancelled, until its agent ends, or until the server refuses for
        good, which is raised."""
        agent = await self._register_first()
        if agent is None:
            return
        loop = asyncio.get_running_loop()
        claimers = [self._claimer() for _ in range(CLAIMS)]
        claiming = [loop.create_task(each.run(self._take, self._register_again)) for each in claimers]
        others = [*self._begin(agent), loop.create_task(_until(self._stopping))]
        try:
            await asyncio.wait([*claiming, *others], return_when=asyncio.FIRST_COMPLETED)
            if any(task.done() and ends_it(task.exception()) for task in (*claiming, *others)):
                await self._end_with_agent(others[-1])
        finally:
            self._stopping.set()
            await _ended(claiming)
            await self._wind_down(claimers)
            await _ended(others)
            self._threads.close()
        _raise_first([*claiming, *others])

    async def _end_with_agent(self, stopping: asyncio.Task[None]) -> None:
        """An agent that is to end does so with its last task, however long that takes; one that has ended holds none,
        and whatever still runs for it is told."""
        log.warning("the agent %s is to end, and its worker with it", self._agent_id)
        if (await self._client.agents.get(self._agent_id)).status == "TERMINATED":
            self._holdings.cancel(self._holdings.task_ids, "canceled")
            return
        idle = asyncio.get_running_loop().create_task(self._holdings.until_idle())
        try:
            await asyncio.wait([idle, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()

    async def drain(self) -> int:
        """Does what there is to do now, and returns when nothing is left: how many attempts it has made. For programs
        that are started by a clock, and for tests. Not beside `run`."""
        others = self._begin(await self._register())
        claimer, made = self._claimer(), 0
        try:
            while leases := await claimer.once():
                made += len(leases)
                self._take(leases)
                await self.until_idle()
        finally:
            await self._wind_down([claimer])
            await _ended(others)
        return made

    def _begin(self, agent: Agent) -> list[asyncio.Task[None]]:
        loop = asyncio.get_running_loop()
        beating = self._beater.run(agent.heartbeat_interval_seconds, self._register_again)
        return [loop.create_task(beating), *(loop.create_task(each.run()) for each in self._outboxes())]

    def _claimer(self) -> Claimer:
        return Claimer(self._client.tasks, self._holdings, self._agent_id, self._handlers.task_types)

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
        await self._holdings.until_idle()
        for outbox in self._outboxes():
            await outbox.until_quiet()

    async def beat(self) -> None:
        """A heartbeat now, out of turn: what the server has to say of its tasks is heard when this returns."""
        try:
            await self._beater.beat()
        except Problem:
            self._beater.hurry()  # whatever it is, the worker is to hear of it as well
            raise

    def _outboxes(self) -> tuple[Outbox[TaskCompletion], Outbox[TaskFailure], Outbox[TaskReturn], Outbox[_Telling]]:
        return self._completed, self._failed, self._returned, self._progressed

    async def _wind_down(self, claimers: Sequence[Claimer]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.grace):
                for claimer in claimers:
                    with _logged("tasks that were taken at the last moment are not given back"):
                        await claimer.give_back()
                self._give_back(self._holdings.drop_waiting())
                await self._holdings.until_none_runs()
                await self._until_quiet()
                return
        log.warning(
            "%d tasks were not done within %g s and are given back", self._holdings.running, self._options.grace
        )
        self._give_back(self._holdings.drop_running())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._until_quiet()

    async def _until_quiet(self) -> None:
        for outbox in self._outboxes():
            await outbox.until_quiet()

    def _give_back(self, returned: Iterable[TaskReturn]) -> None:
        for each in returned:
            self._returned.add(each)

    # -- what it is made of ------------------------------------------------------------------------------------------

    async def _register_first(self) -> Agent | None:
        """However long the server is away; None if the worker is to stop before it is back."""
        failures = 0
        while not self._stopping.is_set():
            try:
                return await self._register()
            except Fault as fault:
                log.warning("the agent cannot be registered now: %s", fault.detail)
            failures += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay(AGAIN, attempt=failures, chance=random.random()) / 1000):
                    await self._stopping.wait()
        return None

    async def _register(self) -> Agent:
        capabilities = [*dict.fromkeys([*self._capabilities, *self._handlers.capabilities])]
        described: AgentOptions = {
            "capabilities": capabilities,
            "max_concurrent_tasks": self._limits.most,
            "run_id": self._run_id,
            **self._options.described,
        }
        self._agent = await self._client.agents.register(self._agent_id, **described)
        self._registered.set()
        log.info("working as %s on %s", self._agent_id, ", ".join(self._handlers.task_types or ["everything"]))
        return self._agent

    async def _register_again(self) -> None:
        with _logged("the agent cannot be registered again now"):
            await self._register()

    def _take(self, leases: Sequence[TaskLease]) -> None:
        taken = []
        for lease in leases:
            handler = self._handlers.of(lease.task_type)
            if handler is None:
                # Assigned to this agent by somebody who knows better, or of a type that was served before.
                self._failed.add(failed(lease, f"nobody here does {lease.task_type!r}", retryable=True))
            else:
                taken.append(Held(handler.attempt(lease, self), handler))
        self._holdings.take(taken)

    async def _run(self, held: Held) -> Outcome:
        return await held.handler.run(held.attempt, self._threads)

    def _ended(self, outcome: Outcome, held: Held) -> None:
        if isinstance(outcome, TaskCompletion):
            self._completed.add(outcome)
        elif isinstance(outcome, TaskFailure):
            self._failed.add(outcome)
        elif isinstance(outcome, TaskReturn):
            self._returned.add(outcome)
        else:
            self._holdings.forget(held.token)

    def _told(self, said: TaskCompletion | TaskFailure | TaskReturn, problem: ItemProblem | None) -> None:
        if problem is not None:
            # It was taken from this worker meanwhile, or this was the answer that got lost: told already.
            log.warning("what became of %s does not count: %s", said.id, problem.detail)
        self._holdings.forget(said.attempt_token)

    def _not_taken(self, said: TaskCompletion, refusal: Problem) -> None:
        told = f"The task was done, but its result cannot be kept: {refusal.detail}"
        self._failed.add(TaskFailure(said.id, said.attempt_token, told, retryable=False))

    def _lost_for_good(self, said: TaskFailure | TaskReturn, refusal: Problem) -> None:
        log.error("what became of %s cannot be told: %s", said.id, refusal.detail)
        self._holdings.forget(said.attempt_token)

    # -- what attempts say -------------------------------------------------------------------------------------------

    async def progress(self, said: TaskProgress) -> None:
        """Told for an attempt; returns when it is kept, and raises what is wrong with it."""
        telling = _Telling(said, asyncio.get_running_loop().create_future())
        self._progressed.add(telling)
        await telling.heard

    async def log(self, lease: TaskLease, line: Mapping[str, object]) -> None:
        await self._client.tasks.say(lease.id, [line], attempt_token=lease.attempt_token)

    async def _send_progress(self, batch: Sequence[_Telling]) -> Sequence[TaskItem]:
        return await self._client.tasks.progress([telling.said for telling in batch])


def _progress_heard(telling: _Telling, problem: ItemProblem | None) -> None:
    if telling.heard.done():
        return
    if problem is None:
        telling.heard.set_result(None)
    else:
        telling.heard.set_exception(Canceled(problem.detail))


def _progress_refused(telling: _Telling, refusal: Problem) -> None:
    if not telling.heard.done():
        telling.heard.set_exception(refusal)


def _output_size(said: TaskCompletion) -> int:
    return 0 if not said.output_result else len(memoryview(said.output_result))


def _checkpoint_size(telling: _Telling) -> int:
    checkpoint = telling.said.checkpoint_data
    return 0 if checkpoint is None else len(memoryview(checkpoint))


async def _until(stopping: asyncio.Event) -> None:
    await stopping.wait()


def _raise_first(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        wrong = None if task.cancelled() else task.exception()
        if wrong is not None and not ends_it(wrong):
            raise wrong


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    """For what a worker can do without."""
    try:
        yield
    except Problem as problem:
        log.warning("%s: %s", what, problem.detail)


async def _ended(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
