"""Clients that spawn without pause, each spawn with its own key, and record every response."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence

from tests.support.eventually import eventually
from tests.support.raw_http import NoResponse, RawConnection, RawResponse, TruncatedResponse, build_request
from tests.support.runtime import DirectDatabase
from tests.support.zone import APP, FreshZone


class SpawnLoad:
    """Each client sends one spawn after another on one connection. A 503 is retried with the same key. When the server
    is gone, the client stops, and the key without a response is in `unanswered`."""

    def __init__(self, zone: FreshZone, clients: int = 16, name: str = "") -> None:
        self.zone = zone
        self.name = name
        """The prefix of its keys, for several loads in one zone."""
        self.acknowledged: dict[str, str] = {}
        """By key: the id in the server's response."""
        self.statuses: Counter[int] = Counter()
        self.unanswered: set[str] = set()
        self.cut_short: set[str] = set()
        self.token = zone.token()
        self._stopping = False
        self._clients = [asyncio.create_task(self._client(number)) for number in range(clients)]

    async def wait_for_acknowledged(self, more: int) -> None:
        """Wait until this many more spawns were acknowledged."""
        goal = len(self.acknowledged) + more

        async def is_reached() -> bool:
            for client in self._clients:
                if client.done():
                    client.result()
            return len(self.acknowledged) >= goal

        await eventually(is_reached, f"{more} more spawns were acknowledged ({self.statuses} so far)", limit=60)

    async def stop(self) -> None:
        """Stop every client after its current spawn."""
        self._stopping = True
        await self.wait_until_done()

    async def wait_until_done(self) -> None:
        """Wait until every client has stopped."""
        await asyncio.gather(*self._clients)

    def build_request(self, key: str) -> bytes:
        """The request for a key, the same at each retry. Subclasses override it for other requests."""
        body = {"application_id": APP, "metadata": {"key": key}}
        return build_request("POST", self.zone.sessions_path, self.token, body, Idempotency_Key=key)

    def created_id(self, response: RawResponse) -> str:
        """The id of the created object."""
        return str(response.json()["id"])

    async def _client(self, number: int) -> None:
        connection: RawConnection | None = None
        for round_number in itertools.count():
            if self._stopping:
                break
            key = f"{self.name}{number}-{round_number}"
            try:
                while key not in self.acknowledged:
                    connection = connection or await RawConnection.open(self.zone.server.url)
                    response = await connection.send_and_read(self.build_request(key))
                    self._record(key, response)
                    if response.headers.get("connection") == "close":
                        await connection.close()
                        connection = None
            except (NoResponse, ConnectionError):
                self.unanswered.add(key)
                break
            except TruncatedResponse:
                self.cut_short.add(key)
                break
        if connection is not None:
            await connection.close()

    def _record(self, key: str, response: RawResponse) -> None:
        self.statuses[response.status] += 1
        if response.status in (200, 201):
            self.acknowledged[key] = self.created_id(response)
        elif response.status == 503:
            assert int(response.headers["retry-after"]) > 0
            assert response.headers["content-type"] == "application/problem+json"
        else:
            raise AssertionError(f"{response.status} {response.body.decode()}")


def stored_keys(url: str, zone_id: str) -> list[tuple[str, str]]:
    """(key, session id) of every session of a zone, joined with its idempotency key."""
    rows = DirectDatabase(url).execute(
        "select k.key, s.id from agent_sessions s left join idempotency_keys k"
        " on k.zone_id = s.zone_id and k.subject_id = s.id where s.zone_id = ?",
        zone_id,
    )
    return [(str(key), str(session)) for key, session in rows]


def assert_one_session_per_key(url: str, zone_id: str, acknowledged: Sequence[tuple[str, str]]) -> None:
    """Every acknowledged session is stored, no key has two sessions, and every session has one spawn event."""
    stored_pairs = stored_keys(url, zone_id)
    assert len({key for key, _ in stored_pairs}) == len(stored_pairs), "a key has two sessions"
    lost = set(acknowledged) - set(stored_pairs)
    assert not lost, f"{len(lost)} acknowledged sessions are not stored"
    spawned = DirectDatabase(url).execute(
        "select subject from events where zone_id = ? and type = 'session.spawn'", zone_id
    )
    assert sorted(str(subject) for [subject] in spawned) == sorted(session for _, session in stored_pairs)
