"""Tokens over HTTP: what is refused, and in which order, on every route that needs a token. The cases of the verifier
alone are in test_auth_tokens.py; these tests use a real server."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tests.http.auth_support import TokenSigner, base64url, build_jws, own_signer
from tests.support.engine_marks import ON_SQLITE
from tests.support.raw_http import RawConnection
from tests.support.route_table import RouteRow, read_route_table
from tests.support.server import ServerProcess
from tests.support.zone import FreshZone, assert_problem, create_zone, read_events

Forge = Callable[[FreshZone], str]


def claims(zone: FreshZone, **changes: object) -> dict[str, object]:
    issuer = zone.server.issuer.issuer
    defaults: dict[str, object] = {
        "iss": issuer,
        "aud": issuer,
        "exp": time.time() + 600,
        "zone_id": zone.id,
        "sub": "app",
        "client_id": "app",
        "sid": "sid",
        "scope": "agent:lifecycle quarterdeck.admin coordinator.admin",
    }
    return {name: value for name, value in {**defaults, **changes}.items() if value is not ...}


def signed(**changes: object) -> Forge:
    return lambda zone: own_signer(zone.server).sign(claims(zone, **changes))


def signed_by_another_key(zone: FreshZone) -> str:
    return TokenSigner(zone.server.issuer.kid).sign(claims(zone))


def with_alg_none(zone: FreshZone) -> str:
    header = {"alg": "none", "typ": "JWT", "kid": zone.server.issuer.kid}
    return build_jws(header, claims(zone), lambda _: b"")


def with_alg_none_and_a_signature(zone: FreshZone) -> str:
    return own_signer(zone.server).sign(claims(zone), alg="none")


def with_the_public_key_as_hmac_secret(zone: FreshZone) -> str:
    """Key confusion: HS256 with the published key as the secret."""
    key = own_signer(zone.server).key
    assert isinstance(key, EllipticCurvePrivateKey)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "HS256", "typ": "JWT", "kid": zone.server.issuer.kid}
    return build_jws(header, claims(zone), lambda text: hmac.new(public, text, hashlib.sha256).digest())


def with_an_embedded_key(zone: FreshZone) -> str:
    forger = TokenSigner("mine")
    return forger.sign(claims(zone), jwk=forger.jwk(), kid=zone.server.issuer.kid)


def with_replaced_claims(zone: FreshZone) -> str:
    head, _, signature = own_signer(zone.server).sign(claims(zone, zone_id="another")).split(".")
    return f"{head}.{base64url(json.dumps(claims(zone)).encode()).decode()}.{signature}"


INVALID: dict[str, Forge] = {
    "no JWT at all": lambda zone: "let-me-in",
    "three empty segments": lambda zone: "..",
    "another key": signed_by_another_key,
    "alg none": with_alg_none,
    "alg none with a signature": with_alg_none_and_a_signature,
    "key confusion": with_the_public_key_as_hmac_secret,
    "an embedded key": with_an_embedded_key,
    "replaced claims": with_replaced_claims,
    "expired": signed(exp=time.time() - 60),
    "not yet valid": signed(nbf=time.time() + 86_400),
    "no expiry": signed(exp=...),
    "another audience": signed(aud="https://elsewhere.example"),
    "no audience": signed(aud=...),
    "another issuer": signed(iss="https://elsewhere.example", aud="https://elsewhere.example"),
    "no zone": signed(zone_id=...),
    "an empty zone": signed(zone_id=""),
    "no application": signed(client_id=""),
    "no subject": signed(sub=...),
    "9 KB": signed(scope="x" * 9_000),
}


async def request_protected_routes(
    zone: FreshZone, token: str, row_slice: slice = slice(None)
) -> list[tuple[RouteRow, httpx.Response]]:
    async with zone.client(token) as client:
        rows = [row for row in await read_route_table(zone.server) if row.scope][row_slice]
        # The body is invalid as well: an unauthorized caller must not learn that.
        return [(row, await client.request(row.method, row.path_for(zone.id), content=b"{")) for row in rows]


@pytest.mark.parametrize("name", INVALID)
@ON_SQLITE
async def test_invalid_token_is_401_on_every_route(zone: FreshZone, name: str) -> None:
    """Each token is sent to a fifth of the routes, and each route gets several tokens."""
    token = INVALID[name](zone)
    row_slice = slice([*INVALID].index(name) % 5, None, 5)
    for _, response in await request_protected_routes(zone, token, row_slice):
        assert_problem(response, 401, "invalid_token")
        assert token not in response.text
    assert [event["type"] for event in await read_events(zone)] == ["zone.create"]


async def test_server_accepts_a_valid_token_of_the_forging_key(zone: FreshZone) -> None:
    async with zone.client(signed()(zone)) as client:
        assert (await client.get(zone.path)).status_code == 200


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic YTpi", "Token x", "x", "Bearer\t x"])
@ON_SQLITE
async def test_authorization_without_a_bearer_token_is_missing_token(server: ServerProcess, header: str | None) -> None:
    lines = ["GET /zones HTTP/1.1", "Host: x"] + ([] if header is None else [f"Authorization: {header}"])
    connection = await RawConnection.open(server.url)
    response = await connection.send_and_read("\r\n".join([*lines, "", ""]).encode())
    assert (response.status, response.json()["error"]) == (401, "missing_token")
    await connection.close()


async def test_token_without_the_scope_of_the_route_is_403_in_any_zone(zone: FreshZone) -> None:
    for zone_id in (zone.id, "another"):
        token = zone.token("agent:lifecycles", "agent", "quarterdeck.admins", zone_id=zone_id)
        for row, response in await request_protected_routes(zone, token):
            assert assert_problem(response, 403, "missing_scope")["scope"] == row.scope


async def test_token_of_another_zone_is_403_on_every_zone_route(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    for row, response in await request_protected_routes(zone, other.token()):
        if row.uses_caller_zone or row.path == "/about":
            continue  # no zone in the path: it acts in the token's zone, or in none
        if row.scope == "agent:lifecycle":
            assert_problem(response, 403, "zone_mismatch")
        else:
            assert_problem(response, 403, "missing_scope")


async def test_administrator_token_works_in_every_zone(zone: FreshZone) -> None:
    token = zone.token("agent:lifecycle", "quarterdeck.admin", zone_id="default")
    async with zone.client(token) as client:
        for row in await read_route_table(zone.server):
            response = await client.request(row.method, row.path_for(zone.id))
            assert response.status_code not in (401, 403), row


async def test_coordinator_admin_token_works_only_in_its_own_zone(zone: FreshZone) -> None:
    token = zone.token("agent:lifecycle", "coordinator.admin", zone_id="default")
    async with zone.client(token) as client:
        assert_problem(await client.get(zone.path), 403, "zone_mismatch")


async def test_repeated_use_does_not_change_whether_a_token_is_valid(zone: FreshZone) -> None:
    good, bad = zone.token(), signed_by_another_key(zone)
    for _ in range(3):
        for token, status in ((good, 200), (bad, 401)):
            async with zone.client(token) as client:
                assert (await client.get(zone.path)).status_code == status


async def test_token_of_one_server_is_invalid_on_another_server(
    sqlite_server: ServerProcess, postgres_server: ServerProcess
) -> None:
    async with postgres_server.client(sqlite_server.admin_token) as client:
        assert_problem(await client.get("/zones"), 401, "invalid_token")
