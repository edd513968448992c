"""Sessions that are processes of this machine: their beginning, pulse, last words and end.

Each has a session and a group of its own, so that whatever it starts ends with it. What it says, on its standard output
or beside it, is read all the time, or it would stand still when the pipe is full; only the end of it is kept.

One keeper looks after all of them: woken by commits, and at the pulse of their agents, it asks in one statement which
of their attempts are over, and beats for the agents of the others.
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
from quarterdeck.domain.agents.model import Beat
from quarterdeck.domain.coordination.launchers.model import LaunchFailed, Mandate, Means, Start
from quarterdeck.domain.coordination.launchers.orphan_reaper_client import Guard
from quarterdeck.domain.coordination.model import ProcessLauncher
from quarterdeck.domain.coordination.rules import launch_payload as rules
from quarterdeck.domain.tasks.model.commands import Fail, Launched, Release
from quarterdeck.domain.tasks.model.rows import State, Task, Whole
from quarterdeck.domain.tasks.operations import coordinator_queries
from quarterdeck.domain.tasks.rules.states import HELD
from quarterdeck.store.interface import StoreError

log = logging.getLogger("quarterdeck.launching")
TOKEN_SECONDS = 24 * 3600
"""For a token, where the task says nothing of how long it may take."""
TOKEN_MARGIN = 600
LOOK_SECONDS = 10.0
GAP_SECONDS = 0.25
"""Between two looks of the keeper: by itself at most, and at least, however often it is woken."""
TAIL_BYTES = 4 * rules.TAIL_MAX
"""A character has up to four."""
CHUNK = 64 * 1024
REST_SECONDS = 1.0
"""After its end, for what it has said and nobody has read."""


@dataclass(slots=True, eq=False)
class Running:
    """A process that was started for an attempt."""

    ask: Start
    launcher: ProcessLauncher
    process: Process
    secret: str
    """The token it was given."""
    beat_at: float
    said: bytearray = field(default_factory=bytearray)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """It is to end, whatever it is doing."""
    why: str | None = None
    """Why it was ended, if it was: then there is nothing to report."""
    done_at: float | None = None
    """When its task was seen to be completed: it may still put its things in order."""
    is_given_back: bool = False
    """The server stops: the attempt does not count."""

    def end(self, why: str) -> None:
        if self.why is None:
            self.why = why
        self.over.set()


class Processes:
    def __init__(self, means: Means) -> None:
        self._means = means
        self._running: dict[Running, None] = {}
        self._stir = asyncio.Event()
        self._none_left = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._guard = Guard()

    # -- a process's life ----------------------------------------------------------------------------------------

    async def start(self, launcher: ProcessLauncher, ask: Start, whole: Whole) -> Running | None:
        """Starts a process, which learns of its task when the launch has been written down; None if it was refused."""
        row = ask.task
        assert row.agent_id is not None
        seconds = (row.timeout_seconds or TOKEN_SECONDS) + TOKEN_MARGIN
        token = self._means.mint(Mandate(row.zone_id, row.agent_id, ask.token, seconds, ask.agent_since))
        process = await self._execute(launcher, token)
        now = asyncio.get_running_loop().time()
        running = Running(ask, launcher, process, token, now + ask.beat_seconds)
        try:
            key = f"process:{process.pid}:{row.id}:{row.attempt}"[: rules.KEY_MAX]
            launched = Launched(zone_id=row.zone_id, id=row.id, token=ask.token, session_key=key)
            if await self._means.report(launched, f"the launch of {row.id}") is None:
                log.info("a process was started for an attempt of %s that is over, and is ended", row.id)
                return None
            self._running[running] = None
            self._none_left.clear()
            self._stir.set()
            body = rules.told(whole, *self._means.opened(whole, clear=True))
            assert process.stdin is not None
            process.stdin.write(body)
            process.stdin.close()
            return running
        finally:
            if running not in self._running:
                await self._finish(running)

    async def _execute(self, launcher: ProcessLauncher, token: str) -> Process:
        means = self._means
        seen = rules.environment(launcher.environment, means.environment, token, means.server)
        await self._guard.begin()
        try:
            process = await asyncio.create_subprocess_exec(
                *launcher.command,
                stdin=PIPE,
                stdout=PIPE,
                stderr=STDOUT,
                cwd=launcher.cwd,
                env=seen,
                start_new_session=True,
            )
        except OSError as error:
            raise LaunchFailed(f"its command cannot be started ({error.strerror})") from None
        self._guard.watch(process.pid, launcher.grace_seconds)
        return process

    async def see_through(self, running: Running) -> None:
        """Until it has ended, by itself or because it had to; and what there is to say of it has been said."""
        reading = asyncio.create_task(self._read(running), name=f"what {running.ask.task.id} says")
        try:
            await self._until_it_ends(running)
            await self._finish(running)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REST_SECONDS):
                    await asyncio.shield(reading)
            await self._report(running)
        finally:
            reading.cancel()
            await asyncio.wait({reading})
            if running.process.returncode is None:
                _signal(running, signal.SIGKILL)
            self._running.pop(running, None)
            if not self._running:
                self._none_left.set()

    async def _until_it_ends(self, running: Running) -> None:
        ended = asyncio.create_task(running.process.wait(), name=f"the end of {running.ask.task.id}")
        over = asyncio.create_task(running.over.wait(), name=f"the end of the attempt of {running.ask.task.id}")
        try:
            seconds = running.launcher.timeout_seconds
            done, _ = await asyncio.wait({ended, over}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                log.warning("the process of %s did not end within %g s", running.ask.task.id, seconds or 0)
        finally:
            for task in (ended, over):
                task.cancel()
            await asyncio.wait({ended, over})

    async def _finish(self, running: Running) -> None:
        """Ends it, if it has not ended, and whatever it has left behind."""
        if running.process.returncode is None:
            _signal(running, signal.SIGTERM)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(running.launcher.grace_seconds):
                    await running.process.wait()
        _signal(running, signal.SIGKILL)
        await running.process.wait()
        self._guard.forget(running.process.pid)

    @staticmethod
    async def _read(running: Running) -> None:
        stream = running.process.stdout
        assert stream is not None
        while said := await stream.read(CHUNK):
            running.said += said
            if len(running.said) > 2 * TAIL_BYTES:
                del running.said[:-TAIL_BYTES]

    async def _report(self, running: Running) -> None:
        row, code = running.ask.task, running.process.returncode
        name = f"the process of {row.id}"
        if running.is_given_back:
            release = Release(zone_id=row.zone_id, id=row.id, token=running.ask.token)
            await self._means.report(release, name)
            return
        if running.why is not None:
            log.info("%s was ended: its attempt is over (%s)", name, running.why)
            return
        # If it has completed its task, or failed it itself, this counts no more.
        words = rules.last_words(bytes(running.said[-TAIL_BYTES:]))
        fail = Fail(
            zone_id=row.zone_id,
            id=row.id,
            token=running.ask.token,
            error=f"The process ended with {_ending(code)} and had not completed its task.",
            stack_trace=await self._means.struck(row, words, running.secret) if words else None,
            retryable=True,
            chance=random.random(),
        )
        await self._means.report(fail, name)

    # -- the keeper ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="processes")

    async def stop(self) -> None:
        """Returns when all have ended."""
        for running in [*self._running]:
            running.is_given_back = True
            running.end("the server stops")
        try:
            if self._running:
                await self._none_left.wait()
        finally:
            if self._keeping is not None:
                self._keeping.cancel()
                await asyncio.wait({self._keeping})
            await self._guard.stop()

    async def _keep(self) -> None:
        unsubscribe = self._means.wakes.subscribe(self._stir.set)
        try:
            while True:
                await self._rest()
                try:
                    await self._look()
                    await self._beat()
                except (StoreError, Problem) as error:
                    # The database is away. The processes go on, and so does whoever beats for them when it is back.
                    log.debug("cannot look after processes: %r", error)
                except Exception:
                    # So broad because without a keeper no attempt that is over would end its process.
                    log.exception("looking after processes failed")
                await asyncio.sleep(GAP_SECONDS)
        finally:
            unsubscribe()

    async def _rest(self) -> None:
        now = asyncio.get_running_loop().time()
        due = min((running.beat_at for running in self._running), default=None)
        pause = None if due is None else max(0.0, min(LOOK_SECONDS, due - now))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._stir.wait()
        self._stir.clear()

    async def _look(self) -> None:
        watched = [running for running in self._running if running.why is None]
        if not watched:
            return
        refs = [running.ask.ref for running in watched]
        rows = await self._means.everywhere.read(lambda tx: coordinator_queries.named(tx, refs))
        now = asyncio.get_running_loop().time()
        for running in watched:
            row = rows.get(running.ask.ref)
            if (why := _over(row, running.ask)) is not None:
                running.end(why)
            elif row is not None and row.status is State.COMPLETED:
                running.done_at = running.done_at or now
                if now - running.done_at >= running.launcher.grace_seconds:
                    running.end("completed")

    async def _beat(self) -> None:
        now = asyncio.get_running_loop().time()
        due = [running for running in self._running if running.why is None and running.beat_at <= now]
        for running in due:
            running.beat_at = now + running.ask.beat_seconds
        agents = {(each.ask.task.zone_id, each.ask.task.agent_id or ""): each.ask.task.id for each in due}
        beats = [
            Beat(zone_id=zone_id, agent_id=agent_id, current_task_id=task_id)
            for (zone_id, agent_id), task_id in sorted(agents.items())
        ]
        for outcome in await asyncio.gather(*map(self._means.beat, beats), return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.debug("an agent could not be beaten for: %r", outcome)


def _over(row: Task | None, ask: Start) -> str | None:
    """Why an attempt is over, if it is. One that has completed its task has its grace to end by itself."""
    if row is None:
        return "the task is gone"
    if row.attempt_token == ask.task.attempt_token and (row.status in HELD or row.status is State.COMPLETED):
        return None
    return str(row.reason or row.status)


def _signal(running: Running, number: signal.Signals) -> None:
    """To the whole group, which has the number of the process that it began with. A number is not given out again while
    anybody of its group lives, and afterwards only when all others have had their turn."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(running.process.pid, number)


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {-code}"
    return f"exit code {code}"
