"""Leases: who alone may run a pass.

A lease is a row with a name, a term and an end, all by the database's clock. Taking it begins a new term; renewing
keeps it. A holder trusts itself only until the *start* of its last successful attempt plus the time to live, less a
margin, by its own monotonic clock: so a holder that was frozen knows on waking that it cannot know.

Knowing is not enough, since it may freeze after looking. So every write of a leased pass first reads the lease row by
name and term, `for share`, in its own transaction (`Fence.check`). A holder of an older term finds no such row and
writes nothing; the share lock holds off a taker until the write is committed. Freezing a holder for a minute does no
harm.
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
"""The share of the time to live that a holder does not trust: clocks drift, and answers take time."""


class LeaseLost(Conflict):
    """Another term has begun."""


@dataclass(frozen=True, slots=True)
class Fence:
    """Proof of a term, to be shown inside each transaction that writes under it."""

    name: str
    term: int

    async def check(self, tx: Transaction) -> None:
        [rows] = await tx.read(Q.lease_check_term(name=self.name, term=self.term))
        if not rows:
            raise LeaseLost("lease_lost", f"Term {self.term} of the lease {self.name!r} is over.")


def valid_terms(terms: Sequence[tuple[str, int]]) -> BoundStatement:
    """The same for a batch, whose commands show terms of their own: (name, term) of those that are not over."""
    return Q.leases_check_terms(batch=[*terms])


class LeaseHolder(msgspec.Struct, frozen=True, array_like=True):
    """Who has a lease, or had it last."""

    term: int
    holder: str
    expires_at: Millis


async def read_holder(tx: Transaction, name: str) -> LeaseHolder | None:
    [rows] = await tx.read(Q.lease_get(name=name))
    return decode(rows, LeaseHolder)[0] if rows else None


class Lease:
    """One process's hold, or wish for a hold, on one name."""

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
        """The fence of the present term, if this process may still believe in it."""
        if self._term is None or time.monotonic() >= self._trusted_until:
            return None
        return Fence(self._name, self._term)

    async def acquire(self) -> Fence | None:
        """Renews the lease, or takes it if it is free; None while another holds it."""
        started_at = time.monotonic()
        term = await self._engine.transact(self._renew_or_take)
        self._term = term
        if term is None:
            return None
        self._trusted_until = started_at + self._ttl_ms / 1000 * (1 - TRUST_MARGIN)
        return self.fence()

    async def release(self) -> None:
        """Gives the lease up, so that another need not wait for its end."""
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
