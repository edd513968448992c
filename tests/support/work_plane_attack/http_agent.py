"""An agent that uses plain HTTP and misbehaves: it releases tasks, stops its heartbeats, disconnects during a claim,
exits while it holds tasks, and reports for attempts that ended long ago."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import signal
from collections import deque
from dataclasses import dataclass, field
from typing import NoReturn

import httpx
import msgspec

from tests.support.work_plane_attack.agent_main import AgentConfig
from tests.support.work_plane_attack.history_writer import HistoryWriter
from tests.support.work_plane_attack.task_execution import (
    AttemptFailed,
    Checkpoint,
    TaskInput,
    run_task,
    wait_or_timeout,
)

TIMEOUT_SECONDS = 5.0
TRIES_MAX = 40
"""Tries before it gives up and exits. By then the server counts it as stale."""
OLD_ATTEMPTS_MAX = 8
"""Ended attempts that it keeps, to report for them again."""
TASKS_PATH = "/api/v1/agent-tasks"


def exit_at_once() -> NoReturn:
    """Exit without releasing the held tasks."""
    os._exit(1)


class AttemptLost(Exception):
    """The attempt has ended. Another agent may hold the task."""


@dataclass(eq=False)
class HeldTask:
    id: str
    attempt: int
    token: str
    task_input: TaskInput
    checkpoint: Checkpoint
    cancel_requested: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class ApiResponse:
    status: int | None
    body: dict[str, object]


class HttpAgent:
    def __init__(self, config: AgentConfig, history: HistoryWriter) -> None:
        self._config = config
        self._history = history
        self._rng = random.Random(f"{config.seed} {config.client}")
        self._urls = itertools.cycle(config.urls)
        headers = {"Authorization": f"Bearer {config.token}"}
        self._http = httpx.AsyncClient(headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False, verify=False)
        self._url = next(self._urls)
        self._held: list[HeldTask] = []
        self._past: deque[HeldTask] = deque(maxlen=OLD_ATTEMPTS_MAX)
        self._stopping = asyncio.Event()
        self._silent = asyncio.Event()
        self._claim_numbers = itertools.count(1)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        await self._register()
        heartbeats = loop.create_task(self._send_heartbeats())
        try:
            while not self._stopping.is_set():
                await self._run_once()
        finally:
            heartbeats.cancel()
            await asyncio.wait([heartbeats])
            await self._http.aclose()

    async def _run_once(self) -> None:
        if self._rng.random() < 0.03:
            await self._abandon_claim()
        for held in await self._claim():
            await self._handle(held)
        if self._past and self._rng.random() < 0.25:
            await self._report_past_attempt()

    # -- registration and heartbeats

    async def _register(self) -> None:
        body = {
            "capabilities": ["build"],
            "maxConcurrentTasks": 4,
            "heartbeatIntervalSeconds": self._config.interval_seconds,
            "staleThresholdSeconds": self._config.threshold_seconds,
        }
        while not self._stopping.is_set():
            response = await self._request("PUT", f"/api/v1/agents/{self._config.agent}", body)
            if response.status in (200, 201):
                return
            await wait_or_timeout(self._stopping, 0.2)

    async def _send_heartbeats(self) -> None:
        while not await wait_or_timeout(self._stopping, self._config.interval_seconds):
            if self._silent.is_set():
                continue
            body: dict[str, object] = {"taskIds": [held.id for held in self._held]}
            response = await self._request("POST", f"/api/v1/agents/{self._config.agent}/heartbeat", body)
            dropped = {*_names_in(response, "cancel"), *_names_in(response, "pause")}
            for held in self._held:
                # Half of the time it continues despite the request: the server must refuse its reports.
                if held.id in dropped and self._rng.random() < 0.5:
                    held.cancel_requested.set()

    # -- claims

    def _new_claim(self) -> tuple[str, dict[str, object], dict[str, object]]:
        claim_id = f"{self._config.client}-{next(self._claim_numbers)}"
        body: dict[str, object] = {"max": self._rng.randint(1, 2), "waitMs": 500, "claimId": claim_id}
        return (
            f"/api/v1/agents/{self._config.agent}/claim",
            body,
            {"agentId": self._config.agent, "claimId": claim_id},
        )

    async def _claim(self) -> list[HeldTask]:
        return await self._claim_until_answered(*self._new_claim())

    async def _claim_until_answered(
        self, path: str, body: dict[str, object], request: dict[str, object]
    ) -> list[HeldTask]:
        for _ in range(TRIES_MAX):
            entry = self._history.begin("task.claim", request)
            response = await self._request("POST", path, body)
            self._history.end(entry, response.status, response.body)
            if response.status is not None and response.status < 500:
                break
            # A repeated claim id returns the same attempts.
            await wait_or_timeout(self._stopping, 0.2)
        else:
            exit_at_once()
        tasks = response.body.get("tasks") if response.status == 200 else None
        claimed = [_to_held_task(task) for task in tasks] if isinstance(tasks, list) else []
        self._held += claimed
        return claimed

    async def _abandon_claim(self) -> None:
        """Claim, and disconnect before the response. Then exit, or repeat the claim."""
        path, body, request = self._new_claim()
        entry = self._history.begin("task.claim", request)
        sending = asyncio.create_task(self._request("POST", path, body))
        await wait_or_timeout(self._stopping, self._rng.uniform(0.0, 0.02))
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        self._history.end(entry, None)
        if self._rng.random() < 0.5:
            exit_at_once()
        for held in await self._claim_until_answered(path, body, request):
            await self._handle(held)

    # -- execution and reports

    async def _handle(self, held: HeldTask) -> None:
        draw = self._rng.random()
        try:
            if draw < 0.06:
                await self._report("release", held, {})
            elif draw < 0.12:
                await self._stop_heartbeats(held)
            elif draw < 0.14:
                exit_at_once()
            else:
                await self._execute(held)
        finally:
            self._held.remove(held)
            self._past.append(held)

    async def _execute(self, held: HeldTask) -> None:
        try:
            result = await run_task(held.task_input, held.checkpoint, _HttpAttemptContext(self, held), self._rng)
        except AttemptFailed as error:
            await self._report("fail", held, {"error": str(error)})
        except AttemptLost:
            # Another agent probably holds the task now, so to accept this report would do the most harm.
            await self._report_done(held)
        else:
            await self._report("complete", held, {"outputResult": result})

    async def _stop_heartbeats(self, held: HeldTask) -> None:
        """Send no heartbeats until the agent is stale. Then report as if nothing had happened."""
        self._silent.set()
        await wait_or_timeout(self._stopping, self._config.threshold_seconds * 1.3)
        # Retried until it gets a response: if the servers were down meanwhile, the attempt is still valid.
        await self._report_done(held, retry=True)
        self._silent.clear()

    async def _report_done(self, held: HeldTask, *, retry: bool = False) -> None:
        if held.task_input.behaviour == "failing":
            await self._report("fail", held, {"error": "always fails"}, retry=retry)
            return
        body: dict[str, object] = {"outputResult": {"steps": held.task_input.steps, "started_at_step": 0}}
        await self._report("complete", held, body, retry=retry)

    async def _report_past_attempt(self) -> None:
        old = self._rng.choice(self._past)
        verb = self._rng.choice(("complete", "fail", "progress"))
        bodies: dict[str, dict[str, object]] = {
            "complete": {"outputResult": {"steps": old.task_input.steps, "started_at_step": 0}},
            "fail": {"error": "too late"},
            "progress": {"currentStep": "past step", "checkpointData": {"done": 0}},
        }
        await self._report(verb, old, bodies[verb], retry=False)

    async def save(self, held: HeldTask, percent: int, step: str, checkpoint: Checkpoint) -> None:
        body: dict[str, object] = {
            "progressPercent": percent,
            "currentStep": step,
            "checkpointData": msgspec.to_builtins(checkpoint),
        }
        response = await self._report("progress", held, body)
        if response.status == 409:
            raise AttemptLost

    async def _report(self, verb: str, held: HeldTask, body: dict[str, object], *, retry: bool = True) -> ApiResponse:
        """Report about an attempt. Retry until there is a response; exit after TRIES_MAX tries."""
        method = "PATCH" if verb == "progress" else "POST"
        request: dict[str, object] = {"id": held.id, "attemptToken": held.token}
        request |= {name: body[name] for name in ("currentStep", "checkpointData") if name in body}
        for _ in range(TRIES_MAX if retry else 1):
            entry = self._history.begin(f"task.{verb}", request, write_ahead=verb == "progress")
            response = await self._request(
                method, f"{TASKS_PATH}/{held.id}/{verb}", {**body, "attemptToken": held.token}
            )
            self._history.end(entry, response.status, _summarize(response.body))
            if response.status is not None and response.status < 500:
                return response
            await wait_or_timeout(self._stopping, 0.2)
        if retry:
            exit_at_once()
        return response

    # -- requests

    async def _request(self, method: str, path: str, body: dict[str, object]) -> ApiResponse:
        try:
            response = await self._http.request(method, self._url + path, json=body)
            return ApiResponse(response.status_code, response.json() if response.content else {})
        except (httpx.HTTPError, ValueError):
            # The server is gone, frozen, or died during its response: use the next one.
            self._url = next(self._urls)
            await wait_or_timeout(self._stopping, 0.05)
            return ApiResponse(None, {})


class _HttpAttemptContext:
    def __init__(self, agent: HttpAgent, held: HeldTask) -> None:
        self._agent = agent
        self._held = held

    @property
    def attempt(self) -> int:
        return self._held.attempt

    async def pause(self, seconds: float) -> None:
        if await wait_or_timeout(self._held.cancel_requested, seconds):
            raise AttemptLost

    async def save(self, percent: int, step: str, checkpoint: Checkpoint) -> None:
        await self._agent.save(self._held, percent, step, checkpoint)


def _to_held_task(task: dict[str, object]) -> HeldTask:
    return HeldTask(
        str(task["id"]),
        msgspec.convert(task["attempt"], int),
        str(task["attemptToken"]),
        msgspec.convert(task["inputContext"], TaskInput),
        msgspec.convert(task["checkpointData"], Checkpoint),
    )


def _names_in(response: ApiResponse, field: str) -> list[str]:
    found = response.body.get(field) if response.status == 200 else None
    return [str(name) for name in found] if isinstance(found, list) else []


def _summarize(body: dict[str, object]) -> dict[str, object]:
    return {name: body[name] for name in ("id", "status", "error") if name in body}
