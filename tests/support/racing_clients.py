"""Clients in separate processes, for races in which the clients share nothing, or only the server.

`python -m tests.support.racing_clients URL TOKEN`: each line of its standard input is a path and a body as JSON. It
sends them as a POST on one open connection, and prints the status and the response.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from tests.support.child_processes import minimal_environment, signal_on_parent_death

RaceRequest = tuple[str, Mapping[str, object]]
"""A path to POST to, and a body."""
RaceResponse = tuple[int, dict[str, Any]]
LIMIT_SECONDS = 30.0


class RacingClients:
    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes

    async def race(self, *requests: RaceRequest, first: int = 0) -> list[RaceResponse]:
        """Send each client its own request at the same time. The client number `first` gets it first."""
        pairs = list(zip(self._processes, requests, strict=True))
        for process, request in pairs[first:] + pairs[:first]:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request).encode() + b"\n")
        async with asyncio.timeout(LIMIT_SECONDS):
            return [await _read_line(process) for process in self._processes]


@contextlib.asynccontextmanager
async def start_racing_clients(urls: Sequence[str], token: str) -> AsyncIterator[RacingClients]:
    """Start a process for each URL. All are connected when the context begins."""
    processes: list[Process] = []
    try:
        for url in urls:
            processes.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.support.racing_clients", url, token),
                    stdin=PIPE,
                    stdout=PIPE,
                    env=minimal_environment(),
                    preexec_fn=signal_on_parent_death(signal.SIGKILL),
                )
            )
        for process in processes:
            assert await _read_line(process) == "ready"
        yield RacingClients(processes)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _read_line(process: Process) -> Any:
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


def main(url: str, token: str) -> None:
    parts = urlsplit(url)
    assert parts.hostname
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=LIMIT_SECONDS)
    connection.connect()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    _write_line("ready")
    for line in sys.stdin:
        path, body = json.loads(line)
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        _write_line([response.status, json.loads(response.read())])


def _write_line(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
