"""A process of its own that holds a lease and writes under it, to be frozen and woken by a test.

`python -m tests.support.lease_holder URL NAME TTL_MS before|inside`: says `held TERM` when it holds the lease; waits for a
line before its transaction, or, having shown its fence, inside it; then says `wrote`, or `refused` and by what.
"""

from __future__ import annotations

import asyncio
import sys

from quarterdeck.engine.event_log import NewEvent
from quarterdeck.engine.leases import Fence, Lease, LeaseLost
from quarterdeck.engine.transaction import Engine, Transaction
from quarterdeck.store.interface import StoreError
from tests.support.builders import ZONE
from tests.support.runtime import open_store


def write_line(line: str) -> None:
    print(line, flush=True)


async def write_event(tx: Transaction, fence: Fence, pause_point: str) -> None:
    await fence.check(tx)
    if pause_point == "inside":
        write_line("checked")
        # Blocks the whole process, as a process that is stopped is blocked.
        sys.stdin.readline()
    tx.emit(NewEvent("holder.wrote", ZONE, fence.name, "holder"))


async def main(url: str, name: str, ttl_ms: str, pause_point: str) -> None:
    store = await open_store(url)
    engine = Engine(store)
    lease = Lease(engine, name, "the frozen one", int(ttl_ms))
    fence = await lease.acquire()
    assert fence is not None
    write_line(f"held {fence.term}")
    if pause_point == "before":
        sys.stdin.readline()
        write_line(f"trusts itself: {lease.fence() is not None}")
    try:
        await engine.transact(lambda tx: write_event(tx, fence, pause_point), zones=[ZONE])
        write_line("wrote")
    except LeaseLost as lost:
        write_line(f"refused {lost.code}")
    except StoreError as failed:
        write_line(f"refused {type(failed).__name__}")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
