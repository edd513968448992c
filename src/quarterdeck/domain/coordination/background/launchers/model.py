"""Types of launchers: dependencies, launch requests, tokens."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Problem, Unavailable
from quarterdeck.core.redaction import redact_text
from quarterdeck.core.retry import Policy
from quarterdeck.domain.agents.model import HeartbeatResult, MintAgentToken, RecordHeartbeat
from quarterdeck.domain.tasks.model.commands import TaskUpdate
from quarterdeck.domain.tasks.model.rows import TABLE, FullTask, Task
from quarterdeck.domain.tasks.operations.batch import SubmitTaskCommand
from quarterdeck.domain.tasks.operations.error_redaction import load_redactors
from quarterdeck.domain.tasks.operations.reads import TaskLookup
from quarterdeck.engine.background import retry_while_unavailable
from quarterdeck.engine.outbound_http import OutboundClient
from quarterdeck.engine.secrets import FieldCipher
from quarterdeck.engine.transaction import Engine
from quarterdeck.engine.wakeups import Wakeups

log = logging.getLogger("quarterdeck.launching")
REPORT_RETRY = Policy(max_attempts=0, base_ms=50, multiplier=2.0, cap_ms=5_000)
REPORT_SECONDS = 120.0
"""How long a report is retried. After that, the coordinator's recovery ends the attempt."""


class LaunchFailed(Exception):
    """Nothing was started. The message becomes part of the task's `lastError`."""


@dataclass(frozen=True, slots=True)
class LauncherDeps:
    cross_zone_engine: Engine
    wakeups: Wakeups
    submit: SubmitTaskCommand
    read_task: Callable[[TaskLookup], Awaitable[FullTask]]
    send_heartbeat: Callable[[RecordHeartbeat], Awaitable[HeartbeatResult]]
    cipher: FieldCipher
    mint_token: MintAgentToken
    http_client: OutboundClient
    environment: Mapping[str, str]
    """The environment of the server process."""
    server_url: str | None
    """The URL of this server on this machine."""

    async def report(self, command: TaskUpdate, subject: str) -> Task | None:
        """Submit a report, and retry while the database is unavailable. None if it was refused or could not be sent.

        `subject` names what the report is about, for the log.
        """
        deadline = asyncio.get_running_loop().time() + REPORT_SECONDS
        try:
            return await retry_while_unavailable(lambda: self.submit(command), deadline, REPORT_RETRY)
        except Unavailable as error:
            log.warning("could not report %s: %r", subject, error)
        except Problem as problem:
            log.debug("the report of %s was refused: %r", subject, problem)
        return None

    def task_inputs(self, full_task: FullTask, *, decrypted: bool) -> tuple[str, str]:
        """Return the input and the checkpoint of a task, with secrets decrypted or masked."""
        task, content = full_task.task, full_task.content
        if not decrypted:
            return self.cipher.mask(content.input_context), self.cipher.mask(content.checkpoint_data)
        row_ref = (task.zone_id, TABLE, task.id)
        return (
            self.cipher.decrypt(content.input_context, (*row_ref, "input_context")),
            self.cipher.decrypt(content.checkpoint_data, (*row_ref, "checkpoint_data")),
        )

    async def redact(self, task: Task, text: str, *tokens: str) -> str:
        """Redact the secrets of the task, and the tokens issued for it, in `text`."""
        [redactor] = await load_redactors(self.read_task, self.cipher, [TaskLookup(task.zone_id, task.id)])
        return redact_text(redactor(text), {*tokens, task.attempt_token or ""})


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """An assigned task and the launcher that starts a session for it."""

    task: Task
    launcher: str
    heartbeat_seconds: float
    """Interval of the agent's heartbeats."""
    agent_registered_at: Millis

    @property
    def ref(self) -> tuple[str, str]:
        return self.task.zone_id, self.task.id

    @property
    def attempt_token(self) -> str:
        return self.task.attempt_token or ""
