"""The interface both engines offer, and the three kinds of failure they sort everything into."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Literal, Protocol, TypeVar

import msgspec

from quarterdeck.store.sql import BoundStatement

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)
Row = tuple[object, ...]


class StoreError(Exception):
    """`code` is the engine's own (an SQLSTATE, or SQLite's error name): for logs and tests, never shown to callers."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class ContentError(StoreError):
    """A value or a constraint: the same content fails again, and its neighbours in the batch are innocent."""


class TransientError(StoreError):
    """Nothing was written; the same content may well succeed in a moment."""


class CommitUnknown(TransientError):
    """The connection was lost between sending COMMIT and hearing of it."""


class StoreTransaction(Protocol):
    """What work may do inside a transaction."""

    async def read(self, *statements: BoundStatement) -> list[list[Row]]:
        """Sends what is queued and these, in order, in one round trip; the rows of each of these."""

    def write(self, statement: BoundStatement) -> None:
        """Queues a statement whose rows nobody needs. It goes out with the next read or with COMMIT."""


StoreWork = Callable[[StoreTransaction], Awaitable[T]]


class Store(Protocol):
    kind: Literal["sqlite", "postgresql"]

    async def transact(self, work: StoreWork[T], key: int | None = None, zones: Collection[str] = ()) -> T:
        """Runs work in one durable transaction. `key` marks it, so that `settled(key)` can find out about it later.
        `zones` are all that its callers were authenticated for: a second wall lets it see no other zone's rows."""

    async def read(self, work: StoreWork[T], zones: Collection[str] = (), *, for_writer: bool = False) -> T:
        """Runs work that only reads, behind the same wall. Readers are held to a part of the connections, so that
        writers find one, and what is read for a writer is not."""

    async def wait_until_ended(self, key: int) -> None:
        """Returns once no transaction marked with this key is still under way on the database."""

    async def ping(self) -> None:
        """Raises TransientError while the database is away."""

    async def close(self) -> None: ...


def decode(rows: Sequence[Row], row_type: type[S]) -> list[S]:
    """Rows into structs declared `array_like`, whose fields stand in the order of the select list."""
    return msgspec.convert(rows, list[row_type])  # type: ignore[valid-type]  # a type made of a value: for msgspec, not for mypy
