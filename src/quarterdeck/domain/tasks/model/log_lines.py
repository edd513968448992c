"""New lines of task logs. `domain.task_logs` has the other types of the log."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Level(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARN = "WARN"
    ERROR = "ERROR"
    CRITICAL = "CRITICAL"


class NewLogLine(msgspec.Struct, frozen=True):
    """A line to add. Secret-like values are already redacted; `LogWriter` also redacts the secrets of the task."""

    id: str
    """Generated before the batch, so that a retried batch recognises lines that are already stored."""
    level: Level
    event: str
    message: str | None
    details: str
    stack_trace: str | None

    @property
    def size(self) -> int:
        return sum(len(text.encode()) for text in (self.message, self.details, self.stack_trace) if text)
