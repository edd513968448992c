"""How long `message send`, `poll` and `ack` take on the command line: `qd`, and cafleet, which defined these commands.

Both programs run the same commands in turn: one message is sent, polled and acknowledged. No member has a pane, so no
notice is typed.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.fleets import create_fleet
from bench.peers import virtualenvs
from bench.peers.virtualenvs import PeerUnavailable
from bench.plan import BenchError
from bench.testbed import Testbed
from tests.support.child_processes import minimal_environment
from tests.support.tmux import TmuxServer

REPEATS = 20
PYTHON_PASS = "python -c pass"
OUR_PROGRAM, PEER_PROGRAM = "qd", "cafleet"
VERBS = ("send", "poll", "ack")
TEXT = "The tide is in."
TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Program:
    """A command-line program and its fleet."""

    name: str
    path: str
    variables: Mapping[str, str]
    error_type: type[Exception] = PeerUnavailable
    fleet_id: int = 0
    sender_id: int = 0
    recipient_id: int = 0

    def run(self, *args: str) -> str:
        try:
            completed = subprocess.run(
                [self.path, *args],
                env={**minimal_environment(), **self.variables},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise self.error_type(f"`{self.name} {' '.join(args[:2])}` failed: {error}") from error
        if completed.returncode:
            output = " ".join((completed.stderr or completed.stdout).split())[-virtualenvs.ERROR_CHARS :]
            raise self.error_type(f"`{self.name} {' '.join(args[:2])}` failed: {output}")
        return completed.stdout

    def run_message_command(self, verb: str, message_id: str) -> str:
        """Run a verb on this message, or send a new one. Returns the message's id."""
        agent_id = self.sender_id if verb == "send" else self.recipient_id
        args = ["message", verb, "--fleet-id", str(self.fleet_id), "--agent-id", str(agent_id)]
        args += {"send": ["--to", str(self.recipient_id), "--text", TEXT], "ack": ["--task-id", message_id]}.get(
            verb, []
        )
        output = self.run(*args)
        # The header of the message. Not every program prints it for `ack`.
        message_ids = re.findall(r"^\[(\d+) \| from:", output, re.MULTILINE)
        is_expected = "Message acknowledged." in output if verb == "ack" else TEXT in output and len(message_ids) == 1
        if not is_expected or (message_ids and message_id not in ("", *message_ids)):
            raise self.error_type(f"`{self.name} message {verb}` printed unexpected output: {output[:200]!r}")
        return message_id or str(message_ids[0])


@dataclass(slots=True)
class CommandTimes:
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """By name: `python -c pass`, or program and verb."""
    peer_problem: str = ""
    """Why the peer was not measured. Empty: it was."""

    def median_ms(self, name: str) -> float:
        return statistics.median(self.seconds[name]) * 1e3


def measure(testbed: Testbed) -> CommandTimes:
    times = CommandTimes()
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(_start_our_program(testbed))]
        try:
            programs.append(_set_up_peer(testbed))
        except PeerUnavailable as error:
            times.peer_problem = str(error)
        # One round to warm the caches, then all programs in turn, in alternating order.
        for repeat in range(REPEATS + 1):
            round_times = _run_round(programs if repeat % 2 else programs[::-1], times)
            for name, seconds in round_times.items() if repeat else ():
                times.seconds.setdefault(name, []).append(seconds)
    return times


def _run_round(programs: list[Program], times: CommandTimes) -> dict[str, float]:
    started_at = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=minimal_environment(), check=True)
    round_times = {PYTHON_PASS: time.perf_counter() - started_at}
    message_ids = dict.fromkeys((program.name for program in programs), "")
    for verb in VERBS:
        for program in programs:
            if program.name == PEER_PROGRAM and times.peer_problem:
                continue
            started_at = time.perf_counter()
            try:
                message_ids[program.name] = program.run_message_command(verb, message_ids[program.name])
            except PeerUnavailable as error:
                times.peer_problem = str(error)
            else:
                round_times[f"{program.name} {verb}"] = time.perf_counter() - started_at
    return round_times


@contextlib.contextmanager
def _start_our_program(testbed: Testbed) -> Iterator[Program]:
    with testbed.start_fresh_server("SQLite") as target:
        fleet = create_fleet(target, 1)
        qd = str(Path(sys.executable).with_name("qd"))
        ids = (fleet.fleet_id, fleet.director_id, fleet.member_ids[0])
        yield Program(OUR_PROGRAM, qd, {"QD_DATA": str(target.data_dir)}, BenchError, *ids)


def _set_up_peer(testbed: Testbed) -> Program:
    """The peer creates fleets only inside tmux. The measured commands run outside of it."""
    path = str(virtualenvs.ensure_python(PEER_PROGRAM).with_name(PEER_PROGRAM))
    if shutil.which("tmux") is None:
        raise PeerUnavailable("it creates fleets only inside tmux, which is not installed")
    home = testbed.new_directory()
    variables = {"HOME": str(home), "CAFLEET_DATABASE_URL": f"sqlite:///{home / 'cafleet.db'}"}
    program = Program(PEER_PROGRAM, path, variables)
    program.run("db", "init")
    tmux = TmuxServer()
    try:
        tmux_variables = {name: tmux.pane_environment()[name] for name in ("TMUX", "TMUX_PANE")}
        fleet = json.loads(
            Program(PEER_PROGRAM, path, {**variables, **tmux_variables}).run("--json", "fleet", "create")
        )
    finally:
        tmux.close()
    args = ("--fleet-id", str(fleet["fleet_id"]), "--name", "bench", "--description", "bench")
    member = json.loads(program.run("--json", "agent", "register", *args))
    ids = (fleet["fleet_id"], fleet["director"]["agent_id"], member["agent_id"])
    return Program(PEER_PROGRAM, path, variables, PeerUnavailable, *ids)
