"""Sends calls to the server, and retries them if that is safe.

The first call locates the server and the token. Both are located again when the server is unreachable or the token is
no longer valid.
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
from quarterdeck.client.api import Query, auth_header, with_query
from quarterdeck.client.discovery import LocatedServer, ServerLocation, UntrustedServer, locate, locate_running
from quarterdeck.client.http_types import Lost, Request, Response, TimedOut, Unreachable, encode_request, error_text
from quarterdeck.client.pool import Connector, Pool
from quarterdeck.client.problems import problem_from_response, require_event_stream
from quarterdeck.core.errors import Fault, Internal, LimitReached, OutcomeUnknown, Problem, Unauthenticated, Unavailable
from quarterdeck.core.retry import Policy, backoff

log = logging.getLogger("quarterdeck.sdk")
T = TypeVar("T")
TokenSource = Callable[[], str]
"""Returns the current token each time it is called. It may block."""
STREAM_TIMEOUT_SECONDS = 90.0
"""The server writes to every stream at least once a minute."""


@dataclass(frozen=True, slots=True)
class Options:
    """Time-outs, retries and connections of a client."""

    timeout: float = 30.0
    """Seconds to wait for one response."""
    patience: float = 15.0
    """Seconds during which a failed call is retried, if a retry is safe. 0: never retry. After a lost or late response
    the call is retried at least once, even if this time has passed."""
    connections: int = 64
    """The maximum number of connections in use at once. Further calls wait."""
    tls: ssl.SSLContext | None = None
    """The TLS context for https. Default: trust the machine's certificate authorities."""


@dataclass(frozen=True, slots=True)
class ApiCall:
    method: str
    path: str
    query: Query | None = None
    body: object = None
    """Encoded as JSON. None sends no body."""
    key: str | None = None
    """The idempotency key."""
    is_idempotent: bool = False
    """Whether the call can be repeated safely although it has no key and is not a GET."""
    wait_seconds: float = 0.0
    """Seconds that the server may wait before it responds, in addition to the time-out."""
    zone: str | None = None
    """The zone header, for routes whose path does not contain the zone."""

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
        """Called by `close`, in order of registration. None once the transport is closed."""

    def add_close_callback(self, callback: Callable[[], None]) -> None:
        """Call a function once when the transport closes, however often it was added."""
        if self._close_callbacks is not None:
            self._close_callbacks[callback] = None

    def remove_close_callback(self, callback: Callable[[], None]) -> None:
        if self._close_callbacks is not None:
            self._close_callbacks.pop(callback, None)

    async def call(self, call: ApiCall, response_type: type[T]) -> T:
        """Make a call and decode its response. Raises a `Problem` if it fails."""
        return _decode_response(await self.send(call), response_type)

    async def send(self, call: ApiCall) -> Response:
        """Make a call and return its response. Raises a `Problem` if it fails."""
        body = None if call.body is None else msgspec.json.encode(call.body)
        clock = asyncio.get_running_loop().time
        started_at, attempt, has_rediscovered = clock(), 0, False
        retry_window = RetryWindow(self.options.patience)
        while True:
            attempt += 1
            try:
                return await self._send_once(call, body)
            except Unauthenticated:
                if has_rediscovered or not await self.rediscover():
                    raise
                has_rediscovered = True
            except Problem as problem:
                wait_seconds = retry_delay(problem, attempt, is_retry_safe=call.is_retry_safe, jitter=random.random())
                if wait_seconds is None or not retry_window.allows_retry(problem, clock() - started_at + wait_seconds):
                    if call.key is not None and isinstance(problem, Fault):
                        # This or an earlier attempt may have been processed. Only this key makes a retry safe.
                        problem.members["idempotency_key"] = call.key
                    raise
                log.debug("retrying %s %s in %.3f s: %s", call.method, call.path, wait_seconds, problem.detail)
                await asyncio.sleep(wait_seconds)
                if isinstance(problem, Unreachable):
                    await self.rediscover()

    @contextlib.asynccontextmanager
    async def stream(self, call: ApiCall, last_event_id: str | None) -> AsyncIterator[AsyncGenerator[bytes, None]]:
        """Open an event stream and yield its chunks. Not retried: the caller knows where to continue."""
        pool = await self._get_pool()
        headers = self._headers | {"Accept": "text/event-stream"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        request = Request(call.method, with_query(call.path, call.query), headers)
        async with pool.stream(encode_request(request, pool.connector.address), self.options.timeout) as (
            response,
            connection,
        ):
            require_event_stream(response)
            async with contextlib.aclosing(connection.iter_body(STREAM_TIMEOUT_SECONDS)) as chunks:
                yield chunks

    async def close(self) -> None:
        callbacks, self._close_callbacks = self._close_callbacks, None
        for callback in callbacks or ():
            callback()
        if self._pool is not None:
            self._pool.close()
        # The loop closes the sockets in its next iteration. Let it run one, because it may stop right after this call.
        await asyncio.sleep(0)

    async def _send_once(self, call: ApiCall, body: bytes | None) -> Response:
        pool = await self._get_pool()
        headers = self._headers | build_call_headers(call, body)
        data = encode_request(
            Request(call.method, with_query(call.path, call.query), headers, body), pool.connector.address
        )
        timeout_seconds = self.options.timeout + call.wait_seconds
        response = await pool.exchange(data, timeout_seconds, allow_repeat=call.is_retry_safe)
        if response.status >= 300:
            raise problem_from_response(response)
        return response

    # -- discovery ---------------------------------------------------------------------------------------------------

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
        """Locate the server and the token again. Returns whether either has changed."""
        async with self._discovery_lock:
            previous = self._pool, self._headers
            try:
                located = await _run_discovery(lambda: locate_running(self._location))
            except Problem as problem:
                log.debug("the server was not found again: %s", problem.detail)
                return False
            if located is not None:
                await self._use_server(located)
            return (self._pool, self._headers) != previous

    async def _use_server(self, located: LocatedServer) -> None:
        token = located.token if self._token_source is None else await asyncio.to_thread(self._token_source)
        if token is None:
            raise Unauthenticated("missing_token", f"No token for {located.address}. Pass `token` or set QD_TOKEN.")
        # The client may have been closed during discovery. A closed client must not open a new pool.
        self._require_open()
        self._headers = build_base_headers(token, located.trace)
        if self._pool is None or self._pool.connector.address != located.address:
            if self._pool is not None:
                self._pool.close()
            connector = Connector(located.address, located.check_peer, self.options.tls)
            self._pool = Pool(connector, self.options.connections)

    def _require_open(self) -> None:
        if self._close_callbacks is None:
            raise RuntimeError("this client is closed")


async def _run_discovery(discover: Callable[[], T]) -> T:
    """Run discovery in a thread, because it blocks. It reads files, so it may raise OSError."""
    try:
        return await asyncio.to_thread(discover)
    except OSError as error:
        file_prefix = f"{error.filename}: " if error.filename else ""
        raise Unreachable("server_unreachable", f"No server found: {file_prefix}{error_text(error)}.") from error


def build_base_headers(token: str, trace: str | None) -> dict[str, str]:
    headers = {"Accept": "application/json", "User-Agent": f"quarterdeck-sdk/{__version__}"}
    headers |= auth_header(token)
    return headers if trace is None else headers | {"Traceparent": trace}


def build_call_headers(call: ApiCall, body: bytes | None) -> dict[str, str]:
    """The headers of one call, in addition to the base headers."""
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
        # Neither a refusal nor a temporary fault: server and client disagree about the format.
        raise Lost("garbled_answer", f"The server's response is not valid: {error}.") from None


RETRY_POLICY = Policy(max_attempts=0, base_ms=50, cap_ms=5_000)
"""The backoff between retries. `Options.patience` limits their number."""
BAD_GATEWAY = 502


@dataclass(slots=True)
class RetryWindow:
    """How long one call is retried."""

    seconds: float
    had_unknown_outcome: bool = False

    def allows_retry(self, problem: Problem, elapsed_seconds: float) -> bool:
        """Whether the call is retried `elapsed_seconds` after its start.

        The first unknown outcome is retried even after the window, unless the window is 0: waiting for the response may
        have taken longer than the window.
        """
        is_first_unknown = is_outcome_unknown(problem) and not self.had_unknown_outcome
        self.had_unknown_outcome = self.had_unknown_outcome or is_first_unknown
        return elapsed_seconds <= self.seconds or (is_first_unknown and self.seconds > 0)


def retry_delay(problem: Problem, attempt: int, *, is_retry_safe: bool, jitter: float) -> float | None:
    """Seconds to wait before the next attempt, or None if the call must not be retried.

    `attempt` is the number of the failed attempt, from 1. `is_retry_safe`: a repetition takes effect only once.
    """
    if not (is_transient(problem) or (is_retry_safe and is_outcome_unknown(problem))):
        return None
    backoff_seconds = backoff(RETRY_POLICY, attempt=attempt, jitter=jitter) / 1000
    # `retry_after` is the minimum. The jitter spreads clients that got the same value.
    return backoff_seconds if problem.retry_after is None else problem.retry_after + backoff_seconds * jitter


def is_transient(problem: Problem) -> bool:
    """Whether the call had no effect and may succeed later."""
    if isinstance(problem, OutcomeUnknown | UntrustedServer):
        return False
    if isinstance(problem, LimitReached):
        return problem.retry_after is not None
    return isinstance(problem, Unreachable | Unavailable) or problem.code == "connect_timeout"


def is_outcome_unknown(problem: Problem) -> bool:
    """Whether the call may have been processed. False for a malformed response, because a retry would not help."""
    if isinstance(problem, Internal):
        return problem.members.get("status") == BAD_GATEWAY
    return isinstance(problem, OutcomeUnknown | Lost | TimedOut) and problem.code != "garbled_answer"
