"""The cost of the HTTP layer: an authenticated route that does nothing, compared with a plain ASGI application."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from functools import partial

from bench.load import Requests, run_load
from bench.probe import PATH
from bench.results import Figure, Findings, Line, Run, round_ratios
from bench.server_process import run_server
from bench.spawn import run_forth_and_back
from bench.spawn_runner import CONNECTIONS
from bench.testbed import Target, Testbed

ECHO_NAME = "control: plain ASGI echo, uvicorn (uvloop, httptools)"
DISPATCHER_NAME = "authenticated route, all routes mounted, logs and metrics on"
MAX_RATIO = 1.4
PROBE_PROGRAM = ("bench.probe", "up")


def measure(testbed: Testbed) -> Findings:
    runs: dict[str, list[Run]] = {}
    # Both get the same bytes, including the token, so the control parses the same request.
    requests = Requests([PATH.replace("{zone}", "default")])

    def measure_target(target: Target) -> Run:
        return run_load(target, requests, CONNECTIONS, testbed.plan.seconds)

    for _ in range(testbed.plan.rounds):
        with testbed.start_server(program=PROBE_PROGRAM) as dispatcher, _start_echo(testbed, dispatcher.token) as echo:
            for target in (echo, dispatcher):
                run_load(target, requests, CONNECTIONS, testbed.plan.warm_up_seconds)
            run_forth_and_back(
                [(ECHO_NAME, partial(measure_target, echo)), (DISPATCHER_NAME, partial(measure_target, dispatcher))],
                runs,
            )
    cost_ratios = round_ratios(runs[DISPATCHER_NAME], runs[ECHO_NAME], testbed.plan.rounds, "server_us")
    return Findings(
        "The HTTP layer, compared with a plain ASGI echo",
        lines=[Line(name, line_runs) for name, line_runs in runs.items()],
        figures=[Figure("CPU per request / plain ASGI echo", cost_ratios, "×", MAX_RATIO, at_most=True)],
        notes=["The server writes its log to a file."],
    )


@contextlib.contextmanager
def _start_echo(testbed: Testbed, token: str) -> Iterator[Target]:
    directory = testbed.new_directory()
    with run_server([sys.executable, "-m", "bench.echo"], directory) as server:
        yield Target(server.url, server.pid, directory, None, None, token)
