"""Leases: the right of one process to do something alone.

A lease is a row with a name, a term and an expiry time, which the database's clock decides. Taking a lease starts a new
term; renewing it keeps the term. A holder trusts its lease for the TTL less a margin, counted on its own monotonic
clock from the time at which it *started* its last successful renewal. So a process that was paused knows that its lease
may have expired.

That check is not enough, since a process may be paused right after it. So every transaction that writes under a lease
first reads the lease row by name and term, `for share` (`Fence.check`). A holder of an older term finds no row and
writes nothing; the share lock blocks a new holder until the write is committed. So a holder that is paused does no
harm, however long the pause is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from quarterdeck.core.clock import Millis
from quarterdeck.core.errors import Conflict
from quarterdeck.engine.queries import Q
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import decode
from quarterdeck.store.sql import BoundStatement

TRUST_MARGIN = 0.1
"""The share of the TTL for which a holder no longer trusts its lease: clocks drift, and responses take time."""


class LeaseLost(Conflict):
    """Another term has started."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Identifies a term of a lease. Each transaction that writes under the lease checks it."""

    name: str
    term: int

    async def check(self, tx: Transaction) -> None:
        [rows] = await tx.read(Q.lease_check_term(name=self.name, term=self.term))
        if not rows:
            raise LeaseLost(
                "lease_lost",
                f"Leader term {self.term} of lease {self.name!r} has ended: another process is the leader.",
            )


def valid_terms_statement(terms: Sequence[tuple[str, int]]) -> BoundStatement:
    """The same check for a batch whose commands have different terms. The statement returns the valid pairs."""
    return Q.leases_check_terms(batch=[*terms])


class LeaseHolder(msgspec.Struct, frozen=True, array_like=True):
    """The current or last holder of a lease."""

    term: int
    holder: str
    expires_at: Millis


async def read_holder(tx: Transaction, name: str) -> LeaseHolder | None:
    [rows] = await tx.read(Q.lease_get(name=name))
    return decode(rows, LeaseHolder)[0] if rows else None


class Lease:
    """A lease from the point of view of one process, which may or may not hold it."""

    def __init__(self, engine: Engine, name: str, holder: str, ttl_ms: int) -> None:
        self._engine = engine
        self._name = name
        self._holder = holder
        self._ttl_ms = ttl_ms
        self._term: int | None = None
        self._trusted_until = 0.0

    @property
    def name(self) -> str:
        return self._name

    def fence(self) -> Fence | None:
        """The fence of this process's term, or None if the process cannot trust that it still holds the lease."""
        if self._term is None or time.monotonic() >= self._trusted_until:
            return None
        return Fence(self._name, self._term)

    async def acquire(self) -> Fence | None:
        """Renew the lease, or take it if it is free. Return None if another process holds it."""
        started_at = time.monotonic()
        term = await self._engine.transact(self._renew_or_take)
        self._term = term
        if term is None:
            return None
        self._trusted_until = started_at + self._ttl_ms / 1000 * (1 - TRUST_MARGIN)
        return self.fence()

    async def release(self) -> None:
        """Release the lease, so that another process need not wait until it expires."""
        term, self._term = self._term, None
        if term is None:
            return

        async def release_row(tx: Transaction) -> None:
            tx.write(Q.lease_release(name=self._name, term=term, holder=self._holder))

        await self._engine.transact(release_row)

    async def _renew_or_take(self, tx: Transaction) -> int | None:
        if self._term is not None:
            [renewed] = await tx.read(
                Q.lease_renew(name=self._name, term=self._term, holder=self._holder, ttl=self._ttl_ms)
            )
            if renewed:
                return self._term
        tx.write(Q.lease_create(name=self._name))
        [taken] = await tx.read(Q.lease_take(name=self._name, holder=self._holder, ttl=self._ttl_ms))
        return int(str(taken[0][0])) if taken else None
