"""Agents run `qd` all day: what a command costs before it does anything is a promise too."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import pytest

from tests.cli.cli_support import Qd

HEAVY = {"argparse", "asyncio", "click", "dataclasses", "email", "http", "inspect", "msgspec", "pathlib"}
HEAVY |= {"sqlite3", "ssl", "subprocess", "tempfile", "urllib"}
RUNS = 7


@pytest.fixture(scope="module")
def qd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Qd]:
    folder = tmp_path_factory.mktemp("qd")
    program = Qd(folder / "data", PYTHONPYCACHEPREFIX=str(folder / "compiled"))
    yield program
    program.end_server()


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
def test_a_hot_command_imports_nothing_heavy(qd: Qd, words: tuple[str, ...]) -> None:
    line = [*words, qd.run("session", "spawn", "--app", "demo")] if words == ("session", "show") else [*words]
    qd("session", "list")
    assert not imported(qd, line) & HEAVY


def test_what_the_agents_of_a_fleet_type_all_day_imports_nothing_heavy(qd: Qd) -> None:
    number, director = re.findall(r"\d+", qd.run("fleet", "create", "--no-pane"))[:2]
    me, to = ("--fleet-id", number, "--agent-id", director), ("--to", director, "--text", "hi", "--quiet")
    message = qd.run("message", "send", *me, *to)
    for line in (("send", *me, *to), ("poll", *me), ("ack", *me, "--task-id", message)):
        assert not imported(qd, ["message", *line]) & HEAVY, line


def imported(qd: Qd, line: Sequence[str]) -> set[str]:
    """The packages that a command loads."""
    command = qd.command(line)
    done = subprocess.run(
        [command[0], "-X", "importtime", *command[1:]], env=qd.environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}


def test_hot_commands_take_no_longer_than_three_pythons_and_60_ms(qd: Qd) -> None:
    session = qd.run("session", "spawn", "--app", "demo")
    number, director = re.findall(r"\d+", qd.run("fleet", "create", "--no-pane"))[:2]
    me = ("--fleet-id", number, "--agent-id", director)
    candidates = {
        "pass": [sys.executable, "-c", "pass"],
        "version": qd.command(["--version"]),
        "show": qd.command(["session", "show", session]),
        "send": qd.command(["message", "send", *me, "--to", director, "--text", "hi", "--quiet"]),
        "poll": qd.command(["message", "poll", *me]),
        "ack": qd.command(["message", "ack", *me, "--task-id"]),
    }
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    # In turn, and the best of each: on a machine that does other things too only the best tells of the
    # program.
    for _ in range(RUNS):
        sent = ""
        for name, command in candidates.items():
            whole = [*command, sent] if name == "ack" else command
            begun = time.perf_counter()
            done = subprocess.run(whole, env=qd.environment, check=True, stdout=subprocess.PIPE, text=True)
            taken[name].append(time.perf_counter() - begun)
            sent = done.stdout.strip() if name == "send" else sent
    bound = 3 * min(taken["pass"]) + 0.060
    slow = {name: min(seconds) for name, seconds in taken.items() if min(seconds) > bound}
    assert not slow, f"more than {bound:.3f} s"
