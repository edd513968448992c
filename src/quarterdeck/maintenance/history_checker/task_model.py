"""Task calls, events and rows. Calls and events use the field names of the API."""

from __future__ import annotations

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.engine.event_log import Event

NO_CHECKPOINT = msgspec.Raw(b"{}")


class TaskRequest(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a request about a task that an invariant needs, besides its id."""

    attempt_token: str | None = None
    claim_id: str | None = None
    agent_id: str | None = None
    current_step: str | None = None
    checkpoint_data: msgspec.Raw = msgspec.Raw(b"null")

    @property
    def has_checkpoint(self) -> bool:
        """Whether the request saves a checkpoint for the next attempt."""
        return bytes(self.checkpoint_data) != b"null"


class TaskLease(msgspec.Struct, frozen=True, rename="camel"):
    """A task that a claim returned."""

    id: str
    attempt: int
    attempt_token: str
    checkpoint_data: msgspec.Raw = NO_CHECKPOINT


class TaskResponse(msgspec.Struct, frozen=True, rename="camel"):
    tasks: list[TaskLease] = []


EMPTY_TASK_RESPONSE = TaskResponse()


class TaskCallData(msgspec.Struct, frozen=True):
    """The parts of a call that are specific to tasks."""

    request: TaskRequest = TaskRequest()
    optional_response: TaskResponse | None = None

    @property
    def leases(self) -> list[TaskLease]:
        return (self.optional_response or EMPTY_TASK_RESPONSE).tasks


# -- rows --------------------------------------------------------------------------------------------------------


class TaskRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    zone_id: str
    id: str
    status: str
    attempt: int
    final: int
    waits_for: int
    dependents_pending: int
    available_at: Millis
    timeout_at: Millis | None
    updated_at: Millis
    on_dependency_failure: str
    agent_id: str | None
    agent_status: str | None
    """The status of the agent that holds the task or held it last."""
    agent_stale_at: Millis | None
    """When that agent becomes stale if it sends no other heartbeat."""


class DependencyRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    zone_id: str
    task_id: str
    depends_on: str


# -- event log ---------------------------------------------------------------------------------------------------


class TaskEventData(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a task event's data that an invariant needs."""

    attempt: int
    agent_id: str | None = None
    final: bool = False
    reason: str | None = None
    progress_percent: int | None = None
    current_step: str | None = None


_decode = msgspec.json.Decoder(TaskEventData).decode


def decode_task_event_data(event: Event) -> TaskEventData | None:
    """The decoded data, or None if it is malformed."""
    try:
        return _decode(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
