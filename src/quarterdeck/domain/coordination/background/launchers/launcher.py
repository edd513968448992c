"""Manages the configured launchers and their free capacity, and runs each launch."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter

from quarterdeck.core.clock import SECOND, Millis
from quarterdeck.core.errors import Problem
from quarterdeck.domain.coordination.background.launchers import http_launcher
from quarterdeck.domain.coordination.background.launchers.model import LauncherDeps, LaunchFailed, LaunchRequest
from quarterdeck.domain.coordination.background.launchers.process_launcher import ProcessManager
from quarterdeck.domain.coordination.model import CoordinationSettings, HttpLauncherConfig, launcher_configs
from quarterdeck.domain.tasks.model.commands import Fail
from quarterdeck.domain.tasks.operations.reads import TaskLookup
from quarterdeck.engine.background import Background

log = logging.getLogger("quarterdeck.launching")
PROCESS_START_SECONDS = 30.0
"""Maximum time to start a process."""
MARGIN_SECONDS = 30.0
"""Added to the timeout of a launch before it is considered lost, so that its outcome can still be reported."""


class TaskLauncher:
    def __init__(self, deps: LauncherDeps, settings: CoordinationSettings, grace_seconds: float) -> None:
        self._deps = deps
        self._grace_seconds = grace_seconds
        self._configs = launcher_configs(settings)
        self._http_limit = settings.launch_concurrency
        self._active: Counter[str] = Counter()
        """Launches in progress and running processes, by launcher."""
        self._processes = ProcessManager(deps)
        self._background = Background(log)
        self._is_draining = False
        self.spawned_count = 0
        self.failed_count = 0

    @property
    def names(self) -> list[str]:
        return sorted(self._configs)

    def __len__(self) -> int:
        """Number of launches in progress and running processes."""
        return self._active.total()

    def free_capacity(self) -> dict[str, int]:
        """Number of sessions that each launcher can still start."""
        if self._is_draining:
            return dict.fromkeys(self._configs, 0)
        free = {
            name: (self._http_limit if isinstance(config, HttpLauncherConfig) else config.max_concurrent)
            - self._active[name]
            for name, config in self._configs.items()
        }
        return {name: max(0, remaining) for name, remaining in free.items()}

    def task_types(self, name: str) -> frozenset[str] | None:
        """The task types that the launcher accepts; None means all."""
        types = self._configs[name].task_types
        return None if types is None else frozenset(types)

    def launch_timeout_ms(self, name: str) -> Millis:
        """Milliseconds after which a launch without a report is considered lost."""
        return round((self._timeout_seconds(name) + MARGIN_SECONDS) * SECOND)

    def _timeout_seconds(self, name: str) -> float:
        config = self._configs[name]
        return config.timeout_seconds if isinstance(config, HttpLauncherConfig) else PROCESS_START_SECONDS

    # -- launch --------------------------------------------------------------------------------------------------

    def start_launch(self, request: LaunchRequest) -> None:
        """Start a launch in the background. Called after the commit of the assignment."""
        self._active[request.launcher] += 1
        deadline = asyncio.get_running_loop().time() + self._timeout_seconds(request.launcher) + MARGIN_SECONDS / 2
        self._background.start(self._run_launch(request, deadline), f"launch {request.task.id}")

    async def _run_launch(self, request: LaunchRequest, deadline: float) -> None:
        try:
            await self._launch_and_supervise(request, deadline)
        except LaunchFailed as error:
            self.failed_count += 1
            log.warning("task %s could not be launched by %s: %s", request.task.id, request.launcher, error)
            await self._report_failure(request, f"The launch failed: {error}.")
        except Problem as problem:
            # The database is unavailable or the task was deleted. The launch deadline ends the attempt.
            log.warning("task %s was not launched: %r", request.task.id, problem)
        finally:
            self._active[request.launcher] -= 1

    async def _launch_and_supervise(self, request: LaunchRequest, deadline: float) -> None:
        full_task = await self._deps.read_task(TaskLookup(*request.ref))
        if full_task.task.attempt_token != request.task.attempt_token:
            return
        if asyncio.get_running_loop().time() >= deadline:
            # This process stalled: the coordinator has aborted the attempt, or is about to.
            raise LaunchFailed("its deadline passed before it started")
        config = self._configs[request.launcher]
        if isinstance(config, HttpLauncherConfig):
            await http_launcher.start(self._deps, config, request, full_task)
            self.spawned_count += 1
            return
        running = await self._processes.start(config, request, full_task)
        if running is not None:
            self.spawned_count += 1
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

    # -- lifecycle -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._processes.start_watching()

    def drain(self) -> None:
        """Accept no more launches."""
        self._is_draining = True

    async def stop(self) -> None:
        """End all processes and release their attempts.

        Pending gateway requests are canceled. The launch deadline ends their attempts.
        """
        self.drain()
        try:
            async with asyncio.timeout(self._grace_seconds):
                await self._processes.stop()
        except TimeoutError:
            log.warning("not all processes ended in time; their attempts were not released")
        await self._background.stop(0.0)
