"""Dispatches a request: match the route, authorize the caller, decode, call the handler, respond, log."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from quarterdeck.core import trace_context
from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import iso, system_now
from quarterdeck.core.errors import Internal, Invalid, MethodNotAllowed, NotFound, OutcomeUnknown, Problem, Unavailable
from quarterdeck.core.ids import NAME_MAX, is_path_id, new_id
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.zones.rules import ZONE_NOT_FOUND, can_access_zone, hidden_zone_problem
from quarterdeck.http import problem_json
from quarterdeck.http.auth import Authenticator
from quarterdeck.http.decoding import decode_body, decode_query, read_body
from quarterdeck.http.json_logging import LineWriter
from quarterdeck.http.metrics import Metrics
from quarterdeck.http.request import ClientDisconnected, Request, cancel_on_disconnect
from quarterdeck.http.router import NAME_PARAMETERS, NUMBER_PARAMETERS, Router
from quarterdeck.http.stream_limits import OpenStreams, Stream, accepts_stream
from quarterdeck.store.interface import TransientError

log = logging.getLogger("quarterdeck.http")
JSON_HEADER = (b"content-type", b"application/json")
CLIENT_CLOSED_REQUEST = 499
"""The status in the log when the client disconnected before the response."""
ANONYMOUS = Caller(subject="", client_id="", zone_id="", scopes=frozenset())
PATH_WITHOUT_ESCAPES = re.compile(r"[A-Za-z0-9_.\-:/]{1,300}")
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class RawBody:
    """A response body that is not JSON: documentation, metrics."""

    content: bytes
    content_type: str


class _CompiledRoute:
    """A route with its body decoder and its label for logs and metrics."""

    __slots__ = ("decoder", "label", "needs_zone", "route", "uses_caller_zone")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.label = f"{route.method} {route.path}"
        self.decoder: msgspec.json.Decoder[object] | None = msgspec.json.Decoder(route.body) if route.body else None
        self.needs_zone = "{zone}" in route.path
        self.uses_caller_zone = route.is_in_caller_zone


class RequestHeaders:
    """The headers that the dispatcher uses, extracted in one pass."""

    __slots__ = (
        "api_key",
        "authorization",
        "content_length",
        "header_zone_id",
        "idempotency_key",
        "last_event_id",
        "request_id",
        "trace",
        "wants_stream",
    )

    def __init__(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.authorization: bytes | None = None
        self.api_key: bytes | None = None
        self.content_length: int | None = None
        self.idempotency_key: str | None = None
        self.trace: str | None = None
        self.last_event_id: str | None = None
        self.wants_stream = False
        self.header_zone_id: bytes | None = None
        """X-Workspace-ID: the zone for routes whose path does not contain one."""
        self.request_id = ""
        trace_count = 0
        for name, value in headers:
            if name == b"authorization":
                self.authorization = _append_header_value(self.authorization, value)
            elif name == b"content-length":
                self.content_length = int(value) if value.isdigit() else None
            elif name == b"idempotency-key":
                # Bytes that are not UTF-8 become a control character, which no key may contain.
                self.idempotency_key = value.decode("utf-8", "replace").replace("\ufffd", "\x00")
            elif name == b"x-api-key":
                self.api_key = _append_header_value(self.api_key, value)
            elif name == b"traceparent":
                # If the header is repeated, the right value is unknown, so neither is used.
                trace_count += 1
                self.trace = trace_context.parse_traceparent(value.decode("latin-1")) if trace_count == 1 else None
            elif name == b"accept":
                self.wants_stream = self.wants_stream or (b"event-stream" in value and accepts_stream(value))
            elif name == b"x-workspace-id":
                self.header_zone_id = _append_header_value(self.header_zone_id, value)
            elif name == b"last-event-id":
                self.last_event_id = value.decode("latin-1")
            elif name == b"x-request-id":
                text = value.decode("latin-1")
                self.request_id = text if is_path_id(text) else ""


def _append_header_value(previous: bytes | None, value: bytes) -> bytes:
    """Join repeated headers with a comma (RFC 9110).

    No credential or id contains a comma, so the joined value is refused: a proxy may have checked only one value.
    """
    return value if previous is None else b"%b, %b" % (previous, value)


class Dispatcher:
    def __init__(
        self,
        routes: Sequence[Route],
        authenticator: Authenticator,
        metrics: Metrics,
        request_log: LineWriter | None,
        streams: OpenStreams,
    ) -> None:
        self._router: Router[_CompiledRoute] = Router()
        for route in routes:
            self._router.add(route.method, route.path, _CompiledRoute(route))
        self._authenticator = authenticator
        self._metrics = metrics
        self._request_log = request_log
        self._streams = streams
        self._request_id_prefix = new_id()
        self._request_count = 0
        """Numbers the requests without X-Request-Id. Prefix and number are as unique as a UUID, at a tenth of its cost.
        """
        self.is_draining = False
        self.on_drain: list[Callable[[], None]] = []
        """Functions that end long polls and background work. Called when the server starts to shut down."""

    def drain(self) -> None:
        """Start to shut down: end all streams and long polls."""
        self.is_draining = True
        self._streams.drain()
        for callback in self.on_drain:
            callback()

    async def handle(self, request: Request) -> None:
        started_at = time.perf_counter()
        headers = RequestHeaders(request.headers)
        if not headers.request_id:
            self._request_count += 1
            headers.request_id = f"{self._request_id_prefix}-{self._request_count:x}"
        label = "unmatched"
        try:
            compiled, params = self._match(request)
            label = compiled.label
            reply = await self._call_handler(compiled, params, request, headers)
            if isinstance(reply, Stream):
                label = f"{label} (stream)"
                # The credential is checked repeatedly while the stream is open.
                recheck = partial(self._authorize, compiled, params, headers)
                status = await self._streams.serve(reply, headers.request_id, request, recheck)
            else:
                status = _send_reply(request, reply, headers.request_id)
        except Problem as problem:
            status = self._send_problem(request, problem, headers.request_id)
        except TransientError:  # from a read outside a lane; lanes convert this error to a problem
            status = self._send_problem(request, _database_unavailable(), headers.request_id)
        except ClientDisconnected:
            status = CLIENT_CLOSED_REQUEST
        except asyncio.CancelledError:
            # A request is cancelled only at shutdown, when the grace period has passed or a second signal arrives. A
            # client that is still connected gets a response; the task ends here.
            status = self._send_problem(request, _outcome_unknown(), headers.request_id)
        except Exception:
            # A bug fails this request with 500 and does not stop the server.
            log.exception("internal error in %s, request %s", label, headers.request_id)
            status = self._send_problem(request, _internal_error(), headers.request_id)
        self._record_request(request.path, label, status, headers, time.perf_counter() - started_at)

    # -- steps, in order ------------------------------------------------------------------------------------------

    def _match(self, request: Request) -> tuple[_CompiledRoute, dict[str, str]]:
        method = request.method
        match = self._router.find("GET" if method == "HEAD" else method, request.path)
        if match is None:
            raise NotFound("route_not_found", "No route matches this path. See /docs for all routes.")
        if match.invalid_parameter is not None:
            raise _invalid_path(match.invalid_parameter)
        if match.target is None:
            allowed = ", ".join(sorted(match.methods))
            raise MethodNotAllowed("method_not_allowed", f"This path only supports {allowed}.", allow=allowed)
        return match.target, match.params

    async def _call_handler(
        self, compiled: _CompiledRoute, params: dict[str, str], request: Request, headers: RequestHeaders
    ) -> object:
        route = compiled.route
        caller = await self._authorize(compiled, params, headers)
        body = None
        if compiled.decoder is not None:
            raw = await read_body(request, headers.content_length, route.body_bytes_max)
            body = decode_body(compiled.decoder, raw)
        query = decode_query(request.query, route.query) if route.query else None
        pending_reply = route.handler(
            Call(
                caller,
                params,
                body,
                query,
                headers.idempotency_key,
                headers.trace,
                headers.request_id,
                f"{request.path}?{request.query.decode('latin-1')}" if query is not None else "",
                headers.wants_stream and request.method == "GET",
                headers.last_event_id,
                request.is_unix_socket,
            )
        )
        try:
            return await (cancel_on_disconnect(pending_reply, request) if route.is_long_poll else pending_reply)
        except NotFound as problem:
            if compiled.uses_caller_zone and problem.code == ZONE_NOT_FOUND:
                # On these routes a missing zone gets the same error as a zone that is hidden from the caller.
                raise hidden_zone_problem(params["zone"]) from None
            raise

    async def _authorize(self, compiled: _CompiledRoute, params: dict[str, str], headers: RequestHeaders) -> Caller:
        scope = compiled.route.scope
        if scope is None:
            return ANONYMOUS
        caller = None
        if headers.authorization and not headers.api_key:
            # Nearly every token is cached. This lookup avoids the cost of a coroutine.
            caller = self._authenticator.cached_caller(headers.authorization)
        if caller is None:
            caller = await self._authenticator.authenticate(headers)
        self._authenticator.check_access(caller, scope, params["zone"] if compiled.needs_zone else None)
        if compiled.uses_caller_zone:
            params["zone"] = (
                caller.zone_id if headers.header_zone_id is None else _requested_zone(headers.header_zone_id, caller)
            )
        return caller

    # -- responses ------------------------------------------------------------------------------------------------

    def _send_problem(self, request: Request, problem: Problem, request_id: str) -> int:
        headers = problem_json.problem_headers(problem)
        headers.append((b"x-request-id", request_id.encode()))
        allow = problem.members.get("allow")
        if isinstance(allow, str):
            headers.append((b"allow", allow.encode()))
        bound = problem.members.get("bound")
        if isinstance(bound, str):
            self._metrics.record_quota_denial(bound)
        request.respond(problem.status, headers, problem_json.encode_body(problem, request_id))
        return problem.status

    def _record_request(self, path: str, label: str, status: int, headers: RequestHeaders, seconds: float) -> None:
        self._metrics.record_request(label, status, seconds)
        if self._request_log is not None:
            trace_member = f',"trace_id":"{trace_context.trace_id_of(headers.trace)}"' if headers.trace else ""
            self._request_log.write(
                f'{{"time":"{iso(system_now())}","level":"info","message":"request","route":"{label}",'
                f'"path":{_quote_path(path)},"status":{status},"ms":{seconds * 1000:.2f},'
                f'"request_id":"{headers.request_id}"{trace_member}}}\n'.encode()
            )


def _invalid_path(name: str) -> Invalid:
    expected = "1 to 128 letters, digits and _ . - :"
    if name in NUMBER_PARAMETERS:
        expected = "a number of at least 1"
    elif name in NAME_PARAMETERS:
        expected = f"a name of 1 to {NAME_MAX} characters"
    return Invalid("invalid_path", f"`{name}` in the path must be {expected}.", field=name)


def _requested_zone(header: bytes, caller: Caller) -> str:
    """Return the zone that X-Workspace-ID names.

    A zone that the caller cannot access and a zone that does not exist get the same 404, so that callers cannot find
    out which zones exist.
    """
    zone_id = header.decode("latin-1")
    if not is_path_id(zone_id):
        raise Invalid("invalid_workspace_id", "X-Workspace-ID must be 1 to 128 letters, digits and `_ . - :`.")
    if not can_access_zone(caller, zone_id):
        raise hidden_zone_problem(zone_id)
    return zone_id


def _send_reply(request: Request, reply: object, request_id: str) -> int:
    body, status, on_undelivered = reply, 200, None
    headers = [(b"x-request-id", request_id.encode())]
    if isinstance(reply, Reply):
        body, status, on_undelivered = reply.body, reply.status, reply.on_undelivered
        headers += [(name.encode(), value.encode("latin-1")) for name, value in reply.headers]
    if isinstance(body, RawBody):
        content = body.content
        headers.append((b"content-type", body.content_type.encode()))
    elif body is None:
        content = b""
    else:
        content = _encode(body)
        headers.append(JSON_HEADER)
    request.respond(status, headers, content, on_undelivered)
    return status


def _quote_path(path: str) -> str:
    """Encode a path, cut to 300 characters, as a JSON string. Most paths need no escaping, which is faster."""
    return f'"{path}"' if PATH_WITHOUT_ESCAPES.fullmatch(path) else _encode(path[:300]).decode()


def _database_unavailable() -> Unavailable:
    return Unavailable("database_unavailable", "The database is unavailable or too busy. Try again.", retry_after=1)


def _outcome_unknown() -> OutcomeUnknown:
    return OutcomeUnknown(
        "outcome_unknown",
        "The server stopped before it could answer, so the outcome is unknown. Repeat the request with the same "
        "Idempotency-Key, or read the current state first.",
        retry_after=1,
    )


def _internal_error() -> Internal:
    return Internal("internal_error", "Internal error. Search the server log for this `request_id`.")
