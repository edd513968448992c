"""What the tests of authentication share: keys to sign with, a clock to turn, and an issuer that really listens."""

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
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from quarterdeck.core.caller import Caller
from quarterdeck.core.errors import Problem
from quarterdeck.http.auth import Authenticator, AuthSettings, LocalIssuer

NOW = 1_800_000_000


class Clock:
    """Time as an argument."""

    def __init__(self, now: float = NOW) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def base64url(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def assemble(header: object, claims: object, sign: Callable[[bytes], bytes]) -> str:
    """A compact JWS from any two JSON values: what no library would agree to make."""
    signed = b".".join(base64url(json.dumps(part).encode()) for part in (header, claims))
    return (signed + b"." + base64url(sign(signed))).decode()


class Signer:
    """A private key of some issuer."""

    def __init__(self, kid: str | None, alg: str = "ES256", key: Any = None) -> None:
        self.kid = kid
        self.alg = alg
        self.key = key if key is not None else _new_key(alg)

    def sign(self, claims: Mapping[str, object], **header: object) -> str:
        named = {} if self.kid is None else {"kid": self.kid}
        return assemble({"alg": self.alg, "typ": "JWT", **named, **header}, claims, self.signature)

    def signature(self, signed: bytes) -> bytes:
        return jwt.get_algorithm_by_name(self.alg).sign(signed, self.key)

    def jwk(self, **members: object) -> dict[str, object]:
        family: Any = {"ES": ECAlgorithm, "Ed": OKPAlgorithm, "RS": RSAAlgorithm}[self.alg[:2]]
        public = family.to_jwk(self.key.public_key(), as_dict=True)
        named = {} if self.kid is None else {"kid": self.kid}
        return {**public, **named, **members}


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
    """Costly to make, so each size is made once."""
    return rsa.generate_private_key(65537, bits)


def claims_of(issuer: str, **changes: object) -> dict[str, object]:
    """Claims that hold at NOW. A change to `...` leaves that claim out."""
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


def bearer(token: str) -> bytes:
    return b"Bearer " + token.encode()


def http_answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class IssuerServer:
    """An issuer on loopback: publishes what `keys` holds, or sends the raw `answer`, when `open` allows."""

    def __init__(self) -> None:
        self.keys: list[dict[str, object]] = []
        self.answer: bytes | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.asked = asyncio.Event()
        self.requests: list[str] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head.split(b" ", 2)[1].decode())
            self.asked.set()
            await self.open.wait()
            answer = self.answer
            writer.write(http_answer(json.dumps({"keys": self.keys}).encode()) if answer is None else answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def issuer_server(ssl: Any = None) -> AsyncIterator[IssuerServer]:
    issuer = IssuerServer()
    server = await asyncio.start_server(issuer.serve, "127.0.0.1", 0, ssl=ssl)
    scheme = "http" if ssl is None else "https"
    issuer.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield issuer
    finally:
        issuer.open.set()
        server.close()
        await server.wait_closed()


class Bench:
    """An authenticator that trusts one external issuer, with its clocks in hand."""

    def __init__(self, issuer: IssuerServer, local: LocalIssuer | None = None, **changes: Any) -> None:
        self.issuer = issuer
        self.clock, self.ticks = Clock(), Clock(1000)
        settings = AuthSettings(**{"issuer_url": issuer.url, **changes})
        self.name = settings.issuer_url or ""
        self.judge = Authenticator(settings, local, self.clock, self.ticks)

    async def verify(self, signer: Signer, **changes: object) -> Caller:
        return await self.judge.verify_token(bearer(signer.sign(claims_of(self.name, **changes))))

    async def refusal(self, signer: Signer, **changes: object) -> Problem:
        with pytest.raises(Problem) as refusal:
            await self.verify(signer, **changes)
        return refusal.value


def fetched(issuer: IssuerServer) -> int:
    return len(issuer.requests)
