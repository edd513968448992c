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
from quarterdeck.domain.agents.model import HeartbeatResult, RecordHeartbeat
from quarterdeck.domain.tasks.error_redaction import redactors_for
from quarterdeck.domain.tasks.model.commands import TaskCommand, TaskResult
from quarterdeck.domain.tasks.model.rows import TABLE, FullTask, Task
from quarterdeck.domain.tasks.operations.reads import TaskLookup
from quarterdeck.engine.background import retry_while_unavailable
from quarterdeck.engine.outbound_http import OutboundClient
from quarterdeck.engine.secrets import FieldCipher
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakeups

log = logging.getLogger("quarterdeck.launching")
REPORT_RETRY = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=5_000)
REPORT_SECONDS = 120.0
"""For how long it is tried to say what became of a launch; after that it is found by its time."""


class LaunchFailed(Exception):
    """Nothing was started. Its text is told to whoever looks at the task."""


@dataclass(frozen=True, slots=True)
class AgentTokenSpec:
    """Whom a token speaks for, and for how long."""

    zone_id: str
    agent_id: str
    attempt_token: str
    seconds: int
    agent_registered_at: Millis
    """The registration of the agent that it is for."""


@dataclass(frozen=True, slots=True)
class LauncherDeps:
    """What it acts through."""

    cross_zone_engine: Engine
    wakeups: Wakeups
    submit: Callable[[TaskCommand], Awaitable[TaskResult]]
    read_task: Callable[[TaskLookup], Awaitable[FullTask]]
    send_heartbeat: Callable[[RecordHeartbeat], Awaitable[HeartbeatResult]]
    cipher: FieldCipher
    mint_token: Callable[[AgentTokenSpec], str]
    http_client: OutboundClient
    environment: Mapping[str, str]
    """The server's own."""
    server_url: str | None
    """Where this server is reached from this machine."""

    async def report(self, command: TaskCommand, name: str) -> TaskResult | None:
        """Says what became of a launch until it is heard; None if it counts no more, or nobody could be told."""
        deadline = asyncio.get_running_loop().time() + REPORT_SECONDS
        try:
            return await retry_while_unavailable(lambda: self.submit(command), deadline, REPORT_RETRY)
        except Unavailable as error:
            log.warning("what became of %s could not be reported: %r", name, error)
        except Problem as problem:
            log.debug("what became of %s counts no more: %r", name, problem)
        return None

    def task_inputs(self, full_task: FullTask, *, decrypted: bool) -> tuple[str, str]:
        """Input and checkpoint of a task, in the clear or masked."""
        task, content = full_task.task, full_task.content
        if not decrypted:
            return self.cipher.mask(content.input_context), self.cipher.mask(content.checkpoint_data)
        secret_context = (task.zone_id, TABLE, task.id)
        return (
            self.cipher.decrypt(content.input_context, (*secret_context, "input_context")),
            self.cipher.decrypt(content.checkpoint_data, (*secret_context, "checkpoint_data")),
        )

    async def redact(self, task: Task, text: str, *tokens: str) -> str:
        """A text without the secrets of its task, and without the tokens that were made for it."""
        [redactor] = await redactors_for(self.read_task, self.cipher, [TaskLookup(task.zone_id, task.id)])
        return redact_text(redactor(text), {*tokens, task.attempt_token or ""})


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A task that was assigned, and how a session is started for it."""

    task: Task
    launcher: str
    heartbeat_seconds: float
    """How often its agent is to be heard of."""
    agent_registered_at: Millis
    """When its agent was registered."""

    @property
    def ref(self) -> tuple[str, str]:
        return self.task.zone_id, self.task.id

    @property
    def attempt_token(self) -> str:
        return self.task.attempt_token or ""
