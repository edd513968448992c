"""One client: sends calls on its own connection, to any server that responds, and records every call."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quarterdeck.core.caller import COORDINATOR_ADMIN, LIFECYCLE
from quarterdeck.http.auth import Grant
from tests.support.client_pool import SERVER_GONE
from tests.support.eventually import eventually
from tests.support.raw_http import RawConnection, build_request
from tests.support.session_plane_attack.history_writer import HistoryLine, now_ms
from tests.support.session_plane_attack.run_state import RunState

TIMEOUT_SECONDS = 5.0
"""Seconds to wait for a response. A frozen server sends none, so the client switches to another."""
UNKNOWN_STATUSES = (None, 500, 502, 504)
APPLICATION = "app"


@dataclass(frozen=True)
class ApiCall:
    op: str
    method: str
    path: str
    """The path below the zone's."""
    body: dict[str, object] | None = None
    recorded_request: dict[str, object] = field(default_factory=dict)
    """The part of the request that is recorded."""
    session: str | None = None
    """The session that the token acts for, if any."""
    key: str | None = None
    token: str | None = None
    """A token to use instead of the client's own."""


@dataclass(frozen=True)
class ApiResponse:
    status: int | None
    body: dict[str, object]

    @property
    def is_success(self) -> bool:
        return self.status is not None and self.status < 300

    @property
    def is_unknown(self) -> bool:
        return self.status in UNKNOWN_STATUSES or self.body.get("error") == "outcome_unknown"

    @property
    def should_retry(self) -> bool:
        """Whether the outcome is unknown or the server was unavailable."""
        return self.is_unknown or self.status == 503

    def text(self, name: str) -> str:
        return str(self.body.get(name) or "")


class RecordingClient:
    def __init__(self, name: str, zone: str, state: RunState) -> None:
        self.name = name
        self.zone = zone
        self.rng = random.Random(f"{state.seed} {name}")
        self.known_ids = state.zones[zone]
        self._state = state
        self._connection: RawConnection | None = None
        self._slot = self.rng.randrange(len(state.servers))
        self._own_token = ""

    async def send(self, call: ApiCall, timeout: float = TIMEOUT_SECONDS) -> ApiResponse:
        """Send once. The call is recorded with or without a response."""
        started, response = await self._exchange(call, timeout)
        self._record(call, call.recorded_request, started, response)
        return response

    async def send_bulk(self, call: ApiCall, items: Sequence[Mapping[str, str]]) -> ApiResponse:
        """Send a bulk call. Record a line for each item, with the status it would have had alone."""
        started, response = await self._exchange(call, TIMEOUT_SECONDS)
        results = response.body.get("items") if response.is_success else None
        for index, item in enumerate(items):
            item_response = _item_response(results[index]) if isinstance(results, list) else response
            self._record(call, dict(item), started, item_response)
        return response

    async def _exchange(self, call: ApiCall, timeout: float) -> tuple[float, ApiResponse]:
        connection = await self._get_connection()
        started = now_ms()
        try:
            response = await connection.send_and_read(self._request(call), timeout)
        except (*SERVER_GONE, TimeoutError):
            self._switch_server()
            return started, ApiResponse(None, {})
        if response.headers.get("connection") == "close":
            self._switch_server()
        return started, ApiResponse(response.status, json.loads(response.body) if response.body else {})

    def _record(self, call: ApiCall, request: dict[str, object], started: float, response: ApiResponse) -> None:
        line = HistoryLine(self.name, call.op, self.zone, request, call.session)
        self._state.history.write(line, started, response.status, response.body)

    async def send_until_known(self, call: ApiCall) -> ApiResponse:
        """Retry with the same key until the outcome is known. Sometimes it gives up."""
        response = await self.send(call)
        while response.should_retry and not self.is_stopping and self.rng.random() < 0.9:
            self._switch_server()
            response = await self.send(call)
        return response

    async def abandon(self, call: ApiCall) -> None:
        """Send and disconnect before the response. The outcome is unknown."""
        connection = await self._get_connection()
        started = now_ms()
        with contextlib.suppress(ConnectionError):
            await connection.send(self._request(call))
        self._drop_connection(connection)
        self._record(call, call.recorded_request, started, ApiResponse(None, {}))

    @property
    def is_stopping(self) -> bool:
        return self._state.is_stopping

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def _request(self, call: ApiCall) -> bytes:
        path = f"/zones/{self.zone}{call.path}"
        headers = {"Idempotency_Key": call.key} if call.key else {}
        return build_request(call.method, path, call.token or self._token(call.session), call.body, **headers)

    def _token(self, session: str | None) -> str:
        """The client's own token, which is cached, or a new one that acts for a session."""
        if session is None and self._own_token:
            return self._own_token
        grant = Grant(
            zone_id=self.zone,
            client_id=APPLICATION,
            # Each client needs its own subject: the server identifies the holder of a started invocation by it.
            subject=self.name,
            sid=self.name,
            session_id=session,
            scopes=(LIFECYCLE, COORDINATOR_ADMIN),
        )
        token = self._state.issuer.mint(grant, 3_600)
        if session is None:
            self._own_token = token
        return token

    def _switch_server(self) -> None:
        """Use another server from the next call on."""
        if self._connection is not None:
            self._drop_connection(self._connection)
        slots = len(self._state.servers)
        self._slot = (self._slot + self.rng.randint(1, max(1, slots - 1))) % slots

    def _drop_connection(self, connection: RawConnection) -> None:
        self._connection = None
        # The server may have closed the connection already.
        with contextlib.suppress(OSError):
            connection.reset()

    async def _get_connection(self) -> RawConnection:
        if self._connection is not None and self.rng.random() < 0.02:
            self._switch_server()

        async def is_connected() -> bool:
            if self._connection is None:
                try:
                    self._connection = await RawConnection.open(self._state.servers[self._slot].url)
                except OSError:
                    self._switch_server()
            return self._connection is not None

        await eventually(is_connected, "a server can be reached", limit=120)
        assert self._connection is not None
        return self._connection


def _item_response(item: Mapping[str, object]) -> ApiResponse:
    """The response to one item of a bulk call, as if it had been sent alone."""
    error = item.get("error")
    if isinstance(error, dict):
        return ApiResponse(int(error["status"]), {"error": error["error"]})
    return ApiResponse(200, dict(item))
