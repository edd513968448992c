"""What an agent waits for when it types `message send`, `poll` or `ack`: ours, and the peer whose commands these were.

Both are called with the same words, in turn, and find the same: one message, sent, polled for and acknowledged. Nobody
has a pane, so nothing is typed into one.
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

from bench.crew import new_crew
from bench.peers import environment
from bench.peers.environment import Unavailable
from bench.plan import BenchError
from bench.stage import Stage
from tests.support.children import plain_environment
from tests.support.tmux import TmuxServer

TIMES = 20
PASS = "python -c pass"
OURS, PEER = "qd", "cafleet"
VERBS = ("send", "poll", "ack")
TEXT = "The tide is in."
LIMIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Program:
    """Somebody's commands, and a fleet of theirs."""

    name: str
    path: str
    variables: Mapping[str, str]
    wrong: type[Exception] = Unavailable
    fleet: int = 0
    sender: int = 0
    recipient: int = 0

    def run(self, *words: str) -> str:
        try:
            done = subprocess.run(
                [self.path, *words],
                env={**plain_environment(), **self.variables},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as wrong:
            raise self.wrong(f"`{self.name} {' '.join(words[:2])}` failed: {wrong}") from wrong
        if done.returncode:
            said = " ".join((done.stderr or done.stdout).split())[-environment.WORDS :]
            raise self.wrong(f"`{self.name} {' '.join(words[:2])}` failed: {said}")
        return done.stdout

    def say(self, verb: str, message: str) -> str:
        """One of the verbs, about this message, or a new one; its id."""
        who = self.sender if verb == "send" else self.recipient
        words = ["message", verb, "--fleet-id", str(self.fleet), "--agent-id", str(who)]
        words += {"send": ["--to", str(self.recipient), "--text", TEXT], "ack": ["--task-id", message]}.get(verb, [])
        told = self.run(*words)
        # Its envelope; who acknowledges knows it already, and is not shown it by everybody.
        about = re.findall(r"^\[(\d+) \| from:", told, re.MULTILINE)
        is_right = "Message acknowledged." in told if verb == "ack" else TEXT in told and len(about) == 1
        if not is_right or (about and message not in ("", *about)):
            raise self.wrong(f"`{self.name} message {verb}` said something else: {told[:200]!r}")
        return message or str(about[0])


@dataclass(slots=True)
class Typed:
    seconds: dict[str, list[float]] = field(default_factory=dict)
    """By `python -c pass`, or the program and the verb."""
    absent: str = ""
    """Why the peer was not measured."""

    def ms(self, name: str) -> float:
        return statistics.median(self.seconds[name]) * 1e3


def measure(stage: Stage) -> Typed:
    typed = Typed()
    with contextlib.ExitStack() as opened:
        programs = [opened.enter_context(_ours(stage))]
        try:
            programs.append(_peer(stage))
        except Unavailable as why:
            typed.absent = str(why)
        # Each once to warm the caches, then all in turn, there and the next time back.
        for number in range(TIMES + 1):
            took = _round(programs if number % 2 else programs[::-1], typed)
            for name, seconds in took.items() if number else ():
                typed.seconds.setdefault(name, []).append(seconds)
    return typed


def _round(programs: list[Program], typed: Typed) -> dict[str, float]:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], env=plain_environment(), check=True)
    took = {PASS: time.perf_counter() - began}
    messages = dict.fromkeys((program.name for program in programs), "")
    for verb in VERBS:
        for program in programs:
            if program.name == PEER and typed.absent:
                continue
            began = time.perf_counter()
            try:
                messages[program.name] = program.say(verb, messages[program.name])
            except Unavailable as why:
                typed.absent = str(why)
            else:
                took[f"{program.name} {verb}"] = time.perf_counter() - began
    return took


@contextlib.contextmanager
def _ours(stage: Stage) -> Iterator[Program]:
    with stage.fresh("SQLite") as target:
        crew = new_crew(target, 1)
        qd = str(Path(sys.executable).with_name("qd"))
        ids = (crew.fleet_id, crew.director, crew.members[0])
        yield Program(OURS, qd, {"QD_DATA": str(target.data)}, BenchError, *ids)


def _peer(stage: Stage) -> Program:
    """Its fleets begin inside tmux; what is measured happens outside."""
    path = str(environment.python_of(PEER).with_name(PEER))
    if shutil.which("tmux") is None:
        raise Unavailable("its fleets begin inside tmux, which is not installed")
    home = stage.directory()
    own = {"HOME": str(home), "CAFLEET_DATABASE_URL": f"sqlite:///{home / 'cafleet.db'}"}
    outside = Program(PEER, path, own)
    outside.run("db", "init")
    tmux = TmuxServer()
    try:
        inside = {name: tmux.inside()[name] for name in ("TMUX", "TMUX_PANE")}
        made = json.loads(Program(PEER, path, {**own, **inside}).run("--json", "fleet", "create"))
    finally:
        tmux.close()
    words = ("--fleet-id", str(made["fleet_id"]), "--name", "bench", "--description", "bench")
    member = json.loads(outside.run("--json", "agent", "register", *words))
    ids = (made["fleet_id"], made["director"]["agent_id"], member["agent_id"])
    return Program(PEER, path, own, Unavailable, *ids)
