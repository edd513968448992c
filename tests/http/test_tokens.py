"""Tokens over HTTP: what is refused, in which order, on every route that wants one. The judge's own cases are in
test_auth_tokens.py; here a whole server stands behind it."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from tests.http.auth_support import TokenSigner, base64url, build_jws
from tests.support.engine_marks import ON_SQLITE
from tests.support.raw_http import RawConnection
from tests.support.route_table import RouteRow, read_route_table
from tests.support.server import ServerProcess
from tests.support.zone import FreshZone, assert_problem, create_zone, read_events

Forge = Callable[[FreshZone], str]


def own_signer(zone: FreshZone) -> TokenSigner:
    """The server's own key, for tokens that its issuer would not make."""
    pem = (zone.server.launch.data / "signing-key.pem").read_bytes()
    return TokenSigner(zone.server.issuer.kid, key=load_pem_private_key(pem, None))


def claims(zone: FreshZone, **changes: object) -> dict[str, object]:
    issuer = zone.server.issuer.issuer
    said: dict[str, object] = {
        "iss": issuer,
        "aud": issuer,
        "exp": time.time() + 600,
        "zone_id": zone.id,
        "sub": "app",
        "client_id": "app",
        "sid": "sid",
        "scope": "agent:lifecycle quarterdeck.admin coordinator.admin",
    }
    return {name: value for name, value in {**said, **changes}.items() if value is not ...}


def signed(**changes: object) -> Forge:
    return lambda zone: own_signer(zone).sign(claims(zone, **changes))


def by_another_key(zone: FreshZone) -> str:
    return TokenSigner(zone.server.issuer.kid).sign(claims(zone))


def with_alg_none(zone: FreshZone) -> str:
    header = {"alg": "none", "typ": "JWT", "kid": zone.server.issuer.kid}
    return build_jws(header, claims(zone), lambda _: b"")


def with_alg_none_and_a_signature(zone: FreshZone) -> str:
    return own_signer(zone).sign(claims(zone), alg="none")


def with_the_public_key_as_a_secret(zone: FreshZone) -> str:
    """Key confusion: HS256 over what everybody can fetch."""
    key = own_signer(zone).key
    assert isinstance(key, EllipticCurvePrivateKey)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    header = {"alg": "HS256", "typ": "JWT", "kid": zone.server.issuer.kid}
    return build_jws(header, claims(zone), lambda text: hmac.new(public, text, hashlib.sha256).digest())


def bringing_its_own_key(zone: FreshZone) -> str:
    forger = TokenSigner("mine")
    return forger.sign(claims(zone), jwk=forger.jwk(), kid=zone.server.issuer.kid)


def with_claims_exchanged(zone: FreshZone) -> str:
    head, _, signature = own_signer(zone).sign(claims(zone, zone_id="another")).split(".")
    return f"{head}.{base64url(json.dumps(claims(zone)).encode()).decode()}.{signature}"


INVALID: dict[str, Forge] = {
    "no JWT at all": lambda zone: "let-me-in",
    "three segments of nothing": lambda zone: "..",
    "another key": by_another_key,
    "alg none": with_alg_none,
    "alg none with a signature": with_alg_none_and_a_signature,
    "key confusion": with_the_public_key_as_a_secret,
    "a key of its own": bringing_its_own_key,
    "claims exchanged": with_claims_exchanged,
    "expired": signed(exp=time.time() - 60),
    "not yet valid": signed(nbf=time.time() + 86_400),
    "no end": signed(exp=...),
    "another audience": signed(aud="https://elsewhere.example"),
    "no audience": signed(aud=...),
    "another issuer": signed(iss="https://elsewhere.example", aud="https://elsewhere.example"),
    "no zone": signed(zone_id=...),
    "an empty zone": signed(zone_id=""),
    "no application": signed(client_id=""),
    "no subject": signed(sub=...),
    "9 KB": signed(scope="x" * 9_000),
}


async def on_every_guarded_route(
    zone: FreshZone, token: str, which: slice = slice(None)
) -> list[tuple[RouteRow, httpx.Response]]:
    async with zone.client(token) as client:
        rows = [row for row in await read_route_table(zone.server) if row.scope][which]
        # A body that is wrong as well: who may not ask is not told what else is wrong.
        return [(row, await client.request(row.method, row.path_for(zone.id), content=b"{")) for row in rows]


@pytest.mark.parametrize("name", INVALID)
@ON_SQLITE
async def test_an_invalid_token_is_401_on_every_route(zone: FreshZone, name: str) -> None:
    """Each is shown on a fifth of the routes, and each route is shown several."""
    token = INVALID[name](zone)
    which = slice([*INVALID].index(name) % 5, None, 5)
    for _, answer in await on_every_guarded_route(zone, token, which):
        assert_problem(answer, 401, "invalid_token")
        assert token not in answer.text
    assert [event["type"] for event in await read_events(zone)] == ["zone.create"]


async def test_the_key_that_forges_above_is_the_servers_own(zone: FreshZone) -> None:
    async with zone.client(signed()(zone)) as client:
        assert (await client.get(zone.path)).status_code == 200


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic YTpi", "Token x", "x", "Bearer\t x"])
@ON_SQLITE
async def test_what_is_no_bearer_token_is_a_missing_one(server: ServerProcess, header: str | None) -> None:
    lines = ["GET /zones HTTP/1.1", "Host: x"] + ([] if header is None else [f"Authorization: {header}"])
    connection = await RawConnection.open(server.url)
    answer = await connection.send_and_read("\r\n".join([*lines, "", ""]).encode())
    assert (answer.status, answer.json()["error"]) == (401, "missing_token")
    await connection.close()


async def test_a_token_without_the_routes_scope_is_403_whatever_its_zone(zone: FreshZone) -> None:
    for zone_id in (zone.id, "another"):
        token = zone.token("agent:lifecycles", "agent", "quarterdeck.admins", zone_id=zone_id)
        for row, answer in await on_every_guarded_route(zone, token):
            assert assert_problem(answer, 403, "missing_scope")["scope"] == row.scope


async def test_a_token_of_another_zone_is_403_on_every_route_of_a_zone(zone: FreshZone) -> None:
    other = await create_zone(zone.server)
    for row, answer in await on_every_guarded_route(zone, other.token()):
        if row.uses_caller_zone or row.path == "/about":
            continue  # it names no zone: the token's own is acted in, or none
        if row.scope == "agent:lifecycle":
            assert_problem(answer, 403, "zone_mismatch")
        else:
            assert_problem(answer, 403, "missing_scope")


async def test_an_administrator_crosses_zones(zone: FreshZone) -> None:
    token = zone.token("agent:lifecycle", "quarterdeck.admin", zone_id="default")
    async with zone.client(token) as client:
        for row in await read_route_table(zone.server):
            answer = await client.request(row.method, row.path_for(zone.id))
            assert answer.status_code not in (401, 403), row


async def test_a_coordinators_administrator_does_not_cross_zones(zone: FreshZone) -> None:
    token = zone.token("agent:lifecycle", "coordinator.admin", zone_id="default")
    async with zone.client(token) as client:
        assert_problem(await client.get(zone.path), 403, "zone_mismatch")


async def test_a_good_token_stays_good_and_a_bad_one_bad_however_often_they_are_shown(zone: FreshZone) -> None:
    good, bad = zone.token(), by_another_key(zone)
    for _ in range(3):
        for token, status in ((good, 200), (bad, 401)):
            async with zone.client(token) as client:
                assert (await client.get(zone.path)).status_code == status


async def test_a_servers_token_means_nothing_to_another_server(
    sqlite_server: ServerProcess, postgres_server: ServerProcess
) -> None:
    async with postgres_server.client(sqlite_server.admin_token) as client:
        assert_problem(await client.get("/zones"), 401, "invalid_token")
