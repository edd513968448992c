"""One client: asks on a connection of its own, at whichever server answers, and writes down what became of it."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from quarterdeck.core.caller import COORDINATOR_ADMIN, LIFECYCLE
from quarterdeck.http.auth import Grant
from tests.support.callers import GONE
from tests.support.eventually import eventually
from tests.support.plane.known import Plane
from tests.support.plane.recorder import Line, now
from tests.support.raw import Connection, request

PATIENCE = 5.0
"""Seconds for an answer. A frozen server gives none, and its client goes elsewhere."""
UNKNOWN = (None, 500, 502, 504)
APPLICATION = "app"


@dataclass(frozen=True)
class Ask:
    op: str
    method: str
    path: str
    """Below the zone."""
    body: dict[str, object] | None = None
    asked: dict[str, object] = field(default_factory=dict)
    """What of it is written down."""
    session: str | None = None
    """For which session it is asked, if for one."""
    key: str | None = None
    token: str | None = None
    """Another than the client's own."""


@dataclass(frozen=True)
class Reply:
    status: int | None
    body: dict[str, object]

    @property
    def ok(self) -> bool:
        return self.status is not None and self.status < 300

    @property
    def unknown(self) -> bool:
        return self.status in UNKNOWN or self.body.get("error") == "outcome_unknown"

    @property
    def to_be_repeated(self) -> bool:
        """Nobody knows, or nobody could."""
        return self.unknown or self.status == 503

    def text(self, name: str) -> str:
        return str(self.body.get(name) or "")


class Caller:
    def __init__(self, name: str, zone: str, plane: Plane) -> None:
        self.name = name
        self.zone = zone
        self.chance = random.Random(f"{plane.seed} {name}")
        self.known = plane.zones[zone]
        self._plane = plane
        self._connection: Connection | None = None
        self._slot = self.chance.randrange(len(plane.fleet))
        self._own_token = ""

    async def ask(self, ask: Ask, patience: float = PATIENCE) -> Reply:
        """Asks once. Whether an answer comes or not, it is written down."""
        started, reply = await self._exchange(ask, patience)
        self._record(ask, ask.asked, started, reply)
        return reply

    async def ask_each(self, ask: Ask, items: Sequence[Mapping[str, str]]) -> Reply:
        """The same for many at once: a line for each, with the status that it would have had alone."""
        started, reply = await self._exchange(ask, PATIENCE)
        told = reply.body.get("items") if reply.ok else None
        for place, item in enumerate(items):
            one = _alone(told[place]) if isinstance(told, list) else reply
            self._record(ask, dict(item), started, one)
        return reply

    async def _exchange(self, ask: Ask, patience: float) -> tuple[float, Reply]:
        connection = await self._connected()
        started = now()
        try:
            answer = await connection.ask(self._request(ask), patience)
        except (*GONE, TimeoutError):
            self._leave()
            return started, Reply(None, {})
        if answer.headers.get("connection") == "close":
            self._leave()
        return started, Reply(answer.status, json.loads(answer.body) if answer.body else {})

    def _record(self, ask: Ask, asked: dict[str, object], started: float, reply: Reply) -> None:
        line = Line(self.name, ask.op, self.zone, asked, ask.session)
        self._plane.recorder.write(line, started, reply.status, reply.body)

    async def ask_until_known(self, ask: Ask) -> Reply:
        """Asks with its key until somebody says what became of it; or, now and then, gives up on it."""
        reply = await self.ask(ask)
        while reply.to_be_repeated and not self.stopping and self.chance.random() < 0.9:
            self._leave()
            reply = await self.ask(ask)
        return reply

    async def vanish_from(self, ask: Ask) -> None:
        """Sends it, and is gone before the answer: nobody knows what became of it."""
        connection = await self._connected()
        started = now()
        with contextlib.suppress(ConnectionError):
            await connection.send(self._request(ask))
        self._cut(connection)
        self._record(ask, ask.asked, started, Reply(None, {}))

    @property
    def stopping(self) -> bool:
        return self._plane.stopping

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def _request(self, ask: Ask) -> bytes:
        path = f"/zones/{self.zone}{ask.path}"
        headers = {"Idempotency_Key": ask.key} if ask.key else {}
        return request(ask.method, path, ask.token or self._token(ask.session), ask.body, **headers)

    def _token(self, session: str | None) -> str:
        """Its own, kept; or one that speaks for a session."""
        if session is None and self._own_token:
            return self._own_token
        grant = Grant(
            zone_id=self.zone,
            client_id=APPLICATION,
            # One subject each: to whoever starts an invocation the credential is the holder.
            subject=self.name,
            sid=self.name,
            session_id=session,
            scopes=(LIFECYCLE, COORDINATOR_ADMIN),
        )
        token = self._plane.issuer.mint(grant, 3_600)
        if session is None:
            self._own_token = token
        return token

    def _leave(self) -> None:
        """To another server, at the next call."""
        if self._connection is not None:
            self._cut(self._connection)
        slots = len(self._plane.fleet)
        self._slot = (self._slot + self.chance.randint(1, max(1, slots - 1))) % slots

    def _cut(self, connection: Connection) -> None:
        self._connection = None
        # Whoever was cut by its server already has nothing left to cut.
        with contextlib.suppress(OSError):
            connection.cut()

    async def _connected(self) -> Connection:
        if self._connection is not None and self.chance.random() < 0.02:
            self._leave()

        async def connects() -> bool:
            if self._connection is None:
                try:
                    self._connection = await Connection.open(self._plane.fleet[self._slot].url)
                except OSError:
                    self._leave()
            return self._connection is not None

        await eventually(connects, "a server could be reached", limit=120)
        assert self._connection is not None
        return self._connection


def _alone(item: Mapping[str, object]) -> Reply:
    """What became of one item of many, as if it had been asked for by itself."""
    error = item.get("error")
    if isinstance(error, dict):
        return Reply(int(error["status"]), {"error": error["error"]})
    return Reply(200, dict(item))
