"""A zone's events as they happen, over whatever cuts the connection.

A stream that ends, breaks or falls silent is opened again after a pause, from the last id that was seen: nothing is
missed and nothing comes twice. What the server refuses is raised, and so is what keeps the first connection from being
made for longer than the client's patience.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Callable

from quarterdeck.client.api import Query
from quarterdeck.client.event_stream import PAUSE_MAX_MS, Message, Reading
from quarterdeck.core.errors import Fault, Problem, Unauthenticated
from quarterdeck.core.retry import Policy, delay
from quarterdeck.sdk import transport
from quarterdeck.sdk.transport import Ask, Remote

log = logging.getLogger("quarterdeck.sdk")


class Following:
    """One stream, however many connections it takes."""

    def __init__(self, remote: Remote, path: str, query: Query, told: Callable[[bool], None] | None = None) -> None:
        self._remote = remote
        self._ask = Ask("GET", path, query)
        self._told = told
        """Called whenever a connection stands, from where on everything will be heard, and whenever one is cut."""
        self._reading = Reading()
        self._failures = 0
        self._was_open = False
        self._began = 0.0

    async def messages(self) -> AsyncGenerator[Message, None]:
        self._began = asyncio.get_running_loop().time()
        while True:
            try:
                async with contextlib.aclosing(self._one_connection()) as heard:
                    async for message in heard:
                        yield message
                log.debug("the stream of %s ended", self._ask.path)
            except Problem as problem:
                await self._judge(problem)
            self._failures += 1
            await self._pause()

    async def _one_connection(self) -> AsyncGenerator[Message, None]:
        self._reading.begin()
        async with self._remote.stream(self._ask, self._reading.last) as pieces:
            self._was_open = True
            self._tell(True)
            try:
                async for piece in pieces:
                    for message in self._reading.feed(piece):
                        self._failures = 0
                        if message is not None:
                            yield message
            finally:
                self._tell(False)

    def _tell(self, stands: bool) -> None:
        if self._told is not None:
            self._told(stands)

    async def _judge(self, problem: Problem) -> None:
        """Raises it, unless it may pass."""
        log.debug("the stream of %s is cut: %s", self._ask.path, problem.detail)
        is_news = await self._remote.look_again()
        if isinstance(problem, Unauthenticated) and is_news:
            return
        if not isinstance(problem, Fault):
            raise problem
        waited = asyncio.get_running_loop().time() - self._began
        if not self._was_open and (not _may_pass(problem) or waited > self._remote.options.patience):
            raise problem

    async def _pause(self) -> None:
        least = self._reading.retry_ms
        policy = Policy(max_attempts=0, base_ms=least, cap_ms=max(least, PAUSE_MAX_MS))
        await asyncio.sleep(delay(policy, attempt=self._failures, chance=random.random()) / 1000)


def _may_pass(problem: Problem) -> bool:
    return transport.passes(problem) or transport.is_unknown(problem)
