"""Which launchers there are, how many more each can start, and what becomes of each launch."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.coordination.launchers import http_launcher
from quarterdeck.domain.coordination.launchers.model import LauncherDeps, LaunchFailed, LaunchRequest
from quarterdeck.domain.coordination.launchers.process_launcher import ProcessManager
from quarterdeck.domain.coordination.model import CoordinationSettings, HttpLauncherConfig, launcher_configs
from quarterdeck.domain.tasks.model.commands import Fail
from quarterdeck.domain.tasks.operations.reads import TaskLookup
from quarterdeck.engine.background import Background

log = logging.getLogger("quarterdeck.launching")
PROCESS_SECONDS = 30.0
"""Within which a process has begun."""
MARGIN_SECONDS = 30.0
"""Between the time for a launch and the moment at which it is taken for lost: it has said by then what became of it."""


class TaskLauncher:
    def __init__(self, deps: LauncherDeps, settings: CoordinationSettings, grace_seconds: float) -> None:
        self._deps = deps
        self._grace_seconds = grace_seconds
        self._configs = launcher_configs(settings)
        self._http_limit = settings.launch_concurrency
        self._active: Counter[str] = Counter()
        """Launches that are not through, by launcher; of processes, all that run."""
        self._processes = ProcessManager(deps)
        self._background = Background(log)
        self._is_draining = False
        self.spawned = 0
        self.failed = 0

    @property
    def names(self) -> list[str]:
        return sorted(self._configs)

    def has_launcher(self, name: str) -> bool:
        return name in self._configs

    def __len__(self) -> int:
        """Launches under way, and processes that run."""
        return self._active.total()

    def free_capacity(self) -> dict[str, int]:
        """How many more each can start."""
        if self._is_draining:
            return dict.fromkeys(self._configs, 0)
        free = {
            name: (self._http_limit if isinstance(config, HttpLauncherConfig) else config.max_concurrent)
            - self._active[name]
            for name, config in self._configs.items()
        }
        return {name: max(0, remaining) for name, remaining in free.items()}

    def task_types(self, name: str) -> frozenset[str] | None:
        """Of what types tasks may be that it starts agents for; None is of any."""
        types = self._configs[name].task_types
        return None if types is None else frozenset(types)

    def launch_timeout_ms(self, name: str) -> Millis:
        """After how long a launch that nobody has heard of is lost."""
        return round((self._timeout_seconds(name) + MARGIN_SECONDS) * SECOND)

    def _timeout_seconds(self, name: str) -> float:
        config = self._configs[name]
        return config.timeout_seconds if isinstance(config, HttpLauncherConfig) else PROCESS_SECONDS

    # -- launching -----------------------------------------------------------------------------------------------

    def start_launch(self, request: LaunchRequest) -> None:
        """After the commit of the assignment. Whoever counts on it looks at the row."""
        self._active[request.launcher] += 1
        deadline = asyncio.get_running_loop().time() + self._timeout_seconds(request.launcher) + MARGIN_SECONDS / 2
        self._background.start(self._run_launch(request, deadline), f"launch {request.task.id}")

    async def _run_launch(self, request: LaunchRequest, deadline: float) -> None:
        try:
            await self._start_session(request, deadline)
        except LaunchFailed as error:
            self.failed += 1
            log.warning("%s could not be launched by %s: %s", request.task.id, request.launcher, error)
            await self._report_failure(request, f"The launch failed: {error}.")
        except Problem as problem:
            # The database is away, or the task is gone: the time for its launch will be over.
            log.warning("%s was not launched: %r", request.task.id, problem)
        finally:
            self._active[request.launcher] -= 1

    async def _start_session(self, request: LaunchRequest, deadline: float) -> None:
        full_task = await self._deps.read_task(TaskLookup(*request.ref))
        if full_task.task.attempt_token != request.task.attempt_token:
            return
        if asyncio.get_running_loop().time() >= deadline:
            # This process stood still: by now somebody else has taken the task back, or is about to.
            raise LaunchFailed("its time was over before it could begin")
        config = self._configs[request.launcher]
        if isinstance(config, HttpLauncherConfig):
            await http_launcher.start(self._deps, config, request, full_task)
            self.spawned += 1
            return
        running = await self._processes.start(config, request, full_task)
        if running is not None:
            self.spawned += 1
            await self._processes.supervise(running)

    async def _report_failure(self, request: LaunchRequest, error: str) -> None:
        task = request.task
        fail = Fail(
            zone_id=task.zone_id,
            id=task.id,
            attempt_token=request.attempt_token,
            error=error,
            stack_trace=None,
            retryable=True,
            jitter=random.random(),
        )
        await self._deps.report(fail, f"the launch of {task.id}")

    # -- its own life --------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._processes.start_monitor()

    def drain(self) -> None:
        """Takes nothing new from here on."""
        self._is_draining = True

    async def stop(self) -> None:
        """Ends its processes and gives their attempts back. A gateway that has not answered yet is left to the time for
        its launch."""
        self.drain()
        try:
            async with asyncio.timeout(self._grace_seconds):
                await self._processes.stop()
        except TimeoutError:
            log.warning("processes were cut, and their attempts not given back")
        await self._background.stop(0.0)
