"""A fresh zone on a shared server: isolation without the cost of another process."""

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
from tests.support.runtime import DirectDatabase, count_sessions
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
    def sessions_path(self) -> str:
        return f"/zones/{self.id}/agents"

    def session_path(self, session_id: str, rest: str = "") -> str:
        return f"/zones/{self.id}/agents/{session_id}{rest}"

    def token(self, *scopes: str, ttl: int = 3600, **grant: str) -> str:
        """A token of the application `app` for this zone. `grant` overrides its claims."""
        claims: dict[str, Any] = {"zone_id": self.id, "client_id": APP, "subject": APP, "sid": "sid", **grant}
        return self.server.issuer.mint(Grant(scopes=scopes or (LIFECYCLE,), **claims), ttl)

    def client(self, token: str | None = None) -> httpx.AsyncClient:
        """An HTTP client with the application's token, or another."""
        return self.server.client(self.token() if token is None else token)


async def create_zone(server: ServerProcess, **limits: int) -> FreshZone:
    """Create a zone. Limits that are not given are at their maximum."""
    zone = FreshZone(server, f"z{next(_numbers)}")
    async with server.client() as admin:
        created = await admin.put(zone.path, json={"quotas": {**CEILINGS, **limits}})
    assert created.status_code == 201, created.text
    return zone


async def spawn(client: httpx.AsyncClient, zone: FreshZone, **fields: object) -> dict[str, Any]:
    """Spawn a session and assert that it is admitted. Return the response body."""
    response = await client.post(zone.sessions_path, json={"application_id": APP, **fields})
    assert response.status_code == 201, response.text
    return json_object(response)


async def end(client: httpx.AsyncClient, zone: FreshZone, session_id: str) -> None:
    response = await client.delete(zone.session_path(session_id))
    assert response.status_code == 204, response.text


async def read_events(zone: FreshZone, after: int = 0, **query: str) -> list[dict[str, Any]]:
    """Read the event log of the zone, page by page."""
    items: list[dict[str, Any]] = []
    next_after: int | None = after
    async with zone.client() as client:
        while next_after is not None:
            params: dict[str, str | int] = {"limit": 1000, "after": next_after, **query}
            response = await client.get(f"{zone.path}/events", params=params)
            assert response.status_code == 200, response.text
            items += response.json()["items"]
            next_after = response.json()["next_after"]
    return items


@contextlib.contextmanager
def lock_zone(zone: FreshZone) -> Iterator[None]:
    """Lock the zone's row on PostgreSQL from another connection: every admission to the zone waits."""
    with psycopg.connect(zone.server.launch.database_url) as connection:
        connection.execute("select 1 from zones where id = %s for update", [zone.id])
        try:
            yield
        finally:
            connection.rollback()


async def wait_for_lock_waiter(zone: FreshZone) -> None:
    """Wait until a statement waits for a lock in the zone's database."""
    database = DirectDatabase(zone.server.launch.database_url)

    async def has_waiter() -> bool:
        return database.count("pg_locks", "not granted") > 0

    await eventually(has_waiter, "a statement waits for the lock")


def assert_zone_counts_match_rows(url: str, zone_id: str) -> None:
    """The admission counters of a zone equal the counted rows."""
    database = DirectDatabase(url)
    stored_counts = database.execute("select scope, key, live, ever from admission_counts where zone_id = ?", zone_id)
    counted = {key[1:]: numbers for key, numbers in count_sessions(database).items() if key[0] == zone_id}
    assert {(scope, key): (live, ever) for scope, key, live, ever in stored_counts} == counted


def json_object(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert isinstance(body, dict)
    return body


def assert_problem(response: httpx.Response, status: int, error: str | None = None) -> Mapping[str, Any]:
    """Assert that the response is an RFC 9457 problem with a code and a sentence. Return its body."""
    assert response.status_code == status, f"{response.status_code} {response.text[:300]}"
    assert response.headers["content-type"] == "application/problem+json"
    body = json_object(response)
    assert body["status"] == status
    assert error is None or body["error"] == error, body
    assert body["error"]
    assert body["error"] == body["error"].lower()
    assert body["type"].endswith(body["error"])
    assert body["title"]
    assert " " in body["detail"]
    assert body["detail"].endswith(".")
    assert body["request_id"] == response.headers["x-request-id"]
    assert "Traceback" not in response.text
    return body
