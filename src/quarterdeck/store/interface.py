"""The interface that both engines implement, and the types of failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Literal, Protocol, TypeVar

import msgspec

from quarterdeck.store.sql import BoundStatement

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
Row = tuple[object, ...]


class StoreError(Exception):
    """A failure of the database or its configuration.

    `code` is for logs and tests and is never sent to a caller. It is an SQLSTATE, SQLite's error name, or a word that
    this package defines, such as "role".
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class ContentError(StoreError):
    """A value is invalid, or a constraint is violated. The same values fail again; other commands may succeed."""


class TransientError(StoreError):
    """The same statements may succeed on a retry. Nothing was written, unless the error is a `CommitUnknown`."""


class CommitUnknown(TransientError):
    """The connection was lost during COMMIT, so the transaction may or may not have been committed."""


class StoreTransaction(Protocol):
    """An open transaction, as `Store` passes it to a function."""

    async def read(self, *statements: BoundStatement) -> list[list[Row]]:
        """Send the queued statements, then `statements`, in one round trip. Return the rows of each of `statements`."""

    def write(self, statement: BoundStatement) -> None:
        """Queue a statement whose rows are not needed. It is sent with the next read or with COMMIT. SQLite runs it
        immediately."""


StoreWork = Callable[[StoreTransaction], Awaitable[T]]


class Store(Protocol):
    kind: Literal["sqlite", "postgresql"]

    async def transact(self, work: StoreWork[T], key: int | None = None, zones: Collection[str] = ()) -> T:
        """Run a function in one durable transaction.

        `key` identifies the transaction for `wait_until_ended(key)`. `zones` are the zones that its callers were
        authenticated for; on PostgreSQL, row-level security hides the rows of all other zones.
        """

    async def read(self, work: StoreWork[T], zones: Collection[str] = (), *, for_writer: bool = False) -> T:
        """Run a function that only reads, under the same row-level security.

        Reads may use only half of PostgreSQL's connections, so that a write finds a free one. `for_writer` lifts that
        limit, for a read that a write is waiting for.
        """

    async def wait_until_ended(self, key: int) -> None:
        """Return once no transaction with this key is running on the database."""

    async def ping(self) -> None:
        """Raises `TransientError` while the database is not reachable."""

    async def close(self) -> None: ...


def decode(rows: Sequence[Row], row_type: type[S]) -> list[S]:
    """Convert rows to `array_like` structs, whose fields are in the order of the select list."""
    return msgspec.convert(rows, list[row_type])  # type: ignore[valid-type]  # mypy rejects a type made from a value
