"""How long a `qd` command takes, compared with starting Python. Agents run `qd` often."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench.plan import BenchError
from bench.results import Figure, Findings
from bench.testbed import Target, Testbed
from tests.support.child_processes import minimal_environment

REPEATS = 20
PYTHON_PASS = "python -c pass"
QD_VERSION = "qd --version"
QD_SESSION_SHOW = "qd session show ID"


def measure(testbed: Testbed) -> Findings:
    with testbed.start_server() as target:
        times_by_name = _run_interleaved(_commands(_spawn_session(target)), target)
    limit_ms = 3 * _median(times_by_name[PYTHON_PASS]) * 1e3 + 60
    return Findings(
        "The command line",
        figures=[
            Figure(name, [_median(times_by_name[name]) * 1e3], "ms", limit_ms, at_most=True)
            for name in (QD_VERSION, QD_SESSION_SHOW)
        ],
        notes=[
            f"Medians of {REPEATS} alternating runs: "
            + ", ".join(f"`{name}` {_median(times) * 1e3:.1f} ms" for name, times in times_by_name.items())
            + f". The limit is three times the first plus 60 ms: {limit_ms:.0f} ms."
        ],
    )


def _spawn_session(target: Target) -> str:
    with target.client() as client:
        response = client.post("/zones/default/agents", json={"application_id": "bench"})
        response.raise_for_status()
        return str(response.json()["id"])


def _commands(session: str) -> dict[str, list[str]]:
    qd = str(Path(sys.executable).with_name("qd"))
    return {
        PYTHON_PASS: [sys.executable, "-c", "pass"],
        QD_VERSION: [qd, "--version"],
        QD_SESSION_SHOW: [qd, "session", "show", session],
    }


def _run_interleaved(commands: dict[str, list[str]], target: Target) -> dict[str, list[float]]:
    """Run each command once to warm the caches, then all of them in turn, `REPEATS` times."""
    times_by_name: dict[str, list[float]] = {name: [] for name in commands}
    for repeat in range(REPEATS + 1):
        for name, command in commands.items():
            seconds = _time_command(command, {**minimal_environment(), "QD_DATA": str(target.data_dir)})
            if repeat:
                times_by_name[name].append(seconds)
    return times_by_name


def _time_command(command: list[str], environment: dict[str, str]) -> float:
    started_at = time.perf_counter()
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - started_at
    if completed.returncode or (command[1] == "session" and command[-1] not in completed.stdout):
        raise BenchError(f"{command[0]} {command[1]} failed: {completed.stdout}{completed.stderr}")
    return seconds


def _median(times: list[float]) -> float:
    return statistics.median(times)
