"""The hand-written part of the response types: properties, methods, pages, and the problem of an item.

`tools/generate_sdk_types.py` generates the fields (`types.py`, `work_types.py`) from the server's routes.
"""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from quarterdeck.core.errors import Unavailable

T = TypeVar("T")
FINAL_STATUSES = frozenset({"succeeded", "failed", "timed_out", "canceled", "dead"})
"""Statuses of an invocation that has ended."""
COMPLETED_STATUSES = frozenset({"COMPLETED", "ARCHIVED"})
BULK_MAX = 100
"""The maximum number of invocations that a worker may name in one call."""


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list."""

    items: list[T]
    next_cursor: str | None = None


class WorkPage(msgspec.Struct, Generic[T], frozen=True, rename="camel"):
    """One page of a work-plane list."""

    items: list[T]
    next_cursor: str | None = None


class Items(msgspec.Struct, Generic[T], frozen=True):
    """A complete list."""

    items: list[T]


class ItemProblem(msgspec.Struct, frozen=True):
    """Why one item of a bulk call was refused."""

    error: str = "unknown"
    detail: str = ""
    status: int | None = None

    @property
    def is_temporary(self) -> bool:
        """Whether the problem is temporary: nothing was decided, and the item can be sent again."""
        return self.status == Unavailable.status


class SessionMixin:
    __slots__ = ()
    status: str

    @property
    def is_live(self) -> bool:
        return self.status != "terminated"


class InvocationMixin:
    __slots__ = ()
    status: str
    result: object

    @property
    def is_over(self) -> bool:
        return self.status in FINAL_STATUSES

    def result_as(self, kind: type[T]) -> T:
        """The result, converted to this type. Raises `msgspec.ValidationError` if it does not match."""
        return msgspec.convert(self.result, kind)


class TaskMixin:
    __slots__ = ()
    status: str
    is_final: bool
    output_result: object

    @property
    def is_over(self) -> bool:
        """Whether the task has ended for good. A FAILED or ABORTED task may still be retried automatically."""
        return self.status in COMPLETED_STATUSES or self.is_final

    def result_as(self, kind: type[T]) -> T:
        """The result, converted to this type. Raises `msgspec.ValidationError` if it does not match."""
        return msgspec.convert(self.output_result, kind)
