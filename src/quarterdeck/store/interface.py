"""The interface of both engines, and the three types of failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Literal, Protocol, TypeVar

import msgspec

from quarterdeck.store.sql import BoundStatement

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
Row = tuple[object, ...]


class StoreError(Exception):
    """`code` is the engine's (an SQLSTATE, or SQLite's error name): for logs and tests, never shown to callers."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class ContentError(StoreError):
    """A value is invalid, or a constraint is violated. The same content fails again; other commands may succeed."""


class TransientError(StoreError):
    """Nothing was written. The same content may succeed on a retry."""


class CommitUnknown(TransientError):
    """The connection was lost after COMMIT was sent and before its result arrived."""


class StoreTransaction(Protocol):
    """What a function may do inside a transaction."""

    async def read(self, *statements: BoundStatement) -> list[list[Row]]:
        """Send the queued statements and these, in order, in one round trip. Return the rows of each of these."""

    def write(self, statement: BoundStatement) -> None:
        """Queue a statement whose rows are not needed. It is sent with the next read or with COMMIT."""


StoreWork = Callable[[StoreTransaction], Awaitable[T]]


class Store(Protocol):
    kind: Literal["sqlite", "postgresql"]

    async def transact(self, work: StoreWork[T], key: int | None = None, zones: Collection[str] = ()) -> T:
        """Run a function in one durable transaction.

        `key` marks the transaction for `wait_until_ended(key)`. `zones` are the zones that its callers were
        authenticated for; row-level security hides the rows of all others.
        """

    async def read(self, work: StoreWork[T], zones: Collection[str] = (), *, for_writer: bool = False) -> T:
        """Run a function that only reads, under the same row-level security.

        Readers may use only a part of the connections, so that writers find a free one. `for_writer` lifts that limit.
        """

    async def wait_until_ended(self, key: int) -> None:
        """Return once no transaction with this key is running on the database."""

    async def ping(self) -> None:
        """Raises `TransientError` while the database is not reachable."""

    async def close(self) -> None: ...


def decode(rows: Sequence[Row], row_type: type[S]) -> list[S]:
    """Convert rows to `array_like` structs, whose fields are in the order of the select list."""
    return msgspec.convert(rows, list[row_type])  # type: ignore[valid-type]  # mypy rejects a type made from a value
