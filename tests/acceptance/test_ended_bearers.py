"""A credential is refused from the commit that ends its session: every credential type, ending, route and replica."""

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
from tests.http.auth_support import IssuerServer, TokenSigner, run_issuer
from tests.support.databases import PostgresDatabases, SqliteDatabases
from tests.support.permissions import ROLES_BY_PERMISSION
from tests.support.replicas import start_all_replicas
from tests.support.rounds import ROUNDS
from tests.support.route_table import RouteRow, read_route_table
from tests.support.runtime import DirectDatabase
from tests.support.server import ServerProcess, Servers, launch_on
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn

SCOPES = (LIFECYCLE, "coordinator.admin", ADMIN)
Headers = dict[str, str]
RoutesByClient = list[tuple[httpx.AsyncClient, RouteRow]]


@dataclass(frozen=True)
class ExternalIssuer:
    """An external token issuer: it publishes one key and signs the claims of a test."""

    url: str
    signer: TokenSigner

    def sign(self, **claims: object) -> str:
        defaults = {"iss": self.url, "aud": self.url, "exp": time.time() + 600, "sid": "sid", "sub": APP}
        return self.signer.sign({**defaults, "client_id": APP, "scope": " ".join(SCOPES), **claims})


@dataclass(frozen=True)
class Cluster:
    """The servers of one database and the issuer that they trust."""

    servers: list[ServerProcess]
    issuer: ExternalIssuer

    async def zone(self) -> FreshZone:
        return await create_zone(self.servers[0])


@pytest.fixture(scope="module")
def issuer() -> Iterator[ExternalIssuer]:
    """Runs in its own thread and event loop, because it outlives each test."""
    servers: list[IssuerServer] = []
    ready, stop = threading.Event(), threading.Event()
    signer = TokenSigner("external")

    async def run() -> None:
        async with run_issuer() as server:
            server.keys = [signer.jwk()]
            servers.append(server)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield ExternalIssuer(servers[0].url, signer)
    stop.set()
    thread.join(10)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, issuer: ExternalIssuer
) -> Iterator[Cluster]:
    """One server on SQLite, three on PostgreSQL. The TTL sweep runs once a day, so never during a test."""
    directory = tmp_path_factory.mktemp(f"cluster-{request.param}")
    settings = {"ISSUER_URL": issuer.url, "QD_ADMIN_ISSUER": issuer.url, "TTL_SWEEP_INTERVAL_MS": "86400000"}
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
        yield Cluster(asyncio.run(start_all_replicas(servers, launch, **settings)), issuer)


# -- credentials -------------------------------------------------------------------------------------------------


async def _session_token(cluster: Cluster, zone: FreshZone, session: str) -> Headers:
    return _bearer(zone.token(*SCOPES, session_id=session))


async def _agent_token(cluster: Cluster, zone: FreshZone, session: str) -> Headers:
    return _bearer(zone.token(*SCOPES, agent_id=session))


async def _external_session_token(cluster: Cluster, zone: FreshZone, session: str) -> Headers:
    return _bearer(cluster.issuer.sign(zone_id=zone.id, agent_session_id=session))


async def _external_agent_token(cluster: Cluster, zone: FreshZone, session: str) -> Headers:
    return _bearer(cluster.issuer.sign(zone_id=zone.id, agent_id=session))


async def _session_key(cluster: Cluster, zone: FreshZone, session: str) -> Headers:
    body = {"application_id": APP, "scopes": [s for s in SCOPES if s != ADMIN], "session_id": session}
    async with zone.server.client() as admin:
        response = await admin.post(f"{zone.path}/keys", json=body)
    return {"X-API-Key": json_object(response)["key"]}


def _bearer(token: str) -> Headers:
    return {"Authorization": f"Bearer {token}"}


CREDENTIALS: Mapping[str, Callable[[Cluster, FreshZone, str], Awaitable[Headers]]] = {
    "session token": _session_token,
    "agent token": _agent_token,
    "external session token": _external_session_token,
    "external agent token": _external_agent_token,
    "session key": _session_key,
}


# -- endings -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Branch:
    """A session with an ancestor and a descendant."""

    root: str
    session: str
    child: str


async def spawn_branch(zone: FreshZone) -> Branch:
    async with zone.client() as client:
        root = (await spawn(client, zone))["id"]
        session = (await spawn(client, zone, parent_id=root))["id"]
        return Branch(root, session, (await spawn(client, zone, parent_id=session))["id"])


async def _terminate(zone: FreshZone, branch: Branch) -> None:
    async with zone.client() as client:
        await end(client, zone, branch.session)


async def _terminate_ancestor(zone: FreshZone, branch: Branch) -> None:
    async with zone.client() as client:
        await end(client, zone, branch.root)


async def _expire(zone: FreshZone, branch: Branch) -> None:
    DirectDatabase(zone.server.launch.database_url).execute(
        "update agent_sessions set expires_at = 1 where zone_id = ? and id in (?, ?)",
        zone.id,
        branch.session,
        branch.child,
    )


async def _stop_zone(zone: FreshZone, branch: Branch) -> None:
    async with zone.server.client() as admin:
        assert (await admin.post(f"{zone.path}/stop")).status_code == 200


async def _delete_zone(zone: FreshZone, branch: Branch) -> None:
    async with zone.server.client() as admin:
        assert (await admin.delete(zone.path)).status_code == 204


ENDINGS: Mapping[str, Callable[[FreshZone, Branch], Awaitable[None]]] = {
    "terminated": _terminate,
    "ancestor terminated": _terminate_ancestor,
    "expired": _expire,
    "zone stopped": _stop_zone,
    "zone deleted": _delete_zone,
}


# -- requests ----------------------------------------------------------------------------------------------------


PAIRS = [
    (credential, ending)
    for i, credential in enumerate(CREDENTIALS)
    for j, ending in enumerate(ENDINGS)
    if ROUNDS > 3 or i == 0 or j == 0 or i == j
]
"""Each credential with the first ending, each ending with the first credential, and the diagonal. All pairs in long
runs."""


@contextlib.asynccontextmanager
async def clients_of_all_replicas(cluster: Cluster, headers: Headers) -> Any:
    """A client of each replica, with these headers."""
    async with contextlib.AsyncExitStack() as stack:
        clients = []
        for server in cluster.servers:
            client = await stack.enter_async_context(server.client(""))
            client.headers.update(headers)
            clients.append(client)
        yield clients


def distribute_routes(
    rows: list[RouteRow], clients: list[httpx.AsyncClient], credential: str, ending: str = "terminated"
) -> RoutesByClient:
    """The first pair requests every route at every replica. Other pairs request every route once, spread over the
    replicas. Long runs request every route at every replica for all pairs."""
    if ROUNDS > 3 or (credential, ending) == PAIRS[0]:
        return [(client, row) for client in clients for row in rows]
    return [(clients[number % len(clients)], row) for number, row in enumerate(rows)]


async def scoped_routes(cluster: Cluster) -> list[RouteRow]:
    return [row for row in await read_route_table(cluster.servers[0]) if row.scope]


def expected_refusal(row: RouteRow, headers: Headers, ending: str) -> tuple[int, str]:
    if "X-API-Key" in headers:
        if ending == "zone deleted":
            return 401, "invalid_token"
        if row.scope == ADMIN:
            return 403, "missing_scope"
    return 401, "session_ended"


@pytest.mark.parametrize("credential", CREDENTIALS)
async def test_credential_is_accepted_on_every_replica_while_its_session_is_live(
    cluster: Cluster, credential: str
) -> None:
    zone = await cluster.zone()
    branch = await spawn_branch(zone)
    headers = await CREDENTIALS[credential](cluster, zone, branch.session)
    rows = [row for row in await scoped_routes(cluster) if row.method == "GET"]
    async with clients_of_all_replicas(cluster, headers) as clients:
        for client, row in distribute_routes(rows, clients, credential):
            response = await client.request(**row.request_for(zone.id, branch.session))
            forbidden = "X-API-Key" in headers and row.scope == ADMIN
            if row.permission is not None and "agent" in credential:
                forbidden = Role.AGENT not in ROLES_BY_PERMISSION[row.permission]
            # Nothing else has the session's id, so other routes return 404: the credential was accepted.
            accepted = 200 if row.is_session_route else 404
            assert response.status_code == (403 if forbidden else accepted), (str(row), response.text)


@pytest.mark.parametrize(("credential", "ending"), PAIRS)
async def test_credential_of_an_ended_session_is_refused_on_every_route_and_replica(
    cluster: Cluster, credential: str, ending: str
) -> None:
    zone = await cluster.zone()
    branch = await spawn_branch(zone)
    async with zone.client() as client:
        other = (await spawn(client, zone))["id"]
    headers = await CREDENTIALS[credential](cluster, zone, branch.session)
    rows = await scoped_routes(cluster)
    async with clients_of_all_replicas(cluster, headers) as clients:
        for client in clients:
            assert (await client.get(zone.sessions_path)).status_code == 200
        await ENDINGS[ending](zone, branch)
        before = await read_events(zone)
        for client, row in distribute_routes(rows, clients, credential, ending):
            for request in row.requests_for(zone.id, other):
                response = await client.request(**request)
                assert (response.status_code, response.json()["error"]) == expected_refusal(row, headers, ending), row
    assert await read_events(zone) == before


@pytest.mark.parametrize("credential", CREDENTIALS)
async def test_other_replicas_refuse_the_credential_immediately_after_the_end(
    cluster: Cluster, credential: str
) -> None:
    zone = await cluster.zone()

    async def send_all(clients: list[httpx.AsyncClient], branch: Branch) -> list[httpx.Response]:
        child = {"application_id": APP, "parent_id": branch.root}
        return await asyncio.gather(
            *(
                request
                for client in clients
                for request in (
                    client.get(zone.sessions_path),
                    client.get(zone.session_path(branch.root)),
                    client.get(f"{zone.path}/events"),
                    client.get(zone.path),
                    client.post(zone.sessions_path, json={"application_id": APP}),
                    client.post(zone.sessions_path, json=child),
                )
            )
        )

    for _ in range(3 * ROUNDS):
        branch = await spawn_branch(zone)
        async with clients_of_all_replicas(
            cluster, await CREDENTIALS[credential](cluster, zone, branch.session)
        ) as clients:
            # The first requests fill every cache.
            for response in await send_all(clients, branch):
                assert response.status_code in (200, 201), response.text
            await _terminate(zone, branch)
            for response in await send_all(clients, branch):
                assert_problem(response, 401, "session_ended")


async def test_credential_with_an_ended_session_is_refused_in_other_zones_too(cluster: Cluster) -> None:
    own_zone, other_zone = await cluster.zone(), await cluster.zone()
    branch = await spawn_branch(own_zone)
    async with other_zone.client() as client:
        other = (await spawn(client, other_zone))["id"]
    rows = [row for row in await scoped_routes(cluster) if row.has_zone]
    for headers in (
        await _session_token(cluster, own_zone, branch.session),
        await _agent_token(cluster, own_zone, branch.session),
        await _external_session_token(cluster, own_zone, branch.session),
    ):
        async with clients_of_all_replicas(cluster, headers) as clients:
            for client in clients:
                assert (await client.get(other_zone.session_path(other))).status_code == 200
    headers = await _session_token(cluster, own_zone, branch.session)
    await _terminate(own_zone, branch)
    before = await read_events(other_zone)
    async with clients_of_all_replicas(cluster, headers) as clients:
        for client in clients:
            for row in rows:
                for request in row.requests_for(other_zone.id, other):
                    assert_problem(await client.request(**request), 401, "session_ended")
    assert await read_events(other_zone) == before


async def test_token_with_an_agent_id_that_is_no_session_is_accepted(cluster: Cluster) -> None:
    zone = await cluster.zone()
    async with clients_of_all_replicas(cluster, _bearer(zone.token(agent_id="external-worker"))) as clients:
        for client in clients:
            assert (await client.get(zone.sessions_path)).status_code == 200


async def test_revoked_key_is_refused_on_every_replica_immediately(cluster: Cluster) -> None:
    zone = await cluster.zone()
    for _ in range(3 * ROUNDS):
        async with zone.server.client() as admin:
            key = json_object(await admin.post(f"{zone.path}/keys", json={"application_id": APP}))
            async with clients_of_all_replicas(cluster, {"X-API-Key": key["key"]}) as clients:
                for client in clients:
                    assert (await client.get(zone.path)).status_code == 200
                assert (await admin.delete(f"{zone.path}/keys/{key['id']}")).status_code == 204
                for response in await asyncio.gather(*(client.get(zone.path) for client in clients)):
                    assert_problem(response, 401, "invalid_token")
