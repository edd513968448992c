"""What a command costs before it does anything: agents call `qd` all day."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.plan import BenchError
from bench.results import Figure, Findings
from bench.stage import Stage, Target
from tests.support.children import plain_environment

TIMES = 20
NOTHING = "python -c pass"
VERSION = "qd --version"
SHOW = "qd session show ID"


def measure(stage: Stage) -> Findings:
    with stage.server() as target:
        found = _interleaved(_commands(_spawn(target)), target)
    allowed = 3 * _median(found[NOTHING]) * 1e3 + 60
    return Findings(
        "The command line",
        figures=[Figure(name, [_median(found[name]) * 1e3], "ms", allowed, at_most=True) for name in (VERSION, SHOW)],
        notes=[
            f"Medians of {TIMES}, taken in turn: "
            + ", ".join(f"`{name}` {_median(times) * 1e3:.1f} ms" for name, times in found.items())
            + f". Allowed are three times the first and 60 ms more: {allowed:.0f} ms."
        ],
    )


def _spawn(target: Target) -> str:
    with target.client() as client:
        answer = client.post("/zones/default/agents", json={"application_id": "bench"})
        answer.raise_for_status()
        return str(answer.json()["id"])


def _commands(session: str) -> dict[str, list[str]]:
    qd = str(Path(sys.executable).with_name("qd"))
    return {NOTHING: [sys.executable, "-c", "pass"], VERSION: [qd, "--version"], SHOW: [qd, "session", "show", session]}


def _interleaved(commands: dict[str, list[str]], target: Target) -> dict[str, list[float]]:
    """Each once to warm the caches, then all in turn."""
    found: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(TIMES + 1):
        for name, command in commands.items():
            seconds = _timed(command, {**plain_environment(), "QD_DATA": str(target.data)})
            if number:
                found[name].append(seconds)
    return found


def _timed(command: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode or (command[1] == "session" and command[-1] not in done.stdout):
        raise BenchError(f"{command[0]} {command[1]} failed: {done.stdout}{done.stderr}")
    return seconds


def _median(times: list[float]) -> float:
    return statistics.median(times)
