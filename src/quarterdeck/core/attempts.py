"""Attempts: each has a token, and only reports with the token of the latest attempt are accepted.

A worker may be frozen, lose its lease and report after another worker has started. Its token is then no longer the one
in the row.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol


class AttemptRow(Protocol):
    @property
    def status(self) -> str: ...
    @property
    def attempt_token(self) -> str | None: ...


def is_latest_attempt(row: AttemptRow, token: str | None, states: Container[str]) -> bool:
    """Whether the token is that of the row's latest attempt and the row is in one of the states.

    With the states in which an attempt is held, this accepts a report. With the state in which a report ends the
    attempt, it recognises a repeat of that report.
    """
    return token is not None and token == row.attempt_token and row.status in states
