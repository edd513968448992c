"""What the shell costs: an authenticated route that answers at once, beside a plain ASGI echo under uvicorn."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial

from bench.load import Requests, drive
from bench.probe import PATH
from bench.process import serving
from bench.results import Figure, Findings, Line, Run, ratios
from bench.spawn import there_and_back
from bench.spawning import CONNECTIONS
from bench.stage import Stage, Target

ECHO = "control: plain ASGI echo, uvicorn (uvloop, httptools)"
SHELL = "authenticated route, all routes mounted, logs and metrics on"
MOST = 1.4
PROBED = ("bench.probe", "up")


def measure(stage: Stage) -> Findings:
    runs: dict[str, list[Run]] = {}
    # The same bytes to both, the token included: the control is spared the work, not the parsing.
    requests = Requests([PATH.replace("{zone}", "default")])

    def at(target: Target) -> Run:
        return drive(target, requests, CONNECTIONS, stage.plan.seconds)

    for _ in range(stage.plan.rounds):
        with stage.server(program=PROBED) as shell, _echo(stage, shell.token) as echo:
            for target in (echo, shell):
                drive(target, requests, CONNECTIONS, stage.plan.warm_up)
            there_and_back([(ECHO, partial(at, echo)), (SHELL, partial(at, shell))], runs)
    cost = ratios(runs[SHELL], runs[ECHO], stage.plan.rounds, "server_us")
    return Findings(
        "The HTTP shell, beside a plain ASGI echo",
        lines=[Line(name, found) for name, found in runs.items()],
        figures=[Figure("The shell's CPU per request / plain ASGI echo", cost, "×", MOST, at_most=True)],
        notes=["Log lines go through a pipe to a process that drops them."],
    )


@contextlib.contextmanager
def _echo(stage: Stage, token: str) -> Iterator[Target]:
    directory = stage.directory()
    with serving([sys.executable, "-m", "bench.echo"], directory) as it:
        yield Target(it.url, it.pid, directory, None, None, token)
