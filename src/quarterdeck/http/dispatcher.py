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
from quarterdeck.domain.zones.rules import ZONE_NOT_FOUND, may_enter, zone_hidden
from quarterdeck.http import problem_json
from quarterdeck.http.auth import Authenticator
from quarterdeck.http.decoding import decode_body, decode_query, read_body
from quarterdeck.http.json_logging import LineWriter
from quarterdeck.http.metrics import Metrics
from quarterdeck.http.request import Gone, Request, while_there
from quarterdeck.http.router import NAMES, NUMBERS, Router
from quarterdeck.http.stream_limits import Stream, Streams, accepts_stream
from quarterdeck.store.interface import TransientError

log = logging.getLogger("quarterdeck.http")
JSON = (b"content-type", b"application/json")
GONE = 499
"""What is logged when nobody was there any more to be answered."""
ANYBODY = Caller(subject="", client_id="", zone_id="", scopes=frozenset())
PLAIN_PATH = re.compile(r"[A-Za-z0-9_.\-:/]{1,300}")
_encode = msgspec.json.Encoder().encode


class Page(msgspec.Struct, frozen=True):
    """A body that is not JSON: documentation, metrics."""

    content: bytes
    content_type: str


class _Served:
    """A route with its decoder made and its label spelt."""

    __slots__ = ("decoder", "label", "needs_zone", "route", "takes_callers_zone")

    def __init__(self, route: Route) -> None:
        self.route = route
        self.label = f"{route.method} {route.path}"
        self.decoder: msgspec.json.Decoder[object] | None = msgspec.json.Decoder(route.body) if route.body else None
        self.needs_zone = "{zone}" in route.path
        self.takes_callers_zone = route.in_callers_zone


class Head:
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
        "zone",
    )

    def __init__(self, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.authorization: bytes | None = None
        self.api_key: bytes | None = None
        self.content_length: int | None = None
        self.idempotency_key: str | None = None
        self.trace: str | None = None
        self.last_event_id: str | None = None
        self.wants_stream = False
        self.zone: bytes | None = None
        """Which zone is meant, by a path that does not say it."""
        self.request_id = ""
        traces = 0
        for name, value in headers:
            if name == b"authorization":
                self.authorization = _joined(self.authorization, value)
            elif name == b"content-length":
                self.content_length = int(value) if value.isdigit() else None
            elif name == b"idempotency-key":
                # Bytes that are no text become a control character, which no key may hold.
                self.idempotency_key = value.decode("utf-8", "replace").replace("\ufffd", "\x00")
            elif name == b"x-api-key":
                self.api_key = _joined(self.api_key, value)
            elif name == b"traceparent":
                # Two of them are none: which is meant, nobody can know.
                traces += 1
                self.trace = trace_context.parent_of(value.decode("latin-1")) if traces == 1 else None
            elif name == b"accept":
                self.wants_stream = self.wants_stream or (b"event-stream" in value and accepts_stream(value))
            elif name == b"x-workspace-id":
                self.zone = _joined(self.zone, value)
            elif name == b"last-event-id":
                self.last_event_id = value.decode("latin-1")
            elif name == b"x-request-id":
                text = value.decode("latin-1")
                self.request_id = text if is_path_id(text) else ""


def _joined(before: bytes | None, value: bytes) -> bytes:
    """A repeated header is one with a comma in it (RFC 9110), and neither a credential nor an id holds a comma: two are
    refused, for a proxy before us may have judged the other one."""
    return value if before is None else b"%b, %b" % (before, value)


class Shell:
    def __init__(
        self,
        routes: Sequence[Route],
        authenticator: Authenticator,
        metrics: Metrics,
        lines: LineWriter | None,
        streams: Streams,
    ) -> None:
        self._router: Router[_Served] = Router()
        for route in routes:
            self._router.add(route.method, route.path, _Served(route))
        self._authenticator = authenticator
        self._metrics = metrics
        self._lines = lines
        self._streams = streams
        self._prefix = new_id()
        self._requests = 0
        """Requests without an id of their own are numbered: as unique as a UUID, at a tenth of its cost."""
        self.draining = False
        self.check_agent: Callable[[Caller], Awaitable[None]] | None = None
        """Refuses a token whose agent was terminated, where the room that is asked knows nothing of agents. The agent
        may end between this look and the commit; where agents are known, the transaction itself looks."""
        self.on_drain: list[Callable[[], None]] = []
        """Told that the server stops: whoever has somebody wait for long lets them go."""

    def drain(self) -> None:
        """Answers without an end come to theirs, and whoever waits for long is let go."""
        self.draining = True
        self._streams.drain()
        for callback in self.on_drain:
            callback()

    async def answer(self, request: Request) -> None:
        began = time.perf_counter()
        head = Head(request.headers)
        if not head.request_id:
            self._requests += 1
            head.request_id = f"{self._prefix}-{self._requests:x}"
        label = "unmatched"
        try:
            served, params = self._match(request)
            label = served.label
            reply = await self._reply(served, params, request, head)
            if isinstance(reply, Stream):
                label = f"{label} (stream)"
                # The same credential is judged again and again while the stream is open.
                again = partial(self._admit, served, params, head)
                status = await self._streams.serve(reply, head.request_id, request, again)
            else:
                status = _send(request, reply, head.request_id)
        except Problem as problem:
            status = self._send_problem(request, problem, head.request_id)
        except TransientError:  # from a read that went straight to the store; lanes answer for themselves
            status = self._send_problem(request, _away(), head.request_id)
        except Gone:
            status = GONE
        except asyncio.CancelledError:
            # Only the end of the grace cancels a request, and then the task ends right here. Whoever still listens is
            # told what is known of its request.
            status = self._send_problem(request, _cut_off(), head.request_id)
        except Exception:
            # The last resort: a defect must cost its caller a 500, not its neighbours the server.
            log.exception("a defect in %s, request %s", label, head.request_id)
            status = self._send_problem(request, _defect(), head.request_id)
        self._record(request.path, label, status, head, time.perf_counter() - began)

    # -- the steps, in order --------------------------------------------------------------------------------------

    def _match(self, request: Request) -> tuple[_Served, dict[str, str]]:
        method = request.method
        match = self._router.find("GET" if method == "HEAD" else method, request.path)
        if match is None:
            raise NotFound("route_not_found", "There is nothing at this path; /docs lists what there is.")
        if match.misnamed is not None:
            raise _misnamed(match.misnamed)
        if match.target is None:
            allowed = ", ".join(sorted(match.methods))
            raise MethodNotAllowed("method_not_allowed", f"This path answers to {allowed}.", allow=allowed)
        return match.target, match.params

    async def _reply(self, served: _Served, params: dict[str, str], request: Request, head: Head) -> object:
        route = served.route
        caller = await self._admit(served, params, head)
        body = None
        if served.decoder is not None:
            raw = await read_body(request, head.content_length, route.body_max)
            body = decode_body(served.decoder, raw)
        query = decode_query(request.query, route.query) if route.query else None
        answering = route.handler(
            Call(
                caller,
                params,
                body,
                query,
                head.idempotency_key,
                head.trace,
                head.request_id,
                f"{request.path}?{request.query.decode('latin-1')}" if query is not None else "",
                head.wants_stream and request.method == "GET",
                head.last_event_id,
                request.is_on_socket,
            )
        )
        try:
            return await (while_there(answering, request) if route.waits else answering)
        except NotFound as problem:
            if served.takes_callers_zone and problem.code == ZONE_NOT_FOUND:
                # In the words of this plane, and the same as for one that is not there for this caller.
                raise zone_hidden(params["zone"]) from None
            raise

    async def _admit(self, served: _Served, params: dict[str, str], head: Head) -> Caller:
        scope = served.route.scope
        if scope is None:
            return ANYBODY
        caller = None
        if head.authorization and not head.api_key:
            # The way of nearly every request, without a coroutine.
            caller = self._authenticator.known(head.authorization)
        if caller is None:
            caller = await self._authenticator.identify(head)
        self._authenticator.check(caller, scope, params["zone"] if served.needs_zone else None)
        if served.takes_callers_zone:
            params["zone"] = caller.zone_id if head.zone is None else _meant(head.zone, caller)
        elif caller.agent_id is not None and self.check_agent is not None:
            await self.check_agent(caller)
        return caller

    # -- answers --------------------------------------------------------------------------------------------------

    def _send_problem(self, request: Request, problem: Problem, request_id: str) -> int:
        headers = problem_json.headers(problem)
        headers.append((b"x-request-id", request_id.encode()))
        allow = problem.members.get("allow")
        if isinstance(allow, str):
            headers.append((b"allow", allow.encode()))
        bound = problem.members.get("bound")
        if isinstance(bound, str):
            self._metrics.denied(bound)
        request.answer(problem.status, headers, problem_json.body(problem, request_id))
        return problem.status

    def _record(self, path: str, label: str, status: int, head: Head, seconds: float) -> None:
        self._metrics.request(label, status, seconds)
        if self._lines is not None:
            traced = f',"trace_id":"{trace_context.id_of(head.trace)}"' if head.trace else ""
            self._lines.write(
                f'{{"time":"{iso(system_now())}","level":"info","message":"request","route":"{label}",'
                f'"path":{_quoted(path)},"status":{status},"ms":{seconds * 1000:.2f},'
                f'"request_id":"{head.request_id}"{traced}}}\n'.encode()
            )


def _misnamed(name: str) -> Invalid:
    form = "1 to 128 letters, digits and _ . - :"
    if name in NUMBERS:
        form = "a number from 1 on"
    elif name in NAMES:
        form = f"a name of 1 to {NAME_MAX} characters"
    return Invalid("invalid_path", f"What stands for `{name}` in the path is not {form}.", field=name)


def _meant(header: bytes, caller: Caller) -> str:
    """The zone that a caller says it means. One it may not enter is not there for it: nobody learns which there are."""
    zone_id = header.decode("latin-1")
    if not is_path_id(zone_id):
        raise Invalid("invalid_workspace_id", "X-Workspace-ID is not of the form of an id.")
    if not may_enter(caller, zone_id):
        raise zone_hidden(zone_id)
    return zone_id


def _send(request: Request, answer: object, request_id: str) -> int:
    body, status, unsent = answer, 200, None
    headers = [(b"x-request-id", request_id.encode())]
    if isinstance(answer, Reply):
        body, status, unsent = answer.body, answer.status, answer.unsent
        headers += [(name.encode(), value.encode("latin-1")) for name, value in answer.headers]
    if isinstance(body, Page):
        content = body.content
        headers.append((b"content-type", body.content_type.encode()))
    elif body is None:
        content = b""
    else:
        content = _encode(body)
        headers.append(JSON)
    request.answer(status, headers, content, unsent)
    return status


def _quoted(path: str) -> str:
    """A path as JSON text: most need no more than quotation marks."""
    return f'"{path}"' if PLAIN_PATH.fullmatch(path) else _encode(path[:300]).decode()


def _away() -> Unavailable:
    return Unavailable("database_unavailable", "The database is away or too busy; try again.", retry_after=1)


def _cut_off() -> OutcomeUnknown:
    return OutcomeUnknown(
        "outcome_unknown",
        "The server stopped before it could answer. Repeat the request with the same Idempotency-Key, or look "
        "before repeating.",
        retry_after=1,
    )


def _defect() -> Internal:
    return Internal("internal_error", "This request met a defect of the server; its log has the details.")
