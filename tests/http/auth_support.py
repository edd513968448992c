"""Shared helpers of the authentication tests: signing keys, a fake clock and an issuer server on loopback."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem
from quarterdeck.http.auth import Authenticator, AuthSettings, LocalIssuer
from tests.support.server import ServerProcess

NOW = 1_800_000_000


class FakeClock:
    """A clock that the test sets."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def build_jws(header: object, claims: object, sign: Callable[[bytes], bytes]) -> str:
    """A compact JWS of any two JSON values, including ones that no JWT library signs."""
    signing_input = b".".join(base64url(json.dumps(part).encode()) for part in (header, claims))
    return (signing_input + b"." + base64url(sign(signing_input))).decode()


class TokenSigner:
    """A private key of an issuer."""

    def __init__(self, kid: str | None, alg: str = "ES256", key: Any = None) -> None:
        self.kid = kid
        self.alg = alg
        self.key = key if key is not None else _new_key(alg)

    def sign(self, claims: Mapping[str, object], **header: object) -> str:
        kid_field = {} if self.kid is None else {"kid": self.kid}
        return build_jws({"alg": self.alg, "typ": "JWT", **kid_field, **header}, claims, self.signature)

    def signature(self, signing_input: bytes) -> bytes:
        return jwt.get_algorithm_by_name(self.alg).sign(signing_input, self.key)

    def jwk(self, **members: object) -> dict[str, object]:
        family: Any = {"ES": ECAlgorithm, "Ed": OKPAlgorithm, "RS": RSAAlgorithm}[self.alg[:2]]
        public = family.to_jwk(self.key.public_key(), as_dict=True)
        kid_field = {} if self.kid is None else {"kid": self.kid}
        return {**public, **kid_field, **members}


def own_signer(server: ServerProcess) -> TokenSigner:
    """The server's own key, for tokens that its issuer would not mint."""
    pem = (server.launch.data / "signing-key.pem").read_bytes()
    return TokenSigner(server.issuer.kid, key=load_pem_private_key(pem, None))


def _new_key(alg: str) -> Any:
    match alg:
        case "ES256":
            return ec.generate_private_key(ec.SECP256R1())
        case "ES384":
            return ec.generate_private_key(ec.SECP384R1())
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        case "RS256":
            return rsa_key(2048)
    raise ValueError(alg)


@cache
def rsa_key(bits: int) -> rsa.RSAPrivateKey:
    """Key generation is slow, so each size is generated once."""
    return rsa.generate_private_key(65537, bits)


def build_claims(issuer: str, **changes: object) -> dict[str, object]:
    """Claims that are valid at NOW. A change to `...` omits that claim."""
    claims: dict[str, object] = {
        "iss": issuer,
        "aud": issuer,
        "exp": NOW + 300,
        "zone_id": "z1",
        "sub": "user-1",
        "client_id": "app-1",
        "scope": "agent:lifecycle",
    }
    return {name: value for name, value in {**claims, **changes}.items() if value is not ...}


def authorization_header(token: str) -> bytes:
    return b"Bearer " + token.encode()


def http_response(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class IssuerServer:
    """An issuer on loopback. Once `may_respond` is set, it publishes `keys` or sends `raw_response`."""

    def __init__(self) -> None:
        self.keys: list[dict[str, object]] = []
        self.raw_response: bytes | None = None
        self.may_respond = asyncio.Event()
        self.may_respond.set()
        self.request_received = asyncio.Event()
        self.requests: list[str] = []
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head.split(b" ", 2)[1].decode())
            self.request_received.set()
            await self.may_respond.wait()
            response = self.raw_response
            writer.write(http_response(json.dumps({"keys": self.keys}).encode()) if response is None else response)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def run_issuer(ssl: Any = None) -> AsyncIterator[IssuerServer]:
    issuer = IssuerServer()
    server = await asyncio.start_server(issuer.handle, "127.0.0.1", 0, ssl=ssl)
    scheme = "http" if ssl is None else "https"
    issuer.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield issuer
    finally:
        issuer.may_respond.set()
        server.close()
        await server.wait_closed()


class AuthenticatorHarness:
    """An authenticator that trusts one external issuer. The test sets both of its clocks."""

    def __init__(self, issuer: IssuerServer, local: LocalIssuer | None = None, **changes: Any) -> None:
        self.issuer = issuer
        self.clock, self.monotonic_clock = FakeClock(), FakeClock(1000)
        settings = AuthSettings(**{"issuer_url": issuer.url, **changes})
        self.issuer_url = settings.issuer_url or ""
        self.authenticator = Authenticator(settings, local, self.clock, self.monotonic_clock)

    async def verify(self, signer: TokenSigner, **changes: object) -> Caller:
        return await self.authenticator.verify_token(
            authorization_header(signer.sign(build_claims(self.issuer_url, **changes)))
        )

    async def verify_refused(self, signer: TokenSigner, **changes: object) -> Problem:
        with pytest.raises(Problem) as refusal:
            await self.verify(signer, **changes)
        return refusal.value


def fetch_count(issuer: IssuerServer) -> int:
    return len(issuer.requests)
