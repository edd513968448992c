"""An agent that is a loop over plain HTTP, and misbehaves: it gives back, falls silent, vanishes in the middle of a
claim, dies with its hands full, and speaks for attempts that are long over."""

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

from tests.support.labouring.agent import Post
from tests.support.labouring.labour import Broken, Job, Saved, labour, unless
from tests.support.labouring.ledger import Ledger

PATIENCE = 5.0
TRIES = 40
"""After so many it has not been heard for long, and nobody believes in it any more."""
OLD = 8
"""Attempts that it remembers after they are over."""
BASE = "/api/v1/agent-tasks"


def die() -> NoReturn:
    """With its hands full, and without a word."""
    os._exit(1)


class Lost(Exception):
    """The attempt is somebody else's now."""


@dataclass(eq=False)
class Held:
    id: str
    attempt: int
    token: str
    job: Job
    saved: Saved
    unwanted: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Reply:
    status: int | None
    body: dict[str, object]


class Plain:
    def __init__(self, post: Post, ledger: Ledger) -> None:
        self._post = post
        self._ledger = ledger
        self._chance = random.Random(f"{post.seed} {post.client}")
        self._urls = itertools.cycle(post.urls)
        headers = {"Authorization": f"Bearer {post.token}"}
        self._http = httpx.AsyncClient(headers=headers, timeout=PATIENCE, trust_env=False, verify=False)
        self._url = next(self._urls)
        self._held: list[Held] = []
        self._old: deque[Held] = deque(maxlen=OLD)
        self._stopping = asyncio.Event()
        self._silent = asyncio.Event()
        self._claims = itertools.count(1)

    async def work(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        await self._register()
        beating = loop.create_task(self._beat())
        try:
            while not self._stopping.is_set():
                await self._turn()
        finally:
            beating.cancel()
            await asyncio.wait([beating])
            await self._http.aclose()

    async def _turn(self) -> None:
        if self._chance.random() < 0.03:
            await self._vanish()
        for held in await self._claim():
            await self._deal_with(held)
        if self._old and self._chance.random() < 0.25:
            await self._speak_for_the_past()

    # -- being there

    async def _register(self) -> None:
        body = {
            "capabilities": ["hands"],
            "maxConcurrentTasks": 4,
            "heartbeatIntervalSeconds": self._post.interval_seconds,
            "staleThresholdSeconds": self._post.threshold_seconds,
        }
        while not self._stopping.is_set():
            reply = await self._ask("PUT", f"/api/v1/agents/{self._post.agent}", body)
            if reply.status in (200, 201):
                return
            await unless(self._stopping, 0.2)

    async def _beat(self) -> None:
        while not await unless(self._stopping, self._post.interval_seconds):
            if self._silent.is_set():
                continue
            body: dict[str, object] = {"taskIds": [held.id for held in self._held]}
            reply = await self._ask("POST", f"/api/v1/agents/{self._post.agent}/heartbeat", body)
            dropped = {*_names(reply, "cancel"), *_names(reply, "pause")}
            for held in self._held:
                # One that keeps its word to the end, whatever it hears, is the one to be refused.
                if held.id in dropped and self._chance.random() < 0.5:
                    held.unwanted.set()

    # -- taking

    def _claiming(self) -> tuple[str, dict[str, object], dict[str, object]]:
        claim_id = f"{self._post.client}-{next(self._claims)}"
        body: dict[str, object] = {"max": self._chance.randint(1, 2), "waitMs": 500, "claimId": claim_id}
        return (f"/api/v1/agents/{self._post.agent}/claim", body, {"agentId": self._post.agent, "claimId": claim_id})

    async def _claim(self) -> list[Held]:
        return await self._take(*self._claiming())

    async def _take(self, path: str, body: dict[str, object], asked: dict[str, object]) -> list[Held]:
        for _ in range(TRIES):
            entry = self._ledger.begin("task.claim", asked)
            reply = await self._ask("POST", path, body)
            self._ledger.end(entry, reply.status, reply.body)
            if reply.status is not None and reply.status < 500:
                break
            # The same claim again: whatever it had got, it gets.
            await unless(self._stopping, 0.2)
        else:
            die()
        tasks = reply.body.get("tasks") if reply.status == 200 else None
        taken = [_held(task) for task in tasks] if isinstance(tasks, list) else []
        self._held += taken
        return taken

    async def _vanish(self) -> None:
        """Asks for work, and is gone before it comes; for good, or only the connection was."""
        path, body, asked = self._claiming()
        entry = self._ledger.begin("task.claim", asked)
        asking = asyncio.create_task(self._ask("POST", path, body))
        await unless(self._stopping, self._chance.uniform(0.0, 0.02))
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        self._ledger.end(entry, None)
        if self._chance.random() < 0.5:
            die()
        for held in await self._take(path, body, asked):
            await self._deal_with(held)

    # -- working

    async def _deal_with(self, held: Held) -> None:
        drawn = self._chance.random()
        try:
            if drawn < 0.06:
                await self._say("release", held, {})
            elif drawn < 0.12:
                await self._fall_silent(held)
            elif drawn < 0.14:
                die()
            else:
                await self._do(held)
        finally:
            self._held.remove(held)
            self._old.append(held)

    async def _do(self, held: Held) -> None:
        try:
            result = await labour(held.job, held.saved, _Bench(self, held), self._chance)
        except Broken as broken:
            await self._say("fail", held, {"error": str(broken)})
        except Lost:
            # By now somebody else has it, most likely: the moment in which to be believed would do most harm.
            await self._claim_to_be_done(held)
        else:
            await self._say("complete", held, {"outputResult": result})

    async def _fall_silent(self, held: Held) -> None:
        """For longer than anybody waits for it; and then it speaks as if nothing had been."""
        self._silent.set()
        await unless(self._stopping, self._post.threshold_seconds * 1.3)
        # Said until it is heard: whoever should have missed it may have been away itself, and it is still its own.
        await self._claim_to_be_done(held, again=True)
        self._silent.clear()

    async def _claim_to_be_done(self, held: Held, *, again: bool = False) -> None:
        if held.job.mood == "hopeless":
            await self._say("fail", held, {"error": "nobody can do this"}, again=again)
            return
        body: dict[str, object] = {"outputResult": {"steps": held.job.steps, "begun_at": 0}}
        await self._say("complete", held, body, again=again)

    async def _speak_for_the_past(self) -> None:
        old = self._chance.choice(self._old)
        verb = self._chance.choice(("complete", "fail", "progress"))
        bodies: dict[str, dict[str, object]] = {
            "complete": {"outputResult": {"steps": old.job.steps, "begun_at": 0}},
            "fail": {"error": "too late"},
            "progress": {"currentStep": "long gone", "checkpointData": {"done": 0}},
        }
        await self._say(verb, old, bodies[verb], again=False)

    async def save(self, held: Held, percent: int, step: str, saved: Saved) -> None:
        body: dict[str, object] = {
            "progressPercent": percent,
            "currentStep": step,
            "checkpointData": msgspec.to_builtins(saved),
        }
        reply = await self._say("progress", held, body)
        if reply.status == 409:
            raise Lost

    async def _say(self, verb: str, held: Held, body: dict[str, object], *, again: bool = True) -> Reply:
        """A word about an attempt; said until it is heard, or nobody is there for long."""
        method = "PATCH" if verb == "progress" else "POST"
        asked: dict[str, object] = {"id": held.id, "attemptToken": held.token}
        asked |= {name: body[name] for name in ("currentStep", "checkpointData") if name in body}
        for _ in range(TRIES if again else 1):
            entry = self._ledger.begin(f"task.{verb}", asked, before=verb == "progress")
            reply = await self._ask(method, f"{BASE}/{held.id}/{verb}", {**body, "attemptToken": held.token})
            self._ledger.end(entry, reply.status, _short(reply.body))
            if reply.status is not None and reply.status < 500:
                return reply
            await unless(self._stopping, 0.2)
        if again:
            die()
        return reply

    # -- asking

    async def _ask(self, method: str, path: str, body: dict[str, object]) -> Reply:
        try:
            answer = await self._http.request(method, self._url + path, json=body)
            return Reply(answer.status_code, answer.json() if answer.content else {})
        except (httpx.HTTPError, ValueError):
            # Gone, frozen, or cut off in the middle of its answer: to another, if there is one.
            self._url = next(self._urls)
            await unless(self._stopping, 0.05)
            return Reply(None, {})


class _Bench:
    def __init__(self, agent: Plain, held: Held) -> None:
        self._agent = agent
        self._held = held

    @property
    def attempt(self) -> int:
        return self._held.attempt

    async def pause(self, seconds: float) -> None:
        if await unless(self._held.unwanted, seconds):
            raise Lost

    async def save(self, percent: int, step: str, saved: Saved) -> None:
        await self._agent.save(self._held, percent, step, saved)


def _held(task: dict[str, object]) -> Held:
    return Held(
        str(task["id"]),
        msgspec.convert(task["attempt"], int),
        str(task["attemptToken"]),
        msgspec.convert(task["inputContext"], Job),
        msgspec.convert(task["checkpointData"], Saved),
    )


def _names(reply: Reply, field: str) -> list[str]:
    found = reply.body.get(field) if reply.status == 200 else None
    return [str(name) for name in found] if isinstance(found, list) else []


def _short(body: dict[str, object]) -> dict[str, object]:
    return {name: body[name] for name in ("id", "status", "error") if name in body}
