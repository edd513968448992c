"""Whoever speaks for a session is refused from the commit of that session's end on: every kind of bearer, every way to
end, every route, every replica."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from quarterdeck.core.caller import ADMIN, LIFECYCLE, Role
from quarterdeck.domain.zones.rules import PERMISSIONS
from tests.http.auth_support import IssuerServer, TokenSigner, run_issuer
from tests.support.databases import PostgresDatabases, SqliteDatabases
from tests.support.replicas import start_all_replicas
from tests.support.rounds import ROUNDS
from tests.support.route_table import RouteRow, read_route_table
from tests.support.runtime import DirectDatabase
from tests.support.server import ServerProcess, Servers, launch_on
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn

SCOPES = (LIFECYCLE, "coordinator.admin", ADMIN)
Headers = dict[str, str]
Rows = list[tuple[httpx.AsyncClient, RouteRow]]


@dataclass(frozen=True)
class Issuer:
    """An issuer that is not ours: it publishes one key, and signs whatever a test wants said."""

    url: str
    signer: TokenSigner

    def sign(self, **claims: object) -> str:
        said = {"iss": self.url, "aud": self.url, "exp": time.time() + 600, "sid": "sid", "sub": APP}
        return self.signer.sign({**said, "client_id": APP, "scope": " ".join(SCOPES), **claims})


@dataclass(frozen=True)
class Fleet:
    """The servers of one database, and the issuer that they all trust."""

    servers: list[ServerProcess]
    issuer: Issuer

    async def zone(self) -> FreshZone:
        return await create_zone(self.servers[0])


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    """In a thread with a loop of its own, because it lives longer than any one test."""
    found: list[IssuerServer] = []
    ready, over = threading.Event(), threading.Event()
    signer = TokenSigner("theirs")

    async def run() -> None:
        async with run_issuer() as server:
            server.keys = [signer.jwk()]
            found.append(server)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield Issuer(found[0].url, signer)
    over.set()
    thread.join(10)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def fleet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Fleet]:
    """One server on SQLite, three on PostgreSQL. No sweep comes by chance."""
    directory = tmp_path_factory.mktemp(f"fleet-{request.param}")
    told = {"ISSUER_URL": issuer.url, "QD_ADMIN_ISSUER": issuer.url, "TTL_SWEEP_INTERVAL_MS": "86400000"}
    with contextlib.ExitStack() as stack:
        if request.param == "sqlite":
            sqlite: SqliteDatabases = request.getfixturevalue("sqlite_databases")
            url = sqlite.create_migrated(directory)
        else:
            postgres: PostgresDatabases = request.getfixturevalue("postgres")
            url = postgres.create_migrated()
            stack.callback(postgres.drop, url)
        servers = Servers(directory)
        stack.callback(servers.close)
        launch = launch_on(url, directory)
        yield Fleet(asyncio.run(start_all_replicas(servers, launch, **told)), issuer)


# -- every kind of bearer ----------------------------------------------------------------------------------------


async def _token(fleet: Fleet, zone: FreshZone, session: str) -> Headers:
    return _bearer(zone.token(*SCOPES, session_id=session))


async def _token_of_agent(fleet: Fleet, zone: FreshZone, session: str) -> Headers:
    return _bearer(zone.token(*SCOPES, agent_id=session))


async def _foreign_token(fleet: Fleet, zone: FreshZone, session: str) -> Headers:
    return _bearer(fleet.issuer.sign(zone_id=zone.id, agent_session_id=session))


async def _foreign_token_of_agent(fleet: Fleet, zone: FreshZone, session: str) -> Headers:
    return _bearer(fleet.issuer.sign(zone_id=zone.id, agent_id=session))


async def _key(fleet: Fleet, zone: FreshZone, session: str) -> Headers:
    asked = {"application_id": APP, "scopes": [s for s in SCOPES if s != ADMIN], "session_id": session}
    async with zone.server.client() as admin:
        made = await admin.post(f"{zone.path}/keys", json=asked)
    return {"X-API-Key": json_object(made)["key"]}


def _bearer(token: str) -> Headers:
    return {"Authorization": f"Bearer {token}"}


KINDS: Mapping[str, Callable[[Fleet, FreshZone, str], Awaitable[Headers]]] = {
    "a token of our issuer that names a session": _token,
    "a token of our issuer that names an agent": _token_of_agent,
    "a token of another issuer that names a session": _foreign_token,
    "a token of another issuer that names an agent": _foreign_token_of_agent,
    "a key bound to a session": _key,
}


# -- every way to end --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A session with an ancestor and a descendant."""

    root: str
    session: str
    below: str


async def line_in(zone: FreshZone) -> Line:
    async with zone.client() as client:
        root = (await spawn(client, zone))["id"]
        session = (await spawn(client, zone, parent_id=root))["id"]
        return Line(root, session, (await spawn(client, zone, parent_id=session))["id"])


async def _by_itself(zone: FreshZone, line: Line) -> None:
    async with zone.client() as client:
        await end(client, zone, line.session)


async def _with_its_ancestor(zone: FreshZone, line: Line) -> None:
    async with zone.client() as client:
        await end(client, zone, line.root)


async def _by_its_time(zone: FreshZone, line: Line) -> None:
    DirectDatabase(zone.server.launch.database_url).execute(
        "update agent_sessions set expires_at = 1 where zone_id = ? and id in (?, ?)", zone.id, line.session, line.below
    )


async def _with_the_stop_of_its_zone(zone: FreshZone, line: Line) -> None:
    async with zone.server.client() as admin:
        assert (await admin.post(f"{zone.path}/stop")).status_code == 200


async def _with_its_zone(zone: FreshZone, line: Line) -> None:
    async with zone.server.client() as admin:
        assert (await admin.delete(zone.path)).status_code == 204


WAYS: Mapping[str, Callable[[FreshZone, Line], Awaitable[None]]] = {
    "ended": _by_itself,
    "ended with an ancestor": _with_its_ancestor,
    "expired": _by_its_time,
    "ended by the stop of its zone": _with_the_stop_of_its_zone,
    "ended with its zone": _with_its_zone,
}


# -- asking ------------------------------------------------------------------------------------------------------


PAIRS = [
    (kind, way)
    for i, kind in enumerate(KINDS)
    for j, way in enumerate(WAYS)
    if ROUNDS > 3 or i == 0 or j == 0 or i == j
]
"""Every kind and every way, each with the first of the other and once more; every pair when there is time for it."""


@contextlib.asynccontextmanager
async def everywhere(fleet: Fleet, headers: Headers) -> Any:
    """A client of each replica, with these headers."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for server in fleet.servers:
            client = await stack.enter_async_context(server.client(""))
            client.headers.update(headers)
            clients.append(client)
        yield clients


def shared_out(rows: list[RouteRow], clients: list[httpx.AsyncClient], kind: str, way: str = "ended") -> Rows:
    """Who asks for which route: the first kind and way for every route at every replica; of the others each asks for
    every route at one, and at every replica for some."""
    if ROUNDS > 3 or (kind, way) == PAIRS[0]:
        return [(client, row) for client in clients for row in rows]
    return [(clients[number % len(clients)], row) for number, row in enumerate(rows)]


async def guarded_rows(fleet: Fleet) -> list[RouteRow]:
    return [row for row in await read_route_table(fleet.servers[0]) if row.scope]


def expected(row: RouteRow, headers: Headers, way: str) -> tuple[int, str]:
    if "X-API-Key" in headers:
        if way == "ended with its zone":
            return 401, "invalid_token"
        if row.scope == ADMIN:
            return 403, "missing_scope"
    return 401, "session_ended"


@pytest.mark.parametrize("kind", KINDS)
async def test_it_is_good_on_every_replica_while_its_session_lives(fleet: Fleet, kind: str) -> None:
    zone = await fleet.zone()
    line = await line_in(zone)
    headers = await KINDS[kind](fleet, zone, line.session)
    rows = [row for row in await guarded_rows(fleet) if row.method == "GET"]
    async with everywhere(fleet, headers) as clients:
        for client, row in shared_out(rows, clients, kind):
            answer = await client.request(**row.request_for(zone.id, line.session))
            forbidden = "X-API-Key" in headers and row.scope == ADMIN
            if row.permission is not None and "an agent" in kind:
                forbidden = Role.AGENT not in PERMISSIONS[row.permission]
            # No other thing has a session's id, and to be told so is to be let in.
            good = 200 if row.is_session_route else 404
            assert answer.status_code == (403 if forbidden else good), (str(row), answer.text)


@pytest.mark.parametrize(("kind", "way"), PAIRS)
async def test_from_the_end_of_its_session_on_it_is_refused_on_every_route_of_every_replica(
    fleet: Fleet, kind: str, way: str
) -> None:
    zone = await fleet.zone()
    line = await line_in(zone)
    async with zone.client() as client:
        other = (await spawn(client, zone))["id"]
    headers = await KINDS[kind](fleet, zone, line.session)
    rows = await guarded_rows(fleet)
    async with everywhere(fleet, headers) as clients:
        for client in clients:
            assert (await client.get(zone.sessions_path)).status_code == 200
        await WAYS[way](zone, line)
        before = await read_events(zone)
        for client, row in shared_out(rows, clients, kind, way):
            for asked in row.requests_for(zone.id, other):
                answer = await client.request(**asked)
                assert (answer.status_code, answer.json()["error"]) == expected(row, headers, way), row
    assert await read_events(zone) == before


@pytest.mark.parametrize("kind", KINDS)
async def test_whoever_asks_another_replica_at_once_after_the_end_is_refused_every_time(
    fleet: Fleet, kind: str
) -> None:
    zone = await fleet.zone()

    async def ask_all(clients: list[httpx.AsyncClient], line: Line) -> list[httpx.Response]:
        child = {"application_id": APP, "parent_id": line.root}
        return await asyncio.gather(
            *(
                ask
                for client in clients
                for ask in (
                    client.get(zone.sessions_path),
                    client.get(zone.session_path(line.root)),
                    client.get(f"{zone.path}/events"),
                    client.get(zone.path),
                    client.post(zone.sessions_path, json={"application_id": APP}),
                    client.post(zone.sessions_path, json=child),
                )
            )
        )

    for _ in range(3 * ROUNDS):
        line = await line_in(zone)
        async with everywhere(fleet, await KINDS[kind](fleet, zone, line.session)) as clients:
            # Asked before, so that whatever could be remembered is.
            for answer in await ask_all(clients, line):
                assert answer.status_code in (200, 201), answer.text
            await _by_itself(zone, line)
            for answer in await ask_all(clients, line):
                assert_problem(answer, 401, "session_ended")


async def test_an_administrators_session_counts_in_its_own_zone_whatever_zone_it_acts_on(fleet: Fleet) -> None:
    home, away = await fleet.zone(), await fleet.zone()
    line = await line_in(home)
    async with away.client() as client:
        other = (await spawn(client, away))["id"]
    rows = [row for row in await guarded_rows(fleet) if row.has_zone]
    for headers in (
        await _token(fleet, home, line.session),
        await _token_of_agent(fleet, home, line.session),
        await _foreign_token(fleet, home, line.session),
    ):
        async with everywhere(fleet, headers) as clients:
            for client in clients:
                assert (await client.get(away.session_path(other))).status_code == 200
    headers = await _token(fleet, home, line.session)
    await _by_itself(home, line)
    before = await read_events(away)
    async with everywhere(fleet, headers) as clients:
        for client in clients:
            for row in rows:
                for asked in row.requests_for(away.id, other):
                    assert_problem(await client.request(**asked), 401, "session_ended")
    assert await read_events(away) == before


async def test_an_agent_that_is_no_session_is_not_known_to_have_ended(fleet: Fleet) -> None:
    zone = await fleet.zone()
    async with everywhere(fleet, _bearer(zone.token(agent_id="a-worker-of-another-house"))) as clients:
        for client in clients:
            assert (await client.get(zone.sessions_path)).status_code == 200


async def test_a_revoked_key_is_refused_on_every_replica_from_the_answer_to_its_revocation_on(fleet: Fleet) -> None:
    zone = await fleet.zone()
    for _ in range(3 * ROUNDS):
        async with zone.server.client() as admin:
            made = json_object(await admin.post(f"{zone.path}/keys", json={"application_id": APP}))
            async with everywhere(fleet, {"X-API-Key": made["key"]}) as clients:
                for client in clients:
                    assert (await client.get(zone.path)).status_code == 200
                assert (await admin.delete(f"{zone.path}/keys/{made['id']}")).status_code == 204
                for answer in await asyncio.gather(*(client.get(zone.path) for client in clients)):
                    assert_problem(answer, 401, "invalid_token")
