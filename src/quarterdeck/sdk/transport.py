"""A server, however often it has to be found: one call after another, asked again as far as that is safe.

Where the server is and what it is shown is looked for on the first call, and again when nobody answers there any more
or the token is no longer good.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from quarterdeck import __version__
from quarterdeck.client.api import Query, with_query
from quarterdeck.client.discovery import Located, Stranger, Where, locate, locate_again
from quarterdeck.client.http_types import Answer, Lost, Request, TimedOut, Unreachable, encode, reason_of
from quarterdeck.client.pool import Pool, Way
from quarterdeck.client.problems import from_answer
from quarterdeck.core.errors import Fault, Internal, LimitReached, OutcomeUnknown, Problem, Unauthenticated, Unavailable
from quarterdeck.core.retry import Policy, delay

log = logging.getLogger("quarterdeck.sdk")
T = TypeVar("T")
TokenSource = Callable[[], str]
"""Gives the present token, each time it is asked; may block."""
SILENCE_SECONDS = 90.0
"""A server says something on every stream once a minute at least."""


@dataclass(frozen=True, slots=True)
class Options:
    """How a client behaves."""

    timeout: float = 30.0
    """Seconds that one answer may take."""
    patience: float = 15.0
    """Seconds in which a call that failed is begun again, where that is safe; after an answer that was lost or took too
    long, once in any case. 0: it never is."""
    connections: int = 64
    """How many may be in use at once; whoever comes then waits for a turn."""
    tls: ssl.SSLContext | None = None
    """What https is judged by; without one, by the machine's authorities."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One call."""

    method: str
    path: str
    query: Query | None = None
    body: object = None
    """Encoded as JSON; None sends none."""
    key: str | None = None
    """Its idempotency key."""
    repeats: bool = False
    """Whether it may be made twice without being done twice, for another reason than its key or its method."""
    waits: float = 0.0
    """Seconds that the server may take on purpose."""
    zone: str | None = None
    """Of routes whose path does not name it."""

    @property
    def may_repeat(self) -> bool:
        return self.repeats or self.key is not None or self.method == "GET"


class Remote:
    def __init__(self, where: Where, options: Options, tokens: TokenSource | None = None) -> None:
        self._where = where
        self.options = options
        self._tokens = tokens
        self._finding = asyncio.Lock()
        self._pool: Pool | None = None
        self._headers: dict[str, str] = {}
        self._closing: dict[Callable[[], None], None] | None = {}
        """What is to be done at the end; None: it has come."""

    def at_close(self, last: Callable[[], None]) -> None:
        """Has something done at the end, once, however often it was asked for."""
        if self._closing is not None:
            self._closing[last] = None

    def not_at_close(self, last: Callable[[], None]) -> None:
        """It has been done before."""
        if self._closing is not None:
            self._closing.pop(last, None)

    async def call(self, ask: Ask, kind: type[T]) -> T:
        """The answer, understood. What the server refuses is raised as a `Problem`."""
        return _understood(await self.ask(ask), kind)

    async def ask(self, ask: Ask) -> Answer:
        """The answer as it is, of a call that succeeded."""
        body = None if ask.body is None else msgspec.json.encode(ask.body)
        clock = asyncio.get_running_loop().time
        began, attempt, renewed = clock(), 0, False
        patience = Patience(self.options.patience)
        while True:
            attempt += 1
            try:
                return await self._try(ask, body)
            except Unauthenticated:
                if renewed or not await self.look_again():
                    raise
                renewed = True
            except Problem as problem:
                wait = pause(problem, attempt, repeats=ask.may_repeat, chance=random.random())
                if wait is None or not patience.bears(problem, clock() - began + wait):
                    if ask.key is not None and isinstance(problem, Fault):
                        # It may have been done, if not this time then before: only this key asks for the same again.
                        problem.members["idempotency_key"] = ask.key
                    raise
                log.debug("%s %s is made again in %.3f s: %s", ask.method, ask.path, wait, problem.detail)
                await asyncio.sleep(wait)
                if isinstance(problem, Unreachable):
                    await self.look_again()

    @contextlib.asynccontextmanager
    async def stream(self, ask: Ask, last: str | None) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """One answer without an end, in pieces. Not made again: whoever follows knows better from where."""
        pool = await self._reached()
        headers = self._headers | {"Accept": "text/event-stream"}
        if last is not None:
            headers["Last-Event-ID"] = last
        request = Request(ask.method, with_query(ask.path, ask.query), headers)
        async with pool.stream(encode(request, pool.way.address), self.options.timeout) as (answer, wire):
            if answer.status >= 300:
                raise from_answer(answer)
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                raise Lost("garbled_answer", "The answer is no stream: is this a Quarterdeck server?")
            async with contextlib.aclosing(wire.pieces(SILENCE_SECONDS)) as pieces:
                yield pieces

    async def close(self) -> None:
        closing, self._closing = self._closing, None
        for last in closing or ():
            last()
        if self._pool is not None:
            self._pool.close()
        # One turn of the loop, in which the sockets are really closed: it may be the last there is.
        await asyncio.sleep(0)

    async def _try(self, ask: Ask, body: bytes | None) -> Answer:
        pool = await self._reached()
        headers = self._headers | headers_of(ask, body)
        data = encode(Request(ask.method, with_query(ask.path, ask.query), headers, body), pool.way.address)
        seconds = self.options.timeout + ask.waits
        answer = await pool.exchange(data, seconds, may_be_stale=ask.may_repeat)
        if answer.status >= 300:
            raise from_answer(answer)
        return answer

    # -- finding -----------------------------------------------------------------------------------------------------

    async def _reached(self) -> Pool:
        self._require_open()
        if self._pool is not None:
            return self._pool
        async with self._finding:
            if self._pool is None:
                await self._settle(await _found(lambda: locate(self._where, log.warning)))
            assert self._pool is not None
            return self._pool

    async def look_again(self) -> bool:
        """Whether anything is different now: another place, another token."""
        async with self._finding:
            before = self._pool, self._headers
            try:
                found = await _found(lambda: locate_again(self._where))
            except Problem as problem:
                log.debug("the server is not found again: %s", problem.detail)
                return False
            if found is not None:
                await self._settle(found)
            return (self._pool, self._headers) != before

    async def _settle(self, found: Located) -> None:
        token = found.token if self._tokens is None else await asyncio.to_thread(self._tokens)
        if token is None:
            raise Unauthenticated("missing_token", f"There is no token for {found.address}: give one, or set QD_TOKEN.")
        # Looking takes its time: whoever closed the client meanwhile has closed what there was, and nothing follows.
        self._require_open()
        self._headers = headers_with(token, found.trace)
        if self._pool is None or self._pool.way.address != found.address:
            if self._pool is not None:
                self._pool.close()
            way = Way(found.address, found.check, self.options.tls)
            self._pool = Pool(way, self.options.connections)

    def _require_open(self) -> None:
        if self._closing is None:
            raise RuntimeError("this client has been closed")


async def _found(look: Callable[[], T]) -> T:
    """Looking blocks, and reads files that may not be ours to read."""
    try:
        return await asyncio.to_thread(look)
    except OSError as wrong:
        what = f"{wrong.filename}: " if wrong.filename else ""
        raise Unreachable("server_unreachable", f"No server is found: {what}{reason_of(wrong)}.") from wrong


def headers_with(token: str, trace: str | None) -> dict[str, str]:
    headers = {"Accept": "application/json", "User-Agent": f"quarterdeck-sdk/{__version__}"}
    # An API key begins with its mark, which no JWT does.
    headers |= {"X-API-Key": token} if token.startswith("qd_") else {"Authorization": f"Bearer {token}"}
    return headers if trace is None else headers | {"Traceparent": trace}


def headers_of(ask: Ask, body: bytes | None) -> dict[str, str]:
    """What one call says beside what all of them do."""
    headers: dict[str, str] = {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if ask.key is not None:
        headers["Idempotency-Key"] = ask.key
    if ask.zone is not None:
        headers["X-Workspace-ID"] = ask.zone
    return headers


def _understood(answer: Answer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except (msgspec.DecodeError, RecursionError) as wrong:
        # Neither a refusal nor a fault that passes: the two sides do not speak of the same thing.
        raise Lost("garbled_answer", f"The server's answer is not understood: {wrong}.") from None


POLICY = Policy(max_attempts=0, base_ms=50, cap_ms=5_000)
"""How the pauses grow. How often is a question of patience, not of a number."""
BAD_GATEWAY = 502


@dataclass(slots=True)
class Patience:
    """For how long one call is begun again."""

    seconds: float
    was_in_doubt: bool = False

    def bears(self, problem: Problem, waited: float) -> bool:
        """Whether it is begun again so many seconds after it was begun first. The first unknown outcome is asked for
        however long it took: waiting for an answer may take longer than all patience."""
        is_first_doubt = is_unknown(problem) and not self.was_in_doubt
        self.was_in_doubt = self.was_in_doubt or is_first_doubt
        return waited <= self.seconds or (is_first_doubt and self.seconds > 0)


def pause(problem: Problem, attempt: int, *, repeats: bool, chance: float) -> float | None:
    """Seconds to wait after the attempt numbered `attempt` (from 1) ended so, or None: it is not to be made again.

    `repeats`: it may be made twice without being done twice.
    """
    if not (passes(problem) or (repeats and is_unknown(problem))):
        return None
    grown = delay(POLICY, attempt=attempt, chance=chance) / 1000
    # What the server asks for is the least; chance keeps those it told the same from coming in the same instant.
    return grown if problem.retry_after is None else problem.retry_after + grown * chance


def passes(problem: Problem) -> bool:
    """Whether nothing was done, and may be later."""
    if isinstance(problem, OutcomeUnknown | Stranger):
        return False
    if isinstance(problem, LimitReached):
        return problem.retry_after is not None
    return isinstance(problem, Unreachable | Unavailable) or problem.code == "connect_timeout"


def is_unknown(problem: Problem) -> bool:
    """Whether it may have been done. What cannot be read is none of these: it would be no better a second time."""
    if isinstance(problem, Internal):
        return problem.members.get("status") == BAD_GATEWAY
    return isinstance(problem, OutcomeUnknown | Lost | TimedOut) and problem.code != "garbled_answer"
