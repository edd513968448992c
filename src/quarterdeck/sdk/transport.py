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
from quarterdeck.client.discovery import LocatedServer, ServerLocation, UntrustedServer, locate, locate_running
from quarterdeck.client.http_types import Lost, Request, Response, TimedOut, Unreachable, encode_request, error_text
from quarterdeck.client.pool import Connector, Pool
from quarterdeck.client.problems import problem_from_response
from quarterdeck.core.errors import Fault, Internal, LimitReached, OutcomeUnknown, Problem, Unauthenticated, Unavailable
from quarterdeck.core.retry import Policy, backoff

log = logging.getLogger("quarterdeck.sdk")
T = TypeVar("T")
TokenSource = Callable[[], str]
"""Gives the present token, each time it is asked; may block."""
STREAM_TIMEOUT_SECONDS = 90.0
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
class ApiCall:
    """One call."""

    method: str
    path: str
    query: Query | None = None
    body: object = None
    """Encoded as JSON; None sends none."""
    key: str | None = None
    """Its idempotency key."""
    is_idempotent: bool = False
    """Whether it may be made twice without being done twice, for another reason than its key or its method."""
    wait_seconds: float = 0.0
    """Seconds that the server may take on purpose."""
    zone: str | None = None
    """Of routes whose path does not name it."""

    @property
    def is_retry_safe(self) -> bool:
        return self.is_idempotent or self.key is not None or self.method == "GET"


class Transport:
    def __init__(self, location: ServerLocation, options: Options, token_source: TokenSource | None = None) -> None:
        self._location = location
        self.options = options
        self._token_source = token_source
        self._discovery_lock = asyncio.Lock()
        self._pool: Pool | None = None
        self._headers: dict[str, str] = {}
        self._close_callbacks: dict[Callable[[], None], None] | None = {}
        """What is to be done at the end; None: it has come."""

    def add_close_callback(self, callback: Callable[[], None]) -> None:
        """Has something done at the end, once, however often it was asked for."""
        if self._close_callbacks is not None:
            self._close_callbacks[callback] = None

    def remove_close_callback(self, callback: Callable[[], None]) -> None:
        """It has been done before."""
        if self._close_callbacks is not None:
            self._close_callbacks.pop(callback, None)

    async def call(self, call: ApiCall, response_type: type[T]) -> T:
        """The answer, understood. What the server refuses is raised as a `Problem`."""
        return _decode_response(await self.send(call), response_type)

    async def send(self, call: ApiCall) -> Response:
        """The answer as it is, of a call that succeeded."""
        body = None if call.body is None else msgspec.json.encode(call.body)
        clock = asyncio.get_running_loop().time
        started_at, attempt, has_renewed = clock(), 0, False
        budget = RetryBudget(self.options.patience)
        while True:
            attempt += 1
            try:
                return await self._send_once(call, body)
            except Unauthenticated:
                if has_renewed or not await self.rediscover():
                    raise
                has_renewed = True
            except Problem as problem:
                wait_seconds = retry_delay(problem, attempt, is_retry_safe=call.is_retry_safe, jitter=random.random())
                if wait_seconds is None or not budget.allows_retry(problem, clock() - started_at + wait_seconds):
                    if call.key is not None and isinstance(problem, Fault):
                        # It may have been done, if not this time then before: only this key asks for the same again.
                        problem.members["idempotency_key"] = call.key
                    raise
                log.debug("%s %s is made again in %.3f s: %s", call.method, call.path, wait_seconds, problem.detail)
                await asyncio.sleep(wait_seconds)
                if isinstance(problem, Unreachable):
                    await self.rediscover()

    @contextlib.asynccontextmanager
    async def stream(self, call: ApiCall, last_event_id: str | None) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """One answer without an end, in pieces. Not made again: whoever follows knows better from where."""
        pool = await self._get_pool()
        headers = self._headers | {"Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        request = Request(call.method, with_query(call.path, call.query), headers)
        async with pool.stream(encode_request(request, pool.connector.address), self.options.timeout) as (
            response,
            connection,
        ):
            if response.status >= 300:
                raise problem_from_response(response)
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise Lost("garbled_answer", "The answer is no stream: is this a Quarterdeck server?")
            async with contextlib.aclosing(connection.iter_body(STREAM_TIMEOUT_SECONDS)) as chunks:
                yield chunks

    async def close(self) -> None:
        callbacks, self._close_callbacks = self._close_callbacks, None
        for callback in callbacks or ():
            callback()
        if self._pool is not None:
            self._pool.close()
        # One turn of the loop, in which the sockets are really closed: it may be the last there is.
        await asyncio.sleep(0)

    async def _send_once(self, call: ApiCall, body: bytes | None) -> Response:
        pool = await self._get_pool()
        headers = self._headers | build_call_headers(call, body)
        data = encode_request(
            Request(call.method, with_query(call.path, call.query), headers, body), pool.connector.address
        )
        seconds = self.options.timeout + call.wait_seconds
        response = await pool.exchange(data, seconds, allow_stale=call.is_retry_safe)
        if response.status >= 300:
            raise problem_from_response(response)
        return response

    # -- finding -----------------------------------------------------------------------------------------------------

    async def _get_pool(self) -> Pool:
        self._require_open()
        if self._pool is not None:
            return self._pool
        async with self._discovery_lock:
            if self._pool is None:
                await self._use_server(await _run_discovery(lambda: locate(self._location, log.warning)))
            assert self._pool is not None
            return self._pool

    async def rediscover(self) -> bool:
        """Whether anything is different now: another place, another token."""
        async with self._discovery_lock:
            previous = self._pool, self._headers
            try:
                located = await _run_discovery(lambda: locate_running(self._location))
            except Problem as problem:
                log.debug("the server is not found again: %s", problem.detail)
                return False
            if located is not None:
                await self._use_server(located)
            return (self._pool, self._headers) != previous

    async def _use_server(self, located: LocatedServer) -> None:
        token = located.token if self._token_source is None else await asyncio.to_thread(self._token_source)
        if token is None:
            raise Unauthenticated(
                "missing_token", f"There is no token for {located.address}: give one, or set QD_TOKEN."
            )
        # Looking takes its time: whoever closed the client meanwhile has closed what there was, and nothing follows.
        self._require_open()
        self._headers = build_base_headers(token, located.trace)
        if self._pool is None or self._pool.connector.address != located.address:
            if self._pool is not None:
                self._pool.close()
            connector = Connector(located.address, located.check_peer, self.options.tls)
            self._pool = Pool(connector, self.options.connections)

    def _require_open(self) -> None:
        if self._close_callbacks is None:
            raise RuntimeError("this client has been closed")


async def _run_discovery(discover: Callable[[], T]) -> T:
    """Looking blocks, and reads files that may not be ours to read."""
    try:
        return await asyncio.to_thread(discover)
    except OSError as error:
        file_prefix = f"{error.filename}: " if error.filename else ""
        raise Unreachable("server_unreachable", f"No server is found: {file_prefix}{error_text(error)}.") from error


def build_base_headers(token: str, trace: str | None) -> dict[str, str]:
    headers = {"Accept": "application/json", "User-Agent": f"quarterdeck-sdk/{__version__}"}
    # An API key begins with its mark, which no JWT does.
    headers |= {"X-API-Key": token} if token.startswith("qd_") else {"Authorization": f"Bearer {token}"}
    return headers if trace is None else headers | {"Traceparent": trace}


def build_call_headers(call: ApiCall, body: bytes | None) -> dict[str, str]:
    """What one call says beside what all of them do."""
    headers: dict[str, str] = {}
    if body is not None:
        headers["Content-Type"] = "application/json"
    if call.key is not None:
        headers["Idempotency-Key"] = call.key
    if call.zone is not None:
        headers["X-Workspace-ID"] = call.zone
    return headers


def _decode_response(response: Response, response_type: type[T]) -> T:
    try:
        return msgspec.json.decode(response.body, type=response_type)
    except (msgspec.DecodeError, RecursionError) as error:
        # Neither a refusal nor a fault that passes: the two sides do not speak of the same thing.
        raise Lost("garbled_answer", f"The server's answer is not understood: {error}.") from None


RETRY_POLICY = Policy(max_attempts=0, base_ms=50, cap_ms=5_000)
"""How the pauses grow. How often is a question of patience, not of a number."""
BAD_GATEWAY = 502


@dataclass(slots=True)
class RetryBudget:
    """For how long one call is begun again."""

    seconds: float
    had_unknown_outcome: bool = False

    def allows_retry(self, problem: Problem, elapsed: float) -> bool:
        """Whether it is begun again so many seconds after it was begun first. The first unknown outcome is asked for
        however long it took: waiting for an answer may take longer than all patience."""
        is_first_unknown = is_outcome_unknown(problem) and not self.had_unknown_outcome
        self.had_unknown_outcome = self.had_unknown_outcome or is_first_unknown
        return elapsed <= self.seconds or (is_first_unknown and self.seconds > 0)


def retry_delay(problem: Problem, attempt: int, *, is_retry_safe: bool, jitter: float) -> float | None:
    """Seconds to wait after the attempt numbered `attempt` (from 1) ended so, or None: it is not to be made again.

    `repeats`: it may be made twice without being done twice.
    """
    if not (is_transient(problem) or (is_retry_safe and is_outcome_unknown(problem))):
        return None
    backoff_seconds = backoff(RETRY_POLICY, attempt=attempt, jitter=jitter) / 1000
    # What the server asks for is the least; chance keeps those it told the same from coming in the same instant.
    return backoff_seconds if problem.retry_after is None else problem.retry_after + backoff_seconds * jitter


def is_transient(problem: Problem) -> bool:
    """Whether nothing was done, and may be later."""
    if isinstance(problem, OutcomeUnknown | UntrustedServer):
        return False
    if isinstance(problem, LimitReached):
        return problem.retry_after is not None
    return isinstance(problem, Unreachable | Unavailable) or problem.code == "connect_timeout"


def is_outcome_unknown(problem: Problem) -> bool:
    """Whether it may have been done. What cannot be read is none of these: it would be no better a second time."""
    if isinstance(problem, Internal):
        return problem.members.get("status") == BAD_GATEWAY
    return isinstance(problem, OutcomeUnknown | Lost | TimedOut) and problem.code != "garbled_answer"
