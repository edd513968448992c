"""What is written down, told and stored of tasks. Calls and events have the names of the wire, which are the seed's."""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.engine.event_log import Event

NO_CHECKPOINT = msgspec.Raw(b"{}")


class TaskRequest(msgspec.Struct, frozen=True, rename="camel"):
    """Of what was asked about a task, what a promise needs beside its id."""

    attempt_token: str | None = None
    claim_id: str | None = None
    agent_id: str | None = None
    current_step: str | None = None
    checkpoint_data: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def has_checkpoint(self) -> bool:
        """Whether it leaves something for the next attempt."""
        return bytes(self.checkpoint_data) != b"null"


class TaskLease(msgspec.Struct, frozen=True, rename="camel"):
    """A task that was given to an agent."""

    id: str
    attempt: int
    attempt_token: str
    checkpoint_data: msgspec.Raw = NO_CHECKPOINT


class TaskResponse(msgspec.Struct, frozen=True, rename="camel"):
    tasks: list[TaskLease] = []


EMPTY_TASK_RESPONSE = TaskResponse()


class TaskCallData(msgspec.Struct, frozen=True):
    """What one call about tasks asked and was answered, beside what every call has."""

    request: TaskRequest = TaskRequest()
    optional_response: TaskResponse | None = None

    @property
    def leases(self) -> list[TaskLease]:
        return (self.optional_response or EMPTY_TASK_RESPONSE).tasks


# -- what the tables hold ----------------------------------------------------------------------------------------


class TaskRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    zone_id: str
    id: str
    status: str
    attempt: int
    final: int
    waits: int
    spreads: int
    available_at: Millis
    timeout_at: Millis | None
    updated_at: Millis
    on_dependency_failure: str
    agent_id: str | None
    agent_status: str | None
    """Of the agent that has it, or had it last."""
    agent_silent_from: Millis | None
    """When that agent will have been silent for too long."""


class DependencyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    zone_id: str
    task_id: str
    depends_on: str


# -- the log -----------------------------------------------------------------------------------------------------


class TaskEventData(msgspec.Struct, frozen=True, rename="camel"):
    """Of a task's event, what a promise needs."""

    attempt: int
    agent_id: str | None = None
    final: bool = False
    reason: str | None = None
    progress_percent: int | None = None
    current_step: str | None = None


_decode = msgspec.json.Decoder(TaskEventData).decode


def decode_task_event_data(event: Event) -> TaskEventData | None:
    """None where the data cannot be read as what such an event says."""
    try:
        return _decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
