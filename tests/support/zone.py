"""A zone of one's own on a server that others use too: isolation without the price of another process."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.domain.zones.model import CEILINGS
from quarterdeck.http.auth import Grant
from tests.support.eventually import eventually
from tests.support.keel import Side, recount
from tests.support.server import ServerProcess

APP = "app"
_numbers = itertools.count(1)


@dataclass(frozen=True)
class FreshZone:
    server: ServerProcess
    id: str

    @property
    def path(self) -> str:
        return f"/zones/{self.id}"

    @property
    def agents(self) -> str:
        return f"/zones/{self.id}/agents"

    def agent(self, session_id: str, rest: str = "") -> str:
        return f"/zones/{self.id}/agents/{session_id}{rest}"

    def token(self, *scopes: str, ttl: int = 3600, **grant: str) -> str:
        """A token of the application `app` for this zone; `grant` changes what it says."""
        said: dict[str, Any] = {"zone_id": self.id, "client_id": APP, "subject": APP, "sid": "sid", **grant}
        return self.server.issuer.mint(Grant(scopes=scopes or (LIFECYCLE,), **said), ttl)

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        """A client that bears the application's token, or another."""
        return self.server.client(self.token() if token is None else token)


async def fresh_zone(server: ServerProcess, **limits: int) -> FreshZone:
    """A new zone in which only the limits named here are narrow."""
    zone = FreshZone(server, f"z{next(_numbers)}")
    async with server.client() as admin:
        made = await admin.put(zone.path, json={"quotas": {**CEILINGS, **limits}})
    assert made.status_code == 201, made.text
    return zone


async def spawn(client: httpx.AsyncClient, zone: FreshZone, **asked: object) -> dict[str, Any]:
    """A session that must be admitted, as the server shows it."""
    answer = await client.post(zone.agents, json={"application_id": APP, **asked})
    assert answer.status_code == 201, answer.text
    return shown(answer)


async def end(client: httpx.AsyncClient, zone: FreshZone, session_id: str) -> None:
    answer = await client.delete(zone.agent(session_id))
    assert answer.status_code == 204, answer.text


async def events_of(zone: FreshZone, after: int = 0, **query: str) -> list[dict[str, Any]]:
    """Everything in the zone's log, page by page."""
    items: list[dict[str, Any]] = []
    begins: int | None = after
    async with zone.client() as client:
        while begins is not None:
            asked: dict[str, str | int] = {"limit": 1000, "after": begins, **query}
            answer = await client.get(f"{zone.path}/events", params=asked)
            assert answer.status_code == 200, answer.text
            items += answer.json()["items"]
            begins = answer.json()["next_after"]
    return items


@contextlib.contextmanager
def held(zone: FreshZone) -> Iterator[None]:
    """The zone's row, locked on PostgreSQL by somebody outside: whoever admits to the zone has to wait."""
    with psycopg.connect(zone.server.launch.database_url) as outsider:
        outsider.execute("select 1 from zones where id = %s for update", [zone.id])
        try:
            yield
        finally:
            outsider.rollback()


async def somebody_waits(zone: FreshZone) -> None:
    """Returns when a statement waits for a lock in the zone's database."""
    side = Side(zone.server.launch.database_url)

    async def waits() -> bool:
        return side.count("pg_locks", "not granted") > 0

    await eventually(waits, "somebody waited for the lock")


def assert_counts_hold(url: str, zone_id: str) -> None:
    """What admission counts in a zone is what its rows say."""
    side = Side(url)
    kept = side.run("select scope, key, live, ever from admission_counts where zone_id = ?", zone_id)
    counted = {key[1:]: numbers for key, numbers in recount(side).items() if key[0] == zone_id}
    assert {(scope, key): (live, ever) for scope, key, live, ever in kept} == counted


def shown(answer: httpx.Response) -> dict[str, Any]:
    body = answer.json()
    assert isinstance(body, dict)
    return body


def assert_problem(answer: httpx.Response, status: int, error: str | None = None) -> Mapping[str, Any]:
    """A refusal that explains itself: RFC 9457, a code for programs and a sentence for people."""
    assert answer.status_code == status, f"{answer.status_code} {answer.text[:300]}"
    assert answer.headers["content-type"] == "application/problem+json"
    body = shown(answer)
    assert body["status"] == status
    assert error is None or body["error"] == error, body
    assert body["error"]
    assert body["error"] == body["error"].lower()
    assert body["type"].endswith(body["error"])
    assert body["title"]
    assert " " in body["detail"]
    assert body["detail"].endswith(".")
    assert body["request_id"] == answer.headers["x-request-id"]
    assert "Traceback" not in answer.text
    return body
