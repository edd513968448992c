"""The route table: served routes, their scopes, and the refusal of every other method and path."""

from __future__ import annotations

import re

import pytest

from tests.support.engine_marks import ON_SQLITE
from tests.support.route_table import read_route_table
from tests.support.server import ServerProcess
from tests.support.zone import FreshZone, assert_problem

# Both engines serve the same table, and these requests are refused before any database access.
pytestmark = ON_SQLITE
PUBLIC = {
    "GET /health",
    "GET /ready",
    "GET /metrics",  # public on loopback, where the test servers listen
    "GET /openapi.json",
    "GET /docs",
    "GET /.well-known/jwks.json",
    "GET /health/coordinator",  # for process supervisors
}
"""Every route that needs no token. Add a route only if anonymous callers may read it."""
DOCUMENTED = {
    "GET /zones": "quarterdeck.admin",
    "GET /api/v1/coordinator/status": "agent:lifecycle",
    "POST /api/v1/coordinator/recover": "agent:lifecycle",
    "GET /api/v1/coordinator/logs": "agent:lifecycle",
    "GET /api/v1/coordinator/strategy": "agent:lifecycle",
    "PUT /api/v1/coordinator/strategy": "agent:lifecycle",
    "PUT /zones/{zone}": "quarterdeck.admin",
    "GET /zones/{zone}": "agent:lifecycle",
    "GET /zones/{zone}/quotas": "agent:lifecycle",
    "PUT /zones/{zone}/quotas": "quarterdeck.admin",
    "POST /zones/{zone}/agents": "agent:lifecycle",
    "GET /zones/{zone}/agents": "agent:lifecycle",
    "GET /zones/{zone}/agents/{id}": "agent:lifecycle",
    "DELETE /zones/{zone}/agents/{id}": "agent:lifecycle",
    "GET /zones/{zone}/agents/{id}/children": "agent:lifecycle",
    "GET /zones/{zone}/agents/{id}/tree": "agent:lifecycle",
    "POST /zones/{zone}/agents/{id}/services": "agent:lifecycle",
    "GET /zones/{zone}/agents/{id}/services": "agent:lifecycle",
    "GET /zones/{zone}/agents/{id}/services/{service}": "agent:lifecycle",
    "PATCH /zones/{zone}/agents/{id}/services/{service}": "agent:lifecycle",
    "POST /zones/{zone}/agents/{id}/services/{service}/heartbeat": "agent:lifecycle",
    "POST /zones/{zone}/agents/{id}/heartbeat": "agent:lifecycle",
    "POST /zones/{zone}/agent-services": "agent:lifecycle",
    "GET /zones/{zone}/agent-services": "agent:lifecycle",
    "PATCH /zones/{zone}/agent-services/{id}": "agent:lifecycle",
    "POST /zones/{zone}/delegations": "agent:lifecycle",
    "GET /zones/{zone}/delegations": "agent:lifecycle",
    "GET /zones/{zone}/delegations/{id}": "agent:lifecycle",
    "DELETE /zones/{zone}/delegations/{id}": "agent:lifecycle",
    "PATCH /zones/{zone}/delegations/{id}/revoke": "agent:lifecycle",
    "GET /zones/{zone}/delegations/inbound/{id}": "agent:lifecycle",
    "GET /zones/{zone}/delegations/outbound/{id}": "agent:lifecycle",
    "GET /zones/{zone}/delegations/{id}/traverse": "agent:lifecycle",
    "GET /zones/{zone}/agents/{id}/authority": "agent:lifecycle",
    "GET /zones/{zone}/events": "agent:lifecycle",
    "POST /zones/{zone}/keys": "quarterdeck.admin",
    "GET /zones/{zone}/keys": "quarterdeck.admin",
    "DELETE /zones/{zone}/keys/{id}": "quarterdeck.admin",
}
FLEET_ROUTES = {
    "": ("GET", "POST"),
    "/{fleet}": ("GET", "DELETE"),
    "/{fleet}/members": ("GET", "POST"),
    "/{fleet}/members/{member}": ("GET", "DELETE"),
    "/{fleet}/members/{member}/inbox": ("GET",),
    "/{fleet}/members/{member}/sent": ("GET",),
    "/{fleet}/members/{member}/monitor": ("GET", "PATCH"),
    "/{fleet}/messages": ("GET", "POST"),
    "/{fleet}/messages/{message}": ("GET",),
    "/{fleet}/messages/{message}/ack": ("POST",),
    "/{fleet}/messages/{message}/cancel": ("POST",),
    "/{fleet}/timeline": ("GET",),
    "/{fleet}/timeline/live": ("GET",),
    "/{fleet}/monitor": ("GET",),
}
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "LOCK")


async def test_documented_routes_are_served_with_their_scopes(server: ServerProcess) -> None:
    served = {str(row): row.scope for row in await read_route_table(server)}
    assert DOCUMENTED.items() <= served.items()
    assert {
        f"{method} /api/v1/fleets{rest}" for rest, methods in FLEET_ROUTES.items() for method in methods
    } <= served.keys()


async def test_every_route_except_the_public_ones_has_a_scope(server: ServerProcess) -> None:
    assert {str(row) for row in await read_route_table(server) if row.scope is None} == PUBLIC


async def test_missing_token_is_401_on_every_route_except_the_public_ones(server: ServerProcess) -> None:
    async with server.client("") as anonymous:
        for row in await read_route_table(server):
            response = await anonymous.request(row.method, row.path_for("default"))
            if str(row) in PUBLIC:
                assert response.status_code == 200, row
            else:
                assert_problem(response, 401, "missing_token")
                assert response.headers["www-authenticate"].startswith("Bearer")


async def test_unsupported_method_is_405_with_the_allow_header(zone: FreshZone) -> None:
    rows = await read_route_table(zone.server)
    by_path: dict[str, set[str]] = {}
    for row in rows:
        by_path.setdefault(row.path_for(zone.id), set()).add(row.method)
    async with zone.server.client() as client:
        for path, methods in by_path.items():
            for method in METHODS:
                response = await client.request(method, path)
                if ("GET" if method == "HEAD" else method) in methods:
                    assert response.status_code not in (405, 500, 501), (method, path)
                    continue
                assert response.status_code == 405, (method, path)
                assert set(response.headers["allow"].split(", ")) == methods
                if method != "HEAD":
                    assert_problem(response, 405, "method_not_allowed")


@pytest.mark.parametrize(
    "path",
    ["/", "/zone", "/zones/", "//zones", "/zones/default/", "/zones/default/agents/", "/zones/default/agents/x/y",
     "/zones/default/agents/x/tree/z", "/ZONES", "/docs/", "/.well-known", "/.well-known/jwks.json/x", "/health/x",
     "/metrics.json", "/zones/default/agents/x/children/", "/favicon.ico"],
)  # fmt: skip
async def test_unknown_path_is_404_with_and_without_a_token(server: ServerProcess, path: str) -> None:
    for token in (None, ""):
        async with server.client(token) as client:
            # Send the raw path: the client would normalize it.
            url = client.base_url.copy_with(raw_path=path.encode())
            assert_problem(await client.request("GET", url), 404, "route_not_found")


INVALID_IDS = (
    "%20", "%00", "%0A", "a%0A", "%ff", "%F0%9F%92%A9", "%zz", "%", "a%2", "a b".replace(" ", "+"), "a" * 129,
    "~", "a;b", "a,b", "%E2%80%AE", "%C0%80", "%ED%A0%80", "*", "'", "%22%3E%3Cscript%3E",
)  # fmt: skip


INVALID_SUBJECTS = {"%00", "%0A", "a%0A", "%ff", "%C0%80", "%ED%A0%80"}
"""The invalid ids that are also invalid as a subject."""


@pytest.mark.parametrize("segment", INVALID_IDS)
async def test_invalid_path_id_is_400_with_the_parameter_name_on_every_route(
    server: ServerProcess, segment: str
) -> None:
    """Each route gets four of the ids, and each id is sent to a fifth of the routes."""
    async with server.client() as client:
        for row in (await read_route_table(server))[INVALID_IDS.index(segment) % 5 :: 5]:
            parameters = {row.path_for(segment): "zone"} if row.has_zone else {}
            if row.resource_name and (not row.has_subject or segment in INVALID_SUBJECTS):
                parameters[row.path_for("default", segment)] = re.findall(r"{(?!zone})(\w+)}", row.path)[0]
            for path, name in parameters.items():
                url = client.base_url.copy_with(raw_path=path.encode())
                problem = assert_problem(await client.request(row.method, url), 400, "invalid_path")
                assert problem["field"] == name, path
