"""What launching acts through, and what it is asked."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem, Unavailable
from quarterdeck.core.redaction import redact_text
from quarterdeck.core.retry import Policy
from quarterdeck.domain.agents.model import Beat, Beaten
from quarterdeck.domain.tasks.error_redaction import strikes
from quarterdeck.domain.tasks.model.commands import Command, Outcome
from quarterdeck.domain.tasks.model.rows import TABLE, Task, Whole
from quarterdeck.domain.tasks.operations.reads import TaskRef
from quarterdeck.engine.background import until_heard
from quarterdeck.engine.outbound_http import Outward
from quarterdeck.engine.secrets import Safe
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakes

log = logging.getLogger("quarterdeck.launching")
REPORT = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=5_000)
REPORT_SECONDS = 120.0
"""For how long it is tried to say what became of a launch; after that it is found by its time."""


class LaunchFailed(Exception):
    """Nothing was started. Its text is told to whoever looks at the task."""


@dataclass(frozen=True, slots=True)
class Mandate:
    """Whom a token speaks for, and for how long."""

    zone_id: str
    agent_id: str
    attempt_token: str
    seconds: int
    agent_since: Millis
    """The registration of the agent that it is for."""


@dataclass(frozen=True, slots=True)
class Means:
    """What it acts through."""

    everywhere: Engine
    wakes: Wakes
    submit: Callable[[Command], Awaitable[Outcome]]
    show: Callable[[TaskRef], Awaitable[Whole]]
    beat: Callable[[Beat], Awaitable[Beaten]]
    safe: Safe
    mint: Callable[[Mandate], str]
    outward: Outward
    environment: Mapping[str, str]
    """The server's own."""
    server: str | None
    """Where this server is reached from this machine."""

    async def report(self, ask: Command, name: str) -> Outcome | None:
        """Says what became of a launch until it is heard; None if it counts no more, or nobody could be told."""
        until = asyncio.get_running_loop().time() + REPORT_SECONDS
        try:
            return await until_heard(lambda: self.submit(ask), until, REPORT)
        except Unavailable as away:
            log.warning("what became of %s could not be reported: %r", name, away)
        except Problem as late:
            log.debug("what became of %s counts no more: %r", name, late)
        return None

    def opened(self, whole: Whole, *, clear: bool) -> tuple[str, str]:
        """Input and checkpoint of a task, in the clear or masked."""
        row, said = whole.task, whole.content
        if not clear:
            return self.safe.masked(said.input_context), self.safe.masked(said.checkpoint_data)
        about = (row.zone_id, TABLE, row.id)
        return (
            self.safe.open(said.input_context, (*about, "input_context")),
            self.safe.open(said.checkpoint_data, (*about, "checkpoint_data")),
        )

    async def struck(self, task: Task, text: str, *tokens: str) -> str:
        """A text without the secrets of its task, and without the tokens that were made for it."""
        [strike] = await strikes(self.show, self.safe, [TaskRef(task.zone_id, task.id)])
        return redact_text(strike(text), {*tokens, task.attempt_token or ""})


@dataclass(frozen=True, slots=True)
class Start:
    """A task that was assigned, and how a session is started for it."""

    task: Task
    launcher: str
    beat_seconds: float
    """How often its agent is to be heard of."""
    agent_since: Millis
    """When its agent was registered."""

    @property
    def ref(self) -> tuple[str, str]:
        return self.task.zone_id, self.task.id

    @property
    def token(self) -> str:
        return self.task.attempt_token or ""
