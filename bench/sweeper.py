"""`python -m bench.sweeper`: one sweep, as a server makes it. A `SweepOrder` comes in, a `SweepTally` goes out.

The composition root builds it, with everybody who hears of endings; only nobody is served meanwhile. The time runs from
the start of the first pass until a pass comes back less than full.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from bench.orders import SweepOrder, SweepTally
from quarterdeck.app import build
from quarterdeck.server_process import open_issuer
from quarterdeck.settings import load_settings


async def _sweep(order: SweepOrder) -> SweepTally:
    data = Path(order.data)
    # As a server's, its log goes to a file: a batch that was tried again is no failure.
    logging.basicConfig(filename=data / "sweeper.log")
    settings = load_settings(data, {"database_url": order.database}, {})
    app = await build(settings, open_issuer(settings), None)
    try:
        app.start(())
        used, began = time.process_time(), time.perf_counter()
        moved = await app.sweeps.run_now(order.sweep)
        return SweepTally(moved, time.perf_counter() - began, time.process_time() - used)
    finally:
        await app.stop(1)


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=SweepOrder)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_sweep(order))))


if __name__ == "__main__":
    main()
