"""Runs attempts as processes on this machine: start, heartbeat, output, end.

Each process has its own POSIX session and process group, so that its children end with it. The server reads its output
continuously, because the process would block on a full pipe, and keeps only the end.

One asyncio task watches all processes. Commits wake it, and so does each due heartbeat. It finds the ended attempts
with one statement, and sends heartbeats for the agents whose attempts have not ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
from asyncio.subprocess import PIPE, STDOUT, Process
from dataclasses import dataclass, field

from quarterdeck.core.errors import Problem
from quarterdeck.domain.agents.model import AgentTokenClaims, RecordHeartbeat
from quarterdeck.domain.coordination.background.launchers.model import LauncherDeps, LaunchFailed, LaunchRequest
from quarterdeck.domain.coordination.background.launchers.orphan_reaper_client import OrphanReaperClient
from quarterdeck.domain.coordination.model import ProcessLauncherConfig
from quarterdeck.domain.coordination.rules import launch_payload as rules
from quarterdeck.domain.tasks.model.commands import Fail, RecordLaunch, Release
from quarterdeck.domain.tasks.model.rows import FullTask, State, Task
from quarterdeck.domain.tasks.operations import coordinator_queries
from quarterdeck.domain.tasks.rules.states import HELD
from quarterdeck.engine.background import wait_at_most
from quarterdeck.store.interface import StoreError

log = logging.getLogger("quarterdeck.launching")
TOKEN_SECONDS = 24 * 3600
"""Lifetime of a token if the task has no timeout. TOKEN_MARGIN_SECONDS is always added."""
TOKEN_MARGIN_SECONDS = 600
CHECK_SECONDS = 10.0
"""Longest pause of the watch task while processes run."""
GAP_SECONDS = 0.25
"""Shortest pause of the watch task, however often it is woken."""
TAIL_BYTES = 4 * rules.TAIL_MAX
"""A UTF-8 character has up to 4 bytes."""
CHUNK_BYTES = 64 * 1024
OUTPUT_SECONDS = 1.0
"""How long the remaining output is read after a process has ended."""


@dataclass(slots=True, eq=False)
class RunningProcess:
    """A process that was started for an attempt."""

    request: LaunchRequest
    config: ProcessLauncherConfig
    process: Process
    agent_token: str
    next_heartbeat_at: float
    output: bytearray = field(default_factory=bytearray)
    end_requested: asyncio.Event = field(default_factory=asyncio.Event)
    """The process must end now."""
    end_reason: str | None = None
    """Why the process must end. If set, no outcome is reported unless `is_released`."""
    completed_at: float | None = None
    """When the task was found completed. From then on the process has its grace period to exit."""
    is_released: bool = False
    """The server is stopping, so the attempt is released and does not count against the retries."""

    def request_end(self, reason: str) -> None:
        if self.end_reason is None:
            self.end_reason = reason
        self.end_requested.set()


class ProcessManager:
    def __init__(self, deps: LauncherDeps) -> None:
        self._deps = deps
        self._running: dict[RunningProcess, None] = {}
        self._wakeup = asyncio.Event()
        self._all_ended = asyncio.Event()
        self._watch_task: asyncio.Task[None] | None = None
        self._reaper = OrphanReaperClient()

    # -- one process ---------------------------------------------------------------------------------------------

    async def start(
        self, config: ProcessLauncherConfig, request: LaunchRequest, full_task: FullTask
    ) -> RunningProcess | None:
        """Start a process, record the launch, and send the task to the process. None if the launch was refused."""
        task = request.task
        assert task.agent_id is not None
        ttl_seconds = (task.timeout_seconds or TOKEN_SECONDS) + TOKEN_MARGIN_SECONDS
        token = self._deps.mint_token(
            AgentTokenClaims(
                zone_id=task.zone_id,
                agent_id=task.agent_id,
                client_id="launcher",
                ttl_seconds=ttl_seconds,
                registered_at=request.agent_registered_at,
                attempt=request.attempt_token,
            )
        )
        process = await self._spawn(config, token)
        now = asyncio.get_running_loop().time()
        running = RunningProcess(request, config, process, token, now + request.heartbeat_seconds)
        try:
            session_key = f"process:{process.pid}:{task.id}:{task.attempt}"[: rules.SESSION_KEY_MAX]
            record_launch = RecordLaunch(
                zone_id=task.zone_id, id=task.id, attempt_token=request.attempt_token, session_key=session_key
            )
            if await self._deps.report(record_launch, f"the launch of {task.id}") is None:
                log.info("killing a process that was started for an ended attempt of task %s", task.id)
                return None
            self._running[running] = None
            self._all_ended.clear()
            self._wakeup.set()
            body = rules.encode_spawn_request(full_task, *self._deps.task_inputs(full_task, decrypted=True))
            assert process.stdin is not None
            process.stdin.write(body)
            process.stdin.close()
            return running
        finally:
            if running not in self._running:
                await self._kill(running)

    async def _spawn(self, config: ProcessLauncherConfig, token: str) -> Process:
        deps = self._deps
        environment = rules.build_environment(config.environment, deps.environment, token, deps.server_url)
        await self._reaper.start()
        try:
            process = await asyncio.create_subprocess_exec(
                *config.command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=STDOUT,
                cwd=config.cwd,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchFailed(f"the launcher's command cannot be started ({error.strerror})") from None
        self._reaper.watch(process.pid, config.grace_seconds)
        return process

    async def supervise(self, running: RunningProcess) -> None:
        """Wait until the process has ended or must end, kill the rest of its process group, and report the outcome."""
        output_task = asyncio.create_task(self._read_output(running), name=f"output of {running.request.task.id}")
        try:
            await self._wait_for_end(running)
            await self._kill(running)
            await wait_at_most(OUTPUT_SECONDS, asyncio.shield(output_task))
            await self._report(running)
        finally:
            output_task.cancel()
            await asyncio.wait({output_task})
            if running.process.returncode is None:
                _signal(running, signal.SIGKILL)
            self._running.pop(running, None)
            if not self._running:
                self._all_ended.set()

    async def _wait_for_end(self, running: RunningProcess) -> None:
        exit_task = asyncio.create_task(running.process.wait(), name=f"exit of {running.request.task.id}")
        end_request_task = asyncio.create_task(
            running.end_requested.wait(), name=f"end of the attempt of {running.request.task.id}"
        )
        try:
            seconds = running.config.timeout_seconds
            done, _ = await asyncio.wait(
                {exit_task, end_request_task}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                log.warning("the process of task %s did not end within %g s", running.request.task.id, seconds or 0)
        finally:
            for task in (exit_task, end_request_task):
                task.cancel()
            await asyncio.wait({exit_task, end_request_task})

    async def _kill(self, running: RunningProcess) -> None:
        """End the process, if it is running, and its process group."""
        if running.process.returncode is None:
            _signal(running, signal.SIGTERM)
            await wait_at_most(running.config.grace_seconds, running.process.wait())
        _signal(running, signal.SIGKILL)
        await running.process.wait()
        self._reaper.unwatch(running.process.pid)

    @staticmethod
    async def _read_output(running: RunningProcess) -> None:
        stream = running.process.stdout
        assert stream is not None
        while chunk := await stream.read(CHUNK_BYTES):
            running.output += chunk
            if len(running.output) > 2 * TAIL_BYTES:
                del running.output[:-TAIL_BYTES]

    async def _report(self, running: RunningProcess) -> None:
        task, code = running.request.task, running.process.returncode
        subject = f"the process of {task.id}"
        if running.is_released:
            release = Release(zone_id=task.zone_id, id=task.id, attempt_token=running.request.attempt_token)
            await self._deps.report(release, subject)
            return
        if running.end_reason is not None:
            log.info("%s was killed: its attempt has ended (%s)", subject, running.end_reason)
            return
        # If the process has completed or failed its task itself, this report is refused.
        tail = rules.output_tail(bytes(running.output[-TAIL_BYTES:]))
        fail = Fail(
            zone_id=task.zone_id,
            id=task.id,
            attempt_token=running.request.attempt_token,
            error=f"The process ended with {_describe_exit(code)} before it completed the task.",
            stack_trace=await self._deps.redact(task, tail, running.agent_token) if tail else None,
            retryable=True,
            jitter=random.random(),
        )
        await self._deps.report(fail, subject)

    # -- watch task ----------------------------------------------------------------------------------------------

    def start_watching(self) -> None:
        self._watch_task = asyncio.get_running_loop().create_task(self._watch(), name="processes")

    async def stop(self) -> None:
        """End all processes, and return when they have ended."""
        for running in [*self._running]:
            running.is_released = True
            running.request_end("the server is stopping")
        try:
            if self._running:
                await self._all_ended.wait()
        finally:
            if self._watch_task is not None:
                self._watch_task.cancel()
                await asyncio.wait({self._watch_task})
            await self._reaper.stop()

    async def _watch(self) -> None:
        with self._deps.wakeups.subscribed(self._wakeup.set):
            while True:
                await self._wait_for_wakeup()
                try:
                    await self._check_attempts()
                    await self._send_heartbeats()
                except (StoreError, Problem) as error:
                    # The database is unavailable. The processes continue; the next pass checks them again.
                    log.debug("cannot check processes: %r", error)
                except Exception:
                    # Any exception: without the watch task, processes would outlive their attempts.
                    log.exception("checking processes failed")
                await asyncio.sleep(GAP_SECONDS)

    async def _wait_for_wakeup(self) -> None:
        now = asyncio.get_running_loop().time()
        due_at = min((running.next_heartbeat_at for running in self._running), default=None)
        pause_seconds = None if due_at is None else max(0.0, min(CHECK_SECONDS, due_at - now))
        await wait_at_most(pause_seconds, self._wakeup.wait())
        self._wakeup.clear()

    async def _check_attempts(self) -> None:
        watched = [running for running in self._running if running.end_reason is None]
        if not watched:
            return
        refs = [running.request.ref for running in watched]
        tasks = await self._deps.cross_zone_engine.read(lambda tx: coordinator_queries.load_tasks(tx, refs))
        now = asyncio.get_running_loop().time()
        for running in watched:
            task = tasks.get(running.request.ref)
            if (reason := _end_reason(task, running.request)) is not None:
                running.request_end(reason)
            elif task is not None and task.status is State.COMPLETED:
                running.completed_at = running.completed_at or now
                if now - running.completed_at >= running.config.grace_seconds:
                    running.request_end("completed")

    async def _send_heartbeats(self) -> None:
        now = asyncio.get_running_loop().time()
        due = [running for running in self._running if running.end_reason is None and running.next_heartbeat_at <= now]
        for running in due:
            running.next_heartbeat_at = now + running.request.heartbeat_seconds
        agents = {
            (running.request.task.zone_id, running.request.task.agent_id or ""): running.request.task.id
            for running in due
        }
        heartbeats = [
            RecordHeartbeat(zone_id=zone_id, agent_id=agent_id, current_task_id=task_id)
            for (zone_id, agent_id), task_id in sorted(agents.items())
        ]
        for outcome in await asyncio.gather(*map(self._deps.send_heartbeat, heartbeats), return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.debug("could not send the heartbeat of an agent: %r", outcome)


def _end_reason(task: Task | None, request: LaunchRequest) -> str | None:
    """Why the process must end now, or None. After its task is completed, it still has a grace period to exit."""
    if task is None:
        return "the task was deleted"
    if task.attempt_token == request.task.attempt_token and (task.status in HELD or task.status is State.COMPLETED):
        return None
    return str(task.reason or task.status)


def _signal(running: RunningProcess, signal_number: signal.Signals) -> None:
    """Signal the process group, whose id is the pid of its first process.

    The kernel does not reuse the pid while a process of the group exists, and afterwards only when pids wrap around.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(running.process.pid, signal_number)


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {-code}"
    return f"exit code {code}"
