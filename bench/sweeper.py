"""`python -m bench.sweeper`: runs one sweep as a server does. Reads a `SweepConfig` and writes a `SweepResult`.

The sweep runs in a complete server with all event listeners, which serves no requests. The time runs from the start of
the first pass until a pass returns less than its limit.
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
    # The log goes to a file: a log line of a retried batch on stderr would count as a failure.
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
