"""The sealer: writes the next seal over the new events of the log, or over a raised floor.

A lease ensures that only one process at a time seals, and each seal is written under the fence of that lease. Events
are read and hashed beforehand, in chunks, so that the event loop serves other tasks in between. That needs no lock,
because rows of the log never change and every position up to the head exists. If an event is missing, it was deleted
before it was sealed: nothing is sealed past it, the pass fails, and `qd audit verify` names the row. The server
continues to serve requests.

A floor is attested only if retention could have raised it (`core.audit_seal.is_expired`): the server does not sign a
floor that someone else wrote into the database.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from quarterdeck.core.audit_seal import (
    Seal,
    SealEnd,
    SealInput,
    Signer,
    create_seal,
    hash_events,
    is_expired,
    row_position,
)
from quarterdeck.core.clock import DAY
from quarterdeck.core.ids import new_id
from quarterdeck.engine.event_log import LogBounds
from quarterdeck.engine.leases import Fence, Lease
from quarterdeck.engine.queries import Q
from quarterdeck.engine.settings import LogSettings
from quarterdeck.engine.sweeps import Sweep
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import Row, decode

log = logging.getLogger("quarterdeck.seals")
SEAL = "seal"
SEAL_EVENTS_MAX = 1_000
"""Maximum events per seal. A verifier must hold that many in memory at once."""
HASH_CHUNK = 250
"""Events read and hashed at once, which takes about a millisecond."""
LEASE_MS = 5_000


class MissingEventError(Exception):
    """An event was deleted before it was sealed."""


class LogState(msgspec.Struct, frozen=True):
    """The newest seal, and the bounds of the log."""

    newest_seal: Seal | None
    bounds: LogBounds

    @property
    def sealed_pos(self) -> int:
        return self.newest_seal.last_pos if self.newest_seal else 0

    @property
    def attested_floor(self) -> int:
        return self.newest_seal.floor if self.newest_seal else 0


async def read_log_state(tx: Transaction) -> LogState:
    newest, bounds = await tx.read(Q.seal_newest(), Q.log_bounds())
    return LogState(next(iter(decode(newest, Seal)), None), decode(bounds, LogBounds)[0])


class LogSealer:
    def __init__(self, engine: Engine, signer: Signer, settings: LogSettings) -> None:
        self._engine = engine
        self._signer = signer
        self._settings = settings
        self._rejected_floor = 0
        self.lease = Lease(engine, SEAL, new_id(), LEASE_MS)

    def sweep(self) -> Sweep:
        return Sweep(SEAL, self._settings.seal_interval_ms, SEAL_EVENTS_MAX, self.run_once)

    async def run_once(self, batch: int) -> int:
        """Write one seal if there is anything to seal. Return how many events it covers."""
        state = await self._engine.read(read_log_state)
        if state.bounds.head == state.sealed_pos and state.bounds.floor <= state.attested_floor:
            return 0  # before the lease is acquired: an idle server writes nothing
        fence = self.lease.fence() or await self.lease.acquire()
        if fence is None:
            return 0
        event_hashes = await self._hash_new_events(state, batch)
        return await self._engine.transact(lambda tx: self._write_seal(tx, fence, state, event_hashes))

    async def _hash_new_events(self, state: LogState, batch: int) -> list[bytes]:
        """The hashes of the next events after the newest seal."""
        event_hashes: list[bytes] = []
        count = min(batch, state.bounds.head - state.sealed_pos)
        while len(event_hashes) < count:
            after = state.sealed_pos + len(event_hashes)
            rows = await self._read_chunk(after, min(HASH_CHUNK, count - len(event_hashes)))
            if not rows or row_position(rows[0]) != after + 1 or row_position(rows[-1]) != after + len(rows):
                raise MissingEventError(
                    f"Sealing stopped at position {state.sealed_pos}: an event after position {after} is missing, and "
                    f"the log ends at {state.bounds.head}. Run `qd audit verify` to find it."
                )
            event_hashes += hash_events(rows)
            await asyncio.sleep(0)
        return event_hashes

    async def _read_chunk(self, after: int, limit: int) -> list[Row]:
        async def read(tx: Transaction) -> list[Row]:
            [rows] = await tx.read(Q.log_tail(after=after, limit=limit))
            return rows

        return await self._engine.read(read)

    async def _write_seal(self, tx: Transaction, fence: Fence, expected: LogState, event_hashes: list[bytes]) -> int:
        await fence.check(tx)
        current = await read_log_state(tx)
        if current.newest_seal != expected.newest_seal:
            return 0  # written by an earlier attempt whose COMMIT response was lost; the next pass continues there
        floor = await self._floor_to_attest(tx, current)
        if not event_hashes and floor == current.attested_floor:
            return 0
        seal_input = SealInput(current.sealed_pos + 1, event_hashes, floor)
        new_seal = create_seal(seal_input, current.newest_seal, tx.now, self._signer)
        tx.write(Q.seal_insert(batch=[msgspec.structs.astuple(new_seal)]))
        return len(event_hashes)

    async def _floor_to_attest(self, tx: Transaction, current: LogState) -> int:
        """The floor that this seal attests: the raised floor if retention permits it, otherwise the previous one."""
        raised_floor, newest = current.bounds.floor, current.newest_seal
        if newest is None or raised_floor <= newest.floor:
            return current.attested_floor
        [rows] = await tx.read(Q.seal_ends(above=raised_floor - 1, limit=1))
        cutoff = tx.now - round(self._settings.event_retention_days * DAY)
        if any(end.last_pos == raised_floor and is_expired(end, newest, cutoff) for end in decode(rows, SealEnd)):
            return raised_floor
        if raised_floor != self._rejected_floor:
            self._rejected_floor = raised_floor
            log.error("log_head has floor %d, which retention would not set; it is not attested", raised_floor)
        return newest.floor
