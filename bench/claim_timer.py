"""`python -m bench.claim_timer`: times claims. Reads a `ClaimConfig` and writes a `ClaimResult`.

In each round it creates as many tasks as one claim requests, claims them and completes them. The claim is timed from
just before it is sent until its response has been read, over one connection.
"""

from __future__ import annotations

import gc
import sys
import time

import msgspec
import uvloop

from bench.child_types import ClaimConfig, ClaimResult, LoadConfig
from bench.raw_http import encode_requests
from bench.request_bodies import task_body
from bench.start_timer import RequestConnection, TimedResponse

WARM_ROUNDS = 10
TASKS = "/api/v1/agent-tasks"


class ClaimedTask(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    attempt_token: str


class ClaimResponse(msgspec.Struct, frozen=True):
    tasks: list[ClaimedTask]


class CompletionItem(msgspec.Struct, frozen=True):
    error: dict[str, object] | None = None


class CompletionResponse(msgspec.Struct, frozen=True):
    items: list[CompletionItem]


class ClaimTimer:
    def __init__(self, config: ClaimConfig) -> None:
        self._config = config
        create_body = f'{{"tasks":[{",".join([task_body()] * config.limit)}]}}'
        self._create_request = self._build_request(TASKS, create_body)
        claim_body = msgspec.json.encode({"max": config.limit}).decode()
        self._claim_request = self._build_request(f"/api/v1/agents/{config.agent}/claim", claim_body)
        self._connection = RequestConnection()

    async def run(self) -> ClaimResult:
        await self._connection.open(self._config.server)
        seconds = [await self._run_round() for _ in range(WARM_ROUNDS + self._config.rounds)]
        return ClaimResult(seconds[WARM_ROUNDS:])

    async def _run_round(self) -> float:
        await self._connection.send(self._create_request)
        started_at = time.perf_counter()
        response = await self._connection.send(self._claim_request)
        tasks = msgspec.json.decode(response.body, type=ClaimResponse).tasks
        if len(tasks) != self._config.limit:
            raise RuntimeError(f"the claim returned {len(tasks)} of {self._config.limit} tasks")
        completions = [{"id": task.id, "attemptToken": task.attempt_token} for task in tasks]
        _check_completed(
            await self._connection.send(self._build_request(f"{TASKS}/complete", _items_body(completions)))
        )
        return response.received_at - started_at

    def _build_request(self, path: str, body: str) -> bytes:
        server = self._config.server
        config = LoadConfig(server.host, server.port, server.token, "POST", [path], body, connections=1, seconds=0.0)
        return encode_requests(config)[0]


def _items_body(completions: list[dict[str, str]]) -> str:
    return msgspec.json.encode({"items": completions}).decode()


def _check_completed(response: TimedResponse) -> None:
    errors = [item.error for item in msgspec.json.decode(response.body, type=CompletionResponse).items if item.error]
    if errors:
        raise RuntimeError(f"completions were refused: {errors[:3]}")


async def _run(config: ClaimConfig) -> ClaimResult:
    return await ClaimTimer(config).run()


def main() -> None:
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=ClaimConfig)
    gc.disable()
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_run(config))))


if __name__ == "__main__":
    main()
