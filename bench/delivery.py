"""The latency from the commit of spawns to a process that reads their events in the background."""

from __future__ import annotations

import msgspec

from bench.background_process import run_in_background
from bench.child_types import DeliveryResult, LoadConfig, OpenLoopResult
from bench.load import GRACE_SECONDS, run_load_child, to_run
from bench.meter import CORES, CpuMeter
from bench.plan import BenchError
from bench.results import Run
from bench.spawn_runner import SpawnRunner


def measure_delivery(
    spawn_runner: SpawnRunner,
    zones: list[str],
    load_config: LoadConfig,
    reader_module: str,
    reader_config: msgspec.Struct,
) -> tuple[Run, DeliveryResult]:
    """Send spawns on a schedule. The reader is connected before the first event, and must get every event."""
    results: list[DeliveryResult] = []

    def send() -> Run:
        with run_in_background(reader_module, reader_config) as reader:
            meter = CpuMeter(spawn_runner.target.watched_processes)
            sent = msgspec.json.decode(run_load_child("bench.openloop", load_config), type=OpenLoopResult)
            results.append(msgspec.json.decode(reader.finish(load_config.seconds + GRACE_SECONDS), type=DeliveryResult))
        return to_run(sent, meter.stop())

    spawned = spawn_runner.run_checked(zones, 0, send)
    [result] = results
    if result.refused or result.lost:
        raise BenchError(
            f"{result.refused} events were out of order, duplicated or wrongly signed, and {result.lost} did not "
            "arrive."
        )
    return msgspec.structs.replace(
        spawned,
        rate=result.count / result.seconds,
        count=result.count,
        server_us=None,
        load=(spawned.load or 0.0) + (result.cpu_seconds or 0.0) / result.seconds / CORES,
        p50_ms=result.p50_ms,
        p99_ms=result.p99_ms,
    ), result
