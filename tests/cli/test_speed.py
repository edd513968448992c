"""Start-up cost of frequent `qd` commands: imports and wall-clock time."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.cli.cli_support import Qd, run_qd

HEAVY_MODULES = {"argparse", "asyncio", "click", "dataclasses", "email", "http", "inspect", "msgspec", "pathlib"}
HEAVY_MODULES |= {"sqlite3", "ssl", "subprocess", "tempfile", "urllib"}
RUNS = 7


@pytest.fixture(scope="module")
def qd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qd]:
    folder = tmp_path_factory.mktemp("qd")
    with run_qd(folder / "data", PYTHONPYCACHEPREFIX=str(folder / "compiled")) as program:
        yield program


@pytest.mark.parametrize(
    "words",
    [
        ("session", "show"),
        ("session", "list"),
        ("service", "list"),
        ("invocation", "list"),
        ("delegation", "list"),
        ("task", "list"),
        ("agent", "list"),
        ("status",),
        ("version",),
        ("--version",),
    ],
)
def test_frequent_command_imports_no_heavy_modules(qd: Qd, words: tuple[str, ...]) -> None:
    line = [*words, qd.run("session", "spawn", "--app", "demo")] if words == ("session", "show") else [*words]
    qd("session", "list")
    assert not imported_packages(qd, line) & HEAVY_MODULES


def test_message_commands_import_no_heavy_modules(qd: Qd) -> None:
    fleet_id, director = re.findall(r"\d+", qd.run("fleet", "create", "--no-pane"))[:2]
    sender, message_options = (
        ("--fleet-id", fleet_id, "--agent-id", director),
        ("--to", director, "--text", "hi", "--quiet"),
    )
    message_id = qd.run("message", "send", *sender, *message_options)
    for line in (("send", *sender, *message_options), ("poll", *sender), ("ack", *sender, "--task-id", message_id)):
        assert not imported_packages(qd, ["message", *line]) & HEAVY_MODULES, line


def imported_packages(qd: Qd, line: Sequence[str]) -> set[str]:
    """Returns the packages that a command imports."""
    command = qd.command(line)
    result = subprocess.run(
        [command[0], "-X", "importtime", *command[1:]], env=qd.environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in result.stderr.splitlines()}


def test_frequent_commands_take_at_most_three_python_starts_plus_60_ms(qd: Qd) -> None:
    session = qd.run("session", "spawn", "--app", "demo")
    fleet_id, director = re.findall(r"\d+", qd.run("fleet", "create", "--no-pane"))[:2]
    sender = ("--fleet-id", fleet_id, "--agent-id", director)
    candidates = {
        "pass": [sys.executable, "-c", "pass"],
        "version": qd.command(["--version"]),
        "show": qd.command(["session", "show", session]),
        "send": qd.command(["message", "send", *sender, "--to", director, "--text", "hi", "--quiet"]),
        "poll": qd.command(["message", "poll", *sender]),
        "ack": qd.command(["message", "ack", *sender, "--task-id"]),
    }
    durations: dict[str, list[float]] = {name: [] for name in candidates}
    # The commands run in turn and the best time of each counts: on a busy machine only the best is meaningful.
    for _ in range(RUNS):
        message_id = ""
        for name, command in candidates.items():
            full_command = [*command, message_id] if name == "ack" else command
            started_at = time.perf_counter()
            result = subprocess.run(full_command, env=qd.environment, check=True, stdout=subprocess.PIPE, text=True)
            durations[name].append(time.perf_counter() - started_at)
            message_id = result.stdout.strip() if name == "send" else message_id
    limit = 3 * min(durations["pass"]) + 0.060
    slow = {name: min(seconds) for name, seconds in durations.items() if min(seconds) > limit}
    assert not slow, f"more than {limit:.3f} s"
