"""Load: so many connections, each with one request under way at any time, for so many seconds.

By wrk where it is on PATH, because it takes the least of the processors that the server shares with it; otherwise by
`loadgen`, in a process of its own. Both answer the same few numbers.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.meter import CORES, Meter, Usage
from bench.orders import NUMBER, Order, Tally
from bench.plan import ROOT, BenchError
from bench.results import Run
from bench.stage import Target
from tests.support.children import plain_environment

SCRIPT = Path(__file__).parent / "scripts" / "load.lua"
GRACE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Requests:
    """What is asked, over and over: the paths in turn. A body may ask to be numbered (`orders.NUMBER`)."""

    paths: list[str]
    method: str = "GET"
    body: str = ""


def generator() -> str:
    return "wrk" if shutil.which("wrk") else "bench.loadgen"


def drive(target: Target, requests: Requests, connections: int, seconds: float) -> Run:
    """Loads a server, and says how it went."""
    meter = Meter(target.watched)
    tally = send(target, requests, connections, seconds)
    return as_run(tally, meter.stop())


def send(target: Target, requests: Requests, connections: int, seconds: float) -> Tally:
    """What the generator saw, whoever else is watched meanwhile."""
    return (_wrk if generator() == "wrk" else _own)(target, requests, connections, seconds)


def as_run(tally: Tally, usage: Usage) -> Run:
    """Any answer that is not a success ends the benchmark."""
    if tally.refused or tally.lost or not tally.count:
        raise BenchError(
            f"Of {tally.count} answers {tally.refused} were refusals, and {tally.lost} connections or requests were "
            "lost. A rate of wrong answers is no rate."
        )
    assert usage.server_seconds is not None
    own = tally.cpu_seconds
    return Run(
        rate=tally.count / tally.seconds,
        count=tally.count,
        seconds=tally.seconds,
        server_us=usage.server_seconds / tally.count * 1e6,
        server=usage.server,
        postgres=usage.postgres,
        load=usage.load if own is None else own / tally.seconds / CORES,
        idle=usage.idle,
        p50_ms=tally.p50_ms,
        p99_ms=tally.p99_ms,
    )


def order(target: Target, requests: Requests, connections: int, seconds: float, rate: float | None = None) -> Order:
    host, port = target.address
    told = (requests.method, requests.paths, requests.body)
    return Order(host, port, target.token, *told, connections, seconds, rate)


def child(module: str, told: Order) -> bytes:
    """Runs one of our generators in a process of its own; what it prints is its answer."""
    return run_alone(module, told, told.seconds + GRACE_SECONDS)


def run_alone(module: str, told: msgspec.Struct, seconds: float) -> bytes:
    """The same for whatever else is told what to do, and may take so long."""
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=msgspec.json.encode(told),
        cwd=ROOT,
        env=plain_environment(),
        capture_output=True,
        timeout=seconds,
        check=False,
    )
    # An exception in a callback is printed by the loop and ends nothing: whatever it says is a failure.
    if done.returncode or done.stderr:
        raise BenchError(f"{module} failed: {done.stderr.decode(errors='replace')[:2_000]}")
    return done.stdout


def _own(target: Target, requests: Requests, connections: int, seconds: float) -> Tally:
    return msgspec.json.decode(child("bench.loadgen", order(target, requests, connections, seconds)), type=Tally)


def _wrk(target: Target, requests: Requests, connections: int, seconds: float) -> Tally:
    told = {
        "BENCH_METHOD": requests.method,
        "BENCH_PATHS": ",".join(requests.paths),
        "BENCH_BODY": requests.body,
        "BENCH_NUMBER": NUMBER,
        "BENCH_TOKEN": target.token,
    }
    # wrk takes whole seconds. One thread of it outruns any server here, and leaves the other core alone.
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "10s"]
    done = subprocess.run(
        [*command, "-s", str(SCRIPT), target.url + requests.paths[0]],
        env={**plain_environment(), **told},
        capture_output=True,
        text=True,
        timeout=seconds + GRACE_SECONDS,
        check=False,
    )
    found = re.search(r"^BENCH (.*)$", done.stdout, re.MULTILINE)
    if not found:
        raise BenchError(f"wrk failed: {done.stdout}{done.stderr}")
    return msgspec.json.decode(found[1], type=Tally)
