"""`python -m bench.start_timer`: times calls to a waiting claim. Reads a `StartConfig` and writes a `StartResult`.

In each round it sends a claim that waits. When the server reports the waiting claim and has been idle for a while, it
sends a call. The time runs from just before the call until the response of the claim has been read, on one clock in
one process. Then the attempt is completed, which is not timed.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import time
from dataclasses import dataclass

import msgspec
import uvloop

from bench.child_types import LoadConfig, ServerAddress, StartConfig, StartResult
from bench.raw_http import Connection, cycle_requests, encode_requests

WARM_ROUNDS = 20
QUIET_SECONDS = 0.02
"""Longer than the work left over from a round, so that the server is idle."""
POLL_SECONDS = 0.002
TIMEOUT_SECONDS = 20.0
WAITING_METRIC = re.compile(rb'^quarterdeck_claims_waiting\{name="invocations"\} ([\d.]+)$', re.MULTILINE)


class CreatedInvocation(msgspec.Struct, frozen=True):
    id: str


class ClaimedItem(msgspec.Struct, frozen=True):
    id: str
    params: msgspec.Raw
    attempt_token: str


class ClaimResponse(msgspec.Struct, frozen=True):
    items: list[ClaimedItem]


class CompletionItem(msgspec.Struct, frozen=True):
    status: str | None = None


class CompletionResponse(msgspec.Struct, frozen=True):
    items: list[CompletionItem]


@dataclass(frozen=True, slots=True)
class TimedResponse:
    body: bytes
    received_at: float


class RequestConnection:
    """A connection with at most one request in flight."""

    def __init__(self) -> None:
        self._response: asyncio.Future[TimedResponse] | None = None
        self._connection: Connection | None = None

    async def open(self, server: ServerAddress) -> RequestConnection:
        loop = asyncio.get_running_loop()
        _, self._connection = await loop.create_connection(
            lambda: Connection(self._on_response, self._on_lost), server.host, server.port
        )
        return self

    def send(self, request: bytes) -> asyncio.Future[TimedResponse]:
        assert self._connection is not None
        self._response = asyncio.get_running_loop().create_future()
        self._connection.send(request)
        return self._response

    def _on_response(self, connection: Connection, status: int) -> None:
        received_at = time.perf_counter()
        assert self._response is not None
        body = connection.response.partition(b"\r\n\r\n")[2]
        if 200 <= status < 300:
            self._response.set_result(TimedResponse(body, received_at))
        else:
            self._response.set_exception(RuntimeError(f"{status}: {body[:500].decode(errors='replace')}"))

    def _on_lost(self, connection: Connection) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(ConnectionError("a server closed its connection"))


class StartTimer:
    def __init__(self, config: StartConfig) -> None:
        self._config = config
        zone = f"/zones/{config.zone}"
        self._call_requests = cycle_requests(_build_config(config.caller, f"{zone}/invocations", config.body))
        claim = msgspec.json.encode({"max": 1, "wait_ms": int(TIMEOUT_SECONDS * 1e3)}).decode()
        [self._claim_request] = encode_requests(
            _build_config(config.claimer, f"{zone}/services/{config.service_id}/claim", claim)
        )
        [self._metrics_request] = encode_requests(_build_config(config.claimer, "/metrics", ""))
        self._complete_path = f"{zone}/invocations/complete"

    async def run(self) -> StartResult:
        self._caller_connection = await RequestConnection().open(self._config.caller)
        self._claimer_connection, self._metrics_connection = [
            await RequestConnection().open(self._config.claimer) for _ in range(2)
        ]
        seconds = [await self._run_round() for _ in range(WARM_ROUNDS + self._config.rounds)]
        return StartResult(seconds[WARM_ROUNDS:])

    async def _run_round(self) -> float:
        async with asyncio.timeout(TIMEOUT_SECONDS):
            claim_response = self._claimer_connection.send(self._claim_request)
            await self._wait_until_claim_waits()
            await asyncio.sleep(QUIET_SECONDS)
            started_at = time.perf_counter()
            call_response = self._caller_connection.send(next(self._call_requests))
            created, claimed = await call_response, await claim_response
            [item] = msgspec.json.decode(claimed.body, type=ClaimResponse).items
            if item.id != msgspec.json.decode(created.body, type=CreatedInvocation).id:
                raise RuntimeError("the claim returned another invocation than the one just created")
            await self._complete(item)
        return claimed.received_at - started_at

    async def _wait_until_claim_waits(self) -> None:
        """Poll the metric: the server has no notification for it."""
        while True:
            match = WAITING_METRIC.search((await self._metrics_connection.send(self._metrics_request)).body)
            if match is not None and float(match[1]) == 1:
                return
            await asyncio.sleep(POLL_SECONDS)

    async def _complete(self, item: ClaimedItem) -> None:
        """Complete with the params as the result, as `bench.worker` does."""
        completion = {"id": item.id, "status": "succeeded", "result": item.params}
        body = msgspec.json.encode({"items": [{**completion, "attempt_token": item.attempt_token}]}).decode()
        [request] = encode_requests(_build_config(self._config.claimer, self._complete_path, body))
        response = msgspec.json.decode((await self._claimer_connection.send(request)).body, type=CompletionResponse)
        if [item_result.status for item_result in response.items] != ["succeeded"]:
            raise RuntimeError(f"a completion was refused: {response}")


def _build_config(server: ServerAddress, path: str, body: str) -> LoadConfig:
    method = "POST" if body else "GET"
    return LoadConfig(server.host, server.port, server.token, method, [path], body, connections=1, seconds=0.0)


def main() -> None:
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=StartConfig)
    gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_run(config))))


async def _run(config: StartConfig) -> StartResult:
    return await StartTimer(config).run()


if __name__ == "__main__":
    main()
