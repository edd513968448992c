"""One request, from its first byte to its log line."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from quarterdeck.core import trace_context
from quarterdeck.core.caller import Caller
from quarterdeck.core.clock import iso, system_now
from quarterdeck.core.errors import Internal, Invalid, MethodNotAllowed, NotFound, OutcomeUnknown, Problem, Unavailable
from quarterdeck.core.ids import NAME_MAX, is_path_id, new_id
from quarterdeck.core.routing import Call, Reply, Route
from quarterdeck.domain.zones.rules import ZONE_NOT_FOUND, can_access_zone, workspace_not_found
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
"""What is logged when nobody was there any more to be answered."""
ANONYMOUS = Caller(subject="", client_id="", zone_id="", scopes=frozenset())
UNQUOTED_PATH = re.compile(r"[A-Za-z0-9_.\-:/]{1,300}")
_encode = msgspec.json.Encoder().encode


class RawBody(msgspec.Struct, frozen=True):
    """A body that is not JSON: documentation, metrics."""

    content: bytes
    content_type: str


class _CompiledRoute:
    """A route with its decoder made and its label spelt."""

    __slots__ = ("decoder", "label", "needs_zone", "route", "uses_caller_zone")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.label = f"{route.method} {route.path}"
        self.decoder: msgspec.json.Decoder[object] | None = msgspec.json.Decoder(route.body) if route.body else None
        self.needs_zone = "{zone}" in route.path
        self.uses_caller_zone = route.is_in_caller_zone


class RequestHeaders:
    """The headers this shell cares for, found in one pass."""

    __slots__ = (
        "api_key",
        "authorization",
        "content_length",
        "idempotency_key",
        "last_event_id",
        "request_id",
        "trace",
        "wants_stream",
        "workspace_id",
    )

    def __init__(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.authorization: bytes | None = None
        self.api_key: bytes | None = None
        self.content_length: int | None = None
        self.idempotency_key: str | None = None
        self.trace: str | None = None
        self.last_event_id: str | None = None
        self.wants_stream = False
        self.workspace_id: bytes | None = None
        """Which zone is meant, by a path that does not say it."""
        self.request_id = ""
        trace_count = 0
        for name, value in headers:
            if name == b"authorization":
                self.authorization = _append_header_value(self.authorization, value)
            elif name == b"content-length":
                self.content_length = int(value) if value.isdigit() else None
            elif name == b"idempotency-key":
                # Bytes that are no text become a control character, which no key may hold.
                self.idempotency_key = value.decode("utf-8", "replace").replace("\ufffd", "\x00")
            elif name == b"x-api-key":
                self.api_key = _append_header_value(self.api_key, value)
            elif name == b"traceparent":
                # Two of them are none: which is meant, nobody can know.
                trace_count += 1
                self.trace = trace_context.parse_traceparent(value.decode("latin-1")) if trace_count == 1 else None
            elif name == b"accept":
                self.wants_stream = self.wants_stream or (b"event-stream" in value and accepts_stream(value))
            elif name == b"x-workspace-id":
                self.workspace_id = _append_header_value(self.workspace_id, value)
            elif name == b"last-event-id":
                self.last_event_id = value.decode("latin-1")
            elif name == b"x-request-id":
                text = value.decode("latin-1")
                self.request_id = text if is_path_id(text) else ""


def _append_header_value(previous: bytes | None, value: bytes) -> bytes:
    """A repeated header is one with a comma in it (RFC 9110), and neither a credential nor an id holds a comma: two are
    refused, for a proxy before us may have judged the other one."""
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
        """Requests without an id of their own are numbered: as unique as a UUID, at a tenth of its cost."""
        self.is_draining = False
        self.check_agent: Callable[[Caller], Awaitable[None]] | None = None
        """Refuses a token whose agent was terminated, where the room that is asked knows nothing of agents. The agent
        may end between this look and the commit; where agents are known, the transaction itself looks."""
        self.on_drain: list[Callable[[], None]] = []
        """Told that the server stops: whoever has somebody wait for long lets them go."""

    def drain(self) -> None:
        """Answers without an end come to theirs, and whoever waits for long is let go."""
        self.is_draining = True
        self._streams.drain()
        for callback in self.on_drain:
            callback()

    async def handle(self, request: Request) -> None:
        started = time.perf_counter()
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
                # The same credential is judged again and again while the stream is open.
                recheck = partial(self._authorize, compiled, params, headers)
                status = await self._streams.serve(reply, headers.request_id, request, recheck)
            else:
                status = _send_reply(request, reply, headers.request_id)
        except Problem as problem:
            status = self._send_problem(request, problem, headers.request_id)
        except TransientError:  # from a read that went straight to the store; lanes answer for themselves
            status = self._send_problem(request, _database_unavailable(), headers.request_id)
        except ClientDisconnected:
            status = CLIENT_CLOSED_REQUEST
        except asyncio.CancelledError:
            # Only the end of the grace cancels a request, and then the task ends right here. Whoever still listens is
            # told what is known of its request.
            status = self._send_problem(request, _outcome_unknown(), headers.request_id)
        except Exception:
            # The last resort: a defect must cost its caller a 500, not its neighbours the server.
            log.exception("a defect in %s, request %s", label, headers.request_id)
            status = self._send_problem(request, _internal_error(), headers.request_id)
        self._record_request(request.path, label, status, headers, time.perf_counter() - started)

    # -- the steps, in order --------------------------------------------------------------------------------------

    def _match(self, request: Request) -> tuple[_CompiledRoute, dict[str, str]]:
        method = request.method
        match = self._router.find("GET" if method == "HEAD" else method, request.path)
        if match is None:
            raise NotFound("route_not_found", "There is nothing at this path; /docs lists what there is.")
        if match.invalid_parameter is not None:
            raise _invalid_path(match.invalid_parameter)
        if match.target is None:
            allowed = ", ".join(sorted(match.methods))
            raise MethodNotAllowed("method_not_allowed", f"This path answers to {allowed}.", allow=allowed)
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
                request.is_on_socket,
            )
        )
        try:
            return await (cancel_on_disconnect(pending_reply, request) if route.is_long_poll else pending_reply)
        except NotFound as problem:
            if compiled.uses_caller_zone and problem.code == ZONE_NOT_FOUND:
                # In the words of this plane, and the same as for one that is not there for this caller.
                raise workspace_not_found(params["zone"]) from None
            raise

    async def _authorize(self, compiled: _CompiledRoute, params: dict[str, str], headers: RequestHeaders) -> Caller:
        scope = compiled.route.scope
        if scope is None:
            return ANONYMOUS
        caller = None
        if headers.authorization and not headers.api_key:
            # The way of nearly every request, without a coroutine.
            caller = self._authenticator.cached_caller(headers.authorization)
        if caller is None:
            caller = await self._authenticator.authenticate(headers)
        self._authenticator.check_access(caller, scope, params["zone"] if compiled.needs_zone else None)
        if compiled.uses_caller_zone:
            params["zone"] = (
                caller.zone_id if headers.workspace_id is None else _requested_zone(headers.workspace_id, caller)
            )
        elif caller.agent_id is not None and self.check_agent is not None:
            await self.check_agent(caller)
        return caller

    # -- answers --------------------------------------------------------------------------------------------------

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
        expected = "a number from 1 on"
    elif name in NAME_PARAMETERS:
        expected = f"a name of 1 to {NAME_MAX} characters"
    return Invalid("invalid_path", f"What stands for `{name}` in the path is not {expected}.", field=name)


def _requested_zone(header: bytes, caller: Caller) -> str:
    """The zone that a caller says it means. One it may not enter is not there for it: nobody learns which there are."""
    zone_id = header.decode("latin-1")
    if not is_path_id(zone_id):
        raise Invalid("invalid_workspace_id", "X-Workspace-ID is not of the form of an id.")
    if not can_access_zone(caller, zone_id):
        raise workspace_not_found(zone_id)
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
    """A path as JSON text: most need no more than quotation marks."""
    return f'"{path}"' if UNQUOTED_PATH.fullmatch(path) else _encode(path[:300]).decode()


def _database_unavailable() -> Unavailable:
    return Unavailable("database_unavailable", "The database is away or too busy; try again.", retry_after=1)


def _outcome_unknown() -> OutcomeUnknown:
    return OutcomeUnknown(
        "outcome_unknown",
        "The server stopped before it could answer. Repeat the request with the same Idempotency-Key, or look "
        "before repeating.",
        retry_after=1,
    )


def _internal_error() -> Internal:
    return Internal("internal_error", "This request met a defect of the server; its log has the details.")
