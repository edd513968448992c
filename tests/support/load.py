"""Clients that spawn without pause, each spawn with a key of its own, and keep a record of every answer."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence

from tests.support.eventually import eventually
from tests.support.keel import Side
from tests.support.raw import Answer, Connection, CutShort, Unanswered, request
from tests.support.zone import APP, FreshZone


class Load:
    """Each client sends one spawn after another on a connection it keeps. A 503 is repeated with the same key; a client
    whose server is gone gives up, and the key it was about to be told of is `unanswered`."""

    def __init__(self, zone: FreshZone, clients: int = 16, name: str = "") -> None:
        self.zone = zone
        self.name = name
        """What its keys begin with, where several loads share a zone."""
        self.acknowledged: dict[str, str] = {}
        """By key: the id of what the server said it was."""
        self.statuses: Counter[int] = Counter()
        self.unanswered: set[str] = set()
        self.cut_short: set[str] = set()
        self.token = zone.token()
        self._stopping = False
        self._clients = [asyncio.create_task(self._client(number)) for number in range(clients)]

    async def reaches(self, more: int) -> None:
        """Returns when so many more spawns have been acknowledged."""
        goal = len(self.acknowledged) + more

        async def reached() -> bool:
            for client in self._clients:
                if client.done():
                    client.result()
            return len(self.acknowledged) >= goal

        await eventually(reached, f"{more} more spawns were acknowledged ({self.statuses} so far)", limit=60)

    async def stop(self) -> None:
        """Every client finishes what it has begun."""
        self._stopping = True
        await self.over()

    async def over(self) -> None:
        """Returns when every client has given up."""
        await asyncio.gather(*self._clients)

    def asking(self, key: str) -> bytes:
        """What is asked with a key, each time it is asked. Whoever asks for something else says so here."""
        body = {"application_id": APP, "metadata": {"key": key}}
        return request("POST", self.zone.agents, self.token, body, Idempotency_Key=key)

    def made(self, answer: Answer) -> str:
        """The id of what was made."""
        return str(answer.json()["id"])

    async def _client(self, number: int) -> None:
        connection: Connection | None = None
        for turn in itertools.count():
            if self._stopping:
                break
            key = f"{self.name}{number}-{turn}"
            try:
                while key not in self.acknowledged:
                    connection = connection or await Connection.open(self.zone.server.url)
                    answer = await connection.ask(self.asking(key))
                    self._record(key, answer)
                    if answer.headers.get("connection") == "close":
                        await connection.close()
                        connection = None
            except (Unanswered, ConnectionError):
                self.unanswered.add(key)
                break
            except CutShort:
                self.cut_short.add(key)
                break
        if connection is not None:
            await connection.close()

    def _record(self, key: str, answer: Answer) -> None:
        self.statuses[answer.status] += 1
        if answer.status in (200, 201):
            self.acknowledged[key] = self.made(answer)
        elif answer.status == 503:
            assert int(answer.headers["retry-after"]) > 0
            assert answer.headers["content-type"] == "application/problem+json"
        else:
            raise AssertionError(f"{answer.status} {answer.body.decode()}")


def stored(url: str, zone_id: str) -> list[tuple[str, str]]:
    """(key, session) of everything that a zone's idempotency keys stand for, joined with the sessions themselves."""
    rows = Side(url).run(
        "select k.key, s.id from agent_sessions s left join idempotency_keys k"
        " on k.zone_id = s.zone_id and k.subject_id = s.id where s.zone_id = ?",
        zone_id,
    )
    return [(str(key), str(session)) for key, session in rows]


def assert_one_session_a_key(url: str, zone_id: str, acknowledged: Sequence[tuple[str, str]]) -> None:
    """Nothing acknowledged is lost, nothing is there twice, and every session has one event of its spawn."""
    kept = stored(url, zone_id)
    assert len({key for key, _ in kept}) == len(kept), "a key made two sessions"
    lost = set(acknowledged) - set(kept)
    assert not lost, f"{len(lost)} acknowledged sessions are not there"
    spawned = Side(url).run("select subject from events where zone_id = ? and type = 'session.spawn'", zone_id)
    assert sorted(str(subject) for [subject] in spawned) == sorted(session for _, session in kept)
