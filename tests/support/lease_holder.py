"""A process that holds a lease and writes under it. A test freezes and resumes it.

`python -m tests.support.lease_holder URL NAME TTL_MS before|inside`: prints `held TERM` when it holds the lease. It
waits for a line on standard input before its transaction, or inside it after the check of its fence. Then it prints
`wrote`, or `refused` with the code or the type of the error.
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
        # Blocks the process, like SIGSTOP.
        sys.stdin.readline()
    tx.emit(NewEvent("holder.wrote", ZONE, fence.name, "holder"))


async def main(url: str, name: str, ttl_ms: str, pause_point: str) -> None:
    store = await open_store(url)
    engine = Engine(store)
    lease = Lease(engine, name, "frozen-holder", int(ttl_ms))
    fence = await lease.acquire()
    assert fence is not None
    write_line(f"held {fence.term}")
    if pause_point == "before":
        sys.stdin.readline()
        write_line(f"has fence: {lease.fence() is not None}")
    try:
        await engine.transact(lambda tx: write_event(tx, fence, pause_point), zones=[ZONE])
        write_line("wrote")
    except LeaseLost as error:
        write_line(f"refused {error.code}")
    except StoreError as error:
        write_line(f"refused {type(error).__name__}")
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
