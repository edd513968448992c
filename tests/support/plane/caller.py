"""One client: asks on a connection of its own, at whichever server answers, and writes down what became of it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field

from quarterdeck.core.wire import COORDINATOR_ADMIN, LIFECYCLE
from quarterdeck.http.auth import Grant, LocalIssuer
from tests.support.callers import GONE
from tests.support.eventually import eventually
from tests.support.plane.fleet import Fleet
from tests.support.plane.recorder import Line, Recorder, now
from tests.support.raw import Connection, request

PATIENCE = 5.0
"""Seconds for an answer. A frozen server gives none, and its client goes elsewhere."""
UNKNOWN = (None, 500, 502, 504)


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
        self._plane = plane
        self._connection: Connection | None = None
        self._slot = self.chance.randrange(len(plane.fleet))
        self._tokens: dict[str | None, str] = {}

    @property
    def known(self) -> object:
        return self._plane

    async def ask(self, ask: Ask, patience: float = PATIENCE) -> Reply:
        """Asks once. Whether an answer comes or not, it is written down."""
        connection = await self._connected()
        line = Line(self.name, ask.op, self.zone, ask.asked, ask.session)
        started = now()
        try:
            answer = await connection.ask(self._request(ask), patience)
        except (*GONE, TimeoutError):
            self._leave()
            self._plane.recorder.write(line, started, None, None)
            return Reply(None, {})
        body = json.loads(answer.body) if answer.body else {}
        self._plane.recorder.write(line, started, answer.status, body)
        if answer.headers.get("connection") == "close":
            self._leave()
        return Reply(answer.status, body)

    async def ask_until_known(self, ask: Ask) -> Reply:
        """Asks with its key until somebody says what became of it; or, now and then, gives up on it."""
        reply = await self.ask(ask)
        while reply.to_be_repeated and not self._plane.stopping and self.chance.random() < 0.9:
            self._leave()
            reply = await self.ask(ask)
        return reply

    async def vanish_from(self, ask: Ask) -> None:
        """Sends it, and is gone before the answer: nobody knows what became of it."""
        connection = await self._connected()
        line = Line(self.name, ask.op, self.zone, ask.asked, ask.session)
        started = now()
        try:
            await connection.send(self._request(ask))
        except ConnectionError:
            pass
        connection.cut()
        self._connection = None
        self._plane.recorder.write(line, started, None, None)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def _request(self, ask: Ask) -> bytes:
        path = f"/zones/{self.zone}{ask.path}"
        headers = {"Idempotency_Key": ask.key} if ask.key else {}
        return request(ask.method, path, self._token(ask.session), ask.body, **headers)

    def _token(self, session: str | None) -> str:
        if session not in self._tokens or session is not None:
            grant = Grant(
                zone_id=self.zone,
                client_id="app",
                subject=self.name,
                sid=self.name,
                session_id=session,
                scopes=(LIFECYCLE, COORDINATOR_ADMIN),
            )
            return self._tokens.setdefault(session, self._plane.issuer.mint(grant, 3_600 * 12))
        return self._tokens[session]

    def _leave(self) -> None:
        """To another server, at the next call."""
        if self._connection is not None:
            self._connection.cut()
            self._connection = None
        self._slot = (self._slot + self.chance.randrange(1, len(self._plane.fleet))) % len(self._plane.fleet)

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


class Plane:
    """What all clients of a run share."""

    def __init__(self, seed: str, fleet: Fleet, recorder: Recorder) -> None:
        self.seed = seed
        self.fleet = fleet
        self.recorder = recorder
        self.issuer: LocalIssuer = fleet[0].issuer
        self.stopping = False
