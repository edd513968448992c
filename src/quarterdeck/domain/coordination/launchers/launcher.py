"""Which launchers there are, how many more each can start, and what becomes of each launch."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.coordination.launchers import http_launcher
from quarterdeck.domain.coordination.launchers.model import LaunchFailed, Means, Start
from quarterdeck.domain.coordination.launchers.process_launcher import Processes
from quarterdeck.domain.coordination.model import CoordinationSettings, HttpLauncher, launchers_of
from quarterdeck.domain.tasks.model.commands import Fail
from quarterdeck.domain.tasks.operations.reads import TaskRef
from quarterdeck.engine.background import Errands

log = logging.getLogger("quarterdeck.launching")
PROCESS_SECONDS = 30.0
"""Within which a process has begun."""
MARGIN_SECONDS = 30.0
"""Between the time for a launch and the moment at which it is taken for lost: it has said by then what became of it."""


class Launching:
    def __init__(self, means: Means, told: CoordinationSettings, grace_seconds: float) -> None:
        self._means = means
        self._grace_seconds = grace_seconds
        self._launchers = launchers_of(told)
        self._most = told.launch_concurrency
        self._under_way: Counter[str] = Counter()
        """Launches that are not through, by launcher; of processes, all that run."""
        self._processes = Processes(means)
        self._errands = Errands(log)
        self._drains = False
        self.spawned = 0
        self.failed = 0

    @property
    def names(self) -> list[str]:
        return sorted(self._launchers)

    def knows(self, name: str) -> bool:
        return name in self._launchers

    def __len__(self) -> int:
        """Launches under way, and processes that run."""
        return self._under_way.total()

    def room(self) -> dict[str, int]:
        """How many more each can start."""
        if self._drains:
            return dict.fromkeys(self._launchers, 0)
        free = {
            name: (self._most if isinstance(each, HttpLauncher) else each.max_concurrent) - self._under_way[name]
            for name, each in self._launchers.items()
        }
        return {name: max(0, left) for name, left in free.items()}

    def task_types(self, name: str) -> frozenset[str] | None:
        """Of what types tasks may be that it starts agents for; None is of any."""
        named = self._launchers[name].task_types
        return None if named is None else frozenset(named)

    def launch_ms(self, name: str) -> Millis:
        """After how long a launch that nobody has heard of is lost."""
        return round((self._seconds(name) + MARGIN_SECONDS) * SECOND)

    def _seconds(self, name: str) -> float:
        launcher = self._launchers[name]
        return launcher.timeout_seconds if isinstance(launcher, HttpLauncher) else PROCESS_SECONDS

    # -- launching -----------------------------------------------------------------------------------------------

    def begin(self, ask: Start) -> None:
        """After the commit of the assignment. Whoever counts on it looks at the row."""
        self._under_way[ask.launcher] += 1
        deadline = asyncio.get_running_loop().time() + self._seconds(ask.launcher) + MARGIN_SECONDS / 2
        self._errands.begin(self._launch(ask, deadline), f"launch {ask.task.id}")

    async def _launch(self, ask: Start, deadline: float) -> None:
        try:
            await self._launched(ask, deadline)
        except LaunchFailed as failure:
            self.failed += 1
            log.warning("%s could not be launched by %s: %s", ask.task.id, ask.launcher, failure)
            await self._say_failed(ask, f"The launch failed: {failure}.")
        except Problem as problem:
            # The database is away, or the task is gone: the time for its launch will be over.
            log.warning("%s was not launched: %r", ask.task.id, problem)
        finally:
            self._under_way[ask.launcher] -= 1

    async def _launched(self, ask: Start, deadline: float) -> None:
        whole = await self._means.show(TaskRef(*ask.ref))
        if whole.task.attempt_token != ask.task.attempt_token:
            return
        if asyncio.get_running_loop().time() >= deadline:
            # This process stood still: by now somebody else has taken the task back, or is about to.
            raise LaunchFailed("its time was over before it could begin")
        launcher = self._launchers[ask.launcher]
        if isinstance(launcher, HttpLauncher):
            await http_launcher.start(self._means, launcher, ask, whole)
            self.spawned += 1
            return
        running = await self._processes.start(launcher, ask, whole)
        if running is not None:
            self.spawned += 1
            await self._processes.see_through(running)

    async def _say_failed(self, ask: Start, error: str) -> None:
        row = ask.task
        fail = Fail(
            zone_id=row.zone_id,
            id=row.id,
            token=ask.token,
            error=error,
            stack_trace=None,
            retryable=True,
            chance=random.random(),
        )
        await self._means.report(fail, f"the launch of {row.id}")

    # -- its own life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._processes.begin()

    def drain(self) -> None:
        """Takes nothing new from here on."""
        self._drains = True

    async def stop(self) -> None:
        """Ends its processes and gives their attempts back. A gateway that has not answered yet is left to the time for
        its launch."""
        self.drain()
        try:
            async with asyncio.timeout(self._grace_seconds):
                await self._processes.stop()
        except TimeoutError:
            log.warning("processes were cut, and their attempts not given back")
        await self._errands.end(0.0)
