"""Callers that are processes of their own, for races in which nothing is shared but the server, or not even that.

`python -m tests.support.contender URL TOKEN`: for each line of its standard input, a path and a body as JSON, it asks
on a connection that it keeps, and says the status and the answer.
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

from tests.support.children import ended_with_parent, plain_environment

Asked = tuple[str, Mapping[str, object]]
"""A path to POST to, and a body."""
Answered = tuple[int, dict[str, Any]]
LIMIT_SECONDS = 30.0


class Contenders:
    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes

    async def race(self, *asked: Asked, first: int = 0) -> list[Answered]:
        """Each asks its own in the same instant; `first` hears of it an instant before the others."""
        pairs = list(zip(self._processes, asked, strict=True))
        for process, ask in pairs[first:] + pairs[:first]:
            assert process.stdin is not None
            process.stdin.write(json.dumps(ask).encode() + b"\n")
        async with asyncio.timeout(LIMIT_SECONDS):
            return [await _line(process) for process in self._processes]


@contextlib.asynccontextmanager
async def contenders(urls: Sequence[str], token: str) -> AsyncIterator[Contenders]:
    """A process for each URL, connected when this begins."""
    began: list[Process] = []
    try:
        for url in urls:
            began.append(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "tests.support.contender", url, token),
                    stdin=PIPE,
                    stdout=PIPE,
                    env=plain_environment(),
                    preexec_fn=ended_with_parent(signal.SIGKILL),
                )
            )
        for process in began:
            assert await _line(process) == "ready"
        yield Contenders(began)
    finally:
        for process in began:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _line(process: Process) -> Any:
    assert process.stdout is not None
    return json.loads(await process.stdout.readline())


def main(url: str, token: str) -> None:
    parts = urlsplit(url)
    assert parts.hostname
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=LIMIT_SECONDS)
    connection.connect()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    _say("ready")
    for line in sys.stdin:
        path, body = json.loads(line)
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        _say([answer.status, json.loads(answer.read())])


def _say(what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
