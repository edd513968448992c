"""Closed-loop load: a number of connections, each with one request in flight at any time.

The generator is wrk if it is on PATH, because it takes the least CPU from the server; otherwise `loadgen` in a child
process. Both return a `LoadResult`.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.child_types import NUMBER_PLACEHOLDER, LoadConfig, LoadResult
from bench.meter import CORES, CpuMeter, Usage
from bench.plan import ROOT, BenchError
from bench.results import Run
from bench.testbed import Target
from tests.support.child_processes import minimal_environment

SCRIPT = Path(__file__).parent / "scripts" / "load.lua"
GRACE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Requests:
    """The request to repeat, with the paths in turn. The body may contain `child_types.NUMBER_PLACEHOLDER`."""

    paths: list[str]
    method: str = "GET"
    body: str = ""


def generator_name() -> str:
    return "wrk" if shutil.which("wrk") else "bench.loadgen"


def run_load(target: Target, requests: Requests, connections: int, seconds: float) -> Run:
    """Load a server and measure its CPU time."""
    meter = CpuMeter(target.watched_processes)
    result = run_generator(target, requests, connections, seconds)
    return to_run(result, meter.stop())


def run_generator(target: Target, requests: Requests, connections: int, seconds: float) -> LoadResult:
    """Load a server without measuring CPU time."""
    return (_run_wrk if generator_name() == "wrk" else _run_loadgen)(target, requests, connections, seconds)


def to_run(result: LoadResult, usage: Usage) -> Run:
    """Any response that is not a success ends the benchmark: a rate of wrong responses means nothing."""
    if result.refused or result.lost or not result.count:
        raise BenchError(
            f"{result.refused} of {result.count} responses were errors, and {result.lost} connections or requests were "
            "lost."
        )
    assert usage.server_seconds is not None
    generator_seconds = result.cpu_seconds
    return Run(
        rate=result.count / result.seconds,
        count=result.count,
        seconds=result.seconds,
        server_us=usage.server_seconds / result.count * 1e6,
        server=usage.server,
        postgres=usage.postgres,
        load=usage.load if generator_seconds is None else generator_seconds / result.seconds / CORES,
        idle=usage.idle,
        p50_ms=result.p50_ms,
        p99_ms=result.p99_ms,
    )


def build_load_config(
    target: Target, requests: Requests, connections: int, seconds: float, rate: float | None = None
) -> LoadConfig:
    host, port = target.address
    request = (requests.method, requests.paths, requests.body)
    return LoadConfig(host, port, target.token, *request, connections, seconds, rate)


def run_load_child(module: str, config: LoadConfig) -> bytes:
    """Run one of our generators in a child process and return its output."""
    return run_child(module, config, config.seconds + GRACE_SECONDS)


def run_child(module: str, config: msgspec.Struct, timeout: float) -> bytes:
    """Run a module in a child process with the config on its standard input, and return its output."""
    completed = subprocess.run(
        [sys.executable, "-m", module],
        input=msgspec.json.encode(config),
        cwd=ROOT,
        env=minimal_environment(),
        capture_output=True,
        timeout=timeout,
        check=False,
    )
    # The event loop only prints an exception of a callback, so any output on stderr is a failure.
    if completed.returncode or completed.stderr:
        raise BenchError(f"{module} failed: {completed.stderr.decode(errors='replace')[:2_000]}")
    return completed.stdout


def _run_loadgen(target: Target, requests: Requests, connections: int, seconds: float) -> LoadResult:
    return msgspec.json.decode(
        run_load_child("bench.loadgen", build_load_config(target, requests, connections, seconds)), type=LoadResult
    )


def _run_wrk(target: Target, requests: Requests, connections: int, seconds: float) -> LoadResult:
    variables = {
        "BENCH_METHOD": requests.method,
        "BENCH_PATHS": ",".join(requests.paths),
        "BENCH_BODY": requests.body,
        "BENCH_NUMBER": NUMBER_PLACEHOLDER,
        "BENCH_TOKEN": target.token,
    }
    # wrk accepts only whole seconds. One thread is faster than any server here, and leaves the other core free.
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s"]
    completed = subprocess.run(
        [*command, "-s", str(SCRIPT), target.url + requests.paths[0]],
        env={**minimal_environment(), **variables},
        capture_output=True,
        text=True,
        timeout=seconds + GRACE_SECONDS,
        check=False,
    )
    match = re.search(r"^BENCH (.*)$", completed.stdout, re.MULTILINE)
    if not match:
        raise BenchError(f"wrk failed: {completed.stdout}{completed.stderr}")
    return msgspec.json.decode(match[1], type=LoadResult)
