"""The sealer: writes the next seal over what is new in the log, or over a floor that was raised.

One process at a time, by a lease; each seal is written under its fence. The events are read and hashed beforehand, in
pieces, so that the loop serves others between them; that needs no lock, because rows of the log never change and every
position up to the head is there. If one is not, somebody removed it before it was sealed: nothing is sealed past it,
the pass fails, and `qd audit verify` names the row. The server goes on serving.

The floor is attested only if retention could have raised it (`core.seals.is_due`): a floor that somebody else wrote
into the database is not signed by this server.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from quarterdeck.core.audit_seal import End, Seal, Signer, Stretch, is_due, pos_of, prints_of, seal
from quarterdeck.core.clock import DAY
from quarterdeck.core.ids import new_id
from quarterdeck.engine.event_log import Bounds
from quarterdeck.engine.leases import Fence, Lease
from quarterdeck.engine.queries import Q
from quarterdeck.engine.settings import LogSettings
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Tx
from quarterdeck.store.interface import Row, decode

log = logging.getLogger("quarterdeck.seals")
SEAL = "seal"
EVENTS_MAX = 1_000
"""Events under one seal at most: what a reader has to hold at once."""
PIECE = 250
"""Events read and hashed in one go, about a millisecond."""
LEASE_MS = 5_000


class LogBroken(Exception):
    """An event went missing before it was sealed."""


class LogState(msgspec.Struct, frozen=True):
    """Where the log and its seals stand."""

    newest: Seal | None
    bounds: Bounds

    @property
    def sealed(self) -> int:
        return self.newest.last_pos if self.newest else 0

    @property
    def attested(self) -> int:
        return self.newest.floor if self.newest else 0


async def state(tx: Tx) -> LogState:
    newest, bounds = await tx.read(Q.seal_newest(), Q.log_bounds())
    return LogState(next(iter(decode(newest, Seal)), None), decode(bounds, Bounds)[0])


class Sealer:
    def __init__(self, engine: Engine, signer: Signer, settings: LogSettings) -> None:
        self._engine = engine
        self._signer = signer
        self._settings = settings
        self._refused_floor = 0
        self.lease = Lease(engine, SEAL, new_id(), LEASE_MS)

    def sweep(self) -> Sweep:
        return Sweep(SEAL, self._settings.seal_interval_ms, EVENTS_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        """Makes one seal, if there is anything to seal. How many events it speaks of."""
        known = await self._engine.read(state)
        if known.bounds.head == known.sealed and known.bounds.floor <= known.attested:
            return 0  # before the lease is asked for: a server that idles should write nothing
        fence = self.lease.fence() or await self.lease.hold()
        if fence is None:
            return 0
        prints = await self._prints(known, batch)
        return await self._engine.transact(lambda tx: self._write(tx, fence, known, prints))

    async def _prints(self, known: LogState, batch: int) -> list[bytes]:
        """The hashes of the next events after the newest seal."""
        prints: list[bytes] = []
        wanted = min(batch, known.bounds.head - known.sealed)
        while len(prints) < wanted:
            after = known.sealed + len(prints)
            rows = await self._piece(after, min(PIECE, wanted - len(prints)))
            if not rows or pos_of(rows[0]) != after + 1 or pos_of(rows[-1]) != after + len(rows):
                raise LogBroken(
                    f"Nothing is sealed after position {known.sealed}: an event after {after} is gone, and the log has "
                    f"come to {known.bounds.head}. `qd audit verify` names it."
                )
            prints += prints_of(rows)
            await asyncio.sleep(0)
        return prints

    async def _piece(self, after: int, limit: int) -> list[Row]:
        async def read(tx: Tx) -> list[Row]:
            [rows] = await tx.read(Q.log_tail(after=after, limit=limit))
            return rows

        return await self._engine.read(read)

    async def _write(self, tx: Tx, fence: Fence, known: LogState, prints: list[bytes]) -> int:
        await fence.check(tx)
        current = await state(tx)
        if current.newest != known.newest:
            return 0  # written by an attempt of ours that nobody heard of; the next pass goes on from there
        floor = await self._floor(tx, current)
        if not prints and floor == current.attested:
            return 0
        stretch = Stretch(current.sealed + 1, prints, floor)
        made = seal(stretch, current.newest, tx.now, self._signer)
        tx.write(Q.seal_insert(batch=[msgspec.structs.astuple(made)]))
        return len(prints)

    async def _floor(self, tx: Tx, current: LogState) -> int:
        """The floor that this seal attests: the raised one, if it may be, or the one before."""
        raised, newest = current.bounds.floor, current.newest
        if newest is None or raised <= newest.floor:
            return current.attested
        [found] = await tx.read(Q.seal_ends(above=raised - 1, limit=1))
        cutoff = tx.now - round(self._settings.event_retention_days * DAY)
        if any(end.last_pos == raised and is_due(end, newest, cutoff) for end in decode(found, End)):
            return raised
        if raised != self._refused_floor:
            self._refused_floor = raised
            log.error("log_head has a floor of %d, which retention would not set: it is not attested", raised)
        return newest.floor
