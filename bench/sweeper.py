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

from bench.child_types import SweepConfig, SweepResult
from quarterdeck.app import build
from quarterdeck.server_process import open_issuer
from quarterdeck.settings import load_settings


async def _run(config: SweepConfig) -> SweepResult:
    data = Path(config.data_dir)
    # As a server's, its log goes to a file: a batch that was tried again is no failure.
    logging.basicConfig(filename=data / "sweeper.log")
    settings = load_settings(data, {"database_url": config.database}, {})
    app = await build(settings, open_issuer(settings), None)
    try:
        app.start(())
        cpu_started_at, started_at = time.process_time(), time.perf_counter()
        swept = await app.sweeps.run_now(config.sweep)
        return SweepResult(swept, time.perf_counter() - started_at, time.process_time() - cpu_started_at)
    finally:
        await app.stop(1)


def main() -> None:
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=SweepConfig)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_run(config))))


if __name__ == "__main__":
    main()
